r"""Interpolation of log-densities: between Chebyshev points (Trefethen 2013, chapters 2-5), and by piecewise cubics."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.elementary import log


@cache
def points(n: int) -> np.ndarray:
    """Chebyshev points of the second kind on [-1, 1], ends included."""
    return np.cos(np.pi * np.arange(n) / (n - 1))


@cache
def barycentric_weights(n: int) -> np.ndarray:
    """Those of the barycentric formula for n Chebyshev points."""
    found = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    found[[0, -1]] *= 0.5
    return found


def lagrange(s: Float[Array, ""], n: int) -> Float[Array, " n"]:
    """Values at s of the n Lagrange polynomials of the Chebyshev points, by the barycentric formula."""
    distance = s - jnp.asarray(points(n), s.dtype)
    hit = distance == 0
    shares = jnp.asarray(barycentric_weights(n), s.dtype) / jnp.where(hit, 1.0, distance)
    shares = jnp.where(jnp.any(hit), hit.astype(shares.dtype), shares)
    return shares / jnp.sum(shares)


_MOST_WRITTEN_OUT = 32  # nodes


def between(values: Float[Array, "..."], s: Float[Array, " P"]) -> Float[Array, ""]:
    """The value at s of the polynomial through the values at a grid of Chebyshev points."""
    if values.ndim == 1 and len(values) <= _MOST_WRITTEN_OUT:
        return _between(values, s[0])
    for s_i in s:
        values = jnp.tensordot(lagrange(s_i, values.shape[0]), values, axes=1)
    return values


@jax.jit
def _between(values: Float[Array, " n"], s: Float[Array, ""]) -> Float[Array, ""]:
    """`between` in one dimension, written out node by node, which is one program for all particles."""
    n, select, one = len(values), jax.lax.select, jnp.ones((), s.dtype)
    total = weight = at_node = jnp.zeros((), s.dtype)
    is_node = jnp.zeros((), bool)
    for value, point, numerator in zip(
        values, points(n).astype(s.dtype), barycentric_weights(n).astype(s.dtype), strict=True
    ):
        hit = s == point
        share = numerator / select(hit, one, s - point)
        total, weight = total + share * value, weight + share
        at_node, is_node = select(hit, value, at_node), is_node | hit
    return select(is_node, at_node, total / weight)


def piecewise_cubic(s: Float[Array, ""], n: int) -> tuple[Int[Array, ""], Float[Array, " 4"]]:
    """Interpolation at s between n >= 4 evenly spaced nodes on [-1, 1]: the cubic through four; linear outside.

    Returns:
        The first of the four nodes, and the share of each.
    """
    place = (s + 1.0) * (n - 1) / 2
    first = jnp.clip(jnp.floor(place).astype(int) - 1, 0, n - 4)
    inside = jnp.clip(place, 0.0, n - 1.0)
    t = inside - first  # between 0 and 3
    cubic = jnp.stack(
        [
            -(t - 1) * (t - 2) * (t - 3) / 6,
            t * (t - 2) * (t - 3) / 2,
            -t * (t - 1) * (t - 3) / 2,
            t * (t - 1) * (t - 2) / 6,
        ]
    )
    beyond = place - inside  # the last two nodes go on as they end
    end = jnp.where(place < (n - 1) / 2, jnp.array([-1.0, 1.0, 0.0, 0.0]), jnp.array([0.0, 0.0, -1.0, 1.0]))
    return first, cubic + beyond * end


def compress(values: Array, top: Array, scale: Any = 10.0) -> Array:
    r""":math:`-a \log(1 + (v_{max} - v)/a)`: the identity near the top, logarithmic far below it.

    Log-densities thousands below the top only say that theta is not there, but a polynomial through them has errors of
    their size everywhere. Compression avoids that; the values at the nodes stay exact. `scale` is a: below the top
    minus a, log-densities are distinguished less and less. A large a is better for a Gaussian density on a box of a few
    of its standard deviations, a small one on a box of many.

    It does not use log1p, and `expand` does not use expm1, because they are slower on a CPU, and the precision of small
    arguments does not matter here.
    """
    return -scale * log(1.0 + (top - values) / scale)


def expand(compressed: Array, top: Array, scale: Any = 10.0) -> Array:
    """The inverse of `compress`."""
    return top - scale * (jnp.exp(-compressed / scale) - 1.0)
