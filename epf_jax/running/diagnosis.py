"""`results.diagnose()`: how far the answer is off, in posterior standard deviations, why, and what to do.

The effect is measured by fresh likelihoods where the series is at hand (`reference`), and otherwise by groups of
particles that share a founder, of a run with `diagnostics=True`. Causes are named beside an effect that matters.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from epf_jax.core.findings import HARMLESS, WRONG, Diagnosis, Finding
from epf_jax.core.naming import component_names, scalars
from epf_jax.running.alarms import alarms
from epf_jax.running.causes import causes
from epf_jax.running.certificate import Certificate
from epf_jax.running.records import times

_QUARTILE = 0.6745  # of a Gaussian, in sds: an sd that is off moves the quartiles by so much of its share
_Z = 3.5  # of a predictive check; a right model exceeds it once in two thousand checks


def diagnose(results: Any, seconds: float) -> Diagnosis:
    """What is off in one run, how much that matters, and what to do: see the module's docstring."""
    answer, measured = _answer(results, seconds)
    told = [each if each.effect > 0 else each._replace(effect=answer.effect) for each in alarms(results)]
    beside = [] if answer.effect < HARMLESS or not answer.message else [answer]
    if answer.effect >= HARMLESS:
        beside += [cause._replace(effect=answer.effect) for cause in causes(results)]
    return Diagnosis([*beside, *told, *_prediction(results)], measured)


def _answer(results: Any, seconds: float) -> tuple[Finding, str]:
    """How far theta's posterior is off, and how that was measured; without a message where nothing can be said."""
    unknown = Finding("answer", "theta", "", "")
    mean, sd = (_last(part) for part in (results.theta.mean, results.theta.sd))
    if not mean:
        return unknown, "Theta is known: there is no effect on it."
    if not np.isfinite([*mean.values()]).all():
        return unknown, "There is no answer whose error could be measured."
    try:
        found = results.origin.certificate(seconds)
    except ValueError as error:
        return unknown, f"The error cannot be measured. {error}"
    if found is not None:
        return _beside(found, mean, sd)
    if results.diagnostics is None:
        return (
            unknown,
            "The error was not measured: epf.run(key, filter, y, diagnostics=True) on the whole series does.",
        )
    return _by_groups(results, mean, sd)


def _beside(found: Certificate, mean: dict[str, Any], sd: dict[str, Any]) -> tuple[Finding, str]:
    """By how many posterior sds the mean or the quartiles about it are off from those of fresh likelihoods."""
    of = found.of_theta
    scale = np.where(of.sd > 0, of.sd, 1.0)
    z, ratio = (np.array([*mean.values()]) - of.mean) / scale, np.array([*sd.values()]) / scale
    off = np.maximum(np.abs(z), _QUARTILE * np.abs(ratio - 1.0))
    worst = int(np.argmax(off))
    name, effect = list(mean)[worst], float(off[worst])
    num = f"{len(found.weights):,} fresh likelihoods"
    if not found.holds and effect < WRONG:
        message = f"{num} could not tell how far the answer is off: they are worth {found.worth:.0f} draws."
        return Finding("answer", "theta", message, "Give diagnose more seconds=..., or call epf.learn."), ""
    message = (
        f"The mean of {name} is {z[worst]:+.2g} posterior sds off, and its sd is {ratio[worst]:.2g} times what it "
        "should be."
    )
    advice = "Take the answer of epf.learn(key, model, y), or see the causes beside."
    return Finding("answer", name, message, advice, effect), f"By {num}, the answer is off by {effect:.2g} sd."


def _by_groups(results: Any, mean: dict[str, Any], sd: dict[str, Any]) -> tuple[Finding, str]:
    """The standard error of the mean, each founder's descendants counting as one draw (Chan and Lai 2013)."""
    state, founders = results.final, np.asarray(results.diagnostics.lineage.founders)
    weights = np.exp(np.asarray(state.log_weights, float))
    errors = {}
    for name, values in scalars(state.theta, 1).items():
        apart = weights / weights.sum() * (values - mean[name])
        sums = np.bincount(founders, apart, len(founders))
        errors[name] = float(np.sqrt(np.sum(sums**2)) / (sd[name] if sd[name] > 0 else 1.0))
    worst = max(errors, key=lambda name: errors[name])
    since = int(results.diagnostics.lineage.since)
    message = f"The mean of {worst} is uncertain by at least {errors[worst]:.2g} posterior sds."
    advice = "Take more particles and compare keys (epf.replicate), or take the answer of epf.learn(key, model, y)."
    measured = f"Particles that share a founder of t = {since} differ by {errors[worst]:.2g} sd, a lower bound."
    return Finding("answer", worst, message, advice, errors[worst]), measured


def log_evidence_error(results: Any, seconds: float) -> float:
    """How far the last log-evidence is off, and how well that is known; NaN where nothing tells."""
    found = results.origin.certificate(seconds) if _last(results.theta.mean) else None
    if found is None or not found.holds:
        return float("nan")
    return float(abs(float(results.log_evidence[-1]) - found.log_evidence) + found.log_evidence_error)


def _last(summary: Any) -> dict[str, Any]:
    return {name: float(values[-1]) for name, values in scalars(summary, 1).items()}


def _prediction(results: Any) -> Iterator[Finding]:
    """Observations that did not come as they were predicted: the model's fault, not the answer's."""
    if results.diagnostics is None:
        return
    pit, t = np.asarray(results.diagnostics.pit, float), times(results)
    names = component_names("y", pit.shape[1:])
    for name, u in zip(names, pit.reshape(len(pit), -1).T, strict=True):
        seen = ~np.isnan(u)
        if seen.sum() >= 20:
            where = f"{name}, t = {t[seen][0]} to {t[seen][-1]}"
            yield from (Finding("prediction", where, *words, effect=0.0) for words in _misfit(u[seen]))


def _misfit(u: np.ndarray) -> Iterator[tuple[str, str]]:
    r"""Departures of u from independent uniform draws, in standard errors, with advice.

    A uniform u has mean 1/2 and variance 1/12; :math:`(u - 1/2)^2` has mean 1/12 and variance 1/180; the product of two
    independent centred ones has mean 0 and variance 1/144.
    """
    centred, num = u - 0.5, len(u)
    bias = centred.mean() * np.sqrt(12 * num)
    spread = (np.mean(centred**2) - 1 / 12) * np.sqrt(180 * num)
    memory = np.mean(centred[1:] * centred[:-1]) * 12 * np.sqrt(num - 1)
    if abs(bias) > _Z:
        side = "higher" if bias > 0 else "lower"
        yield (
            f"Observations came {side} than predicted, by {abs(bias):.1f} standard errors.",
            "Give the model a level or drift to learn.",
        )
    if abs(spread) > _Z:
        yield (
            f"Predictions were too {'narrow' if spread > 0 else 'wide'}, by {abs(spread):.1f} standard errors.",
            "Let the noise scales be learned (dist.LogNormal priors), or take heavier tails (dist.StudentT) where a "
            "few observations are far out.",
        )
    if abs(memory) > _Z:
        yield (
            f"Each miss foretold the next: successive ones {'agree' if memory > 0 else 'alternate'}, by "
            f"{abs(memory):.1f} standard errors.",
            "Take a richer transition (another lag, a trend, a season, an input), or a larger noise in it.",
        )
