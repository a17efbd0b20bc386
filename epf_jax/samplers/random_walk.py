r"""Random-walk Metropolis-Hastings.

Propose :math:`z' = z + h L \epsilon`, accept with probability :math:`\min(1, p(z')/p(z))`. Erol et al. (2013) take one
such step per observation, started from the particle's previous theta, with no burn-in. L is the Cholesky factor of the
particle population's own covariance (Chopin 2002), or the identity for a fixed step.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from epf_jax.core.checks import check_positive, check_whole_number
from epf_jax.core.choice import where
from epf_jax.core.gaussian import diagonal_matrix
from epf_jax.core.random import normal, side_by_side, uniform
from epf_jax.particles.weights import Population
from epf_jax.samplers.sampler import SampleInfo, Sampler, per_coordinate, unit_population


def random_walk(step_size: float | Float[Array, " P"] | None = None, *, num_steps: int = 1) -> Sampler:
    r"""A random-walk Metropolis-Hastings sampler.

    Args:
        step_size: a fixed standard deviation for every (or for each) unconstrained coordinate; by default steps are
            scaled by the particle population's covariance, with the factor :math:`2.38/\sqrt{P}` of Roberts,
            Gelman and Gilks (1997).
        num_steps: Metropolis-Hastings steps per observation; the paper takes one.
    """
    check_whole_number("num_steps", num_steps, hint="The paper takes one Metropolis-Hastings step.")
    if step_size is not None:
        check_positive("step_size", step_size, "positive standard deviations, or None to scale by the population")

    def draw(key, shape, dtype):
        key_move, key_accept = jax.random.split(key)
        *batch, dim = shape
        directions = side_by_side(normal, key_move, (*batch,), (num_steps, dim), dtype)
        return directions, side_by_side(uniform, key_accept, (*batch,), (num_steps,), dtype)

    def step(key, theta, log_density, population=None):
        population = unit_population(theta) if population is None else population
        return move(draw(key, theta.shape, theta.dtype), theta, log_density, population)

    def move(numbers, theta, log_density, population):
        if step_size is None:
            scale_tril = steps_like(population)
        else:
            scale_tril = diagonal_matrix(per_coordinate("step_size", step_size, theta))
        directions, uniforms = numbers
        moves = directions @ scale_tril.T

        def metropolis(carry, draws):
            z, log_p = carry
            by, uniform = draws
            z_new = z + by
            log_p_new = log_density(z_new)
            accept, bad = accepted(uniform, log_p, log_p_new)
            return (where(accept, z_new, z), where(accept, log_p_new, log_p)), (accept, bad)

        start = (theta, log_density(theta))
        (theta, _), (accepts, bad) = jax.lax.scan(metropolis, start, (moves, uniforms), unroll=min(num_steps, 4))
        return theta, SampleInfo(jnp.mean(accepts, dtype=theta.dtype), jnp.sum(bad))

    return Sampler(step, "random_walk", fits_any=step_size is None, draw=draw, move=move)


def default_walk(num_parameters: int) -> Sampler:
    """The default random walk of filters: several parameters get more steps, because chains mix more slowly."""
    return random_walk(num_steps=1 if num_parameters == 1 else 4)


def steps_like(population: Population) -> Float[Array, "P P"]:
    r"""The scale of a random walk for a target shaped like the population: :math:`2.38/\sqrt{P}` times its scale."""
    return population.scale_tril * (2.38 / math.sqrt(len(population.mean)))


def accepted(uniform: Array, log_p: Array, log_p_new: Array) -> tuple[Bool[Array, "..."], Bool[Array, "..."]]:
    """Whether Metropolis' rule moves from one log-density to another, and whether the new one is NaN.

    A particle with NaN or zero density moves to any place with positive density. A NaN compares as False, so no
    particle moves to a NaN density.

    The ratio of densities is divided by a uniform number on (0, 1] instead of compared with it: XLA computes a quotient
    once, but may repeat a comparison, with its random number, wherever the result is read.
    """
    lowest = jnp.finfo(log_p.dtype).min
    ratio = jnp.exp(log_p_new - jnp.maximum(where(jnp.isnan(log_p), lowest, log_p), lowest))
    odds = ratio / (1.0 - uniform)
    return odds >= 1.0, jnp.isnan(odds)
