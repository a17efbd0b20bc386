"""Filters for a known theta, one for each of N values of theta, in several sizes.

Which size is a level that may change while the program runs, and shapes may not: arrays have room for the largest size,
and each size is a branch of a `switch` that computes on as many rows as it needs. Filters without particles have one
level.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from epf_jax.core.no_gradient import refuse_gradients
from epf_jax.filters.known_theta import KnownTheta, particles
from epf_jax.filters.memory import Memory, recall
from epf_jax.filters.state import StepInfo
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.proposals import Proposal, blind_to_missing
from epf_jax.particles.quasi_random import in_order, is_quasi_random
from epf_jax.particles.resampling import systematic

Sizes = Sequence[KnownTheta]  # the same filter with more and more particles

_NO_GRADIENT = (
    "A gradient was asked for through smc2_filter, which has none: its moves go back over all observations so far, and "
    "jax differentiates no loop of unknown length. Use epf.extended_parameter_filter or epf.node_filter for gradients."
)


def in_sizes(model: StateSpaceModel, sizes: tuple[int, ...], proposal: Proposal) -> Sizes:
    """Filters of so many particles."""
    resample = in_order() if is_quasi_random(proposal) else systematic
    proposal = blind_to_missing(proposal)
    return [particles(model, size, proposal, resample) for size in sizes]


def start_each(key: PRNGKeyArray, sizes: Sizes, level: Int[Array, ""], theta: Theta) -> Any:
    """The filters before any observation, a row for each theta."""

    def start_of(size):
        def start(keys, theta):
            return _widened(jax.vmap(size.start)(keys, theta), sizes[-1].num_particles)

        return start

    keys = jax.vmap(jax.random.split)(_key_for_each(key, theta))[:, 1]  # the first of two would draw theta
    return jax.lax.switch(level, [start_of(size) for size in sizes], keys, theta)


def step_each(
    key: PRNGKeyArray, sizes: Sizes, level: Int[Array, ""], theta: Theta, states: Any, y: Array, u: Any
) -> tuple[Any, StepInfo]:
    """The filters after one more observation, and their reports, a row for each theta."""
    keys = _key_for_each(key, theta)
    return jax.lax.switch(level, [_step_of(sizes, k) for k in range(len(sizes))], keys, states, y, u)


def _step_of(sizes, k):
    size, room = sizes[k], sizes[-1].num_particles

    def step(keys, states, y, u):
        one = jax.vmap(lambda key, state: size.step(key, state, y, u))
        states, info = one(keys, _narrowed(states, size.num_particles))
        nothing: Any = ()  # ancestors are of no use, and of other shapes at each level
        return _widened(states, room), info._replace(ancestors=nothing)

    return step


def rerun_each(
    key: PRNGKeyArray,
    sizes: Sizes,
    level: Int[Array, ""],
    theta: Theta,
    memory: Memory,
    num_steps: Int[Array, ""],
    start: tuple[Any, Float[Array, " N"]],
) -> tuple[Any, Float[Array, " N"]]:
    """Filters and their log-evidence after so many observations of the memory, a row for each theta.

    `start` is what they were before, and their log-evidence.
    """

    def go_on_at(k):
        one = _step_of(sizes, k)

        def step(s, carry):
            states, log_evidence = carry
            states, info = one(_key_for_each(jax.random.fold_in(key, s), theta), states, *recall(memory, s))
            return states, log_evidence + info.log_increment

        # A `switch` whose level differs between the runs of a batch takes every branch: the unasked take no steps.
        return lambda carry: jax.lax.fori_loop(0, jnp.where(level == k, num_steps, 0), step, carry)

    found = jax.lax.switch(level, [go_on_at(k) for k in range(len(sizes))], start)
    return refuse_gradients(_NO_GRADIENT, found)


def _key_for_each(key: PRNGKeyArray, theta: Theta) -> PRNGKeyArray:
    return jax.random.split(key, jax.tree.leaves(theta)[0].shape[0])


def _narrowed(states: Any, size: int) -> Any:
    """The filters with their first particles, so many."""
    if size == 0:
        return states
    theta, x, log_weights = jax.tree.map(lambda rows: rows[:, :size], (states.theta, states.x, states.log_weights))
    return states._replace(theta=theta, x=x, log_weights=log_weights)


def _widened(states: Any, room: int) -> Any:
    """The filters with rows of no weight, up to `room` of them."""
    if room == 0:
        return states

    def more(rows, value):
        missing = [(0, 0), (0, room - rows.shape[1]), *[(0, 0)] * (rows.ndim - 2)]
        return jnp.pad(rows, missing, mode="edge") if value is None else jnp.pad(rows, missing, constant_values=value)

    theta, x = jax.tree.map(lambda rows: more(rows, None), (states.theta, states.x))
    return states._replace(theta=theta, x=x, log_weights=more(states.log_weights, -jnp.inf))
