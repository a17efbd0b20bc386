"""The opening of a path: its first steps, kept so that a log-density of it can be evaluated anew at any theta.

A statistic that keeps a path's log-density at nodes of theta must know where the nodes should be, and the first
observations tell: a vague prior's nodes lie so far apart that no reading between them says what the path's density is
at better ones. While the path is short enough to be kept, nothing has to be read between nodes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from epf_jax.checks import is_like

LENGTH = 25  # steps that are kept


class Opening(NamedTuple):
    """The first steps of a path.

    Attributes:
        rows: x_prev, x, y and u of each step in one row of numbers, so that resampling moves one array, not one of
            each. Whole numbers become floating-point ones: exact in float32 up to 2^24.
        num_steps: how many steps there were; more than there are rows when they are no longer all here.
    """

    rows: Float[Array, "LENGTH numbers"]
    num_steps: Int[Array, ""]

    @property
    def is_whole(self) -> Array:
        """Whether every step of the path is here."""
        return self.num_steps <= LENGTH


class Opener(NamedTuple):
    """How openings are kept and used.

    Attributes:
        begin: `begin(x_0)`, the opening of a path without steps.
        extend: `extend(opening, x_prev, x, y, u)`, the opening after one more step, kept where there is room.
        total: `total(opening, of_start, of_step, most)`, `of_start(x_0)` plus the sum over the steps of
            `of_step(x_prev, x, y, u)`; there are at most so many steps.
    """

    begin: Callable[[Array], Opening]
    extend: Callable[..., Opening]
    total: Callable[..., Array]


def opener(example: tuple[Any, Any, Any, Any]) -> Opener:
    """For paths whose steps are like the example's x_prev, x, y and u."""
    _, x, y, u = example
    y, u = jnp.asarray(y, float), jax.tree.map(jnp.asarray, u)  # y may be missing: no whole number
    row, step_of = ravel_pytree((jnp.asarray(x), jnp.asarray(x), y, u))
    kind = jnp.promote_types(row.dtype, jnp.result_type(float))

    def begin(x_0):
        first = ravel_pytree((x_0, x_0, y, u))[0].astype(kind)
        return Opening(jnp.broadcast_to(first, (LENGTH, first.size)), jnp.zeros((), int))

    def extend(opening, x_prev, x, y, input_):
        if not is_like(u, input_):  # of a kind that the model gave no example of: it cannot be kept
            return opening._replace(num_steps=jnp.full_like(opening.num_steps, LENGTH + 1))
        row = ravel_pytree((x_prev, x, y, input_))[0].astype(kind)
        here = jnp.arange(LENGTH)[:, None] == opening.num_steps
        return Opening(jnp.where(here, row, opening.rows), opening.num_steps + 1)

    def total(opening, of_start, of_step, most):
        def add(total, numbered):
            k, row = numbered
            more = jax.lax.cond(k < most, lambda: of_step(*step_of(row)), lambda: jnp.zeros_like(total))
            return total + jnp.where(k < opening.num_steps, more, 0.0), None

        x_0 = step_of(opening.rows[0])[0]
        return jax.lax.scan(add, of_start(x_0), (jnp.arange(LENGTH), opening.rows))[0]

    return Opener(begin, extend, total)
