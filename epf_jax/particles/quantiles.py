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
    """Quantiles digit by digit for all levels at once, like a radix sort, but only near the levels.

    A pass counts the weight at each next digit among the particles that share a level's digits so far. The digit at
    which the level is reached is that level's next digit. Levels with the same digits share the count of the first of
    them; particles that share the digits of no level are not counted. Weights are whole numbers, so that counts are
    exact: sums over all rows may overflow, but differences within a row are right.
    """
    (num_rows, _), num, whole = rows.shape, len(levels), whole_weights(w)
    low, high = (end[:, None] for end in _extremes(rows, w))
    share = where(w > 0, (rows - low) / where(high > low, high - low, 1.0), 0.0)
    place = jnp.clip(share * 2.0 ** (_DIGITS * _BITS), 0.0, 2.0 ** (_DIGITS * _BITS) - 1.0).astype(jnp.int32)
    # One long row: XLA's scatter of many rows takes twice as long.
    weights, total = jnp.broadcast_to(whole, rows.shape).ravel(), jnp.sum(whole)
    start_of_row = num * jnp.arange(num_rows, dtype=jnp.int32)[:, None]

    def next_digit(k, found):
        left, places = found
        rest = _BITS * (_DIGITS - 1 - k)
        group = jnp.full_like(place, num_rows * num)
        for level in reversed(range(num)):
            group = where(place >> rest >> _BITS == places[:, level, None], level, group)
        bins = (start_of_row + group) * _BINS + (place >> rest & (_BINS - 1))
        counts = jnp.zeros(num_rows * num * _BINS, whole.dtype)
        counts = counts.at[bins.ravel()].add(weights, mode="drop", wrap_negative_indices=False)
        upto, counts = running_sum(counts).reshape(-1, _BINS), counts.reshape(-1, _BINS)
        first = jnp.argmax(places[:, :, None] == places[:, None], axis=-1).astype(jnp.int32)
        upto = (upto - upto[:, :1] + counts[:, :1])[start_of_row + first]
        digit = jnp.minimum(jnp.sum(where(upto < left[..., None], 1.0, 0.0), axis=-1).astype(jnp.int32), _BINS - 1)
        before = jnp.take_along_axis(upto, jnp.maximum(digit - 1, 0)[..., None], axis=-1)[..., 0]
        return left - where(digit > 0, before, 0), places * _BINS + digit

    left = jnp.clip(jnp.ceil(levels * total.astype(levels.dtype)).astype(whole.dtype), 1, total)
    left = jnp.broadcast_to(left, (num_rows, num))
    _, places = jax.lax.fori_loop(0, _DIGITS, next_digit, (left, jnp.zeros(left.shape, jnp.int32)))
    return jnp.minimum(low + (places + 1).astype(rows.dtype) * ((high - low) * 2.0 ** -(_DIGITS * _BITS)), high)


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
