"""What a model's function gives for one particle, by abstract evaluation.

A function that fails raises its own error, with a note that names the function and what it was given. One that reads
inputs fails on the time index that stands for them until they are known: that is no mistake, and waits for the inputs.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr
from numpyro.distributions import constraints

from epf_jax.core.checks import brief, in_full
from epf_jax.core.dependence import reads, same_as
from epf_jax.core.gaussian import base_distribution
from epf_jax.core.programs import programs_in, walk
from epf_jax.models.parameters import is_distribution

SIGNATURES = {"initial": ("theta",), "transition": ("theta", "x_prev", "u"), "observation": ("theta", "x", "u")}


class WantsInputsError(ValueError):
    """A model's function raised, perhaps because it reads inputs that are not known yet; the cause is its own error."""


def drawn(name: str, call: str, function: Callable, *arguments: Any) -> tuple[jax.ShapeDtypeStruct, list[bool]]:
    """Shape and dtype of a draw from `function(*arguments)`, by abstract evaluation, and which leaves it reads.

    Args:
        name: the function's name, for messages.
        call: how it is called, for messages.
        function: it returns a distribution.
        arguments: theta, and perhaps others, of which the last is u.
    """
    returned = []

    def draw(arguments):
        d = function(*arguments)
        if not is_distribution(d):
            returned.append(d)
            return None
        value = d.sample(jax.random.key(0))
        return value, jnp.sum(d.log_prob(value))

    try:
        program, shapes = jax.make_jaxpr(draw, return_shape=True)(arguments)
    except Exception as error:
        given = ", ".join(str(jax.tree.map(lambda a: getattr(a, "shape", a), arg)) for arg in arguments)
        error.add_note(f"This came from {name}, called as {call} for one particle, with arguments of shapes {given}.")
        if not _may_want_inputs(error, function, *arguments):
            raise
        error.add_note("If the model reads inputs, give them: inputs=... to run, u to step.")
        raise WantsInputsError(
            f"model: its {name} cannot be looked at before there are inputs. Give them, inputs=..., or build from "
            f"model.for_inputs(inputs[0]). What happened: {in_full(error)}"
        ) from error
    if returned:
        it = returned[0]
        it = f"an array of shape {it.shape}" if isinstance(it, jax.Array) else brief(it)
        raise TypeError(
            f"{name}: expected a distribution with sample(key) and log_prob(value), such as dist.Normal(...), but it "
            f"returned {it}. Return the distribution itself, not a number or a draw."
        )
    missed = _missed_entry(program.jaxpr)
    if missed is not None:
        raise ValueError(
            f"{name}: it asks an array of shape {missed.shape} for entry {missed.at} of an axis with entries 0 to "
            f"{missed.length - 1}. JAX would silently give the nearest entry: use an index inside the array."
        )
    return shapes[0], reads(program.jaxpr)


def positive_leaves(function: Callable, *arguments: Any) -> list[tuple[str, int]]:
    """Arguments of the distribution that must be positive and equal a leaf of theta: their names, and the leaves."""
    names: list[str] = []

    def positive(arguments):
        d = base_distribution(function(*arguments))
        kinds = getattr(d, "arg_constraints", {})
        found = {name: getattr(d, name) for name, kind in kinds.items() if kind is constraints.positive}
        names.extend(found)
        return list(found.values())

    leaves = same_as(jax.make_jaxpr(positive)(arguments).jaxpr)
    num_theta = len(jax.tree.leaves(arguments[0]))
    return [(name, i) for name, i in zip(names, leaves, strict=True) if i is not None and i < num_theta]


def _may_want_inputs(error: Exception, function: Callable, *arguments: Any) -> bool:
    """Whether it may not fail with other inputs: it fails in another way of something that is no input at all."""
    *others, _ = arguments
    if not others or isinstance(error, jax.errors.JAXTypeError):  # an array where a Python number has to stand
        return False
    try:
        jax.eval_shape(lambda others: [function(*others, object())][1:], others)
    except Exception as again:  # of the user's function
        return (type(again), str(again)) != (type(error), str(error))
    return False


# What becomes of an index that is written down, on its way into an operation: a negative one is counted from the end.
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "lt": operator.lt,
    "add": operator.add,
    "select_n": lambda which, *cases: cases[int(which)],
}
_IN_TURNS = ("scan", "while")  # loops: what goes in is known of the first turn alone


class _Missed(NamedTuple):
    """An index out of bounds: the index along one axis, the axis's length, and the array's shape."""

    at: int
    length: int
    shape: tuple[int, ...]


def _missed_entry(program: Jaxpr, known: Sequence[Any] | None = None) -> _Missed | None:
    """The first constant index in a traced program that is out of bounds; JAX would give the nearest entry.

    Longer slices are not checked: `jax.lax.dynamic_slice` may end with the array.

    Args:
        program: the traced program.
        known: the values of its inputs, None for those that are not constant.
    """
    missed: list[_Missed | None] = []

    def operation(eqn, given):
        if eqn.primitive.name == "dynamic_slice":
            missed.append(_outside(eqn.invars[0].aval.shape, given[1:], eqn.params["slice_sizes"]))
        else:
            missed.extend(_missed_entry(inner, _known(eqn, inner, given)) for inner in programs_in(eqn))
        if eqn.primitive.name in _ARITHMETIC and all(value is not None for value in given):
            return [_ARITHMETIC[eqn.primitive.name](*given)]
        return [None] * len(eqn.outvars)

    walk(program, [None] * len(program.invars) if known is None else known, operation)
    return next(filter(None, missed), None)


def _known(eqn: Any, inner: Jaxpr, given: list[Any]) -> list[Any] | None:
    """Which inputs of a called inner program are constant."""
    called = eqn.primitive.name not in _IN_TURNS and len(inner.invars) == len(given)
    return given if called else None


def _outside(shape: tuple[int, ...], starts: list[Any], sizes: tuple[int, ...]) -> _Missed | None:
    for length, start, size in zip(shape, starts, sizes, strict=True):
        if size == 1 and start is not None and not 0 <= start < length:
            return _Missed(int(start) if start >= 0 else int(start) - length, length, shape)
    return None
