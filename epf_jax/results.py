"""What a run gives back: summaries of theta and x at every step, the evidence, diagnostics, the final state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from epf_jax.filters import FilterState, StepInfo
from epf_jax.weights import mean_and_sd, quantiles


class Summary(NamedTuple):
    """Weighted moments over the particles; each a pytree like the thing summarised, with time as first axis.

    Attributes:
        mean: posterior means.
        sd: posterior standard deviations.
        quantiles: posterior quantiles at `Results.levels`, along the last axis.
    """

    mean: Any
    sd: Any
    quantiles: Any


class History(NamedTuple):
    """Every particle at every step, kept only when asked for."""

    x: Float[Array, "T N *x"]
    theta: Any
    log_weights: Float[Array, "T N"]
    ancestors: Int[Array, "T N"]

    def num_distinct_ancestors(self) -> Int[np.ndarray, " T"]:
        """How many particles of each generation t = 1..T have descendants among the last: 1 once all paths are one."""
        ancestors = np.asarray(self.ancestors)
        if ancestors.ndim != 2:
            raise ValueError(
                f"history: expected that of one run, with ancestors of shape (T, N), got {ancestors.shape}. Take one "
                "run of a batch: jax.tree.map(lambda a: a[0], results.history)."
            )
        lineage = np.arange(ancestors.shape[1])
        counts = []
        for row in ancestors[::-1]:
            counts.append(len(np.unique(lineage)))
            lineage = row[lineage]
        return np.array(counts[::-1])


class Results(NamedTuple):
    """A run of a filter over T observations.

    Attributes:
        theta: summary of the parameters given y_1:t, for every t.
        x: summary of the state x_t given y_1:t, for every t.
        log_evidence: log p(y_1:t), cumulative.
        ess: effective sample size before resampling.
        resampled: whether each step resampled.
        acceptance: mean acceptance rate of theta's moves.
        num_bad_weights: weights that were NaN or +inf, and counted as zero.
        num_bad_densities: how often theta's density was NaN where its sampler looked.
        collapsed: steps at which every weight was zero.
        levels: the quantile levels of the summaries.
        final: the filter's state after the last observation; `run(..., state=final)` goes on from it.
        history: all particles, or None.
    """

    theta: Summary
    x: Summary
    log_evidence: Float[Array, " T"]
    ess: Float[Array, " T"]
    resampled: Bool[Array, " T"]
    acceptance: Float[Array, " T"]
    num_bad_weights: Int[Array, " T"]
    num_bad_densities: Int[Array, " T"]
    collapsed: Bool[Array, " T"]
    levels: Float[Array, " Q"]
    final: FilterState
    history: History | None = None


def summarise(particles: Any, log_weights: Float[Array, " N"], levels: tuple[float, ...]) -> Summary:
    """Mean, sd and quantiles of every leaf of a pytree of particles."""
    moments = jax.tree.map(lambda leaf: mean_and_sd(leaf, log_weights), particles)

    def pick(i):
        return jax.tree.map(lambda pair: pair[i], moments, is_leaf=lambda node: type(node) is tuple)

    at = jnp.asarray(levels, log_weights.dtype)
    return Summary(pick(0), pick(1), jax.tree.map(lambda leaf: quantiles(leaf, log_weights, at), particles))


def log_scores(results: Results) -> np.ndarray:
    """One-step log scores log p(y_t | y_1:t-1); NaN after a step of no evidence, where they cannot be told."""
    with np.errstate(invalid="ignore"):
        return np.diff(np.asarray(results.log_evidence, float), prepend=0.0)


def record(state: FilterState, info: StepInfo, levels: tuple[float, ...], history: bool) -> dict[str, Any]:
    """One step's row of `Results`."""
    return {
        "theta": summarise(state.theta, state.log_weights, levels),
        "x": summarise(state.x, state.log_weights, levels),
        "log_evidence": state.log_evidence,
        "ess": info.ess,
        "resampled": info.resampled,
        "acceptance": info.acceptance,
        "num_bad_weights": info.num_bad_weights,
        "num_bad_densities": info.num_bad_densities,
        "collapsed": info.collapsed,
        "history": History(state.x, state.theta, state.log_weights, info.ancestors) if history else None,
    }


def scalars(tree: Any, num_axes: int = 0, root: str = "theta") -> dict[str, np.ndarray]:
    """Every scalar component of a pytree by its name, such as "noise" or "loadings[0,1]", after leading axes.

    Args:
        tree: a theta, a state, or a summary of one.
        num_axes: how many axes come before those of a component: 1 for time.
        root: the name of what is no dict.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name, leaf = jax.tree_util.keystr(path, simple=True, separator=".") or root, np.asarray(leaf)
        for index in np.ndindex(leaf.shape[num_axes:]):
            found[name + (f"[{','.join(map(str, index))}]" if index else "")] = leaf[(..., *index)]
    return found


_SMALL = 64  # numbers; larger arrays are written on their own


def pack(row: Any) -> tuple[list[Array], list[Array]]:
    """The small arrays of a row as one vector for each kind of number: one write a step instead of a dozen."""
    leaves = jax.tree.leaves(row)
    kinds: dict[Any, list[Array]] = {}
    for leaf in leaves:
        if leaf.size <= _SMALL:
            kinds.setdefault(_kind(leaf), []).append(jnp.ravel(leaf).astype(_kind(leaf)))
    return [jnp.concatenate(parts) for parts in kinds.values()], [leaf for leaf in leaves if leaf.size > _SMALL]


def unpack(packed: tuple[list[Array], list[Array]], row: Any) -> Any:
    """The rows of all steps, taken apart again into arrays like those of one row."""
    leaves, treedef = jax.tree.flatten(row)
    order = list(dict.fromkeys(_kind(leaf) for leaf in leaves if leaf.size <= _SMALL))
    vectors, large = dict(zip(order, packed[0], strict=True)), iter(packed[1])
    used = dict.fromkeys(order, 0)
    rows = []
    for leaf in leaves:
        if leaf.size > _SMALL:
            rows.append(next(large))
            continue
        kind, start = _kind(leaf), used[_kind(leaf)]
        used[kind] += leaf.size
        part = vectors[kind][:, start : start + leaf.size]
        rows.append(part.reshape(part.shape[0], *leaf.shape).astype(leaf.dtype))
    return jax.tree.unflatten(treedef, rows)


def _kind(leaf: Any) -> Any:
    return leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.result_type(int)
