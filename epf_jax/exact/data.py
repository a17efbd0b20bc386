"""The data of an oracle: a path or a series, checked against the model."""

from typing import Any

from jaxtyping import Array

from epf_jax.checks import numeric_array
from epf_jax.data import table_array
from epf_jax.model import StateSpaceModel, check_is_model, input_rows
from epf_jax.parameters import Theta
from epf_jax.tables import is_table


def as_observations(model: StateSpaceModel, theta: Theta, y: Any) -> Array:
    """The series y as an array of T >= 1 observations, after a look at theta's structure."""
    check_is_model(model)
    model.parameters.to_vector(theta)  # checks the structure and the shapes
    return _rows("y", y, "T", 1, model.shapes.y)


def as_path(model: StateSpaceModel, theta: Theta, x: Any) -> Array:
    """The path x as an array of T+1 >= 2 states, after a look at theta's structure."""
    check_is_model(model)
    model.parameters.to_vector(theta)
    return _rows("x", x, "T+1", 2, model.shapes.x)


def as_arrays(model: StateSpaceModel, y: Any, inputs: Any) -> tuple[Any, Any]:
    """Tables of pandas, polars or pyarrow as what a compiled program takes; anything else as it is."""
    shape = None if model.shapes.y is None else model.shapes.y.shape
    y = table_array("y", y, shape) if is_table(y) else y
    return y, input_rows(inputs, len(inputs)) if is_table(inputs) else inputs


def _rows(name: str, values: Any, lead: str, least: int, expected: Any) -> Array:
    values = numeric_array(name, values, "Give an array whose first axis is time.")
    if values.ndim == 0 or len(values) < least or (expected is not None and values.shape[1:] != expected.shape):
        shape = ", ".join([lead, *map(str, ("...",) if expected is None else expected.shape)])
        raise ValueError(
            f"{name}: expected shape ({shape}{',' * (',' not in shape)}), time first and then one value as the model "
            f"draws it, T >= 1, got shape {values.shape}."
        )
    return values
