r"""Exact statistics of Gaussian terms with linear means, under any prior; noise may depend on theta alone.

A term :math:`v_t \sim N(H_t \theta + h_t,\; L(\theta) L(\theta)^T)` (a transition, an observation, or both) has the
log-density of a regression. Its sufficient statistic is that of least squares: the triangular factor R of all rows
:math:`(H_t, v_t - h_t)` so far, and their number. A new row is rotated into R. Sums of squares would lose their digits
in float32 if data are far from what the prior expects. If means are linear in the state and the inputs instead of
theta, these are the features instead of H_t (`means`).

Given the noise, coefficients in which the means are linear have a Gaussian likelihood, from which they are proposed
(`coefficients`).
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.choice import where
from epf_jax.core.dependence import is_affine
from epf_jax.core.gaussian import mask_covariance, mask_missing, solve_lower, without_noise
from epf_jax.core.triangular import Factor, add_rows, dense, empty, list_of_rows, times
from epf_jax.models.flat_theta import Numbers, numbers_in_a_row
from epf_jax.models.parameters import Parameters, evaluated
from epf_jax.models.path_terms import (
    GaussianTerm,
    Term,
    gaussian_term,
    noise_is_of_theta_alone,
    path_terms,
    require_noise,
    whiten,
)
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.samplers import default_walk
from epf_jax.statistics.coefficients import Regression, with_gaussian_proposals
from epf_jax.statistics.means import Means, linear_in_state, linear_in_theta, which_enter
from epf_jax.statistics.statistic import Statistic, check_model_learns, from_log_target

_MOST_COLUMNS = 24  # of a factor, into which rows are rotated one number after the other
_PROBES = 16  # thetas at which it is looked whether a component has noise


class Sums(NamedTuple):
    """What a particle keeps of one term.

    Attributes:
        R: triangular factors of the regression's rows: one for each component with its own noise; one for all
            components side by side if their noise is joint; one for all rows that were divided by known noise.
        counts: how many values were seen of each component; empty if rows were divided by their noise.
    """

    R: tuple[Factor, ...]
    counts: Float[Array, " d"]


class _Piece(NamedTuple):
    """One term's share of the statistic; t is theta's flat vector.

    Attributes:
        gaussian: the term.
        means: how its means are linear.
        noise: which numbers its noise depends on.
        zero: the empty sums.
        add: `add(S, x_prev, x, y, u)`.
        log_likelihood: `log_likelihood(S, t)`.
        rows: `rows(S, t, drawn)`, the rows of the regression of the drawn numbers given all others at t, with unit
            noise, as lists of numbers.
    """

    gaussian: GaussianTerm
    means: Means
    noise: Int[np.ndarray, " n"]
    zero: Sums
    add: Callable[..., Sums]
    log_likelihood: Callable[[Sums, Array], Float[Array, ""]]
    rows: Callable[[Sums, Array, Array], list[list[Any]]]


@waits_for_inputs
def linear_means(model: StateSpaceModel) -> Statistic:
    """The exact statistic of a model whose Gaussian means are linear, under any prior.

    Means may be linear in theta, while x and u enter in any way. Or they may be linear in the state and in real inputs,
    while theta enters in any way, as in mu + phi (x - mu) and exp(-kappa) x. theta may enter the transition, the
    observation (missing components are skipped) or the initial state, and their noise. The noise must not depend on
    theta together with x, y or u, and joint noise of observations that may be partly missing must not depend on theta.

    Draws are a few Metropolis-Hastings steps (`coefficients`; for noise alone, a random walk). `conjugate` (Gaussian
    prior, known noise) and `conjugate_blocks` (conjugate priors of variances) have exact draws.
    """
    problem = why_not_linear_means(model)
    if problem:
        raise ValueError(f"linear_means: {problem} Use epf.chebyshev(model) or epf.assumed_density(model).")
    require_noise(model, "linear_means")
    coordinates, numbers, terms = model.parameters, numbers_in_a_row(model.parameters), path_terms(model, natural=True)
    initial, steps = ([_piece(model, t, numbers) for t in group] for group in (terms.initial, terms.steps))
    pieces = (*initial, *steps)

    def init(x_0=None):
        started = [p.zero if x_0 is None else p.add(p.zero, x_0, x_0, None, None) for p in initial]
        return (*started, *(p.zero for p in steps))

    def update(key, S, theta, x_prev, x, y, u):
        started, sums = S[: len(initial)], S[len(initial) :]
        return (*started, *(p.add(s, x_prev, x, y, u) for p, s in zip(steps, sums, strict=True)))

    def log_target(S):
        def log_density(z):
            t = numbers.at(z)
            return sum((p.log_likelihood(s, t) for p, s in zip(pieces, S, strict=True)), coordinates.log_prior(z))

        return log_density

    statistic = from_log_target(model, init, update, log_target, default_walk(coordinates.dim), "linear_means")
    blocks = _blocks(coordinates, numbers, pieces, terms.example)
    return with_gaussian_proposals(statistic, model, blocks) if blocks else statistic


@lru_cache(maxsize=256)
def why_not_linear_means(model: StateSpaceModel, *, in_theta: bool = False) -> str:
    """A sentence that says why the statistic does not fit a model, or an empty string.

    Args:
        model: the model.
        in_theta: whether the means must be linear in theta itself.
    """
    check_model_learns(model, "linear_means")
    terms, numbers = path_terms(model, natural=True), numbers_in_a_row(model.parameters)
    leaves = jax.eval_shape(numbers.leaves, numbers.c)
    for term in (*terms.initial, *terms.steps):
        gaussian = gaussian_term(term, leaves, terms.example)
        if gaussian is None:
            return f"theta enters the {term.name}, which is not Gaussian."
        of_theta_alone = noise_is_of_theta_alone(gaussian, leaves, terms.example)
        if not (gaussian.known_noise or of_theta_alone):
            joint = "" if gaussian.diagonal else ", or is joint, though some of its components may be missing"
            return f"the noise of the {term.name} depends on theta together with the state or the inputs{joint}."
        means = _means(gaussian, numbers, terms.example, of_theta_alone)
        if means is None or (in_theta and not means.in_theta):
            nor = "" if in_theta else f", nor linear in the state and the inputs with {_simple_noise(gaussian)}"
            return f"the mean of the {term.name} is not linear in theta{nor}."
        num_columns = means.num_features + 1
        num_columns *= gaussian.dim if _is_joint(gaussian, means) else 1
        if num_columns > _MOST_COLUMNS:
            return f"the {term.name} asks for a factor of {num_columns} columns, and {_MOST_COLUMNS} are the most."
    return ""


def _simple_noise(gaussian: GaussianTerm) -> str:
    """Whether the noise is allowed if means are linear in the state only."""
    joint = gaussian.term.name == "observation" and not gaussian.diagonal
    return "noise of its own for each component" if joint else "noise of theta alone"


def _means(gaussian: GaussianTerm, numbers: Numbers, example: tuple, of_theta_alone: bool) -> Means | None:
    """How the term's means are linear, or None."""
    means = linear_in_theta(gaussian, numbers, example)
    return linear_in_state(gaussian, numbers, example) if means is None and of_theta_alone else means


def _is_whitened(gaussian: GaussianTerm, means: Means) -> bool:
    """Whether rows are divided by their noise before they are added to one factor."""
    return gaussian.known_noise and means.in_theta


def _is_joint(gaussian: GaussianTerm, means: Means) -> bool:
    """Whether the components' rows are side by side in one factor, and divided by their joint noise later."""
    return not gaussian.diagonal and not _is_whitened(gaussian, means)


def _piece(model: StateSpaceModel, term: Term, numbers: Numbers) -> _Piece:
    example, leaves = path_terms(model, natural=True).example, numbers.leaves(numbers.c)
    gaussian = gaussian_term(term, leaves, example)
    assert gaussian is not None
    means = _means(gaussian, numbers, example, noise_is_of_theta_alone(gaussian, leaves, example))
    assert means is not None
    whitened = _is_whitened(gaussian, means)
    kept = _whitened(gaussian, means, leaves) if whitened else _to_be_divided(model, gaussian, means, numbers, example)
    return _Piece(gaussian, means, which_enter(gaussian.scale_tril, numbers, example), *kept)


def _rows_of(value: Float[Array, " d"], features: Float[Array, "d m"], offset: Float[Array, " d"]) -> Array:
    return jnp.concatenate([features, (value - offset)[:, None]], axis=1)


def _whitened(gaussian: GaussianTerm, means: Means, leaves: Any) -> tuple[Any, ...]:
    """Sums of rows divided by known noise, in one factor: `_Piece`'s zero, add, log_likelihood, rows."""

    def add(S, x_prev, x, y, u):
        scale = gaussian.scale_tril(leaves, x_prev, x, u)
        *parts, scale = whiten(gaussian, gaussian.term.value(x, y), scale, *means.features(x_prev, x, u))
        return Sums((add_rows(S.R[0], list(map(list, solve_lower(scale, _rows_of(*parts))))),), S.counts)

    def log_likelihood(S, t):
        left = times(S.R[0], means.residual(t)[0])[:-1]
        return -0.5 * sum((number**2 for number in left), jnp.zeros(()))

    def rows(S, t, drawn):
        of_row = means.of_drawn(t, drawn)
        return [of_row(row, 0) for row in list_of_rows(S.R[0])[:-1]]  # the last is what no coefficient explains

    size = means.num_features + 1
    return Sums((empty(size, size),), jnp.zeros(0)), add, log_likelihood, rows


def _to_be_divided(
    model: StateSpaceModel, gaussian: GaussianTerm, means: Means, numbers: Numbers, example: tuple
) -> tuple[Any, ...]:
    """Sums of rows to be divided by theta's noise later: a factor for each component, or one for all if joint."""
    x_example, _, _, u_example = example
    d, m, joint = gaussian.dim, means.num_features + 1, _is_joint(gaussian, means)
    fixed = _always_fixed(model, numbers, gaussian, example)

    def add(S, x_prev, x, y, u):
        value = jnp.ravel(gaussian.term.value(x, y))
        silent = fixed | jnp.isnan(value) if gaussian.term.name == "observation" else jnp.asarray(fixed)
        parts = mask_missing(where(silent, jnp.nan, 0.0), value, *means.features(x_prev, x, u))[1:]
        each = _rows_of(*parts).reshape(len(S.R), -1)
        return Sums(tuple(add_rows(R, [list(row)]) for R, row in zip(S.R, each, strict=True)), S.counts + ~silent)

    def noise(t):
        scale = gaussian.scale_tril(numbers.leaves(t), x_example, x_example, u_example)
        if d == 1:
            return scale
        if gaussian.diagonal:
            return scale + jnp.diag(where(fixed, 1.0, 0.0))
        return mask_covariance(where(fixed, jnp.nan, 0.0), scale)  # what is fixed has counts and rows of zero

    def log_likelihood(S, t):
        by, scale = means.residual(t), noise(t)
        possible = jnp.all(jnp.isfinite(scale)) & jnp.all(jnp.diag(scale) > 0)  # a scale may be too small a number
        scale = where(possible, scale, jnp.eye(d))
        if joint:
            left = jnp.sum(dense(S.R[0]).reshape(-1, d, m) * jnp.stack([jnp.stack(row) for row in by]), axis=-1)
            squares = jnp.sum(jax.vmap(partial(solve_lower, scale))(left) ** 2)
        else:
            white = [a / scale[i, i] for i, R in enumerate(S.R) for a in times(R, by[i])]
            squares = jnp.sum(jnp.stack(white) ** 2)
        log_p = -0.5 * squares - jnp.sum(S.counts * jnp.log(jnp.diag(scale)))
        return where(possible, log_p, -jnp.inf)

    def rows(S, t, drawn):
        of_row, scale = means.of_drawn(t, drawn), noise(t)
        if not joint:
            each = [(i, row) for i, R in enumerate(S.R) for row in list_of_rows(R)[:-1]]
            return [[a / scale[i, i] for a in of_row(row, i)] for i, row in each]
        parts = [[of_row(list(row), i) for i, row in enumerate(r.reshape(d, m))] for r in dense(S.R[0])]
        return [list(row) for part in parts for row in solve_lower(scale, jnp.stack(list(map(jnp.stack, part))))]

    size, num_factors = (d * m, 1) if joint else (m, d)
    return Sums(tuple(empty(size, size) for _ in range(num_factors)), jnp.zeros(d)), add, log_likelihood, rows


def _always_fixed(model: StateSpaceModel, numbers: Numbers, gaussian: GaussianTerm, example: tuple) -> Any:
    """Which components of a vector have no noise for any theta (at a single theta, any noise may vanish)."""
    (x, _, _, u), coordinates = example, model.parameters
    if gaussian.dim == 1:
        return np.zeros(1, bool)
    steps = np.random.default_rng(1).normal(size=(_PROBES, coordinates.dim)).astype(numbers.c.dtype)

    def look(z):
        return without_noise(gaussian.scale_tril(jax.tree.leaves(coordinates.to_theta(z)), x, x, u))

    fixed = evaluated(jax.vmap(look), coordinates.centre + coordinates.scale * steps)
    return (jnp if isinstance(fixed, jax.core.Tracer) else np).all(fixed, axis=0)


def _blocks(coordinates: Parameters, numbers: Numbers, pieces: tuple[_Piece, ...], example: tuple) -> list[Regression]:
    """Regressions of theta's leaves; leaves in which the means are jointly linear share a block."""
    (x_prev, x, _, u), leaves = example, numbers.leaves(numbers.c)

    def tell(block):
        """Which pieces are a regression of these leaves: linear in them, with noise that does not depend on them."""

        def mean(own, all_leaves, p):
            given = [own[block.index(i)] if i in block else leaf for i, leaf in enumerate(all_leaves)]
            return p.gaussian.mean(given, x_prev, x, u)

        places = np.concatenate([numbers.places[i] for i in block])
        return {
            k
            for k, p in enumerate(pieces)
            if np.isin(places, p.means.entering).any()
            and not np.isin(places, p.noise).any()
            and is_affine(partial(mean, p=p), [leaves[i] for i in block], leaves)
        }

    def needed(found):
        """The pieces that a block must keep: those of every step, or that of the start if there are no others."""
        return {k for k in found if pieces[k].gaussian.term.name != "initial"} or found

    blocks: list[list[int]] = []
    for i in range(len(leaves)):
        alone = needed(tell([i])) if (coordinates.own[numbers.places[i]] >= 0).any() else set()
        if alone:
            fitting = [b for b in blocks if alone | needed(tell(b)) <= tell([*b, i])]
            fitting[0].append(i) if fitting else blocks.append([i])
    return [_regression(coordinates, numbers, pieces, block, tell(block)) for block in blocks]


def _regression(
    coordinates: Parameters, numbers: Numbers, pieces: tuple[_Piece, ...], block: list[int], told: set[int]
) -> Regression:
    """The regression of a block of leaves by the pieces that inform it; acceptance uses all pieces."""
    places = np.sort(np.concatenate([numbers.places[i] for i in block]))
    drawn = places[coordinates.own[places] >= 0]
    return Regression(drawn, lambda S, t: [row for k in sorted(told) for row in pieces[k].rows(S[k], t, drawn)])
