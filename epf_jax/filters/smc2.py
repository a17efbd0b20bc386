r"""SMC^2: a particle filter over theta in which every particle runs a particle filter over x (Chopin et al. 2013).

N theta-particles are weighted by the likelihoods that their inner filters estimate. When the weights have become
uneven, theta is resampled and moved by particle marginal Metropolis-Hastings (PMMH). Its acceptance needs the
likelihood of a new theta, whose inner filter runs over y_1..y_t from the start, with observations from a memory.

Algorithm, for t = 1..T (Chopin, Jacob and Papaspiliopoulos 2013, section 3):

    1. step      each theta's inner filter; its evidence increment estimates p(y_t | y_1:t-1, theta)
    2. weigh     theta by the increment; the weighted mean of the increments is the evidence of y_t
    3. resample  theta and its inner filter, when the effective sample size is low; if so
    4. move      theta' ~ N(theta, (2.38^2 / P) V), V the population's covariance in unconstrained coordinates z; run a
                 new inner filter over y_1:t and accept with probability p(z') Z(theta') / p(z) Z(theta)
    5. exchange  when few moves were accepted: inner filters of twice the size over y_1:t, weighed by Z_new / Z_old

Sizes of inner filters are num_inner, 2 num_inner, 4 num_inner, ... up to max_inner (see `inner.py`). With Kalman
filters inside, likelihoods are exact, and step 5 never happens: that is IBIS, iterated batch importance sampling
(Chopin 2002).
With `window=W` moves look at the last observations only, W at most, and what came before enters by a fit (see
`window.py`): memory and cost per observation never grow.

Departures: V is that of the particles before step t (see `spread_of`), and the exchange adds nothing to the evidence,
because the expectation of its weights is known to be one.

A step costs O(N num_inner), one that rejuvenates t times as much for every move (W times at the most with a window);
such steps become rare as t grows.
Under `vmap` (`replicate`) a step goes over the past if any of the runs must, and inner filters of every size step.
There are no gradients in reverse mode, because the loop over the past has no fixed length.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from epf_jax.core.checks import check_whole_number
from epf_jax.core.choice import where
from epf_jax.core.random import normal
from epf_jax.core.random import uniform as uniforms
from epf_jax.filters.filter import (
    Filter,
    build_filter,
    builds_filter,
    check_filter_arguments,
    spread_of,
    start,
    step_info,
)
from epf_jax.filters.inner_sizes import Sizes, in_sizes, rerun_each, start_each, step_each
from epf_jax.filters.known_theta import KnownTheta, check_inner
from epf_jax.filters.memory import Memory, check_memory_arguments, empty_memory, remember
from epf_jax.filters.state import PARTICLES, FilterState
from epf_jax.filters.window import Anchor, begin_at, first_anchor, fitted_degree, least_thetas, next_anchor, read, wide
from epf_jax.models.missing import missing_where
from epf_jax.models.parameters import Parameters, Theta
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.proposals import Proposal, check_proposal
from epf_jax.particles.resampling import Resampler, is_share, resampler_name, select, when_ess_below
from epf_jax.particles.weights import reweight, where_rows
from epf_jax.samplers import SampleInfo, no_draw, together
from epf_jax.samplers.random_walk import accepted, steps_like

DEFAULT_INNER = 64
_LOW = 0.15  # an acceptance rate below which the inner filters are too small


class NestedFilters(NamedTuple):
    """The statistic S of SMC^2.

    Attributes:
        filters: the inner filters, a row for each theta; rows of unused inner particles weigh nothing.
        log_evidence: log Z, the likelihood that each theta has so far.
        level: the inner filters' size is num_inner 2^level.
        memory: the observations so far, or those of the window.
        anchor: what is known of those before the window; () where all are remembered.
    """

    filters: Any
    log_evidence: Float[Array, " N"]
    level: Int[Array, ""]
    memory: Memory
    anchor: Anchor | tuple[()]


class Rejuvenated(NamedTuple):
    """Theta-particles after moves, and perhaps an exchange; `moves` reports of the moves."""

    theta: Theta
    filters: Any
    log_evidence: Float[Array, " N"]
    level: Int[Array, ""]
    log_weights: Float[Array, " N"]
    moves: SampleInfo


@builds_filter
def smc2_filter(
    model: StateSpaceModel,
    num_particles: int,
    *,
    max_steps: int | None = None,
    window: int | None = None,
    num_inner: int | None = None,
    max_inner: int | None = None,
    inner: KnownTheta | None = None,
    num_moves: int | None = None,
    min_acceptance: float | None = None,
    proposal: Proposal | None = None,
    resample: Resampler | None = None,
) -> Filter:
    """SMC^2: learns theta without an approximate statistic, at a cost that grows with the series, or never by a window.

    Args:
        model: the state-space model.
        num_particles: N, the number of values of theta, each with its own inner filter.
        max_steps: the largest number of observations: the filter remembers all. `run` raises an error for a longer
            series. A step beyond is reported as `overflowed`, and theta no longer moves.
        window: W, instead of `max_steps`, for streams without an end: moves go back over at most so many observations,
            and a fit tells what came before. A few hundred are usual.
        num_inner: particles of each inner filter at the start, 64 by default.
        max_inner: the largest number of inner particles, which doubles if few moves are accepted; 4 num_inner by
            default. Each size is compiled separately.
        inner: `epf.kalman(model)` for a model that is linear and Gaussian in x: the exact law of the state for each
            theta, without particles. `epf.sigma_points(model)` if the transition is not linear.
        num_moves: PMMH moves at each rejuvenation; 2 by default, 5 with `inner`, where they cost little. Where an
            observation leaves a share of 2^-k of the thetas, k times as many.
        min_acceptance: the acceptance rate below which the number of inner particles doubles; 0.15 by default.
        proposal: how the inner filters draw x_t; by default `epf.fully_adapted(model)` if the model allows it,
            otherwise `epf.bootstrap()`.
        resample: when and how theta is resampled; `epf.when_ess_below(0.5)` by default. Theta moves after each
            resampling.
    """
    resample = when_ess_below(0.5) if resample is None else resample
    check_filter_arguments(model, num_particles, resample)
    room = _checked_room(max_steps, window)
    check_memory_arguments("smc2_filter", model, room, resample, "max_steps" if window is None else "window")
    num_moves = (2 if inner is None else 5) if num_moves is None else num_moves
    check_whole_number("num_moves", num_moves, hint="One to five are usual.")
    if min_acceptance is not None and not is_share(min_acceptance):
        raise ValueError(f"min_acceptance: expected an acceptance rate from 0 to 1, got {min_acceptance!r}.")
    N = num_particles
    sizes = _sizes_of(model, inner, num_inner, max_inner, proposal, min_acceptance)
    rejuvenate = _rejuvenation(model.parameters, sizes, num_moves, _LOW if min_acceptance is None else min_acceptance)
    degree = 0 if window is None else _checked_degree(N, model, inner)
    begin = _from_the_start if window is None else partial(begin_at, degree=degree)

    def init(key):
        key_theta, key_inner = jax.random.split(key)
        state = start(key_theta, model, N, lambda x_0: ())
        level = jnp.zeros((), int)
        filters = start_each(key_inner, sizes, level, state.theta)
        S = NestedFilters(filters, jnp.zeros(N), level, empty_memory(model, room), ())
        state = state._replace(S=S)
        return state if window is None else state._replace(S=S._replace(anchor=first_anchor(model.parameters, state)))

    def step(key, state, y, u):
        key_inner, key_resample, key_move, key_state, key_anchor = jax.random.split(key, 5)
        theta, (filters, log_evidence, level, memory, anchor), t = state.theta, state.S, state.t + 1
        since = 0 if window is None else anchor.t
        y = jnp.asarray(y, float)

        filters, steps = step_each(key_inner, sizes, level, theta, filters, y, u)
        weighing = reweight(state.log_weights, steps.log_increment)
        # An observation that is impossible under every theta counts as missing, here and whenever the past is rerun.
        log_evidence += jnp.where(weighing.collapsed, 0.0, steps.log_increment)
        memory = remember(memory, state.t - since, missing_where(weighing.collapsed, y), u)

        selection = select(key_resample, resample, weighing, (theta, filters, log_evidence))
        theta, filters, log_evidence = selection.particles
        overflowed = jnp.array(False) if max_steps is None else t > max_steps
        due = selection.resampled & ~overflowed
        past = spread_of(model.parameters, state), memory
        untouched = Rejuvenated(theta, filters, log_evidence, level, selection.log_weights, no_draw())
        theta, filters, log_evidence, level, log_weights, moves = jax.lax.cond(
            due,
            lambda: rejuvenate(key_move, untouched, *past, where(due, t - since, 0), selection.ess, begin, anchor),
            lambda: untouched,
        )

        x = sizes[-1].pick(key_state, filters, jnp.arange(N))
        info = step_info(selection, weighing, drawn=moves)
        num_bad = info.num_bad_weights + jnp.ceil(jnp.sum(steps.num_bad_weights)).astype(int)
        acceptance = where(due, info.acceptance, jnp.nan)
        info = info._replace(num_bad_weights=num_bad, overflowed=overflowed, acceptance=acceptance)
        S = NestedFilters(filters, log_evidence, level, memory, anchor)
        state = FilterState(x, theta, S, log_weights, state.log_evidence + info.log_increment, t)
        if window is not None:
            state = jax.lax.cond(t - since == window, lambda: renewed(key_anchor, state), lambda: state)
        return state, info

    def renewed(key, state):
        """The state at the beginning of a new window."""
        key_z, key_begin, key_steps = jax.random.split(key, 3)
        _, _, level, memory, anchor = state.S
        spread = spread_of(model.parameters, state)
        z, width = wide(key_z, spread, N)
        theta = jax.vmap(model.parameters.to_theta)(z)
        begun = begin(anchor, key_begin, sizes, level, z, theta)
        told = rerun_each(key_steps, sizes, level, theta, memory, state.t - anchor.t, begun)
        anchor = next_anchor(model.parameters, spread, z, width, told, state.t)
        log_evidence, *_ = read(anchor, jax.vmap(model.parameters.to_vector)(state.theta), degree)
        before = state.S.log_evidence
        log_weights = reweight(state.log_weights, log_evidence - before).log_weights
        return state._replace(S=state.S._replace(log_evidence=log_evidence, anchor=anchor), log_weights=log_weights)

    description = (
        f"SMC^2: {N} theta-particles, {_in_words(sizes)}, {num_moves} PMMH moves, resampling "
        f"{resampler_name(resample)}, {'room for' if window is None else 'a window of'} {room} steps"
    )
    which: Any = (True, True, False, False, False)
    by_particle = PARTICLES._replace(S=NestedFilters(*which))
    return build_filter(model, N, init, step, description, resample, by_particle=by_particle, max_steps=max_steps)


def _rejuvenation(
    coordinates: Parameters, sizes: Sizes, num_moves: int, min_acceptance: float
) -> Callable[..., Rejuvenated]:
    """PMMH moves of every theta, and larger inner filters where few are accepted."""
    last_level = len(sizes) - 1

    def log_density(z, log_evidence):
        return jax.vmap(coordinates.log_prior)(z) + log_evidence

    def rejuvenate(key, particles, spread, memory, num_steps, ess, begin, anchor):
        theta, filters, log_evidence, level, log_weights, _ = particles
        rounds = jnp.maximum(jnp.floor(jnp.log2(len(log_weights) / ess)), 1.0).astype(int)
        num_turns = num_moves * rounds
        scale_tril = steps_like(spread)

        def turn(particles, keys, exchanges, num_steps):
            """All particles moved; or, in the last turn, exchanged: the way over the past is in the program once."""
            either = (lambda _, b: b) if last_level == 0 else partial(where, exchanges)
            z, filters, log_evidence, level, log_weights, moves = particles
            z_new = z + either(0.0, normal(keys[0], z.shape, z.dtype) @ scale_tril.T)
            level = level + either(1, 0)
            theta_new = jax.vmap(coordinates.to_theta)(z_new)
            key_begin, key_steps = jax.random.split(keys[1])
            begun = begin(anchor, key_begin, sizes, level, z_new, theta_new)
            filters_new, evidence_new = rerun_each(key_steps, sizes, level, theta_new, memory, num_steps, begun)
            uniform = uniforms(keys[2], z.shape[:1], z.dtype)
            accept, bad = accepted(uniform, log_density(z, log_evidence), log_density(z_new, evidence_new))
            if last_level > 0:
                exchanged = reweight(log_weights, evidence_new - log_evidence).log_weights
                log_weights = where(exchanges, exchanged, log_weights)
            told = together(SampleInfo(accept, bad))
            moves = jax.tree.map(lambda so_far, more: so_far + either(0, more), moves, told)
            old, new = (z, filters, log_evidence), (z_new, filters_new, evidence_new)
            z, filters, log_evidence = jax.tree.map(partial(where_rows, either(True, accept)), new, old)
            return Rejuvenated(z, filters, log_evidence, level, log_weights, moves)

        def turn_or_stay(i, particles):
            exchanges = i == num_turns
            low = (particles.moves.acceptance < num_turns * min_acceptance) & (particles.level < last_level)
            due = ~exchanges | low
            given = particles, jax.random.split(jax.random.fold_in(key, i), 3), exchanges, where(due, num_steps, 0)
            return jax.lax.cond(due, turn, lambda particles, *_: particles, *given)

        def move(i, particles):
            return turn(particles, jax.random.split(jax.random.fold_in(key, i), 3), False, num_steps)

        z = jax.vmap(coordinates.to_vector)(theta)
        particles = Rejuvenated(z, filters, log_evidence, level, log_weights, no_draw())
        last = 0 if last_level == 0 else 1  # the turn that exchanges
        particles = jax.lax.fori_loop(0, num_turns + last, turn_or_stay if last else move, particles)
        moves = particles.moves._replace(acceptance=particles.moves.acceptance / num_turns)
        return particles._replace(theta=jax.vmap(coordinates.to_theta)(particles.theta), moves=moves)

    return rejuvenate


def _from_the_start(anchor, key, sizes, level, z, theta):
    """Inner filters before any observation, and log-likelihoods of none."""
    return start_each(key, sizes, level, theta), jnp.zeros(len(z))


def _checked_room(max_steps: Any, window: Any) -> Any:
    """How many observations are remembered."""
    if (max_steps is None) == (window is None):
        raise ValueError(
            f"max_steps: expected one of max_steps and window, got {max_steps!r} and {window!r}. Give max_steps=len(y) "
            "for a series, or window=256 for a stream without an end."
        )
    return window if max_steps is None else max_steps


def _checked_degree(num_particles: int, model: StateSpaceModel, inner: KnownTheta | None) -> int:
    """The degree of the fit to what came before the window."""
    dim = model.parameters.dim
    degree = fitted_degree(num_particles, dim, inner is not None)
    if degree == 0:
        raise ValueError(
            f"num_particles: a window of {dim} parameters needs at least {least_thetas(dim)}, got {num_particles}. "
            "Give more, or max_steps=len(y), which remembers the whole series."
        )
    return degree


def _sizes_of(model, inner, num_inner, max_inner, proposal, min_acceptance) -> Sizes:
    """The inner filters that the arguments ask for."""
    if inner is not None:
        of_particles = {"num_inner": num_inner, "max_inner": max_inner, "proposal": proposal}
        check_inner(inner, model, **of_particles, min_acceptance=min_acceptance)
        return [inner]
    proposal = default_proposal(model) if proposal is None else proposal
    check_proposal(proposal, model)
    return in_sizes(model, _sizes(DEFAULT_INNER if num_inner is None else num_inner, max_inner), proposal)


def _in_words(sizes: Sizes) -> str:
    more = f" (up to {sizes[-1].num_particles})" if len(sizes) > 1 else ""
    return f"inner filters {sizes[0].description}{more}"


def _sizes(num_inner: Any, max_inner: Any) -> tuple[int, ...]:
    """num_inner and its doubles up to max_inner."""
    check_whole_number("num_inner", num_inner, hint="It is the number of particles of each inner filter.")
    if max_inner is None:
        max_inner = 4 * num_inner
    hint = "It is how far num_inner may double; num_inner itself keeps their number as it is."
    check_whole_number("max_inner", max_inner, least=num_inner, hint=hint)
    return tuple(num_inner * 2**k for k in range((max_inner // num_inner).bit_length()))
