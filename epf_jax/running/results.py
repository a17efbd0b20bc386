"""What a run gives back: summaries of theta and x at every step, the evidence, diagnostics, the final state."""

import math
import numbers
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from epf_jax.core.checks import brief
from epf_jax.core.naming import component_names, estimates, named_leaves
from epf_jax.filters import FilterState, StepInfo
from epf_jax.particles.quantiles import row_quantiles
from epf_jax.particles.weights import as_rows, row_moments

if TYPE_CHECKING:
    from epf_jax.offline.chains import Chains
    from epf_jax.running.diagnosis import Diagnosis


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

    def __getitem__(self, place: Any) -> Any:
        """A part by its place, as of any tuple; a parameter's name is asked of a part."""
        if isinstance(place, str):
            part = place if place in self._fields else "mean"
            entry = f"[{place!r}]" if isinstance(self.mean, dict) and place not in self._fields else ""
            raise TypeError(f"It is a summary with a mean, an sd and quantiles, each by its name: .{part}{entry}, say.")
        return tuple.__getitem__(self, place)


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


class Lineage(NamedTuple):
    """Whom the particles descend from: the particle of generation `since` that each one's path goes back to."""

    founders: Int[Array, " N"]
    since: Int[Array, ""]


class Diagnostics(NamedTuple):
    """What `run(..., diagnostics=True)` records besides, at every step.

    Attributes:
        pit: probability integral transform of y_t, per component: the one-step-ahead predictive distribution function
            at what then came. Uniform and independent over time if the model and the filter are right; NaN where y is
            missing. Counts are spread at random over their step of the distribution function.
        y: summary of the one-step-ahead predictive distribution of y_t.
        edge: for each unconstrained coordinate of theta, the share of the posterior in the outer twentieth of the box
            that the statistic is confined to; zero where it is confined to none.
        remainder: what a Taylor statistic's share of this step has too much of in log-density, relative to its centre,
            averaged over the particles; zero for statistics that are no expansions.
        shift: by how many posterior standard deviations the same moves each unconstrained coordinate of theta: its
            covariance with the coordinate over the particles, over the coordinate's standard deviation.
        roughness: the noise in log-density that can be told from the log-likelihoods at the nodes of a node filter;
            zero for filters without nodes.
        num_parents: how many particles of the generation before have a descendant in this one.
        num_founders: how many particles of generation `founded` have a descendant in this one.
        founded: the generation that founders are counted in. When one is left, counting starts anew from there.
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


class Results(NamedTuple):
    """What a method says of T observations: a filter after each of them, Markov chains after the last, in one row.

    Attributes:
        theta: summary of the parameters given y_1:t, for every t.
        x: summary of the state x_t given y_1:t, for every t.
        log_evidence: log p(y_1:t), cumulative.
        ess: effective sample size before resampling.
        resampled: whether each step resampled.
        acceptance: mean acceptance rate of theta's moves; NaN at steps that try none.
        num_bad_weights: weights that were NaN or +inf, and counted as zero; of filters inside of a filter, their share,
            times the number of particles.
        num_bad_densities: how often theta's density was NaN where its sampler looked.
        collapsed: steps at which every weight was zero.
        levels: the quantile levels of the summaries.
        final: the filter's state after the last observation; `run(..., state=final)` goes on from it.
        history: all particles, or None.
        diagnostics: predictive checks, the statistic's health and the particles' descent, or None.
        chains: of `pmmh` and `particle_gibbs`, the draws chain by chain with R-hat and ESS; None of filters. Their one
            row has the least ESS of a parameter and the mean acceptance; `log_evidence` is NaN, which chains do not
            estimate, and the fields that tell of a filter's steps (`resampled`, `num_bad_weights`, `num_bad_densities`,
            `collapsed`) are empty: `diagnose` looks at the chains. `final` has the draws of theta and x_T as equally
            weighted particles, for `forecast` and the pictures; no filter goes on from it.
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
    diagnostics: Diagnostics | None = None
    chains: "Chains | None" = None

    def __repr__(self) -> str:
        """What is known at the end, without the arrays."""
        if self.chains is not None:
            return f"<Results of {repr(self.chains)[1:]}"
        *runs, num_steps = np.shape(self.ess)
        head = "one observation" if num_steps == 1 else f"{num_steps} observations"
        head = f"{runs[0]} runs over {head}" if runs else head
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self.theta)):
            return f"<Results of {head}, traced>"
        lines = [f"<Results of {head}, {np.shape(self.final.log_weights)[-1]} particles"]
        if not runs:
            lines[0] += f", log-evidence {float(self.log_evidence[-1]):.2f}"
            lines += estimates(*(jax.tree.map(lambda a: a[-1], part) for part in (self.theta.mean, self.theta.sd)))
        return "\n".join(lines) + ">"

    def one(self, run: int) -> "Results":
        """One run of those of `replicate`, as `epf.run` would have given it."""
        if self.chains is not None:
            raise IndexError("run: chains are one result; results.chains.theta has the draws of each.")
        if not isinstance(run, numbers.Integral):
            raise TypeError(
                f"run: expected the number of a run, 0 for the first, got {brief(run)}. Names are a panel's: "
                "panel.names.index(name)."
            )
        if np.ndim(self.ess) < 2 or not -len(self.ess) <= run < len(self.ess):
            runs = len(self.ess) if np.ndim(self.ess) > 1 else "one"
            raise IndexError(f"run: there is no run {run} in results of {runs}.")
        none: Any = None  # the levels are those of all runs
        return jax.tree.map(lambda leaf: leaf[run], self._replace(levels=none))._replace(levels=self.levels)

    def diagnose(self) -> "Diagnosis":
        """What went wrong, in plain words, and what to try: see `epf_jax.running.diagnosis`."""
        from epf_jax.running.diagnosis import diagnose

        return diagnose(self)

    def plot(self, y: Any = None, **options: Any) -> Any:
        """The overview as a matplotlib figure: parameters, states (with the data y, if given), the filter's health.

        `truth`, `title` and other options are those of `epf.plots.plot_overview`. Of chains, traces and densities: the
        options are then those of `epf.plots.plot_chains`, and the data are not drawn.
        """
        from epf_jax.plots import plot_chains, plot_overview

        return plot_overview(self, y, **options) if self.chains is None else plot_chains(self, **options)

    def to_pandas(self, series: Any = None, *, states: bool = False) -> Any:
        """A tidy `pandas.DataFrame`: see `epf_jax.running.export.to_pandas`."""
        from epf_jax.running.export import to_pandas

        return to_pandas(self, series, states=states)

    def to_xarray(self, series: Any = None) -> Any:
        """An `xarray.Dataset` of everything over time: see `epf_jax.running.export.to_xarray`."""
        from epf_jax.running.export import to_xarray

        return to_xarray(self, series)

    def to_arviz(self, y: Any = None, *, seed: int = 0) -> Any:
        """The last posterior as equally weighted draws for ArviZ: see `epf_jax.running.export.to_arviz`."""
        from epf_jax.running.export import to_arviz

        return to_arviz(self, y, seed=seed)


def summarise(particles: Any, log_weights: Float[Array, " N"], levels: tuple[float, ...]) -> Summary:
    """Mean, sd and quantiles of every leaf of a pytree of particles."""
    return apart(side_by_side(particles, log_weights, levels), particles)


def side_by_side(particles: Any, log_weights: Float[Array, " N"], levels: tuple[float, ...]) -> Summary:
    """Mean, sd and quantiles of all numbers of a particle in one array each, for `apart`: one program for all."""
    rows = [as_rows(leaf).astype(log_weights.dtype) for leaf in jax.tree.leaves(particles)]
    joined = jnp.concatenate(rows) if rows else jnp.zeros((0, *log_weights.shape), log_weights.dtype)
    of_levels = row_quantiles(joined, log_weights, jnp.asarray(levels, joined.dtype))
    return Summary(*row_moments(joined, log_weights), of_levels)


def apart(joined: Summary, particles: Any, num_axes: int = 0) -> Summary:
    """A summary like the particles, from one of all their numbers side by side after so many other axes."""
    leaves, tree = jax.tree.flatten(particles)
    ends = np.cumsum([math.prod(leaf.shape[1:]) for leaf in leaves])[:-1]

    def like_particles(found):
        before, after = found.shape[:num_axes], found.shape[num_axes + 1 :]
        parts = zip(jnp.split(found, ends, axis=num_axes) if leaves else (), leaves, strict=True)
        return jax.tree.unflatten(tree, [part.reshape(before + leaf.shape[1:] + after) for part, leaf in parts])

    mean, sd, quantiles = map(like_particles, joined)
    return Summary(mean, sd, jax.tree.map(_of_counts, quantiles, particles))


def _of_counts(quantiles: Array, leaf: Array) -> Array:
    """Quantiles of whole numbers, which are whole: `row_quantiles` finds them to within 2^-24 of their range."""
    return jnp.round(quantiles) if jnp.issubdtype(leaf.dtype, jnp.integer) else quantiles


def summaries(state: FilterState, levels: tuple[float, ...]) -> tuple[Summary, Summary]:
    """Those of theta and of x."""
    return theta_and_x(side_by_side((state.theta, state.x), state.log_weights, levels), state)


def theta_and_x(joined: Summary, state: FilterState, num_axes: int = 0) -> tuple[Summary, Summary]:
    """The summaries of theta and of x from that of both, as `record` makes it."""
    both = apart(joined, (state.theta, state.x), num_axes)
    return Summary(*(part[0] for part in both)), Summary(*(part[1] for part in both))


def log_scores(results: Results) -> np.ndarray:
    """One-step log scores log p(y_t | y_1:t-1); NaN where they cannot be told.

    These are steps after one of no evidence, and the first of a run that went on from a state.
    """
    before = 0.0 if times(results)[0] == 1 else np.nan
    with np.errstate(invalid="ignore"):
        return np.diff(np.asarray(results.log_evidence, float), prepend=before)


def record(state: FilterState, info: StepInfo, levels: tuple[float, ...], history: bool) -> dict[str, Any]:
    """One step's row of `Results`, theta and x side by side: `theta_and_x` takes them apart, once for all steps."""
    return {
        "theta_and_x": side_by_side((state.theta, state.x), state.log_weights, levels),
        "log_evidence": state.log_evidence,
        "ess": info.ess,
        "resampled": info.resampled,
        "acceptance": info.acceptance,
        "num_bad_weights": info.num_bad_weights,
        "num_bad_densities": info.num_bad_densities,
        "collapsed": info.collapsed,
        "history": History(state.x, state.theta, state.log_weights, info.ancestors) if history else None,
    }


def check_is_results(results: Any) -> None:
    """Refuse what no run gave back."""
    if not isinstance(results, Results):
        hint = " Give the results, not results.chains." if type(results).__name__ == "Chains" else ""
        raise TypeError(
            "results: expected what epf.run, epf.replicate, epf.pmmh or epf.particle_gibbs gave back, got "
            f"{type(results).__name__}.{hint}"
        )


def check_over_time(results: Any, who: str) -> None:
    """Refuse a batch of runs, and chains, where one run is looked at step by step."""
    check_one_run(results, who)
    if results.chains is not None:
        raise ValueError(
            f"results: {who} draws a filter's run over time, and these are of chains, which have the last posterior "
            "alone. results.plot() draws the chains, epf.plots.plot_pairs(results) their posterior."
        )


def check_one_run(results: Any, who: str) -> None:
    """Refuse a batch of runs where one is looked at."""
    check_is_results(results)
    if results.ess.ndim != 1:
        raise ValueError(
            f"results: {who} looks at one run, and these are {results.ess.shape[0]}. Take one of them, results.one(0)."
        )


def coordinate_names(results: Results) -> list[str]:
    """A name for each unconstrained coordinate: the parameter's own, unless a constraint has taken some away."""
    leaves = named_leaves(results.theta.mean, "theta")
    names = [each for name, leaf in leaves for each in component_names(name, leaf.shape[results.ess.ndim :])]
    num = len(names) if results.diagnostics is None else results.diagnostics.edge.shape[-1]
    return names if len(names) == num else [f"coordinate {i}" for i in range(num)]


def times(results: Results) -> Int[np.ndarray, " T"]:
    """The time index of every row, 1 for the first observation ever seen: runs that went on go on counting."""
    last = int(np.ravel(np.asarray(results.final.t))[0])
    num = results.ess.shape[-1]
    return np.arange(last - num + 1, last + 1)
