"""`epf fit`: learns a model's parameters from a table and writes a report."""

import pathlib
import sys
import time as clock
from functools import partial
from typing import Annotated, Any

import jax
import numpy as np
import typer

from epf_jax.apps.commands import output_files as outputs
from epf_jax.apps.commands import report_page as look
from epf_jax.apps.commands.future import ahead_of, predictions, steps_ahead, write_csv
from epf_jax.apps.commands.model_file import build
from epf_jax.apps.commands.one_fit import example_row, filter_series, observed, room_for, series_from
from epf_jax.apps.commands.options import (
    Columns,
    Data,
    Inputs,
    Method,
    Output,
    Particles,
    Seed,
    Start,
    Target,
    Time,
    Unit,
    app,
    console,
    keep_compiled_programs,
    names_in,
    note,
    progress_bar,
    refusals,
    show,
    tell,
    written,
)
from epf_jax.apps.page import Table
from epf_jax.core.naming import LEVELS, scalars
from epf_jax.data.series import Series
from epf_jax.data.tables import count_of
from epf_jax.filters import Filter
from epf_jax.offline import smoothing
from epf_jax.offline.smoothing import Smoothed
from epf_jax.running.checkpoints import check_path
from epf_jax.running.results import Results

_ADVICE = (
    "Of this advice, filters are --method NAME and numbers of particles --particles N here; any other part is given to "
    "a filter in the model's file, which MODEL may name."
)
_SMOOTHING = 10  # folded into the key: not one of those that a run splits off


@app.command("fit")
def fit_command(
    model: Target,
    data: Data,
    method: Method = None,
    particles: Particles = None,
    columns: Columns = None,
    time: Time = None,
    unit: Unit = None,
    start: Start = None,
    inputs: Inputs = None,
    seed: Seed = 0,
    output: Output = pathlib.Path("results"),
    checkpoint: Annotated[
        pathlib.Path | None,
        typer.Option(help="File to keep the results so far in; the same command goes on from there."),
    ] = None,
    smooth: Annotated[bool, typer.Option(help="Also the states in hindsight, given all observations.")] = False,
    forecast: Annotated[
        int | None,
        typer.Option(help="Also so many observations to come; their stamps as far apart as usual.", min=1),
    ] = None,
    future: Annotated[
        pathlib.Path | None,
        typer.Option(help="Forecast the steps in this CSV file: the columns of --time and --inputs, a row for each."),
    ] = None,
) -> None:
    """Learn a model's parameters from a table: a summary here, and a report, plots and all numbers in a folder.

    The folder gets fit.html, figures/, fit.parquet and fit.nc, and with --forecast or --future also forecast.csv. With
    --checkpoint FILE an interrupted fit goes on where it stopped, and a table may gain rows at its end; the results
    are those of one fit of all rows, to rounding. Methods that remember every row (resample-move, smc2) begin with
    room for at least twice the rows.
    """
    keep_compiled_programs()
    with refusals():
        series = series_from(data, names_in(columns), time, unit, start, names_in(inputs))
        steps = steps_ahead(forecast, future, series, time, unit, names_in(inputs))
        kept = None if checkpoint is None else check_path(checkpoint)
        filter_ = build(model, method, particles, example_row(series), room_for(len(series.y), kept))
        outputs.prepare(output / "fit.html")
        began = clock.perf_counter()
        with progress_bar() as bar:
            task = bar.add_task("filtering", total=len(series.y))
            results = filter_series(filter_, series, seed, kept, partial(bar.advance, task))
        seconds = clock.perf_counter() - began
        warned = look.findings(filter_, results)
        if results.diagnostics is None:
            note("with --checkpoint the predictive check and the particles' descent are not recorded, nor looked at.")
        smoothed = _in_hindsight(filter_, results, series, seed, warned) if smooth else None
        with look.told_of(warned):
            ahead = None if steps is None else ahead_of(filter_, results, steps, seed)
        tables = [posterior(results), run_facts(results), *([] if ahead is None else [predictions(ahead, series)])]
        for table in tables:
            show(table)
        warned = tell(warned, _ADVICE)
        found = outputs.columns_over_time(results, series, smoothed)
        outputs.write_parquet(output / "fit.parquet", found)
        outputs.write_netcdf(output / "fit.nc", found)
        if ahead is not None:
            write_csv(output / "forecast.csv", ahead, series)
        facts = [_in_words(filter_, series, data, model, seed, seconds)]
        pictures = look.figures(results, series, smoothed, ahead)
        page = outputs.write_page(output / "fit.html", f"{model} on {data.name}", facts, warned, tables, pictures)
    console.print(f"report: [bold]{page}[/bold]", highlight=False, soft_wrap=True)


def _in_hindsight(filter_: Filter, results: Results, series: Series, seed: int, warned: list[str]) -> Smoothed:
    """The smoothed states; their warnings join the others."""
    key, y = jax.random.fold_in(jax.random.key(seed), _SMOOTHING), observed(series, filter_)
    with look.told_of(warned):
        return smoothing.smooth(key, filter_, results.final, y, progress=sys.stderr.isatty())


def posterior(results: Results) -> Table:
    """What is known of theta after the last observation."""
    last = jax.tree.map(lambda leaf: np.asarray(leaf)[-1], results.theta)
    parts: dict[str, Any] = {"mean": scalars(last.mean), "sd": scalars(last.sd)}
    at = {round(float(level), 4): i for i, level in enumerate(np.asarray(results.levels))}
    for level in LEVELS.values():
        parts[f"{level:.0%}"] = scalars(jax.tree.map(lambda leaf, i=at[level]: leaf[..., i], last.quantiles))
    rows = [{"parameter": name, **{p: written(parts[p][name]) for p in parts}} for name in parts["mean"]]
    return Table(f"Posterior after {count_of(len(results.ess), 'observation')}", rows)


def run_facts(results: Results) -> Table:
    """The evidence and the quality of the particles."""
    ess = np.asarray(results.ess)
    rows: list[dict[str, Any]] = [
        {"": "log-evidence", "value": f"{float(results.log_evidence[-1]):.3f}"},
        {"": "effective sample size, median", "value": written(np.median(ess))},
        {"": "effective sample size, smallest", "value": f"{written(ess.min())} (at t = {int(np.argmin(ess)) + 1})"},
        {"": "acceptance of theta's moves, mean", "value": written(_mean_of_tried(results.acceptance))},
        {"": "steps that gave every particle zero weight", "value": int(np.sum(results.collapsed))},
    ]
    return Table("The run", rows)


def _mean_of_tried(acceptance: Any) -> float:
    """The mean over the steps that tried a move; NaN if none did."""
    tried = np.asarray(acceptance)[~np.isnan(acceptance)]
    return float(tried.mean()) if len(tried) else float("nan")


def _in_words(filter_: Filter, series: Series, data: pathlib.Path, model: str, seed: int, seconds: float) -> str:
    missing = int(np.isnan(series.y).sum())
    return (
        f"{model}, learned from {len(series.y)} observations of {', '.join(series.columns)} in {data} "
        f"({missing} missing value{'' if missing == 1 else 's'}) by a {repr(filter_).strip('<>')}; seed {seed}, "
        f"{seconds:.1f} s with compilation."
    )
