"""Why an answer may be off: few particles with weight, moves of theta, and what `run(..., diagnostics=True)` records.

`diagnose` names these only beside an effect: many a run with a poor acceptance rate, or few founders, is right.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from epf_jax.core.findings import Finding
from epf_jax.core.naming import named_leaves
from epf_jax.filters.known_theta import Gaussian
from epf_jax.filters.practical import Window
from epf_jax.filters.smc2 import NestedFilters
from epf_jax.running.records import coordinate_names, times
from epf_jax.statistics.chebyshev import NodalStatistic
from epf_jax.statistics.decomposed import DecomposedStatistic

_LOW_ESS = 0.01  # of the particles, and never less than two of them
# Of a random walk tuned well a fifth to a half is accepted, of HMC's steps up to .97; .98 is a walk on a Gaussian by
# sixteenths of its standard deviation s: 2 / pi atan(2 / s).
_ACCEPTANCE = (0.05, 0.98)
_EDGE = 0.02  # of the posterior, in the outer twentieth of a box; six standard deviations leave 1e-8 there
_REMAINDER = 0.5  # in log-density: beyond, the shape that theta is drawn from is not the posterior's
_SHIFT = 0.3  # in posterior standard deviations
_ROUGH = 0.15  # in log-density: chosen on seven models, where keys disagreed by 0.14 posterior sds and more beyond it
_FEW = 10  # paths; with so few, chance decides which they are


def causes(results: Any) -> Iterator[Finding]:
    """What the run recorded that makes an answer wrong; each cause's effect is not known."""
    yield from _weights(results)
    yield from _moves(results)
    yield from misread(results)
    if results.diagnostics is not None:
        yield from _box(results)
        yield from _expansion(results)
        yield from _nodes(results)
        yield from _descent(results)


def _weights(results: Any) -> Iterator[Finding]:
    """Observations that left too few particles with weight."""
    ess, t, num = np.asarray(results.ess), times(results), results.final.log_weights.shape[-1]
    low = (ess < max(_LOW_ESS * num, 2.0)) & ~np.asarray(results.collapsed)
    if low.any():
        worst = int(np.argmin(np.where(low, ess, np.inf)))
        yield Finding(
            "weights",
            f"t = {t[worst]}",
            f"A few particles carried all the weight at {int(low.sum())} of {len(t)} observations: at t = {t[worst]}, "
            f"{num} particles were worth {ess[worst]:.1f}.",
            "Propose with the observation in view (epf.fully_adapted(model), epf.laplace(model), epf.guided(q)), or "
            "take more particles; if it is one observation, see whether it is an outlier or a code such as -999 for a "
            "missing value (write NaN).",
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
        message = "Theta was never redrawn: its particles are those of the prior that are left, fewer at every step."
        advice = "Take a filter that redraws theta, such as epf.extended_parameter_filter."
    elif rate < _ACCEPTANCE[0]:
        message = f"Theta hardly moves: {rate:.1%} of its proposed moves were accepted."
        advice = "Take epf.slice_sampler(), more steps, epf.random_walk(num_steps=10), or epf.smc2_filter."
    elif rate > _ACCEPTANCE[1]:
        message = f"Theta's steps are too small to get anywhere: {rate:.1%} of its proposed moves were accepted."
        advice = "Take epf.random_walk() without a step size, which scales its steps to the posterior."
    else:
        return
    yield Finding("moves of theta", ", ".join(names), message, advice)


def misread(results: Any) -> Iterator[Finding]:
    """Boxes of a nodal statistic that were cut by what could not be read between their nodes."""
    S = results.final.S
    S = S.S if isinstance(S, Window) else S  # of what left the practical filter's window
    num = int(np.max(S.num_misread)) if isinstance(S, NodalStatistic | DecomposedStatistic) else 0
    if num:
        yield Finding(
            "box",
            "first observations",
            f"The first observations said so much more than the prior that the statistic's box was cut {num} times by "
            "what was read between nodes too far apart.",
            "Take epf.smc2_filter, which has no boxes, or a narrower prior.",
        )


def _box(results: Any) -> Iterator[Finding]:
    """A parameter that presses against the box of its statistic."""
    edge, t = np.asarray(results.diagnostics.edge), times(results)
    for name, share in zip(coordinate_names(results), edge.T, strict=True):
        if share.max() > _EDGE:
            worst = int(np.argmax(share))
            yield Finding(
                "box",
                f"{name}, t = {t[worst]}",
                f"{share[worst]:.0%} of the posterior of {name} lay in the outer twentieth of the box of the statistic "
                f"or the nodes at t = {t[worst]} ({share[-1]:.0%} at the end); what lies outside is cut off.",
                "Take a prior that reaches where the data point, a wider box, epf.chebyshev(model, box=(lowest, "
                "highest)), or more nodes.",
            )


def _expansion(results: Any) -> Iterator[Finding]:
    """A Taylor statistic that is not the density that it expands."""
    t, names = times(results), coordinate_names(results)
    # Of what theta's present values leave out, the later half of the series tells; early, theta was elsewhere.
    later = slice(len(t) // 2, None)
    total = 2 * abs(float(np.sum(np.asarray(results.diagnostics.remainder, float)[later])))
    shifts = 2 * np.abs(np.sum(np.asarray(results.diagnostics.shift, float)[later], axis=0))
    moved = [f"{name} by {shift:.2g} sd" for name, shift in zip(names, shifts, strict=True) if not shift <= _SHIFT]
    if moved or not total <= _REMAINDER:  # NaN counts as too much
        by = f", and moves {', '.join(moved)}" if moved else ""
        other = "epf.chebyshev(model)" if len(names) <= 3 else "epf.assumed_density(model)"
        yield Finding(
            "expansion",
            ", ".join(name for name, shift in zip(names, shifts, strict=True) if not shift <= _SHIFT) or "theta",
            f"What the Taylor polynomial leaves out adds up to {total:.2g} in log-density{by}.",
            f"Take {other}, a higher order, or a centre near the posterior, epf.taylor(model, 7, centre=...).",
        )


def _nodes(results: Any) -> Iterator[Finding]:
    """Nodes of theta whose log-likelihoods are too noisy to be read between."""
    rough, t = np.asarray(results.diagnostics.roughness), times(results)
    worst = int(np.argmax(rough))  # noise of early steps stays, smoothed, when the nodes are placed anew
    if not rough[worst] <= _ROUGH:
        exact = isinstance(results.final.S.filters, Gaussian)  # no noise: the nodes are too far apart
        yield Finding(
            "nodes",
            f"t = {t[worst]}",
            f"The nodes' log-likelihoods are off a smooth curve by {rough[worst]:.2g} at t = {t[worst]}.",
            "Take more nodes, node_filter(model, num_nodes=...), or a prior that is less vague."
            if exact
            else "Take more particles at each node, node_filter(model, num_inner=...), or epf.smc2_filter, which needs "
            "no smooth curve.",
        )


def _descent(results: Any) -> Iterator[Finding]:
    """Paths that have become a few, and lately."""
    if isinstance(results.final.S, NestedFilters):  # SMC^2 runs whole filters anew at new parameters
        return
    recorded, num, last = results.diagnostics, results.final.log_weights.shape[-1], int(times(results)[-1])
    count, since = int(recorded.num_founders[-1]), int(recorded.founded[-1])
    if count >= _FEW and since > last - len(results.ess):  # counted anew: all paths were one at `since`
        count = 1
    # Equal weights would make all paths one in about 2 N steps of multinomial resampling (Kingman's coalescent), and
    # better schemes take longer. Few paths left within N steps tell of weights that were far from equal.
    if count < _FEW and last - since < num:
        some = "one particle" if count == 1 else f"{count} particles"
        yield Finding(
            "descent",
            f"t = {since}",
            f"All {num} particles descend from {some} at t = {since}.",
            "Take more particles, a proposal that looks at the data (epf.fully_adapted, epf.laplace), or a filter "
            "whose parameters share no paths: epf.node_filter, epf.smc2_filter.",
        )
