"""What a report shows of a run, and says of it: the one place where figures and diagnoses plug in.

A figure that `plots` gains is one more `Figure` in `figures` or `comparison`; a diagnosis in words one more sentence
in `findings`.
"""

import warnings
from collections.abc import Mapping
from itertools import cycle
from typing import Any

import jax
import numpy as np

from epf_jax.data import Series
from epf_jax.page import Figure
from epf_jax.plots import draw_posterior, finish, plot_diagnostics, plot_states, plot_theta
from epf_jax.results import Results, scalars
from epf_jax.run import warn_of_trouble

_WARNED_OF = ("zero weights", "density of theta")  # by `warn_of_trouble`, with likely causes
_COLOURS = ("#1f5fa8", "#d1662a", "#2a8f5a", "#8a4fb0", "#c9a227", "#c43c39")


def figures(results: Results, series: Series) -> list[Figure]:
    """The pictures of one run."""
    found = [
        Figure(
            "diagnostics",
            "Effective sample size before resampling, acceptance of theta's moves, and the one-step predictive "
            "log-density of each observation.",
            lambda: plot_diagnostics(results),
        ),
        Figure(
            "states",
            "The states, filtered, and the observations.",
            lambda: plot_states(results, series.y, on_state=False),
        ),
    ]
    if scalars(results.theta.mean, 1):
        caption = "What is known of each parameter after t observations: posterior mean and 90% band."
        found.insert(0, Figure("theta", caption, lambda: plot_theta(results)))
    return found


def comparison(found: Mapping[str, Results]) -> list[Figure]:
    """The pictures of several methods on the same data."""
    evidence = "Log-evidence of each method less that of the first, over time: a method that predicts better rises."
    pictures = [Figure("compare-evidence", evidence, lambda: _evidence(found))]
    names = list(dict.fromkeys(name for results in found.values() for name in scalars(results.theta.mean, 1)))
    if names:
        caption = "Posterior of each parameter over time: mean and 90% band."
        pictures.insert(0, Figure("compare-theta", caption, lambda: _thetas(found, names)))
    return pictures


def findings(results: Results) -> list[str]:
    """What went wrong in a run, in sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_trouble(results)
    told = [str(warning.message) for warning in caught]
    return told + [f"{f.message} Try: {f.advice}" for f in results.diagnose() if f.kind not in _WARNED_OF]


def _thetas(found: Mapping[str, Results], names: list[str]) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(names), 1, figsize=(9, 1 + 3.2 * len(names)), sharex=True, squeeze=False)
    for ax, name in zip(axes[:, 0], names, strict=True):
        for colour, (method, results) in zip(cycle(_COLOURS), found.items(), strict=False):
            mean = scalars(results.theta.mean, 1)
            low, high = (scalars(_level(results.theta.quantiles, i), 1) for i in (0, -1))
            if name in mean:
                draw_posterior(ax, mean[name], low[name], high[name], label=method, color=colour)
        ax.set_ylabel(name)
        finish(ax)
    axes[0, 0].legend(loc="best", frameon=False, fontsize=8, ncols=2)
    axes[-1, 0].set_xlabel("observations t")
    figure.tight_layout()
    return figure


def _evidence(found: Mapping[str, Results]) -> Any:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(9, 3.6))
    first = np.asarray(next(iter(found.values())).log_evidence)
    for colour, (method, results) in zip(cycle(_COLOURS), found.items(), strict=False):
        with np.errstate(invalid="ignore"):  # no difference of two evidences of zero
            less = np.asarray(results.log_evidence) - first
        ax.plot(np.arange(1, len(first) + 1), less, color=colour, label=method)
    ax.set_xlabel("observations t")
    ax.set_ylabel("log-evidence less\nthat of the first")
    ax.legend(loc="best", frameon=False, fontsize=9)
    finish(ax)
    figure.tight_layout()
    return figure


def _level(quantiles: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[..., i], quantiles)
