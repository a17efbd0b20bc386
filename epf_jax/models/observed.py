"""Series of observations and rows of inputs as they come from users: made into arrays, or refused with a reason."""

import numbers
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epf_jax.core.checks import frames_to_user, numeric_array
from epf_jax.core.densities import can_be_partly_missing
from epf_jax.data.series import Panel, Series, table_array
from epf_jax.data.tables import is_table
from epf_jax.models.missing import check_support, of_observation
from epf_jax.models.state_space import StateSpaceModel, check_finite_inputs

_ROUNDING = 0.05  # of the mean step, that observations may be rounded by on average without a word


def check_series(y: Any, model: StateSpaceModel, ndim_batch: int) -> Array:
    """The series as an array of the model's shape and kind, or an error that says what is wrong with it."""
    if not isinstance(y, jax.Array):
        given = _none_is_missing(observations(y, model))
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused as such
            y = numeric_array("y", given, _what_to_give(given))
        _warn_of_rounding(given, y, ndim_batch)
    if getattr(y.dtype, "kind", "a key") not in "iufV":  # V: the floats that NumPy has no name for
        raise TypeError(
            f"y: expected real numbers, got dtype {y.dtype}. Write truth values as y.astype(float), and the parts of a "
            "complex number as two components; a random key comes first, as in epf.run(key, filter, y)."
        )
    expected = y_shape(model)
    lead = ("B", "T")[1 - ndim_batch :]
    if y.ndim < len(lead) or (expected is not None and y.shape[len(lead) :] != expected):
        shape = ", ".join([*lead, *map(str, ("...",) if expected is None else expected)])
        shape = shape if "," in shape else f"{shape},"
        raise ValueError(
            f"y: expected shape ({shape}), time first and then one observation as the model's observation draws it, "
            f"got shape {y.shape}.{_which_shape(y.shape, expected, len(lead))}"
        )
    if 0 in y.shape[: len(lead)]:
        raise ValueError(f"y: the series is empty (shape {y.shape}); at least one observation is needed.")
    if not isinstance(y, jax.core.Tracer):
        check_values(np.asarray(y), model)
    return y


def _what_to_give(y: Any) -> str:
    """What to do about a y that is no numbers."""
    if isinstance(y, Mapping):
        return "A dict of columns is a table: epf.from_table(y, 'column') chooses what is observed."
    if isinstance(y, str | pathlib.PurePath):
        return "A file is read first, pandas.read_csv(path); epf.from_table(table, 'column') takes what is observed."
    if isinstance(y, tuple) and len(y) == 2:
        return "Of states and observations, x, y = epf.simulate(...), give y."
    return "Give an array whose first axis is time, NaN where a value is missing."


def _warn_of_rounding(given: Any, y: Array, axis: int) -> None:
    """Tell of observations whose steps along the axis of time single precision does not tell apart."""
    before = np.asarray(given) if isinstance(given, np.ndarray | list | tuple) else np.zeros(())
    if before.dtype != np.float64 or y.dtype != jnp.float32 or before.ndim <= axis or before.shape != y.shape:
        return
    with np.errstate(all="ignore"):
        parts = np.abs(before - np.asarray(y, float)), np.abs(np.diff(before, axis=axis))
        # Means and not medians: an outlier is rounded by far more than others, and is as many times further from them.
        lost, step = (np.nansum(part, axis=axis) / np.sum(np.isfinite(part), axis=axis) for part in parts)
        ratio = np.where((step > 0) & np.isfinite(lost), lost / step, 0.0)  # what is infinite is refused later
    if not np.any(ratio > _ROUNDING):
        return
    worst, largest = np.nanargmax(ratio), float(np.nanmax(np.abs(before)))
    warnings.warn(
        f"y: single precision rounds these observations by {np.ravel(lost)[worst]:.2g} on average, and from one to the "
        f"next they change by {np.ravel(step)[worst]:.2g}: they are too far from zero ({largest:.8g}). Take something "
        'off all, y - y[0] say, and off the model\'s level; or use jax.config.update("jax_enable_x64", True) at the '
        "start.",
        RuntimeWarning,
        stacklevel=frames_to_user(),
    )


def warn_if_missing(y: Array) -> None:
    """Tell of a series without a single value."""
    if isinstance(y, jax.core.Tracer) or y.dtype.kind in "iu":
        return
    values = np.asarray(y)
    if np.isnan(values[-1]).all() and np.isnan(values).all():
        warnings.warn(
            "y: every value is missing, so that nothing is learned: what comes out is the prior. A wrong column, or a "
            "format that was not read as numbers?",
            RuntimeWarning,
            stacklevel=frames_to_user(),
        )


def _none_is_missing(y: Any) -> Any:
    """Numbers of which some are None, or masked, as an array with NaN there; anything else as it is."""
    if isinstance(y, np.ma.MaskedArray) and y.dtype.kind in "iuf":
        return np.ma.filled(y.astype(float), np.nan)
    if not isinstance(y, list | tuple) and not (isinstance(y, np.ndarray) and y.dtype.kind == "O"):
        return y
    try:
        values = np.asarray(y, object)
    except ValueError:  # rows of unequal length
        return y
    is_none = np.vectorize(lambda value: value is None, otypes=[bool])(values)
    kinds = {type(value) for value in values[~is_none].ravel()}
    if not is_none.any() or not all(issubclass(kind, numbers.Real) for kind in kinds):
        return y
    return np.where(is_none, np.nan, values).astype(float)


def _which_shape(shape: tuple[int, ...], expected: tuple[int, ...] | None, num_lead: int) -> str:
    """What to do about observations of one more dimension than the model's, after so many axes of runs and times."""
    found = shape[num_lead:]
    if expected != () or len(found) != 1:
        return ""
    if num_lead == 1 and shape[0] == 1 < found[0]:
        return " Take y[0]: time comes first."
    first = f"y[{':, ' * num_lead}0]"
    by_name = "or of a table a column by its name, epf.from_table(table, 'name')"
    several = f" The model observes one number: choose a column, {first} {by_name}; or observe a vector (.to_event(1))."
    return f" Take {first}, {by_name}." if found == (1,) else several


def check_values(y: np.ndarray, model: StateSpaceModel) -> None:
    """Refuse what no density of the model's allows: infinite values, fractions of counts, some missing components.

    And values outside of the support: of a series these are mistakes, not news to learn from.
    """
    expected, missing = model.shapes.y, np.isnan(y)
    if np.isinf(y).any():
        infinite = np.argwhere(np.isinf(y))
        raise ValueError(
            f"y: {len(infinite)} infinite value{'s' if len(infinite) > 1 else ''}, the first at index "
            f"{tuple(map(int, infinite[0]))} ({y.dtype} has no number beyond {float(jnp.finfo(y.dtype).max):.2g}). No "
            "density allows them; write NaN for a missing value."
        )
    if expected is None:
        return
    check_support(y, missing, model)
    if expected.shape == () or not missing.any():
        return
    axes = tuple(range(y.ndim - len(expected.shape), y.ndim))
    partly = missing.any(axis=axes) & ~missing.all(axis=axes)
    if not partly.any():
        return
    kind, can_be = of_observation(model, lambda d: (type(d).__name__, can_be_partly_missing(d, expected)))
    if not can_be:
        raise ValueError(
            f"y: some components are missing while others are seen (first in row {int(np.argwhere(partly)[0][-1])}), "
            f"and a {kind} observation cannot be marginalised. Use independent components "
            "(.to_event(1)) or a MultivariateNormal, or make the whole row NaN."
        )


def y_shape(model: StateSpaceModel) -> tuple[int, ...] | None:
    """Shape of one observation, or None where the model cannot tell before it sees inputs."""
    y = model.shapes.y
    return None if y is None else y.shape


def with_own_inputs(y: Any, inputs: Any, *, many: bool = False) -> tuple[Any, Any]:
    """The parts of what `from_table` and `panel` make; others may be given where these have no inputs."""
    if isinstance(y, Panel) and not many:
        raise TypeError(f"y: expected one series, got {y!r}. A panel is for epf.replicate(keys, filter, panel).")
    if not isinstance(y, Series | Panel):
        return y, inputs
    if inputs is not None and y.inputs is not None:
        raise ValueError(
            f"inputs: the series has inputs of its own, {', '.join(y.inputs)}. Leave these out, or name the columns in "
            "epf.from_table(..., inputs=[...]); for others altogether give y=series.y."
        )
    return y.y, y.inputs if inputs is None else inputs


def observations(y: Any, model: StateSpaceModel) -> Any:
    """The observations; those of a table of pandas, polars or pyarrow as an array of the model's shape."""
    return table_array("y", y, y_shape(model)) if is_table(y) else y


def check_lengths(y: Any) -> None:
    """Refuse a list of series of unequal length, which would make no array."""
    if not isinstance(y, (list, tuple)) or isinstance(y, Series | Panel):
        return
    lengths = [np.shape(series)[:1] for series in y]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"y: the series have unequal lengths, {', '.join(str(*length) for length in lengths[:8])}. Runs of one "
            "compiled program are equally long: pad the shorter ones at the end with NaN, which are missing values, "
            "and read their results at their own last observation. epf.panel(y) does both."
        )


def rows_per_series(inputs: Any, num_series: int, num_steps: int) -> Any:
    """The inputs as arrays with a row for every series and step."""
    rows = jax.tree.map(lambda leaf: numeric_array("inputs", leaf, "Give arrays of shape (B, T, ...)."), inputs)
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        if leaf.shape[:2] != (num_series, num_steps):
            raise ValueError(
                f"inputs{jax.tree_util.keystr(path)}: expected shape ({num_series}, {num_steps}, ...), one series of "
                f"rows for each key, got shape {leaf.shape}. For inputs shared by all, leave inputs_per_series False."
            )
        check_finite_inputs(path, leaf, 2)
    return rows
