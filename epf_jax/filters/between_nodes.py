"""Interpolates a log-likelihood between the nodes of a grid by cubics, in coordinates s from -1 to 1 of a box."""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.adaptive_grid import TAMED
from epf_jax.core.interpolation import compress, expand, piecewise_cubic
from epf_jax.particles.quasi_random import lattice

_ABOVE = 0.25  # what is read may be above the nodes around by so much; a Gaussian is by 1/8 at one node a sd
_LEAST_REACH = 3.5  # posterior standard deviations from the mean to the box's edge, however few the nodes are
_SEEN = 1e-3  # of the posterior's mass in five nodes on end, by the least of them, below which nothing can be told
LOWEST = 1e6  # below the top: guesses of new nodes made from guesses of old ones would in time overflow


class Around(NamedTuple):
    """The nodes around G places, and their interpolation weights."""

    nodes: Int[Array | np.ndarray, "G 4^P"]
    shares: Float[Array | np.ndarray, "G 4^P"]

    def read(self, squeezed: Float[Array, " K"]) -> Float[Array, " G"]:
        """Interpolate by cubics, but never far above all nodes around, as a cubic would be beside a cliff."""
        values = squeezed.at[self.nodes].get(mode="clip", wrap_negative_indices=False)
        return jnp.minimum(jnp.sum(self.shares * values, axis=1), jnp.max(values, axis=1) + _ABOVE)


class Between(NamedTuple):
    """Interpolation between the nodes.

    Attributes:
        nodes: s at the K nodes.
        at: s at the G points, a lattice.
        around: the nodes with a weight at each point, and their weights.
        coarsely: the same from half as many nodes along every coordinate: these read from the nodes, and the points
            from them.
        nearest: the node nearest to every point.
        around_each: `around_each(s)`, the same as `around` at other places.
        corners: `corners(s)`, the 2^P corner nodes of the cell that holds each s, and their weights in linear
            interpolation.
        cell: the distance between nodes along every coordinate.
        reach: how many posterior standard deviations a new box extends along every coordinate.
        least: the cell, but no more than a box of that reach makes of a posterior standard deviation.
    """

    nodes: Float[np.ndarray, "K P"]
    at: Float[np.ndarray, "G P"]
    around: Around
    coarsely: tuple[Around, Around]
    nearest: Int[np.ndarray, " G"]
    around_each: Callable[[Any], Around]
    corners: Callable[[Any], Around]
    cell: Float[np.ndarray, " P"]
    reach: Float[np.ndarray, " P"]
    least: Float[np.ndarray, " P"]

    def read(self, log_likelihood: Float[Array, " K"]) -> Float[Array, " G"]:
        """Log L at the G points."""
        top = jnp.max(log_likelihood)
        return expand(self.around.read(_squeezed(log_likelihood, top)), top, TAMED)

    def read_coarsely(self, log_likelihood: Float[Array, " K"]) -> Float[Array, " G"]:
        """Log L at the G points, read from half as many nodes along every coordinate."""
        top, (fewer, around) = jnp.max(log_likelihood), self.coarsely
        return expand(around.read(fewer.read(_squeezed(log_likelihood, top))), top, TAMED)

    def read_at(self, log_likelihood: Float[Array, " K"], s: Float[Array, "M P"]) -> Float[Array, " M"]:
        """Log L at each s. Outside of the box it goes on linearly from the edge, but never upwards."""
        top = jnp.max(log_likelihood)
        squeezed = _squeezed(log_likelihood, top)
        inside, straight_on = (
            self.around_each(at).read(squeezed) for at in (jnp.minimum(jnp.maximum(s, -1.0), 1.0), s)
        )
        values = jnp.maximum(jnp.minimum(inside, straight_on), compress(top - LOWEST, top, TAMED))
        return expand(values, top, TAMED)


def between_nodes(counts: tuple[int, ...], num_points: int, reach: float) -> Between:
    """`Between` for given numbers of nodes and points, and the reach of boxes."""
    dim, dtype = len(counts), jax.dtypes.canonicalize_dtype(float)
    grid, nodes = _grid(counts, dtype)
    fewer = tuple(max(4, (n + 1) // 2) for n in counts)
    at = (2.0 * lattice(num_points, dim) - 1.0).astype(dtype)

    def product_of(parts, counts=counts):
        """Nodes and shares along the coordinates, each (first node, shares of it and the next ones), multiplied out."""
        found = Around(np.zeros((1, 1), np.int32), np.ones((1, 1), dtype))
        for n, (first, shares) in zip(counts, parts, strict=True):
            along = first[:, None] + np.arange(shares.shape[1], dtype=np.int32)
            nodes = found.nodes[..., None] * n + along[:, None]
            product = found.shares[..., None] * shares[:, None]
            found = Around(*(part.reshape(len(along), -1) for part in (nodes, product)))
        return found

    def around(s, counts=counts):
        return product_of([piecewise_cubic(s[:, i], n) for i, n in enumerate(counts)], counts)

    def corners(s):
        def along(s, n):
            place = jnp.minimum(jnp.maximum((s + 1.0) * ((n - 1) / 2), 0.0), n - 1.0)
            first = jnp.minimum(jnp.floor(place), n - 2)
            return first.astype(jnp.int32), jnp.stack([first + 1 - place, place - first], axis=1)

        return product_of([along(s[:, i], n) for i, n in enumerate(counts)])

    nearest = np.zeros(num_points, np.int32)
    for i, n in enumerate(counts):
        nearest = nearest * n + np.argmin(np.abs(at[:, i, None] - grid[i]), axis=1).astype(np.int32)
    cell = np.array([2.0 / (n - 1) for n in counts], dtype)
    # With few nodes a box is smaller, or they would be further than a standard deviation apart.
    reaches = np.array([min(reach, max((n - 1) / 2, _LEAST_REACH)) for n in counts], dtype)
    coarsely = around(_grid(fewer, dtype)[1]), around(at, fewer)
    if min(counts) < 7:  # half of them are too few: all of them, and straight lines between
        own = np.arange(len(nodes), dtype=np.int32)[:, None]
        coarsely = Around(own, np.ones(own.shape, dtype)), corners(at)
    least = np.minimum(cell, 1.0 / reaches)
    return Between(nodes, at, around(at), coarsely, nearest, around, corners, cell, reaches, least)


def _grid(counts: tuple[int, ...], dtype: Any) -> tuple[list[np.ndarray], Float[np.ndarray, "K P"]]:
    """The nodes along every coordinate, and all of them."""
    grid = [np.linspace(-1.0, 1.0, n, dtype=dtype) for n in counts]
    return grid, np.stack(np.meshgrid(*grid, indexing="ij"), axis=-1).reshape(-1, len(counts))


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
    return jax.lax.cond(flat, lambda: log_likelihood - top, lambda: compress(log_likelihood, top, TAMED))
