"""A run on one page."""

from typing import Any

import numpy as np

from epf_jax.plots.figures import (
    FILTER,
    MOST_PANELS,
    TRUE,
    Curve,
    Shown,
    check_levels_kept,
    curves,
    draw_fan,
    draw_truth,
    finish,
    legend,
    measured,
    pyplot,
    shown,
    true_values,
)
from epf_jax.plots.over_time import draw_descent, draw_state
from epf_jax.plots.predictive_checks import draw_pit, draw_predicted
from epf_jax.running.results import Results, check_one_run


def plot_overview(
    results: Results, y: Any = None, *, truth: Any = None, title: str | None = None, truth_label: str = TRUE
) -> Any:
    """A run on one page: parameters to the left; the state, the data and the filter's health to the right.

    Args:
        results: a run that kept its quantiles. With `diagnostics=True`, the predictive check and the descent of
            particles are shown, too.
        y: the observations, an array or what `epf.from_table` returned, with its names and stamps. They are drawn in
            their one-step-ahead predictive band if it was recorded, or else on the state if they look like it plus
            noise.
        truth: the parameters that made the data, with the prior's structure.
        title: of the figure.
        truth_label: the name of `truth` in the legend, if it is another estimate.

    Returns:
        The matplotlib figure.
    """
    check_one_run(results, "plot_overview")
    check_levels_kept(results)
    parameters = list(zip(curves(results.theta, "theta"), true_values(truth, results.theta.mean), strict=True))
    of = shown(results, y)
    figure = pyplot().figure(figsize=(13, 7.5 if len(parameters) < 5 else 1.6 * len(parameters)), layout="constrained")
    left, right = figure.subfigures(1, 2)
    if not parameters:
        left.text(0.5, 0.5, "theta is known", ha="center", color=FILTER)
    else:
        axes = left.subplots(min(len(parameters), MOST_PANELS), 1, sharex=True, squeeze=False)[:, 0]
        _draw_parameters(axes, of, results, parameters, truth_label)
    _draw_right(right, of, results)
    if title:
        figure.suptitle(title, x=0.02, ha="left", fontsize=12)
    return figure


def _draw_parameters(axes: Any, of: Shown, results: Results, parameters: Any, truth_label: str) -> None:
    for ax, (curve, value) in zip(axes, parameters, strict=False):
        draw_fan(ax, of.t, curve, results.levels)
        if value is not None:
            draw_truth(ax, value, truth_label)
        ax.set_ylabel(curve.name)
        finish(ax)
    axes[-1].set_xlabel(of.along)
    if len(parameters) > len(axes):
        axes[0].set_title(f"the first {len(axes)} of {len(parameters)} parameters", loc="left", fontsize=10)
    legend(axes[0])


def _first(found: list[Curve]) -> Curve:
    """The first of several curves, with a note that there are more."""
    return found[0] if len(found) == 1 else found[0]._replace(name=f"{found[0].name}\n(first of {len(found)})")


def _draw_right(figure: Any, of: Shown, results: Results) -> None:
    """Draw state, data, effective sample size, and the recorded diagnostics."""
    recorded = results.diagnostics
    state, num = _first(curves(results.x, "x")), results.final.log_weights.shape[-1]
    first = None if of.y is None else of.columns[:, 0]
    on_state = of.y is not None and measured(of.y, results.x.mean)
    if recorded is None:
        axes = list(figure.subplots(2, 1, sharex=True))
        draw_state(axes[0], of.t, results, state, *((first, of.names[0]) if on_state else ()))
    else:
        grid = figure.add_gridspec(4, 2)
        axes = [figure.add_subplot(grid[i, :]) for i in range(3)]
        axes += [figure.add_subplot(grid[3, 0]), figure.add_subplot(grid[3, 1])]
        predicted = curves(recorded.y, "y")
        called = [curve._replace(name=name) for curve, name in zip(predicted, of.names, strict=False)]
        draw_predicted(axes[0], of.t, results, _first(called or predicted), first)
        draw_state(axes[1], of.t, results, state)
        draw_descent(axes[3], of.t, results, brief=True)
        for ax in axes[:2]:
            ax.tick_params(labelbottom=False)
        axes[3].set_xlabel(of.along)
        draw_pit(axes[4], np.asarray(recorded.pit).reshape(len(of.t), -1)[:, 0])
        axes[4].set_xlabel("share of its prediction below y (PIT)")
    ess = axes[1 if recorded is None else 2]
    ess.plot(of.t, np.asarray(results.ess), color=FILTER, linewidth=1.0)
    ess.set(ylim=(0, 1.02 * num), ylabel=f"ESS (of {num})", xlabel=of.along)
    for ax in axes:
        finish(ax)
    legend(axes[0])
