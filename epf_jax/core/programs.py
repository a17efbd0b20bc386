"""Traced programs, which all who read them walk through in one way."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Jaxpr


def walk(
    program: Jaxpr,
    inputs: Sequence[Any],
    operation: Callable[[Any, list[Any]], Sequence[Any]],
    *,
    constants: Sequence[Any] = (),
    literal: Callable[[Any], Any] = lambda value: value,
    unknown: Any = None,
) -> Callable[[Any], Any]:
    """`value(variable)` for every variable of a program: numbers, or what else is to be known of them.

    Args:
        program: the traced program.
        inputs: the values of its inputs.
        operation: `operation(eqn, given)`, the values of an operation's outputs from those of its inputs.
        constants: the values of the program's constants; `unknown` where there are none.
        literal: the value of a number that is written down.
        unknown: the value of a variable that nothing is known of.
    """
    values = dict(zip(program.invars, inputs, strict=True))
    values.update(zip(program.constvars, constants, strict=False))

    def value(atom):
        return values.get(atom, unknown) if is_variable(atom) else literal(atom.val)

    for eqn in program.eqns:
        values.update(zip(eqn.outvars, operation(eqn, [value(v) for v in eqn.invars]), strict=True))
    return value


def outputs(program: Jaxpr, *given: Any, **how: Any) -> list[Any]:
    """The values of a program's outputs; arguments as of `walk`."""
    return list(map(walk(program, *given, **how), program.outvars))


def programs_in(eqn: Any) -> list[Jaxpr]:
    """The programs among an operation's parameters: how a scatter adds, say."""
    values = [value for given in eqn.params.values() for value in (given if isinstance(given, tuple) else (given,))]
    return [inner for inner in (getattr(value, "jaxpr", value) for value in values) if hasattr(inner, "eqns")]


def is_variable(atom: Any) -> bool:
    """Whether it is no literal, which has a value."""
    return not hasattr(atom, "val")


def loop_arguments(params: Any, num: int) -> tuple[int, int]:
    """How many of a scan's arguments are constants, and how many are carried: two spellings, of jax 0.10 and 0.11."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].update(list(range(num))).unpack()
    return len(list(consts)), len(list(carry))
