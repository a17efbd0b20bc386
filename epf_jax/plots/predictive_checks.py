"""The predictive check as a picture: were the observations predicted well?"""

from typing import Any

import numpy as np

from epf_jax.plots.figures import (
    FILTER,
    MOST_PANELS,
    check_levels_kept,
    check_recorded,
    curves,
    draw_data,
    draw_fan,
    finish,
    focus,
    legend,
    pyplot,
    shown,
)
from epf_jax.running.results import Results, check_one_run


def plot_predictive(results: Results, y: Any, *, title: str | None = None) -> Any:
    """A figure of the one-step-ahead predictive check: the data in their predictive bands, and their PIT.

    The PIT of an observation is the share of its predictive distribution below it. If model and filter are right, its
    histogram is flat (the grey band holds nine bars in ten) and it shows no pattern over time. A hump says that
    predictions were too wide, a U that they were too narrow, a slope that they were biased.

    Args:
        results: a run with `diagnostics=True`.
        y: the observations, an array or what `epf.from_table` gave, whose names and stamps are then shown.
        title: of the figure.

    Returns:
        The matplotlib figure, a row of three panels for each component of y.
    """
    check_one_run(results, "plot_predictive")
    recorded = check_recorded(results, "plot_predictive")
    check_levels_kept(results)
    of, predicted = shown(results, y), curves(recorded.y, "y")[:MOST_PANELS]
    if of.y is None or of.y.size != recorded.pit.size:  # a table's one column may have an axis of its own
        got = "none" if of.y is None else f"shape {of.y.shape}"
        raise ValueError(f"y: expected the observations of the run, of shape {recorded.pit.shape}, got {got}.")
    pit = np.asarray(recorded.pit).reshape(len(of.t), -1)
    num = len(predicted)
    figure, axes = pyplot().subplots(
        num, 3, figsize=(13, 0.8 + 2.8 * num), width_ratios=(2.2, 1, 1.3), squeeze=False, layout="constrained"
    )
    for row, curve, name, values, u in zip(axes, predicted, of.names, of.columns.T, pit.T, strict=False):
        draw_predicted(row[0], of.t, results, curve._replace(name=name), values)
        draw_pit(row[1], u)
        row[2].plot(of.t, u, ".", color=FILTER, markersize=3, alpha=0.6)
        row[2].set(ylim=(0, 1), ylabel="PIT")
        for ax in row:
            finish(ax)
    legend(axes[0, 0])
    axes[-1, 0].set_xlabel(of.along)
    axes[-1, 1].set_xlabel("PIT")
    axes[-1, 2].set_xlabel(of.along)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def draw_predicted(ax: Any, t: np.ndarray, results: Results, curve: Any, y: np.ndarray | None) -> None:
    """The one-step-ahead predictive distribution of one component of y on one panel, with the data."""
    draw_fan(ax, t, curve, results.levels, label="predicted")
    if y is not None:
        draw_data(ax, t, y)
    focus(ax, curve, y)
    ax.set_ylabel(curve.name)


def draw_pit(ax: Any, u: np.ndarray) -> None:
    """The histogram of the PIT of one component, with the band that holds nine bars in ten of a right model's."""
    u = u[~np.isnan(u)]
    bins = 20 if len(u) >= 400 else 10
    expected, sd = len(u) / bins, np.sqrt(len(u) / bins * (1 - 1 / bins))
    low, high = expected - 1.645 * sd, expected + 1.645 * sd
    ax.hist(u, bins=bins, range=(0.0, 1.0), color="#86a8d1", edgecolor="white", linewidth=0.5)
    ax.axhspan(low, high, color="#dddddd", linewidth=0, zorder=0)  # under the bars, and its edges over them
    for height, style in ((low, ":"), (expected, "-"), (high, ":")):
        ax.axhline(height, color="#555555", linewidth=1.0, linestyle=style)
    ax.set_title("flat if the model is right (dotted: 90%)", loc="left", fontsize=8)
    ax.set_ylabel("observations")
