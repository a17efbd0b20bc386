"""Forecasts of `epf fit`: the steps that its options ask for, and the predicted observations."""

import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np

from epf_jax.apps.commands.options import written
from epf_jax.apps.page import Table
from epf_jax.core.files import write_atomically
from epf_jax.core.naming import LEVELS
from epf_jax.data.series import STEP, Series, series_of
from epf_jax.data.tables import read_file
from epf_jax.data.timestamps import EarlyError, usual_step
from epf_jax.filters import Filter
from epf_jax.running.forecast import Forecast, forecast
from epf_jax.running.results import Results

_FORECASTING = 11  # folded into the key: not one of those that a run splits off
_MOST_ROWS = 12  # of the table on a screen and a page


class Steps(NamedTuple):
    """The steps of a forecast: their number and their inputs, for `epf.forecast`."""

    num: int
    inputs: dict[str, np.ndarray] | None


def steps_ahead(
    num: int | None,
    future: pathlib.Path | None,
    series: Series,
    time: str | None,
    unit: str | None,
    inputs: tuple[str, ...],
) -> Steps | None:
    """The steps that --forecast and --future ask for after the series, or None if neither does."""
    if future is not None:
        if num is not None:
            raise ValueError("--forecast: leave it out with --future, whose rows are the steps.")
        return _steps_in(future, series, time, unit, inputs)
    if num is None:
        return None
    if inputs:
        raise ValueError(
            f"--forecast: the steps to come have inputs, too. Write them into a CSV file with the columns "
            f"{', '.join(((time,) if time else ()) + inputs)}, a row for each step, and name it, --future FILE."
        )
    if series.inputs is None:  # none, or dates that are labels
        return Steps(num, None)
    steps = series.inputs[STEP]
    return Steps(num, {STEP: np.full(num, usual_step(steps[1:] if len(steps) > 1 else steps))})  # the first is assumed


def _steps_in(
    future: pathlib.Path, series: Series, time: str | None, unit: str | None, inputs: tuple[str, ...]
) -> Steps:
    if time is None and not inputs:
        raise ValueError("--future: without --time and --inputs there is nothing to read in it: say --forecast N.")
    table, row = read_file(future)
    start = None if series.times is None or STEP not in (series.inputs or {}) else series.times[-1]
    try:
        known = series_of(table, (), time, unit, start, inputs, row, ahead=True)
    except EarlyError as error:
        raise ValueError(
            f"{future}: its first stamp in column {time!r} is to come after the last of the data, {start}."
        ) from error
    except ValueError as error:
        raise ValueError(f"{future}: {error}") from error
    return Steps(len(known.y), known.inputs)


def ahead_of(filter_: Filter, results: Results, steps: Steps, seed: int) -> Forecast:
    """The forecast from where the run ended."""
    key = jax.random.fold_in(jax.random.key(seed), _FORECASTING)
    return forecast(key, filter_, results.final, steps.num, inputs=steps.inputs)


def predictions(found: Forecast, series: Series) -> Table:
    """What the next observations will be."""
    num, table = len(found.t), found.to_pandas(series)
    when = "time" if "time" in table else "t"
    observed = table.iloc[: num * len(series.columns)]  # states follow
    observed = observed[observed["t"] < found.t[0].item() + _MOST_ROWS].astype({when: str})
    rows: list[dict[str, Any]] = []
    for _, row in observed.iterrows():
        numbers = {name: written(row[name]) for name in ("mean", "sd", *(f"{level:.0%}" for level in LEVELS.values()))}
        rows.append({"observation": row["variable"], when: row[when], **numbers})
    more = f"{num - _MOST_ROWS} more steps in forecast.csv." if num > _MOST_ROWS else ""
    return Table("The next observations", rows, more)


def write_csv(path: pathlib.Path, found: Forecast, series: Series) -> None:
    """Write the whole forecast, states and observations, to a CSV file."""
    write_atomically(path, found.to_pandas(series).to_csv(index=False))
