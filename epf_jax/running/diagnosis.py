"""`results.diagnose()`: what went wrong in a run, and what to try.

Weights, the moves of theta and NaN densities are always recorded; the predictive check, the health of the statistic and
the descent of particles with `run(..., diagnostics=True)`. Findings are hints: neither a finding nor its absence proves
anything, so compare a few keys (`epf.replicate`).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from epf_jax.core.findings import Diagnosis, Finding
from epf_jax.core.naming import component_names, named_leaves
from epf_jax.filters.known_theta import Gaussian
from epf_jax.filters.practical import Window
from epf_jax.filters.smc2 import NestedFilters
from epf_jax.running.records import Diagnostics, coordinate_names, times
from epf_jax.statistics.chebyshev import NodalStatistic

_LOW_ESS = 0.01  # of the particles, and never less than two of them
# Of a random walk tuned well a fifth to a half is accepted, of HMC's steps up to .97; .98 is a walk on a Gaussian by
# sixteenths of its standard deviation s: 2 / pi atan(2 / s).
_ACCEPTANCE = (0.05, 0.98)
_EDGE = 0.02  # of the posterior, in the outer twentieth of a box; six standard deviations leave 1e-8 there
_REMAINDER = 0.5  # in log-density: beyond, the shape that theta is drawn from is not the posterior's
_SHIFT = 0.3  # in posterior standard deviations
_ROUGH = 0.15  # in log-density: chosen on seven models, where keys disagreed by 0.14 posterior sds and more beyond it
_NO_EXAMPLE = (
    " A model that reads inputs should know one, StateSpaceModel(..., example_input=inputs[0]): particles then "
    "remember their first steps."
)
_FEW = 10  # paths; with so few, chance decides which they are
_Z = 3.5  # of a predictive check; a right model exceeds it once in two thousand checks


def diagnose(results: Any) -> Diagnosis:
    """What went wrong in a run, in plain words, and what to try: see the module's docstring."""
    findings = [*_weights(results), *_moves(results), *_densities(results), *_first_boxes(results), *_descent(results)]
    if results.diagnostics is not None:
        recorded = (results, results.diagnostics)
        findings += [*_box(*recorded), *_expansion(*recorded), *_nodes(*recorded)]
        first = (
            "what is found above, if it is more than a moment's: such a filter predicts badly by a right model, too. "
        )
        first = first + "Else " if findings else ""
        return Diagnosis([*findings, *(f._replace(advice=first + f.advice) for f in _prediction(*recorded))])
    descent = ("the particles' descent",) if results.history is None else ()
    return Diagnosis(findings, ("the predictive check", "the statistic's box and remainder", *descent))


def _weights(results: Any) -> Iterator[Finding]:
    """Observations that left too few particles with weight."""
    ess, collapsed, t = np.asarray(results.ess), np.asarray(results.collapsed), times(results)
    num = results.final.log_weights.shape[-1]
    if collapsed.any():
        yield Finding(
            "zero weights",
            f"t = {_listed(t[collapsed])}",
            f"no particle could explain the observation at {_count(collapsed)}; it was passed over, and log_evidence "
            "is -inf from there on.",
            "look at those observations (an outlier, wrong units, a value outside the observation's support, a code "
            "such as -999 for a missing value: write NaN); give the observation a wider or heavier-tailed "
            "distribution, such as dist.StudentT; or look ahead with epf.fully_adapted(model), epf.laplace(model) or "
            "epf.guided(q).",
        )
    low = (ess < max(_LOW_ESS * num, 2.0)) & ~collapsed
    if low.any():
        worst = int(np.argmin(np.where(low, ess, np.inf)))
        yield Finding(
            "weights",
            f"t = {_listed(t[low])}",
            f"the effective sample size fell below {max(_LOW_ESS * num, 2.0):g} of {num} particles at {_count(low)}, "
            f"to {ess[worst]:.1f} at t = {t[worst]}: a few particles carried all the weight.",
            "propose with the observation in view (epf.fully_adapted(model), epf.laplace(model), epf.guided(q)), if "
            "this filter does not; take more particles; if it is one observation, see whether it is an outlier, or a "
            "code such as -999 for a missing value (write NaN).",
        )


def _moves(results: Any) -> Iterator[Finding]:
    """Acceptance rates that say that theta hardly moves."""
    acceptance = np.asarray(results.acceptance)
    acceptance = acceptance[~np.isnan(acceptance)]  # steps that tried a move
    names = [name for name, _ in named_leaves(results.theta.mean, "theta")]
    if not names or np.all(acceptance == 1.0):  # nothing to learn, no moves by design, or exact draws
        return
    rate = float(acceptance.mean())
    if np.all(acceptance == 0.0):
        yield Finding(
            "moves of theta",
            ", ".join(names),
            "theta was never redrawn: its particles are those of the prior that are left, fewer at every step.",
            "a filter that redraws theta, such as epf.extended_parameter_filter; if this is one, its sampler's steps "
            "are never accepted: epf.random_walk() without a step size scales them to the posterior.",
        )
    elif rate < _ACCEPTANCE[0]:
        yield Finding(
            "moves of theta",
            ", ".join(names),
            f"only {rate:.1%} of theta's proposed moves were accepted: theta hardly moves, and lags behind the data.",
            "epf.slice_sampler(), or more steps of the walk, epf.random_walk(num_steps=10), without a step size, which "
            "scales them to the posterior. Where neither changes the posterior, the particles' own posteriors are far "
            "narrower than that of all: a filter that moves theta otherwise, epf.node_filter or epf.smc2_filter.",
        )
    elif rate > _ACCEPTANCE[1]:
        yield Finding(
            "moves of theta",
            ", ".join(names),
            f"{rate:.1%} of theta's proposed moves were accepted: the steps are too small to get anywhere.",
            "larger steps; epf.random_walk() without a step size scales them to the posterior. (Of epf.slice_sampler() "
            "it is as it should be: such a step always goes somewhere.)",
        )


def _densities(results: Any) -> Iterator[Finding]:
    """Densities of theta that were NaN."""
    bad, t = np.asarray(results.num_bad_densities), times(results)
    if bad.any():
        yield Finding(
            "density of theta",
            f"t = {_listed(t[bad > 0])}",
            f"it was NaN at {int(bad.sum())} of the places where its sampler looked; theta was never moved there.",
            "epf.chebyshev(model) instead of a Taylor statistic, jax_enable_x64, and a model whose density is a number "
            "for every theta that its prior allows.",
        )


def _first_boxes(results: Any) -> Iterator[Finding]:
    """Boxes of a nodal statistic that were cut by what could not be read between their nodes."""
    S = results.final.S
    S = S.S if isinstance(S, Window) else S  # of what left the practical filter's window
    if not isinstance(S, NodalStatistic):
        return
    num = int(np.max(S.num_misread))
    if num:
        yield Finding(
            "first boxes",
            "theta",
            f"observations said so much more than was known before them that {num} times the statistic's box was cut "
            "by what was read between nodes too far apart for it: the posterior may be off, on every key alike.",
            "compare with epf.smc2_filter(model, ...), which has no boxes, or epf.node_filter(model), and if they say "
            "otherwise take them, or a box where you know theta to be, epf.chebyshev(model, box=(lowest, highest))."
            + (_NO_EXAMPLE if S.opening is None else ""),
        )


def _box(results: Any, recorded: Diagnostics) -> Iterator[Finding]:
    """A parameter that presses against the box of its statistic."""
    edge, t = np.asarray(recorded.edge), times(results)
    for name, share in zip(coordinate_names(results), edge.T, strict=True):
        if share.max() > _EDGE:
            worst = int(np.argmax(share))
            yield Finding(
                "box",
                f"{name}, t = {t[worst]}",
                f"{share[worst]:.0%} of its posterior lay in the outer twentieth of the box that the statistic or the "
                f"nodes are confined to ({share[-1]:.0%} at the end); what lies outside is cut off, or a guess.",
                "a prior that reaches where the data point; or a wider box, epf.chebyshev(model, box=(lowest, "
                "highest)), or shrink=None there, if a shrinking box followed a misleading start; of a node filter, "
                "more nodes.",
            )


def _expansion(results: Any, recorded: Diagnostics) -> Iterator[Finding]:
    """A Taylor statistic that is not the density that it expands."""
    t = times(results)
    # Of what theta's present values leave out, the later half of the series tells; early, theta was elsewhere.
    later = slice(len(t) // 2, None)
    total = 2 * abs(float(np.sum(np.asarray(recorded.remainder, float)[later])))
    shifts = 2 * np.abs(np.sum(np.asarray(recorded.shift, float)[later], axis=0))
    names = coordinate_names(results)
    other = "epf.chebyshev(model)" if len(names) <= 3 else "epf.assumed_density(model)"
    advice = f"{other}, a higher order, or a centre near the posterior, epf.taylor(model, 7, centre=...)."
    for name, shift in zip(names, shifts, strict=True):
        if not shift <= _SHIFT:
            yield Finding(
                "expansion",
                f"{name}, t = {t[-1]}",
                f"what the Taylor polynomial leaves out moves it by about {shift:.2g} of its posterior standard "
                f"deviations, beyond {_SHIFT}: theta is drawn from another density than the posterior.",
                advice,
            )
    if not total <= _REMAINDER:  # NaN counts as too much
        yield Finding(
            "expansion",
            f"t = {t[-1]}",
            f"what the Taylor polynomial leaves out of the log-density at theta adds up to {total:.2g}, beyond "
            f"{_REMAINDER}: theta is drawn from another density than the posterior.",
            advice,
        )


def _nodes(results: Any, recorded: Diagnostics) -> Iterator[Finding]:
    """Nodes of theta whose log-likelihoods are too noisy to be read between."""
    rough, t = np.asarray(recorded.roughness), times(results)
    worst = int(np.argmax(rough))  # noise of early steps stays, smoothed, when the nodes are placed anew
    noise = float(rough[worst])
    if not noise <= _ROUGH:
        so = "another key may put the posterior elsewhere."
        advice = (
            "several times as many particles at each node, node_filter(model, num_inner=...), and, if that changes "
            "little, more nodes, num_nodes=...; a proposal that looks at the data, epf.laplace(model) or "
            "epf.guided(q); or epf.smc2_filter, epf.pmmh, which need no smooth curve."
        )
        if isinstance(results.final.S.filters, Gaussian):  # sigma points have no noise: the nodes are too far apart
            so = "what is read between them is off."
            advice = "more nodes, node_filter(model, num_nodes=...), or a prior that is less vague."
        yield Finding(
            "nodes",
            f"t = {t[worst]}",
            f"the log-likelihoods at neighbouring nodes do not lie on a smooth curve, by about {noise:.2g}, where "
            f"{_ROUGH} is the most to be believed: {so}",
            advice,
        )


def _descent(results: Any) -> Iterator[Finding]:
    """Paths that have become a few, and lately."""
    if isinstance(results.final.S, NestedFilters):  # SMC2 runs whole filters anew at new parameters
        return
    t, num = times(results), results.final.log_weights.shape[-1]
    count, generation = _last_few(results)
    age = int(t[-1]) - generation
    # Equal weights would make all paths one in about 2 N steps of multinomial resampling (Kingman's coalescent), and
    # better schemes take longer. Few paths left within N steps tell of weights that were far from equal.
    if count < _FEW and age < num:
        some = "one particle" if count == 1 else f"{count} particles"
        yield Finding(
            "descent",
            f"t = {generation}",
            f"all {num} particles descend from {some} of t = {generation}, {age} observations before the end: what "
            "they say of the parameters rests on no more paths than that, and their spread may be too small.",
            "compare a few keys (epf.replicate): if their posteriors disagree, take more particles, propose with the "
            "observation in view (epf.fully_adapted, epf.laplace), resample less (epf.when_ess_below(0.5)), or take a "
            "filter whose parameters share no paths: epf.node_filter, epf.smc2_filter (where the model is linear and "
            "Gaussian given theta with inner=epf.kalman(model), by which likelihoods are exact).",
        )


def _last_few(results: Any) -> tuple[int, int]:
    """The last generation known to have fewer than `_FEW` particles with descendants at the end, and how many."""
    t, num = times(results), results.final.log_weights.shape[-1]
    known = [(num, int(t[0]) - 1)]
    if results.history is not None:
        counts = results.history.num_distinct_ancestors()
        known += [(int(counts[i]), int(t[i])) for i in np.flatnonzero(counts < _FEW)[-1:]]
    elif results.diagnostics is not None:
        founders, founded, parents = (
            np.asarray(a)
            for a in (results.diagnostics.num_founders, results.diagnostics.founded, results.diagnostics.num_parents)
        )
        known += [(1, int(founded[i])) for i in np.flatnonzero(founders == 1)[-1:]]
        known += [(1, int(t[i]) - 1) for i in np.flatnonzero(parents == 1)[-1:]]
        known += [(int(founders[-1]), int(founded[-1]))] if founders[-1] < _FEW else []
    return max(known, key=lambda pair: (pair[1], -pair[0]))


def _prediction(results: Any, recorded: Diagnostics) -> Iterator[Finding]:
    """Observations that did not come as they were predicted."""
    pit, t = np.asarray(recorded.pit, float), times(results)
    names = component_names("y", pit.shape[1:])
    for name, u in zip(names, pit.reshape(len(pit), -1).T, strict=True):
        seen = ~np.isnan(u)
        if seen.sum() >= 20:
            yield from _misfit(name, u[seen], t[seen])


def _misfit(name: str, u: np.ndarray, t: np.ndarray) -> Iterator[Finding]:
    r"""Departures of u from independent uniform draws, in standard errors.

    A uniform u has mean 1/2 and variance 1/12; :math:`(u - 1/2)^2` has mean 1/12 and variance 1/180; the product of two
    independent centred ones has mean 0 and variance 1/144.
    """
    where, centred, num = f"{name}, t = {t[0]} to {t[-1]}", u - 0.5, len(u)
    bias = centred.mean() * np.sqrt(12 * num)
    spread = (np.mean(centred**2) - 1 / 12) * np.sqrt(180 * num)
    memory = np.mean(centred[1:] * centred[:-1]) * 12 * np.sqrt(num - 1)
    if abs(bias) > _Z:
        yield Finding(
            "prediction",
            where,
            f"observations came {'higher' if bias > 0 else 'lower'} than predicted: on average {u.mean():.0%} of the "
            f"predictive distribution lay below them, {abs(bias):.1f} standard errors from half.",
            "a level or drift that the model can learn: an offset in the observation, or a mean in the transition.",
        )
    if abs(spread) > _Z:
        inside = np.mean((u > 0.25) & (u < 0.75))
        yield Finding(
            "prediction",
            where,
            f"predictions were too {'narrow' if spread > 0 else 'wide'}: {inside:.0%} of the observations fell "
            f"inside the 50% predictive band, and how they spread is {abs(spread):.1f} standard errors off.",
            "let the noise scales be learned (dist.LogNormal priors), or heavier tails (dist.StudentT) where a few "
            "observations are far out."
            if spread > 0
            else "smaller noise scales, or let them be learned (dist.LogNormal priors).",
        )
    if abs(memory) > _Z:
        yield Finding(
            "prediction",
            where,
            f"each miss foretold the next: successive ones {'agree' if memory > 0 else 'alternate'}, "
            f"{abs(memory):.1f} standard errors from independence. The dynamics leave something predictable over.",
            "a richer transition (another lag, a trend, a season, an input), or a larger noise in the transition, so "
            "that the state can follow.",
        )


def _listed(t: np.ndarray, most: int = 5) -> str:
    return ", ".join(map(str, t[:most])) + (f", ... ({len(t)} in all)" if len(t) > most else "")


def _count(which: np.ndarray) -> str:
    return f"{int(which.sum())} observation{'s' if which.sum() != 1 else ''}"
