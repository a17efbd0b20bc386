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

from epf_jax.checks import is_like
from epf_jax.terms import Terms

_MOST_STEPS = 25


class Opening(NamedTuple):
    """The first K steps of a path.

    Attributes:
        x: x_0, and the states after each step.
        y: the observations, as floating-point numbers; NaN is missing.
        u: the inputs.
        num_steps: how many steps there were; more than K when they are no longer all here.
    """

    x: Float[Array, "K+1 *x"]
    y: Float[Array, "K *y"]
    u: Any
    num_steps: Int[Array, ""]


class Opener(NamedTuple):
    """How openings are kept and used.

    Attributes:
        length: K, the most steps that are kept.
        begin: `begin(x_0)`, the opening of a path without steps.
        extend: `extend(opening, x, y, u)`, the opening after one more step, which is kept where there is room.
        total: `total(opening, of_start, of_step, most)`, `of_start(x_0)` plus the sum over the steps of
            `of_step(x_prev, x, y, u)`; there are at most so many steps.
    """

    length: int
    begin: Callable[[Array], Opening]
    extend: Callable[..., Opening]
    total: Callable[..., Array]


def opener(terms: Terms, z: Float[Array, " P"], room: int) -> Opener | None:
    """For paths of a model with these terms, at z or elsewhere; None where no step can be kept.

    At most 25 steps are kept, and no more than `room` numbers in all. None are of a model that cannot be evaluated
    before its inputs are known, or not at an observation made a floating-point number.
    """
    _, x, y, u = terms.example
    if y is None or not _reads_floats(terms, z):
        return None
    u = jax.tree.map(jnp.asarray, u)
    length = min(_MOST_STEPS, room // sum(jnp.size(leaf) for leaf in jax.tree.leaves((x, y, u))))
    if length == 0:
        return None

    def begin(x_0):
        # What a row has no step for must still have a finite density: a gradient would be NaN by what is left out.
        rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (length, *leaf.shape)), u)
        x_rows = jnp.broadcast_to(x_0, (length + 1, *jnp.shape(x_0)))
        return Opening(x_rows, jnp.full((length, *jnp.shape(y)), jnp.nan), rows, jnp.zeros((), int))

    def extend(opening, x, y, given):
        t = opening.num_steps
        if not is_like(u, given):  # of a kind that the model gave no example of: it cannot be kept
            return opening._replace(num_steps=jnp.full_like(t, length + 1))
        y_rows = opening.y if y is None else _put(opening.y, t, y)
        u_rows = jax.tree.map(lambda rows, row: _put(rows, t, row), opening.u, given)
        return Opening(_put(opening.x, t + 1, x), y_rows, u_rows, t + 1)

    def total(opening, of_start, of_step, most):
        of_step = jax.checkpoint(of_step)  # a gradient's memory is not to grow with the length

        def add(total, numbered):
            k, step = numbered
            more = jax.lax.cond(k < most, lambda: of_step(*step), lambda: jnp.zeros_like(total))
            return total + jnp.where(k < opening.num_steps, more, 0.0), None

        steps = (opening.x[:-1], opening.x[1:], opening.y, opening.u)
        return jax.lax.scan(add, of_start(opening.x[0]), (jnp.arange(length), steps))[0]

    return Opener(length, begin, extend, total)


def _put(rows: Array, t: Int[Array, ""], row: Any) -> Array:
    """The rows with this one in place t and in all after it, which have none of their own yet."""
    later = jnp.arange(rows.shape[0]) >= t
    return jnp.where(later.reshape(-1, *[1] * (rows.ndim - 1)), jnp.asarray(row, rows.dtype), rows)


def _reads_floats(terms: Terms, z: Float[Array, " P"]) -> bool:
    """Whether the terms can be evaluated at an observation that was made a floating-point number."""
    x_prev, x, y, u = terms.example
    if jnp.issubdtype(y.dtype, jnp.floating):
        return True

    def densities(z, y):
        return [term.log_prob(z, x_prev, x, y, u) for term in terms.steps]

    try:
        jax.eval_shape(densities, z, jnp.asarray(y, float))
    except TypeError:  # an observation of a class of one's own may use it as an index
        return False
    return True
