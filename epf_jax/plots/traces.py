"""Traces and densities of Markov chains over theta."""

from typing import Any

import jax

from epf_jax.core.naming import scalars
from epf_jax.exact import GridPosterior
from epf_jax.plots.figures import EXACT, FILTER, draw_truth, finish, finished, pyplot, true_values
from epf_jax.running.results import Results, check_is_results


def plot_chains(
    results: Results, *, exact: GridPosterior | None = None, truth: Any = None, title: str | None = None
) -> Any:
    """A figure of every parameter's trace, chain by chain, and of its posterior density.

    Args:
        results: what `epf.pmmh` or `epf.particle_gibbs` returned.
        exact: the exact posterior, whose density after the last observation is drawn beside that of the chains.
        truth: the parameters that made the data, with the prior's structure.
        title: of the figure.
    """
    plt = pyplot()
    check_is_results(results)
    if results.chains is None:
        raise ValueError("results: expected those of epf.pmmh or epf.particle_gibbs; results.plot() draws a filter's.")
    draws_of = results.chains.theta
    named = scalars(draws_of, num_axes=2)
    truths = [] if truth is None else true_values(truth, draws_of)
    sizes = {"figsize": (9, 1 + 2.2 * len(named)), "width_ratios": (3, 1), "sharey": "row", "squeeze": False}
    figure, axes = plt.subplots(len(named), 2, **sizes)
    for i, ((trace, density), (name, draws)) in enumerate(zip(axes, named.items(), strict=True)):
        for chain in draws:
            trace.plot(chain, linewidth=0.5, alpha=0.7)
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
