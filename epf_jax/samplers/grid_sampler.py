"""Exact draws in one dimension: the inverse distribution function of the density on a grid.

The density is evaluated at equally spaced points around the particle population, and is linear in between. The draw
inverts that piecewise-quadratic distribution function exactly, and does not depend on the previous theta.
"""

import jax
import jax.numpy as jnp

from epf_jax.core.checks import check_positive, check_whole_number
from epf_jax.core.choice import where
from epf_jax.samplers.sampler import SampleInfo, Sampler, unit_population


def grid_sampler(num_points: int = 129, *, half_width: float = 8.0) -> Sampler:
    """An inverse-CDF sampler for one parameter.

    Args:
        num_points: grid points. The density is resolved to a step of 2 half_width / (num_points - 1) population
            standard deviations: an eighth of one by default.
        half_width: the grid reaches this many population standard deviations to either side of its mean.
    """
    check_whole_number("num_points", num_points, least=3)
    check_positive("half_width", half_width, "a positive number of population standard deviations")

    def step(key, theta, log_density, population=None):
        population = unit_population(theta) if population is None else population
        offsets = jnp.linspace(-half_width, half_width, num_points, dtype=theta.dtype)
        points = population.mean[0] + population.scale_tril[0, 0] * offsets
        log_p = jax.vmap(lambda v: log_density(v[None]))(points)
        num_bad = jnp.sum(jnp.isnan(log_p))
        log_p = where(jnp.isnan(log_p), -jnp.inf, log_p)
        highest = jnp.max(log_p)
        p = jnp.exp(log_p - where(highest > -jnp.inf, highest, 0.0))
        mass = 0.5 * (p[1:] + p[:-1])
        cumulative = jnp.cumsum(mass)
        key_cell, key_place = jax.random.split(key)
        level = (1.0 - jax.random.uniform(key_cell, dtype=theta.dtype)) * cumulative[-1]
        cell = jnp.minimum(jnp.sum(cumulative < level), num_points - 2)
        drawn = points[cell] + (points[1] - points[0]) * _inverse_linear(key_place, p[cell], p[cell + 1])
        # In a cell that the support's edge cuts, a draw may fall outside: its better end stands in.
        better_end = points[cell + (p[cell + 1] > p[cell])]
        drawn = where(log_density(drawn[None]) > -jnp.inf, drawn, better_end)
        possible = highest > -jnp.inf
        return where(possible, drawn, theta[0])[None], SampleInfo(possible.astype(theta.dtype), num_bad)

    return Sampler(step, "grid_sampler", max_dim=1)


def _inverse_linear(key, a, b):
    """A draw from the density proportional to a (1 - s) + b s on [0, 1]."""
    u = jax.random.uniform(key, dtype=a.dtype)
    total = where(a + b > 0, a + b, 1.0)
    a, b = a / total, b / total  # a + b = 1: solve a s + (b - a) s^2 / 2 = u / 2 in its stable form
    root = jnp.sqrt(a * a + (b - a) * u)
    return jnp.clip(u / where(a + root > 0, a + root, 1.0), 0.0, 1.0)
