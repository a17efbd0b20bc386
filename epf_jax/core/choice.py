"""A choice between numbers, as equations of the program that it stands in."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def where(condition: Any, x: Any, y: Any) -> Array:
    """`jnp.where(condition, x, y)`, which is a program of its own, and called, written out: a half of the equations."""
    dtype = jnp.result_type(x, y)
    shape = jax.lax.broadcast_shapes(*map(jnp.shape, (condition, x, y)))
    if jnp.shape(condition) != ():  # a single flag chooses between arrays
        condition = jnp.broadcast_to(condition, shape)
    return jax.lax.select(jnp.asarray(condition, bool), *(_filled(value, shape, dtype) for value in (x, y)))


def _filled(value: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    return jnp.broadcast_to(jnp.asarray(value, dtype), shape)
