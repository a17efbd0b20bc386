"""Weighted quantiles of the particles: the smallest value whose cumulative weight reaches a level.

XLA's sort is slow, and no sorting is needed: passes over the particles narrow the range in which the distribution
function crosses each level, down to 2^-24 of the particles' range. Either 24 passes halve the range, or three passes
count the weight in 256 parts of it.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from epf_jax.core.choice import where
from epf_jax.core.gaussian import root
from epf_jax.core.platforms import by_platform, full_precision
from epf_jax.particles.resampling import running_sum, whole_weights
from epf_jax.particles.weights import as_rows, counted, normalised

_FEW = 2000  # particles, for which halving is as fast on a CPU
_MANY = 300_000  # particles, which wait for one another on a GPU to be counted
_DIGITS, _BITS = 3, 8  # a place in the range is a whole number of three digits of eight bits
_BINS = 2**_BITS


def quantiles(
    values: Float[Array, "N *d"], log_weights: Float[Array, " N"], levels: Float[Array, " Q"]
) -> Float[Array, "*d Q"]:
    """Weighted quantiles over the particles."""
    return row_quantiles(as_rows(values), normalised(log_weights), levels).reshape(*values.shape[1:], len(levels))


def row_quantiles(
    rows: Float[Array, "K N"], w: Float[Array, " N"], levels: Float[Array | np.ndarray, " Q"]
) -> Float[Array, "K Q"]:
    """Weighted quantiles of each row."""
    if len(levels) == 0:
        return jnp.zeros((rows.shape[0], 0), w.dtype)
    levels = levels * (1 - 8 * jnp.finfo(levels.dtype).eps)  # a level that is met but for rounding is met
    return _quantiles(rows.astype(w.dtype), w, levels)


@jax.custom_jvp
def _quantiles(rows: Float[Array, "K N"], w: Float[Array, " N"], levels: Float[Array, " Q"]) -> Float[Array, "K Q"]:
    num = rows.shape[1]
    on_cpu = partial(by_halving, weight_of=_product) if num <= _FEW else by_counting
    on_gpu = by_counting if num <= _MANY else by_halving
    return by_platform(rows, w, levels, default=by_halving, cpu=on_cpu, gpu=on_gpu)


def _sum(chosen: Bool[Array, "K Q N"], w: Float[Array, " N"]) -> Float[Array, "K Q"]:
    """The weight of the chosen particles."""
    return jnp.sum(where(chosen, w, 0.0), axis=-1)


def _product(chosen: Bool[Array, "K Q N"], w: Float[Array, " N"]) -> Float[Array, "K Q"]:
    """The same, which is faster on a CPU, but loses digits where particles are many."""
    return chosen.astype(w.dtype) @ w


def by_halving(
    rows: Float[Array, "K N"], w: Float[Array, " N"], levels: Float[Array, " Q"], weight_of: Callable = _sum
) -> Float[Array, "K Q"]:
    """Quantiles by bisection of the distribution function, for each level separately."""

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        reached = weight_of(rows[:, None] <= middle[..., None], w) >= levels
        return where(reached, low, middle), where(reached, middle, high)

    ends = tuple(jnp.broadcast_to(end[:, None], (*end.shape, *levels.shape)) for end in _extremes(rows, w))
    _, high = jax.lax.fori_loop(0, _DIGITS * _BITS, halve, ends)
    return high


def by_counting(rows: Float[Array, "K N"], w: Float[Array, " N"], levels: Float[Array, " Q"]) -> Float[Array, "K Q"]:
    """Digit by digit, as a radix sort goes."""
    return jax.vmap(_by_counting, in_axes=(0, None, None))(rows, w, levels)


def _by_counting(v: Float[Array, " N"], w: Float[Array, " N"], levels: Float[Array, " Q"]) -> Float[Array, " Q"]:
    """Quantiles digit by digit for all levels at once, like a radix sort, but only near the levels.

    A pass counts the weight at each next digit among the particles that share a level's digits so far. The digit at
    which the level is reached is that level's next digit. Levels with the same digits share one count, their `group`;
    particles that share the digits of no level are in a group of their own. Weights are whole numbers, so that counts
    are exact.
    """
    num, whole = len(levels), whole_weights(w)
    low, high = _extremes(v, w)
    share = where(w > 0, (v - low) / where(high > low, high - low, 1.0), 0.0)
    place = jnp.clip(share * 2.0 ** (_DIGITS * _BITS), 0.0, 2.0 ** (_DIGITS * _BITS) - 1.0).astype(jnp.int32)
    total = jnp.sum(whole)

    def next_digit(k, found):
        group, group_of_level, left, places = found
        bins = group * _BINS + ((place >> (_BITS * (_DIGITS - 1 - k))) & (_BINS - 1))
        counts = jnp.zeros((num + 1) * _BINS, whole.dtype).at[bins].add(whole)
        upto, counts = running_sum(counts).reshape(-1, _BINS), counts.reshape(-1, _BINS)
        upto = (upto - upto[:, :1] + counts[:, :1])[group_of_level]
        digit = jnp.minimum(jnp.sum(where(upto < left[:, None], 1.0, 0.0), axis=1).astype(jnp.int32), _BINS - 1)
        before = jnp.take_along_axis(upto, jnp.maximum(digit - 1, 0)[:, None], axis=1)[:, 0]
        bins_of_levels = group_of_level * _BINS + digit
        groups = jnp.full((num + 1) * _BINS, num, jnp.int32).at[bins_of_levels].min(jnp.arange(num, dtype=jnp.int32))
        left = left - where(digit > 0, before, 0)
        return groups[bins], groups[bins_of_levels], left, places * _BINS + digit

    none = jnp.zeros(num, jnp.int32)
    left = jnp.clip(jnp.ceil(levels * total.astype(levels.dtype)).astype(whole.dtype), 1, total)
    *_, places = jax.lax.fori_loop(0, _DIGITS, next_digit, (jnp.zeros_like(place), none, left, none))
    return jnp.minimum(low + (places + 1).astype(v.dtype) * ((high - low) * 2.0 ** -(_DIGITS * _BITS)), high)


def _extremes(v: Float[Array, "*K N"], w: Float[Array, " N"]) -> tuple[Float[Array, "*K"], Float[Array, "*K"]]:
    """The range of the particles, without outer ones whose total weight is below rounding."""
    counts = w > jnp.finfo(w.dtype).eps / w.shape[0]
    return jnp.min(where(counts, v, jnp.inf), axis=-1), jnp.max(where(counts, v, -jnp.inf), axis=-1)


@_quantiles.defjvp
def _quantiles_jvp(primals, tangents):
    r"""The derivative of the q that solves F(q) = level: :math:`dq = -dF(q) / f(q)`.

    The density f, and the share of each particle's move in dF, are read through a Gaussian kernel (Silverman's width).
    """
    (rows, w, levels), (slopes, dw, _) = primals, tangents
    found = _quantiles(rows, w, levels)

    def slope(v, dv, q):
        v = counted(v, w)
        sd = root(w @ jnp.square(v - w @ v))
        width = where(sd > 0, 1.06 * sd * jnp.sum(w**2) ** 0.2, 1.0)
        kernel = w * jnp.exp(-0.5 * jnp.square((v - q[:, None]) / width)) / (width * math.sqrt(2 * math.pi))
        below = where(v <= q[:, None], 1.0, 0.0)
        density = jnp.sum(kernel, axis=1)
        return (kernel @ counted(dv, w) - below @ dw) / where(density > 0, density, 1.0)

    with full_precision():  # a rule is traced where it is asked for, not where the quantiles were
        return found, jax.vmap(slope)(rows, slopes, found)
