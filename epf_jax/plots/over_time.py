"""Pictures over time: parameters, states with the data, and the diagnostics of a run."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from epf_jax.core.checks import brief as in_brief
from epf_jax.core.naming import component_names
from epf_jax.exact import GridPosterior
from epf_jax.offline.smoothing import Smoothed
from epf_jax.plots.figures import (
    EXACT,
    FILTER,
    MOST_PANELS,
    Shown,
    check_levels_kept,
    column,
    curves,
    draw_data,
    draw_fan,
    draw_reference,
    draw_truth,
    finish,
    finished,
    focus,
    legend,
    measured,
    shown,
    shown_at,
    true_values,
)
from epf_jax.running.records import log_scores
from epf_jax.running.results import Results, check_one_run


def plot_theta(
    results: Results,
    y: Any = None,
    *,
    exact: GridPosterior | None = None,
    truth: Any = None,
    title: str | None = None,
    labels: tuple[str, str] = ("filter", "exact"),
) -> Any:
    """A figure of every parameter's posterior over time: mean and bands, with the exact ones and the truth if given.

    Args:
        results: a run that kept its quantiles.
        y: the data; if they come from `epf.from_table`, their time stamps label the axis.
        exact: the exact posterior at the same times.
        truth: the parameters that made the data, with the prior's structure.
        title: of the figure.
        labels: the names of the filter and the exact posterior in the legend.

    Returns:
        The matplotlib figure.
    """
    check_one_run(results, "plot_theta")
    check_levels_kept(results)
    found = curves(results.theta, "theta")
    if not found:
        raise ValueError("results: the model's prior is empty, so there are no parameters to plot; see plot_states.")
    truths, of = true_values(truth, results.theta.mean), shown(results, y)
    references: list[Any] = [None] * len(found) if exact is None else _exact_series(exact, results.levels)
    figure, axes = column(len(found), 3.2 if len(found) < 3 else 2.2)
    for ax, curve, reference, value in zip(axes, found, references, truths, strict=True):
        draw_fan(ax, of.t, curve, results.levels, label=labels[0])
        if reference is not None:
            draw_reference(ax, *reference, label=f"{labels[1]}: mean, {_coverage(results)} band", t=of.t)
        if value is not None:
            draw_truth(ax, value)
        ax.set_ylabel(curve.name)
        finish(ax)
    legend(axes[0])
    return finished(figure, axes, of.along, title)


def plot_states(
    results: Results,
    y: Any = None,
    *,
    names: Sequence[str] = (),
    on_state: bool | None = None,
    title: str | None = None,
) -> Any:
    """A figure of the filtered states over time, p(x_t | y_1:t), with the data if given.

    Args:
        results: a run that kept its quantiles.
        y: the observations, an array or what `epf.from_table` gave, whose names and stamps are then shown.
        names: of the state's numbers, such as `model.state_names`; only those are then drawn.
        on_state: whether observations shaped like the state are drawn on the states' panels, rather than on panels of
            their own, above. By default, if they look like the states plus noise.
        title: of the figure.

    Returns:
        The matplotlib figure.
    """
    check_one_run(results, "plot_states")
    check_levels_kept(results)
    return _states(results, shown(results, y), on_state, title, "filter", names)


def plot_smoothed(
    smoothed: Smoothed,
    y: Any = None,
    *,
    results: Results | None = None,
    on_state: bool | None = None,
    title: str | None = None,
) -> Any:
    """A figure of the states in hindsight, p(x_t | y_1:T), with the data, and what was known at the time, if given.

    Args:
        smoothed: what `epf.smooth` returned.
        y: the observations, an array or what `epf.from_table` gave, whose names and stamps are then shown.
        results: the run; its filtered means are drawn as a line.
        on_state: whether observations shaped like the state are drawn on the states' panels; see `plot_states`.
        title: of the figure.

    Returns:
        The matplotlib figure.
    """
    check_levels_kept(smoothed)
    before = None
    if results is not None:
        check_one_run(results, "plot_smoothed")
        before = [curve.mean for curve in curves(results.x, "x")]
        if len(results.ess) > len(smoothed.t) or results.x.mean.shape[1:] != smoothed.x.mean.shape[1:]:
            raise ValueError(
                f"results: expected the run whose {len(smoothed.t)} observations were smoothed, got {results!r}."
            )
    return _states(smoothed, shown_at(np.asarray(smoothed.t), y), on_state, title, "given all", smoothed.names, before)


def _states(
    found: Any,
    of: Shown,
    on_state: bool | None,
    title: str | None,
    label: str,
    names: Sequence[str],
    before: Any = None,
) -> Any:
    """The panels of both figures: the data above, unless they are on the states' panels; then the state."""
    states = curves(found.x, "x", names)[:MOST_PANELS]
    named = list(zip(of.names, of.columns.T, strict=True))[:MOST_PANELS]
    shared = of.y is not None and of.y.shape[1:] == found.x.mean.shape[1:]
    shared = shared and (measured(of.y, found.x.mean) if on_state is None else on_state)
    above = [] if shared else named
    figure, axes = column(len(above) + len(states), 2.4)
    for ax, (name, values) in zip(axes, above, strict=False):
        draw_data(ax, of.t, values)
        ax.set_ylabel(name)
    for j, (ax, curve) in enumerate(zip(axes[len(above) :], states, strict=True)):
        name, values = named[j] if shared else ("", None)
        draw_state(ax, of.t, found, curve, values, name if len(states) == 1 else "", label=label)
        if shared and len(states) > 1 and name not in component_names("y", found.x.mean.shape[1:]):
            ax.set_ylabel(f"{curve.name}, {name}")  # the legend of the first panel is that of all
        if before is not None:
            ax.plot(of.t[-len(before[j]) :], before[j], color=EXACT, linewidth=1.0, label="filter: mean")
    for ax in axes:
        finish(ax)
    legend(axes[len(above)])
    return finished(figure, axes, of.along, title)


def draw_state(
    ax: Any, t: np.ndarray, found: Any, curve: Any, y: Any = None, name: str = "y", *, label: str = "filter"
) -> None:
    """One component of the state on one panel, with the data if they are given."""
    draw_fan(ax, t, curve, found.levels, label=label)
    if y is not None:
        draw_data(ax, t, y, f"{name}, observed" if name else "observed")
    focus(ax, curve, y)
    ax.set_ylabel(curve.name)


def plot_diagnostics(results: Results, y: Any = None, *, title: str | None = None) -> Any:
    """A figure of a run's diagnostics: effective sample size, acceptance of theta's moves, evidence, descent.

    The descent of particles needs a run with `history=True` or `diagnostics=True`. With the data y, missing
    observations leave gaps in the evidence, and time stamps of `epf.from_table` label the axis.
    """
    check_one_run(results, "plot_diagnostics")
    num, of = results.final.log_weights.shape[-1], shown(results, y)
    scores = log_scores(results)
    if of.y is not None:
        scores = np.where(np.isnan(of.columns).all(axis=1), np.nan, scores)
    panels: list[tuple[str, Any, Any]] = [
        (f"effective sample size\n(of {num})", results.ess, (0, 1.02 * num)),
        ("acceptance of\ntheta's moves", results.acceptance, (0, 1.02)),
        ("log p(y_t | y_1:t-1)", scores, None),
    ]
    recorded = results.history is not None or results.diagnostics is not None
    figure, axes = column(len(panels) + recorded, 1.9)
    for ax, (label, values, limits) in zip(axes, panels, strict=False):
        values = np.asarray(values)
        alone = "." if np.isnan(values).any() else None  # a value between two gaps makes no line
        ax.plot(of.t, values, color=FILTER, linewidth=1.0, marker=alone, markersize=3)
        ax.set_ylim(limits)
        ax.set_ylabel(label)
    if recorded:
        draw_descent(axes[-1], of.t, results)
    for ax in axes:
        finish(ax)
    return finished(figure, axes, of.along, title)


def draw_descent(ax: Any, t: np.ndarray, results: Results, *, brief: bool = False) -> None:
    """How many particles have descendants: parents of the next generation, founders, ancestors of the last."""
    names = ("parents", "founders (anew at 1)", "ancestors of the last")
    if not brief:
        names = ("parents of each generation", "founders left (counted anew when one is)", f"{names[2]} generation")
    if results.diagnostics is not None:
        parents, founders = (np.asarray(a) for a in (results.diagnostics.num_parents, results.diagnostics.num_founders))
        ax.plot(t, parents, color=FILTER, linewidth=0.8, alpha=0.6, label=names[0])
        ax.plot(t, founders, color=EXACT, linewidth=1.4, label=names[1])
    if results.history is not None:
        counts = results.history.num_distinct_ancestors()
        ax.plot(t, counts, color="#2a8a57", linewidth=1.4, label=names[2])
    ax.set_yscale("log")
    ax.set_ylim(0.8, 1.6 * results.final.log_weights.shape[-1])
    ax.set_ylabel("distinct\nancestors")
    legend(ax, fontsize=7 if brief else 8)


def _exact_series(exact: GridPosterior, levels):
    if not isinstance(exact, GridPosterior):
        raise TypeError(
            f"exact: expected what epf.exact.kalman or epf.exact.quadrature gives, got {in_brief(exact)}. The value "
            "that made the data is truth={...}."
        )
    edges = jax.tree.leaves(exact.quantiles((float(levels[0]), float(levels[-1]))))
    return [
        (np.asarray(m), np.asarray(q)[:, 0], np.asarray(q)[:, 1])
        for m, q in zip(jax.tree.leaves(exact.mean), edges, strict=True)
    ]


def _coverage(results: Results) -> str:
    return f"{float(results.levels[-1] - results.levels[0]):.0%}"
