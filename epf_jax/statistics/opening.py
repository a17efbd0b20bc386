"""The opening of a path: its first steps, kept so that a log-density of it can be evaluated anew at any theta.

A statistic that keeps a path's log-density at nodes of theta must know where the nodes should be, and the first
observations tell: a vague prior's nodes lie so far apart that no reading between them says what the path's density is
at better ones. While the path is short enough to be kept, nothing has to be read between nodes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from epf_jax.memory import Memory, empty_memory, fits, remember
from epf_jax.model import StateSpaceModel

OPENING = 25  # steps that are kept


class Opening(NamedTuple):
    """The first steps of a path, in rows.

    Attributes:
        x_prev, x: the states before and after each step; x_0 is the first of the former.
        seen: the observations and inputs.
        num_steps: how many steps there were; more than rows when they are no longer all here.
    """

    x_prev: Float[Array, "rows *x"]
    x: Float[Array, "rows *x"]
    seen: Memory
    num_steps: Int[Array, ""]

    @property
    def is_whole(self) -> Array:
        """Whether every step of the path is here."""
        return self.num_steps <= OPENING


def empty_opening(model: StateSpaceModel, x_0: Array) -> Opening:
    """Room for the first steps of a path that begins at x_0."""
    rows = jnp.broadcast_to(x_0, (OPENING, *jnp.shape(x_0)))
    return Opening(rows, rows, empty_memory(model, OPENING), jnp.zeros((), int))


def with_step(opening: Opening, x_prev: Array, x: Array, y: Array, u: Any) -> Opening:
    """The opening after one more step, which is kept where there is room."""
    t = opening.num_steps
    if not fits(opening.seen.u, u):  # inputs of a kind that the model gave no example of: they cannot be kept
        return opening._replace(num_steps=jnp.full_like(t, OPENING + 1))
    return Opening(
        opening.x_prev.at[t].set(x_prev, mode="drop"),
        opening.x.at[t].set(x, mode="drop"),
        remember(opening.seen, t, y, u),
        t + 1,
    )


def sum_over_steps(opening: Opening, of_step: Callable[..., Array], start: Array, most: Int[Array, ""]) -> Array:
    """`start` plus `of_step(x_prev, x, y, u)` of every step; `most` bounds their number, and so the work."""

    def add(total, row):
        k, step = row
        more = jax.lax.cond(k < most, lambda: of_step(*step), lambda: jnp.zeros_like(total))
        return total + jnp.where(k < opening.num_steps, more, 0.0), None

    return jax.lax.scan(add, start, (jnp.arange(OPENING), (opening.x_prev, opening.x, *opening.seen)))[0]
