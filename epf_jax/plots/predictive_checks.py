"""Checks as pictures: were the observations predicted well, and can the statistic be trusted?"""

from typing import Any

import numpy as np

from epf_jax.plots.figures import (
    FILTER,
    MOST_PANELS,
    check_levels_kept,
    check_recorded,
    column,
    curves,
    draw_data,
    draw_fan,
    finish,
    finished,
    focus,
    legend,
    pyplot,
    shown,
)
from epf_jax.plots.over_time import draw_descent
from epf_jax.running.records import coordinate_names
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


def plot_health(results: Results, y: Any = None, *, title: str | None = None) -> Any:
    """A figure of the health of the statistic and of the particles over time.

    The panels: the share of theta's posterior at the edge of the statistic's box; what a Taylor statistic has left out
    of the log-density, or the noise between the nodes of a node filter (not for other filters); how many ancestors the
    particles have.

    Args:
        results: a run with `diagnostics=True`.
        y: the data; if they come from `epf.from_table`, their time stamps label the axis.
        title: of the figure.
    """
    check_one_run(results, "plot_health")
    of, recorded = shown(results, y), check_recorded(results, "plot_health")
    has_nodes, left_out = np.any(recorded.roughness), np.cumsum(np.asarray(recorded.remainder))
    figure, axes = column(3 if has_nodes or np.any(left_out) else 2, 2.2)
    colours = pyplot().get_cmap("viridis")(np.linspace(0.1, 0.8, recorded.edge.shape[-1]))
    for name, share, color in zip(coordinate_names(results), np.asarray(recorded.edge).T, colours, strict=True):
        axes[0].plot(of.t, share, color=color, linewidth=1.2, label=name)
    axes[0].set_ylim(-0.002, max(0.05, 1.1 * float(np.max(recorded.edge, initial=0.0))))
    axes[0].set_ylabel("posterior share\nat the box's edge")
    if recorded.edge.shape[-1]:
        legend(axes[0])
    if len(axes) == 3:
        axes[1].plot(of.t, recorded.roughness if has_nodes else left_out, color=FILTER, linewidth=1.4)
        axes[1].axhline(0.0, color="#555555", linewidth=0.8)
        axes[1].set_ylabel(f"{'noise between the nodes' if has_nodes else 'Taylor remainder so far'}\n(log-density)")
    draw_descent(axes[-1], of.t, results)
    for ax in axes:
        finish(ax)
    return finished(figure, axes, of.along, title)
