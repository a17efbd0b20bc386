"""What a function depends on, and how: read off its traced program."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr


def abstractly(function: Callable, *arguments: Any) -> Any:
    """What `function(*arguments)` returns under abstract evaluation: types and shapes can be read, numbers cannot."""
    returned: list[Any] = []

    def look(arguments):
        returned.append(function(*arguments))
        return jnp.zeros(())

    jax.eval_shape(look, arguments)
    return returned[-1]


def depends_on(function: Callable, example: Any, *others: Any) -> bool:
    """Whether the output of `function(example, *others)` depends on its first argument.

    Decided on the traced program, so True may be too cautious (`0 * theta` depends on theta), False never errs.
    """
    program = _traced(function, example, *others)
    num_first = len(jax.tree.leaves(example))
    return any(_propagate(program, [i < num_first for i in range(len(program.invars))]))


def is_affine(function: Callable, example: Any, *others: Any) -> bool:
    """Whether `function(example, *others)` is affine in its first argument, an array.

    Its Jacobian must not depend on the argument, which the traced program shows. Steps (a comparison, `round`, `sign`)
    pass that test with a Jacobian of zero, so none may stand between the argument and the result, and no function with
    a derivative of its own. As of `depends_on`, the answer may be too cautious: False of a function that is affine.
    """
    if depends_on(lambda first, *rest: jax.jacfwd(function)(first, *rest), example, *others):
        return False
    program = _traced(function, example, *others)
    num_first = len(jax.tree.leaves(example))
    return not _has_step(program, [i < num_first for i in range(len(program.invars))], [True] * len(program.outvars))


def _traced(function: Callable, example: Any, *others: Any) -> Jaxpr:
    return jax.make_jaxpr(lambda first, rest: function(first, *rest))(example, others).jaxpr


_STEP = re.compile(
    "lt|le|gt|ge|eq|ne|sign|floor|ceil|round|is_finite|arg(max|min)|rem|stop_gradient|bitcast_convert_type|"
    "custom_(jvp|vjp)_call.*"
)


def _has_step(jaxpr: Jaxpr, flags: list[bool], wanted: list[bool]) -> bool:
    """Whether a flagged input goes through an operation of `_STEP`, or a whole number, on its way to a wanted one."""
    marked = _marked(jaxpr, flags)
    needed = {v for v, flag in zip(jaxpr.outvars, wanted, strict=True) if flag and _is_variable(v)}
    for eqn in reversed(jaxpr.eqns):
        if needed.isdisjoint(eqn.outvars):
            continue
        needed.update(filter(_is_variable, eqn.invars))
        inputs = [_is_variable(v) and v in marked for v in eqn.invars]
        if not any(inputs):
            continue
        real = all(jnp.issubdtype(getattr(v.aval, "dtype", float), jnp.floating) for v in eqn.outvars)
        if _STEP.fullmatch(eqn.primitive.name) or (eqn.primitive.name == "convert_element_type" and not real):
            return True
        if _is_call(eqn):
            if _has_step(_inside(eqn), inputs, [v in needed for v in eqn.outvars]):
                return True
        elif any(
            _has_step(inner, [True] * len(inner.invars), [True] * len(inner.outvars)) for inner in _all_inside(eqn)
        ):
            return True
    return False


def _is_call(eqn: Any) -> bool:
    """Whether an operation is one program, whose inputs and outputs are its own."""
    inner = _inside(eqn)
    if inner is None or eqn.primitive.name in ("scan", "while"):  # a carry mixes its slots
        return False
    return len(inner.invars) == len(eqn.invars) and len(inner.outvars) == len(eqn.outvars)


def _inside(eqn: Any) -> Any:
    """The program that an operation calls, or None."""
    inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    return getattr(inner, "jaxpr", inner)


def _all_inside(eqn: Any) -> list[Jaxpr]:
    """The programs in an operation: a loop's body, the branches of a choice."""
    values = [value for given in eqn.params.values() for value in (given if isinstance(given, tuple) else (given,))]
    inner = [getattr(value, "jaxpr", value) for value in values]
    return [program for program in inner if hasattr(program, "eqns")]


def _is_variable(atom: Any) -> bool:
    return not hasattr(atom, "val")  # which a literal has


def _propagate(jaxpr: Jaxpr, flags: list[bool]) -> list[bool]:
    """Which outputs of a jaxpr depend on its flagged inputs."""
    marked = _marked(jaxpr, flags)
    return [_is_variable(v) and v in marked for v in jaxpr.outvars]


def _marked(jaxpr: Jaxpr, flags: list[bool]) -> set[Any]:
    """The variables that depend on the flagged inputs, as far as can be told: rather too many than too few."""
    marked = {var for var, flag in zip(jaxpr.invars, flags, strict=True) if flag}
    for eqn in jaxpr.eqns:
        inputs = [_is_variable(v) and v in marked for v in eqn.invars]
        outputs = _propagate(_inside(eqn), inputs) if _is_call(eqn) else [any(inputs)] * len(eqn.outvars)
        marked.update(var for var, flag in zip(eqn.outvars, outputs, strict=True) if flag)
    return marked
