"""The adaptive grid: nodes of theta over a box that follows the posterior, for statistics and for node filters.

Places in the box have coordinates s from -1 to 1. What is between the nodes is read by `interpolation`. A posterior
much narrower than the distance between two nodes cannot be read, nor can its mean. So it is flattened first: its fourth
root is twice as wide, the root of that twice again, until the nodes show it. The next box is placed by that, and is
made narrower as the density was flattened, up to some times.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.choice import where
from epf_jax.core.gaussian import cholesky, diagonal

_NARROW = 0.6  # standard deviations in cells, the distances between nodes, below which nodes do not show a density
TAMED = 25.0  # how far below the top `interpolation.compress` sets in, for densities that the nodes show
_IMPOSSIBLE = 1e4  # how far below all others a density of zero counts
_NO_NUMBER = 2.0**100  # no log-density is as large
_ROOTS = 4.0 ** np.arange(25, dtype=np.float32)  # the last flattens whatever a sum of log-densities holds


class Seen(NamedTuple):
    """What nodes show of a density.

    Attributes:
        flattening: f, where the density to the power 1/f is as wide as nodes can show; 1 if the density itself is.
        weights: of the flattened density at all points.
        mean, scale_tril: of the flattened density.
    """

    flattening: Float[Array, ""]
    weights: Float[Array, " K"]
    mean: Float[Array, " P"]
    scale_tril: Float[Array, "P P"]


def product(*along: np.ndarray) -> Float[np.ndarray, "*counts P"]:
    """All nodes of a grid, from those of each coordinate."""
    return np.stack(np.meshgrid(*along, indexing="ij"), axis=-1)


def seen(
    log_p: Float[Array, " K"], at: Float[np.ndarray, "K P"], cell: Float[np.ndarray, " P"], log_volume: Any
) -> Seen:
    """What points at these places show of a density, if nodes are a cell apart and each point stands for a volume."""
    weights = jax.nn.softmax(jax.lax.stop_gradient(log_p) / _ROOTS[:, None] + log_volume, axis=1)
    mean, scale_tril = jax.vmap(spread, in_axes=(0, None))(weights, at)
    shown = ~jax.vmap(is_narrow, in_axes=(0, None))(scale_tril, cell)
    first = jax.lax.argmax(shown, 0, jnp.uint32)  # of an unsigned place nobody asks whether it counts from the end
    found = Seen(jnp.asarray(_ROOTS, log_p.dtype), weights, mean, scale_tril)
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, first, keepdims=False), found)


def spread(weights: Float[Array, " K"], at: Float[np.ndarray, "K P"]) -> tuple[Array, Array]:
    """Mean and lower-triangular scale. Neither has a gradient, nor has the box that is placed by them.

    What is read between nodes depends on where these are by its error alone.
    """
    w = jax.lax.stop_gradient(weights)
    mean = w @ at
    return mean, cholesky((w[:, None] * (at - mean)).T @ (at - mean))


def possible(log_p: Float[Array, "*counts"]) -> Float[Array, "*counts"]:
    """Log-densities at nodes, finite where they were -inf or no number: infinities would spoil the other nodes."""
    is_number = jnp.isfinite(log_p)
    # All is read from a quotient, whether it is a number, too: XLA would recompute sines for every reader.
    quotient = where(is_number, log_p, 1.0) / where(is_number, 1.0, 1.0 / _NO_NUMBER)
    is_number = quotient < _NO_NUMBER
    known = where(is_number, quotient, 0.0)
    return where(is_number, known, jax.lax.stop_gradient(jnp.min(known)) - _IMPOSSIBLE)


def is_narrow(scale_tril: Float[Array, "P P"], cell: Float[np.ndarray, " P"]) -> Array:
    """Whether a density is too narrow for nodes a cell apart, in some direction."""
    return jnp.any(diagonal(scale_tril) < _NARROW * cell)
