"""Tables (pandas, polars, pyarrow, NumPy, dicts of columns) turned into series and panels for filters.

    series = epf.from_table(table, columns=["high", "low"], time="date", unit="days", inputs=["volume"])
    results = epf.run(key, filter_, series)  # or series.y, inputs=series.inputs

A model reads inputs by name: `u["dt"]` is the time since the last observation, `u["volume"]` the column "volume".
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.data.tables import columns_of, complete, count_of, is_missing, is_table, listed, numbers_of, plain
from epf_jax.data.timestamps import RowName, are_dates, axis_of, months_ahead, rounded_to, time_steps, usual_step

STEP = "dt"  # the input that a time column becomes


class Series(NamedTuple):
    """Observations and inputs of one series.

    Attributes:
        y: observations, time first, NaN where missing.
        inputs: a dict of columns for `run(..., inputs=...)`, with time steps as "dt"; None without inputs.
        columns: the names of y's components.
        times: the time column, or None.
    """

    y: np.ndarray
    inputs: dict[str, np.ndarray] | None
    columns: tuple[str, ...]
    times: np.ndarray | None = None

    def __repr__(self) -> str:
        """What there is, without the numbers."""
        inputs = f", inputs {', '.join(self.inputs)}" if self.inputs else ""
        observed = f"{count_of(len(self.y), 'observation')} of {', '.join(self.columns)}"
        return f"<Series of {observed if self.columns else f'{len(self.y)} rows, nothing observed'}{inputs}>"

    @property
    def example_input(self) -> dict[str, Any] | None:
        """One row of the inputs. It is no longer needed: `StateSpaceModel` says more."""
        return None if self.inputs is None else {name: values[0] for name, values in self.inputs.items()}

    def stamps_ahead(self, num_steps: int, dt: Any = None) -> np.ndarray:
        """The time stamps of future steps: by their time steps dt, or else in steps as long as the median here.

        A table of future steps, without observations, has its own stamps.
        """
        if self.times is not None and not self.columns:
            if len(self.times) != num_steps:
                raise ValueError(
                    f"series: expected the filtered series, or one of the {num_steps} future steps, got {self!r}."
                )
            return axis_of(self.times)
        if self.times is None or len(self.times) < 2:
            raise ValueError(f"series: expected a series with at least two time stamps, got {self!r}.")
        before = axis_of(self.times)
        apart = np.diff(before)
        if dt is None or self.inputs is None or STEP not in self.inputs:
            ahead = months_ahead(self.times, num_steps)
            return before[-1] + usual_step(apart) * np.arange(1, num_steps + 1) if ahead is None else ahead
        if len(dt) != num_steps:
            raise ValueError(f"dt: expected a time step for each of {num_steps} steps, got {len(dt)}.")
        count = np.cumsum(np.asarray(dt, float)) / np.median(self.inputs[STEP])
        ahead = months_ahead(self.times, num_steps) if np.allclose(count, np.arange(1, num_steps + 1)) else None
        if ahead is not None:
            return ahead
        unit = np.median(apart / self.inputs[STEP][1:])
        since = unit * np.cumsum(np.asarray(dt, float))
        eps = float(jnp.finfo(jnp.result_type(float)).eps)  # of the precision in which a model reads steps
        return before[-1] + rounded_to(since, eps).astype(apart.dtype)


class Panel(NamedTuple):
    """Several series of unequal length, for `replicate`.

    Shorter series are padded at the end with NaN. These missing observations change neither theta's posterior nor the
    evidence. Read results where each series ends: `panel.last(results.theta.mean)`.

    Attributes:
        y: one series for each name, of shape (B, T, ...).
        inputs: for `replicate(..., inputs=..., inputs_per_series=True)`, padded with their last row; or None.
        lengths: the number of observations of each.
        names: of the series.
        columns: the names of y's components.
        times: the time stamps of each series if all have them, or None.
    """

    y: np.ndarray
    inputs: dict[str, np.ndarray] | None
    lengths: np.ndarray
    names: tuple[str, ...]
    columns: tuple[str, ...]
    times: tuple[Any, ...] | None = None

    def __repr__(self) -> str:
        """What there is, without the numbers."""
        lengths = f"{min(self.lengths)} to {max(self.lengths)}"
        inputs = f", inputs {', '.join(self.inputs)}" if self.inputs else ""
        columns = ", ".join(self.columns)
        columns = "" if columns == "0" else f" of {columns}"  # what came without a name
        return f"<Panel of {len(self.names)} series, {lengths} observations{columns}{inputs}>"

    @property
    def example_input(self) -> dict[str, Any] | None:
        """One row of the inputs. It is no longer needed: `StateSpaceModel` says more."""
        return None if self.inputs is None else {name: values[0, 0] for name, values in self.inputs.items()}

    def last(self, values: Any) -> Any:
        """The values at the last observation of each series, of any pytree of arrays of shape (B, T, ...).

        Does not apply to `results.final`: its states are those after as many steps as the longest series has.
        """

        def pick(leaf):
            if leaf.shape[:2] != self.y.shape[:2]:
                raise ValueError(
                    f"values: expected arrays of shape {self.y.shape[:2]} and more, one row for each series and step, "
                    f"such as results.theta or results.log_evidence, got shape {leaf.shape}."
                )
            return leaf[np.arange(len(self.lengths)), self.lengths - 1]

        return jax.tree.map(pick, values)


def from_table(
    table: Any,
    columns: str | Sequence[str] | None = None,
    *,
    time: str | None = None,
    unit: str | None = None,
    start: Any = None,
    inputs: str | Sequence[str] = (),
) -> Series:
    """Observations and inputs from a table.

    Args:
        table: a DataFrame of pandas or polars, a pyarrow Table, a dict of columns, an array of shape (T, d), whose
            columns are called "0", "1", ..., or the path of a CSV or Parquet file.
        columns: the observed columns: one name if the model observes a number, a list if it observes a vector; by
            default every column that is neither time nor input. Without any, all observations are missing, as in a
            table of future steps for `epf.forecast(..., inputs=series)`.
        time: the column of time stamps, or the name of a pandas index: increasing numbers, dates, or ISO 8601 text. It
            becomes the input "dt", the time since the last observation.
        unit: the unit of "dt" if the stamps are dates: "seconds", "minutes", "hours", "days", "weeks", "months",
            "quarters" or "years". Without a unit, dates only label pictures and tables; there is no "dt".
        start: the time of the initial state, before the first stamp. By default the first "dt" equals the second. If
            the table continues another, give that one's last stamp, `start=series.times[-1]`. Required if nothing is
            observed.
        inputs: further columns that the model reads as `u[name]`; none of their values may be missing.

    A missing value of y is NaN, None, an empty text or NA. Other text raises an error that names its row.
    """
    return series_of(columns_of(_with_index(table, time)), columns, time, unit, start, inputs, _row, ahead=True)


def _row(i: int) -> str:
    return f"row {i} (the first is 0)"


def _with_index(table: Any, time: str | None) -> Any:
    """The table; if it is a pandas table whose index is the time, the index becomes a column."""
    named = time is not None and getattr(getattr(table, "index", None), "name", None) == time
    return table.reset_index() if named and hasattr(table, "columns") and time not in table.columns else table


def series_of(
    table: dict[str, Any],
    columns: str | Sequence[str] | None,
    time: str | None,
    unit: str | None,
    start: Any,
    inputs: str | Sequence[str],
    row: RowName,
    alone: float | None = None,
    *,
    ahead: bool = False,
) -> Series:
    """`from_table` for a dict of columns.

    `row(i)` is the name of row i in messages. `alone` is the time step of a series with one stamp. `ahead` allows a
    table without observations, such as one of future steps.
    """
    inputs, time = _names(inputs), None if time is None else str(time)
    taken = {*inputs, time}
    if time is not None and STEP in inputs:
        raise ValueError(f"inputs: {STEP!r} is what the column of time stamps becomes; rename the column {STEP!r}.")
    chosen = tuple(name for name in table if name not in taken) if columns is None else _names(columns)
    for argument, names in (("columns", chosen), ("inputs", inputs), ("time", () if time is None else (str(time),))):
        for name in names:
            if name not in table:
                raise ValueError(f"{argument}: the table has no column {name!r}; it has {listed(table)}.")
    both = sorted({*chosen} & taken - {None})
    if both:
        raise ValueError(
            f"inputs: {both[0]!r} is observed, and also given as {'the time' if both[0] == time else 'an input'}. "
            "Name every column once."
        )
    num_rows = len(next(iter(table.values()), ()))
    if not num_rows or not (chosen or (ahead and taken - {None})):
        raise ValueError(f"table: expected observations, got a table without {'rows' if chosen else 'columns'}.")
    if time is None and (unit is not None or start is not None):
        raise ValueError("time: unit and start need a column of time stamps. Name it, time='date'.")
    y = np.stack([numbers_of(table[name], name, row) for name in chosen] or [np.full(num_rows, np.nan)], axis=-1)
    y = y[:, 0] if isinstance(columns, str | int) or (columns is None and len(chosen) < 2) else y
    rows = {name: complete(numbers_of(table[name], name, row), name, row) for name in inputs}
    if time is None:
        return Series(y, rows or None, chosen)
    stamps = plain(table[str(time)])
    labels = unit is None and start is None and are_dates(stamps)
    if not chosen and start is None and not labels:
        raise ValueError(
            "start: a table without observations needs the time at which its first step begins. Give the last stamp of "
            "the data, start=series.times[-1], or the time of x_0."
        )
    steps = time_steps(stamps, str(time), row, unit, start, alone)
    rows = rows if steps is None else {STEP: steps, **rows}
    return Series(y, rows or None, chosen, stamps)


def panel(
    tables: Any,
    columns: str | Sequence[str] | None = None,
    *,
    by: str | None = None,
    time: str | None = None,
    unit: str | None = None,
    start: Any = None,
    inputs: str | Sequence[str] = (),
) -> Panel:
    """Several series, of equal or unequal length, as one batch for `epf.replicate`.

    Args:
        tables: a dict (or a list) of tables, arrays or `Series`; with `by`, one long table.
        columns: as in `from_table`. If later tables have the first table's names, columns are matched by name,
            otherwise by position.
        by: the column that says which series a row belongs to.
        time: as in `from_table`.
        unit: as in `from_table`.
        start: the time of every initial state. By default the first "dt" of a series equals its second; a series
            with one row gets the median of the others.
        inputs: as in `from_table`.

    Example: `epf.replicate(jax.random.split(key, len(panel.names)), filter_, panel)`. The panel brings its inputs.
    """
    named = () if columns is None else _names(columns)
    if by is None and _is_one_table(tables, {*named, *_names(inputs), *(() if time is None else (time,))}):
        raise ValueError(
            f"tables: this is one long table with the columns {listed(tables)}. Name the column that tells its series "
            "apart, such as by='shop'."
        )
    parts = _parts(tables if by is None else _with_index(tables, time), by)
    if not parts:
        raise ValueError("tables: expected at least one series, got none.")

    def read(name, alone=None):
        part = parts[name]
        try:
            if isinstance(part, Series):
                return part
            return series_of(columns_of(_with_index(part, time)), columns, time, unit, start, inputs, _row, alone)
        except (TypeError, ValueError) as error:
            raise type(error)(f"series {name!r}: {error}") from error

    found = {name: read(name) for name, part in parts.items() if not _is_one_row(part)}
    steps = [series.inputs[STEP] for series in found.values() if series.inputs and STEP in series.inputs]
    alone = float(np.median(np.concatenate(steps))) if steps else None
    found = {name: found[name] if name in found else read(name, alone) for name in parts}
    first = next(iter(found.values()))
    found = {name: _in_order_of(first.columns, series) for name, series in found.items()}
    for name, series in found.items():
        kind, expected = ((s.y.shape[1:], sorted(s.inputs or ())) for s in (series, first))
        if kind != expected:
            raise ValueError(
                f"series {name!r}: one observation has shape {kind[0]} and the inputs are {kind[1]}, unlike the first "
                f"series' {expected[0]} and {expected[1]}."
            )
    lengths = np.array([len(series.y) for series in found.values()])
    y = np.stack([_padded(series.y, lengths.max(), np.nan) for series in found.values()])
    rows = None
    if first.inputs is not None:
        each = [series.inputs or {} for series in found.values()]
        rows = {u: np.stack([_padded(s[u], lengths.max(), s[u][-1]) for s in each]) for u in first.inputs}
    times = tuple(series.times for series in found.values())
    return Panel(y, rows, lengths, tuple(found), first.columns, None if any(t is None for t in times) else times)


def _is_one_table(tables: Any, wanted: set[Any]) -> bool:
    """Whether this is a dict of plain columns, of which all the names that are wanted name some.

    A number names a column of an array, and may name a series as well.
    """
    if not isinstance(tables, Mapping) or not wanted or not wanted <= set(tables) or any(map(str.isdigit, wanted)):
        return False
    return all(
        isinstance(part, list | tuple | np.ndarray | jax.Array) and np.ndim(part) == 1 for part in tables.values()
    )


def _is_one_row(part: Any) -> bool:
    if isinstance(part, Mapping):
        return np.size(next(iter(part.values()), ())) == 1
    return is_table(part) and len(part) == 1


def _parts(tables: Any, by: str | None) -> dict[str, Any]:
    if by is not None:
        table = columns_of(tables)
        if by not in table:
            raise ValueError(f"by: the table has no column {by!r}; it has {listed(table)}.")
        groups = [_group(value, by, i) for i, value in enumerate(plain(table[by]))]
        rest = {name: plain(column) for name, column in table.items() if name != by}
        which = {group: np.array([g == group for g in groups]) for group in dict.fromkeys(groups)}
        return {group: {name: column[rows] for name, column in rest.items()} for group, rows in which.items()}
    if isinstance(tables, Mapping):
        return {str(name): part for name, part in tables.items()}
    if isinstance(tables, list | tuple):
        return {str(i): part for i, part in enumerate(tables)}
    raise TypeError(
        f"tables: expected a dict or a list of tables, or one long table and by='column', got {type(tables).__name__}."
    )


def _group(value: Any, by: str, row: int) -> str:
    if is_missing(value) or not str(value).strip():
        raise ValueError(f"by: column {by!r} is missing in row {row}, which then belongs to no series. Fill it in.")
    return str(value)


def _in_order_of(columns: tuple[str, ...], series: Series) -> Series:
    """The series with its columns in this order, where they are the same ones; others are taken by their position."""
    if series.columns == columns or sorted(series.columns) != sorted(columns):
        return series
    return series._replace(y=series.y[:, [series.columns.index(name) for name in columns]], columns=columns)


def _padded(values: np.ndarray, length: int, filler: Any) -> np.ndarray:
    missing = length - len(values)
    return np.concatenate([values, np.broadcast_to(filler, (missing, *values.shape[1:]))]) if missing else values


def table_array(name: str, table: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    """A table as the array of a series, one observation of the given shape a row; all columns count."""
    columns = columns_of(table)
    found = from_table(columns, list(columns)).y
    return shaped(found, tuple(columns), shape, name)


def shaped(y: np.ndarray, columns: Sequence[str], shape: tuple[int, ...] | None, argument: str) -> np.ndarray:
    """Y of shape (T, d) as a series of the model's shape, or an error if the model observes something else."""
    if shape is None:
        return y
    if math.prod(shape) != len(columns):
        raise ValueError(
            f"{argument}: the model observes {count_of(math.prod(shape), 'number')} a time (shape {shape}), got "
            f"{count_of(len(columns), 'column')}: {listed(columns)}. Choose those that the model observes, "
            "in its order."
        )
    return y.reshape(len(y), *shape)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (str(given),) if isinstance(given, str | int) else tuple(str(name) for name in given)


def inputs_of(series: Series) -> dict[str, np.ndarray]:
    """The inputs of a table, or an error where it has none."""
    if series.inputs is None:
        raise ValueError(
            f"inputs: {series!r} has no inputs. Name columns, epf.from_table(..., time='date', inputs=['volume'])."
        )
    return series.inputs
