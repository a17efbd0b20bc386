"""Checks and converts the path or the series that an oracle is given."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.number_arrays import numeric_array
from epf_jax.models.observed import observed_series
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel, check_is_model, seen


def series_at(
    model: StateSpaceModel, theta: Theta, y: Any, inputs: Any
) -> tuple[StateSpaceModel, Float[Array, "T *y"], Any]:
    """The model that has seen the inputs, the observations and the rows of inputs; checks theta's structure."""
    check_is_model(model)
    model.parameters.to_vector(theta)  # checks the structure and the shapes
    values, rows = observed_series(model, y, inputs)[:2]
    return seen(model, rows), values, rows


def in_double(model: StateSpaceModel, y: Any, inputs: Any) -> tuple[StateSpaceModel, Any, Any]:
    """The same, observations and inputs in double precision, in which grids are computed."""
    check_is_model(model)
    model = model if not model.wants_inputs else seen(model, observed_series(model, y, inputs).inputs)
    _ = model.shapes  # now, in the precision in force: the model keeps them
    with jax.enable_x64(True):
        return model, *jax.tree.map(np.asarray, observed_series(model, y, inputs)[:2])


def as_path(model: StateSpaceModel, theta: Theta, x: Any) -> Array:
    """The path x as an array of T+1 >= 2 states; checks theta's structure first."""
    check_is_model(model)
    model.parameters.to_vector(theta)
    values = numeric_array("x", x, "Give an array whose first axis is time.")
    expected = model.shapes.x.shape
    if values.ndim == 0 or len(values) < 2 or values.shape[1:] != expected:
        shape = ", ".join(["T+1", *map(str, expected)])
        raise ValueError(
            f"x: expected shape ({shape}{',' * (',' not in shape)}), time first and then one value as the model "
            f"draws it, T >= 1, got shape {values.shape}."
        )
    return as_states("x", model, values)


def as_states(name: str, model: StateSpaceModel, states: Array) -> Array:
    """States in the number type that the model draws; floats become whole numbers if the model's states are whole."""
    if not jnp.issubdtype(model.shapes.x.dtype, jnp.integer) or jnp.issubdtype(states.dtype, jnp.integer):
        return states
    if not isinstance(states, jax.core.Tracer) and np.any(np.asarray(states) % 1 != 0):
        raise ValueError(f"{name}: the model's states are whole numbers, and some of these are not. Round them.")
    return states.astype(model.shapes.x.dtype)
