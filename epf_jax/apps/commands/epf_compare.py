"""`epf compare`: several methods on the same data, side by side with the answer of `epf.learn`."""

import pathlib
import time as clock
from collections.abc import Mapping
from itertools import cycle
from typing import Annotated, Any

import jax
import numpy as np
import typer

from epf_jax.apps.commands import options
from epf_jax.apps.commands import output_files as outputs
from epf_jax.apps.commands.answers import Answer, by_learning, off_by
from epf_jax.apps.commands.data_file import names_in, observed, reader_of, reading, series_in
from epf_jax.apps.commands.kept_runs import filter_series, room_for
from epf_jax.apps.commands.method_names import FOR_STREAMS, METHODS, check_method, in_words
from epf_jax.apps.commands.model_file import filter_for, target_of
from epf_jax.apps.commands.options import (
    app,
    console,
    fail,
    in_options,
    keep_compiled_programs,
    refusals,
    show,
    written,
)
from epf_jax.apps.commands.report_page import made_by
from epf_jax.apps.page import Figure, Html, Section, Table, text_of, write_page
from epf_jax.core.naming import scalars
from epf_jax.data.series import Series
from epf_jax.filters import Filter
from epf_jax.filters.state import evidence_in_words
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.plots.figures import TRUTH, column, finish, finished, legend, shown
from epf_jax.running.alarms import alarms
from epf_jax.running.checkpoints import check_path
from epf_jax.running.records import log_scores
from epf_jax.running.results import Results

DEFAULT = (FOR_STREAMS, "epf", "liu-west", "sir")
_LEARN = "learn"
_APART = 0.5  # of a posterior standard deviation: methods that are right differ by less
# A colour and a dash each: methods that agree lie on each other, and all of them are to be seen.
_LINES = (
    ("#1f5fa8", "-"),
    ("#d1662a", (0, (6, 3))),
    ("#2a8f5a", (0, (2, 2))),
    ("#8a4fb0", (0, (8, 2, 2, 2))),
    ("#c9a227", (0, (4, 6))),
    ("#c43c39", (0, (1, 3))),
)


@app.command("compare")
def compare_command(
    model: options.Target,
    data: options.Data,
    methods: Annotated[
        str | None, typer.Option(help=f"Methods to compare, of {in_words()}; {','.join(DEFAULT)} by default.")
    ] = None,
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
        pathlib.Path | None, typer.Option(help="File to keep results so far in; each method's has its name added.")
    ] = None,
) -> None:
    """Compare methods with the answer of `epf.learn` on the same data: posteriors, log-evidence, log scores.

    The folder gets compare.html, figures/ and compare.parquet. A method that does not fit the model is named with the
    reason, and the others run on.
    """
    keep_compiled_programs()
    with refusals():
        series = series_in(data, reading(columns, time, unit, start, inputs))
        target = target_of(model)
        if isinstance(target, Filter):
            raise ValueError("MODEL: it is a filter. Name the model itself, for which methods are compared.")
        target = reader_of(target, series.inputs)
        sizes = {name: particles for name in DEFAULT if name != FOR_STREAMS} if methods is None else {}
        sizes = {FOR_STREAMS: None, **sizes} if methods is None else dict.fromkeys(names_in(methods), particles)
        kept = {name: None if checkpoint is None else _own(check_path(checkpoint), name) for name in sizes}
        filters, refused = _filters(target, sizes, series, kept)
        outputs.prepare(output / "compare.html")
        answer, _ = by_learning(jax.random.key(seed), target, observed(series, target), seconds)
        found, taken = {}, {}
        for name, filter_ in filters.items():
            began = clock.perf_counter()
            found[name] = filter_series(filter_, series, seed, kept[name], name)
            taken[name] = clock.perf_counter() - began
        tables = [side_by_side(found, answer), scores(found, series, taken, refused)]
        told = [answer.verdict[0], *disagreements(found, answer)]
        told += [f"{name}: {in_options(each.message)}" for name in found for each in alarms(found[name])]
        for table in tables:
            show(table)
        for sentence in told:
            console.print(sentence, highlight=False, markup=False)
        outputs.write_parquet(output / "compare.parquet", _stacked(found, series))
        facts = [f"{name}: {repr(filter_).strip('<>')}." for name, filter_ in filters.items()]
        facts.append(f"{len(series.y)} observations of {', '.join(series.columns)} in {data}; seed {seed}.")
        page = write_page(
            output / "compare.html",
            f"{model} on {data.name}: {len(found)} methods",
            [Html(f"<div class='claim'>{''.join(f'<p>{text_of(sentence)}</p>' for sentence in told)}</div>")],
            [
                Section("posteriors", "Posteriors", [tables[0]]),
                Section("predictions", "Predictions", [tables[1]]),
                Section("time", "Over time", comparison(found, series, answer)),
                Section("how", "How it was done", [*answer.facts, *facts, *made_by()], folded=True),
            ],
        )
    console.print(f"report: [bold]{page}[/bold]", highlight=False, soft_wrap=True)


def _filters(
    target: StateSpaceModel, sizes: dict[str, int | None], series: Series, kept: dict[str, pathlib.Path | None]
) -> tuple[dict[str, Filter], dict[str, str]]:
    """The filters by name, and the reasons why other methods do not fit the model."""
    if not sizes:
        raise ValueError(f"--methods: name at least one of {in_words()}.")
    for name in sizes:
        check_method(name, "--methods")
    filters, refused = {}, {}
    for name, particles in sizes.items():
        room = room_for(len(series.y), kept[name])
        try:
            filters[name] = filter_for(target, name, particles, series.inputs, room)
        except (TypeError, ValueError) as error:
            refused[name] = in_options(str(error))
    if not filters:
        fail(f"none of the methods is for this model: {'; '.join(f'{n}: {why}' for n, why in refused.items())}")
    return filters, refused


def _own(checkpoint: pathlib.Path, method: str) -> pathlib.Path:
    return checkpoint.with_name(f"{checkpoint.stem}-{method}{checkpoint.suffix}")


def scores(found: dict[str, Results], series: Series, seconds: dict[str, float], refused: dict[str, str]) -> Table:
    """How well each method predicted each observation from those before it."""
    seen = ~np.isnan(series.y.reshape(len(series.y), -1)).all(axis=1)
    by_method = {name: log_scores(results)[seen[-len(results.ess) :]] for name, results in found.items()}
    rows: list[dict[str, Any]] = [
        {
            "method": name,
            "log-evidence": evidence_in_words(results.final, 3),
            "log score": written(by_method[name].mean()),
            "later half": written(by_method[name][len(by_method[name]) // 2 :].mean()),
            "least ESS": written(np.min(results.ess)),
            "seconds": f"{seconds[name]:.1f}",
        }
        for name, results in found.items()
    ]
    note = "".join(f"{name} is not for this model: {why} " for name, why in refused.items()) + (
        "Log score: the mean of log p(y_t | y_1:t-1), one step ahead. All methods have the same model, so that "
        "differences are their errors, and the highest is not the best. A method that loses its particles has a low "
        "score in the later half. Seconds are with compilation, but for programs that were kept."
    )
    note += "".join(f" Of {name}: {METHODS[name].caution}." for name in found if METHODS[name].caution)
    return Table("", rows, note)


def side_by_side(found: dict[str, Results], answer: Answer) -> Table:
    """Every method's posterior of every parameter after the last observation."""
    mean, sd = map(scalars, answer.theta[:2])
    rows: list[dict[str, Any]] = []
    for parameter in mean:
        rows.append({"parameter": parameter, "method": _LEARN, "mean": written(mean[parameter]),
                     "sd": written(sd[parameter]), "off": "", "sd ratio": ""})  # fmt: skip
        for name, results in found.items():
            means, sds = (scalars(part, 1) for part in (results.theta.mean, results.theta.sd))
            if parameter in means:
                rows.append(
                    {
                        "parameter": parameter,
                        "method": name,
                        "mean": written(means[parameter][-1]),
                        "sd": written(sds[parameter][-1]),
                        "off": f"{off_by(results, answer)[parameter]:+.2f}",
                        "sd ratio": f"{float(sds[parameter][-1] / sd[parameter]):.2f}",
                    }
                )
    return Table("", rows, "off: how far the mean is from that of learn, in its standard deviations; 0 is right.")


def disagreements(found: Mapping[str, Results], answer: Answer) -> list[str]:
    """A sentence for each method that is far from `learn`."""
    told = []
    for name, results in found.items():
        off = off_by(results, answer)
        worst = max(off, key=lambda parameter: abs(off[parameter]), default=None)
        if worst is not None and not abs(off[worst]) <= _APART:
            told.append(f"{name} puts {worst} {abs(off[worst]):.1f} posterior standard deviations from learn.")
    return told


def comparison(found: Mapping[str, Results], series: Series, answer: Answer) -> list[Figure]:
    """The pictures of several methods on the same data."""
    names = list(scalars(answer.theta.mean))
    first = next(iter(found))
    evidence = f"Log-evidence of each method less that of {first}, over time: one that predicts better rises."
    posterior = "Each parameter over time: mean, and the ends of its 90% band (thin). Dotted: the mean of learn."
    return [
        Figure("compare-theta", posterior, lambda: _thetas(found, series, names, answer)),
        Figure("compare-evidence", evidence, lambda: _evidence(found, series)),
    ]


def _thetas(found: Mapping[str, Results], series: Series, names: list[str], answer: Answer) -> Any:
    figure, axes = column(len(names), 3.2)
    of = shown(next(iter(found.values())), series)
    for ax, name in zip(axes, names, strict=True):
        for (colour, dash), (method, results) in zip(cycle(_LINES), found.items(), strict=False):
            mean = scalars(results.theta.mean, 1)
            if name in mean:
                ax.plot(of.t, mean[name], color=colour, linestyle=dash, linewidth=2.0, label=method)
                for i in (0, -1):  # lines, since bands would lie on each other
                    level = jax.tree.map(lambda leaf, i=i: leaf[..., i], results.theta.quantiles)
                    ax.plot(of.t, scalars(level, 1)[name], color=colour, linestyle=dash, linewidth=0.8)
        ax.axhline(float(scalars(answer.theta.mean)[name]), color=TRUTH, linewidth=1.0, linestyle=":", label=_LEARN)
        ax.set_ylabel(name)
        finish(ax)
    legend(axes[0])
    return finished(figure, axes, of.along, None)


def _evidence(found: Mapping[str, Results], series: Series) -> Any:
    figure, (ax,) = column(1)
    name = next(iter(found))
    of, first = shown(found[name], series), np.asarray(found[name].log_evidence)
    for (colour, dash), (method, results) in zip(cycle(_LINES), found.items(), strict=False):
        with np.errstate(invalid="ignore"):  # no difference of two evidences of zero
            less = np.asarray(results.log_evidence) - first
        ax.plot(of.t, less, color=colour, linestyle=dash, label=method)
    ax.set_ylabel(f"log-evidence\nminus that of {name}")
    finish(ax)
    legend(ax)
    return finished(figure, [ax], of.along, None)


def _stacked(found: dict[str, Results], series: Series) -> dict[str, np.ndarray]:
    """The columns of all methods, one below the other, with the method's name first."""
    each = {name: outputs.columns_over_time(series, results) for name, results in found.items()}
    columns = next(iter(each.values()))
    names = np.concatenate([np.repeat(name, len(part["t"])) for name, part in each.items()])
    return {"method": names, **{c: np.concatenate([part[c] for part in each.values()]) for c in columns}}
