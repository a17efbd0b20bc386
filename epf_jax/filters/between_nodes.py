"""Interpolates a log-likelihood between the nodes of a grid by cubics, in coordinates s from -1 to 1 of a box."""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from epf_jax.core.interpolation import compress, expand, piecewise_cubic
from epf_jax.particles.quasi_random import lattice

_ABOVE = 0.25  # what is read may be above the nodes around by so much; a Gaussian is by 1/8 at one node a sd
_SCALE = 25.0  # how far below the top `interpolation.compress` sets in: cubics between cliffs would overshoot
_LEAST_REACH = 3.5  # posterior standard deviations from the mean to the box's edge, however few the nodes are
_SEEN = 1e-3  # of the posterior's mass in five nodes on end, by the least of them, below which nothing can be told
LOWEST = 1e6  # below the top: guesses of new nodes made from guesses of old ones would in time overflow


class Around(NamedTuple):
    """The nodes around G places, and their interpolation weights."""

    nodes: Int[Array, "G 4^P"]
    shares: Float[Array, "G 4^P"]

    def read(self, squeezed: Float[Array, " K"]) -> Float[Array, " G"]:
        """Interpolate by cubics, but never far above all nodes around, as a cubic would be beside a cliff."""
        values = squeezed[self.nodes]
        return jnp.minimum(jnp.sum(self.shares * values, axis=1), jnp.max(values, axis=1) + _ABOVE)


class Between(NamedTuple):
    """Interpolation between the nodes.

    Attributes:
        nodes: s at the K nodes.
        at: s at the G points, a lattice.
        around: the nodes with a weight at each point, and their weights.
        nearest: the node nearest to every point.
        around_each: `around_each(s)`, the same as `around` at other places.
        corners: `corners(s)`, the 2^P corner nodes of the cell that holds each s, and their weights in linear
            interpolation.
        cell: the distance between nodes along every coordinate.
        reach: how many posterior standard deviations a new box extends along every coordinate.
    """

    nodes: Float[Array, "K P"]
    at: Float[Array, "G P"]
    around: Around
    nearest: Int[Array, " G"]
    around_each: Callable[[Any], Around]
    corners: Callable[[Any], Around]
    cell: Float[Array, " P"]
    reach: Float[Array, " P"]

    def read(self, log_likelihood: Float[Array, " K"]) -> Float[Array, " G"]:
        """Log L at the G points."""
        top = jnp.max(log_likelihood)
        return expand(self.around.read(_squeezed(log_likelihood, top)), top, _SCALE)

    def read_at(self, log_likelihood: Float[Array, " K"], s: Float[Array, "M P"]) -> Float[Array, " M"]:
        """Log L at each s. Outside of the box it goes on linearly from the edge, but never upwards."""
        top = jnp.max(log_likelihood)
        squeezed = _squeezed(log_likelihood, top)
        inside, straight_on = (self.around_each(at).read(squeezed) for at in (jnp.clip(s, -1.0, 1.0), s))
        values = jnp.maximum(jnp.minimum(inside, straight_on), compress(top - LOWEST, top, _SCALE))
        return expand(values, top, _SCALE)


def between_nodes(counts: tuple[int, ...], num_points: int, reach: float) -> Between:
    """`Between` for given numbers of nodes and points, and the reach of boxes."""
    dim = len(counts)
    grid = [jnp.linspace(-1.0, 1.0, n) for n in counts]
    nodes = jnp.stack(jnp.meshgrid(*grid, indexing="ij"), axis=-1).reshape(-1, dim)
    at = jnp.asarray(2.0 * lattice(num_points, dim) - 1.0, float)

    def product_of(shares, where):
        where = jnp.meshgrid(*where, indexing="ij")
        product = reduce(lambda a, b: a[..., None] * b, shares)
        return Around(jnp.ravel_multi_index(where, counts, mode="clip").ravel(), product.ravel())

    def around(s):
        first, shares = zip(*(piecewise_cubic(s[i], n) for i, n in enumerate(counts)), strict=True)
        return product_of(shares, [f + jnp.arange(4) for f in first])

    def corners(s):
        places = [jnp.clip((s[i] + 1.0) / 2.0, 0.0, 1.0) * (n - 1) for i, n in enumerate(counts)]
        first = [jnp.clip(jnp.floor(p), 0, n - 2).astype(int) for p, n in zip(places, counts, strict=True)]
        shares = [jnp.stack([f + 1 - p, p - f]) for p, f in zip(places, first, strict=True)]
        return product_of(shares, [f + jnp.arange(2) for f in first])

    def nearest_to(s):
        where = [jnp.argmin(jnp.abs(s[i] - axis)) for i, axis in enumerate(grid)]
        return jnp.ravel_multi_index(where, counts, mode="clip")

    cell = jnp.asarray([2.0 / (n - 1) for n in counts], float)
    # With few nodes a box is smaller, or they would be further than a standard deviation apart.
    reaches = jnp.asarray([min(reach, max((n - 1) / 2, _LEAST_REACH)) for n in counts], float)
    around_each, nearest = jax.vmap(around), jax.vmap(nearest_to)(at)
    return Between(nodes, at, around_each(at), nearest, around_each, jax.vmap(corners), cell, reaches)


def roughness(
    counts: tuple[int, ...], log_likelihood: Float[Array, " K"], log_prior: Float[Array, " K"]
) -> Float[Array, ""]:
    r"""The noise in log L, from its fourth differences along the grid where the posterior is.

    They vanish for a cubic, and nearly so for a smooth likelihood on nodes less than a standard deviation apart. If
    every node has an independent error :math:`\sigma`, they have the standard deviation
    :math:`\sqrt{1 + 16 + 36 + 16 + 1}\,\sigma`. Zero if the posterior covers fewer than five nodes in a row.
    """
    values, weights = log_likelihood.reshape(counts), jax.nn.softmax(log_likelihood + log_prior).reshape(counts)
    found = jnp.zeros((), values.dtype)
    for axis, n in enumerate(counts):
        if n >= 5:
            on_end = [jax.lax.slice_in_dim(values, k, n - 4 + k, axis=axis) for k in range(5)]
            fourth = on_end[0] - 4 * on_end[1] + 6 * on_end[2] - 4 * on_end[3] + on_end[4]
            least = reduce(jnp.minimum, [jax.lax.slice_in_dim(weights, k, n - 4 + k, axis=axis) for k in range(5)])
            mass = jnp.sum(least)
            where_seen = jnp.where(least > 0, fourth, 0.0)  # a node that is impossible is infinitely rough
            noise = jnp.sqrt(jnp.sum(least * where_seen**2) / jnp.maximum(mass, _SEEN) / 70)
            found = jnp.maximum(found, jnp.where(mass > _SEEN, noise, 0.0))
    return found


def _squeezed(log_likelihood, top):
    """The values that cubics interpolate, in a branch, because XLA would fuse it into each of the 4^P reads a point."""
    flat = jnp.all(log_likelihood == top)
    return jax.lax.cond(flat, lambda: log_likelihood - top, lambda: compress(log_likelihood, top, _SCALE))
