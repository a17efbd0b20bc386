"""Detects constant indices that are out of bounds, in a function's traced program.

NumPy raises IndexError; JAX silently gives the nearest entry: `x[2]` of a state of two numbers is `x[1]`.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr

from epf_jax.core.dependence import programs_in

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


def missed_entry(program: Jaxpr, known: dict[Any, Any] | None = None) -> Missed | None:
    """The first constant index in a traced program that is out of bounds.

    Longer slices are not checked: `jax.lax.dynamic_slice` may end with the array.

    Args:
        program: the traced program.
        known: the constant values among its inputs.
    """
    values = dict(known or {})
    eqn: Any
    for eqn in program.eqns:
        given = [v.val if hasattr(v, "val") else values.get(v) for v in eqn.invars]
        if eqn.primitive.name == "dynamic_slice":
            found = _outside(eqn.invars[0].aval.shape, given[1:], eqn.params["slice_sizes"])
        else:
            found = next(
                filter(None, (missed_entry(inner, _known(eqn, inner, given)) for inner in programs_in(eqn))), None
            )
        if found is not None:
            return found
        if eqn.primitive.name in _ARITHMETIC and all(value is not None for value in given):
            values[eqn.outvars[0]] = _ARITHMETIC[eqn.primitive.name](*given)
    return None


def _known(eqn: Any, inner: Jaxpr, given: list[Any]) -> dict[Any, Any]:
    """Which inputs of a called inner program are constant."""
    called = eqn.primitive.name not in _IN_TURNS and len(inner.invars) == len(given)
    return dict(zip(inner.invars, given, strict=True)) if called else {}


def _outside(shape: tuple[int, ...], starts: list[Any], sizes: tuple[int, ...]) -> Missed | None:
    for length, start, size in zip(shape, starts, sizes, strict=True):
        if size == 1 and start is not None and not 0 <= start < length:
            return Missed(int(start) if start >= 0 else int(start) - length, length, shape)
    return None
