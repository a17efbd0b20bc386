"""Traces: of Markov chains over theta, with their densities, and of `epf.fit`."""

from typing import Any

import jax
import numpy as np

from epf_jax.core.naming import scalars
from epf_jax.exact import GridPosterior
from epf_jax.offline.chains import Chains
from epf_jax.plots.figures import EXACT, FILTER, TRUTH, draw_truth, finish, finished, pyplot, true_values


def plot_chains(
    chains: Chains, *, exact: GridPosterior | None = None, truth: Any = None, title: str | None = None
) -> Any:
    """A figure of every parameter's trace, chain by chain, and of its posterior density.

    Args:
        chains: what `epf.pmmh` or `epf.particle_gibbs` returned.
        exact: the exact posterior, whose density after the last observation is drawn beside that of the chains.
        truth: the parameters that made the data, with the prior's structure.
        title: of the figure.
    """
    plt = pyplot()
    if not isinstance(chains, Chains):
        raise TypeError(
            f"chains: expected what epf.pmmh or epf.particle_gibbs gave back, got {type(chains).__name__}. A filter's "
            "results are drawn by results.plot()."
        )
    named = scalars(chains.draws, num_axes=2)
    truths = [] if truth is None else true_values(truth, chains.draws)
    sizes = {"figsize": (9, 1 + 2.2 * len(named)), "width_ratios": (3, 1), "sharey": "row", "squeeze": False}
    figure, axes = plt.subplots(len(named), 2, **sizes)
    for i, ((trace, density), (name, draws)) in enumerate(zip(axes, named.items(), strict=True)):
        for of_one_chain in draws:
            trace.plot(of_one_chain, linewidth=0.5, alpha=0.7)
        density.hist(draws.ravel(), bins=50, density=True, orientation="horizontal", color=FILTER, alpha=0.4)
        if exact is not None:
            heights, points = (jax.tree.leaves(tree)[i] for tree in (exact.marginal(), exact.axes))
            density.plot(heights[-1], points, color=EXACT, linewidth=1.5, label="exact")
            density.set_ylim(draws.min(), draws.max())
            density.legend(loc="best", frameon=False, fontsize=9)
        for ax in (trace, density) if truths else ():
            draw_truth(ax, truths[i])
        trace.set_ylabel(name)
        for ax in (trace, density):
            finish(ax)
    axes[-1, 1].set_xlabel("density")
    return finished(figure, axes[:, 0], "draws after warm-up", title)


def plot_fit(fitted: Any, *, truth: Any = None, title: str | None = None) -> Any:
    """A figure of `epf.fit`'s log-evidence and hyper-parameters over its steps.

    A leaf of more than eight numbers, such as the weights of a network, is shown by how far it has moved.

    Args:
        fitted: what `epf.fit` returned.
        truth: the hyper-parameters that made the data, like `fitted.hyper`.
        title: of the figure.
    """
    plt = pyplot()
    named = jax.tree_util.tree_leaves_with_path(fitted.trace)
    found = jax.tree.leaves(fitted.hyper)
    expected: Any = jax.tree.structure(fitted.hyper)
    if truth is not None and jax.tree.structure(truth) != expected:
        raise ValueError(f"truth: expected the structure of hyper, {expected}, got {truth!r}.")
    truths = [None] * len(found) if truth is None else jax.tree.leaves(truth)
    figure, axes = plt.subplots(1 + len(named), 1, figsize=(9, 1 + 1.9 * (1 + len(named))), sharex=True)
    axes[0].plot(fitted.log_evidence, color=FILTER, linewidth=1.0)
    axes[0].set_ylabel("log-evidence")
    for ax, (path, trace), last, true in zip(axes[1:], named, found, truths, strict=True):
        name = ".".join(str(getattr(p, "key", getattr(p, "idx", p))) for p in path) or "hyper"
        flat = np.asarray(trace).reshape(len(trace), -1)
        if flat.shape[1] > 8:
            ax.plot(np.linalg.norm(flat - flat[0], axis=1), color=FILTER)
            ax.set_ylabel(f"{name}:\ndistance moved")
            continue
        ax.plot(flat, color=FILTER, linewidth=1.5)
        ends = np.ravel(np.asarray(last))
        ax.hlines(ends, 0, len(flat) - 1, color=EXACT, linewidth=1.2, label="estimate: mean of the last steps")
        if true is not None:
            made_by = np.ravel(np.asarray(true))
            ax.hlines(made_by, 0, len(flat) - 1, color=TRUTH, linestyle=":", label="value that made the data")
        ax.set_ylabel(name)
    handles = {label: h for ax in axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if handles:
        axes[-1].legend(handles.values(), handles.keys(), loc="best", frameon=False, fontsize=9)
    for ax in axes:
        finish(ax)
    return finished(figure, axes, "steps of the optimizer", title)
