r"""The parameter filter: Storvik (2002) and the extended parameter filter of Erol et al. (2013) are one filter.

Every particle carries its state, its theta and a statistic S of its own path, from which theta is redrawn at every
step. Storvik's filter has an exact statistic, the EPF an approximate one; nothing else differs.

Algorithm, for t = 1..T (Erol et al. 2013, Algorithms 2 and 3; Pitt and Shephard 1999 for the look-ahead):

    1. [look-ahead]  weigh by g(x_{t-1}, theta, y_t) and resample x_{t-1}, theta, S
    2. draw          x_t ~ q(. | x_{t-1}, y_t, theta)
    3. weigh         by p(x_t | x_{t-1}, theta) p(y_t | x_t, theta) / q(x_t), less the look-ahead weight
    4. [otherwise]   resample x_{t-1}, x_t, theta, S
    5. update        S <- S + phi(x_{t-1}, x_t, y_t)
    6. redraw        theta ~ p(theta | S)

Departures from the paper's box: the update takes both x_{t-1} and x_t (the box names only x_{t-1}), and theta is
resampled with S; otherwise a Metropolis-Hastings chain would go on from another particle's value. The redraw is at the
end of step t instead of the start of step t+1, so that the state holds a draw from p(theta | x_0:t) for every surviving
path. An observation that gives every particle zero weight is counted in `StepInfo` and then treated as missing.
"""

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from epf_jax.core.checks import frames_to_user
from epf_jax.core.choice import where
from epf_jax.filters.filter import (
    Filter,
    build_filter,
    builds_filter,
    check_filter_arguments,
    spread_of,
    start,
    step_info,
)
from epf_jax.filters.state import FilterState
from epf_jax.models.missing import missing_where
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.gradients import moves_particles
from epf_jax.particles.proposals import (
    Proposal,
    bootstrap,
    check_proposal,
    fully_adapted,
    why_not_kalman,
)
from epf_jax.particles.quasi_random import check_kept_in_order
from epf_jax.particles.resampling import Resampler, resampler_name, select, systematic
from epf_jax.particles.weights import reweight
from epf_jax.samplers import Sampler, default_walk, no_draw
from epf_jax.statistics import (
    NotConjugateError,
    Statistic,
    assumed_density,
    chebyshev,
    conjugate,
    conjugate_blocks,
    conjugate_blocks_if_fitting,
    decomposed,
    linear_means,
    why_not_conjugate,
    why_not_decomposed,
    why_not_linear_means,
    with_sampler,
)
from epf_jax.statistics.opening import without_opening
from epf_jax.statistics.statistic import updated


@builds_filter
def extended_parameter_filter(
    model: StateSpaceModel,
    num_particles: int,
    *,
    statistic: Statistic | None = None,
    sampler: Sampler | None = None,
    proposal: Proposal | None = None,
    resample: Resampler = systematic,
) -> Filter:
    """The extended parameter filter: theta and x_t learned online, at constant cost per observation.

    Args:
        model: the state-space model.
        num_particles: N.
        statistic: what each particle keeps of its path: `epf.taylor(model, order=7)`, `epf.chebyshev(model)`, ...
        sampler: how theta is drawn given the statistic: `epf.random_walk()`, `epf.slice_sampler()`,
            `epf.grid_sampler()`, `epf.blackjax_sampler(blackjax.hmc, ...)`; the statistic's own by default.
        proposal: how x_t is drawn: `epf.bootstrap()`, `epf.fully_adapted(model)`, `epf.laplace(model)`,
            `epf.guided(q)`.
        resample: `epf.systematic`, `epf.multinomial`, ..., or `epf.when_ess_below(0.5, epf.systematic)`.

    Parts that you do not give are chosen for the model, by the first rule that fits:

    - statistic: `conjugate` (exact) if theta has a Gaussian prior and enters linearly with known Gaussian noise;
      `conjugate_blocks` (exact) if variances, covariances, rates or probabilities have a conjugate prior and everything
      else fits it (not inside `jax.jit`, `grad` or `vmap` over the model, where this cannot be checked);
      `linear_means` (exact) if all terms with theta are Gaussian, their noise is known or depends on theta alone, and
      their means are linear in theta, or linear in the state and the inputs, under any prior;
      `decomposed` if the means are linear given one or two parameters, which get nodes, and theta has others;
      `chebyshev` for one to three parameters; `assumed_density` for more.
    - sampler: that of the statistic. The defaults have exact draws (`conjugate`, `conjugate_blocks`,
      `assumed_density`; the coefficients of `decomposed`), Gaussian proposals (`linear_means`), or population-scaled
      random-walk steps: one for one parameter, four for more.
    - proposal: `fully_adapted`, where the transition is Gaussian and the observation is Gaussian with a mean linear
      in x; `bootstrap` elsewhere.

    If the model reads vector or dict inputs, the filter waits, and chooses its parts at the first row of them.
    """
    check_filter_arguments(model, num_particles, resample, learns=False)  # `parameter_filter` tells of slips
    statistic = default_statistic(model) if statistic is None else statistic
    proposal = default_proposal(model) if proposal is None else proposal
    return parameter_filter(model, num_particles, statistic, sampler=sampler, proposal=proposal, resample=resample)


@builds_filter
def storvik_filter(
    model: StateSpaceModel,
    num_particles: int,
    *,
    statistic: Statistic | None = None,
    proposal: Proposal | None = None,
    resample: Resampler = systematic,
) -> Filter:
    """Storvik's filter: exact sufficient statistics, and exact draws of theta if the statistic has them.

    Args:
        model: a model linear in theta with a Gaussian prior and known Gaussian noise, or one with unknown variances,
            regimes, rates or probabilities that is conjugate block by block, unless `statistic` is given.
        num_particles: N.
        statistic: another exact statistic, such as `epf.separable(...)`; by default `epf.conjugate(model)` if it fits,
            otherwise `epf.conjugate_blocks(model)`.
        proposal: how x_t is drawn; by default `epf.fully_adapted(model)` where the model allows it, and otherwise
            `epf.bootstrap()`, which is Storvik's (2002) own.
        resample: the resampling scheme.
    """
    check_filter_arguments(model, num_particles, resample, learns=False)  # `parameter_filter` tells of slips
    statistic = _exact_statistic(model) if statistic is None else statistic
    proposal = default_proposal(model) if proposal is None else proposal
    return parameter_filter(model, num_particles, statistic, proposal=proposal, resample=resample)


@builds_filter
def particle_learning_filter(
    model: StateSpaceModel,
    num_particles: int,
    *,
    statistic: Statistic | None = None,
    sampler: Sampler | None = None,
    proposal: Proposal | None = None,
    resample: Resampler = systematic,
) -> Filter:
    """Particle learning (Carvalho et al. 2010): resample on p(y_t | x_{t-1}, theta), propagate, update, draw theta.

    Args:
        model: a model with Gaussian transition and linear-Gaussian observation, unless `proposal` is given.
        num_particles: N.
        statistic: any; that of `extended_parameter_filter` by default: `epf.conjugate(model)`, theirs, where it fits.
        sampler: how theta is drawn given the statistic; the statistic's own by default.
        proposal: one with a look-ahead weight; `epf.fully_adapted(model)` by default.
        resample: the resampling scheme.
    """
    check_filter_arguments(model, num_particles, resample, learns=False)  # `parameter_filter` tells of slips
    proposal = fully_adapted(model) if proposal is None else proposal
    check_proposal(proposal, model)
    if proposal.look_ahead is None:
        raise ValueError(
            f"proposal: particle learning needs a proposal with a look-ahead weight, and {proposal.name} has none. Use "
            "epf.fully_adapted(model), or epf.extended_parameter_filter for this proposal."
        )
    statistic = default_statistic(model) if statistic is None else statistic
    return parameter_filter(model, num_particles, statistic, sampler=sampler, proposal=proposal, resample=resample)


@builds_filter
def parameter_filter(
    model: StateSpaceModel,
    num_particles: int,
    statistic: Statistic,
    *,
    sampler: Sampler | None = None,
    proposal: Proposal,
    resample: Resampler = systematic,
) -> Filter:
    """The one implementation behind Storvik's filter, the EPF and SIR: every part is given, none chosen."""
    check_filter_arguments(model, num_particles, resample)
    check_statistic(statistic, model)
    check_proposal(proposal, model)
    check_kept_in_order(proposal, resample)
    statistic = without_opening(statistic) if moves_particles(resample) else statistic
    if sampler is not None:
        statistic = with_sampler(statistic, model, sampler)
    N, look_ahead = num_particles, proposal.look_ahead
    moves = statistic.moves and model.parameters.dim > 0

    def init(key):
        return start(key, model, N, statistic.init, proposal.draw)

    def step(key, state, y, u):
        keys = jax.random.split(key, 5)  # to resample, move, move blindly, update and redraw: taken out where needed
        x_prev, theta, S, log_weights = state.x, state.theta, state.S, state.log_weights
        keeps, weighings = bool(jax.tree.leaves(S)), []

        if look_ahead is not None:
            g = jax.vmap(lambda theta, x: look_ahead(model, theta, x, y, u))(theta, x_prev)
            weighings.append(reweight(log_weights, g))
            selection = select(keys[0], resample, weighings[-1], (x_prev, theta, S), place=(x_prev, theta))
            (x_prev, theta, S), log_weights = selection.particles, selection.log_weights
            y = missing_where(weighings[-1].collapsed, y)

        x = propagate(keys[1], proposal, model, theta, x_prev, y, u)
        if not proposal.even:
            w = jax.vmap(lambda th, x_prev, x: proposal.log_weight(model, th, x_prev, x, y, u))(theta, x_prev, x)
            weighings.append(reweight(log_weights, w))
            log_weights = weighings[-1].log_weights

        if look_ahead is None:
            lost = weighings[-1].collapsed
            if not proposal.blind:  # a draw that looked at an impossible observation is drawn again without it
                blind = partial(propagate_blindly, keys[2], model, theta, x_prev, u)
                x = jax.lax.cond(lost, blind, lambda: x)
            x_prev = x_prev if keeps else ()
            selection = select(keys[0], resample, weighings[-1], (x_prev, x, theta, S), place=(x, theta))
            (x_prev, x, theta, S), log_weights = selection.particles, selection.log_weights
            y = missing_where(lost, y) if keeps else y

        if keeps:
            new = updated(statistic, keys[3], S, theta, x_prev, x, y, u, log_weights, state.t + 1)
            S = _unless_impossible(weighings, y, new, S)
        theta, drawn = redraw(keys[4], statistic, model.parameters, S, theta, state) if moves else (theta, no_draw())
        info = step_info(selection, *weighings, drawn=drawn)
        return FilterState(x, theta, S, log_weights, state.log_evidence + info.log_increment, state.t + 1), info

    description = (
        f"parameter filter: {N} particles, statistic {statistic.description}, proposal {proposal.name}, "
        f"resampling {resampler_name(resample)}"
    )
    return build_filter(model, N, init, step, description, resample, statistic=statistic)


def propagate(key, proposal, model, theta, x_prev, y, u):
    """One draw of x_t for every particle."""
    x = proposal.draw(key, lambda th, x: proposal.distribution(model, th, x, y, u), x_prev.shape[0], theta, x_prev)
    return x.astype(x_prev.dtype)


def propagate_blindly(key, model, theta, x_prev, u):
    """One draw of x_t for every particle from the transition, without y_t."""
    return propagate(key, bootstrap(), model, theta, x_prev, None, u)


def _unless_impossible(weighings, y, new, S):
    """The new statistics; the old ones after an impossible whole number, which cannot be made NaN."""
    if jnp.issubdtype(y.dtype, jnp.floating):
        return new
    collapsed = jnp.any(jnp.stack([w.collapsed for w in weighings]))
    return jax.tree.map(lambda old, new: where(collapsed, old, new), S, new)


def redraw(key, statistic, coordinates, S, theta, before):
    """Redraw every particle's theta given its statistic, starting from its current value."""
    spread = spread_of(coordinates, before)
    if statistic.sample_all is not None:
        return statistic.sample_all(key, S, theta, spread)
    keys = jax.random.split(key, before.log_weights.shape[0])
    return jax.vmap(statistic.sample, in_axes=(0, 0, 0, None))(keys, S, theta, spread)


def _exact_statistic(model: StateSpaceModel) -> Statistic:
    problem = why_not_conjugate(model)
    if not problem:
        return conjugate(model)
    try:
        return conjugate_blocks(model)
    except NotConjugateError as error:
        raise ValueError(
            f"conjugate: {problem} {error} epf.extended_parameter_filter(model, N) takes any prior, and the statistic "
            "that fits."
        ) from error


def default_statistic(model: StateSpaceModel) -> Statistic:
    """The statistic that suits the model: see `extended_parameter_filter`."""
    if not why_not_conjugate(model):
        return conjugate(model)
    fitting = conjugate_blocks_if_fitting(model)
    if fitting is not None:
        return fitting
    if not why_not_linear_means(model):
        return linear_means(model)
    if not why_not_decomposed(model):
        return decomposed(model)
    if model.parameters.dim <= 3:
        return chebyshev(model, sampler=default_walk(model.parameters.dim))
    if not why_not_kalman(model):
        warnings.warn(
            f"This model's {model.parameters.dim} parameters get epf.assumed_density(model), an approximation. The "
            "model is linear and Gaussian in x: use epf.smc2_filter(model, 1000, max_steps=T, "
            "inner=epf.kalman(model)), which is exact but slower, or give statistic=epf.assumed_density(model).",
            stacklevel=frames_to_user(),
        )
    return assumed_density(model)


def check_statistic(statistic: Any, model: StateSpaceModel) -> None:
    """Raise if it is not a statistic, or was built for another model."""
    if not isinstance(statistic, Statistic):
        raise TypeError(
            f"statistic: expected a Statistic such as epf.taylor(model, order=7), got {statistic!r}."
            + (" Call it with the model." if callable(statistic) else "")
        )
    if statistic.model is not None and statistic.model is not model:
        raise ValueError(
            "statistic: it was built for another model. Build both with the same object, `model`, or, if you mean "
            "another, give statistic._replace(model=model)."
        )
