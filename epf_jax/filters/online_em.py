r"""Online EM: a point estimate of theta, renewed at every observation (Andrieu et al. 2005; Cappe 2009, 2011).

EM maximises the expected log-likelihood of path and data. Where that is linear in a statistic of the path,

.. math:: \log p(x_{0:t}, y_{1:t} \mid \theta) = \langle\psi(\theta), \textstyle\sum_s \phi(x_{s-1}, x_s, y_s)\rangle
          + \text{const},

the E-step is a running average of phi, and the M-step a maximum of :math:`\langle\psi(\theta), S\rangle`. Every
additive statistic of this library has this form; `taylor` and `chebyshev` serve models that have no finite statistic of
their own.

Algorithm, for t = 1..T, with step sizes gamma_t:

    1. filter    one step of the particle filter with theta known
    2. smooth    for every particle i, over the particles j of the step before (Del Moral, Doucet and Singh 2010):
                 S_t(i) = sum_j b_ij [(1 - gamma_t) S_{t-1}(j) + gamma_t phi(x_{t-1}(j), x_t(i), y_t)],
                 b_ij in proportion to w_{t-1}(j) p(x_t(i) | x_{t-1}(j), theta)
    3. maximise  <psi(theta), sum_i w_t(i) S_t(i)>, by Newton steps from the theta of before

The sum over all pairs costs O(N^2). By default a few j for every i are drawn instead, by Metropolis-Hastings moves that
start from i's own ancestor, for O(N) a step (PaRIS, Olsson and Westerborn 2017, with the moves of Dau and Chopin 2023
instead of rejection sampling). Averages over ancestors only would degenerate as paths do.

The term of x_0 is left out; it is one of t + 1, and the running average would soon forget it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.checks import check_signature, check_whole_number
from epf_jax.core.densities import log_prob
from epf_jax.filters.bootstrap import bootstrap_filter
from epf_jax.filters.filter import Filter, build_filter, builds_filter, check_filter_arguments, edge_of_box
from epf_jax.filters.memory import check_names_ancestors
from epf_jax.filters.state import FilterState
from epf_jax.models.missing import missing_where
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel, as_theta, row_of
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.proposals import Proposal, check_proposal
from epf_jax.particles.resampling import Resampler, systematic
from epf_jax.statistics import (
    Statistic,
    chebyshev,
    conjugate_blocks_if_fitting,
    taylor,
    why_not_linear_means,
)
from epf_jax.statistics.statistic import check_model_learns

_MARGIN = 1e-5
_NODES = {1: 60, 2: 32, 3: 14}  # of boxes that never shrink: between fewer a scale is misread
_NEWTON_STEPS = 2  # a step: theta hardly moves between two observations
# Of a Newton step, the best of which is taken: far from the maximum of a scale's likelihood, which is nearly straight
# there, a whole one would lead a hundred times too far.
_LENGTHS = (1.0, 0.5, 0.2, 0.05, 0.02, 5e-3, 1e-3, 1e-4)
_BESIDE = 2e-4  # of the box


@builds_filter
def online_em(
    model: StateSpaceModel,
    num_particles: int,
    *,
    statistic: Statistic | None = None,
    theta: Theta | None = None,
    num_backward: int | None = 2,
    step_size: Callable[[Any], Any] | None = None,
    wait: int = 50,
    proposal: Proposal | None = None,
    resample: Resampler = systematic,
) -> Filter:
    """Online EM: theta's maximum-likelihood estimate, the same in every particle. Its `sd` in the results is zero.

    Args:
        model: the state-space model. Its prior only limits theta: to five standard deviations from its centre, and
            further towards bounds (six with `epf.taylor` of a density that is not Gaussian). `results.diagnose()` of a
            run with `diagnostics=True` reports an estimate at such a limit.
        num_particles: N.
        statistic: an additive statistic: `epf.conjugate_blocks(model)`, `epf.taylor(model, order)`,
            `epf.taylor_log_density(model, order)`, `epf.separable(...)`, `epf.chebyshev(model, shrink=None)`. By
            default `conjugate_blocks` if it fits, or `taylor(model, 1)` if means are linear in theta and noise is known
            or depends on theta alone: both are exact. Otherwise `chebyshev` with many nodes for one to three
            parameters, and `epf.taylor(model, 2)` about the start for more, which is rough if terms are not Gaussian
            and the start is far off: start near the maximum.
        theta: the start; the prior's centre by default.
        num_backward: how many particles of the last step are drawn for each particle; None sums over all, in O(N^2).
            With two the variance does not grow with t, with one it does (Olsson and Westerborn 2017).
        step_size: `step_size(t)`, gamma_t, between 1/t and 1. The default t^-0.6 forgets a bad start, but the last
            estimate scatters by more than the maximum's standard error: average `results.theta.mean` over the second
            half of the series (Polyak and Ruppert).
        wait: how many observations to gather before the first maximisation.
        proposal: how x_t is drawn; by default `epf.fully_adapted(model)` where the model allows it.
        resample: the resampling scheme.

    `log_evidence` is the sum of log p(y_t | y_1:t-1, theta_{t-1}), a score of one-step-ahead predictions.
    """
    check_filter_arguments(model, num_particles, resample)
    step_size = (lambda t: t**-0.6) if step_size is None else step_size
    _check_plan(model, num_backward, step_size, wait, resample)
    statistic = _default_statistic(model, theta) if statistic is None else statistic
    proposal = default_proposal(model) if proposal is None else proposal
    check_proposal(proposal, model)
    coordinates, N = model.parameters, num_particles
    start = coordinates.centre if theta is None else coordinates.to_vector(as_theta(model, theta))
    inner = bootstrap_filter(model, N, proposal=proposal, resample=resample)
    _check_adds_up(model, statistic)
    zero = statistic.init()
    low, high = _box_around(model, statistic, zero, start)

    def rows(z):
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (N, *leaf.shape)), coordinates.to_theta(z))

    def init(key):
        state = inner.init(key)
        S = jax.tree.map(lambda leaf: jnp.zeros((N, *jnp.shape(leaf)), jnp.result_type(leaf)), zero)
        return state._replace(theta=rows(start), S=S)

    def step(key, state, y, u):
        key_filter, key_pairs = jax.random.split(key)
        theta = jax.tree.map(lambda leaf: leaf[0], state.theta)
        t = state.t + 1

        moved, info = inner.step(key_filter, state._replace(S=()), y, u)

        y = missing_where(info.collapsed, y)
        gamma = jnp.where(t == 1, 1.0, step_size(t.astype(float)))
        if not jnp.issubdtype(y.dtype, jnp.floating):  # an impossible whole number cannot be made NaN
            gamma = jnp.where(info.collapsed, 0.0, gamma)

        def renewed(j, x):
            """(1 - gamma) S + gamma phi, for a pair of particles."""
            after = statistic.update(jax.random.key(0), zero, theta, state.x[j], x, y, u)
            phi = jax.tree.map(jnp.subtract, after, zero)
            return jax.tree.map(lambda S, by: (1.0 - gamma) * S[j] + gamma * by, state.S, phi)

        def log_backward(j, x):
            return state.log_weights[j] + log_prob(model.transition(theta, state.x[j], u), x)

        if num_backward is None:
            S = _over_all(N, moved.x, log_backward, renewed)
        else:
            S = _over_some(key_pairs, num_backward, state, moved.x, info.ancestors, log_backward, renewed)

        climb = partial(_climb, _log_likelihood(statistic, zero, S, moved.log_weights), low, high)
        z = jax.lax.cond(t >= wait, climb, lambda z: z, coordinates.to_vector(theta))
        lost = jnp.any(jnp.stack([jnp.any(jnp.isnan(leaf)) for leaf in jax.tree.leaves(S)]))
        z = jnp.where(lost, jnp.nan, z)  # a form that the statistic has not: told, not passed over
        return moved._replace(theta=rows(z), S=S), info._replace(acceptance=jnp.full_like(info.acceptance, jnp.nan))

    backward = "all pairs" if num_backward is None else f"{num_backward} backward draws"
    description = f"online EM: {N} particles, statistic {statistic.name}, proposal {proposal.name}, {backward}"
    edge = None if statistic.box is None else lambda state: edge_of_box(model, statistic, _as_sums(zero, state))
    return build_filter(model, N, init, step, description, resample, waits=wait, statistic=statistic, edge=edge)


def _as_sums(zero: Any, state: FilterState) -> FilterState:
    """The state with additive statistics that begin at zero."""
    return state._replace(S=jax.tree.map(jnp.add, zero, state.S))


def _over_all(num: int, x: Array, log_backward: Callable, renewed: Callable) -> Any:
    """Every particle's statistic as the mean over all particles of the step before."""
    everyone = jnp.arange(num)

    def one(x):
        b = jax.nn.softmax(jax.vmap(lambda j: log_backward(j, x))(everyone))
        pairs = jax.vmap(lambda j: renewed(j, x))(everyone)
        return jax.tree.map(lambda leaf: jnp.tensordot(b, leaf, axes=1), pairs)

    return jax.lax.map(one, x, batch_size=16)


def _over_some(key, num_backward, before, x, ancestors, log_backward, renewed) -> Any:
    """Every particle's statistic as the mean over a few particles of the step before, drawn by moves on their index."""
    n = ancestors.shape[0]
    key_index, key_accept = jax.random.split(key)
    uniforms = jax.random.uniform(key_index, (num_backward, n))
    below = jnp.cumsum(jnp.exp(before.log_weights))
    proposed = jnp.minimum(jnp.searchsorted(below, uniforms * below[-1], method="scan_unrolled"), n - 1)
    accept = jnp.log(jax.random.uniform(key_accept, (num_backward, n)))

    def density(j):
        """Log p(x_t | x_{t-1}(j)): indices are proposed in proportion to their weights, which then cancel."""
        return jax.vmap(lambda j, x: log_backward(j, x) - before.log_weights[j])(j, x)

    def move(j, draws):
        candidate, log_u = draws
        j = jnp.where(log_u < density(candidate) - density(j), candidate, j)
        return j, j

    _, chosen = jax.lax.scan(move, ancestors, (proposed, accept), unroll=num_backward)
    pairs = jax.vmap(jax.vmap(renewed), in_axes=(0, None))(chosen, x)
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), pairs)


def _log_likelihood(statistic: Statistic, zero: Any, S: Any, log_weights: Array) -> Callable:
    """The log-likelihood of z by the mean of all particles' statistics, without the prior."""
    mean = jax.tree.map(lambda leaf: jnp.tensordot(jnp.exp(log_weights), leaf, axes=1), S)
    total, nothing = statistic.log_target(jax.tree.map(jnp.add, zero, mean)), statistic.log_target(zero)
    return lambda z: total(z) - nothing(z)


def _climb(objective: Callable, low: Any, high: Any, z: Float[Array, " P"]) -> Float[Array, " P"]:
    """The z after a few uphill Newton steps between low and high, each of the best of several lengths."""
    # What is read between nodes has a slope of zero, by its formula, at a node itself, where theta would stay for ever.
    beside = jnp.where(jnp.isfinite(high - low), _BESIDE * (high - low), 0.0)

    def newton(z, _):
        near = jnp.clip(z + beside, low, high)
        gradient, curvature = jax.grad(objective)(near), jax.hessian(objective)(near)
        values, vectors = jnp.linalg.eigh(curvature)
        # Along directions that curve upwards Newton's step would lead downhill: the size of the curvature is kept.
        step = vectors @ ((vectors.T @ gradient) / jnp.maximum(jnp.abs(values), 1e-6))
        steps = jnp.asarray(_LENGTHS, z.dtype)[:, None] * step
        candidates = jnp.concatenate([jnp.clip(near + steps, low, high), z[None]])
        heights = jax.vmap(objective)(candidates)
        best = candidates[jnp.argmax(jnp.where(jnp.isfinite(heights), heights, -jnp.inf))]
        return jnp.where(jnp.all(jnp.isfinite(best)), best, z), None

    return jax.lax.scan(newton, z, None, length=_NEWTON_STEPS)[0]


def _default_statistic(model: StateSpaceModel, theta: Theta | None) -> Statistic:
    coordinates, statistic = model.parameters, _exact_sums(model)
    if statistic is not None:
        return statistic._replace(box=lambda S: coordinates.box)
    dim = coordinates.dim
    return chebyshev(model, _NODES[dim], shrink=None) if dim <= 3 else taylor(model, 2, centre=theta)


def _exact_sums(model: StateSpaceModel) -> Statistic | None:
    """An exact additive statistic, or None."""
    fitting = conjugate_blocks_if_fitting(model)
    return fitting if fitting is not None or why_not_linear_means(model, in_theta=True) else taylor(model, 1)


def _box_around(model: StateSpaceModel, statistic: Statistic, zero: Any, z: Array) -> tuple[Any, Any]:
    """The limits of theta; raises if the start is outside of the statistic's box."""
    if statistic.box is None:
        return -jnp.inf, jnp.inf
    low, high = statistic.box(zero)
    outside = (z < low) | (z > high)
    if not isinstance(outside, jax.core.Tracer) and np.any(outside):
        ends = [model.parameters.to_theta(end) for end in (low, high)]
        raise ValueError(
            f"theta: the start lies outside of what the statistic covers, {ends[0]} to {ends[1]}. Use a wider prior, "
            "or a statistic with a wider box, epf.chebyshev(model, shrink=None, box=(lowest, highest))."
        )
    return low + _MARGIN * (high - low), high - _MARGIN * (high - low)  # by rounding its edge may lie outside


def _check_plan(model: StateSpaceModel, num_backward: Any, step_size: Any, wait: Any, resample: Resampler) -> None:
    """Raise for arguments that online EM cannot work with."""
    check_model_learns(model, "online_em")
    check_names_ancestors("online_em", resample)
    check_whole_number("wait", wait, hint="Some dozens are usual.")
    if num_backward is not None:
        check_whole_number("num_backward", num_backward, hint="Two are usual; None sums over all particles.")
    check_signature("step_size", step_size, ("t",), returns="a number")
    for t in (2.0, 10.0, 1000.0):
        gamma = step_size(jnp.asarray(t))
        if not isinstance(gamma, jax.core.Tracer) and not 0.0 <= float(gamma) <= 1.0:
            raise ValueError(
                f"step_size: expected a share of the newest step, 0 to 1, got {float(gamma):g} at t = {t:g}. Such as "
                "lambda t: t**-0.6."
            )


def _check_adds_up(model: StateSpaceModel, statistic: Any) -> None:
    """Raise for a statistic whose update does not simply add a term."""
    if not isinstance(statistic, Statistic):
        raise TypeError(f"statistic: expected a Statistic such as epf.taylor(model, order=7), got {statistic!r}.")
    advice = (
        "Online EM averages statistics over paths. Use epf.conjugate_blocks(model), epf.taylor(model, order), or "
        "epf.chebyshev(model, shrink=None)."
    )
    if statistic.box_follows or not statistic.moves:
        raise ValueError(f"statistic: {statistic.name} is not a sum over the path. {advice}")
    theta = model.parameters.to_theta(model.parameters.centre)
    draws = jax.random.normal(jax.random.key(0), (2, *model.shapes.x.shape)).astype(model.shapes.x.dtype)
    u, key, zero = row_of(model), jax.random.key(0), statistic.init()
    y = model.observation(theta, draws[0], u).sample(key)

    def after(S, x_prev, x):
        return statistic.update(key, S, theta, x_prev, x, y, u)

    first, second = after(zero, draws[0], draws[1]), after(zero, draws[1], draws[0])
    both = after(first, draws[1], draws[0])
    for together, a, b, nothing in zip(*map(jax.tree.leaves, (both, first, second, zero)), strict=True):
        alike = jnp.allclose(together, a + b - nothing, rtol=1e-3, atol=1e-3)  # rounding of float32, and then some
        if not isinstance(alike, jax.core.Tracer) and not alike:  # a model that is traced itself is taken at its word
            raise ValueError(f"statistic: {statistic.name} is not a sum over the path. {advice}")
