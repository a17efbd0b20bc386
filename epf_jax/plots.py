"""Pictures of a run. Needs matplotlib: `pip install epf_jax[plots]`."""

from typing import Any

import jax
import numpy as np

from epf_jax.exact import GridPosterior
from epf_jax.results import Results, log_scores

_FILTER, _EXACT, _TRUTH = "#1f5fa8", "#d1662a", "#333333"


def plot_theta(
    results: Results,
    *,
    exact: GridPosterior | None = None,
    truth: Any = None,
    title: str | None = None,
    labels: tuple[str, str] = ("filter", "exact"),
) -> Any:
    """A figure of every parameter's posterior over time: mean and 90% band, with the exact ones and the truth if given.

    Args:
        results: a run that kept its quantiles.
        exact: the exact posterior at the same times.
        truth: the parameters that made the data, with the prior's structure.
        title: of the figure.
        labels: how the legend names the filter and the exact posterior.

    Returns:
        The matplotlib figure.
    """
    plt = _pyplot()
    if results.levels.shape[-1] < 2:
        raise ValueError("results: the run kept no quantiles; run it with levels=(0.05, 0.95) to plot its band.")
    series = _scalar_series(results.theta)
    expected: Any = jax.tree.structure(results.theta.mean)
    if truth is not None and jax.tree.structure(truth) != expected:
        raise ValueError(f"truth: expected the prior's structure, {expected}, got {truth!r}.")
    truths = [] if truth is None else [float(v) for leaf in jax.tree.leaves(truth) for v in np.ravel(leaf)]
    references: list[Any] = [None] * len(series) if exact is None else _exact_series(exact, results.levels)
    figure, axes = plt.subplots(len(series), 1, figsize=(9, 1 + 3.2 * len(series)), sharex=True, squeeze=False)
    band = _coverage(results)
    for i, (ax, (name, mean, low, high)) in enumerate(zip(axes[:, 0], series, strict=True)):
        draw_posterior(ax, mean, low, high, label=labels[0], band=band)
        if references[i] is not None:
            draw_reference(ax, *references[i], label=f"{labels[1]}: mean, {band} band")
        if truths:
            draw_truth(ax, truths[i])
        ax.set_ylabel(name)
        finish(ax)
    axes[0, 0].legend(loc="best", frameon=False, fontsize=9)
    axes[-1, 0].set_xlabel("observations t")
    if title:
        axes[0, 0].set_title(title, loc="left", fontsize=11)
    figure.tight_layout()
    return figure


def draw_posterior(
    ax: Any, mean: Any, low: Any, high: Any, *, label: str, band: str = "90%", color: str = _FILTER
) -> None:
    """A filter's posterior over time on one panel: its mean and its band."""
    t = np.arange(1, len(mean) + 1)
    ax.fill_between(t, low, high, color=color, alpha=0.22, linewidth=0, label=f"{label}: {band} band")
    ax.plot(t, mean, color=color, linewidth=2.2, label=f"{label}: mean")


def draw_reference(ax: Any, mean: Any, low: Any, high: Any, *, label: str) -> None:
    """The exact posterior over time on one panel, dashed: its mean and the ends of its band."""
    t = np.arange(1, len(mean) + 1)
    for curve, width in ((mean, 1.5), (low, 1.0), (high, 1.0)):
        ax.plot(t, curve, color=_EXACT, linewidth=width, linestyle=(0, (4, 2)), label=label if curve is mean else None)


def draw_truth(ax: Any, value: float) -> None:
    """The value that made the data."""
    ax.axhline(value, color=_TRUTH, linewidth=1.0, linestyle=":", label="value that made the data")


def finish(ax: Any) -> None:
    """What every panel over time shares."""
    ax.margins(x=0)
    ax.spines[["top", "right"]].set_visible(False)


def plot_diagnostics(results: Results, *, title: str | None = None) -> Any:
    """A figure of the effective sample size, theta's acceptance rate and log p(y_t | y_1:t-1) over time."""
    plt = _pyplot()
    num_particles = results.final.log_weights.shape[-1]
    panels: tuple[tuple[str, Any, Any], ...] = (
        (f"effective sample size\n(of {num_particles})", results.ess, (0, num_particles)),
        ("acceptance of\ntheta's moves", results.acceptance, (0, 1.02)),
        ("log p(y_t | y_1:t-1)", log_scores(results), None),
    )
    figure, axes = plt.subplots(len(panels), 1, figsize=(9, 6.5), sharex=True)
    for ax, (label, values, limits) in zip(axes, panels, strict=True):
        ax.plot(np.arange(1, len(values) + 1), np.asarray(values), color=_FILTER, linewidth=1.0)
        ax.set_ylim(limits)
        ax.set_ylabel(label)
        finish(ax)
    return _finished(figure, axes, "observations t", title)


def plot_fit(fitted: Any, *, truth: Any = None, title: str | None = None) -> Any:
    """A figure of `epf.fit`'s log-evidence and hyper-parameters over its steps.

    A leaf of more than eight numbers, such as the weights of a network, is shown by how far it has moved.

    Args:
        fitted: what `epf.fit` returned.
        truth: the hyper-parameters that made the data, like `fitted.hyper`.
        title: of the figure.
    """
    plt = _pyplot()
    named = jax.tree_util.tree_leaves_with_path(fitted.trace)
    found = jax.tree.leaves(fitted.hyper)
    expected: Any = jax.tree.structure(fitted.hyper)
    if truth is not None and jax.tree.structure(truth) != expected:
        raise ValueError(f"truth: expected the structure of hyper, {expected}, got {truth!r}.")
    truths = [None] * len(found) if truth is None else jax.tree.leaves(truth)
    figure, axes = plt.subplots(1 + len(named), 1, figsize=(9, 1 + 1.9 * (1 + len(named))), sharex=True)
    axes[0].plot(fitted.log_evidence, color=_FILTER, linewidth=1.0)
    axes[0].set_ylabel("log-evidence")
    for ax, (path, trace), last, true in zip(axes[1:], named, found, truths, strict=True):
        name = ".".join(str(getattr(p, "key", getattr(p, "idx", p))) for p in path) or "hyper"
        flat = np.asarray(trace).reshape(len(trace), -1)
        if flat.shape[1] > 8:
            ax.plot(np.linalg.norm(flat - flat[0], axis=1), color=_FILTER)
            ax.set_ylabel(f"{name}:\ndistance moved")
            continue
        ax.plot(flat, color=_FILTER, linewidth=1.5)
        ends = np.ravel(np.asarray(last))
        ax.hlines(ends, 0, len(flat) - 1, color=_EXACT, linewidth=1.2, label="estimate: mean of the last steps")
        if true is not None:
            made_by = np.ravel(np.asarray(true))
            ax.hlines(made_by, 0, len(flat) - 1, color=_TRUTH, linestyle=":", label="value that made the data")
        ax.set_ylabel(name)
    handles = {label: h for ax in axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if handles:
        axes[0].legend(handles.values(), handles.keys(), loc="lower right", frameon=False, fontsize=9)
    for ax in axes:
        finish(ax)
    return _finished(figure, axes, "steps of the optimizer", title)


def _finished(figure: Any, axes: Any, along: str, title: str | None) -> Any:
    """The figure of panels below each other, with what is along their axis and its title."""
    axes[-1].set_xlabel(along)
    if title:
        axes[0].set_title(title, loc="left", fontsize=11)
    figure.align_ylabels(axes)
    figure.tight_layout()
    return figure


def _pyplot():
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'epf_jax[plots]'.") from error
    return plt


def _scalar_series(summary):
    """(name, mean, low, high) over time for every scalar component of theta."""
    named = jax.tree_util.tree_leaves_with_path(summary.mean)
    found = []
    for (path, mean), bands in zip(named, jax.tree.leaves(summary.quantiles), strict=True):
        name = "".join(str(getattr(p, "key", getattr(p, "idx", p))) for p in path) or "theta"
        mean, bands = np.asarray(mean), np.asarray(bands)
        flat, edges = mean.reshape(len(mean), -1), bands.reshape(len(mean), -1, bands.shape[-1])
        for j in range(flat.shape[1]):
            label = name if mean.ndim == 1 else f"{name}[{j}]"
            found.append((label, flat[:, j], edges[:, j, 0], edges[:, j, -1]))
    return found


def _exact_series(exact: GridPosterior, levels):
    edges = jax.tree.leaves(exact.quantiles((float(levels[0]), float(levels[-1]))))
    return [
        (np.asarray(m), np.asarray(q)[:, 0], np.asarray(q)[:, 1])
        for m, q in zip(jax.tree.leaves(exact.mean), edges, strict=True)
    ]


def _coverage(results: Results) -> str:
    return f"{float(results.levels[-1] - results.levels[0]):.0%}"
