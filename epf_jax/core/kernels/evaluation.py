"""Evaluating a jaxpr inside a kernel, with every array taken apart into cells.

What crosses particles, sums, running sums and the reading of ancestors, has a rule of its own; all else is arithmetic
on cells. A primitive without a rule raises `NotFusable`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.core.kernels import arithmetic, places, shapes
from epf_jax.core.kernels.cells import (
    Block,
    Cells,
    NotFusable,
    constant,
    count_operations,
    filled,
    from_numbers,
    layout_of,
    stacked,
    to_numbers,
)
from epf_jax.core.programs import is_variable, loop_arguments, outputs

_UNROLL = 4  # loops up to this length are written out


def evaluate(block: Block, jaxpr: Any, inputs: list[Cells]) -> list[Cells]:
    """The results of a jaxpr for the given constants and inputs."""
    num_constants = len(jaxpr.constvars)
    return outputs(
        jaxpr.replace(eqns=_needed(jaxpr)),
        inputs[num_constants:],
        lambda eqn, given: _apply(block, eqn, given),
        constants=inputs[:num_constants],
        literal=lambda value: constant(block, value),
    )


def _call(block: Block, closed: Any, inputs: list[Cells]) -> list[Cells]:
    return evaluate(block, closed.jaxpr, [*(constant(block, const) for const in closed.consts), *inputs])


def _needed(jaxpr: Any) -> list[Any]:
    """The equations that lead to a result."""
    live, needed = set(filter(is_variable, jaxpr.outvars)), []
    for eqn in reversed(jaxpr.eqns):
        if any(v in live for v in eqn.outvars):
            needed.append(eqn)
            live.update(filter(is_variable, eqn.invars))
    return needed[::-1]


def _apply(block: Block, eqn: Any, inputs: list[Cells]) -> list[Cells]:
    name, params = eqn.primitive.name, eqn.params
    if name in ("jit", "pjit", "closed_call") and params.get("name") in _NAMED:
        return [_NAMED[params["name"]](block, *inputs)]
    if name in ("jit", "pjit", "closed_call", "custom_jvp_call"):
        return _call(block, params["call_jaxpr"] if name == "custom_jvp_call" else params["jaxpr"], inputs)
    if name in _SEVERAL_RESULTS:
        return _SEVERAL_RESULTS[name](block, eqn, inputs)
    if name in arithmetic.ELEMENTWISE:
        return [arithmetic.elementwise(block, eqn, inputs)]
    if name in _RULES:
        return [_RULES[name](block, eqn, *inputs)]
    raise NotFusable(f"the primitive {name!r}, which has no rule")


def _cond(block: Block, eqn: Any, inputs: list[Cells]) -> list[Cells]:
    index, *operands = inputs
    chosen, branches = index.items[()], eqn.params["branches"]
    if isinstance(chosen, (int, np.integer)):
        return _call(block, branches[int(chosen)], operands)
    if len(branches) != 2:
        raise NotFusable("a choice between more than two branches")
    no, yes = (_call(block, branch, operands) for branch in branches)

    def choose(a, b, aval):
        axis = a.axis if a.axis is not None else b.axis
        if a.axis != b.axis and aval.shape:
            raise NotFusable("branches with their particles along different axes")
        pick = lambda place: jnp.where(jnp.asarray(chosen) != 0, b.items[place], a.items[place])  # noqa: E731
        return filled(a.items.shape, pick, axis)

    return [choose(a, b, v.aval) for a, b, v in zip(no, yes, eqn.outvars, strict=True)]


def _platform_index(block: Block, eqn: Any, inputs: list[Cells]) -> list[Cells]:
    """The branch for all platforms: those for a GPU are made of kernels, and none can stand inside another."""
    others = [i for i, names in enumerate(eqn.params["platforms"]) if not names]
    if not others:
        raise NotFusable("a choice of platforms without one for all")
    return [filled((), lambda _: others[0], None)]


def _scan(block: Block, eqn: Any, inputs: list[Cells]) -> list[Cells]:
    p = eqn.params
    length, (num_consts, num_carry) = p["length"], loop_arguments(p, len(inputs))
    consts, carry = inputs[:num_consts], inputs[num_consts : num_consts + num_carry]
    rows = inputs[num_consts + num_carry :]
    dtypes = [v.aval.dtype for v in eqn.outvars[:num_carry]]
    if length > _UNROLL:
        if rows or len(eqn.outvars) > num_carry:
            raise NotFusable(f"a loop of {length} steps over rows")
        return _loop(block, p["jaxpr"], consts, carry, dtypes, length)
    if any(c.axis == 0 for c in rows):
        raise NotFusable("a loop over the particles")
    made = []
    for i in reversed(range(length)) if p["reverse"] else range(length):
        row = [Cells(c.items[i, ...], None if c.axis is None else c.axis - 1) for c in rows]
        out = _call(block, p["jaxpr"], [*consts, *carry, *row])
        carry = out[:num_carry]
        made.append(out[num_carry:])
    made = made[::-1] if p["reverse"] else made
    return [*carry, *(stacked([row[k] for row in made], 0) for k in range(len(eqn.outvars) - num_carry))]


def _loop(
    block: Block, body: Any, consts: list[Cells], carry: list[Cells], dtypes: list[Any], length: int
) -> list[Cells]:
    """A long loop with no rows stays a loop."""
    layout = layout_of(carry, dtypes)

    def turn(_, numbers):
        return to_numbers(block, _call(block, body, [*consts, *from_numbers(numbers, layout)]), layout)

    before = block.operations[0]
    numbers = jax.lax.fori_loop(0, length, turn, to_numbers(block, carry, layout))
    count_operations(block, (length - 1) * (block.operations[0] - before))
    return from_numbers(numbers, layout)


_NAMED = {"ancestors_of_counts": places.ancestors_of_counts, "running_sum": arithmetic.running_sum}
_RULES = arithmetic.RULES | places.RULES | shapes.RULES
_SEVERAL_RESULTS: dict[str, Callable] = {
    "optimization_barrier": lambda block, eqn, inputs: inputs,
    "cond": _cond,
    "platform_index": _platform_index,
    "scan": _scan,
    **shapes.SEVERAL_RESULTS,
}
