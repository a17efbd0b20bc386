"""Theta's numbers in a row: in the user's own units, one after the other, where z has coordinates without bounds."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from epf_jax.models.parameters import Parameters, Theta, evaluated


class Numbers(NamedTuple):
    """Theta's numbers in a row.

    Attributes:
        c: those at the prior's centre, of NumPy where known.
        at: those at z.
        theta: theta from its numbers.
        places: which of the numbers each of theta's leaves has.
    """

    c: Float[Array, " V"]
    at: Callable[[Float[Array, " P"]], Float[Array, " V"]]
    theta: Callable[[Float[Array, " V"]], Theta]
    places: list[Int[np.ndarray, " n"]]

    def leaves(self, v: Float[Array, " V"]) -> list[Array]:
        """Theta's leaves, from its numbers."""
        return jax.tree.leaves(self.theta(v))


def numbers_in_a_row(coordinates: Parameters) -> Numbers:
    """Those of a prior's theta."""
    structure: Any
    kinds, structure = jax.tree.flatten(jax.eval_shape(coordinates.to_theta, coordinates.centre))
    shapes = [kind.shape for kind in kinds]
    ends = list(pairwise(np.cumsum([0, *map(math.prod, shapes)])))

    def at(z):
        return z if coordinates.is_real else ravel_pytree(coordinates.to_theta(z))[0]

    def theta(v):
        parts = [v[start:end].reshape(shape) for (start, end), shape in zip(ends, shapes, strict=True)]
        return structure.unflatten(map(jnp.asarray, parts))  # as of `to_theta`, not of NumPy

    c = coordinates.centre if coordinates.is_real else evaluated(at, coordinates.centre)
    return Numbers(c, at, theta, [np.arange(start, end) for start, end in ends])
