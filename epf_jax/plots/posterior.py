"""The posterior of every parameter with its prior behind."""

from typing import Any

import jax
import numpy as np

from epf_jax.core.naming import scalars
from epf_jax.filters import FilterState
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.plots.figures import FILTER, TRUE, TRUTH, pyplot, true_values

_PRIOR = "0.75"
_NUM_PRIOR, _NUM_BINS = 4000, 40


def plot_learned(learned: Any, *, truth: Any = None, title: str | None = None) -> Any:
    """What `epf.learn` returned, by `plot_parameters`; the title says whether the answer is trusted, by default."""
    title = title or ("Trusted" if learned.trusted else "NOT trusted")
    return plot_parameters(learned.draws, learned.model, learned.error, truth=truth, title=title)


def plot_parameters(
    state: FilterState, model: StateSpaceModel, error: Any = None, *, truth: Any = None, title: str | None = None
) -> Any:
    """A panel for every number of theta: its posterior as a histogram, its prior in grey, the mean and its error.

    Args:
        state: weighted draws of theta.
        model: the model, for its prior.
        error: how far each mean may be off, in posterior standard deviations, with the prior's structure; or None.
        truth: the parameters that made the data, with the prior's structure.
        title: of the figure.

    Returns:
        The matplotlib figure.
    """
    weights = np.exp(np.asarray(state.log_weights, float))
    draws = scalars(state.theta, num_axes=1)
    prior = scalars(model.parameters.sample(jax.random.key(0), _NUM_PRIOR), num_axes=1)
    errors = {} if error is None else scalars(error)
    truths = true_values(truth, state.theta)
    num_columns = min(3, len(draws))
    num_rows = -(-len(draws) // num_columns)
    size = (4.2 * num_columns, 2.9 * num_rows + 0.4)
    figure, axes = pyplot().subplots(num_rows, num_columns, figsize=size, squeeze=False, layout="constrained")
    for ax in axes.ravel()[len(draws) :]:
        ax.set_visible(False)
    for i, (ax, name) in enumerate(zip(axes.ravel(), draws, strict=False)):
        mean = float(np.average(draws[name], weights=weights))
        sd = float(np.sqrt(np.average((draws[name] - mean) ** 2, weights=weights)))
        low, high = mean - 5 * sd, mean + 5 * sd
        low, high = max(low, float(draws[name].min())), min(high, float(draws[name].max()))
        bins = np.linspace(low, high, _NUM_BINS + 1) if high > low else _NUM_BINS
        ax.hist(draws[name], bins, weights=weights, density=True, color=FILTER, alpha=0.75, label="posterior")
        top = ax.get_ylim()[1]
        share, edges = np.histogram(prior[name], bins)
        ax.stairs(
            share / _NUM_PRIOR / np.diff(edges), edges, fill=True, color=_PRIOR, alpha=0.6, zorder=0, label="prior"
        )
        ax.set_ylim(0, top)
        if truths[i] is not None:
            ax.axvline(truths[i], color=TRUTH, linewidth=1.0, linestyle=":", label=TRUE)
        off = f"   (error {float(errors[name]):.2g} sd)" if name in errors else ""
        ax.set_title(f"{name} = {mean:.3g} \N{PLUS-MINUS SIGN} {sd:.2g}{off}", fontsize=10)
        ax.set_yticks([])
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
    axes[0, 0].legend(frameon=False, fontsize=8)
    if title:
        figure.suptitle(title, x=0.02, ha="left", fontsize=12)
    return figure
