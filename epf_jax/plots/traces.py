"""Traces and densities of Markov chains over theta."""

from typing import Any

import jax

from epf_jax.core.naming import scalars
from epf_jax.exact import GridPosterior
from epf_jax.offline.chains import Chains
from epf_jax.plots.figures import EXACT, FILTER, draw_truth, finish, finished, pyplot, true_values


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
