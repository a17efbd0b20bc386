"""The posterior of every parameter with its prior behind."""

from typing import Any

import jax
import numpy as np

from epf_jax.core.naming import scalars
from epf_jax.plots.figures import FILTER, TRUE, TRUTH, pyplot, true_values

_PRIOR = "0.75"
_NUM_PRIOR, _NUM_BINS = 4000, 40


def plot_learned(learned: Any, *, truth: Any = None, title: str | None = None) -> Any:
    """A panel for every number of theta: its posterior as a histogram, its prior in grey, the mean and its error.

    Args:
        learned: what `epf.learn` returned.
        truth: the parameters that made the data, with the prior's structure.
        title: of the figure; whether the answer is trusted, by default.

    Returns:
        The matplotlib figure.
    """
    weights = np.exp(np.asarray(learned.draws.log_weights, float))
    draws = scalars(learned.draws.theta, num_axes=1)
    prior = scalars(learned.model.parameters.sample(jax.random.key(0), _NUM_PRIOR), num_axes=1)
    means, sds, errors = (scalars(part) for part in (learned.theta.mean, learned.theta.sd, learned.error))
    truths = true_values(truth, jax.tree.map(lambda leaf: np.asarray(leaf)[None], learned.theta.mean))
    num_columns = min(3, len(draws))
    num_rows = -(-len(draws) // num_columns)
    size = (4.2 * num_columns, 2.9 * num_rows + 0.4)
    figure, axes = pyplot().subplots(num_rows, num_columns, figsize=size, squeeze=False, layout="constrained")
    for ax in axes.ravel()[len(draws) :]:
        ax.set_visible(False)
    for i, (ax, name) in enumerate(zip(axes.ravel(), draws, strict=False)):
        mean, sd = float(means[name]), float(sds[name])
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
        ax.set_title(
            f"{name} = {mean:.3g} \N{PLUS-MINUS SIGN} {sd:.2g}   (error {float(errors[name]):.2g} sd)", fontsize=10
        )
        ax.set_yticks([])
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.suptitle(title or ("Trusted" if learned.trusted else "NOT trusted"), x=0.02, ha="left", fontsize=12)
    return figure
