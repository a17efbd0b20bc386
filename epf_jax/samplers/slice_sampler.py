"""Slice sampling (Neal 2003), coordinate by coordinate, with stepping out and shrinkage in bounded loops.

For each coordinate: draw a level below the density at the current point; step an interval of width w out, at random
left and right, until both ends are below the level or after `max_steps_out` steps (Neal's figure 3); draw points from
the interval, shrinking it towards the current point, until one is above the level (figure 5). Both loops have fixed
bounds, so the kernel can be vmapped and differentiated. If no point is found the current one stays.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epf_jax.core.checks import check_positive, check_whole_number
from epf_jax.core.choice import where
from epf_jax.samplers.sampler import SampleInfo, Sampler, per_coordinate, unit_population


def slice_sampler(
    width: float | Float[Array, " P"] | None = None, *, max_steps_out: int = 4, max_shrinks: int = 16
) -> Sampler:
    """A coordinate-wise slice sampler.

    Args:
        width: the interval's initial width along every (or each) unconstrained coordinate; by default two standard
            deviations of the particle population.
        max_steps_out: the interval never grows beyond this many widths.
        max_shrinks: points tried per coordinate; each failure cuts the interval at that point.
    """
    for name, number in (("max_steps_out", max_steps_out), ("max_shrinks", max_shrinks)):
        check_whole_number(name, number)
    if width is not None:
        check_positive("width", width, "positive widths, or None to scale by the population")

    def step(key, theta, log_density, population=None):
        population = unit_population(theta) if population is None else population
        dim = theta.shape[0]
        widths = 2.0 * population.sd if width is None else per_coordinate("width", width, theta)
        moved, num_bad = [], jnp.zeros((), int)
        for i, key_i in enumerate(jax.random.split(key, dim)):

            def along(v, theta=theta, i=i):
                return log_density(theta.at[i].set(v))

            point, found, bad = _one_coordinate(key_i, theta[i], along, widths[i])
            theta = theta.at[i].set(point)
            moved.append(found)
            num_bad += bad
        return theta, SampleInfo(jnp.mean(jnp.stack(moved), dtype=theta.dtype), num_bad)

    def _one_coordinate(key, start, log_density, w):
        key_level, key_place, key_steps, key_shrink = jax.random.split(key, 4)
        level = log_density(start) - jax.random.exponential(key_level, dtype=start.dtype)

        def inside(v):
            return log_density(v) > level

        left = start - w * jax.random.uniform(key_place, dtype=start.dtype)
        steps_left = jnp.floor(max_steps_out * jax.random.uniform(key_steps))
        steps_right = max_steps_out - 1 - steps_left

        def step_out(i, ends):
            left, right = ends
            left = where((i < steps_left) & inside(left), left - w, left)
            right = where((i < steps_right) & inside(right), right + w, right)
            return left, right

        left, right = jax.lax.fori_loop(0, max_steps_out - 1, step_out, (left, left + w))

        def shrink(carry, uniform):
            left, right, point, found = carry
            candidate = left + uniform * (right - left)
            log_p = log_density(candidate)
            hit = ~found & (log_p > level)
            miss = ~found & ~hit
            left = where(miss & (candidate < start), candidate, left)
            right = where(miss & (candidate >= start), candidate, right)
            return (left, right, where(hit, candidate, point), found | hit), ~found & jnp.isnan(log_p)

        uniforms = jax.random.uniform(key_shrink, (max_shrinks,), start.dtype)
        (_, _, point, found), bad = jax.lax.scan(shrink, (left, right, start, jnp.array(False)), uniforms)
        return point, found, jnp.sum(bad)

    return Sampler(step, "slice_sampler")
