"""`epf compare`: several methods on the same data, side by side."""

import pathlib
import time as clock
from collections.abc import Mapping
from functools import partial
from itertools import combinations
from typing import Annotated, Any

import numpy as np
import typer

from epf_jax.apps.commands import output_files as outputs
from epf_jax.apps.commands import report_page as look
from epf_jax.apps.commands.epf_fit import posterior
from epf_jax.apps.commands.method_names import EXACT_INSIDE, METHODS, check_method, in_words
from epf_jax.apps.commands.model_file import filter_for, target_of
from epf_jax.apps.commands.one_fit import example_row, filter_series, room_for, series_from
from epf_jax.apps.commands.options import (
    Columns,
    Data,
    Inputs,
    Output,
    Particles,
    Seed,
    Start,
    Target,
    Time,
    Unit,
    app,
    console,
    fail,
    keep_compiled_programs,
    names_in,
    progress_bar,
    refusals,
    show,
    tell,
    written,
)
from epf_jax.apps.page import Table
from epf_jax.core.naming import scalars
from epf_jax.data.series import Series
from epf_jax.filters import Filter
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.proposals import why_not_kalman
from epf_jax.running.checkpoints import check_path
from epf_jax.running.records import log_scores
from epf_jax.running.results import Results

DEFAULT = ("epf", "node", "liu-west", "sir")
_BASELINES = ("liu-west", "sir")  # known to be off, and shown for it
_ADVICE = (
    "Of this advice, filters are names of --methods and numbers of particles --particles N here; any other part is "
    "given to a filter in Python."
)
_APART = 0.5  # of a posterior standard deviation: methods that are right differ by less


@app.command("compare")
def compare_command(
    model: Target,
    data: Data,
    methods: Annotated[
        str | None,
        typer.Option(
            help=f"Methods to compare, of {in_words()}; {','.join(DEFAULT)} by default, and {EXACT_INSIDE} where the "
            "model is linear and Gaussian in its state."
        ),
    ] = None,
    particles: Particles = None,
    columns: Columns = None,
    time: Time = None,
    unit: Unit = None,
    start: Start = None,
    inputs: Inputs = None,
    seed: Seed = 0,
    output: Output = pathlib.Path("results"),
    checkpoint: Annotated[
        pathlib.Path | None, typer.Option(help="File to keep results so far in; each method's has its name added.")
    ] = None,
) -> None:
    """Compare methods on the same data: log-evidence, one-step predictive log scores, posteriors side by side.

    The folder gets compare.html, figures/ and compare.parquet. A method that does not fit the model is named with the
    reason, and the others run on.
    """
    keep_compiled_programs()
    with refusals():
        series = series_from(data, names_in(columns), time, unit, start, names_in(inputs))
        target = target_of(model)
        names = default_methods(target) if methods is None else names_in(methods)
        # N at every node, by the dozen or the thousand, is for those who name the method.
        sizes = {name: None if methods is None and METHODS[name].at_each_node else particles for name in names}
        kept = {name: None if checkpoint is None else _own(check_path(checkpoint), name) for name in names}
        filters, refused = _filters(target, sizes, series, kept)
        outputs.prepare(output / "compare.html")
        found, seconds = _run_all(filters, series, seed, kept)
        tables = [scores(found, series, seconds, refused), side_by_side(found)]
        for table in tables:
            show(table)
        warned = [f"{name}: {sentence}" for name in found for sentence in look.findings(filters[name], found[name])]
        warned += disagreements(found)
        warned = tell(warned, _ADVICE)
        outputs.write_parquet(output / "compare.parquet", _stacked(found, series))
        facts = [f"{len(series.y)} observations of {', '.join(series.columns)} in {data}; seed {seed}."]
        facts += [f"{name}: {repr(filter_).strip('<>')}." for name, filter_ in filters.items()]
        title = f"{model} on {data.name}: {len(found)} methods"
        page = outputs.write_page(output / "compare.html", title, facts, warned, tables, look.comparison(found, series))
    console.print(f"report: [bold]{page}[/bold]", highlight=False, soft_wrap=True)


def default_methods(target: StateSpaceModel | Filter) -> tuple[str, ...]:
    """The methods that are compared by default."""
    is_linear = isinstance(target, StateSpaceModel) and target.shapes.problem is None and not why_not_kalman(target)
    return (DEFAULT[0], EXACT_INSIDE, *DEFAULT[1:]) if is_linear else DEFAULT


def _filters(
    target: StateSpaceModel | Filter, sizes: dict[str, int | None], series: Series, kept: dict[str, pathlib.Path | None]
) -> tuple[dict[str, Filter], dict[str, str]]:
    """The filters by name, and the reasons why other methods do not fit the model."""
    if isinstance(target, Filter):
        raise ValueError("MODEL: it is a filter; name the model itself, for which methods are compared.")
    if not sizes:
        raise ValueError(f"--methods: name at least one of {in_words()}.")
    for name in sizes:
        check_method(name, "--methods")
    filters, refused = {}, {}
    for name, particles in sizes.items():
        room = room_for(len(series.y), kept[name])
        try:
            filters[name] = filter_for(target, name, particles, example_row(series), room)
        except (TypeError, ValueError) as error:
            refused[name] = str(error)
    if not filters:
        fail(f"none of the methods is for this model: {'; '.join(f'{n}: {why}' for n, why in refused.items())}")
    return filters, refused


def _own(checkpoint: pathlib.Path, method: str) -> pathlib.Path:
    return checkpoint.with_name(f"{checkpoint.stem}-{method}{checkpoint.suffix}")


def _run_all(
    filters: dict[str, Filter], series: Series, seed: int, kept: dict[str, pathlib.Path | None]
) -> tuple[dict[str, Results], dict[str, float]]:
    found, seconds = {}, {}
    with progress_bar() as bar:
        for name, filter_ in filters.items():
            task = bar.add_task(name, total=len(series.y))
            began = clock.perf_counter()
            found[name] = filter_series(filter_, series, seed, kept[name], partial(bar.advance, task))
            seconds[name] = clock.perf_counter() - began
    return found, seconds


def scores(found: dict[str, Results], series: Series, seconds: dict[str, float], refused: dict[str, str]) -> Table:
    """How well each method predicted each observation from those before it."""
    seen = ~np.isnan(series.y.reshape(len(series.y), -1)).all(axis=1)
    by_method = {name: log_scores(results)[seen] for name, results in found.items()}
    highest = max(found, key=lambda name: found[name].log_evidence[-1])
    rows: list[dict[str, Any]] = []
    for name, results in found.items():
        each = by_method[name]
        less = each - by_method[highest]
        error = less.std(ddof=1) / np.sqrt(len(less)) if len(less) > 1 else np.nan
        rows.append(
            {
                "method": name,
                "log-evidence": f"{float(results.log_evidence[-1]):.3f}",
                "log score": written(each.mean()),
                "later half": written(each[len(each) // 2 :].mean()),
                "to the highest": "highest" if name == highest else _with_error(less.mean(), error),
                "least ESS": written(np.min(results.ess)),
                "seconds": f"{seconds[name]:.1f}",
            }
        )
    note = "".join(f"{name} is not for this model: {why} " for name, why in refused.items()) + (
        "Log score: the mean of log p(y_t | y_1:t-1), one step ahead. All methods have one and the same model, whose "
        "log-evidence and log score are one number each: differences are the methods' errors, and the highest is not "
        "for that the best. A method that loses its particles predicts worse and worse: its score is low, in the later "
        "half above all. Differences to the highest come with their standard error over the observations, which "
        "knows nothing of that between seeds: compare --seed 0, 1, 2. Seconds are with compilation, but for programs "
        "that were kept."
    )
    note += "".join(f" Of {name}: {METHODS[name].caution}." for name in found if METHODS[name].caution)
    return Table("Predictions", rows, note)


def _with_error(value: float, error: float) -> str:
    """The value, rounded to the first digit of its standard error."""
    if not (np.isfinite(value) and np.isfinite(error)):
        return "-"
    decimals = max(0, -int(np.floor(np.log10(max(error, 1e-9)))))
    return f"{value:+.{decimals}f} ± {error:.{decimals}f}"


def side_by_side(found: dict[str, Results]) -> Table:
    """Every method's posterior of every parameter after the last observation."""
    each = [{"parameter": row["parameter"], "method": m, **row} for m, r in found.items() for row in posterior(r).rows]
    order = list(dict.fromkeys(row["parameter"] for row in each))
    return Table("Posteriors", sorted(each, key=lambda row: order.index(row["parameter"])))


def disagreements(found: Mapping[str, Results]) -> list[str]:
    """A sentence for each parameter on which two methods disagree; methods known to be biased do not count."""
    told = []
    mean, sd = (
        {name: scalars(part(r.theta), 1) for name, r in found.items() if name not in _BASELINES}
        for part in (lambda theta: theta.mean, lambda theta: theta.sd)
    )
    for parameter in dict.fromkeys(k for of_method in mean.values() for k in of_method):
        having = [name for name in mean if parameter in mean[name]]
        apart = {}
        for a, b in combinations(having, 2):
            widest = max(sd[a][parameter][-1], sd[b][parameter][-1], np.finfo(float).tiny)
            apart[a, b] = abs(float(mean[a][parameter][-1]) - float(mean[b][parameter][-1])) / widest
        pair = max(apart, key=lambda names: apart[names], default=None)
        if pair is not None and apart[pair] > _APART:
            told.append(
                f"{' and '.join(pair)} put {parameter} {apart[pair]:.1f} posterior standard deviations apart: one of "
                "them is off, or both. Try more particles, other keys, and `epf.run(..., diagnostics=True).diagnose()`."
            )
    return told


def _stacked(found: dict[str, Results], series: Series) -> dict[str, np.ndarray]:
    """The columns of all methods, one below the other, with the method's name first."""
    each = {name: outputs.columns_over_time(results, series) for name, results in found.items()}
    names = np.repeat(list(each), len(series.y))
    columns = next(iter(each.values()))
    return {"method": names, **{c: np.concatenate([part[c] for part in each.values()]) for c in columns}}
