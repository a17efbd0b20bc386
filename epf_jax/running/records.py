"""The parts of results: summaries of theta and x, histories of particles, diagnostics of every step."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.naming import component_names, named_leaves
from epf_jax.filters import FilterState, StepInfo
from epf_jax.particles.quantiles import row_quantiles
from epf_jax.particles.weights import as_rows, normalised, row_moments


class Summary(NamedTuple):
    """Weighted moments over the particles: pytrees like the summarised one, with time as first axis.

    Attributes:
        mean: posterior means.
        sd: posterior standard deviations.
        quantiles: posterior quantiles at `Results.levels`, along the last axis.
    """

    mean: Any
    sd: Any
    quantiles: Any

    def __getitem__(self, place: Any) -> Any:
        """A part by its index, as in any tuple; the name of a parameter raises an error with advice."""
        if isinstance(place, str):
            part = place if place in self._fields else "mean"
            entry = f"[{place!r}]" if isinstance(self.mean, dict) and place not in self._fields else ""
            raise TypeError(f"A summary has a mean, an sd and quantiles. Write .{part}{entry}.")
        return tuple.__getitem__(self, place)


class History(NamedTuple):
    """Every particle at every step, with `run(..., history=True)`."""

    x: Float[Array, "T N *x"]
    theta: Any
    log_weights: Float[Array, "T N"]
    ancestors: Int[Array, "T N"]

    def num_distinct_ancestors(self) -> Int[np.ndarray, " T"]:
        """How many particles of each generation t = 1..T have descendants in the last one; 1 if all paths are one."""
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


class Lineage(NamedTuple):
    """The ancestor of each particle in generation `since`."""

    founders: Int[Array, " N"]
    since: Int[Array, ""]


class Diagnostics(NamedTuple):
    """What `run(..., diagnostics=True)` records at every step.

    Attributes:
        pit: probability integral transform of y_t, per component: the one-step-ahead predictive distribution function
            at y_t. Uniform and independent over time if the model and the filter are right; NaN where y is missing.
            Counts are spread at random over their step of the distribution function.
        y: summary of the one-step-ahead predictive distribution of y_t.
        edge: for each unconstrained coordinate of theta, the share of the posterior in the outer twentieth of the
            statistic's box; zero without a box.
        remainder: the error of a Taylor statistic's log-density at this step, relative to its centre, averaged over the
            particles; zero for other statistics.
        shift: by how many posterior standard deviations this error moves each unconstrained coordinate of theta: its
            covariance with the coordinate over the particles, divided by the coordinate's standard deviation.
        roughness: the noise of the log-likelihoods at the nodes of a node filter; zero for filters without nodes.
        num_parents: how many particles of the last generation have a descendant in this one.
        num_founders: how many particles of generation `founded` have a descendant in this one.
        founded: the generation in which founders are counted. When one founder is left, counting starts again.
        lineage: the founders of the last generation's particles.
    """

    pit: Float[Array, "T *y"]
    y: Summary
    edge: Float[Array, "T P"]
    remainder: Float[Array, " T"]
    shift: Float[Array, "T P"]
    roughness: Float[Array, " T"]
    num_parents: Int[Array, " T"]
    num_founders: Int[Array, " T"]
    founded: Int[Array, " T"]
    lineage: Lineage


def summarise(particles: Any, log_weights: Float[Array, " N"], levels: tuple[float, ...]) -> Summary:
    """Mean, sd and quantiles of every leaf of a pytree of particles."""
    found = apart(side_by_side(particles, log_weights, levels), particles)
    return found._replace(quantiles=jax.tree.map(_of_counts, found.quantiles, particles))


def side_by_side(particles: Any, log_weights: Float[Array, " N"], levels: tuple[float, ...]) -> Summary:
    """Mean, sd and quantiles of all numbers of a particle, in one array each, which is one program; see `apart`."""
    rows = [as_rows(leaf).astype(log_weights.dtype) for leaf in jax.tree.leaves(particles)]
    joined = jnp.concatenate(rows) if rows else jnp.zeros((0, *log_weights.shape), log_weights.dtype)
    w = normalised(log_weights)
    return Summary(*row_moments(joined, w), row_quantiles(joined, w, np.asarray(levels, joined.dtype)))


def apart(joined: Summary, particles: Any) -> Summary:
    """A summary with the particles' structure, from that of `side_by_side`."""
    leaves, tree = jax.tree.flatten(particles)
    ends = np.cumsum([math.prod(leaf.shape[1:]) for leaf in leaves])[:-1]

    def like_particles(found):
        parts = zip(jnp.split(found, ends) if leaves else (), leaves, strict=True)
        return jax.tree.unflatten(tree, [part.reshape(leaf.shape[1:] + found.shape[1:]) for part, leaf in parts])

    return Summary(*map(like_particles, joined))


def _of_counts(quantiles: Array, leaf: Array) -> Array:
    """Quantiles of whole numbers, rounded, because `row_quantiles` finds them to within 2^-24 of their range."""
    return jnp.round(quantiles) if jnp.issubdtype(leaf.dtype, jnp.integer) else quantiles


def summaries(state: FilterState, levels: tuple[float, ...]) -> tuple[Summary, Summary]:
    """The summaries of theta and of x."""
    both = (state.theta, state.x)
    return theta_and_x(apart(side_by_side(both, state.log_weights, levels), both), state)


def like_both(joined: Summary, state: FilterState) -> Summary:
    """The shapes of the joint summary of theta and x that `record` makes, taken apart."""
    return jax.eval_shape(apart, joined, (state.theta, state.x))


def theta_and_x(both: Summary, state: FilterState) -> tuple[Summary, Summary]:
    """The summaries of theta and of x from that of both."""
    quantiles = jax.tree.map(_of_counts, both.quantiles, (state.theta, state.x))
    parts = (both.mean, both.sd, quantiles)
    return Summary(*(part[0] for part in parts)), Summary(*(part[1] for part in parts))


def log_scores(results: Any) -> np.ndarray:
    """One-step log scores log p(y_t | y_1:t-1).

    NaN where they are not known: after a step with zero evidence, and at the first step of a run that went on.
    """
    before = 0.0 if times(results)[0] == 1 else np.nan
    with np.errstate(invalid="ignore"):
        return np.diff(np.asarray(results.log_evidence, float), prepend=before)


def record(state: FilterState, info: StepInfo, levels: tuple[float, ...]) -> dict[str, Any]:
    """One step's row of `Results`, with a joint summary of theta and x, which `theta_and_x` splits once at the end."""
    return {
        "theta_and_x": side_by_side((state.theta, state.x), state.log_weights, levels),
        "log_evidence": state.log_evidence,
        "ess": info.ess,
        "resampled": info.resampled,
        "acceptance": info.acceptance,
        "num_bad_weights": info.num_bad_weights,
        "num_bad_densities": info.num_bad_densities,
        "collapsed": info.collapsed,
        "error": jnp.asarray(info.error, state.log_evidence.dtype),
    }


def coordinate_names(results: Any) -> list[str]:
    """A name for each unconstrained coordinate: the parameter's own, unless a constraint has removed coordinates."""
    leaves = named_leaves(results.theta.mean, "theta")
    names = [each for name, leaf in leaves for each in component_names(name, leaf.shape[results.ess.ndim :])]
    num = len(names) if results.diagnostics is None else results.diagnostics.edge.shape[-1]
    return names if len(names) == num else [f"coordinate {i}" for i in range(num)]


def times(results: Any) -> Int[np.ndarray, " T"]:
    """The time index of every row; 1 is the first observation ever seen, also in runs that went on."""
    last = int(np.ravel(np.asarray(results.final.t))[0])
    num = results.ess.shape[-1]
    return np.arange(last - num + 1, last + 1)
