"""Checks and converts the path or the series that an oracle is given."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epf_jax.core.checks import numeric_array
from epf_jax.data.series import table_array
from epf_jax.data.tables import is_table
from epf_jax.models.observed import check_values
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel, check_is_model, input_rows


def as_observations(model: StateSpaceModel, theta: Theta, y: Any) -> Array:
    """The series y as an array of T >= 1 observations; checks theta's structure first."""
    check_is_model(model)
    model.parameters.to_vector(theta)  # checks the structure and the shapes
    y = _rows("y", y, "T", 1, model.shapes.y)
    _check_observed(model, y)
    return y


def as_path(model: StateSpaceModel, theta: Theta, x: Any) -> Array:
    """The path x as an array of T+1 >= 2 states; checks theta's structure first."""
    check_is_model(model)
    model.parameters.to_vector(theta)
    return as_states("x", model, _rows("x", x, "T+1", 2, model.shapes.x))


def as_states(name: str, model: StateSpaceModel, states: Array) -> Array:
    """States in the number type that the model draws; floats become whole numbers if the model's states are whole."""
    if not jnp.issubdtype(model.shapes.x.dtype, jnp.integer) or jnp.issubdtype(states.dtype, jnp.integer):
        return states
    if not isinstance(states, jax.core.Tracer) and np.any(np.asarray(states) % 1 != 0):
        raise ValueError(f"{name}: the model's states are whole numbers, and some of these are not. Round them.")
    return states.astype(model.shapes.x.dtype)


def as_arrays(model: StateSpaceModel, y: Any, inputs: Any) -> tuple[Any, Any]:
    """Tables of pandas, polars or pyarrow as arrays, the rest unchanged; checks y."""
    shape = None if model.shapes.y is None else model.shapes.y.shape
    y = table_array("y", y, shape) if is_table(y) else y
    if y is not None:
        _check_observed(model, numeric_array("y", y, "Give an array whose first axis is time."))
    return y, input_rows(inputs, len(inputs)) if is_table(inputs) else inputs


def _check_observed(model: StateSpaceModel, y: Array) -> None:
    """Raise for values outside of the model's support, if the numbers are known."""
    if not isinstance(y, jax.core.Tracer):
        check_values(np.asarray(y), model)


def _rows(name: str, values: Any, lead: str, least: int, expected: Any) -> Array:
    values = numeric_array(name, values, "Give an array whose first axis is time.")
    if values.ndim == 0 or len(values) < least or (expected is not None and values.shape[1:] != expected.shape):
        shape = ", ".join([lead, *map(str, ("...",) if expected is None else expected.shape)])
        raise ValueError(
            f"{name}: expected shape ({shape}{',' * (',' not in shape)}), time first and then one value as the model "
            f"draws it, T >= 1, got shape {values.shape}."
        )
    return values
