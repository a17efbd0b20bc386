"""Theta as one flat vector in the user's own units (the unconstrained vector z has other coordinates)."""

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
    """Theta's numbers as one flat vector.

    Attributes:
        c: the vector at the prior's centre, as a NumPy array if known.
        at: the vector at z.
        theta: theta from the vector.
        places: the places of each of theta's leaves in the vector.
    """

    c: Float[Array, " V"]
    at: Callable[[Float[Array, " P"]], Float[Array, " V"]]
    theta: Callable[[Float[Array, " V"]], Theta]
    places: list[Int[np.ndarray, " n"]]

    def leaves(self, v: Float[Array, " V"]) -> list[Array]:
        """Theta's leaves from the flat vector."""
        return jax.tree.leaves(self.theta(v))


def numbers_in_a_row(coordinates: Parameters) -> Numbers:
    """`Numbers` for the theta of a prior."""
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
