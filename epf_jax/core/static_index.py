"""Detects constant indices that are out of bounds, in a function's traced program.

NumPy raises IndexError; JAX silently gives the nearest entry: `x[2]` of a state of two numbers is `x[1]`.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr

from epf_jax.core.programs import programs_in, walk

# What becomes of an index that is written down, on its way into an operation: a negative one is counted from the end.
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "lt": operator.lt,
    "add": operator.add,
    "select_n": lambda which, *cases: cases[int(which)],
}
_IN_TURNS = ("scan", "while")  # loops: what goes in is known of the first turn alone


class Missed(NamedTuple):
    """An index out of bounds: the index along one axis, the axis's length, and the array's shape."""

    at: int
    length: int
    shape: tuple[int, ...]


def missed_entry(program: Jaxpr, known: Sequence[Any] | None = None) -> Missed | None:
    """The first constant index in a traced program that is out of bounds.

    Longer slices are not checked: `jax.lax.dynamic_slice` may end with the array.

    Args:
        program: the traced program.
        known: the values of its inputs, None for those that are not constant.
    """
    missed: list[Missed | None] = []

    def operation(eqn, given):
        if eqn.primitive.name == "dynamic_slice":
            missed.append(_outside(eqn.invars[0].aval.shape, given[1:], eqn.params["slice_sizes"]))
        else:
            missed.extend(missed_entry(inner, _known(eqn, inner, given)) for inner in programs_in(eqn))
        if eqn.primitive.name in _ARITHMETIC and all(value is not None for value in given):
            return [_ARITHMETIC[eqn.primitive.name](*given)]
        return [None] * len(eqn.outvars)

    walk(program, [None] * len(program.invars) if known is None else known, operation)
    return next(filter(None, missed), None)


def _known(eqn: Any, inner: Jaxpr, given: list[Any]) -> list[Any] | None:
    """Which inputs of a called inner program are constant."""
    called = eqn.primitive.name not in _IN_TURNS and len(inner.invars) == len(given)
    return given if called else None


def _outside(shape: tuple[int, ...], starts: list[Any], sizes: tuple[int, ...]) -> Missed | None:
    for length, start, size in zip(shape, starts, sizes, strict=True):
        if size == 1 and start is not None and not 0 <= start < length:
            return Missed(int(start) if start >= 0 else int(start) - length, length, shape)
    return None
