"""Contestants of the league from other libraries: SMC^2 and Liu-West of smcx, SMC^2 of particles.

smcx takes functions, which are made from this library's models: its parameters are the unconstrained coordinates, its
first state has been moved once, since our x_0 has no observation, and its inner filters draw from the transition.
particles takes classes, which `particles_models` has.

smcx's SMC^2 defines and compiles its functions anew at every call; its seconds have that in them. Its loops are
Python's, an operation at a time: `quicken` has the same operations compiled, which gives the same numbers sooner, and
makes its seconds better than they are.
"""

import importlib
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import epf_jax as epf
from epf_jax.core.densities import observed_log_prob
from epf_jax.particles.quantiles import quantiles
from epf_jax.particles.weights import mean_and_sd

LEVELS = (0.05, 0.95)


def summary(theta: dict[str, Any], log_weights: Any, log_evidence: Any) -> tuple[dict, dict, dict, Any]:
    """Mean, sd, 90% interval of each parameter, and the log-evidence."""
    mean, sd, interval = {}, {}, {}
    for name, values in theta.items():
        values = jnp.asarray(values, float)
        mean[name], sd[name] = mean_and_sd(values, log_weights)
        interval[name] = quantiles(values, log_weights, jnp.asarray(LEVELS))
    return mean, sd, interval, log_evidence


def smcx_functions(model: epf.StateSpaceModel) -> dict[str, Callable]:
    """What smcx's methods ask for; states are vectors there."""
    coordinates, shape = model.parameters, model.shapes.x.shape

    def move(key, x, z):
        return model.transition(coordinates.to_theta(z), x.reshape(shape), None).sample(key).reshape(-1)

    def first(key, z):
        key_initial, key_move = jax.random.split(key)
        return move(key_move, model.initial(coordinates.to_theta(z)).sample(key_initial), z)

    def observe(y, x, z):
        return observed_log_prob(model.observation(coordinates.to_theta(z), x.reshape(shape), None), y[0])

    def look_ahead(y, x, z):
        moved = model.transition(coordinates.to_theta(z), x.reshape(shape), None)
        return observe(y, jnp.reshape(moved.loc if hasattr(moved, "loc") else moved.mean, -1), z)

    def parameters(key, num):
        return jax.vmap(coordinates.to_vector)(coordinates.sample(key, num))

    return {"move": move, "first": first, "observe": observe, "look_ahead": look_ahead, "parameters": parameters}


@cache
def quicken() -> None:
    """Have smcx's SMC^2 split keys, take rows and add up log-likelihoods without a program for each operation.

    The names are private ones of smcx 2.1.0. Keys are to be raw words, and the generator jax's default, by which the
    first keys of a long split are those of a short one.
    """
    if not jax.config.jax_threefry_partitionable:
        raise ValueError(
            "jax_threefry_partitionable is off: a long split would begin with other keys than a short one."
        )
    smc2 = importlib.import_module("smcx.smc2")
    split_in = cache(lambda num: jax.jit(lambda key: tuple(jax.random.split(key, num))))
    split_up_to = cache(lambda num: jax.jit(lambda key: jax.random.split(key, num)))

    def split(key, num=2):
        if isinstance(key, jax.core.Tracer):
            return jax.random.split(key, num)
        if num < 5:
            return split_in(num)(key)
        return np.asarray(split_up_to(1 << (num - 1).bit_length())(key))[:num]

    smc2.jr = types.SimpleNamespace(**{**vars(jax.random), "split": split})
    smc2._add_log_expansion = jax.jit(smc2._add_log_expansion)
    canonical = smc2._canonicalize_emissions
    smc2._canonicalize_emissions = lambda y: np.asarray(canonical(y))  # whose rows cost no program


def smcx_smc2(key, model, y, size, proposal):
    import smcx

    quicken()
    key = jax.random.key_data(key)
    num_theta, num_x = size
    f = smcx_functions(model)

    def start(key, num, z):
        return jax.vmap(lambda key: f["first"](key, z))(jax.random.split(key, num))

    found = smcx.smc2(
        key, f["parameters"], model.parameters.log_prior, start, f["move"], f["observe"], y, num_theta, num_x,
        store_history=False,
    )  # fmt: skip
    theta = jax.vmap(model.parameters.to_theta)(found.filtered_params[-1])
    return summary(theta, found.filtered_log_weights[-1], found.marginal_loglik)


def smcx_liu_west(key, model, y, size, proposal):
    return _jitted_liu_west(model, size)(key, y)


@cache
def _jitted_liu_west(model: epf.StateSpaceModel, size: int) -> Callable:
    import smcx

    f = smcx_functions(model)

    def start(key, num, z):
        return jax.vmap(f["first"])(jax.random.split(key, num), z)

    @jax.jit
    def run(key, y):
        found = smcx.liu_west_filter(
            key, None, f["move"], f["observe"], f["look_ahead"], f["parameters"], y, size, resampling_threshold=2.0,
            parameter_moves="on_selection", param_initial_state_sampler=start, store_history=False,
        )  # fmt: skip
        theta = jax.vmap(model.parameters.to_theta)(found.filtered_params[-1])
        return summary(theta, found.filtered_log_weights[-1], found.marginal_loglik)

    return run


def particles_smc2(key, model, y, size, proposal):
    import particles
    from particles import distributions as d
    from particles import smc_samplers

    from benchmarks.accuracy.particles_models import written_for

    if not hasattr(np, "float"):  # particles 0.3 asks for what NumPy 1.24 took away
        np.float = float  # type: ignore[attr-defined]  # noqa: NPY001
    num_theta, num_x = size
    kind, prior, filter_kind = written_for(model)
    np.random.seed(int(jax.random.randint(key, (), 0, 2**31 - 1)))  # noqa: NPY002  particles draws from the global one
    data = np.concatenate([[0.0], np.asarray(y)])
    smc2 = smc_samplers.SMC2(
        ssm_cls=kind, prior=d.StructDist(prior), data=data, init_Nx=num_x, ar_to_increase_Nx=0.1, fk_cls=filter_kind,
        wastefree=False, len_chain=2,
    )  # fmt: skip
    run = particles.SMC(fk=smc2, N=num_theta)
    run.run()
    at_zero = -0.5 * np.log(2.0 * np.pi)  # what the observation of x_0 adds
    theta = {name: run.X.theta[name] for name in prior}
    return summary(theta, jnp.log(jnp.asarray(run.wgts.W)), run.logLt - at_zero)
