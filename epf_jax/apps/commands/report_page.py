"""The figures and sentences of a report on a run.

To add a figure, add a `Figure` to `figures` or `comparison`. To add a diagnosis in words, add a sentence to `findings`.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any

import jax
import numpy as np

from epf_jax.apps.commands.method_names import EXACT_INSIDE
from epf_jax.apps.page import Figure
from epf_jax.core.naming import scalars
from epf_jax.data.series import Series
from epf_jax.filters import Filter
from epf_jax.offline.smoothing import Smoothed
from epf_jax.plots import plot_diagnostics, plot_forecast, plot_predictive, plot_smoothed, plot_states, plot_theta
from epf_jax.plots.figures import column, finish, finished, legend, shown
from epf_jax.running.forecast import Forecast
from epf_jax.running.results import Results
from epf_jax.running.run import warn_of_no_estimate

# A colour and a dash each: methods that agree lie on each other, and all of them are to be seen.
_LINES = (
    ("#1f5fa8", "-"),
    ("#d1662a", (0, (6, 3))),
    ("#2a8f5a", (0, (2, 2))),
    ("#8a4fb0", (0, (8, 2, 2, 2))),
    ("#c9a227", (0, (4, 6))),
    ("#c43c39", (0, (1, 3))),
)


def figures(
    results: Results, series: Series, smoothed: Smoothed | None = None, ahead: Forecast | None = None
) -> list[Figure]:
    """The pictures of one run."""
    found = [
        Figure(
            "diagnostics",
            "Effective sample size before resampling, acceptance of theta's moves, and the one-step predictive "
            "log-density of each observation.",
            lambda: plot_diagnostics(results, series),
        ),
        Figure(
            "states",
            "The states, filtered, and the observations.",
            lambda: plot_states(results, series, on_state=False),
        ),
    ]
    if results.diagnostics is not None:
        predicted = (
            "Each observation in the band that was predicted for it one step ahead; the share of that prediction below "
            "it (PIT), as a histogram, which is flat where all is well, and over time."
        )
        found.append(Figure("predictive", predicted, lambda: plot_predictive(results, series)))
    if smoothed is not None:
        caption = "The states in hindsight, given all observations, and the means that the filter had at the time."
        found.append(
            Figure("smoothed", caption, lambda: plot_smoothed(smoothed, series, results=results, on_state=False))
        )
    if ahead is not None:
        caption = "The observations to come: predictive mean and bands, after the last ones that were seen."
        found.append(Figure("forecast", caption, lambda: plot_forecast(ahead, series)))
    if scalars(results.theta.mean, 1):
        caption = "What is known of each parameter after t observations: posterior mean and 90% band."
        found.insert(0, Figure("theta", caption, lambda: plot_theta(results, series)))
    return found


def comparison(found: Mapping[str, Results], series: Series) -> list[Figure]:
    """The pictures of several methods on the same data."""
    reference = _reference(found)
    evidence = f"Log-evidence of each method less that of {reference}, over time: one that predicts better rises."
    if reference == EXACT_INSIDE:
        evidence += " Its likelihoods are exact, and what departs from it by more than chance is off."
    pictures = [Figure("compare-evidence", evidence, lambda: _evidence(found, series))]
    names = list(dict.fromkeys(name for results in found.values() for name in scalars(results.theta.mean, 1)))
    if names:
        caption = "Posterior of each parameter over time: mean, and the ends of its 90% band (thin)."
        pictures.insert(0, Figure("compare-theta", caption, lambda: _thetas(found, series, names)))
    return pictures


@contextlib.contextmanager
def told_of(sentences: list[str]) -> Iterator[None]:
    """Adds what is warned of meanwhile to these sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield
    sentences += [str(warning.message) for warning in caught if warning.category is RuntimeWarning]


def findings(filter_: Filter, results: Results) -> list[str]:
    """What went wrong in a run, in sentences."""
    found: list[str] = []
    with told_of(found):
        warn_of_no_estimate(filter_, 0, results.final.t)
    return found + [f"{each.message} {each.advice}" for each in results.diagnose()]


def _thetas(found: Mapping[str, Results], series: Series, names: list[str]) -> Any:
    figure, axes = column(len(names), 3.2)
    of = shown(next(iter(found.values())), series)
    for ax, name in zip(axes, names, strict=True):
        for (colour, dash), (method, results) in zip(cycle(_LINES), found.items(), strict=False):
            mean = scalars(results.theta.mean, 1)
            if name in mean:
                ax.plot(of.t, mean[name], color=colour, linestyle=dash, linewidth=2.0, label=method)
                for i in (0, -1):  # lines, since bands would lie on each other
                    ends = scalars(_level(results.theta.quantiles, i), 1)[name]
                    label = None if i else f"{method}, 90% band"
                    ax.plot(of.t, ends, color=colour, linestyle=dash, linewidth=0.8, label=label)
        ax.set_ylabel(name)
        finish(ax)
    legend(axes[0])
    return finished(figure, axes, of.along, None)


def _reference(found: Mapping[str, Results]) -> str:
    """The method that others are compared with: that with exact likelihoods, or the first."""
    return EXACT_INSIDE if EXACT_INSIDE in found else next(iter(found))


def _evidence(found: Mapping[str, Results], series: Series) -> Any:
    figure, (ax,) = column(1)
    name = _reference(found)
    of, first = shown(found[name], series), np.asarray(found[name].log_evidence)
    for (colour, dash), (method, results) in zip(cycle(_LINES), found.items(), strict=False):
        with np.errstate(invalid="ignore"):  # no difference of two evidences of zero
            less = np.asarray(results.log_evidence) - first
        ax.plot(of.t, less, color=colour, linestyle=dash, label=method)
    ax.set_ylabel(f"log-evidence\nminus that of {name}")
    finish(ax)
    legend(ax)
    return finished(figure, [ax], of.along, None)


def _level(quantiles: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[..., i], quantiles)
