"""Finds out from a function's traced program what it depends on, and whether it is affine."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr

from epf_jax.core.programs import is_variable, loop_arguments, outputs


def abstractly(function: Callable, *arguments: Any) -> Any:
    """The result of `function(*arguments)` under abstract evaluation: types and shapes without numbers."""
    returned: list[Any] = []

    def look(arguments):
        returned.append(function(*arguments))
        return jnp.zeros(())

    jax.eval_shape(look, arguments)
    return returned[-1]


def reads(program: Jaxpr) -> list[bool]:
    """For each input of a traced program, whether anything in it reads that input."""
    read = {v for v in program.outvars if is_variable(v)}
    read.update(v for eqn in program.eqns for v in eqn.invars if is_variable(v))
    return [v in read for v in program.invars]


_SHAPING = ("broadcast_in_dim", "convert_element_type", "copy", "reshape", "slice", "squeeze")


def same_as(program: Jaxpr) -> list[int | None]:
    """For each output of a traced program, the input that it equals or is a part of; None if it is computed."""
    made_of = {v: eqn.invars[0] for eqn in program.eqns if eqn.primitive.name in _SHAPING for v in eqn.outvars}

    def source(v):
        while v in made_of and is_variable(made_of[v]):
            v = made_of[v]
        return program.invars.index(v) if v in program.invars else None

    return [source(v) if is_variable(v) else None for v in program.outvars]


def depends_on(function: Callable, example: Any, *others: Any) -> bool:
    """Whether the output of `function(example, *others)` depends on its first argument.

    It reads the traced program. So True may be too cautious (`0 * theta` depends on theta), but False is always right.
    """
    return any(_degrees_of(function, example, *others))


def is_affine(function: Callable, example: Any, *others: Any) -> bool:
    """Whether `function(example, *others)` is affine in its first argument, of arrays.

    It reads the traced program. So False may be too cautious, but True is always right.
    """
    return max(_degrees_of(function, example, *others), default=_FREE) <= _AFFINE


# How a number depends on the argument in question.
_FREE, _AFFINE, _ANYHOW = 0, 1, 2

_LINEAR = frozenset([
    "add", "add_any", "broadcast_in_dim", "complex", "concatenate", "conj", "convert_element_type", "copy",
    "cumsum", "expand_dims", "fft", "imag", "neg", "optimization_barrier", "pad", "real", "reduce_sum",
    "reduce_window_sum", "reshape", "rev", "slice", "split", "squeeze", "stack", "sub", "transpose", "unstack"
])  # fmt: skip
_BILINEAR = frozenset(["mul", "dot_general", "conv_general_dilated"])
# Linear in these inputs, where the others are free of the argument.
_LINEAR_IN = {
    "div": slice(1),
    "dynamic_slice": slice(1),
    "dynamic_update_slice": slice(2),
    "gather": slice(1),
    "scatter": slice(None, None, 2),
    "scatter_add": slice(None, None, 2),
    "select_n": slice(1, None),
    "triangular_solve": slice(1, None),
}


def _degrees_of(function: Callable, example: Any, *others: Any) -> list[int]:
    program = jax.make_jaxpr(lambda first, rest: function(first, *rest))(example, others).jaxpr
    num_first = len(jax.tree.leaves(example))
    return _degrees(program, [_seen(v, _AFFINE if i < num_first else _FREE) for i, v in enumerate(program.invars)])


def _degrees(program: Jaxpr, given: Sequence[int]) -> list[int]:
    """How each output of a program depends on the argument, from how its inputs do."""

    def operation(eqn, given):
        if not any(given):
            return [_FREE] * len(eqn.outvars)
        return [_seen(v, degree) for v, degree in zip(eqn.outvars, _after(eqn, given), strict=True)]

    return outputs(program, given, operation, literal=lambda _: _FREE, unknown=_FREE)


def _seen(variable: Any, degree: int) -> int:
    """Whole numbers and truth values, where they depend on an argument, jump."""
    is_real = jnp.issubdtype(getattr(variable.aval, "dtype", float), jnp.inexact)
    return degree if is_real or degree == _FREE else _ANYHOW


def _after(eqn: Any, given: list[int]) -> list[int]:
    """How the outputs of an operation depend on the argument, of which some input is not free."""
    name, params, every = eqn.primitive.name.replace("-", "_"), eqn.params, [1] * len(eqn.outvars)
    anyhow = [_ANYHOW for _ in every]
    if name == "cond":
        index, *rest = given
        return anyhow if index else _highest(*(_degrees(branch.jaxpr, rest) for branch in params["branches"]))
    if name == "scan":
        return _after_scan(params, given)
    if name == "while":
        return _after_while(params, given) or anyhow
    if name == "custom_linear_solve":  # linear in the right-hand side, which comes after the matrix
        return anyhow if any(given[: sum(params["const_lengths"])]) else [max(given) for _ in every]
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    inner = getattr(inner, "jaxpr", inner)
    if inner is not None and (len(inner.invars), len(inner.outvars)) == (len(given), len(every)):
        found = _degrees(inner, given)
        return [_ANYHOW if degree else _FREE for degree in found] if name.startswith("custom_") else found
    if name in _LINEAR:
        return [max(given) for _ in every]
    if name in _BILINEAR:
        return [min(sum(given), _ANYHOW)]
    linear = given[_LINEAR_IN[name]] if name in _LINEAR_IN else []
    return [max(linear) for _ in every] if sum(linear) == sum(given) else anyhow


def _after_scan(params: Any, given: list[int]) -> list[int]:
    num_consts, num_carry = loop_arguments(params, len(given))
    body, consts, rows = params["jaxpr"].jaxpr, given[:num_consts], given[num_consts + num_carry :]

    def turn(carry):
        return _degrees(body, [*consts, *carry, *rows])

    carry = _settled(given[num_consts : num_consts + num_carry], lambda carry: turn(carry)[:num_carry])
    return [*carry, *turn(carry)[num_carry:]]


def _after_while(params: Any, given: list[int]) -> list[int] | None:
    """None where the argument decides how often the loop turns."""
    num_test, num_body = params["cond_nconsts"], params["body_nconsts"]
    of_test, of_body, carry = given[:num_test], given[num_test : num_test + num_body], given[num_test + num_body :]
    carry = _settled(carry, lambda carry: _degrees(params["body_jaxpr"].jaxpr, [*of_body, *carry]))
    return None if any(_degrees(params["cond_jaxpr"].jaxpr, [*of_test, *carry])) else carry


def _settled(carry: list[int], turn: Callable[[list[int]], list[int]]) -> list[int]:
    """How what a loop carries depends on the argument after any number of turns, none included."""
    while (after := _highest(carry, turn(carry))) != carry:
        carry = after
    return carry


def _highest(*degrees: Sequence[int]) -> list[int]:
    return list(map(max, *degrees)) if len(degrees) > 1 else list(*degrees)
