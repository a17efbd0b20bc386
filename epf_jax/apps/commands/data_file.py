"""What the options say of a table: its columns as a series, and the steps to come."""

import pathlib
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np

from epf_jax.data.series import STEP, Series, series_of, shaped
from epf_jax.data.tables import listed, read_file
from epf_jax.data.timestamps import EarlyError, usual_step
from epf_jax.models.observed import Observed, observed_series
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import built_for

T = TypeVar("T")


class Reading(NamedTuple):
    """The options that say how a table is read.

    Attributes:
        columns: the observed columns.
        time: the column of time stamps.
        unit: the unit of the steps between them.
        start: the time of the initial state.
        inputs: the columns that the model reads.
    """

    columns: tuple[str, ...] = ()
    time: str | None = None
    unit: str | None = None
    start: str | None = None
    inputs: tuple[str, ...] = ()


class Steps(NamedTuple):
    """The steps of a forecast: their number and their inputs, for `epf.forecast`."""

    num: int
    inputs: dict[str, np.ndarray] | None


def names_in(text: str | None) -> tuple[str, ...]:
    """The names in a comma-separated list."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def reading(columns: str | None, time: str | None, unit: str | None, start: str | None, inputs: str | None) -> Reading:
    """The options as they are written."""
    return Reading(names_in(columns), time, unit, start, names_in(inputs))


def series_in(path: pathlib.Path, how: Reading) -> Series:
    """The columns of a CSV or Parquet file that the options name."""
    table, row = read_file(path)
    try:
        series = series_of(table, how.columns or None, how.time, how.unit, how.start, how.inputs, row)
    except ValueError as error:
        told = str(error)
        if "is not a number" in told and not how.columns:
            told += " If it is no observation: --columns NAME names those that are, --time NAME the column of stamps."
        raise ValueError(f"{path}: {told}") from error
    if np.isnan(series.y).all():
        raise ValueError(f"{path}: every value of {listed(series.columns)} is missing: there is nothing to learn from.")
    return series


def reader_of(target: T, inputs: dict[str, Any] | None) -> T:
    """The model or filter that has seen the inputs, of which there may be one row or many."""
    rows = {} if inputs is None else {name: jnp.atleast_1d(jnp.asarray(v, float)) for name, v in inputs.items()}
    return target if inputs is None else built_for(target, rows)


def observed(series: Series, model: StateSpaceModel) -> Observed:
    """The series as the model observes it."""
    flat = series.y.reshape(len(series.y), -1)
    y = shaped(flat, series.columns, reader_of(model, series.inputs).shapes.y.shape, "columns")
    return observed_series(model, series._replace(y=y))


def steps_ahead(num: int | None, future: pathlib.Path | None, series: Series, how: Reading) -> Steps | None:
    """The steps that --forecast and --future ask for after the series, or None if neither does."""
    if future is not None:
        if num is not None:
            raise ValueError("--forecast: leave it out with --future, whose rows are the steps.")
        return _steps_in(future, series, how)
    if num is None:
        return None
    if how.inputs:
        columns = ", ".join(((how.time,) if how.time else ()) + how.inputs)
        raise ValueError(
            f"--forecast: the steps to come have inputs, too. Write them into a CSV file with the columns {columns}, a "
            "row for each step, and name it, --future FILE."
        )
    if series.inputs is None:  # none, or dates that are labels
        return Steps(num, None)
    steps = series.inputs[STEP]
    return Steps(num, {STEP: np.full(num, usual_step(steps[1:] if len(steps) > 1 else steps))})  # the first is assumed


def _steps_in(future: pathlib.Path, series: Series, how: Reading) -> Steps:
    if how.time is None and not how.inputs:
        raise ValueError("--future: without --time and --inputs there is nothing to read in it. Say --forecast N.")
    table, row = read_file(future)
    start = None if series.times is None or STEP not in (series.inputs or {}) else series.times[-1]
    try:
        known = series_of(table, (), how.time, how.unit, start, how.inputs, row, ahead=True)
    except EarlyError as error:
        raise ValueError(
            f"{future}: its first stamp in column {how.time!r} is to come after the last of the data, {start}."
        ) from error
    except ValueError as error:
        raise ValueError(f"{future}: {error}") from error
    return Steps(len(known.y), known.inputs)
