r"""Particle marginal Metropolis-Hastings (Andrieu, Doucet and Holenstein 2010): an offline reference.

A random walk over theta whose likelihood is a particle filter's estimate. The estimate is kept with theta and never
computed again, so that the chain has the exact posterior for any number of particles. For every draw:

    1. propose  z' = z + 2.38 / sqrt(P) L e, e ~ N(0, I), L L^T the covariance learned in the warm-up
    2. estimate log p(y_1:T | theta') by a particle filter with theta' known and fresh random numbers; draw x_T' from
                its particles
    3. accept   theta' and x_T' with probability min(1, p(z') p_hat(y | theta') / (p(z) p_hat(y | theta)))

z are unconstrained coordinates. blackjax's random walks do not fit, because an estimate and a draw of x_T go along with
theta here.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.checks import check_signature, check_whole_number, returned
from epf_jax.core.number_arrays import on_device
from epf_jax.core.random import normal
from epf_jax.filters import Filter, bootstrap_filter
from epf_jax.models.observed import observed_series
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel, check_is_model, known, seen, warn_of_slips
from epf_jax.models.waiting import built_for
from epf_jax.offline.chain_loop import Draw, check_plan, run_chains, scout
from epf_jax.offline.chains import Chains
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.proposals import Proposal, check_proposal
from epf_jax.particles.quasi_random import in_order, is_quasi_random
from epf_jax.particles.resampling import independent_ancestors, systematic
from epf_jax.running.run import DEFAULT_LEVELS, check_filter, run_jitted
from epf_jax.statistics.statistic import check_model_learns


class _State(NamedTuple):
    """Theta's coordinates, a draw of x_T from the particles, and the likelihood's estimate."""

    z: Float[Array, " P"]
    x: Float[Array, " *x"]
    log_likelihood: Float[Array, ""]


def pmmh(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    y: Float[Array, "T *y"],
    *,
    num_particles: int = 200,
    num_draws: int = 2000,
    num_warmup: int = 1000,
    num_chains: int = 4,
    proposal: Proposal | None = None,
    filter_of: Callable[[StateSpaceModel], Filter] | None = None,
    inputs: Any = None,
    levels: tuple[float, ...] = DEFAULT_LEVELS,
    progress: bool = False,
) -> Chains:
    """The posterior of theta given a whole series, by particle marginal Metropolis-Hastings.

    The posterior mean is `chains.theta.mean["phi"][-1]`, as for a filter. The draws, R-hat and ESS are in
    `chains.draws`, `chains.rhat` and `chains.ess`.

    Args:
        key: a random key.
        model: the state-space model.
        y: the observations, in any form that `epf.run` takes; NaN is missing.
        num_particles: of the default filter. Enough that log p(y | theta) at one theta varies with a standard deviation
            of 1 to 2 from key to key (Doucet et al. 2015); that takes a number in proportion to T.
        num_draws: draws that each chain keeps.
        num_warmup: draws before them, during which the proposal's covariance is learned.
        num_chains: the number of chains, all in one program.
        proposal: how that filter draws x_t; by default `epf.fully_adapted(model)` if the model allows it, otherwise
            `epf.bootstrap()`. Reuse the object: a new one is compiled again.
        filter_of: `filter_of(model)`, another filter for the likelihood, of the model with known theta, such as
            `lambda known: epf.bootstrap_filter(known, 500, resample=epf.in_order())`. Reuse it, too.
        inputs: one row per observation, or None for the time index.
        levels: quantile levels of the summaries.
        progress: whether to show a progress bar.
    """
    check_is_model(model)
    y, rows = observed_series(model, y, inputs)[:2]
    model = seen(model, rows)
    check_model_learns(model, "pmmh")
    warn_of_slips(model)
    check_whole_number("num_particles", num_particles, hint="Two hundred is a good start.")
    key, plan = check_plan(key, num_chains, num_warmup, num_draws, levels, progress)
    if filter_of is None:
        proposal = default_proposal(model) if proposal is None else built_for(proposal, rows)
        check_proposal(proposal, model)
        filter_at = _default_filter(model, num_particles, proposal)
    elif proposal is not None:
        raise ValueError("proposal: filter_of builds a filter with a proposal of its own. Give one of the two.")
    else:
        check_signature("filter_of", filter_of, ("model",), returns="a filter")
        filter_at = _given_filter(model, filter_of)
    example = returned("filter_of", check_filter, filter_at(model.parameters.to_theta(model.parameters.centre)))
    if example.model.parameters.dim:
        raise ValueError(
            "filter_of: it returned a filter of another model than its argument. Build the filter from the argument, "
            "in which theta is known: lambda known: epf.bootstrap_filter(known, 500)."
        )
    key_start, key_chains = jax.random.split(key)
    z, tuning = scout(key_start, model, y, rows, num_chains)
    # No estimate belongs to the start: the first proposal whose likelihood is positive is taken.
    nothing = on_device(np.full((num_chains, *example.model.shapes.x.shape), np.nan, z.dtype))
    states = _State(z, nothing.astype(example.model.shapes.x.dtype), jnp.full(num_chains, -jnp.inf, z.dtype))
    description = f"PMMH, likelihood by a {example.description}"
    kernel = pmmh_kernel(model, filter_at)
    return run_chains(key_chains, model, kernel, states, tuning, (y, rows), plan, description)


@lru_cache(maxsize=64)
def pmmh_kernel(model: StateSpaceModel, filter_at: Callable[[Theta], Filter]) -> Callable:
    """One step of one chain: `kernel(key, state, population, (y, rows)) -> state, Draw`."""
    coordinates = model.parameters

    def estimate(key, z, y, rows):
        key_run, key_state = jax.random.split(key)
        final = run_jitted(filter_at(coordinates.to_theta(z)), (), False, None, False, key_run, None, y, rows).final
        return _State(z, final.x[independent_ancestors(key_state, final.log_weights, 1)[0]], final.log_evidence)

    def kernel(key, state, population, data):
        key_move, key_filter, key_accept = jax.random.split(key, 3)
        step = population.scale_tril @ normal(key_move, state.z.shape, state.z.dtype)
        z = state.z + 2.38 / jnp.sqrt(coordinates.dim) * step
        new = estimate(key_filter, z, *data)
        log_prior_ratio = coordinates.log_prior(z) - coordinates.log_prior(state.z)
        log_ratio = log_prior_ratio + new.log_likelihood - state.log_likelihood
        # A NaN compares as False: what cannot be evaluated is not moved to.
        accept = jnp.log(jax.random.uniform(key_accept, dtype=z.dtype)) < log_ratio
        state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), new, state)
        lost = ~jnp.isfinite(new.log_likelihood)
        return state, Draw(state.z, state.x, state.log_likelihood, accept.astype(z.dtype), lost)

    return kernel


@lru_cache(maxsize=64)
def _default_filter(model: StateSpaceModel, num_particles: int, proposal: Proposal) -> Callable[[Theta], Filter]:
    resample = in_order() if is_quasi_random(proposal) else systematic
    return lambda theta: bootstrap_filter(model, num_particles, theta=theta, proposal=proposal, resample=resample)


@lru_cache(maxsize=64)
def _given_filter(model: StateSpaceModel, filter_of: Callable[[StateSpaceModel], Filter]) -> Callable[[Theta], Filter]:
    return lambda theta: filter_of(known(model, theta))
