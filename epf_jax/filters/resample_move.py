r"""Resample-move: SIR whose theta is moved given each particle's whole path (Gilks and Berzuini 2001).

Every particle carries theta in its state, as in SIR. At random times a move that leaves

.. math:: p(\theta \mid x_{0:t}, y_{1:t}) \propto p(\theta)\, p(x_0 \mid \theta) \prod_{s \le t}
          p(x_s \mid x_{s-1}, \theta)\, p(y_s \mid x_s, \theta)

invariant separates copies of one theta. No statistic is needed: the exact density is evaluated along the path, in O(t).

Algorithm, for t = 1..T:

    1. SIR      the parameter filter's step with theta frozen: draw, weigh, resample x and theta
    2. record   x_t, and the rows of generation t-1 that the particles descend from
    3. move     with probability min(1, rate / t): steps of a sampler for every theta, by default of a random walk
                scaled by the population's covariance in unconstrained coordinates, its density read along the lineage
                of the particle

Moving at rate / t makes the cost per step constant on average. Paths are never copied: the genealogy is written once a
step, in O(N), and followed back from x_t to x_0 when a move evaluates a density. As in every particle filter, paths
coalesce: soon all share one path in the far past, on which all theta then depend. `run` writes the genealogy in place;
`filter.step` copies it at every call, unless its state is donated: `jax.jit(filter.step, donate_argnums=1)`.

Under `vmap` (`replicate`) a step goes over the past if any of the runs moves. There are no gradients in reverse mode,
because the loop over the past has no fixed length; and none in forward mode with a sampler that takes gradients itself.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from epf_jax.core.checks import check_positive, check_whole_number
from epf_jax.core.choice import where
from epf_jax.core.derivatives import forward_gradient
from epf_jax.filters.extended_parameter import parameter_filter
from epf_jax.filters.filter import Filter, build_filter, builds_filter, check_filter_arguments, spread_of
from epf_jax.filters.memory import Memory, check_memory_arguments, empty_memory, recall, remember
from epf_jax.filters.state import PARTICLES
from epf_jax.models.missing import missing_where
from epf_jax.models.path_terms import Terms, path_terms
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.proposals import Proposal
from epf_jax.particles.resampling import Resampler, resampler_name, systematic
from epf_jax.particles.weights import Population
from epf_jax.samplers import Sampler, check_sampler, each_particle, no_draw, random_walk, together
from epf_jax.statistics import frozen


class Genealogy(NamedTuple):
    """The statistic S of resample-move: every generation of states, and their ancestors.

    Attributes:
        x: generations x_0..x_t, in the first t + 1 rows.
        ancestors: for each particle of generation s, in row s, the row of generation s - 1 that it descends from.
        memory: the observations so far.
    """

    x: Float[Array, "max_steps+1 N *x"]
    ancestors: Int[Array, "max_steps+1 N"]
    memory: Memory


@builds_filter
def resample_move_filter(
    model: StateSpaceModel,
    num_particles: int,
    *,
    max_steps: int,
    rate: float | None = 20.0,
    num_moves: int = 1,
    sampler: Sampler | None = None,
    proposal: Proposal | None = None,
    resample: Resampler = systematic,
) -> Filter:
    """Resample-move: SIR with theta moved given the particles' own paths, exactly.

    Args:
        model: the state-space model.
        num_particles: N.
        max_steps: the largest number of observations: the filter keeps every generation of states. `run` raises an
            error for a longer series. A step beyond is reported as `overflowed`, and theta no longer moves.
        rate: all particles move at step t with probability min(1, rate / t), so that a step costs on average `rate`
            evaluations of one step's densities, for any length of the series. With None they move at every step, which
            costs O(t).
        num_moves: random-walk steps of a move.
        sampler: another way to move theta: `epf.slice_sampler()`, `epf.blackjax_sampler(blackjax.mala,
            step_size=0.7)`. Its gradients are computed in forward mode along the path, one pass for each parameter.
        proposal: how x_t is drawn; by default `epf.fully_adapted(model)` if the model allows it, otherwise
            `epf.bootstrap()`.
        resample: the resampling scheme.
    """
    check_filter_arguments(model, num_particles, resample)
    check_memory_arguments("resample_move_filter", model, max_steps, resample)
    check_whole_number("num_moves", num_moves, hint="One random-walk step to a move is usual.")
    if rate is not None:
        check_positive("rate", rate, "a positive number of moves, or None to move at every step")
    proposal = default_proposal(model) if proposal is None else proposal
    N, coordinates = num_particles, model.parameters
    sir = parameter_filter(model, N, frozen(model), proposal=proposal, resample=resample)
    sampler, how = _moved_by(model, num_moves, sampler)
    terms = path_terms(model)

    def init(key):
        state = sir.init(key)
        x = jnp.zeros((max_steps + 1, *state.x.shape), state.x.dtype).at[0].set(state.x)
        ancestors = jnp.zeros((max_steps + 1, N), jnp.int32)
        return state._replace(S=Genealogy(x, ancestors, empty_memory(model, max_steps)))

    def move(key, theta, spread, genealogy, num_steps):
        def log_target(row):
            def log_density(z):
                return coordinates.log_prior(z) + _path_log_density(terms, genealogy, row, num_steps, z)

            if not sampler.uses_gradient:
                return log_density
            return forward_gradient(lambda z: where(num_steps > 0, log_density(z), _of_spread(spread, z)))

        z = jax.vmap(coordinates.to_vector)(theta)
        z, moves = each_particle(sampler, key, z, jnp.arange(N, dtype=jnp.int32), log_target, spread)
        return jax.vmap(coordinates.to_theta)(z), together(moves)

    def step(key, before, y, u):
        key_sir, key_when, key_move = jax.random.split(key, 3)
        y = jnp.asarray(y, float)
        state, info = sir.step(key_sir, before._replace(S=()), y, u)
        t = state.t
        genealogy = Genealogy(
            x=before.S.x.at[t].set(state.x, mode="drop"),
            ancestors=before.S.ancestors.at[t].set(info.ancestors.astype(jnp.int32), mode="drop"),
            memory=remember(before.S.memory, before.t, missing_where(info.collapsed, y), u),
        )
        chosen = True if rate is None else jax.random.uniform(key_when) < rate / t
        due = chosen & (t <= max_steps)

        spread = spread_of(coordinates, before)
        theta, moves = jax.lax.cond(
            due,
            # In a batch, runs that are not due are moved as well, and not heard of: they go back over no steps.
            lambda: move(key_move, state.theta, spread, genealogy, where(due, t, 0)),
            lambda: (state.theta, no_draw()),
        )
        acceptance = where(due, moves.acceptance, jnp.nan)
        info = info._replace(acceptance=acceptance, num_bad_densities=moves.num_bad, overflowed=t > max_steps)
        return state._replace(theta=theta, S=genealogy), info

    when = "every step" if rate is None else f"rate {rate:g} / t"
    description = (
        f"resample-move: {N} particles, {how} at {when}, proposal {proposal.name}, resampling "
        f"{resampler_name(resample)}, room for {max_steps} steps"
    )
    shared: Any = False  # a generation is a row of the genealogy, particles lie along its second axis
    by_particle = PARTICLES._replace(S=shared)
    return build_filter(model, N, init, step, description, resample, by_particle=by_particle, max_steps=max_steps)


def _moved_by(model: StateSpaceModel, num_moves: int, sampler: Sampler | None) -> tuple[Sampler, str]:
    """The sampler of a move, and its description."""
    if sampler is None:
        return random_walk(num_steps=num_moves), f"{num_moves} random-walk step{'s' if num_moves > 1 else ''}"
    if num_moves != 1:
        raise ValueError(
            f"num_moves: {num_moves} random-walk steps do not go with a sampler. Give one of the two; samplers have "
            "their own number of steps, epf.random_walk(num_steps=4)."
        )
    check_sampler(sampler, model.parameters)
    return sampler, f"{sampler.name} steps"


def _of_spread(spread: Population, z: Float[Array, " P"]) -> Float[Array, ""]:
    """A density as wide as the population, for runs that do not move now: on the prior, NUTS would take long."""
    return -0.5 * jnp.sum(((z - spread.mean) / spread.sd) ** 2)


def _path_log_density(
    terms: Terms, genealogy: Genealogy, row: Int[Array, ""], num_steps: Int[Array, ""], z: Float[Array, " P"]
) -> Float[Array, ""]:
    """Log-density of the terms that theta enters, along the path that ends in a row of the last generation."""
    x, ancestors, memory = genealogy

    def back(k, carry):
        row, x_t, total = carry
        t = num_steps - k
        row = ancestors[t, row]
        x_prev = x[t - 1, row]
        y, u = recall(memory, t - 1)
        total += sum(term.log_prob(z, x_prev, x_t, y, u) for term in terms.steps)
        return row, x_prev, total

    row, x_0, total = jax.lax.fori_loop(0, num_steps, back, (row, x[num_steps, row], jnp.zeros((), z.dtype)))
    y, u = recall(memory, 0)
    return total + sum(term.log_prob(z, x_0, x_0, y, u) for term in terms.initial)
