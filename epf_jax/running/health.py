"""What `run(..., diagnostics=True)` records after every step: prediction, health of the statistic, descent.

The filter's results are the same with and without it. The cost of a step does not grow with t.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from epf_jax.core.random import stream
from epf_jax.filters import Filter, FilterState, StepInfo
from epf_jax.filters.filter import edge_of_box
from epf_jax.models.missing import missing_where
from epf_jax.particles.one_step_ahead import advance, probability_integral_transform
from epf_jax.particles.weights import sums
from epf_jax.running.records import Diagnostics, Lineage, summarise

_PREDICTION = 1  # folded into a step's key: what is drawn here is drawn by nobody else
_which: Any = (True, False)
LINEAGE = Lineage(*_which)  # which parts have a row for each particle


def start_lineage(state: FilterState) -> Lineage:
    """Every particle its own founder."""
    return Lineage(jnp.arange(state.log_weights.shape[0]), jnp.asarray(state.t))


def examine(
    key: PRNGKeyArray,
    filter_: Filter,
    before: FilterState,
    after: FilterState,
    info: StepInfo,
    y: Array,
    u: Any,
    lineage: Lineage,
    levels: tuple[float, ...],
) -> tuple[Lineage, Diagnostics]:
    """One step's row of `Diagnostics`, from the states before and after it, and the new lineage."""
    key_ahead, key_pit = jax.random.split(jax.random.fold_in(stream(key), _PREDICTION))
    model, y = filter_.model, jnp.asarray(y)
    x, drawn = advance(key_ahead, model, before.theta, before.x, u)
    pit = probability_integral_transform(key_pit, model, before.theta, x, drawn, before.log_weights, y, u)
    num_parents = _num_distinct(info.ancestors)
    founders = lineage.founders[info.ancestors]
    num_founders = _num_distinct(founders)
    left_out, shift = _left_out(filter_, before, after, info, y, u)
    row = Diagnostics(
        pit=pit,
        y=summarise(drawn, before.log_weights, levels),
        edge=_edge(filter_, after),
        remainder=left_out,
        shift=shift,
        roughness=jnp.zeros(()) if filter_.roughness is None else filter_.roughness(after),
        num_parents=num_parents,
        num_founders=num_founders,
        founded=lineage.since,
        lineage=None,  # type: ignore[arg-type]  # carried from step to step, not stacked
    )
    one = num_founders == 1
    fresh = jnp.arange(founders.shape[0], dtype=founders.dtype)
    return Lineage(jnp.where(one, fresh, founders), jnp.where(one, after.t, lineage.since)), row


def _num_distinct(indices: Int[Array, " N"]) -> Int[Array, ""]:
    return sums(jnp.zeros(indices.shape[0], bool).at[indices].set(True))[0].astype(int)


def _edge(filter_: Filter, state: FilterState) -> Float[Array, " P"]:
    """For each coordinate, the weight of the particles in the outer part of the filter's or the statistic's box."""
    if filter_.edge is not None:
        return filter_.edge(state)
    if filter_.statistic is None or filter_.statistic.box is None:
        return jnp.zeros(filter_.model.parameters.dim)
    return edge_of_box(filter_.model, filter_.statistic, state)


def _left_out(
    filter_: Filter, before: FilterState, after: FilterState, info: StepInfo, y: Array, u: Any
) -> tuple[Float[Array, ""], Float[Array, " P"]]:
    """The error of the statistic's expansion of this step at the particles' theta: its mean, and the shift of theta."""
    statistic, coordinates = filter_.statistic, filter_.model.parameters
    if statistic is None or statistic.remainder is None:
        return jnp.zeros(()), jnp.zeros(coordinates.dim)
    x_prev, y = before.x[info.ancestors], missing_where(info.collapsed, y)
    left_out = jax.vmap(statistic.remainder, in_axes=(0, 0, 0, None, None))(after.theta, x_prev, after.x, y, u)
    z, w = jax.vmap(coordinates.to_vector)(after.theta), jnp.exp(after.log_weights)
    mean, centred = w @ left_out, z - w @ z
    variance = w @ centred**2
    return mean, (w * (left_out - mean)) @ centred / jnp.sqrt(jnp.where(variance > 0, variance, 1.0))
