"""Evaluates a model's function for one particle by abstract evaluation, and explains errors.

Before inputs are known, the time index stands for them, and a function that reads inputs fails. This is not a mistake.
It is recognised by what the function does before it fails: whether it uses its inputs.
"""

import contextlib
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions import constraints

from epf_jax.core.dependence import reads, same_as
from epf_jax.core.gaussian import base_distribution
from epf_jax.core.static_index import missed_entry
from epf_jax.models.parameters import is_distribution

SIGNATURES = {"initial": ("theta",), "transition": ("theta", "x_prev", "u"), "observation": ("theta", "x", "u")}


class CannotEvaluateError(ValueError):
    """A model function raised an error, perhaps because it reads inputs that are not known yet."""


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
        _check_names(name, error, function, *arguments)
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0].rstrip('.')}".removesuffix(": ")
        remedy = _remedy(error, arguments[0])
        if remedy:
            raise ValueError(f"{name}: it failed with {said}. {remedy}") from error
        given = ", ".join(str(jax.tree.map(lambda a: getattr(a, "shape", a), arg)) for arg in arguments)
        if not _may_want_inputs(error, function, *arguments):
            no_names = " Is theta asked for a name? Its prior is one distribution, no dict."
            raise ValueError(
                f"{name}: it failed with {said}. It was called as {call} for one particle, with shapes {given}."
                f"{no_names if 'string indexing' in said else ''}"
            ) from error
        raise CannotEvaluateError(
            f"{name}: calling it with arguments of shapes {given} failed with {said}. "
            f"It speaks of one particle: {call}, theta as the prior, x one state, u one row of the inputs or the time "
            "index t. A model that reads inputs needs `inputs=` in run and step, and `example_input=inputs[0]` (of a "
            "table, series.example_input) in StateSpaceModel to be inspected before."
        ) from error
    if returned:
        raise TypeError(
            f"{name}: expected a distribution with sample(key) and log_prob(value), such as dist.Normal(...), but it "
            f"returned {_in_words(returned[0])}. Return the distribution itself, not a number or a draw."
        )
    missed = missed_entry(program.jaxpr)
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


def _remedy(error: Exception, theta: Any) -> str:
    """A sentence of advice for an error that has nothing to do with inputs; empty if it may come from them."""
    said = str(error)
    if isinstance(error, jax.errors.TracerIntegerConversionError):
        return "What a state or an input is to choose from must be an array of jax.numpy: jnp.asarray(values)[u]."
    if isinstance(error, jax.errors.TracerArrayConversionError | jax.errors.ConcretizationTypeError):
        return "Use jax.numpy (jnp.exp, jnp.where) inside of a model, not numpy, math or if."
    if isinstance(error, AttributeError) and "'dict' object has no attribute" in said:
        return 'theta is a dict, as the prior is (and u, where inputs are): theta["phi"], not theta.phi.'
    if isinstance(theta, dict) and "unsupported operand" in said and "'dict'" in said:
        return 'theta is a dict, as the prior is (and u, where inputs are): theta["phi"] * x, not theta * x.'
    if isinstance(theta, list | tuple) and "indices must be integers" in said:
        return (
            'theta is a list, as the prior is: theta[0]; or write the prior as a dict, {"phi": dist.Normal(0.0, 1.0)}.'
        )
    if "distribution got invalid" in said:
        return "Look at the numbers that it is given: a scale must be positive, a probability between 0 and 1."
    if isinstance(error, AssertionError) and _passed(error, "numpyro/primitives.py"):
        return "Return the distribution itself, dist.Normal(...): numpyro.sample is for models of numpyro's own."
    return ""


def _passed(error: Exception, file: str) -> bool:
    """Whether the error passed through this file."""
    return any(frame.filename.endswith(file) for frame in traceback.extract_tb(error.__traceback__))


def _check_names(name: str, error: Exception, function: Callable, theta: Any, *others: Any) -> None:
    """Raise if theta was asked for a name that it does not have, or x or u for a name of theta's."""
    swapped = [key for key in theta if f"idx={key!r}" in str(error)] if isinstance(theta, dict) else []
    if swapped and "string indexing" in str(error):
        raise ValueError(
            f"{name}: it asked the state or u for {swapped[0]!r}, which is a parameter: is the order of its arguments "
            f"({', '.join(SIGNATURES.get(name, ('theta', 'x', 'u')))})?"
        ) from error
    if not isinstance(error, KeyError) or not isinstance(theta, dict):
        return
    asked: list[Any] = []

    with contextlib.suppress(KeyError):  # it fails again: only what it asked for is wanted
        jax.eval_shape(lambda theta, *others: [function(Watched(theta, asked), *others)][1:], theta, *others)
    if asked:
        raise ValueError(
            f"{name}: it asked theta for {asked[0]!r}, and the prior has {', '.join(map(repr, theta)) or 'nothing'}. "
            "Write the name in both places alike."
        ) from error


class Watched(dict):
    """A dict that remembers the missing names that it was asked for."""

    def __init__(self, entries: Any, asked: list[Any]):
        super().__init__(entries)
        self._asked = asked

    def __missing__(self, key: Any) -> Any:
        self._asked.append(key)
        raise KeyError(key)


def _may_want_inputs(error: Exception, function: Callable, *arguments: Any) -> bool:
    """Whether other inputs may help: the function uses its inputs, or fails differently without them."""
    *others, _ = arguments
    if not others:
        return False
    unknown = _Unknown()
    try:
        jax.eval_shape(lambda others: [function(*others, unknown)][1:], others)
    except Exception as again:  # of the user's function
        same = type(again) is type(error) and str(again) == str(error)
        return _was_asked(unknown) or not same
    return _was_asked(unknown)


class _Unknown:
    """Stands for unknown inputs: every use raises an error, and is remembered."""

    def __getattribute__(self, name: str) -> Any:
        object.__setattr__(self, "asked", True)
        raise AttributeError(name)


def _refused(self: _Unknown, *_: Any) -> Any:
    object.__setattr__(self, "asked", True)
    raise TypeError("inputs are not known")


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "divmod")
_OTHER = (
    *("neg", "pos", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne", "getitem", "iter", "len", "contains", "bool"),
    *("float", "int", "index", "complex", "round", "call", "str", "format", "hash", "array", "jax_array", "enter"),
)
for _name in (*_ARITHMETIC, *(f"r{_name}" for _name in _ARITHMETIC), *_OTHER):
    setattr(_Unknown, f"__{_name}__", _refused)


def _was_asked(unknown: _Unknown) -> bool:
    return "asked" in object.__getattribute__(unknown, "__dict__")


def _in_words(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}, not called"
    return f"an array of shape {value.shape}" if isinstance(value, jax.Array) else type(value).__name__
