r"""Independent groups: several copies of one filter side by side, whose disagreement tells the error of their average.

Every group has its own random numbers, and resamples, moves and fits by itself. The groups count equally, so that a
stream without an end does not come down to one of them. Of M groups whose means :math:`m_j` of a parameter have the
spread :math:`s`, the average is off by about :math:`s / \sqrt M`. What all groups share, they do not see: the
bias of too few inner particles. Fits to the past differ between groups, in the thetas and in how far these reach.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epf_jax.core.checks import check_whole_number
from epf_jax.core.choice import where
from epf_jax.filters.filter import Filter, build_filter, builds_filter
from epf_jax.filters.state import PARTICLES, FilterState, StepInfo
from epf_jax.particles.resampling import systematic
from epf_jax.particles.weights import mean_and_sd


@builds_filter
def in_groups(filter_: Filter, num_groups: int) -> Filter:
    """So many copies of a filter as one filter, whose `StepInfo.error` is found from their disagreement.

    Args:
        filter_: the filter of one group.
        num_groups: how many; eight are usual. Two tell hardly anything of the error.
    """
    check_whole_number("num_groups", num_groups, least=2, hint="Eight are usual.")
    M, N = num_groups, filter_.num_particles
    coordinates = filter_.model.parameters

    def init(key):
        groups = jax.lax.map(filter_.init, jax.random.split(key, M))
        return together(groups, jnp.zeros(()))

    def step(key, state, y, u):
        turn = lambda row: filter_.step(*row, y, u)  # noqa: E731
        groups, infos = jax.lax.map(turn, (jax.random.split(key, M), apart(state)))
        # Each group has its own rejuvenations, which one after the other are a `cond`: side by side all would pay.
        log_increment = jax.nn.logsumexp(infos.log_increment) - math.log(M)
        state = together(groups, state.log_evidence + log_increment)
        info = _report(infos, log_increment, N)
        z = jax.vmap(jax.vmap(coordinates.to_vector))(groups.theta)
        return state, info._replace(error=_disagreement(z, groups.log_weights))

    def together(groups, log_evidence):
        x, theta, log_weights = jax.tree.map(_flat, (groups.x, groups.theta, groups.log_weights))
        return FilterState(x, theta, groups.S, log_weights - math.log(M), log_evidence, groups.t[0])

    def apart(state):
        x, theta, log_weights = jax.tree.map(
            lambda leaf: leaf.reshape(M, N, *leaf.shape[1:]), (state.x, state.theta, state.log_weights)
        )
        zeros = jnp.zeros((M,), state.log_evidence.dtype)
        return FilterState(x, theta, state.S, log_weights + math.log(M), zeros, jnp.broadcast_to(state.t, (M,)))

    by_particle: Any = PARTICLES._replace(S=False)
    description = f"{M} groups of: {filter_.description}"
    return build_filter(
        filter_.model,
        M * N,
        init,
        step,
        description,
        systematic,
        by_particle=by_particle,
        max_steps=filter_.max_steps,
        waits=filter_.waits,
    )


def _flat(leaf: Array) -> Array:
    return leaf.reshape(-1, *leaf.shape[2:])


def _disagreement(z: Float[Array, "M N P"], log_weights: Float[Array, "M N"]) -> Float[Array, ""]:
    """The largest standard error of a mean over the groups, in standard deviations of a group."""
    means, sds = jax.vmap(mean_and_sd)(z, log_weights)
    between, within = jnp.var(means, axis=0, ddof=1), jnp.mean(sds**2, axis=0)
    return jnp.sqrt(jnp.max(where(between == 0, 0.0, between / (len(z) * within)), initial=0.0))


def _report(infos: StepInfo, log_increment: Array, num_particles: int) -> StepInfo:
    """One report of the groups'."""
    M = len(infos.ess)
    moved = ~jnp.isnan(infos.acceptance)
    acceptance = jnp.sum(where(moved, infos.acceptance, 0.0)) / jnp.sum(moved)  # NaN where none moved
    return StepInfo(
        ess=jnp.sum(infos.ess),
        resampled=jnp.any(infos.resampled),
        ancestors=_flat(infos.ancestors + num_particles * jnp.arange(M, dtype=jnp.int32)[:, None]),
        acceptance=acceptance,
        num_bad_weights=jnp.sum(infos.num_bad_weights),
        num_bad_densities=jnp.sum(infos.num_bad_densities),
        collapsed=jnp.all(infos.collapsed),
        log_increment=log_increment,
        overflowed=jnp.any(infos.overflowed),
    )
