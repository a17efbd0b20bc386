r"""Runs several Markov chains in one compiled program, with proposals tuned to all of them during the warm-up.

A kernel is `kernel(key, state, population, data) -> state, Draw`, for one chain. The population's covariance adapts to
the chains (Haario, Saksman and Tamminen 2001; Andrieu and Thoms 2008), to all of them together (Craiu, Rosenthal and
Yang 2009), with diminishing gains:

.. math:: \mu \leftarrow \mu + \gamma_i\,(\bar z - \mu), \qquad
          \Sigma \leftarrow \Sigma + \gamma_i\,\bigl(\overline{(z-\mu)(z-\mu)^T} - \Sigma\bigr), \qquad
          \gamma_i = (i + 10)^{-2/3}

It is fixed when the warm-up ends, so that all kept draws come from one fixed kernel. The scale is not tuned to an
acceptance rate: with a noisy likelihood, no step is short enough to reach the rate of an exact one.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from tqdm.auto import tqdm

from epf_jax.core.checks import check_flag, check_key, check_whole_number
from epf_jax.core.compilation_cache import warn_of_many_programs
from epf_jax.core.gaussian import cholesky
from epf_jax.core.platforms import full_precision
from epf_jax.core.random import normal, stream
from epf_jax.filters import Filter, liu_west_filter
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.offline.chains import Chains, chains_of
from epf_jax.particles.weights import Population, population
from epf_jax.running.run import check_levels, run_jitted

_SCOUTS = 500  # particles of the filter that finds where the chains start
_FIRST_FLOOR = 1e-2  # least spread of the scouts, in prior standard deviations
_FLOOR = 1e-4  # of the chains
_PIECES = 50  # between which a progress bar moves


class Draw(NamedTuple):
    """One draw of a kernel: theta's unconstrained coordinates, x_T, and their diagnostics."""

    z: Float[Array, " P"]
    x: Float[Array, " *x"]
    log_likelihood: Float[Array, ""]
    acceptance: Float[Array, ""]
    collapsed: Array


class Tuning(NamedTuple):
    """Location and covariance of theta, learned from the chains."""

    mean: Float[Array, " P"]
    covariance: Float[Array, "P P"]


class Plan(NamedTuple):
    """Number and length of the chains, quantile levels, and whether to show a progress bar."""

    num_chains: int
    num_warmup: int
    num_draws: int
    levels: tuple[float, ...]
    progress: bool


def check_plan(
    key: Any, num_chains: Any, num_warmup: Any, num_draws: Any, levels: Any, progress: Any
) -> tuple[PRNGKeyArray, Plan]:
    """The key and the plan, checked."""
    check_whole_number("num_chains", num_chains, least=2, hint="R-hat compares chains: four is a good start.")
    check_whole_number("num_warmup", num_warmup, hint="A thousand is a good start.")
    check_whole_number("num_draws", num_draws, least=4, hint="A few thousand is a good start.")
    check_flag("progress", progress)
    return stream(check_key(key)), Plan(num_chains, num_warmup, num_draws, check_levels(levels), progress)


def scout(key: PRNGKeyArray, model: StateSpaceModel, y: Array, rows: Any, num: int) -> tuple[Array, Tuning]:
    """The starts of the chains, spread twice as wide as the posterior of one run of Liu and West's filter.

    That posterior is rough. It only serves for the starts and for the length of the first steps.
    """
    key_filter, key_start = jax.random.split(key)
    final = run_jitted(_scouts(model), (), False, None, False, key_filter, None, y, rows).final
    coordinates = model.parameters
    z = jax.vmap(coordinates.to_vector)(final.theta)
    found = population(z, final.log_weights, _FIRST_FLOOR * coordinates.scale)
    with full_precision():
        start = found.mean + 2.0 * normal(key_start, (num, coordinates.dim)) @ found.scale_tril.T
        return start, Tuning(found.mean, found.scale_tril @ found.scale_tril.T)


@lru_cache(maxsize=64)
def _scouts(model: StateSpaceModel) -> Filter:
    return liu_west_filter(model, _SCOUTS)


def run_chains(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    kernel: Callable,
    states: Any,
    tuning: Tuning,
    data: tuple[Array, Any],
    plan: Plan,
    description: str,
) -> Chains:
    """Run all chains through warm-up and draws, and return their results.

    Args:
        key: a random key.
        model: the model.
        kernel: one step of one chain. Reuse the object, so that it is compiled once.
        states: the kernel's states, with a leading axis of chains.
        tuning: the population at the start.
        data: the series and the rows of its inputs, for the kernel.
        plan: number and length of the chains, levels, progress bar.
        description: the algorithm in words.
    """
    total = plan.num_warmup + plan.num_draws
    size = -(-total // _PIECES) if plan.progress else total
    carry, pieces = (states, tuning), []
    with tqdm(total=total, unit="draw", desc="sampling", disable=not plan.progress) as bar:
        for first in range(0, total, size):
            turns = jnp.arange(first, min(first + size, total))
            carry, drawn = _scan(kernel, model, key, carry, turns, plan.num_warmup, data)
            pieces.append(jax.block_until_ready(drawn))
            bar.update(len(turns))
    drawn = jax.tree.map(lambda *parts: jnp.concatenate(parts)[plan.num_warmup :].swapaxes(0, 1), *pieces)
    theta = jax.jit(jax.vmap(jax.vmap(model.parameters.to_theta)))(drawn.z)
    return chains_of(
        theta,
        drawn.x,
        drawn.log_likelihood,
        drawn.acceptance,
        drawn.collapsed,
        num_steps=len(data[0]),
        levels=plan.levels,
        description=description,
    )


@partial(jax.jit, static_argnums=(0, 1))
def _scan(kernel, model, key, carry, turns, num_warmup, data):
    warn_of_many_programs()
    floor = _FLOOR * model.parameters.scale

    def turn(carry, i):
        states, tuning = carry
        keys = jax.random.split(jax.random.fold_in(key, i), jax.tree.leaves(states)[0].shape[0])
        seen = Population(tuning.mean, cholesky(tuning.covariance + jnp.diag(floor**2)))
        states, drawn = jax.vmap(kernel, in_axes=(0, 0, None, None))(keys, states, seen, data)
        gain = jnp.where(i < num_warmup, (i + 10.0) ** (-2 / 3), 0.0)
        return (states, _learn(tuning, drawn.z, gain)), drawn

    with full_precision():
        return jax.lax.scan(turn, carry, turns)


def _learn(tuning: Tuning, z: Float[Array, "C P"], gain: Float[Array, ""]) -> Tuning:
    off = z - tuning.mean
    covariance = jnp.einsum("ci,cj->ij", off, off) / z.shape[0]
    return Tuning(
        tuning.mean + gain * jnp.mean(off, axis=0), tuning.covariance + gain * (covariance - tuning.covariance)
    )
