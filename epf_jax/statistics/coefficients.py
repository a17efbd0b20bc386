r"""Draws of theta if some of its numbers are coefficients of a regression with Gaussian noise.

The likelihood of the coefficients given the other numbers is Gaussian. A Metropolis-Hastings step walks the other
numbers, and proposes the coefficients from that Gaussian times one as wide as their prior. Strongly correlated
coefficients (an intercept and an autoregression far from zero) need this. Coefficients that are multiplied with each
other (a mean and the speed of return to it) are proposed in blocks, one step for each given the others. If the prior is
not like a Gaussian, far in its tails or at a bound, such proposals may be rejected; so a turn ends with a random walk
of all of theta.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.choice import where
from epf_jax.core.gaussian import cholesky
from epf_jax.core.random import normal, side_by_side
from epf_jax.core.triangular import Factor, add_rows, diagonal, empty, last_column, solve, times
from epf_jax.models.flat_theta import Numbers, numbers_in_a_row
from epf_jax.models.parameters import Parameters, evaluated, theta_inside
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.weights import Population
from epf_jax.samplers import SampleInfo, prior_population
from epf_jax.samplers.random_walk import accepted, steps_like
from epf_jax.statistics.statistic import Statistic

_LEAST_TURNS = 2  # proposals of all coefficients and a walk, at an observation, where anything else is walked


class Regression(NamedTuple):
    """Numbers of theta that are coefficients given all others.

    Attributes:
        coefficients: their places in theta's flat vector; each has its own coordinate.
        rows: `rows(S, t)`, the rows of their regression with unit noise given all other numbers t of theta, for the
            coefficients less their values at the prior's centre.
    """

    coefficients: Int[np.ndarray, " A"]
    rows: Callable[[Any, Array], list[list[Any]]]


def with_gaussian_proposals(statistic: Statistic, model: StateSpaceModel, blocks: Sequence[Regression]) -> Statistic:
    """The statistic, with theta drawn by proposals of the coefficients, block by block."""
    coordinates = model.parameters
    drawn = np.concatenate([block.coefficients for block in blocks])
    others = np.setdiff1d(np.arange(coordinates.dim), coordinates.own[drawn])
    proposing = [_proposing(coordinates, block, others if i == 0 else others[:0]) for i, block in enumerate(blocks)]

    def turn(S, steps, current, random):
        """A step for each block, that proposes its coefficients, and one that walks all of theta."""
        log_density, told = statistic.log_target(S), []
        for step, noise, uniform in zip([*proposing, _walk], *map(list, random), strict=True):
            current, accept, bad = step(log_density, S, steps, current, noise, uniform)
            told.append((accept, bad))
        return current, jax.tree.map(lambda *each: jnp.stack(each), *told)

    def draw(key, shape, dtype):
        key_move, key_accept = jax.random.split(key)
        num_turns = max(_LEAST_TURNS, (len(others) + 1) // 2) if len(others) else 1
        each = (num_turns, len(blocks) + 1)
        noises = side_by_side(normal, key_move, shape, (*each, coordinates.dim), dtype)
        return noises, side_by_side(jax.random.uniform, key_accept, shape, each, dtype)

    def move(randoms, S, theta, steps):
        z = coordinates.to_vector(theta)
        start = (z, statistic.log_target(S)(z))
        (z, _), (accepts, bad) = jax.lax.scan(partial(turn, S, steps), start, randoms)
        new = theta_inside(coordinates, z, theta)
        moved = jnp.any(accepts)  # theta that was not is not to be rounded, either
        theta = jax.tree.map(lambda new, old: where(moved, new, old), new, theta)
        return theta, SampleInfo(jnp.mean(accepts, dtype=z.dtype), jnp.sum(bad))

    def sample(key, S, theta, population=None):
        population = prior_population(coordinates) if population is None else population
        return move(draw(key, (), coordinates.centre.dtype), S, theta, _steps(population, others))

    def sample_all(key, S, theta, population):
        num = jax.tree.leaves(theta)[0].shape[:1]
        steps, randoms = _steps(population, others), draw(key, num, coordinates.centre.dtype)
        return jax.vmap(lambda randoms, S, theta: move(randoms, S, theta, steps))(randoms, S, theta)

    return statistic._replace(sample=sample, sample_all=sample_all, drawn_by="Gaussian proposals and random_walk")


def _walk(log_density, S, steps, current, noise, uniform):
    """A Metropolis step that walks all coordinates, of z and its log-density."""
    z, log_p = current
    z_new = z + steps[1] @ noise
    log_p_new = log_density(z_new)
    accept, bad = accepted(uniform, log_p, log_p_new)
    return jax.tree.map(partial(where, accept), (z_new, log_p_new), current), accept, bad


def _proposing(coordinates: Parameters, block: Regression, others: Int[np.ndarray, " B"]) -> Callable:
    """A Metropolis-Hastings step that walks some coordinates and draws a block's coefficients given the rest.

    Like `_walk`, it is `step(log_density, S, steps, current, noise, uniform)`.
    """
    coefficients, numbers = block.coefficients, numbers_in_a_row(coordinates)
    own = coordinates.own[coefficients]
    centre, place = numbers.c, numbers.at
    prior = _prior_factor(coordinates, coefficients, numbers)

    def given_the_rest(S, z):
        return add_rows(prior, block.rows(S, place(z)))

    def log_proposal(R, z, noise=None):
        """Log-density, per unit of z, of proposing the coefficients that are at z, by this noise if it is known."""
        units = jnp.asarray(np.isin(np.arange(coordinates.dim), own), z.dtype)
        t, lengths = jax.jvp(place, (z,), (units,))
        logs = sum(jnp.log(a * jnp.abs(lengths[i])) for a, i in zip(diagonal(R), coefficients, strict=True))
        # The noise itself: where R is huge, what rounding leaves of it would be taken for a density next to zero.
        noise = times(R, [*(centre[i] - t[i] for i in coefficients), jnp.ones(())]) if noise is None else noise[own]
        return logs - 0.5 * sum(a**2 for a in noise)

    def propose(S, z, noise, steps):
        """Another z, its others walked and its coefficients drawn given these, and the factor they are drawn by."""
        if len(others):
            z = put(z, others, list(z[others] + steps[0] @ noise[others]))
        R = given_the_rest(S, z)
        drawn = solve(R, [a + noise[i] for a, i in zip(last_column(R), own, strict=True)])
        t = put(place(z), coefficients, [centre[i] + a for i, a in zip(coefficients, drawn, strict=True)])
        return put(z, own, list(coordinates.to_vector(numbers.theta(t))[own])), R

    def step(log_density, S, steps, current, noise, uniform):
        z, log_p = current
        z_new, R = propose(S, z, noise, steps)
        inside = jnp.all(jnp.isfinite(z_new))  # not beyond a bound of theta's
        z_new = where(inside, z_new, z)
        by_old, by_new = log_proposal(given_the_rest(S, z), z), log_proposal(R, z_new, noise)
        possible = inside & jnp.isfinite(by_new)  # at a bound rounding leaves a proposal no density to divide by
        log_p_new = where(possible, log_density(z_new), -jnp.inf)
        accept, bad = accepted(uniform, log_p - by_old, log_p_new - where(possible, by_new, 0.0))
        return jax.tree.map(partial(where, accept), (z_new, log_p_new), current), accept, bad

    return step


def _steps(population: Population, others: Int[np.ndarray, " B"]) -> tuple[Array, Array]:
    """The scales of random walks shaped like the population: without the coefficients, and with them."""
    if len(others) == 0:
        return jnp.zeros((0, 0)), steps_like(population)
    rows = population.scale_tril[others]
    return steps_like(Population(population.mean[others], cholesky(rows @ rows.T))), steps_like(population)


def put(vector: Float[Array, " n"], places: Int[np.ndarray, " k"], numbers: Sequence[Any]) -> Float[Array, " n"]:
    """The vector with new numbers in these places, written out because XLA's scatters are slow."""
    found = list(vector)
    for i, number in zip(places, numbers, strict=True):
        found[i] = number
    return jnp.stack(found)


def _prior_factor(coordinates: Parameters, coefficients: Int[np.ndarray, " A"], numbers: Numbers) -> Factor:
    """The prior's factor in the coefficients' regression: that of a Gaussian with the prior's centre and width."""

    def moments():
        ends = (numbers.at(coordinates.centre + side * coordinates.scale) for side in (-1.0, 1.0))
        low, high = ((end - numbers.c)[coefficients] for end in ends)
        return 0.5 * (low + high), 0.5 * jnp.abs(high - low)

    middle, sd = evaluated(moments)
    unit, num = np.eye(len(coefficients)), len(coefficients)
    rows = [[*(number / sd[j] for number in unit[j]), middle[j] / sd[j]] for j in range(num)]
    return add_rows(empty(num, num + 1), rows)
