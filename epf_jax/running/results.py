"""`Results` of a run: summaries of theta and x at every step, the evidence, diagnostics, the final state."""

import numbers
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from epf_jax.core.checks import brief
from epf_jax.core.findings import Diagnosis
from epf_jax.core.naming import estimates
from epf_jax.filters import FilterState
from epf_jax.filters.state import evidence_in_words
from epf_jax.running.diagnosis import diagnose, log_evidence_error
from epf_jax.running.export import to_arviz, to_pandas, to_xarray
from epf_jax.running.records import Diagnostics, History, Summary
from epf_jax.running.reference import Origin


class Results(NamedTuple):
    """The results of a filter after each of T observations.

    Attributes:
        theta: summary of the parameters given y_1:t, for every t.
        x: summary of the state x_t given y_1:t, for every t.
        log_evidence: log p(y_1:t), cumulative.
        ess: effective sample size before resampling.
        resampled: whether each step resampled.
        acceptance: mean acceptance rate of theta's moves; NaN at steps without moves.
        num_bad_weights: how many weights were NaN or +inf, which count as zero; for inner filters, their share times
            the number of particles.
        num_bad_densities: how often theta's density was NaN in its sampler.
        collapsed: steps at which every weight was zero.
        error: how far the means of theta may be off, in posterior standard deviations of the coordinate that is worst,
            by the disagreement of independent groups of particles; NaN for filters without groups.
        levels: the quantile levels of the summaries.
        final: the filter's state after the last observation; `run(..., state=final)` goes on from it.
        history: all particles, or None.
        diagnostics: predictive checks, the statistic's health and the particles' descent, or None.
        origin: the model and the series, where `diagnose` and `log_evidence_error` begin.
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
    error: Float[Array, " T"]
    levels: Float[Array, " Q"]
    final: FilterState
    history: History | None = None
    diagnostics: Diagnostics | None = None
    origin: Origin = Origin()

    def __repr__(self) -> str:
        """What is known at the end, without the arrays."""
        *runs, num_steps = np.shape(self.ess)
        head = "one observation" if num_steps == 1 else f"{num_steps} observations"
        head = f"{runs[0]} runs over {head}" if runs else head
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self.theta)):
            return f"<Results of {head}, traced>"
        lines = [f"<Results of {head}, {np.shape(self.final.log_weights)[-1]} particles"]
        if not runs:
            lines[0] += f", log-evidence {evidence_in_words(self.final)} (how far off: .log_evidence_error)"
            lines += estimates(*(jax.tree.map(lambda a: a[-1], part) for part in (self.theta.mean, self.theta.sd)))
        return "\n".join(lines) + ">"

    def one(self, run: int) -> "Results":
        """One run of `replicate`, in the form that `epf.run` returns."""
        if not isinstance(run, numbers.Integral):
            raise TypeError(
                f"run: expected the number of a run, 0 for the first, got {brief(run)}. Names are a panel's: "
                "panel.names.index(name)."
            )
        if np.ndim(self.ess) < 2 or not -len(self.ess) <= run < len(self.ess):
            runs = len(self.ess) if np.ndim(self.ess) > 1 else "one"
            raise IndexError(f"run: there is no run {run} in results of {runs}.")
        none: Any = None  # the levels are those of all runs
        return jax.tree.map(lambda leaf: leaf[run], self._replace(levels=none))._replace(
            levels=self.levels, origin=self.origin.one(run)
        )

    def diagnose(self, *, seconds: float = 60.0) -> Diagnosis:
        """How far the answer is off, in posterior standard deviations, why, and what to do.

        It is measured once, by another posterior of fresh likelihoods, which takes at most about so many seconds.
        """
        check_one_run(self, "diagnose")
        return diagnose(self, seconds)

    @property
    def log_evidence_error(self) -> float:
        """How far the last `log_evidence` is off, by the measurement of `diagnose`; NaN where that cannot be made."""
        check_one_run(self, "log_evidence_error")
        return log_evidence_error(self, 60.0)

    def plot(self, y: Any = None, **options: Any) -> Any:
        """The overview as a matplotlib figure: parameters, states (with the data y, if given), the filter's health.

        `truth`, `title` and other options are those of `epf.plots.plot_overview`.
        """
        from epf_jax.plots import plot_overview

        return plot_overview(self, y, **options)

    def to_pandas(self, series: Any = None, *, states: bool = False) -> Any:
        """A tidy `pandas.DataFrame`: see `epf_jax.running.export.to_pandas`."""
        return to_pandas(self, series, states=states)

    def to_xarray(self, series: Any = None) -> Any:
        """An `xarray.Dataset` of everything over time: see `epf_jax.running.export.to_xarray`."""
        return to_xarray(self, series)

    def to_arviz(self, y: Any = None, *, seed: int = 0) -> Any:
        """The last posterior as equally weighted draws for ArviZ: see `epf_jax.running.export.to_arviz`."""
        return to_arviz(self, y, seed=seed)


def check_is_results(results: Any) -> None:
    """Raise if these are not the results of a filter's run."""
    if not isinstance(results, Results):
        hint = " Chains have the last posterior alone: chains.plot()." if type(results).__name__ == "Chains" else ""
        raise TypeError(
            f"results: expected what epf.run or epf.replicate gave back, got {type(results).__name__}.{hint}"
        )


def check_one_run(results: Any, who: str) -> None:
    """Raise for a batch of runs where one run is needed."""
    check_is_results(results)
    if results.ess.ndim != 1:
        raise ValueError(
            f"results: {who} looks at one run, and these are {results.ess.shape[0]}. Take one of them, results.one(0)."
        )
