"""Evenly spaced nodes of a few parameters in a box that follows them, and reading between nodes by cubics."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.choice import where
from epf_jax.core.interpolation import piecewise_cubic
from epf_jax.statistics.nodal_box import box_inside, to_unit

_REACH = 6.0  # of a box, in posterior standard deviations to either side of the mean


class Grid(NamedTuple):
    """The nodal parameters of terms that share some.

    Attributes:
        own: their coordinates in z.
        counts: nodes along each.
        pieces: which terms are kept at its nodes.
    """

    own: Int[np.ndarray, " q"]
    counts: tuple[int, ...]
    pieces: tuple[int, ...]


def over(grid: Grid) -> Callable[[Callable], Callable]:
    """A function of one node as a function of all nodes of a grid."""

    def vmapped(function):
        for _ in grid.counts:
            function = jax.vmap(function)
        return function

    return vmapped


def nodes_of(box: Any, grid: Grid) -> Float[Array, "..."]:
    """All nodes of a box, evenly spaced, shape (n_1, .., n_q, q)."""
    low, high = box
    shares = np.stack(np.meshgrid(*(np.linspace(0, 1, n) for n in grid.counts), indexing="ij"), axis=-1)
    return low + (high - low) * shares.astype(low.dtype)


def shares(s: Float[Array, ""], n: int) -> Float[Array, " n"]:
    """The share of each of n nodes in what is read at s: a cubic through the four about it."""
    first, four = piecewise_cubic(jnp.clip(s, -1.0, 1.0)[None], n)
    return jnp.sum(where(np.arange(n)[:, None] == first[0] + np.arange(4), four[0], 0.0), axis=1)


def read_between(sums: Float[Array, "..."], s: Float[Array, " q"], counts: tuple[int, ...]) -> Float[Array, " size"]:
    """What is read at s, in the box's own coordinates, between the nodes along the first axes."""
    for i, n in enumerate(counts):
        sums = jnp.tensordot(shares(s[i], n), sums, axes=1)
    return sums


def moments_at(values: Float[Array, "N ..."], log_weights: Float[Array, " N"], z: Float[Array, "... q"]) -> tuple:
    """Mean and sd of a grid's parameters under the weighted mixture of the particles' densities at its nodes."""
    mixture = jnp.exp(log_weights) @ jax.nn.softmax(values.reshape(len(values), -1), axis=1)
    z = z.reshape(-1, z.shape[-1])
    mean = mixture @ z
    return mean, jnp.sqrt(mixture @ (z - mean) ** 2)


def cut(box: Any, mean: Array, sd: Array, counts: tuple[int, ...]) -> tuple[Any, list[Float[Array, "n n"]]]:
    """The part of a box about the mean, and for each axis the shares of the old nodes in what is read at the new."""
    low, high = box
    new = box_inside(box, mean, _REACH * sd, counts)
    ends = [[to_unit(end[i], low[i], high[i]) for end in new] for i in range(len(counts))]
    places = [jnp.linspace(first, last, n) for (first, last), n in zip(ends, counts, strict=True)]
    return new, [jax.vmap(partial(shares, n=n))(s) for s, n in zip(places, counts, strict=True)]


def reread(sums: Float[Array, "N ..."], rows: list[Float[Array, "n n"]]) -> Float[Array, "N ..."]:
    """All particles' sums at the nodes of a new box."""
    for i, row in enumerate(rows):
        sums = jnp.moveaxis(jnp.tensordot(row, sums, axes=(1, i + 1)), 0, i + 1)
    return sums
