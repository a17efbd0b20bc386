"""The opening of a path: its first steps, kept so that its log-density can be evaluated at any theta.

A statistic that keeps a path's log-density at nodes of theta must know where to put the nodes. Only the first
observations tell, and the nodes of a vague prior are too far apart for interpolation. While the path is short enough to
be kept, no interpolation is needed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from epf_jax.core.checks import is_like
from epf_jax.core.choice import where
from epf_jax.core.dependence import depends_on
from epf_jax.models.path_terms import Terms
from epf_jax.particles.weights import where_rows
from epf_jax.statistics.statistic import Statistic

_AT_ONCE = 8  # steps that are evaluated together; more one after the other, so that they take no more room than one


class Opening(NamedTuple):
    """The first K steps of a path, with None for parts that no density of theta reads.

    Attributes:
        x: x_0, and the states after each step.
        y: the observations, as floating-point numbers; NaN is missing.
        u: the inputs.
        num_steps: the number of steps so far; if it exceeds K, later ones are not kept.
    """

    x: Float[Array, "K+1 *x"] | None
    y: Float[Array, "K *y"] | None
    u: Any
    num_steps: Int[Array, ""]


def without_opening(statistic: Statistic) -> Statistic:
    """The same statistic for particles that are means of others, and have no path of their own."""

    def init(x_0=None):
        is_opening = lambda part: isinstance(part, Opening)  # noqa: E731
        return jax.tree.map(lambda part: None if is_opening(part) else part, statistic.init(x_0), is_leaf=is_opening)

    return statistic._replace(init=init)


class Opener(NamedTuple):
    """How openings are kept and used.

    Attributes:
        length: K, the largest number of steps that are kept.
        begin: `begin(x_0)`, the opening of a path without steps.
        extend: `extend(opening, x, y, u)`, the opening after one more step, which is kept if there is room.
        total: `total(opening, of_start, of_step, so_far)`, `of_start(x_0)` plus the sum of `of_step(x_prev, x, y, u)`
            over the steps, at least one and at most `so_far`.
    """

    length: int
    begin: Callable[[Array], Opening]
    extend: Callable[..., Opening]
    total: Callable[..., Array]


def opener(
    terms: Terms, z: Float[Array, " P"], room: int, most_steps: int, *, any_number: bool = False
) -> Opener | None:
    """The `Opener` for paths of a model with these terms; None if no step can be kept.

    It keeps at most `most_steps`, and at most `room` numbers in all. It keeps no steps if the model cannot be
    evaluated at observations converted to floats. With `any_number`, an input of a model that has seen none may be any
    number, and not only a time index.
    """
    if not _reads_floats(terms, z):
        return None
    example = jax.tree.map(jnp.asarray, terms.example)
    x, y, u = _what_is_read(terms, z, example)
    if any_number and u is not None:
        u = _as_number(terms, z, u)
    row = sum(jnp.size(leaf) for leaf in jax.tree.leaves((x, y, u)))
    length = 0 if row == 0 else min(most_steps, room // row)
    if length == 0:
        return None

    def begin(x_0):
        # What a row has no step for must still have a finite density: a gradient would be NaN by what is left out.
        rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (length, *leaf.shape)), u)
        x_rows = None if x is None else jnp.broadcast_to(x_0, (length + 1, *jnp.shape(x_0)))
        y_rows = None if y is None else jnp.full((length, *jnp.shape(y)), jnp.nan)
        return Opening(x_rows, y_rows, rows, jnp.zeros((), int))

    def extend(opening, x_t, y_t, u_t):
        t = opening.num_steps
        if u is not None and not is_like(u, u_t):  # of a kind that the model gave no example of: it cannot be kept
            return opening._replace(num_steps=jnp.full_like(t, length + 1))
        x_rows = None if x is None else _put(opening.x, t + 1, x_t)
        y_rows = opening.y if y is None or y_t is None else _put(opening.y, t, y_t)
        u_rows = None if u is None else jax.tree.map(lambda rows, row: _put(rows, t, row), opening.u, u_t)
        return Opening(x_rows, y_rows, u_rows, where(_can_be_kept(u, u_t), t + 1, length + 1))

    def total(opening, of_start, of_step, so_far):
        @jax.checkpoint  # a gradient's memory is not to grow with the length
        def of_row(row):
            return of_step(*(given if part is None else part for part, given in zip(row, example, strict=True)))

        before, after = (None, None) if x is None else (opening.x[:-1], opening.x[1:])
        steps, k = (before, after, opening.y, opening.u), jnp.arange(length)
        start = of_start(example[1] if x is None else opening.x[0])
        if length <= _AT_ONCE:
            seen = k < opening.num_steps
            # In place of steps that were not there yet the first: what is left out must have a finite slope, too.
            each = jax.vmap(of_row)(jax.tree.map(lambda rows: where_rows(seen, rows, rows[:1]), steps))
            return start + jnp.sum(where_rows(seen, each, jnp.zeros_like(each)), axis=0)

        def add(total, numbered):
            k, step = numbered

            def with_step(total):
                return total + where(k < opening.num_steps, of_row(step), 0.0)

            return jax.lax.cond(k < so_far, with_step, lambda total: total, total), None

        return jax.lax.scan(add, start, (k, steps))[0]

    return Opener(length, begin, extend, total)


def _what_is_read(terms: Terms, z: Float[Array, " P"], example: Any) -> tuple[Any, Any, Any]:
    """The example's x_t, y_t and u_t, with None for parts that theta's densities do not depend on."""
    x_prev, x, y, u = example

    def densities(*given: Any) -> list[Array]:
        return [term.log_prob(z, *given) for term in terms.steps]

    reads_x = bool(terms.initial) or depends_on(lambda states, y, u: densities(*states, y, u), (x_prev, x), y, u)
    reads_y = depends_on(lambda y, x_prev, x, u: densities(x_prev, x, y, u), jnp.asarray(y, float), x_prev, x, u)
    reads_u = depends_on(lambda u, x_prev, x, y: densities(x_prev, x, y, u), u, x_prev, x, y)
    return x if reads_x else None, y if reads_y else None, u if reads_u else None


def _as_number(terms: Terms, z: Float[Array, " P"], u: Array) -> Array:
    """An input as a float, unless the terms cannot be evaluated at a float."""
    x_prev, x, y, _ = terms.example
    number = jnp.asarray(u, float)
    return number if _takes(terms, z, x_prev, x, y, number) else u


def _can_be_kept(example: Any, u: Any) -> Bool[Array, ""]:
    """Whether all whole numbers are small enough to be exact as floats."""
    kept = jnp.array(True)
    if example is None:
        return kept
    for to, value in zip(jax.tree.leaves(example), jax.tree.leaves(u), strict=True):
        if jnp.issubdtype(to.dtype, jnp.floating) and not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            kept &= jnp.all(jnp.asarray(value, to.dtype).astype(jnp.result_type(value)) == value)
    return kept


def _put(rows: Array, t: Int[Array, ""], row: Any) -> Array:
    """The rows with this one in place t and in all later places, which are still empty."""
    later = jnp.arange(rows.shape[0]) >= t
    return where(later.reshape(-1, *[1] * (rows.ndim - 1)), jnp.asarray(row, rows.dtype), rows)


def _reads_floats(terms: Terms, z: Float[Array, " P"]) -> bool:
    """Whether the terms can be evaluated at an observation converted to floats."""
    x_prev, x, y, u = terms.example
    if jnp.issubdtype(y.dtype, jnp.floating):
        return True
    number = jnp.asarray(y, float)
    return _takes(terms, z, x_prev, x, number, u)


def _takes(terms: Terms, *given: Any) -> bool:
    """Whether the terms of a step can be evaluated at (z, x_prev, x, y, u)."""
    try:
        jax.eval_shape(lambda *given: [term.log_prob(*given) for term in terms.steps], *given)
    except (TypeError, ValueError, AssertionError):  # it may be used as an index, or be refused for its fraction
        return False
    return True
