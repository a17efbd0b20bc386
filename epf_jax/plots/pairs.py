"""Parameters against each other, at chosen times."""

from typing import Any

import jax
import numpy as np

from epf_jax.core.naming import component_names, named_leaves
from epf_jax.offline.chains import Chains
from epf_jax.plots.figures import TRUE, TRUTH, finish, pyplot, true_values
from epf_jax.running.records import times
from epf_jax.running.results import Results, check_one_run

_DOTS = 400  # drawn for each time; more hide each other


def plot_pairs(
    results: Results | Chains,
    at: Any = None,
    *,
    truth: Any = None,
    title: str | None = None,
    truth_label: str = TRUE,
    seed: int = 0,
) -> Any:
    """A figure of every two parameters against each other, and each alone, at chosen times.

    Args:
        results: a run, or chains. Times before the last need a run with `history=True`.
        at: time indices t; the last by default.
        truth: the parameters that made the data, with the prior's structure.
        title: of the figure.
        truth_label: the name of `truth` in the legend, if it is another estimate.
        seed: the seed for picking the particles, by weight, that are drawn as dots.

    Returns:
        The matplotlib figure.
    """
    if not isinstance(results, Chains):
        check_one_run(results, "plot_pairs")
    chosen = _chosen(results, at)
    names = [
        each
        for name, leaf in named_leaves(results.theta.mean, "theta")
        for each in component_names(name, leaf.shape[1:])
    ]
    if not names:
        raise ValueError("results: the model's prior is empty, so there are no parameters to plot; see plot_states.")
    truths = true_values(truth, results.theta.mean)
    plt, p = pyplot(), len(names)
    figure, axes = plt.subplots(p, p, figsize=(1.2 + 2.5 * p, 0.8 + 2.4 * p), squeeze=False)
    colours = plt.get_cmap("viridis")(np.linspace(0.05, 0.8, len(chosen)))
    rng = np.random.default_rng(seed)
    for color, t in zip(colours, chosen, strict=True):
        draws = _draws(results, t, rng)
        for i in range(p):
            axes[i, i].hist(draws[:, i], bins=30, density=True, color=color, alpha=0.45, label=f"t = {t}")
            for j in range(i):
                dots = draws[:_DOTS]
                axes[i, j].scatter(dots[:, j], dots[:, i], s=7, color=color, alpha=0.4, linewidths=0)
    _finish_grid(figure, axes, names, truths, truth_label)
    if title:
        figure.suptitle(title, x=0.02, ha="left", fontsize=11)
    figure.tight_layout()
    return figure


def _finish_grid(figure: Any, axes: Any, names: list[str], truths: list[Any], truth_label: str) -> None:
    """Write names along the outside, draw true values, and clear the panels above the diagonal."""
    p = len(names)
    for i in range(p):
        for j in range(p):
            ax = axes[i, j]
            if j > i:
                ax.set_axis_off()
                continue
            finish(ax)
            if truths[j] is not None:
                ax.axvline(truths[j], color=TRUTH, linewidth=1.0, linestyle=":", label=truth_label)
                if i != j:
                    ax.axhline(truths[i], color=TRUTH, linewidth=1.0, linestyle=":")
            ax.locator_params(axis="x", nbins=4)  # more run into each other
            ax.tick_params(labelbottom=i == p - 1, labelleft=j == 0 and i > 0, left=i != j)
            if i == p - 1:
                ax.set_xlabel(names[j])
            if j == 0:
                ax.set_ylabel(names[i] if i > 0 else "density")
            if i == j:
                ax.set_yticks([])
            else:
                ax.sharex(axes[j, j])
    handles, labels = axes[0, 0].get_legend_handles_labels()
    if p > 1:
        figure.legend(handles, labels, loc="upper right", frameon=False, fontsize=9)
    else:
        axes[0, 0].legend(frameon=False, fontsize=8)


def _chosen(results: Results | Chains, at: Any) -> list[int]:
    last = int(results.final.t)
    chosen = [last] if at is None else [int(each) for each in np.atleast_1d(np.asarray(at))]
    known, hint = np.array([last]), f"the last time, {last}, alone"
    if isinstance(results, Results):
        hint += "; run it with history=True to look at others"
        if results.history is not None:
            known = times(results)
            hint = f"times {known[0]} to {known[-1]} of the run"
    for each in chosen:
        if each not in known:
            raise ValueError(f"at: the particles are kept for {hint}; got {each}.")
    return chosen


def _draws(results: Results | Chains, t: int, rng: np.random.Generator) -> np.ndarray:
    """Equally weighted draws of all parameters at time t, a column each."""
    theta, log_weights = results.final.theta, results.final.log_weights
    if isinstance(results, Results) and results.history is not None:
        row = int(np.searchsorted(times(results), t))
        theta, log_weights = jax.tree.map(lambda a: a[row], (results.history.theta, results.history.log_weights))
    w = np.exp(np.asarray(log_weights, float))
    flat = np.concatenate([np.asarray(leaf).reshape(len(w), -1) for leaf in jax.tree.leaves(theta)], axis=1)
    return flat[rng.choice(len(w), size=len(w), p=w / w.sum())]
