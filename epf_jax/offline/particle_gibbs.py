r"""Particle Gibbs with ancestor sampling (Lindsten, Jordan and Schön 2014): an offline reference.

For every draw:

    1. theta   given the path x_0:T and y_1:T: drawn exactly from a statistic of the path if one fits, otherwise by
    steps
               of a sampler on the path's own density
    2. path    given theta, y_1:T and the current path: one sweep of conditional SMC (`conditional_smc.py`)

Both leave p(theta, x_0:T | y_1:T) invariant for two particles or more; more particles forget the old path sooner. The
path's density is exact (`path_terms.py`). With a statistic that approximates it, such as `taylor` or `chebyshev`, the
chain is only as exact as the statistic.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.checks import check_whole_number
from epf_jax.core.random import threefry
from epf_jax.filters.extended_parameter import check_statistic
from epf_jax.models.observed import observed_series
from epf_jax.models.path_terms import path_terms
from epf_jax.models.state_space import StateSpaceModel, check_is_model, warn_of_slips
from epf_jax.models.waiting import built_for
from epf_jax.offline.chain_loop import Draw, check_plan, run_chains, scout
from epf_jax.offline.chains import Chains
from epf_jax.particles.conditional_smc import first_path, redraw_whole_path
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.proposals import Proposal, check_proposal
from epf_jax.running.run import DEFAULT_LEVELS
from epf_jax.samplers import Sampler, slice_sampler
from epf_jax.statistics import Statistic, conjugate, scale_mixture, why_not_conjugate, with_sampler
from epf_jax.statistics.scale_mixture import why_not_scale_mixture
from epf_jax.statistics.statistic import check_model_learns, check_statistic_moves, from_log_target, statistic_of_path


class PathState(NamedTuple):
    """Theta's coordinates, and the path."""

    z: Float[Array, " P"]
    x: Float[Array, "T+1 *x"]


def particle_gibbs(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    y: Float[Array, "T *y"],
    *,
    num_particles: int = 20,
    num_draws: int = 2000,
    num_warmup: int = 500,
    num_chains: int = 4,
    statistic: Statistic | None = None,
    sampler: Sampler | None = None,
    proposal: Proposal | None = None,
    inputs: Any = None,
    levels: tuple[float, ...] = DEFAULT_LEVELS,
    progress: bool = False,
) -> Chains:
    """The posterior of theta given a whole series, by particle Gibbs with ancestor sampling.

    The posterior mean is `chains.theta.mean["phi"][-1]`, as for a filter. The draws, R-hat and ESS are in
    `chains.draws`, `chains.rhat` and `chains.ess`.

    Args:
        key: a random key.
        model: the state-space model.
        y: the observations, in any form that `epf.run` takes; NaN is missing.
        num_particles: the number of particles of conditional SMC, at least two.
        num_draws: draws that each chain keeps.
        num_warmup: draws before them, during which the sampler's scale is learned.
        num_chains: the number of chains, all in one program.
        statistic: the statistic that theta is drawn from, given the path. By default `epf.conjugate` or
            `epf.scale_mixture`, with exact draws, if the model allows one; otherwise the path's own density.
        sampler: how theta is drawn from the path's own density, or from the given statistic; by default
            `epf.slice_sampler()`, which needs no tuning. If you give a sampler but no statistic, the path's own density
            is used.
        proposal: how states are drawn; by default `epf.fully_adapted(model)` if the model allows it, otherwise
            `epf.bootstrap()`.
        inputs: one row per observation, or None for the time index.
        levels: quantile levels of the summaries.
        progress: whether to show a progress bar.
    """
    check_is_model(model)
    y, rows = observed_series(model, y, inputs)[:2]
    model = built_for(model, rows)  # the same object, which a given statistic is of, where it need not wait
    check_model_learns(model, "particle_gibbs")
    warn_of_slips(model)
    check_whole_number("num_particles", num_particles, least=2, hint="The path is one of them; twenty is a good start.")
    key, plan = check_plan(key, num_chains, num_warmup, num_draws, levels, progress)
    statistic, proposal = built_for((statistic, proposal), rows)
    proposal = default_proposal(model) if proposal is None else proposal
    check_proposal(proposal, model)
    if statistic is not None:
        check_statistic(statistic, model)
        check_statistic_moves(statistic)
        _check_of_one_path(statistic)
    draw_theta, how = theta_given_path(model, statistic, sampler)
    key_start, key_paths, key_chains = jax.random.split(key, 3)
    z, tuning = scout(key_start, model, y, rows, num_chains)
    states = PathState(z, _first_paths(model, proposal, num_particles)(key_paths, z, y, rows))
    kernel = gibbs_kernel(model, draw_theta, proposal, num_particles)
    description = f"particle Gibbs, {num_particles} particles, proposal {proposal.name}, theta by {how}"
    return run_chains(key_chains, model, kernel, states, tuning, (y, rows), plan, description)


@lru_cache(maxsize=64)
def gibbs_kernel(model: StateSpaceModel, draw_theta: Callable, proposal: Proposal, num_particles: int) -> Callable:
    """One step of one chain: `kernel(key, state, population, (y, rows)) -> state, Draw`."""
    coordinates = model.parameters

    def kernel(key, state, population, data):
        key_theta, key_path = jax.random.split(key)
        y, rows = data
        theta, info = draw_theta(key_theta, coordinates.to_theta(state.z), state.x, y, rows, population)
        redrawn = redraw_whole_path(key_path, model, proposal, num_particles, theta, state.x, y, rows)
        z = coordinates.to_vector(theta)
        acceptance = info.acceptance.astype(z.dtype)
        drawn = Draw(z, redrawn.x[-1], redrawn.log_evidence, acceptance, redrawn.num_collapsed > 0)
        return PathState(z, redrawn.x), drawn

    return kernel


def _check_of_one_path(statistic: Statistic) -> None:
    """Refuse a statistic that must follow many particles to be read rightly."""
    if statistic.box_follows:
        raise ValueError(
            f"statistic: the box of {statistic.name} follows a filter's particles, and here is one path. Leave the "
            "statistic out, or give epf.chebyshev(model, shrink=None) if the prior is not much wider than the "
            "posterior."
        )


def theta_given_path(model, statistic, sampler) -> tuple[Callable, str]:
    """`draw(key, theta, x, y, rows, population) -> theta, info`, and its description."""
    if statistic is None and sampler is None:
        return _default_draw(model)
    if statistic is None:
        return path_density_draw(model, sampler), f"{sampler.name} on the path's density"
    statistic = statistic if sampler is None else with_sampler(statistic, model, sampler)
    return statistic_draw(statistic), f"the {statistic.name} statistic"


@lru_cache(maxsize=64)
def _default_draw(model: StateSpaceModel) -> tuple[Callable, str]:
    for why_not, build in ((why_not_conjugate, conjugate), (why_not_scale_mixture, scale_mixture)):
        if not why_not(model):
            statistic = build(model)
            return statistic_draw(statistic), f"the {statistic.name} statistic"
    return path_density_draw(model, slice_sampler()), "slice_sampler on the path's density"


@lru_cache(maxsize=64)
def statistic_draw(statistic: Statistic) -> Callable:
    """Theta drawn from the statistic of the whole path."""

    def draw(key, theta, x, y, rows, population):
        key_update, key_sample = jax.random.split(key)
        S = statistic_of_path(statistic, x, y, theta, inputs=rows, key=key_update)
        return statistic.sample(key_sample, jax.tree.map(lambda leaf: leaf[-1], S), theta, population)

    return draw


@lru_cache(maxsize=64)
def path_density_draw(model: StateSpaceModel, sampler: Sampler) -> Callable:
    """Theta drawn by a sampler from the path's own density."""
    terms, coordinates = path_terms(model), model.parameters

    def log_target(path):
        x, y, rows = path

        def one_step(z, x_prev, x, y, u):
            return sum((term.log_prob(z, x_prev, x, y, u) for term in terms.steps), jnp.zeros(()))

        def log_density(z):
            first = sum((term.log_prob(z, x[0], x[0], None, None) for term in terms.initial), jnp.zeros(()))
            steps = jax.vmap(one_step, in_axes=(None, 0, 0, 0, 0))(z, x[:-1], x[1:], y, rows)
            return coordinates.log_prior(z) + first + jnp.sum(steps)

        return log_density

    whole = from_log_target(model, tuple, lambda key, S, *_: S, log_target, sampler)

    def draw(key, theta, x, y, rows, population):
        return whole.sample(key, (x, y, rows), theta, population)

    return draw


@lru_cache(maxsize=64)  # one program for all series of a length
def _first_paths(model: StateSpaceModel, proposal: Proposal, num_particles: int) -> Callable:
    """`draw(key, z, y, rows)`, a path for each z."""

    def one(key, z, y, rows):
        return first_path(key, model, proposal, num_particles, model.parameters.to_theta(z), y, rows)

    @jax.jit
    def draw(key, z, y, rows):
        return jax.vmap(one, in_axes=(0, 0, None, None))(jax.random.split(threefry(key), z.shape[0]), z, y, rows)

    return draw
