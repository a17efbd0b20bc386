"""The observed series: checks the user's observations and inputs and makes arrays of them, once.

All functions that take a series (`run`, `replicate`, `fit`, chains, `smooth`, the oracles, the command line) call
`observed_series`, or `observed_batch` for several series.
"""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.checks import frames_to_user
from epf_jax.core.densities import can_be_partly_missing
from epf_jax.core.number_arrays import (
    given_numbers,
    holds_jax,
    in_precision,
    numeric_array,
    on_device,
    warn_of_rounding,
)
from epf_jax.data.series import Panel, Series, table_array
from epf_jax.data.tables import is_table
from epf_jax.models.given_inputs import check_num_rows, input_arrays
from epf_jax.models.missing import check_support, of_observation
from epf_jax.models.state_space import StateSpaceModel, check_rows, input_rows, seen


class Observed(NamedTuple):
    """A checked series.

    Attributes:
        values: the observations, time first, in the model's shape and the precision in use; NaN where missing.
        inputs: a row for each observation; the time index by default.
        times: the time stamps of a `Series`, or None.
        columns: the names of the components of one observation, if a `Series` had them.
    """

    values: Float[Array, "T *y"]
    inputs: Any
    times: np.ndarray | None = None
    columns: tuple[str, ...] = ()


class ObservedBatch(NamedTuple):
    """Several series of one length, or one series for several runs.

    Attributes:
        values: the observations, with a leading axis of series if `many`.
        inputs: a row for each observation, with a leading axis of series if `many_inputs`.
        many: whether there is a series for each run.
        many_inputs: whether there are inputs for each run.
        shortest: the number of observations of the shortest series, before it was padded.
    """

    values: Float[Array, "..."]
    inputs: Any
    many: bool
    many_inputs: bool
    shortest: int

    @property
    def num_steps(self) -> int:
        """The length of every series."""
        return self.values.shape[1 if self.many else 0]


def observed_series(model: StateSpaceModel, y: Any, inputs: Any = None, *, first: int | Array = 1) -> Observed:
    """The checked series; an error says what is wrong with y or inputs.

    Args:
        model: the model of the observations.
        y: an array, lists of numbers, a table of pandas, polars or pyarrow, or a `Series`; an `Observed` is trusted.
        inputs: a row for each observation: any pytree of arrays, or a table; None for the time index, or the series'
            own.
        first: the time index of the first observation; 1, unless a run goes on.
    """
    if isinstance(y, Observed):
        return y
    if isinstance(y, Panel):
        raise TypeError(f"y: expected one series, got {y!r}. A panel is for epf.learn and epf.replicate.")
    times, columns = (y.times, y.columns) if isinstance(y, Series) else (None, ())
    y, inputs = _with_own_inputs(y, inputs)
    model, rows, shape = _as_seen(model, inputs, 1)
    given, values = _as_array(y, shape)
    if rows is not None:
        check_num_rows(rows, values.shape[:1])
    values = _checked(model, given, values, shape, 1)
    if isinstance(first, int):
        _warn_if_missing(values)
    rows = input_rows(None, len(values), first, model=model) if rows is None else rows
    return Observed(values, rows, times, columns)


def observed_batch(
    model: StateSpaceModel, y: Any, inputs: Any, num_runs: int, inputs_per_series: bool = False
) -> ObservedBatch:
    """One checked series for all runs, or one for each, from y and inputs of `replicate`."""
    _check_lengths(y)
    lengths = y.lengths if isinstance(y, Panel) else None
    many_inputs = inputs_per_series or (isinstance(y, Panel) and inputs is None and y.inputs is not None)
    y, inputs = _with_own_inputs(y, inputs)
    model, rows, shape = _as_seen(model, inputs, 2 if many_inputs else 1)
    given, values = _as_array(y, shape)
    many = values.ndim == 2 + len(shape)
    values = _checked(model, given, values, shape, 2 if many else 1)
    _warn_if_missing(values)
    if many and len(values) != num_runs:
        raise ValueError(
            f"y: {len(values)} series came with {num_runs} keys; give one key per series: "
            f"jax.random.split(key, {len(values)})."
        )
    num_steps = values.shape[1 if many else 0]
    if rows is not None:
        check_num_rows(rows, (num_runs, num_steps) if many_inputs else (num_steps,))
    rows = input_rows(None, num_steps, model=model) if rows is None else rows
    return ObservedBatch(values, rows, many, many_inputs, num_steps if lengths is None else int(min(lengths)))


def _as_seen(model: StateSpaceModel, inputs: Any, num_axes: int) -> tuple[StateSpaceModel, Any, tuple[int, ...]]:
    """The model that has seen the inputs, these as arrays or None, and the shape of one observation."""
    rows = None if inputs is None else input_arrays(inputs, num_axes)
    y = check_rows(model, input_rows(None, 1, model=model) if rows is None else rows, num_axes).y
    return seen(model, rows, num_axes), rows, y.shape


def _as_array(y: Any, shape: tuple[int, ...]) -> tuple[np.ndarray | None, Array]:
    """The numbers as given, which may have more digits, and in the precision in use."""
    if holds_jax(y):
        values = numeric_array("y", y, _GIVE)
        whole = getattr(values.dtype, "kind", "a key") in "iu" and not isinstance(values, jax.core.Tracer)
        return (np.asarray(values) if whole else None), values
    y = table_array("y", y, shape) if is_table(y) else y
    given = given_numbers("y", y, _GIVE)
    return given, on_device(in_precision(given))


def _checked(
    model: StateSpaceModel, given: np.ndarray | None, y: Array, shape: tuple[int, ...], num_axes: int
) -> Array:
    """The observations, after checks of dtype, shape and values; the last of the first axes is time."""
    if getattr(y.dtype, "kind", "a key") not in "iuf":
        raise TypeError(f"y: expected real numbers, got dtype {y.dtype}. {_GIVE}")
    lead = ("B", "T")[2 - num_axes :]
    if y.ndim < num_axes or y.shape[num_axes:] != shape:
        wanted = ", ".join([*lead, *map(str, shape)])
        wanted = wanted if "," in wanted else f"{wanted},"
        raise ValueError(
            f"y: expected shape ({wanted}), time first and then one observation as the model's observation draws it, "
            f"got shape {y.shape}. {_GIVE}"
        )
    if 0 in y.shape[:num_axes]:
        raise ValueError(f"y: the series is empty (shape {y.shape}); at least one observation is needed.")
    if given is not None:
        warn_of_rounding("y", given, num_axes - 1, _NEARER_ZERO)
    if not isinstance(y, jax.core.Tracer):
        check_values(np.asarray(y), model)
    return y


_GIVE = "Give an array whose first axis is time, NaN where a value is missing, or epf.from_table(table, 'column')."
_NEARER_ZERO = "Take something off all, y - y[0] say, and off the model's level"


def _warn_if_missing(y: Array) -> None:
    """Warn of a series without a single value."""
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


def _with_own_inputs(y: Any, inputs: Any) -> tuple[Any, Any]:
    """The observations and inputs of a series or panel; inputs may be given if it has none."""
    if not isinstance(y, Series | Panel):
        return y, inputs
    if inputs is not None and y.inputs is not None:
        raise ValueError(
            f"inputs: the series has inputs of its own, {', '.join(y.inputs)}. Leave these out, or name the columns in "
            "epf.from_table(..., inputs=[...]); for others altogether give y=series.y."
        )
    return y.y, y.inputs if inputs is None else inputs


def _check_lengths(y: Any) -> None:
    """Raise for a list of series of unequal length."""
    if not isinstance(y, (list, tuple)) or isinstance(y, Series | Panel):
        return
    lengths = [np.shape(series)[:1] for series in y]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"y: the series have unequal lengths, {', '.join(str(*length) for length in lengths[:8])}. Use "
            "epf.panel(y), which pads the shorter ones at the end with missing values."
        )


def check_values(y: np.ndarray, model: StateSpaceModel) -> None:
    """Raise for values that the model does not allow: infinite values, fractions of counts, some missing components.

    Values outside of the support raise, too, because in a series they are mistakes.
    """
    expected, missing = model.shapes.y, np.isnan(y)
    if np.isinf(y).any():
        infinite = np.argwhere(np.isinf(y))
        raise ValueError(
            f"y: {len(infinite)} infinite value{'s' if len(infinite) > 1 else ''}, the first at index "
            f"{tuple(map(int, infinite[0]))} ({y.dtype} has no number beyond {float(jnp.finfo(y.dtype).max):.2g}). No "
            "density allows them; write NaN for a missing value."
        )
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
