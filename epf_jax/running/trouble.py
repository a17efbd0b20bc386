"""Warnings at the end of a run: weights that were zero, nearly zero or NaN; lost particles; NaN densities."""

import warnings
from typing import Any

import jax
import numpy as np

from epf_jax.filters import FilterState
from epf_jax.running.records import times
from epf_jax.running.results import Results

ABSURD = -1e5  # an observation's log-density below which it is told of: of one value, 447 standard deviations off
_BAD_SHARE = 0.01  # of the particles, whose weights may be NaN at a step without a word


def warn_of_trouble(results: Results) -> None:
    """Warn of steps with all weights zero, of particles that are NaN, and of NaN densities of theta."""
    means = jax.tree.leaves((results.theta.mean, results.x.mean))
    read = [results.collapsed, results.num_bad_densities, results.num_bad_weights, results.log_evidence, *means]
    if isinstance(read[0], jax.core.Tracer):
        return
    if any(isinstance(leaf, jax.core.Tracer) for leaf in read):  # inside jax.grad, where `collapsed` is a number
        read = read[:3]
    if next(iter(read[0].devices())).platform != "cpu":
        for leaf in read:  # all at once: one wait, not one for each
            leaf.copy_to_host_async()
    collapsed, bad, bad_weights, *others = map(np.asarray, read)
    lost, t = _lost(others[1:], collapsed.shape), times(results)
    if collapsed.any():
        warnings.warn(
            f"Every particle had zero weight at {_steps(collapsed, t)}, and log_evidence is -inf from there on. Look "
            "for outliers, wrong units, codes such as -999 for missing values (write NaN), and densities that are NaN, "
            "or use a proposal that looks at the data (epf.fully_adapted, epf.laplace).",
            RuntimeWarning,
            stacklevel=3,
        )
    absurd = (_log_densities(results) < ABSURD) & ~collapsed if others else np.zeros(0, bool)
    if absurd.any():
        warnings.warn(
            f"The model all but rules out what was observed at {_steps(absurd, t)}, by log-densities below "
            f"{ABSURD:g}, so few particles are left. Look for outliers, wrong units and codes such as -999 for missing "
            "values (write NaN), or use a heavier tail (dist.StudentT) or a proposal that looks at the data "
            "(epf.fully_adapted, epf.laplace).",
            RuntimeWarning,
            stacklevel=3,
        )
    badly = _badly_weighted(results, bad_weights) & ~lost
    if badly.any():
        warnings.warn(
            f"The weights of more than {_BAD_SHARE:.0%} of the particles were NaN or infinite at {_steps(badly, t)}, "
            "and counted as zero. Look for rates or scales that are negative for some states or thetas (write "
            "jnp.exp), and for densities that overflow.",
            RuntimeWarning,
            stacklevel=3,
        )
    if lost.any():
        warnings.warn(
            f"The particles are NaN or infinite from t = {_first(lost, t)} on, and nothing is known after that. Look "
            "for a transition that is NaN for an input, has noise of scale zero, or explodes; if print(filter) names "
            "conjugate_blocks and the model's form changes with time or state, give statistic=epf.chebyshev(model); if "
            "y is hundreds of noise scales from zero, subtract its level.",
            RuntimeWarning,
            stacklevel=3,
        )
    if bad.any():
        warnings.warn(
            f"The density of theta was NaN at {int(bad.sum())} of the places where its sampler looked, at "
            f"{_steps(bad > 0, t)}; theta was never moved there. Look for a density that is NaN for some theta, such "
            "as the logarithm of a negative number, or replace a Taylor statistic by epf.chebyshev(model).",
            RuntimeWarning,
            stacklevel=3,
        )


def _badly_weighted(results: Results, num_bad: Any) -> Any:
    """At which steps too many weights were NaN."""
    return num_bad > _most_bad(results.final)


def _most_bad(state: FilterState) -> int:
    return int(_BAD_SHARE * state.log_weights.shape[-1])


def _log_densities(results: Results) -> np.ndarray:
    """The log-density of every observation given those before it; zero for the first after a given state."""
    total = np.asarray(results.log_evidence)
    from_start = np.asarray(results.final.t)[..., None] == total.shape[-1]
    before = np.where(from_start, 0.0, total[..., :1])
    earlier = np.concatenate([before, total[..., :-1]], axis=-1)
    known = np.isfinite(earlier)
    return np.where(known, total - np.where(known, earlier, 0.0), 0.0)


def _lost(means: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """At which steps, of this shape, any mean is NaN or infinite."""
    lost = np.zeros(shape, bool)
    for mean in means:
        lost = lost | ~np.isfinite(mean).all(axis=tuple(range(lost.ndim, mean.ndim)))
    return lost


def _steps(which: np.ndarray, t: np.ndarray) -> str:
    """'3 steps (first at t = 17)', from what is true at these steps, time last."""
    num = int(which.sum())
    return f"{num} step{'s' if num > 1 else ''} (first at t = {_first(which, t)})"


def _first(which: np.ndarray, t: np.ndarray) -> int:
    return int(t[np.min(np.argwhere(which)[:, -1])])
