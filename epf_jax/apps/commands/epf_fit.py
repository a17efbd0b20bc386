"""`epf fit`: learns a model's parameters from a table and writes a report."""

import csv
import io
import pathlib
import sys
from typing import Annotated, Any

import jax
import numpy as np
import typer

from epf_jax.apps.commands import options
from epf_jax.apps.commands import output_files as outputs
from epf_jax.apps.commands.answers import Answer, by_filter, by_learning, off_by, told_of
from epf_jax.apps.commands.data_file import Steps, observed, reader_of, reading, series_in, steps_ahead
from epf_jax.apps.commands.kept_runs import filter_series, room_for
from epf_jax.apps.commands.model_file import filter_for, target_of
from epf_jax.apps.commands.options import app, console, in_options, keep_compiled_programs, note, refusals, show
from epf_jax.apps.commands.report_page import Found, fitted_by, predictions, write_report
from epf_jax.core.files import write_atomically
from epf_jax.data.series import Series
from epf_jax.data.tables import count_of
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.offline.smoothing import smooth
from epf_jax.running.checkpoints import check_path
from epf_jax.running.forecast import forecast
from epf_jax.running.results import Results

_SMOOTHING, _FORECASTING, _FITTING, _LEARNING = 10, 11, 12, 13  # folded into the key: none that a run splits off


@app.command("fit")
def fit_command(
    model: options.Target,
    data: options.Data,
    method: options.Method = None,
    particles: options.Particles = None,
    seconds: options.Seconds = 60.0,
    columns: options.Columns = None,
    time: options.Time = None,
    unit: options.Unit = None,
    start: options.Start = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    output: options.Output = pathlib.Path("results"),
    checkpoint: Annotated[
        pathlib.Path | None,
        typer.Option(help="File to keep the state in: `epf stream` goes on from it, and so does the same command."),
    ] = None,
    smooth: Annotated[bool, typer.Option(help="Whether to look back at the states, given all observations.")] = True,
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

    Without --method, `epf.learn` chooses one and says how far to trust the answer. The folder gets fit.html, figures/,
    parameters.csv, fit.parquet and fit.nc, and with --forecast or --future also forecast.csv. With --checkpoint FILE an
    interrupted run goes on where it stopped, and a table may gain rows at its end. Methods that remember every row
    (resample-move, smc2) begin with room for at least twice the rows.
    """
    keep_compiled_programs()
    with refusals():
        how = reading(columns, time, unit, start, inputs)
        series = series_in(data, how)
        steps = steps_ahead(forecast, future, series, how)
        kept = None if checkpoint is None else check_path(checkpoint)
        target = target_of(model)
        outputs.prepare(output / "fit.html")
        if isinstance(target, StateSpaceModel) and method is None and particles is None:
            answer, results = _learned(target, series, seed, seconds, kept)
        else:
            filter_ = filter_for(target, method, particles, series.inputs, room_for(len(series.y), kept))
            results = filter_series(filter_, series, seed, kept)
            answer = by_filter(filter_, results, seconds)
            _show(answer)
        found = _looked_around(answer, results, series, steps, seed, in_hindsight=smooth)
        page = _write(output, f"{model} on {data.name}", _about(series, data, seed), found)
    console.print(f"report: [bold]{page}[/bold]", highlight=False, soft_wrap=True)


def _learned(
    model: StateSpaceModel, series: Series, seed: int, seconds: float, kept: pathlib.Path | None
) -> tuple[Answer, Results | None]:
    """The answer of `learn`; with a checkpoint, also the results of the filter whose state it keeps."""
    model = reader_of(model, series.inputs)
    key = jax.random.fold_in(jax.random.key(seed), _LEARNING)
    answer, learned = by_learning(key, model, observed(series, model), seconds)
    console.print(in_options(str(learned)), highlight=False, markup=False, soft_wrap=True)
    if kept is None:
        return answer, None
    filter_ = filter_for(model, None, None, series.inputs)
    results = filter_series(filter_, series, seed, kept)
    off = max(abs(apart) for apart in off_by(results, answer).values())
    told = f"The state in {kept} is off by up to {off:.2g} posterior standard deviations, {repr(filter_).strip('<>')}."
    console.print(told, highlight=False, markup=False, soft_wrap=True)
    return answer._replace(facts=[*answer.facts, told]), results


def _show(answer: Answer) -> None:
    show(answer.table(f"Posterior after {count_of(int(answer.state.t), 'observation')}"))
    for fact in answer.facts[1:]:
        show(fact)
    for sentence in answer.verdict:
        console.print(sentence, style=None if answer.is_good else "yellow", highlight=False, markup=False)


def _looked_around(
    answer: Answer, results: Results | None, series: Series, steps: Steps | None, seed: int, *, in_hindsight: bool
) -> Found:
    """The answer with the states in hindsight and the forecast."""
    key = jax.random.key(seed)
    told: list[str] = []
    smoothed = fitted = ahead = None
    with told_of(told):
        if in_hindsight:
            rows = observed(series, answer.model)
            smoothed = smooth(
                jax.random.fold_in(key, _SMOOTHING),
                answer.model,
                answer.state,
                rows,
                inputs=rows.inputs,
                progress=sys.stderr.isatty(),
            )
            fitted = fitted_by(jax.random.fold_in(key, _FITTING), answer.model, smoothed, rows)
        if steps is not None:
            key = jax.random.fold_in(key, _FORECASTING)
            ahead = forecast(key, answer.model, answer.state, steps.num, inputs=steps.inputs)
            show(predictions(ahead, series))
    for sentence in told:
        note(sentence)
    answer = answer._replace(verdict=[*answer.verdict, *told], is_good=answer.is_good and not told)
    return Found(answer, series, results, smoothed, fitted, ahead)


def _write(output: pathlib.Path, title: str, about: str, found: Found) -> pathlib.Path:
    """Write the numbers and the page; returns the page's path."""
    columns = outputs.columns_over_time(found.series, found.results, found.smoothed)
    outputs.write_parquet(output / "fit.parquet", columns)
    outputs.write_netcdf(output / "fit.nc", columns)
    write_atomically(output / "parameters.csv", _as_csv(found.answer.rows()))
    if found.ahead is not None:
        outputs.write_forecast(output / "forecast.csv", found.ahead, found.series)
    return write_report(output / "fit.html", title, about, found)


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["parameter"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _about(series: Series, data: pathlib.Path, seed: int) -> str:
    num, missing = count_of(len(series.y), "observation"), int(np.isnan(series.y).sum())
    gaps = f" ({count_of(missing, 'missing value')})" if missing else ""
    return f"{num} of {', '.join(series.columns)} in {data}{gaps}; seed {seed}."
