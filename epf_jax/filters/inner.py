"""Inner filters: the library's own filter for a known theta, one for each of N values of theta, in several sizes.

The size is a level that may change while the program runs, and shapes may not: arrays have room for the largest size,
and each size is a branch of a `switch` that computes on as many rows as it needs. Filters without particles
(`known_theta`) have one level.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.choice import where
from epf_jax.core.no_gradient import refuse_gradients
from epf_jax.filters.bootstrap import bootstrap_filter
from epf_jax.filters.known_theta import KnownTheta
from epf_jax.filters.memory import recall
from epf_jax.filters.state import FilterState, StepInfo
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.proposals import Proposal, blind_to_missing
from epf_jax.particles.quasi_random import in_order, is_quasi_random
from epf_jax.particles.resampling import systematic

_NO_GRADIENT = (
    "A gradient was asked for through smc2_filter, which has none: its moves go back over all observations so far, and "
    "jax differentiates no loop of unknown length. Use epf.extended_parameter_filter or epf.node_filter for gradients."
)


class InnerFilters(NamedTuple):
    """Known-theta filters, one for each row of theta, all of the size that a level says.

    What they are has `log_evidence`, the likelihood of each theta so far.

    Attributes:
        init: `init(key, theta) -> filters`, of the smallest size, before any observation.
        step: `step(key, level, theta, filters, y, u) -> filters, info`.
        rerun: `rerun(key, level, theta, memory, num_steps) -> filters`, new ones after so many observations.
        pick: `pick(key, filters)`, a state from each of them.
        num_levels: how many sizes there are.
        description: in words.
    """

    init: Callable[..., Any]
    step: Callable[..., tuple[Any, StepInfo]]
    rerun: Callable[..., Any]
    pick: Callable[[PRNGKeyArray, Any], Float[Array, "N *x"]]
    num_levels: int
    description: str


class Laws(NamedTuple):
    """Filters without particles, a row for each theta: the laws of their states, and their evidence."""

    states: Any
    log_evidence: Float[Array, " N"]


def inner_particles(model: StateSpaceModel, sizes: tuple[int, ...], proposal: Proposal) -> InnerFilters:
    """The library's own filter for a known theta, vmapped over theta, in every size."""
    room = sizes[-1]
    description = f"inner filters of {' or '.join(map(str, sizes))} particles, proposal {proposal.name}"
    resample = in_order() if is_quasi_random(proposal) else systematic
    proposal = blind_to_missing(proposal)

    def filter_of(theta, size):
        return bootstrap_filter(model, size, theta=theta, proposal=proposal, resample=resample)

    def start_with(size):
        def start(key, theta):
            filters = jax.vmap(lambda key, theta: filter_of(theta, size).init(key))(_key_for_each(key, theta), theta)
            return _widened(filters, room)

        return start

    def step_with(size):
        def step(key, theta, filters, y, u):
            one = jax.vmap(lambda key, theta, state: filter_of(theta, size).step(key, state, y, u))
            filters, info = one(_key_for_each(key, theta), theta, _narrowed(filters, size))
            return _widened(filters, room), _as_shares(info, size)

        return step

    return _in_levels(
        [start_with(size) for size in sizes], [step_with(size) for size in sizes], _one_of_each, description
    )


def inner_laws(inner: KnownTheta) -> InnerFilters:
    """A filter of the state without particles for each theta, whose likelihood is no estimate."""

    def start(key, theta):
        states = jax.vmap(inner.start)(_key_for_each(key, theta), theta)
        return Laws(states, jnp.zeros(jax.tree.leaves(theta)[0].shape[0]))

    def step(key, theta, filters, y, u):
        one = jax.vmap(lambda key, states: inner.step(key, states, y, u))
        states, info = one(_key_for_each(key, theta), filters.states)
        return Laws(states, filters.log_evidence + info.log_increment), info

    def pick(key, filters):
        return inner.pick(key, filters.states, jnp.arange(filters.log_evidence.shape[0]))

    return _in_levels([start], [step], pick, f"inner filters {inner.description}")


def _in_levels(starts: Sequence[Callable], steps: Sequence[Callable], pick: Callable, description: str) -> InnerFilters:
    """The filters that start and step otherwise on each level."""

    def over_the_past(k):
        def go(key_init, key, level, theta, memory, num_steps):
            def step(s, filters):
                return steps[k](jax.random.fold_in(key, s), theta, filters, *recall(memory, s))[0]

            # A `switch` whose level differs between the runs of a batch takes every branch: the unasked take no steps.
            return jax.lax.fori_loop(0, where(level == k, num_steps, 0), step, starts[k](key_init, theta))

        return go

    at_each = [over_the_past(k) for k in range(len(steps))]

    def step(key, level, theta, filters, y, u):
        return jax.lax.switch(level, steps, key, theta, filters, y, u)

    def rerun(key, level, theta, memory, num_steps):
        key_init, key_steps = jax.random.split(key)
        filters = jax.lax.switch(level, at_each, key_init, key_steps, level, theta, memory, num_steps)
        return refuse_gradients(_NO_GRADIENT, filters)

    return InnerFilters(starts[0], step, rerun, pick, len(steps), description)


def _as_shares(info: StepInfo, size: int) -> StepInfo:
    """The reports of filters of so many particles; their ancestors are of no use, and of other shapes at each level."""
    nothing: Any = ()
    return info._replace(num_bad_weights=info.num_bad_weights / size, ancestors=nothing)


def _one_of_each(key: PRNGKeyArray, filters: FilterState) -> Float[Array, "N *x"]:
    """A state drawn from each inner filter."""
    reached = jnp.cumsum(jnp.exp(filters.log_weights), axis=1)
    level = (1.0 - jax.random.uniform(key, reached.shape[:1], reached.dtype)) * reached[:, -1]
    at = jnp.sum(reached < level[:, None], axis=1)  # the level is above zero: no row of no weight is drawn
    return filters.x[jnp.arange(at.shape[0]), at]


def _key_for_each(key: PRNGKeyArray, theta: Theta) -> PRNGKeyArray:
    return jax.random.split(key, jax.tree.leaves(theta)[0].shape[0])


def _narrowed(filters: FilterState, size: int) -> FilterState:
    """The filters' first `size` particles."""
    return filters._replace(x=filters.x[:, :size], log_weights=filters.log_weights[:, :size])


def _widened(filters: FilterState, room: int) -> FilterState:
    """The filters with rows of no weight, up to `room` of them."""
    more = [(0, 0), (0, room - filters.log_weights.shape[1])]
    x = jnp.pad(filters.x, more + [(0, 0)] * (filters.x.ndim - 2))
    return filters._replace(x=x, log_weights=jnp.pad(filters.log_weights, more, constant_values=-jnp.inf))
