r"""From the prior to a fit of the posterior: adaptive importance sampling over ever longer beginnings of the series.

    1. draw     thetas from the prior, then from the fit, and find their likelihoods over the first s observations
    2. temper   the likelihood by the largest power, at most 1, that leaves the weights worth enough draws
    3. fit      a mixture of Students to the weighted draws
    4. go on    with twice as many observations once that power is 1, until it is 1 for the whole series

It is population Monte Carlo (Cappé et al. 2004) on the path of Chopin's (2002) iterated batches: an outlier, or a prior
that is far from the posterior, costs steps and not the answer. What comes out is no answer but a place to draw from.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np

from epf_jax.core import student_mixtures
from epf_jax.core.importance import size_of, temperature
from epf_jax.core.student_mixtures import Mixture
from epf_jax.filters.known_theta import KnownTheta
from epf_jax.models.observed import Observed
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.running.clock import Clock
from epf_jax.running.likelihoods import Evaluated, Likelihoods, likelihoods, noise

_SHORTEST = 8  # observations that are looked at first, and two for each parameter
_WIDER = 1.25  # than the fit, where the next thetas are drawn: the next target may be wider
MOST_PARTICLES = 8192  # of each theta's filter
MOST_NOISE = 2.5  # variance of log-likelihood estimates above which more particles are asked for
_MOST_STEPS = 80
# `learn` costs about as much as so many looks at the whole series, shorter looks and the certificate included.
_WHOLE_LOOKS = 8
_WANTED_NOISE = 1.2  # variance of log-likelihood estimates: costs and losses balance about there
_PATIENCE = 4  # looks that came no further, after which estimates may be too noisy to come further at all


class Explored(NamedTuple):
    """Where the posterior is, as far as was looked.

    Attributes:
        mixture: the fit.
        draws: the last thetas.
        weights: theirs, which sum to one.
        num_steps: how many observations they know of.
        power: that of the likelihood.
        noise: the variance of log-likelihood estimates over the whole series that is to be expected.
    """

    mixture: Mixture
    draws: Evaluated
    weights: np.ndarray
    num_steps: int
    power: float
    noise: float


def explore_with_enough(
    rng: np.random.Generator,
    model: StateSpaceModel,
    inner_of: Callable[[int], KnownTheta],
    num_particles: int,
    series: Observed,
    clock: Clock,
    begin: Explored | None = None,
    *,
    limit: float = math.inf,
) -> tuple[Explored, Likelihoods]:
    """A fit by likelihoods with little enough noise, and these: particles become more where there is too much.

    Args:
        rng: where random numbers come from.
        model: the model.
        inner_of: `inner_of(num_particles)`, the filter of the state for one theta.
        num_particles: how many to begin with; 0 where likelihoods are exact.
        series: the whole series.
        clock: asked before each look.
        begin: an earlier exploration to go on from.
        limit: where more particles than these are asked for, it is left at that.
    """
    found = begin
    while True:
        likelihood = likelihoods(inner_of(num_particles), num_particles, series.values, series.inputs)
        found = explore(rng, model, likelihood, len(series.values), clock, found)
        if found.noise <= MOST_NOISE or clock.is_up() or num_particles >= MOST_PARTICLES:
            return found, likelihood
        times = 2 ** math.ceil(math.log2(min(max(found.noise / _WANTED_NOISE, 2.0), 16.0)))
        if num_particles * times > limit:
            return found, likelihood
        num_particles = min(num_particles * times, MOST_PARTICLES)


def explore(
    rng: np.random.Generator,
    model: StateSpaceModel,
    likelihood: Likelihoods,
    length: int,
    clock: Clock,
    begin: Explored | None = None,
) -> Explored:
    """A fit of the posterior given a series of that length, or as far as the clock or too noisy estimates let it come.

    Args:
        rng: where random numbers come from.
        model: the model, whose prior the first thetas are drawn from.
        likelihood: how they are evaluated.
        length: of the series.
        clock: asked before each look.
        begin: an earlier exploration to go on from.
    """
    dim = model.parameters.dim
    num = max(256, likelihood.num_thetas, 40 * dim)
    least = max(num / 8, 6.0 * (dim + 1))
    grows = 2 if likelihood.num_particles else 4
    num_steps = min(length, _SHORTEST + 2 * dim) if begin is None else begin.num_steps
    found = begin
    reached, stuck = 0.0, 0
    for looks in range(_MOST_STEPS):
        begun = clock.spent()
        try:
            found = _look(rng, model, likelihood, found, num, num_steps, least)
        except KeyboardInterrupt:
            if found is None:
                raise
            clock.stopped = True
            return found
        if looks > 0:  # the first may have compiled
            clock.expect((clock.spent() - begun) * length / num_steps * _WHOLE_LOOKS)
        clock.tell(f"exploring, {num_steps} of {length} observations", num_steps / length * found.power)
        stuck = stuck + 1 if found.power < 1.5 * reached else 0
        reached = max(reached, found.power)
        if found.power == 1.0 or stuck == _PATIENCE:
            expected = noise(rng, likelihood, found.weights @ found.draws.z, num_steps) * length / num_steps
            found = found._replace(noise=expected)
            if expected > MOST_NOISE and (stuck == _PATIENCE or 4 * num_steps >= length):
                return found
            stuck = 0
        if found.power == 1.0:
            if num_steps == length and size_of(found.weights) >= 2 * least:
                return found
            num_steps, reached = min(grows * num_steps, length), 0.0
        if clock.is_up():
            return found
    assert found is not None
    return found


def _look(rng, model, likelihood, before, num, num_steps, least) -> Explored:
    """New draws, of the last fit or of the prior, their weights, and the fit to them."""
    if before is None:
        draws, base = _of_the_prior(rng, model, likelihood, num, num_steps)
    else:
        wider = student_mixtures.widened(before.mixture, _WIDER)
        draws = likelihood.evaluate(rng, student_mixtures.draw(rng, wider, num), num_steps)
        base = draws.log_prior - student_mixtures.log_density(wider, draws.z)
    power, weights = temperature(base, draws.log_likelihood, least)
    return Explored(student_mixtures.fit(draws.z, weights), draws, weights, num_steps, power, 0.0)


def _of_the_prior(rng, model, likelihood, num, num_steps) -> tuple[Evaluated, np.ndarray]:
    """Draws of the prior, as many more as it takes until some of them explain the first observations."""
    for times in (1, 4, 16):
        z = prior_draws(model, rng, times * num)
        draws = likelihood.evaluate(rng, z, num_steps)
        if np.isfinite(draws.log_likelihood).sum() >= 8:
            return draws, np.where(np.isfinite(draws.log_likelihood), 0.0, -np.inf)
    raise ValueError(
        f"y: under none of {16 * num} draws of the prior are the first {num_steps} observations possible: their "
        "density is zero or NaN. Look for observations outside of the support, wrong units, or a far prior."
    )


def prior_draws(model: StateSpaceModel, rng: np.random.Generator, num: int) -> np.ndarray:
    """So many draws of the prior, as unconstrained coordinates."""
    return np.asarray(_draw_prior(model, num)(rng.integers(2**32, dtype=np.uint32)), float)


@lru_cache(maxsize=64)
def _draw_prior(model, num):
    def draw(seed):
        return jax.vmap(model.parameters.to_vector)(model.parameters.sample(jax.random.key(seed), num))

    return jax.jit(draw)
