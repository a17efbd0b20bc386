r"""Exact statistics where theta enters Gaussian means linearly, under any prior; it may be all that scales their noise.

A term :math:`v_t \sim N(H_t \theta + h_t,\; L(\theta) L(\theta)^T)` (a transition, an observation, or both) has the
log-density of a regression, whose sufficient statistic is that of least squares: the triangular factor R of all rows
:math:`(H_t, v_t - h_t)` so far, and their number. A new row is rotated into R; no squares are summed, which in float32
would lose their digits where data lie far from what the prior expects.

Given the noise, the coefficients have a Gaussian likelihood, from which they are proposed (`coefficients`).
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.dependence import depends_on, is_affine
from epf_jax.gaussian import mask_covariance, mask_missing, solve_lower, without_noise
from epf_jax.in_a_row import Numbers, numbers_in_a_row
from epf_jax.model import StateSpaceModel
from epf_jax.parameters import Parameters, evaluated
from epf_jax.samplers import default_walk
from epf_jax.statistics.base import Statistic, check_model_learns, from_log_target
from epf_jax.statistics.coefficients import of_coefficients, put, with_gaussian_proposals
from epf_jax.terms import (
    GaussianTerm,
    gaussian_term,
    noise_is_of_theta_alone,
    path_terms,
    require_inspectable,
    require_noise,
    whiten,
)
from epf_jax.triangular import Factor, add_rows, dense, empty, list_of_rows, times

_MOST_COLUMNS = 24  # of a factor, into which rows are rotated one number after the other
_PROBES = 16  # thetas at which it is looked whether a component has noise


class Sums(NamedTuple):
    """What a particle keeps of one term.

    Attributes:
        R: triangular factors of the regression's rows: one for each component whose noise is its own, one of all
            components side by side where their noise is joint, one of all where it is known.
        counts: how many values were seen of each component; of none where the noise is known.
    """

    R: tuple[Factor, ...]
    counts: Float[Array, " d"]


class _Piece(NamedTuple):
    """One term's share of the statistic; t are theta's numbers in a row.

    Attributes:
        columns: which numbers the term's mean depends on: R has these columns, for what the numbers are more than at
            the prior's centre, and a last one.
        noise: which numbers its noise depends on.
        zero: the sums of nothing.
        add: `add(S, x_prev, x, y, u)`.
        log_likelihood: `log_likelihood(S, t)`.
        rows: `rows(S, t)`, R's rows divided by the noise at t: those of a regression with unit noise, as lists of
            numbers.
    """

    columns: Int[np.ndarray, " k"]
    noise: Int[np.ndarray, " n"]
    zero: Sums
    add: Callable[..., Sums]
    log_likelihood: Callable[[Sums, Array], Float[Array, ""]]
    rows: Callable[[Sums, Array], list[list[Any]]]


def linear_means(model: StateSpaceModel) -> Statistic:
    """The exact statistic of a model whose Gaussian means are linear in theta, under any prior.

    theta may enter the transition, the observation (of which missing components are skipped) or the initial state, and
    their noise, too, but not together with x, y or u, nor the joint noise of several observations, some of which may be
    missing; x, y and u may enter in any way otherwise. With a Gaussian prior and known noise `conjugate` is the same
    with exact draws, and so is `conjugate_blocks` with conjugate priors of variances. The draws here are a few
    Metropolis-Hastings steps (`coefficients`; of noise alone, a random walk).
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
    drawn = _coefficients(coordinates, pieces)
    if len(drawn) == 0:
        return statistic

    def rows(S, t):
        """The coefficients' regression given all other numbers of theta: rows with unit noise."""
        return [
            of_coefficients(row, p.columns, drawn, t - numbers.c)
            for p, s in zip(pieces, S, strict=True)
            for row in p.rows(s, t)
        ]

    return with_gaussian_proposals(statistic, model, drawn, rows)


@lru_cache(maxsize=256)
def why_not_linear_means(model: StateSpaceModel) -> str:
    """What keeps a model from this statistic, in a sentence; empty when nothing does."""
    check_model_learns(model, "linear_means")
    require_inspectable(model, "linear_means")
    terms, numbers = path_terms(model, natural=True), numbers_in_a_row(model.parameters)
    leaves, (x_prev, x, _, u) = jax.eval_shape(numbers.leaves, numbers.c), terms.example
    for term in (*terms.initial, *terms.steps):
        gaussian = gaussian_term(term, leaves, terms.example)
        if gaussian is None:
            return f"theta enters the {term.name}, which is not Gaussian."
        if not (gaussian.known_noise or noise_is_of_theta_alone(gaussian, leaves, terms.example)):
            joint = "" if gaussian.diagonal else ", or is joint, though some of its components may be missing"
            return f"the noise of the {term.name} depends on theta together with the state or the inputs{joint}."
        if not is_affine(lambda v, *given, g=gaussian: g.mean(numbers.leaves(v), *given), numbers.c, x_prev, x, u):
            return f"the mean of the {term.name} is not linear in theta."
        num_columns = len(_entering(gaussian.mean, numbers, terms.example)) + 1
        num_columns *= 1 if gaussian.known_noise or gaussian.diagonal else gaussian.dim
        if num_columns > _MOST_COLUMNS:
            return f"the {term.name} asks for a factor of {num_columns} columns, and {_MOST_COLUMNS} are the most."
    return ""


def _entering(function: Callable, numbers: Numbers, example: tuple) -> Int[np.ndarray, " k"]:
    """The numbers of those leaves of theta that a function of the leaves depends on."""
    (x_prev, x, _, u), leaves = example, numbers.leaves(numbers.c)

    def with_leaf(leaf, i):
        return function([*leaves[:i], leaf, *leaves[i + 1 :]], x_prev, x, u)

    found = [i for i, leaf in enumerate(leaves) if depends_on(partial(with_leaf, i=i), leaf)]
    return np.concatenate([np.zeros(0, int), *(numbers.places[i] for i in found)])


def _piece(model: StateSpaceModel, term, numbers: Numbers) -> _Piece:
    example = path_terms(model, natural=True).example
    (x_example, _, _, u_example), leaves = example, numbers.leaves(numbers.c)
    gaussian = gaussian_term(term, leaves, example)
    assert gaussian is not None
    columns = _entering(gaussian.mean, numbers, example)
    d, m = gaussian.dim, len(columns) + 1
    joint = not (gaussian.known_noise or gaussian.diagonal)
    fixed = np.zeros(d, bool) if gaussian.known_noise else _always_fixed(model, numbers, gaussian, example)

    def regression(x_prev, x, y, u):
        """Value, offset and slopes of one step."""

        def mean(v):
            return gaussian.mean(numbers.leaves(put(numbers.c, columns, list(numbers.c[columns] + v))), x_prev, x, u)

        nothing = jnp.zeros(m - 1)
        return jnp.ravel(term.value(x, y)), mean(nothing), jax.jacfwd(mean)(nothing)

    def rows_of(value, offset, slopes):
        return jnp.concatenate([slopes, (value - offset)[:, None]], axis=1)

    def add_known(S, x_prev, x, y, u):
        value, *mean = regression(x_prev, x, y, u)
        *parts, scale = whiten(gaussian, value, gaussian.scale_tril(leaves, x_prev, x, u), *mean)
        return Sums((add_rows(S.R[0], list(map(list, solve_lower(scale, rows_of(*parts))))),), S.counts)

    def add(S, x_prev, x, y, u):
        value, *mean = regression(x_prev, x, y, u)
        silent = fixed | jnp.isnan(value) if term.name == "observation" else jnp.asarray(fixed)
        parts = mask_missing(jnp.where(silent, jnp.nan, 0.0), value, *mean)[1:]
        each = rows_of(*parts).reshape(len(S.R), -1)
        return Sums(tuple(add_rows(R, [list(row)]) for R, row in zip(S.R, each, strict=True)), S.counts + ~silent)

    def noise(t):
        scale = gaussian.scale_tril(numbers.leaves(t), x_example, x_example, u_example)
        if not isinstance(fixed, jax.core.Tracer) and not np.any(fixed):
            return scale
        if gaussian.diagonal:
            return scale + jnp.diag(jnp.where(fixed, 1.0, 0.0))
        return mask_covariance(jnp.where(fixed, jnp.nan, 0.0), scale)  # what is fixed has counts and rows of zero

    def rows(S, t):
        # The last row of a factor is what no coefficient explains.
        if gaussian.known_noise:
            return list_of_rows(S.R[0])[:-1]
        scale = noise(t)
        if gaussian.diagonal:
            return [[a / scale[i, i] for a in row] for i, R in enumerate(S.R) for row in list_of_rows(R)[:-1]]
        return [list(row) for side_by_side in dense(S.R[0]) for row in solve_lower(scale, side_by_side.reshape(d, m))]

    def log_likelihood(S, t):
        by = [*(numbers.c[i] - t[i] for i in columns), jnp.ones(())]
        if gaussian.known_noise:
            return -0.5 * sum((number**2 for number in times(S.R[0], by)[:-1]), jnp.zeros(()))
        scale = noise(t)
        possible = jnp.all(jnp.isfinite(scale)) & jnp.all(jnp.diag(scale) > 0)  # a scale may be too small a number
        scale = jnp.where(possible, scale, jnp.eye(d))
        if joint:
            residuals = jax.vmap(partial(solve_lower, scale))(dense(S.R[0]).reshape(-1, d, m) @ jnp.stack(by))
            squares = jnp.sum(residuals**2)
        else:
            white = [a / scale[i, i] for i, R in enumerate(S.R) for a in times(R, by)]
            squares = jnp.sum(jnp.stack(white) ** 2)
        log_p = -0.5 * squares - jnp.sum(S.counts * jnp.log(jnp.diag(scale)))
        return jnp.where(possible, log_p, -jnp.inf)

    size = d * m if joint else m
    num_factors = 1 if gaussian.known_noise or joint else d
    zero = Sums(tuple(empty(size, size) for _ in range(num_factors)), jnp.zeros(0 if gaussian.known_noise else d))
    of_noise = _entering(gaussian.scale_tril, numbers, example)
    return _Piece(columns, of_noise, zero, add_known if gaussian.known_noise else add, log_likelihood, rows)


def _always_fixed(model: StateSpaceModel, numbers: Numbers, gaussian: GaussianTerm, example: tuple) -> Any:
    """Which components of a vector have no noise whatever theta is: at one theta, any noise may vanish."""
    (x, _, _, u), coordinates = example, model.parameters
    if gaussian.dim == 1:
        return np.zeros(1, bool)
    steps = np.random.default_rng(1).normal(size=(_PROBES, coordinates.dim)).astype(numbers.c.dtype)

    def look(z):
        return without_noise(gaussian.scale_tril(jax.tree.leaves(coordinates.to_theta(z)), x, x, u))

    fixed = evaluated(jax.vmap(look), coordinates.centre + coordinates.scale * steps)
    return (jnp if isinstance(fixed, jax.core.Tracer) else np).all(fixed, axis=0)


def _coefficients(coordinates: Parameters, pieces: tuple[_Piece, ...]) -> Int[np.ndarray, " A"]:
    """Which numbers are coefficients of means and of nothing else, each with a coordinate of its own."""
    linear, noisy = ([i for p in pieces for i in part(p)] for part in (lambda p: p.columns, lambda p: p.noise))
    return np.array([i for i in np.setdiff1d(linear, noisy) if coordinates.own[i] >= 0], int)
