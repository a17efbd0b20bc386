"""The page of `epf fit`: the verdict, the data with the fit and the forecast, the parameters, and the rest folded."""

import pathlib
import shlex
import sys
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from epf_jax.apps.commands.answers import Answer
from epf_jax.apps.commands.options import written
from epf_jax.apps.page import Figure, Html, Section, Table, text_of, write_page
from epf_jax.core.densities import sample_each
from epf_jax.core.machine import machine
from epf_jax.core.naming import LEVELS
from epf_jax.core.random import stream
from epf_jax.data.series import Series
from epf_jax.models.observed import Observed
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.offline.smoothing import Smoothed
from epf_jax.particles.weights import uniform_log_weights
from epf_jax.plots import plot_diagnostics, plot_predictive, plot_states, plot_theta
from epf_jax.plots.figures import (
    EXACT,
    MOST_PANELS,
    Curve,
    column,
    curves,
    draw_data,
    draw_fan,
    finish,
    finished,
    legend,
    shown_at,
)
from epf_jax.plots.posterior import plot_parameters
from epf_jax.running.forecast import Forecast
from epf_jax.running.records import Summary, summarise
from epf_jax.running.results import Results
from epf_jax.running.run import DEFAULT_LEVELS

_REPEATS = 20  # observations drawn for each smoothed state
_MOST_ROWS = 12  # of the table of a forecast


class Found(NamedTuple):
    """All that a fit found.

    Attributes:
        answer: the posterior of the parameters.
        series: the data.
        results: a filter's results over time, or None.
        smoothed: the states in hindsight, or None.
        fitted: what observations would be like by those states, or None.
        ahead: the forecast, or None.
    """

    answer: Answer
    series: Series
    results: Results | None
    smoothed: Smoothed | None
    fitted: Summary | None
    ahead: Forecast | None


def fitted_by(key: Any, model: StateSpaceModel, smoothed: Smoothed, series: Observed) -> Summary:
    """Observations at every t as the smoothed states would make them: what the model sees in the data."""
    return _fitted(model, key, smoothed.theta, smoothed.paths[:, 1:], series.inputs)


@partial(jax.jit, static_argnums=0)
def _fitted(model, key, theta, paths, inputs):
    num = _REPEATS * len(paths)
    theta = jax.tree.map(lambda leaf: jax.numpy.repeat(leaf, _REPEATS, axis=0), theta)

    def at(row):
        key, x, u = row
        x = jax.numpy.repeat(x, _REPEATS, axis=0)
        y = sample_each(key, lambda theta, x: model.observation(theta, x, u), num, theta, x)
        return summarise(y, uniform_log_weights(num), DEFAULT_LEVELS)

    keys = jax.random.split(stream(key), paths.shape[1])
    return jax.lax.map(at, (keys, jax.numpy.swapaxes(paths, 0, 1), inputs))


def write_report(path: pathlib.Path, title: str, about: str, found: Found) -> pathlib.Path:
    """Write the page."""
    answer = found.answer
    kind = "yes" if answer.is_good else "partly"
    first, *others = answer.verdict
    verdict = "".join(f"<p>{text_of(sentence)}</p>" for sentence in others)
    lead = [Html(f"<div class='claim {kind}'><p class='verdict'>{text_of(first)}</p>{verdict}</div>")]
    caption = "Posterior (blue) and prior (grey) of each parameter, given all observations."
    parameters: list[Any] = [answer.table()]
    if answer.rows():
        parameters.append(
            Figure("parameters", caption, lambda: plot_parameters(answer.state, answer.model, answer.error))
        )
    sections = [Section("data", "The data", [about, *_data(found)]), Section("parameters", "Parameters", parameters)]
    if found.smoothed is not None:
        sections.append(Section("states", "States", [_states(found.series, found.smoothed, answer.model)]))
    if found.results is not None:
        sections.append(Section("time", "Over time", _over_time(found.series, found.results), folded=True))
    sections.append(Section("how", "How it was done", [*answer.facts, *made_by()], folded=True))
    return write_page(path, title, lead, sections)


def predictions(found: Forecast, series: Series) -> Table:
    """What the next observations will be."""
    num, table = len(found.t), found.to_pandas(series)
    when = "time" if "time" in table else "t"
    observed = table.iloc[: num * len(series.columns)]  # states follow
    observed = observed[observed["t"] < found.t[0].item() + _MOST_ROWS].astype({when: str})
    rows: list[dict[str, Any]] = []
    for _, row in observed.iterrows():
        numbers = {name: written(row[name]) for name in ("mean", "sd", *(f"{level:.0%}" for level in LEVELS.values()))}
        which = {"observation": row["variable"]} if len(series.columns) > 1 else {}
        rows.append({when: row[when], **which, **numbers})
    more = f"{num - _MOST_ROWS} more steps in forecast.csv." if num > _MOST_ROWS else ""
    return Table("The next observations", rows, more)


def _data(found: Found) -> list[Any]:
    parts = [name for name, part in (("the fit", found.fitted), ("the forecast", found.ahead)) if part is not None]
    caption = "The data" + (f", with {' and '.join(parts)}: mean, 50% and 90% bands." if parts else ".")
    figure = Figure("data", caption, lambda: _draw_data(found))
    return [figure] if found.ahead is None else [figure, predictions(found.ahead, found.series)]


def _draw_data(found: Found) -> Any:
    series, ahead = found.series, found.ahead
    of = shown_at(np.arange(1, len(series.y) + 1), series)
    num = min(len(of.names), MOST_PANELS)
    figure, axes = column(num, 3.4 if num < 3 else 2.4)
    for j, (ax, name) in enumerate(zip(axes, of.names, strict=False)):
        if found.fitted is not None:
            draw_fan(ax, of.t, curves(found.fitted, "y")[j], DEFAULT_LEVELS, label="fit")
        if ahead is not None:
            dated = series.times is not None and len(series.times) > 1
            t = series.stamps_ahead(len(ahead.t), ahead.dt) if dated else np.asarray(ahead.t)
            draw_fan(ax, t, curves(ahead.y, "y")[j], ahead.levels, label="forecast", color=EXACT)
        draw_data(ax, of.t, of.columns[:, j])
        ax.set_ylabel(name)
        finish(ax)
    legend(axes[0], ncols=4)
    return finished(figure, axes, of.along, None)


def named_states(smoothed: Smoothed, model: StateSpaceModel) -> list[Curve]:
    """The states that have names; or all of them, but for those that repeat an earlier value of another one."""
    found = curves(smoothed.x, "x", model.state_names)
    if model.state_names:
        return found
    paths = np.asarray(smoothed.paths).reshape(*smoothed.paths.shape[:2], -1)

    def repeats(j):
        others = (paths[:, :-1, i] for i in range(paths.shape[-1]) if i != j)
        return any(np.allclose(paths[:, 1:, j], other, rtol=1e-4, atol=1e-4 * np.std(other)) for other in others)

    return [curve for j, curve in enumerate(found) if not repeats(j)]


def _states(series: Series, smoothed: Smoothed, model: StateSpaceModel) -> Figure:
    def draw():
        of, found = shown_at(np.asarray(smoothed.t), series), named_states(smoothed, model)[:MOST_PANELS]
        figure, axes = column(len(found), 2.2)
        for ax, curve in zip(axes, found, strict=True):
            draw_fan(ax, of.t, curve, smoothed.levels, label="state")
            ax.set_ylabel(curve.name)
            finish(ax)
        legend(axes[0])
        return finished(figure, axes, of.along, None)

    return Figure("states", "The states in hindsight, given all observations.", draw)


def _over_time(series: Series, results: Results) -> list[Any]:
    """The pictures of a filter's run."""
    last = len(series.y) - len(results.ess)
    times = None if series.times is None else series.times[last:]
    series = series._replace(y=series.y[last:], times=times)
    found: list[Any] = [
        Figure("filtered", "The states, given what was seen until then.",
               lambda: plot_states(results, series, on_state=False)),
        Figure("diagnostics", "Effective sample size before resampling, acceptance of theta's moves, and the one-step "
               "predictive log-density of each observation.", lambda: plot_diagnostics(results, series)),
    ]  # fmt: skip
    if jax.tree.leaves(results.theta.mean):
        caption = "What is known of each parameter after t observations: posterior mean and 90% band."
        found.insert(0, Figure("theta", caption, lambda: plot_theta(results, series)))
    if results.diagnostics is not None:
        caption = (
            "Each observation in the band that was predicted for it one step ahead; the share of that prediction below "
            "it (PIT), as a histogram, which is flat where all is well, and over time."
        )
        found.append(Figure("predictive", caption, lambda: plot_predictive(results, series)))
    return found


def made_by() -> list[Any]:
    """The machine, the versions and the command."""
    here = machine()
    versions = ", ".join(f"{name} {here[name]}" for name in ("epf_jax", "jax", "numpyro", "python"))
    command = text_of(shlex.join(["epf", *sys.argv[1:]]))
    return [f"{here['device']} device, {here['date']}; {versions}. The command:", Html(f"<pre>{command}</pre>")]
