"""What `run` warns of: weights that were zero, nearly zero or NaN; particles that were lost; NaN densities of theta."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from epf_jax.core.findings import Finding
from epf_jax.running.records import times

ABSURD = -1e5  # an observation's log-density below which it is told of: of one value, 447 standard deviations off
_BAD_SHARE = 0.01  # of the particles, whose weights may be NaN at a step without a word
_WRONG = float("inf")


def alarms(results: Any) -> Iterator[Finding]:
    """Findings that anybody should hear of, of one run or of a batch; none while JAX traces."""
    means = jax.tree.leaves((results.theta.mean, results.x.mean))
    read = [results.collapsed, results.num_bad_densities, results.num_bad_weights, results.log_evidence, *means]
    if isinstance(read[0], jax.core.Tracer):
        return
    if any(isinstance(leaf, jax.core.Tracer) for leaf in read):  # inside jax.grad, where `collapsed` is a number
        read = read[:3]
    if isinstance(read[0], jax.Array) and next(iter(read[0].devices())).platform != "cpu":
        for leaf in read:  # all at once: one wait, not one for each
            leaf.copy_to_host_async()
    collapsed, bad, bad_weights, *others = map(np.asarray, read)
    lost, t = _lost(others[1:], collapsed.shape), times(results)
    if collapsed.any():
        yield Finding(
            "zero weights",
            _steps(collapsed, t),
            f"Every particle had zero weight at {_steps(collapsed, t)}, and log_evidence is -inf from there on.",
            "Look for outliers, wrong units, codes such as -999 for missing values (write NaN), and densities that are "
            "NaN, or use a proposal that looks at the data (epf.fully_adapted, epf.laplace).",
        )
    absurd = (_log_densities(results) < ABSURD) & ~collapsed if others else np.zeros(0, bool)
    if absurd.any():
        yield Finding(
            "weights",
            _steps(absurd, t),
            f"The model all but rules out what was observed at {_steps(absurd, t)}, by log-densities below {ABSURD:g}.",
            "Look for outliers, wrong units and codes such as -999 for missing values (write NaN), or use a heavier "
            "tail (dist.StudentT) or a proposal that looks at the data (epf.fully_adapted, epf.laplace).",
        )
    badly = (bad_weights > int(_BAD_SHARE * results.final.log_weights.shape[-1])) & ~lost
    if badly.any():
        yield Finding(
            "weights",
            _steps(badly, t),
            f"The weights of more than {_BAD_SHARE:.0%} of the particles were NaN or infinite at {_steps(badly, t)}, "
            "and counted as zero.",
            "Look for rates or scales that are negative for some states or thetas (write jnp.exp), and for densities "
            "that overflow.",
        )
    if lost.any():
        yield Finding(
            "particles",
            f"t = {_first(lost, t)}",
            f"The particles are NaN or infinite from t = {_first(lost, t)} on, and nothing is known after that.",
            "Look for a transition that is NaN for an input, has noise of scale zero, or explodes; if print(filter) "
            "names conjugate_blocks and the model's form changes with time or state, give "
            "statistic=epf.chebyshev(model); if y is hundreds of noise scales from zero, subtract its level.",
            _WRONG,
        )
    if bad.any():
        yield Finding(
            "density of theta",
            _steps(bad > 0, t),
            f"The density of theta was NaN at {int(bad.sum())} of the places where its sampler looked, at "
            f"{_steps(bad > 0, t)}; theta was never moved there.",
            "Look for a density that is NaN for some theta, such as the logarithm of a negative number, or replace a "
            "Taylor statistic by epf.chebyshev(model).",
        )


def _log_densities(results: Any) -> np.ndarray:
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
