"""Finds out from a function's traced program what it depends on, and whether it is affine."""

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr

from epf_jax.core.programs import is_variable, programs_in, walk


def abstractly(function: Callable, *arguments: Any) -> Any:
    """The result of `function(*arguments)` under abstract evaluation: types and shapes without numbers."""
    returned: list[Any] = []

    def look(arguments):
        returned.append(function(*arguments))
        return jnp.zeros(())

    jax.eval_shape(look, arguments)
    return returned[-1]


def depends_on(function: Callable, example: Any, *others: Any) -> bool:
    """Whether the output of `function(example, *others)` depends on its first argument.

    It reads the traced program. So True may be too cautious (`0 * theta` depends on theta), but False is always right.
    """
    program = _traced(function, example, *others)
    num_first = len(jax.tree.leaves(example))
    return any(_propagate(program, [i < num_first for i in range(len(program.invars))]))


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


def is_affine(function: Callable, example: Any, *others: Any) -> bool:
    """Whether `function(example, *others)` is affine in its first argument, of arrays.

    The traced program must show that its Jacobian does not depend on the argument. Steps (a comparison, `round`,
    `sign`) would pass that test with a Jacobian of zero, so there must be no steps between the argument and the result,
    and no functions with custom derivatives. The answer may be too cautious: False for a function that is affine.
    """
    if depends_on(lambda first, *rest: jax.jacfwd(function)(first, *rest), example, *others):
        return False
    program = _traced(function, example, *others)
    num_first = len(jax.tree.leaves(example))
    return not _has_step(program, [i < num_first for i in range(len(program.invars))], [True] * len(program.outvars))


def _traced(function: Callable, example: Any, *others: Any) -> Jaxpr:
    return jax.make_jaxpr(lambda first, rest: function(first, *rest))(example, others).jaxpr


class _Inner(NamedTuple):
    """A program inside an operation.

    Attributes:
        program: the program.
        flags: which of its inputs depend on the argument in question.
        carried: for a loop's body, which carried parts are flagged; these are the first outputs of the operation.
        decides: whether it is the condition of a loop, which makes no outputs.
    """

    program: Jaxpr
    flags: list[bool]
    carried: Sequence[bool] = ()
    decides: bool = False


def _inside(eqn: Any, inputs: list[bool]) -> list[_Inner]:
    """The programs inside an operation (calls, branches, bodies of loops), given which of its inputs are flagged.

    Other operations with inner programs give none: every output may depend on every input.
    """
    name, given = eqn.primitive.name, eqn.params
    if name == "cond":
        return [_Inner(branch.jaxpr, inputs[1:]) for branch in given["branches"]]
    if name == "scan":
        body = given["jaxpr"].jaxpr
        num_rows = sum(map(_has_rows, eqn.invars, body.invars))
        num_carry = len(eqn.outvars) - sum(map(_has_rows, eqn.outvars, body.outvars))
        consts, carry, rows = _cut(inputs, len(inputs) - num_rows - num_carry, len(inputs) - num_rows)
        carry = _settled(carry, lambda carry: _propagate(body, [*consts, *carry, *rows])[:num_carry])
        return [_Inner(body, [*consts, *carry, *rows], carry)]
    if name == "while":
        num_cond, num_body = given["cond_nconsts"], given["body_nconsts"]
        test, body = given["cond_jaxpr"].jaxpr, given["body_jaxpr"].jaxpr
        of_test, of_body, carry = _cut(inputs, num_cond, num_cond + num_body)
        carry = _settled(carry, lambda carry: _propagate(body, [*of_body, *carry]))
        return [_Inner(test, [*of_test, *carry], decides=True), _Inner(body, [*of_body, *carry], carry)]
    inner = given.get("jaxpr", given.get("call_jaxpr"))
    inner = getattr(inner, "jaxpr", inner)
    if inner is None or len(inner.invars) != len(eqn.invars) or len(inner.outvars) != len(eqn.outvars):
        return []
    return [_Inner(inner, inputs)]


def _has_rows(outside: Any, inside: Any) -> bool:
    """Whether a scan reads or writes a row of a variable at each turn; jax 0.10 and 0.11 count them differently."""
    return outside.aval.shape != inside.aval.shape


def _cut(flags: list[bool], *ends: int) -> list[list[bool]]:
    """The flags, cut into pieces at the given ends."""
    return [flags[start:end] for start, end in zip((0, *ends), (*ends, len(flags)), strict=True)]


def _settled(carry: list[bool], turn: Callable[[list[bool]], list[bool]]) -> list[bool]:
    """Which carried parts of a loop are flagged after any number of turns."""
    while True:
        after = [old or new for old, new in zip(carry, turn(carry), strict=True)]
        if after == carry:
            return carry
        carry = after


def _is_choice(eqn: Any, inputs: list[bool], inside: list[_Inner]) -> bool:
    """Whether a flagged input decides which branch is taken, or how often a loop runs."""
    if eqn.primitive.name == "cond" and inputs[0]:
        return True
    return any(inner.decides and any(_propagate(inner.program, inner.flags)) for inner in inside)


_STEP = re.compile("sign|floor|ceil|round|rem|sort|reduce_precision|stop_gradient|custom_(jvp|vjp)_call.*")


def _has_step(jaxpr: Jaxpr, flags: list[bool], wanted: list[bool]) -> bool:
    """Whether a flagged input goes through a step, which is flat on both sides, on its way to a wanted output.

    Steps are the operations of `_STEP`, all that make whole numbers or truth values, and choices by what is flagged.
    """
    marked = _marked(jaxpr, flags)
    needed = {v for v, flag in zip(jaxpr.outvars, wanted, strict=True) if flag and is_variable(v)}
    for eqn in reversed(jaxpr.eqns):
        if needed.isdisjoint(eqn.outvars):
            continue
        of_outputs = [v in needed for v in eqn.outvars]
        needed.update(filter(is_variable, eqn.invars))
        inputs = list(map(marked, eqn.invars))
        if any(inputs) and _makes_step(eqn, inputs, of_outputs):
            return True
    return False


def _makes_step(eqn: Any, inputs: list[bool], wanted: list[bool]) -> bool:
    """Whether an operation with flagged inputs is a step, or has one inside."""
    if _STEP.fullmatch(eqn.primitive.name):
        return True
    if eqn.primitive.name == "custom_linear_solve":  # linear in the right-hand side, which comes after the matrix
        return any(inputs[: sum(eqn.params["const_lengths"])])
    inside = _inside(eqn, inputs)
    if not inside:
        within = (_has_step(program, _all(program.invars), _all(program.outvars)) for program in programs_in(eqn))
        return not all(_is_real(v) for v in eqn.outvars) or any(within)
    if _is_choice(eqn, inputs, inside):
        return True
    in_turns = eqn.primitive.name in ("scan", "while")  # an output of one turn may be an input of the next
    return any(
        _has_step(inner.program, inner.flags, [True] * len(wanted) if in_turns else wanted)
        for inner in inside
        if not inner.decides
    )


def _all(variables: Sequence[Any]) -> list[bool]:
    return [True] * len(variables)


def _is_real(variable: Any) -> bool:
    """Whether a variable holds real or complex numbers; variables without a dtype count as real."""
    return jnp.issubdtype(getattr(variable.aval, "dtype", float), jnp.inexact)


def _propagate(jaxpr: Jaxpr, flags: list[bool]) -> list[bool]:
    """Which outputs of a jaxpr depend on its flagged inputs."""
    return list(map(_marked(jaxpr, flags), jaxpr.outvars))


def _marked(jaxpr: Jaxpr, flags: list[bool]) -> Callable[[Any], bool]:
    """Which variables may depend on the flagged inputs: rather too many than too few."""

    def flow(eqn, inputs):
        return _flow(eqn, inputs) if any(inputs) else [False] * len(eqn.outvars)

    return walk(jaxpr, flags, flow, literal=lambda _: False, unknown=False)


def _flow(eqn: Any, inputs: list[bool]) -> list[bool]:
    """Which outputs of an operation depend on its flagged inputs."""
    inside = _inside(eqn, inputs)
    if not inside or _is_choice(eqn, inputs, inside):
        return [True] * len(eqn.outvars)
    found: list[Sequence[bool]] = [_propagate(inner.program, inner.flags) for inner in inside if not inner.decides]
    found += [inner.carried for inner in inside]  # which a loop without a turn returns as it was
    return [any(flags) for flags in zip_longest(*found)]
