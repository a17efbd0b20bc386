"""Fingerprints of what functions compute: they change with models, options and code, but not with the process."""

import hashlib
import re
from collections.abc import Callable
from types import CodeType
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from epf_jax.core.checks import is_key
from epf_jax.core.programs import loop_arguments, outputs


def fingerprint(function: Callable, *arguments: Any) -> str:
    """A hash of the traced program of `function(*arguments)`, with all its constants.

    The name of each value is a hash of its operation and of the names of the operation's inputs. The names of the
    outputs are the fingerprint. So the order of independent operations does not matter: numpyro's order differs from
    process to process. The order of a loop's carry does matter: the user chose it.
    """
    traced = jax.make_jaxpr(function)(*arguments)
    return _hash(*_names(traced, [f"argument {i}" for i in range(len(traced.jaxpr.invars))]))


def _names(program: Any, inputs: list[str]) -> list[str]:
    """The names of a program's outputs, given those of its inputs."""
    constants = program.consts if isinstance(program, ClosedJaxpr) else []
    program = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    return outputs(program, inputs, _outputs, constants=list(map(_constant, constants)), literal=_constant, unknown="")


def _outputs(step: Any, given: list[str]) -> list[str]:
    """The names of one operation's outputs; for a call or a loop they come from its inner programs."""
    inside, words = [], [step.primitive.name]
    for parameter, value in sorted(step.params.items()):
        for leaf in jax.tree.leaves(value, is_leaf=_is_program):
            if _is_program(leaf):
                inside.append(leaf)
            else:
                words.append(f"{parameter}={_word(parameter, leaf)}")
    if not inside:
        return [_hash(*words, *given, str(i), str(v.aval)) for i, v in enumerate(step.outvars)]
    made = _inside(step, inside, given)
    words += [name for names in made for name in names]
    return [_hash(*words, str(i)) for i in range(len(step.outvars))]


def _inside(step: Any, inside: list[Any], given: list[str]) -> list[list[str]]:
    """The names that the programs inside of an operation make, and those that loops begin with."""
    kind, of = step.primitive.name, step.params
    if kind == "while":
        first = of["cond_nconsts"] + of["body_nconsts"]
        carry = _placed(given[first:])
        condition, body = of["cond_jaxpr"], of["body_jaxpr"]
        before = given[: of["cond_nconsts"]], given[of["cond_nconsts"] : first]
        return [carry, _names(condition, [*before[0], *carry]), _names(body, [*before[1], *carry])]
    if kind == "scan":
        num_constants, _ = loop_arguments(of, len(given))
        constants, rest = given[:num_constants], _placed(given[num_constants:])
        return [rest, _names(of["jaxpr"], [*constants, *rest])]
    if kind == "cond":
        return [given[:1], *(_names(branch, given[1:]) for branch in inside)]
    if len(inside) == 1 and _arity(inside[0]) == len(given):  # a call: what it is given is in the names that it makes
        return [_names(inside[0], given)]
    return [given, *(_names(program, _placed([""] * _arity(program))) for program in inside)]


def _placed(names: list[str]) -> list[str]:
    """The names, each with its place: of a carry, two that begin alike are not the same."""
    return [_hash(name, str(i)) for i, name in enumerate(names)]


def _word(parameter: str, value: Any) -> str:
    """A parameter in words, in which a memory address says nothing; a callback by what its code says."""
    if parameter == "callback":
        return _code(getattr(value, "callback_func", value))
    return re.sub(r"0x[0-9a-f]+", "", str(value))


def _code(function: Any) -> str:
    """A function of Python's, by its instructions, its constants, and what it closes over."""
    function = getattr(function, "__wrapped__", getattr(function, "func", function))
    code = getattr(function, "__code__", None)
    if code is None:
        return re.sub(r"0x[0-9a-f]+", "", str(function))
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    held = [_code(value) if callable(value) else str(value) for value in (*cells, *(function.__defaults__ or ()))]
    return _hash(_instructions(code), *(re.sub(r"0x[0-9a-f]+", "", text) for text in held))


def _instructions(code: CodeType) -> str:
    constants = [_instructions(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return _hash(code.co_code.hex(), *code.co_names, *constants)


def _is_program(value: Any) -> bool:
    return isinstance(value, ClosedJaxpr | Jaxpr)


def _arity(program: Any) -> int:
    return len((program.jaxpr if isinstance(program, ClosedJaxpr) else program).invars)


def _constant(value: Any) -> str:
    if isinstance(value, jax.Array) and is_key(value):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return _hash(str(array.dtype), str(array.shape), array.tobytes().hex())


def _hash(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()
