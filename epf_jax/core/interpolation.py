r"""Interpolation of log-densities: between Chebyshev points (Trefethen 2013, chapters 2-5), and by piecewise cubics."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.choice import where


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
    shares = jnp.asarray(barycentric_weights(n), s.dtype) / where(hit, 1.0, distance)
    shares = where(jnp.any(hit), hit.astype(shares.dtype), shares)
    return shares / jnp.sum(shares)


_MOST_WRITTEN_OUT = 32  # nodes


def between(values: Float[Array, "..."], s: Float[Array, " P"]) -> Float[Array, "..."]:
    """The value at s of the polynomial through the values at a grid of Chebyshev points, which the first P axes are."""
    if values.ndim == 1 and len(values) <= _MOST_WRITTEN_OUT:
        return _between(values, s[0])
    for s_i in s:
        values = jnp.tensordot(lagrange(s_i, values.shape[0]), values, axes=1)
    return values


@jax.jit
def _between(values: Float[Array, " n"], s: Float[Array, ""]) -> Float[Array, ""]:
    """The same in one dimension, node by node, and no rows in between: a loop that is unrolled."""
    n, zero = len(values), jnp.zeros((), s.dtype)

    def add(sums, node):
        total, weight, at_node, is_node = sums
        value, point, numerator = node
        hit = s == point
        share = numerator / where(hit, 1.0, s - point)
        return (total + share * value, weight + share, where(hit, value, at_node), is_node | hit), None

    nodes = values, points(n).astype(s.dtype), barycentric_weights(n).astype(s.dtype)
    (total, weight, at_node, is_node), _ = jax.lax.scan(add, (zero, zero, zero, jnp.array(False)), nodes, unroll=n)
    return where(is_node, at_node, total / weight)


def piecewise_cubic(s: Float[Array, " M"], n: int) -> tuple[Int[Array, " M"], Float[Array, "M 4"]]:
    """What is read at each s between n >= 4 evenly spaced nodes on [-1, 1]: cubics through four; straight on outside.

    Returns:
        The first of the four nodes, and the share of each; of NumPy where s is.
    """
    xp: Any = np if isinstance(s, np.ndarray) else jnp
    place = (s + 1.0) * ((n - 1) / 2)
    first = xp.minimum(xp.maximum(xp.floor(place) - 1, 0), n - 4)
    inside = xp.minimum(xp.maximum(place, 0.0), n - 1.0)
    apart = (inside - first)[:, None, None] - _OTHERS.astype(s.dtype)
    cubic = xp.prod(apart, axis=-1) * _OVER.astype(s.dtype)
    beyond = place - inside  # the last two nodes go on as they end: it is negative at the first end
    left, right = np.array([[-1, 1, 0, 0], [0, 0, -1, 1]], s.dtype)
    ends = xp.minimum(beyond, 0.0)[:, None] * left + xp.maximum(beyond, 0.0)[:, None] * right
    return first.astype(np.int32), cubic + ends


_OTHERS = np.array([[j for j in range(4) if j != k] for k in range(4)])
_OVER = np.array([-1 / 6, 1 / 2, -1 / 2, 1 / 6])  # the products of k - j over the others, inverted


def compress(values: Array, top: Array, scale: Any = 10.0) -> Array:
    r""":math:`-a \log(1 + (v_{max} - v)/a)`: the identity near the top, logarithmic far below it.

    Log-densities thousands below the top only say that theta is not there, but a polynomial through them has errors of
    their size everywhere. Compression avoids that; the values at the nodes stay exact. `scale` is a: below the top
    minus a, log-densities are distinguished less and less. A large a is better for a Gaussian density on a box of a few
    of its standard deviations, a small one on a box of many.

    It does not use log1p, and `expand` does not use expm1, because they are slower on a CPU, and the precision of small
    arguments does not matter here.
    """
    return -scale * jnp.log(1.0 + (top - values) / scale)


def expand(compressed: Array, top: Array, scale: Any = 10.0) -> Array:
    """The inverse of `compress`."""
    return top - scale * (jnp.exp(-compressed / scale) - 1.0)
