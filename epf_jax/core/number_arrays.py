"""Converts users' numbers to arrays of the precision in use, without overflow, and warns of lost digits."""

import decimal
import math
import numbers
import warnings
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.core.checks import brief, frames_to_user

_ROUNDING = 0.05  # of the mean step, that numbers may be rounded by on average without a word


def numeric_array(name: str, value: Any, hint: str, dtype: Any = None) -> jax.Array:
    """The value as an array of numbers: floats of the precision in use, whole numbers where it holds them.

    With the dtype `float` all numbers become floats.
    """
    if not holds_jax(value):
        return on_device(in_precision(given_numbers(name, value, hint), dtype))
    try:
        array = jnp.asarray(value, dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected numbers, got {brief(value)}. {hint}") from error
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}. {hint}")
    return array.astype(float) if jnp.issubdtype(array.dtype, jnp.floating) else array


def on_device(array: np.ndarray) -> jax.Array:
    """The array as JAX's own. `jax_debug_nans` does not mind NaN in it: these are missing values, and no accident."""
    with jax.debug_nans(False):
        return jnp.asarray(array)


def holds_jax(value: Any) -> bool:
    """Whether it consists of JAX arrays."""
    return any(isinstance(leaf, jax.Array) or hasattr(leaf, "__jax_array__") for leaf in jax.tree.leaves(value))


def given_numbers(name: str, value: Any, hint: str) -> np.ndarray:
    """The value as a NumPy array with all its digits, and NaN for None or masked values."""
    if isinstance(value, str):  # of which NumPy would make a number, if it can
        raise TypeError(f"{name}: expected numbers, got the text {brief(value)}. {hint}")
    if isinstance(value, np.ma.MaskedArray) and value.dtype.kind in "iuf":
        value = np.ma.filled(value.astype(float), np.nan)
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of unequal length
        raise TypeError(f"{name}: expected numbers, got {brief(value)}. {hint}") from error
    if array.dtype.kind == "c":
        raise TypeError(f"{name}: expected real numbers, got dtype {array.dtype}. {hint}")
    if array.dtype.kind == "O":
        array = np.vectorize(lambda number: math.nan if number is None else number, otypes=[object])(array)
        right = all(_is_number(number) for number in array.ravel())
    else:  # V: the floats that NumPy has no name for
        right = array.dtype.kind in "biuf" or (array.dtype.kind == "V" and jnp.issubdtype(array.dtype, jnp.number))
    if not right:
        raise TypeError(f"{name}: expected numbers, got {brief(value)}. {hint}")
    return array


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real | decimal.Decimal) and not isinstance(value, bool)


def in_precision(given: np.ndarray, dtype: Any = None) -> np.ndarray:
    """The numbers in the precision in use; whole numbers that are too large become floats, and floats inf."""
    kind = jax.dtypes.canonicalize_dtype(float)
    if dtype is None and given.dtype.kind in "biu":
        whole = jax.dtypes.canonicalize_dtype(given.dtype.newbyteorder("="))
        kind = whole if whole.kind == "b" or _is_within(given, np.iinfo(whole).min, np.iinfo(whole).max) else kind
    with np.errstate(over="ignore"):
        return (_floats(given) if kind.kind == "f" else given).astype(kind)


def _is_within(given: np.ndarray, least: int, most: int) -> bool:
    return not given.size or (least <= int(given.min()) and int(given.max()) <= most)


def _floats(given: np.ndarray) -> np.ndarray:
    """The numbers in float64."""
    return np.vectorize(_as_float, otypes=[float])(given) if given.dtype.kind == "O" else given.astype(float)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def warn_of_rounding(name: str, given: np.ndarray, axis: int, advice: str, precision: Any = None) -> None:
    """Warn of numbers whose steps along the axis of time are lost in the precision in use.

    Whole numbers are treated as floats, as a model's arithmetic does.
    """
    real = np.dtype(jax.dtypes.canonicalize_dtype(float) if precision is None else precision)
    if given.ndim <= axis or given.shape[axis] < 2 or _all_held(given, real):
        return
    with np.errstate(all="ignore"):
        kept = in_precision(given, float).astype(real)
        wide, rounded = _exactly(given), kept.astype(float)
        rounded = _exactly(rounded.astype(object)) if wide.dtype.kind == "O" else rounded
        parts = [np.abs(_floats(part)) for part in (wide - rounded, np.diff(wide, axis=axis))]
        # Means and not medians: an outlier is rounded by far more than others, and is as many times further from them.
        lost, step = (np.nansum(part, axis=axis) / np.sum(np.isfinite(part), axis=axis) for part in parts)
        ratio = np.where((step > 0) & np.isfinite(lost), lost / step, 0.0)  # what is infinite is refused later
    if not np.any(ratio > _ROUNDING):
        return
    worst, largest = np.nanargmax(ratio), float(np.nanmax(np.abs(kept)))
    in_use = "single" if real.itemsize == 4 else "double"
    more = '; or use jax.config.update("jax_enable_x64", True) at the start' if real.itemsize == 4 else ""
    warnings.warn(
        f"{name}: {in_use} precision rounds these numbers by {np.ravel(lost)[worst]:.2g} on average, and from one to "
        f"the next they change by {np.ravel(step)[worst]:.2g}: they are too far from zero ({largest:.8g}). "
        f"{advice}{more}.",
        RuntimeWarning,
        stacklevel=frames_to_user(),
    )


def _all_held(given: np.ndarray, real: np.dtype) -> bool:
    """Whether no number can lose anything, by its kind or because it is whole and small."""
    if given.dtype.kind not in "iu":
        return np.can_cast(given.dtype, real)
    largest = 2 ** (np.finfo(real).nmant + 1)
    return _is_within(given, -largest, largest)


def _exactly(given: np.ndarray) -> np.ndarray:
    """The numbers without rounding: float64 if it is exact, otherwise fractions."""
    if _all_held(given, np.dtype(np.float64)):
        return given.astype(float)
    return np.vectorize(_fraction, otypes=[object])(given.astype(object) if given.dtype.kind in "iu" else given)


def _fraction(value: Any) -> Any:
    try:
        float(value)
        return Fraction(value) if isinstance(value, numbers.Rational) else Fraction(*value.as_integer_ratio())
    except (OverflowError, ValueError):  # infinite, NaN, or refused later as too large
        return math.nan
