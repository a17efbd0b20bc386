"""Arrays taken apart into cells, which rules for each primitive put together again.

A *cell* is one number, or one number for each particle: the lanes of the kernel's single block, padded to a power of
two.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.core.checks import is_key

MAX_PARTICLES = 4096  # more do not fit the registers of one multiprocessor
# Of a step, loops counted as often as they turn. Measured on an H200 at 1000 particles, us a step by a kernel and by
# XLA: 320 operations 5.7 and 21.1, 1236 operations 33 and 73, a variance drawn 16 and 24, 2835 operations 28 and 28.
MAX_OPERATIONS = 2000


class NotFusable(Exception):  # noqa: N818  it says what a function is
    """What stands in the way of running a function in one kernel."""


class Cells(NamedTuple):
    """An array taken apart.

    Attributes:
        items: an array of cells, with the array's shape but for the particles' axis.
        axis: where the particles' axis stands; None where there is none.
    """

    items: Any
    axis: int | None


class Block(NamedTuple):
    """What the rules know of the kernel that they write.

    Attributes:
        num: the number of particles.
        lane: 0, 1, ..., one for each lane.
        inside: which lanes are particles.
        memory: scratch memory, through which particles read what others have computed.
        free: offsets of its unused slots, each with a word for every lane.
        barrier: waits for all lanes.
        operations: how many a step carries out so far.
    """

    num: int
    lane: jax.Array
    inside: jax.Array
    memory: Any
    free: list[int]
    barrier: Callable[[], None]
    operations: list[int]


def full_shape(aval: Any) -> tuple[int, ...]:
    """The shape of an array's items: a key is two words."""
    return (*aval.shape, 2) if is_key(aval) else aval.shape


def filled(inner: tuple[int, ...], item: Callable[[tuple], Any], axis: int | None) -> Cells:
    """Cells from a function of their place."""
    items = np.empty(inner, object)
    for place in np.ndindex(*inner):
        items[place] = item(place)
    return Cells(items, axis)


def mapped(function: Callable, x: Cells) -> Cells:
    """Cells with a function of each."""
    return filled(x.items.shape, lambda place: function(x.items[place]), x.axis)


def constant(block: Block, value: Any) -> Cells:
    """Cells of a value that is known."""
    array = np.asarray(value)
    if block.num in array.shape and block.num > 1:
        raise NotFusable("an inner constant with a number for each particle")
    return filled(array.shape, lambda place: array[place], None)


def one_cell(value: Any) -> np.ndarray:
    """An array of one item, whatever it is."""
    items = np.empty((), object)
    items[()] = value
    return items


def stacked(parts: list[Cells], at: int) -> Cells:
    """Cells along a new axis."""
    axes = {c.axis for c in parts}
    if len(axes) > 1:
        raise NotFusable("a stack of arrays with their particles along different axes")
    axis = axes.pop()
    items = np.stack([c.items for c in parts], at - (axis is not None and at > axis))
    return Cells(items, None if axis is None else axis + (at <= axis))


def spread(block: Block, value: Any) -> jax.Array:
    """The value in every lane."""
    return jnp.broadcast_to(value, block.lane.shape)


def inner_shape(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """An array's shape but for the particles' axis."""
    return shape if axis is None else (*shape[:axis], *shape[axis + 1 :])


def count_operations(block: Block, num: int = 1) -> None:
    """So many operations more, or an error where a step has too many."""
    block.operations[0] += num
    if block.operations[0] > MAX_OPERATIONS:
        raise NotFusable(f"more than {MAX_OPERATIONS} operations a step: over the whole chip XLA's are as quick")


class Layout(NamedTuple):
    """How a loop's carried arrays lie in one flat tuple of numbers and lanes: shapes of items, axes and kinds."""

    inner: tuple[int, ...]
    axis: int | None
    dtype: Any


def layout_of(carry: list[Cells], dtypes: list[Any]) -> list[Layout]:
    """The layout of what a loop carries."""
    return [Layout(c.items.shape, c.axis, dtype) for c, dtype in zip(carry, dtypes, strict=True)]


def to_numbers(block: Block, carry: list[Cells], layout: list[Layout]) -> tuple[jax.Array, ...]:
    """Cells as a flat tuple, for a loop to carry."""
    numbers = []
    for c, part in zip(carry, layout, strict=True):
        if c.items.shape != part.inner or c.axis not in (None, part.axis):
            raise NotFusable("a loop whose carry changes its shape or its particles' axis")
        for value in c.items.ravel():
            value = jnp.asarray(value, part.dtype)
            numbers.append(spread(block, value) if part.axis is not None else value)
    return tuple(numbers)


def from_numbers(numbers: tuple[jax.Array, ...], layout: list[Layout]) -> list[Cells]:
    """The cells of a loop's flat tuple."""
    remaining = iter(numbers)
    return [filled(part.inner, lambda _: next(remaining), part.axis) for part in layout]
