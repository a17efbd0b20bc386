"""`Sampler`: a Markov kernel on theta in unconstrained coordinates."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from epf_jax.models.parameters import Parameters
from epf_jax.particles.weights import Population, sums

LogDensity = Callable[[Float[Array, " P"]], Float[Array, ""]]


class SampleInfo(NamedTuple):
    """The report of a draw of theta.

    Attributes:
        acceptance: the share of accepted moves.
        num_bad: how often the density was NaN; the sampler never moves there.
    """

    acceptance: Float[Array, ""]
    num_bad: Int[Array, ""]


def together(info: SampleInfo) -> SampleInfo:
    """One report for many draws, from their reports."""
    if jnp.ndim(info.acceptance) == jnp.ndim(info.num_bad) == 0:
        return info
    parts = [jnp.ravel(jnp.asarray(part)) for part in info]
    alike = parts[0].size == parts[1].size
    acceptance, num_bad = sums(*parts) if alike else (sums(part)[0] for part in parts)
    return SampleInfo(acceptance / parts[0].size, num_bad.astype(int))


def exact_draw(dtype: Any) -> SampleInfo:
    """The report of an exact draw."""
    return SampleInfo(jnp.ones((), dtype), jnp.zeros((), int))


def no_draw() -> SampleInfo:
    """The report if theta was not drawn."""
    return SampleInfo(jnp.zeros(()), jnp.zeros((), int))


def unit_population(theta: Float[Array, " P"]) -> Population:
    """A population about theta with unit scale, for a kernel without particles."""
    return Population(theta, jnp.eye(theta.shape[0], dtype=theta.dtype))


class Sampler(NamedTuple):
    """A kernel that leaves exp(log_density) invariant.

    Attributes:
        step: `step(key, theta, log_density, population=None) -> theta, info`; theta is one particle's unconstrained
            vector, `population` the location and scale of all particles, which set the length of steps (by default
            theta itself, and one).
        max_dim: the largest number of parameters, or None.
        name: the name for messages.
        uses_gradient: whether it differentiates the density.
        fits_any: whether it has no settings for single parameters, and so fits any number of them.
        draw: `draw(key, shape, dtype)`, the random numbers of a step for theta of the given shape, (P,) or (N, P). With
            it, one draw serves all particles, and none needs a key of its own.
        move: `move(numbers, theta, log_density, population)`, the step given its random numbers.
    """

    step: Callable[..., tuple[Float[Array, " P"], SampleInfo]]
    name: str
    max_dim: int | None = None
    uses_gradient: bool = False
    fits_any: bool = False
    draw: Callable[..., Any] | None = None
    move: Callable[..., tuple[Float[Array, " P"], SampleInfo]] | None = None


def check_sampler(sampler: Any, coordinates: Parameters) -> None:
    """Raise if it is not a sampler, or does not fit the parameters."""
    if not isinstance(sampler, Sampler):
        hint = " Call it: samplers are built by their functions." if callable(sampler) else ""
        if type(sampler).__module__.startswith("blackjax"):
            hint = " Wrap it: epf.blackjax_sampler(blackjax.hmc, step_size=0.6, num_integration_steps=3), for one."
        raise TypeError(
            "sampler: expected epf.random_walk(), epf.slice_sampler(), epf.grid_sampler() or "
            f"epf.blackjax_sampler(...), got {sampler!r}.{hint}"
        )
    if sampler.max_dim is not None and coordinates.dim > sampler.max_dim:
        raise ValueError(
            f"sampler: {sampler.name} handles {sampler.max_dim} parameter, but the prior has {coordinates.dim} "
            f"({', '.join(coordinates.names)}). Use epf.random_walk() or epf.slice_sampler()."
        )
    if not sampler.fits_any:
        # Steps or widths of the wrong length are found now, not at the first observation: any density will do.
        jax.eval_shape(
            lambda z: sampler.step(jax.random.key(0), z, jnp.sum, prior_population(coordinates)), coordinates.centre
        )


def prior_population(coordinates: Parameters) -> Population:
    """The location and scale of the prior, for a sampler without particles."""
    return Population(coordinates.centre, coordinates.scale * np.eye(coordinates.dim, dtype=coordinates.scale.dtype))


def each_particle(
    sampler: Sampler,
    key: PRNGKeyArray,
    theta: Float[Array, "N P"],
    S: Any,
    log_target: Callable,
    population: Population,
) -> tuple[Float[Array, "N P"], SampleInfo]:
    """One step of the sampler for every particle; its density is `log_target` of its own S."""
    if sampler.draw is None or sampler.move is None:
        keys = jax.random.split(key, theta.shape[0])
        return jax.vmap(lambda key, z, S: sampler.step(key, z, log_target(S), population))(keys, theta, S)
    move, numbers = sampler.move, sampler.draw(key, theta.shape, theta.dtype)
    return jax.vmap(lambda numbers, z, S: move(numbers, z, log_target(S), population))(numbers, theta, S)


def per_coordinate(name: str, value: Any, theta: Float[Array, " P"]) -> Float[Array, " P"]:
    """One number for each coordinate of theta, from one for all or one for each."""
    value = jnp.asarray(value, theta.dtype)
    if value.shape not in ((), theta.shape):
        raise ValueError(
            f"{name}: expected one number, or one for each of the {theta.shape[0]} unconstrained coordinates of theta, "
            f"got shape {value.shape}."
        )
    return jnp.broadcast_to(value, theta.shape)
