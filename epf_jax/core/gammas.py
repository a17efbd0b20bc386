"""Gamma draws for all particles at once, also inside of other distributions: Beta, Dirichlet, StudentT, ..."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.choice import where
from epf_jax.core.elementary import log
from epf_jax.core.platforms import by_platform
from epf_jax.core.programs import is_variable, outputs
from epf_jax.core.random import between_ones, normal_at, places, stream


def gamma(key: PRNGKeyArray, concentration: Float[Array, "..."]) -> Float[Array, "..."]:
    """Gamma draws with rate 1, one for each concentration; NaN if it is not a positive number."""
    return jnp.exp(log_gamma(key, concentration))


_ROUNDS = 8  # of rejections where none may be waited for: all of them fail once in 3e10 draws, .049^8


@jax.custom_jvp
def log_gamma(key: PRNGKeyArray, concentration: Float[Array, "..."]) -> Float[Array, "..."]:
    """Logarithms of gamma draws, which do not underflow for concentrations near zero."""
    concentration = jnp.asarray(concentration)
    longest = int(np.argmax(concentration.shape)) if concentration.ndim else None
    if longest is None:
        return _log_gamma(key, concentration)
    # Side by side in memory: a short last axis would be a loop too short for a processor to do many at once.
    return jnp.moveaxis(_log_gamma(key, jnp.moveaxis(concentration, longest, -1)), -1, longest)


@jax.jit
def _log_gamma(key: PRNGKeyArray, concentration: Float[Array, "..."]) -> Float[Array, "..."]:
    """Draws for a row of many, by the rejection method of Marsaglia and Tsang (2000); at most one in twenty fails.

    All draws are tried at once. On a CPU it loops until all are accepted, about three rounds for a thousand, while
    `jax.random.gamma` makes one draw after another. A GPU would have to wait for the processor after every round, so it
    makes `_ROUNDS` rounds, and keeps the last try if all fail.
    """
    key, counters, dtype = stream(key), places(concentration.shape), concentration.dtype
    proper = (concentration > 0) & (concentration < jnp.inf)
    small = concentration < 1
    a = where(proper, concentration, 1.0) + where(small, 1.0, 0.0)
    d = a - 1 / 3
    c = 1 / jnp.sqrt(9 * d)

    def uniform(k):
        """The k-th uniform number between -1 and 1, without the ends, of each draw."""
        return between_ones(key, counters + k * jnp.uint32(concentration.size), dtype)

    def attempt(state):
        k, found, accepted = state
        x = normal_at(uniform(k))
        cube = (1 + c * x) ** 3
        log_cube = log(where(cube > 0, cube, 1.0))
        likely = 0.5 - 0.5 * uniform(k + 1) < jnp.exp(0.5 * x**2 + d * (1 - cube + log_cube))
        new = log_cube, uniform(k + 2)
        found = jax.tree.map(partial(where, accepted), found, new)
        return k + 3, found, accepted | ((cube > 0) & likely)

    def until_all(*start):
        return jax.lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, start)

    def rounds(*start):
        return jax.lax.fori_loop(0, _ROUNDS, lambda _, state: attempt(state), start, unroll=True)

    none = jnp.zeros_like(concentration)
    start = jnp.zeros((), jnp.uint32), (none, none), ~proper
    _, (log_cube, place), _ = by_platform(*start, cpu=until_all, default=rounds)
    # One of a concentration below 1 is a share of one of a concentration that is larger by 1.
    share = where(small, log(0.5 - 0.5 * place) / concentration, 0.0)
    return where(proper, log(d) + log_cube + share, jnp.nan)


def with_own_gammas(sample: Callable[[PRNGKeyArray], Any], key: PRNGKeyArray) -> Any:
    """`sample(key)` with its gamma draws (of a Gamma, Beta, Dirichlet, StudentT, ..) replaced by `log_gamma`.

    `jax.random.gamma` makes one draw after another, also on a GPU for keys of other generators.
    """
    program, shape = jax.make_jaxpr(sample, return_shape=True)(key)
    if not _draws_gammas(program.jaxpr):
        return sample(key)
    found = _evaluated(program.jaxpr, program.consts, jax.tree.leaves(key))
    return jax.tree.unflatten(jax.tree.structure(shape), found)


def _draws_gammas(program: Any) -> bool:
    """Whether a program, or what it calls, draws gammas; loops and conditions are not searched."""
    return any(
        eqn.primitive.name == "random_gamma" or _draws_gammas(_called(eqn)) for eqn in getattr(program, "eqns", ())
    )


def _called(eqn: Any) -> Any:
    return eqn.params["jaxpr"].jaxpr if eqn.primitive.name in ("jit", "pjit") else None


def _evaluated(program: Any, consts: Any, inputs: Any) -> list[Any]:
    """The results of a jaxpr, with gamma draws by `log_gamma`."""

    def operation(eqn, given):
        if eqn.primitive.name == "random_gamma":
            draw = log_gamma if eqn.params["log_space"] else gamma
            for _ in jnp.shape(given[0]):  # a key for each of the first draws' axes
                draw = jax.vmap(draw)
            return [draw(*given)]
        if _draws_gammas(_called(eqn)):
            return _evaluated(_called(eqn), eqn.params["jaxpr"].consts, given)
        variables = [v for v in eqn.invars if is_variable(v)]
        alone = program.replace(constvars=(), invars=variables, outvars=eqn.outvars, eqns=[eqn], effects=eqn.effects)
        values = [value for v, value in zip(eqn.invars, given, strict=True) if is_variable(v)]
        return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*values)

    return outputs(program, inputs, operation, constants=consts)


@log_gamma.defjvp
def _log_gamma_jvp(primals, tangents):
    """The derivative of the quantile of a draw with respect to the concentration (Figurnov, Mohamed and Mnih 2018)."""
    (key, concentration), (_, dot) = primals, tangents
    concentration = jnp.asarray(concentration)
    found = log_gamma(key, concentration)
    drawn = jnp.maximum(jnp.exp(found), jnp.finfo(found.dtype).tiny)
    return found, jax.lax.random_gamma_grad(concentration, drawn) / drawn * dot
