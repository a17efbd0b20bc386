r"""The certificate: the posterior from fresh draws of a fit that is fixed beforehand, and how far off it may be.

Thetas are drawn from the fit, widened, and weighed by fresh likelihoods. Nothing that was looked at before has a say in
the weights: their means are the answer, and their spread tells its error. Where the weights do not bear that (too few
draws carry them, or their tail is too heavy), the fit was wrong: it is fitted anew to the weighted draws.
"""

from typing import NamedTuple

import numpy as np

from epf_jax.core import student_mixtures
from epf_jax.core.importance import LARGEST_TAIL, Moments, log_mean, moments, normalised, size_of, tail_shape
from epf_jax.core.student_mixtures import Mixture
from epf_jax.running.clock import Clock
from epf_jax.running.likelihoods import Evaluated, Likelihoods

_NEAR, _FAR = 1.15, 3.0  # how much wider than the fit: nearly all draws, and the share below
_SHARE_OF_FAR = 0.1
_LEAST_WORTH = 0.04  # of the draws, below which the fit is made anew
GOOD_ENOUGH = 0.06  # error of a mean in posterior sds at which no more draws are made
_MOST_DRAWS = 40_000
_MOST_REFITS = 12
_LEAST_SIZE = 30  # independent draws that an answer has to be worth


class Certificate(NamedTuple):
    """Weighted draws of the posterior and what they tell.

    Attributes:
        draws: thetas and states.
        weights: theirs, which sum to one.
        of_theta: moments of theta's numbers in a row.
        log_evidence: of the whole series.
        log_evidence_error: its standard error.
        tail: the shape k of the weights' tail.
        worth: how many independent draws they are worth.
        is_covered: whether the draws are spread more widely than what their weights say, in every direction.
        num_refits: how often the fit was made anew.
    """

    draws: Evaluated
    weights: np.ndarray
    of_theta: Moments
    log_evidence: float
    log_evidence_error: float
    tail: float
    worth: float
    is_covered: bool
    num_refits: int

    @property
    def error(self) -> float:
        """The largest error of a mean or, as a share, of a standard deviation."""
        return float(max(np.max(self.of_theta.error, initial=0.0), np.max(self.of_theta.sd_error, initial=0.0)))

    @property
    def holds(self) -> bool:
        """Whether the weights allow to believe these errors."""
        return self.is_covered and self.tail <= LARGEST_TAIL and self.worth >= _LEAST_SIZE


def certify(
    rng: np.random.Generator,
    likelihood: Likelihoods,
    mixture: Mixture,
    length: int,
    clock: Clock,
    *,
    goal: float = GOOD_ENOUGH,
) -> Certificate:
    """Fresh draws of the fit until the answer is good enough, the fit being made anew where it was wrong.

    Args:
        rng: where random numbers come from.
        likelihood: how thetas are evaluated.
        mixture: the fit.
        length: of the series.
        clock: asked before each batch.
        goal: the largest error that is good enough.
    """
    size = max(likelihood.num_thetas, 256)
    num_refits, best = 0, None
    draw_from, evaluated = _to_draw_from(mixture), []
    while True:
        z = student_mixtures.draw(rng, draw_from, size)
        evaluated.append(likelihood.evaluate(rng, z, length))
        draws = Evaluated(*(np.concatenate(parts) for parts in zip(*evaluated, strict=True)))
        log_weights = draws.log_prior + draws.log_likelihood - student_mixtures.log_density(draw_from, draws.z)
        found = _certificate(draws, log_weights, num_refits)
        clock.tell("certifying", min(1.0, (goal / max(found.error, 1e-6)) ** 2))
        if best is None or _rank(found) <= _rank(best):
            best = found
        done = len(draws.z)
        if found.holds and found.error <= goal and done >= 2 * size:
            return found
        hopeless = done >= 8 * size and _LEAST_SIZE * done > found.worth * _MOST_DRAWS
        if clock.is_up() or done >= _MOST_DRAWS or hopeless:
            return best
        heavy = found.tail > LARGEST_TAIL and done >= 4 * size
        wrong = heavy or not found.is_covered or found.worth < _LEAST_WORTH * done
        if wrong and num_refits < _MOST_REFITS and done >= 2 * size and found.worth > 5:
            num_refits += 1
            mixture = student_mixtures.fit(draws.z, found.weights)
            draw_from, evaluated = _to_draw_from(mixture), []


def _rank(found: Certificate) -> tuple[bool, float]:
    return not found.holds, found.error


def _to_draw_from(mixture: Mixture) -> Mixture:
    """The fit a little wider, and a share of draws far wider: no part of the posterior is to be without draws."""
    near, far = (student_mixtures.widened(mixture, by) for by in (_NEAR, _FAR))
    return student_mixtures.pooled([near, far], [1.0 - _SHARE_OF_FAR, _SHARE_OF_FAR])


def _certificate(draws, log_weights, num_refits) -> Certificate:
    weights = normalised(log_weights)
    log_evidence, error = log_mean(log_weights)
    return Certificate(
        draws,
        weights,
        moments(draws.theta, weights),
        log_evidence,
        error,
        tail_shape(weights),
        size_of(weights),
        _is_covered(draws.z, weights),
        num_refits,
    )


def _is_covered(z: np.ndarray, weights: np.ndarray) -> bool:
    """Whether the draws' covariance is larger than the weighted draws' in every direction.

    It is where the draws are from a widened fit of what the weights say. It is not where the fit has collapsed: what
    it is confined to then looks flat, and its edges weigh most.
    """
    apart, drawn = z - weights @ z, z - z.mean(axis=0)
    of_weighted = (weights[:, None] * apart).T @ apart
    of_drawn = drawn.T @ drawn / len(z)
    scale = np.sqrt(np.diag(of_drawn))
    if not np.all(scale > 0):
        return False
    largest = np.linalg.eigvals(
        np.linalg.solve(of_drawn / np.outer(scale, scale), of_weighted / np.outer(scale, scale))
    )
    return bool(np.max(np.real(largest)) < 1.0)
