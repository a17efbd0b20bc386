r"""Exact statistics where theta enters Gaussian means linearly, and their noise in any way, under any prior.

A term :math:`v_t \sim N(H_t \theta + h_t,\; L(\theta) L(\theta)^T)` (a transition, an observation, or both) has the
log-density of a regression, whose sufficient statistic is that of least squares: the triangular factor R of all rows
:math:`(H_t, v_t - h_t)` so far, and their number. A new row is rotated into R; no squares are summed, which in float32
would lose their digits where data lie far from what the prior expects.

Given the noise, the coefficients have a Gaussian likelihood. So theta is drawn in steps that move the noise, and
whatever else is not such a coefficient, by a random walk, and propose the coefficients anew from their Gaussian given
that, which coefficients tied to each other closely (an intercept and an autoregression far from zero) ask for.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from epf_jax.dependence import depends_on, is_affine
from epf_jax.gaussian import cholesky, noisy_part, solve_lower
from epf_jax.model import StateSpaceModel
from epf_jax.parameters import Parameters, evaluated
from epf_jax.random import normal
from epf_jax.samplers import SampleInfo, prior_population, random_walk
from epf_jax.samplers.random_walk import accepted, steps_like
from epf_jax.statistics.base import Statistic, check_model_learns, from_log_target
from epf_jax.terms import (
    gaussian_term,
    is_silent,
    noise_is_of_theta_alone,
    path_terms,
    require_inspectable,
    require_noise,
    whiten,
)
from epf_jax.triangular import Factor, add_rows, dense, diagonal, empty, last_column, list_of_rows, solve, times
from epf_jax.weights import Population

_MOST_COLUMNS = 24  # of a factor, into which rows are rotated one number after the other
_NUM_STEPS = 4  # Metropolis-Hastings steps an observation; half as many where there is nothing to walk
_PROBES = 3


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
    """One term's share of the statistic; v are theta's numbers less those at the prior's centre.

    Attributes:
        columns: which numbers the term's mean depends on: R has these columns, and a last one.
        noise: which numbers its noise depends on.
        zero: the sums of nothing.
        add: `add(S, x_prev, x, y, u)`.
        log_likelihood: `log_likelihood(S, v)`.
        rows: `rows(S, v)`, R's rows divided by the noise at v: those of a regression with unit noise, as lists of
            numbers.
    """

    columns: Int[np.ndarray, " k"]
    noise: Int[np.ndarray, " n"]
    zero: Sums
    add: Callable[..., Sums]
    log_likelihood: Callable[[Sums, Array], Float[Array, ""]]
    rows: Callable[[Sums, Array], list[list[Any]]]


class _Numbers(NamedTuple):
    """Theta's numbers in a row.

    Attributes:
        c: those at the prior's centre.
        leaves: which of them each leaf of theta has.
        unravel: theta's leaves, from its numbers.
    """

    c: Float[Array, " V"]
    leaves: list[Int[np.ndarray, " n"]]
    unravel: Callable[[Float[Array, " V"]], list[Array]]


def linear_means(model: StateSpaceModel) -> Statistic:
    """The exact statistic of a model whose Gaussian means are linear in theta, under any prior.

    theta may enter the transition, the observation (of which missing components are skipped) or the initial state, and
    their noise, too, but not together with x, y or u; these may enter in any way otherwise. With a Gaussian prior and
    known noise `conjugate` is the same with exact draws, and so is `conjugate_blocks` with conjugate priors of
    variances. The draws here are four Metropolis-Hastings steps, of which each moves the noise's parameters by a random
    walk and proposes the coefficients anew, given the noise.
    """
    problem = why_not_linear_means(model)
    if problem:
        raise ValueError(f"linear_means: {problem} Use epf.chebyshev(model) or epf.assumed_density(model).")
    require_noise(model, "linear_means")
    coordinates, numbers, terms = model.parameters, _numbers(model), path_terms(model, natural=True)
    initial, steps = ([_piece(t, numbers, terms.example) for t in group] for group in (terms.initial, terms.steps))
    pieces = (*initial, *steps)

    def init(x_0=None):
        started = [p.zero if x_0 is None else p.add(p.zero, x_0, x_0, None, None) for p in initial]
        return (*started, *(p.zero for p in steps))

    def update(key, S, theta, x_prev, x, y, u):
        started, sums = S[: len(initial)], S[len(initial) :]
        return (*started, *(p.add(s, x_prev, x, y, u) for p, s in zip(steps, sums, strict=True)))

    def place(z):
        return ravel_pytree(coordinates.to_theta(z))[0] - numbers.c

    def log_likelihood(S, v):
        return sum((p.log_likelihood(s, v) for p, s in zip(pieces, S, strict=True)), jnp.zeros(()))

    def log_target(S):
        return lambda z: coordinates.log_prior(z) + log_likelihood(S, place(z))

    walk = random_walk(num_steps=1 if coordinates.dim == 1 else _NUM_STEPS)
    statistic = from_log_target(model, init, update, log_target, walk, "linear_means")
    coefficients, own = _coefficients(coordinates, pieces, place)
    if len(coefficients) == 0:
        return statistic
    prior = _prior_factor(coordinates, place, coefficients)

    def given_the_rest(S, v):
        """The factor of the coefficients' regression given all else, the prior's own rows first."""
        R = prior
        for p, s in zip(pieces, S, strict=True):
            R = add_rows(R, [_of_coefficients(row, p.columns, coefficients, v) for row in p.rows(s, v)])
        return R

    def log_weight(S, z, v, R):
        """Log-density of theta, over that of the coefficients' Gaussian in their own units."""
        lengths = jax.jvp(place, (z,), (jnp.asarray(np.isin(np.arange(len(z)), own), z.dtype),))[1]  # of units of z
        log_p = (
            coordinates.log_prior(z) + log_likelihood(S, v) - sum(jnp.log(jnp.abs(lengths[i])) for i in coefficients)
        )
        log_q = sum(jnp.log(number) for number in diagonal(R))
        return log_p - log_q + 0.5 * sum(number**2 for number in times(R, [*(-v[i] for i in coefficients), 1.0]))

    return _with_gaussian_proposals(statistic, model, numbers, place, coefficients, own, given_the_rest, log_weight)


def _with_gaussian_proposals(
    statistic: Statistic,
    model: StateSpaceModel,
    numbers: _Numbers,
    place: Callable,
    coefficients: Int[np.ndarray, " A"],
    own: Int[np.ndarray, " A"],
    given_the_rest: Callable,
    log_weight: Callable,
) -> Statistic:
    """The statistic, its theta drawn in steps that walk the rest and propose the coefficients anew given that.

    `own` are the coefficients' coordinates in z.
    """
    coordinates = model.parameters
    walked = np.setdiff1d(np.arange(coordinates.dim), own)
    structure: Any = jax.tree.structure(model.shapes.theta)

    def to_theta(v):
        return structure.unflatten(numbers.unravel(v + numbers.c))

    def draw(key, shape, dtype):
        key_move, key_accept = jax.random.split(key)
        shape = (*shape, _NUM_STEPS if len(walked) else _NUM_STEPS // 2)
        return normal(key_move, (*shape, coordinates.dim), dtype), jax.random.uniform(key_accept, shape, dtype)

    def propose(S, z, noise, scale_tril):
        z = _put(z, walked, list(z[walked] + scale_tril @ noise[walked]))
        v = place(z)
        R = given_the_rest(S, v)
        v = _put(v, coefficients, solve(R, [a + noise[i] for a, i in zip(last_column(R), own, strict=True)]))
        return _put(z, own, list(coordinates.to_vector(to_theta(v))[own])), v, R

    def move(randoms, S, theta, scale_tril):
        def metropolis(current, random):
            noise, uniform = random
            z, v, R = propose(S, current[0], noise, scale_tril)
            possible = jnp.all(jnp.isfinite(z))  # not beyond a bound of theta's
            z, v = (jnp.where(possible, new, old) for new, old in zip((z, v), current[:2], strict=True))
            log_w = jnp.where(possible, log_weight(S, z, v, R), -jnp.inf)
            accept, bad = accepted(uniform, current[2], log_w)
            return jax.tree.map(partial(jnp.where, accept), (z, v, log_w), current), (accept, bad)

        z, v = coordinates.to_vector(theta), ravel_pytree(theta)[0] - numbers.c
        start = (z, v, log_weight(S, z, v, given_the_rest(S, v)))
        (_, v, _), (accepts, bad) = jax.lax.scan(metropolis, start, randoms)
        return to_theta(v), SampleInfo(jnp.mean(accepts, dtype=z.dtype), jnp.sum(bad))

    def walking(population):
        """The scale of a random walk shaped like the population along what is walked."""
        if len(walked) == 0:
            return jnp.zeros((0, 0))
        rows = population.scale_tril[walked]
        return steps_like(Population(population.mean[walked], cholesky(rows @ rows.T)))

    def sample(key, S, theta, population=None):
        population = prior_population(coordinates) if population is None else population
        return move(draw(key, (), numbers.c.dtype), S, theta, walking(population))

    def sample_all(key, S, theta, population):
        scale_tril, randoms = walking(population), draw(key, jax.tree.leaves(theta)[0].shape[:1], numbers.c.dtype)
        return jax.vmap(lambda randoms, S, theta: move(randoms, S, theta, scale_tril))(randoms, S, theta)

    return statistic._replace(sample=sample, sample_all=sample_all, drawn_by="Gaussian proposals")


def _put(vector: Float[Array, " n"], places: Int[np.ndarray, " k"], numbers: Sequence[Any]) -> Float[Array, " n"]:
    """The vector with other numbers in these places; written out, where XLA's scatters would be slow."""
    found = list(vector)
    for i, number in zip(places, numbers, strict=True):
        found[i] = number
    return jnp.stack(found)


def _of_coefficients(
    row: Sequence[Any], columns: Int[np.ndarray, " k"], coefficients: Int[np.ndarray, " A"], v: Float[Array, " V"]
) -> list[Any]:
    """A regression's row with columns for the coefficients alone, all others taken to the other side at v."""
    *slopes, last = row
    wide: list[Any] = [np.zeros(())] * len(coefficients)
    for i, slope in zip(columns, slopes, strict=True):
        if i in coefficients:
            wide[np.searchsorted(coefficients, i)] = slope
        else:
            last = last - slope * v[i]
    return [*wide, last]


@lru_cache(maxsize=256)
def why_not_linear_means(model: StateSpaceModel) -> str:
    """What keeps a model from this statistic, in a sentence; empty when nothing does."""
    check_model_learns(model, "linear_means")
    require_inspectable(model, "linear_means")
    terms, numbers = path_terms(model, natural=True), _numbers(model)
    x_prev, x, _, u = terms.example
    for term in (*terms.initial, *terms.steps):
        leaves = numbers.unravel(numbers.c)
        gaussian = gaussian_term(term, leaves, terms.example)
        if gaussian is None:
            return f"theta enters the {term.name}, which is not Gaussian."
        if not (gaussian.known_noise or noise_is_of_theta_alone(gaussian, leaves, terms.example)):
            return f"the noise of the {term.name} depends on theta together with the state or the inputs."
        if not is_affine(lambda v, *given, g=gaussian: g.mean(numbers.unravel(v), *given), numbers.c, x_prev, x, u):
            return f"the mean of the {term.name} is not linear in theta."
        num_columns = len(_entering(gaussian.mean, numbers, terms.example)) + 1
        num_columns *= 1 if gaussian.known_noise or gaussian.diagonal else gaussian.dim
        if num_columns > _MOST_COLUMNS:
            return f"the {term.name} asks for a factor of {num_columns} columns, and {_MOST_COLUMNS} are the most."
    return ""


def _numbers(model: StateSpaceModel) -> _Numbers:
    centre = model.parameters.to_theta(model.parameters.centre)
    c, unravel = ravel_pytree(centre)
    sizes = np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(centre))])
    leaves = [np.arange(start, end) for start, end in pairwise(sizes)]
    return _Numbers(c, leaves, lambda v: jax.tree.leaves(unravel(v)))


def _entering(function: Callable, numbers: _Numbers, example: tuple) -> Int[np.ndarray, " k"]:
    """The numbers of those leaves of theta that a function of the leaves depends on."""
    (x_prev, x, _, u), leaves = example, numbers.unravel(numbers.c)

    def with_leaf(leaf, i):
        return function([*leaves[:i], leaf, *leaves[i + 1 :]], x_prev, x, u)

    found = [i for i, leaf in enumerate(leaves) if depends_on(partial(with_leaf, i=i), leaf)]
    return np.concatenate([np.zeros(0, int), *(numbers.leaves[i] for i in found)])


def _piece(term, numbers: _Numbers, example: tuple) -> _Piece:
    (x_example, _, _, u_example), leaves = example, numbers.unravel(numbers.c)
    gaussian = gaussian_term(term, leaves, example)
    assert gaussian is not None
    columns = _entering(gaussian.mean, numbers, example)
    d, m = gaussian.dim, len(columns) + 1
    joint = not (gaussian.known_noise or gaussian.diagonal)

    def block(x_prev, x, y, u):
        """The regression's rows at one step, one for each component, those that say nothing zero; and their noise."""

        def mean(v):
            return gaussian.mean(numbers.unravel(_put(numbers.c, columns, numbers.c[columns] + v)), x_prev, x, u)

        scale = gaussian.scale_tril(leaves, x_prev, x, u)
        offset, slopes = mean(jnp.zeros(m - 1)), jax.jacfwd(mean)(jnp.zeros(m - 1))
        value, offset, slopes, scale = whiten(gaussian, term.value(x, y), scale, offset, slopes)
        return jnp.concatenate([slopes, (value - offset)[:, None]], axis=1), scale

    def add_known(S, x_prev, x, y, u):
        rows, scale = block(x_prev, x, y, u)
        return Sums((add_rows(S.R[0], list(map(list, solve_lower(scale, rows)))),), S.counts)

    def add(S, x_prev, x, y, u):
        rows, _ = block(x_prev, x, y, u)
        scale = gaussian.scale_tril(leaves, x_prev, x, u)
        seen = ~is_silent(gaussian, jnp.ravel(term.value(x, y)), scale)
        each = rows.reshape(len(S.R), -1)
        return Sums(tuple(add_rows(R, [list(row)]) for R, row in zip(S.R, each, strict=True)), S.counts + seen)

    def noise(v):
        scale = gaussian.scale_tril(numbers.unravel(numbers.c + v), x_example, x_example, u_example)
        return noisy_part(scale, gaussian.diagonal)  # the rest has counts and rows of zero

    def white(S, v):
        """The rows of each factor, divided by the noise at v."""
        if gaussian.known_noise:
            return [list_of_rows(R) for R in S.R]
        scale = noise(v)
        if gaussian.diagonal:
            return [[[a / scale[i, i] for a in row] for row in list_of_rows(R)] for i, R in enumerate(S.R)]
        return [list(map(list, solve_lower(scale, row.reshape(d, m)))) for row in dense(S.R[0])]

    def rows(S, v):
        # The last row of a factor is what no coefficient explains.
        return [row for factor in white(S, v) for row in (factor if joint else factor[:-1])]

    def log_likelihood(S, v):
        by = [*(-v[i] for i in columns), 1.0]
        if gaussian.known_noise:
            return -0.5 * sum((number**2 for number in times(S.R[0], by)[:-1]), jnp.zeros(()))
        logs = jnp.sum(S.counts * jnp.log(jnp.diag(noise(v))))
        if joint:
            residuals = dense(S.R[0]).reshape(-1, d, m) @ jnp.stack([jnp.asarray(b, v.dtype) for b in by])
            return -0.5 * jnp.sum(jax.vmap(partial(solve_lower, noise(v)))(residuals) ** 2) - logs
        squares = jnp.stack([sum(number**2 for number in times(R, by)) for R in S.R])
        return -0.5 * jnp.sum(squares / jnp.diag(noise(v)) ** 2) - logs

    size = d * m if joint else m
    num_factors = 1 if gaussian.known_noise or joint else d
    zero = Sums(tuple(empty(size, size) for _ in range(num_factors)), jnp.zeros(d))
    of_noise = _entering(gaussian.scale_tril, numbers, example)
    return _Piece(columns, of_noise, zero, add_known if gaussian.known_noise else add, log_likelihood, rows)


def _coefficients(
    coordinates: Parameters, pieces: tuple[_Piece, ...], place: Callable
) -> tuple[Int[np.ndarray, " A"], Int[np.ndarray, " A"]]:
    """Which numbers are coefficients of means and of nothing else, each with a coordinate of its own; and which."""
    if coordinates.is_real:
        moves: Any = np.eye(coordinates.dim, dtype=bool)
    else:
        away = np.random.default_rng(1).normal(size=(_PROBES, coordinates.dim)).astype(coordinates.scale.dtype)
        slopes = evaluated(jax.vmap(jax.jacfwd(place)), coordinates.centre + coordinates.scale * away)
        if isinstance(slopes, jax.core.Tracer):  # of a prior that is being differentiated
            return np.zeros(0, int), np.zeros(0, int)
        moves = np.any(slopes != 0, axis=0)
    linear, noisy = (
        np.unique(np.concatenate(part)) for part in zip(*((p.columns, p.noise) for p in pieces), strict=True)
    )
    own = [i for i in np.setdiff1d(linear, noisy) if moves[i].sum() == 1 and moves[:, np.argmax(moves[i])].sum() == 1]
    return np.array(own, int), np.array([np.argmax(moves[i]) for i in own], int)


def _prior_factor(coordinates: Parameters, place: Callable, coefficients: Int[np.ndarray, " A"]) -> Factor:
    """The prior's factor in the coefficients' regression: that of a Gaussian as wide as it is about its centre."""

    def moments():
        low, high = (place(coordinates.centre + side * coordinates.scale)[coefficients] for side in (-1.0, 1.0))
        return 0.5 * (low + high), 0.5 * jnp.abs(high - low)

    middle, sd = evaluated(moments)
    rows = np.eye(len(coefficients))
    return add_rows(
        empty(len(coefficients), len(coefficients) + 1),
        [[*(number / sd[j] for number in rows[j]), middle[j] / sd[j]] for j in range(len(coefficients))],
    )
