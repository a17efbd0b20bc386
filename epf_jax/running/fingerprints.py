"""Fingerprints of what functions compute: they change with models, options and code, but not with the process."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from epf_jax.core.checks import is_key


def fingerprint(function: Callable, *arguments: Any) -> str:
    """A hash of the traced program of `function(*arguments)`, with all its constants.

    The name of each value is a hash of its operation and of the names of the operation's inputs. The names of the
    outputs are the fingerprint. So the order of independent operations does not matter: numpyro's order differs from
    process to process.
    """
    traced = jax.make_jaxpr(function)(*arguments)
    return _hash(*_names(traced, [f"argument {i}" for i in range(len(traced.jaxpr.invars))]))


def _names(program: Any, inputs: list[str]) -> list[str]:
    """The names of a program's outputs, given those of its inputs."""
    constants = program.consts if isinstance(program, ClosedJaxpr) else []
    program = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    known = dict(zip(program.invars, inputs, strict=True))
    known |= dict(zip(program.constvars, map(_constant, constants), strict=False))

    def name(atom):
        return _constant(atom.val) if isinstance(atom, Literal) else known.get(atom, "")

    for step in program.eqns:
        known |= zip(step.outvars, _outputs(step, [name(atom) for atom in step.invars]), strict=True)
    return [name(atom) for atom in program.outvars]


def _outputs(step: Any, given: list[str]) -> list[str]:
    """The names of one operation's outputs; for a call or a loop they come from its inner programs."""
    inside, words = [], [step.primitive.name]
    for parameter, value in sorted(step.params.items()):
        for leaf in jax.tree.leaves(value, is_leaf=_is_program):
            if _is_program(leaf):
                inside.append(leaf)
            else:
                words.append(f"{parameter}={re.sub(r'0x[0-9a-f]+', '', str(leaf))}")  # a memory address says nothing
    if not inside:
        return [_hash(*words, *given, str(i), str(v.aval)) for i, v in enumerate(step.outvars)]
    made = [_names(program, list(_last(_arity(program), given))) for program in inside]
    words += sorted(given) + sorted(name for names in made for name in names)
    return [_hash(*words, *(_last(len(step.outvars), names)[i] for names in made)) for i in range(len(step.outvars))]


def _is_program(value: Any) -> bool:
    return isinstance(value, ClosedJaxpr | Jaxpr)


def _arity(program: Any) -> int:
    return len((program.jaxpr if isinstance(program, ClosedJaxpr) else program).invars)


def _last(num: int, names: list[str]) -> list[str]:
    """The last `num` names, with blanks in front if there are fewer."""
    return [""] * (num - len(names)) + names[len(names) - num if len(names) > num else 0 :]


def _constant(value: Any) -> str:
    if isinstance(value, jax.Array) and is_key(value):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    return _hash(str(array.dtype), str(array.shape), array.tobytes().hex())


def _hash(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()
