"""The memory of filters that go back over the whole series: all observations and inputs so far.

The buffers have a fixed length, `max_steps`. `run` raises an error for a longer series. A step beyond is marked
`overflowed` in its `StepInfo`, and from there on the filter weighs and resamples, but no longer moves theta.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from epf_jax.core.checks import check_whole_number, is_like, kinds
from epf_jax.models.state_space import StateSpaceModel, row_of
from epf_jax.particles.gradients import moves_particles
from epf_jax.particles.resampling import Resampler
from epf_jax.statistics.statistic import check_model_learns


class Memory(NamedTuple):
    """Observations y_1..y_t and inputs u_1..u_t, in the first t of `max_steps` rows."""

    y: Float[Array, "max_steps *y"]
    u: Any


def empty_memory(model: StateSpaceModel, max_steps: int) -> Memory:
    """Room for `max_steps` observations of the model, as floating-point numbers, and as many inputs."""
    inputs = jax.tree.map(jnp.asarray, row_of(model))
    y: Any = model.shapes.y
    return Memory(
        jnp.zeros((max_steps, *y.shape)),
        jax.tree.map(lambda row: jnp.zeros((max_steps, *row.shape), row.dtype), inputs),
    )


def remember(memory: Memory, t: Int[Array, ""], y: Array, u: Any) -> Memory:
    """The memory with y and u in row t; unchanged beyond its last row."""
    check_input(jax.tree.map(lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype), memory.u), u)

    def put(rows, row):
        return rows.at[t].set(jnp.asarray(row, rows.dtype), mode="drop")

    return Memory(put(memory.y, y), jax.tree.map(put, memory.u, u))


def recall(memory: Memory, t: int | Int[Array, ""]) -> tuple[Array, Any]:
    """The observation and the input of row t."""
    return memory.y[t], jax.tree.map(lambda rows: rows[t], memory.u)


def check_memory_arguments(
    who: str, model: StateSpaceModel, room: Any, resample: Resampler, argument: str = "max_steps"
) -> None:
    """Raise for arguments that a filter with memory cannot work with."""
    check_model_learns(model, who)
    check_whole_number(argument, room, hint="It is how many observations the filter remembers.")
    check_names_ancestors(who, resample)


def check_names_ancestors(who: str, resample: Resampler) -> None:
    """Raise for a scheme that moves particles, in a filter that must know each particle's ancestor."""
    if moves_particles(resample):
        raise TypeError(
            f"resample: transport_resampling moves particles and chooses no ancestors, but {who} must know whose past "
            "each particle has. Use epf.systematic, or epf.when_ess_below(0.5)."
        )


def check_input(row: Any, u: Any) -> None:
    """Raise for an input whose shapes or dtypes differ from the remembered rows."""
    if not is_like(row, u):
        raise ValueError(
            f"inputs: the filter keeps inputs like those that its model has seen, {kinds(row)}, and a row came as "
            f"{kinds(u)}. Build it from model.for_inputs(inputs[0])."
        )
