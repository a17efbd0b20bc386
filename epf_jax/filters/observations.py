"""One observation, as `step` is given it: a number of the precision in use, of the model's shape, or told what came."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epf_jax.checks import numeric_array
from epf_jax.model import StateSpaceModel


def observed_number(y: Any, model: StateSpaceModel) -> Any:
    """`of_one_kind`, whole numbers made real where the model observes real ones."""
    if isinstance(y, str):
        raise TypeError(
            f"y: expected one observation as numbers, got the text {y!r}. Give a number, float('NaN') for one "
            "that is missing."
        )
    if isinstance(y, np.ma.MaskedArray):
        y = np.ma.filled(y.astype(float), np.nan)
    y, expected = of_one_kind(y), model.shapes.y
    whole = isinstance(y, np.ndarray) and y.dtype.kind in "biu"
    return y.astype(jnp.result_type(float)) if whole and expected is not None and expected.dtype.kind == "f" else y


def check_finite(y: Any) -> None:
    """Refuse an observation that no density allows, and that a state would not recover from; NaN is a missing one."""
    if (isinstance(y, np.ndarray) or _is_on_host(y)) and jnp.issubdtype(y.dtype, jnp.floating) and np.isinf(y).any():
        raise ValueError(f"y: expected finite numbers, got {np.asarray(y).tolist()}; write NaN for a missing value.")


def _is_on_host(y: Any) -> bool:
    """Whether it is an array that can be read without a transfer, for which an accelerator's queue would wait."""
    concrete = isinstance(y, jax.Array) and not isinstance(y, jax.core.Tracer) and y.is_fully_addressable
    return concrete and all(device.platform == "cpu" for device in y.devices())


def of_one_kind(number: Any) -> Any:
    """A number as an array of the precision in use: 20.0 and np.float64(20) would each compile a step of their own."""
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(number)):
        return number
    array = np.asarray(number)
    if array.dtype.kind not in "biuf":
        return number
    found = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    return found if array.dtype.kind == "f" or np.array_equal(found, array) else number  # too large a whole number


def as_observation(y: Any, expected: Any) -> Array:
    """One observation as an array of the model's shape, or an error that says what came."""
    y = numeric_array("y", y, "Give one observation as numbers, NaN where a value is missing.")
    if y.shape != expected.shape:
        raise ValueError(
            f"y: expected one observation of shape {expected.shape}, as the model's observation draws, got shape "
            f"{y.shape}. For a whole series use epf.run(key, filter, y)."
        )
    return y


def missing_where(condition: Any, y: Array) -> Array:
    """y, or NaN (missing) where the condition holds; integers have no NaN and stay."""
    return jnp.where(condition, jnp.nan, y) if jnp.issubdtype(y.dtype, jnp.floating) else y
