"""A small filter kept on chip for as many steps as there are observations.

A step of a thousand particles is dozens of small kernels to XLA, and a GPU spends its time starting them.
`scan_on_chip` is `jax.lax.scan` for a function as it is written, a filter's step with its summaries, in one Pallas
kernel: the particles stay in registers from the first observation to the last. Under `vmap` the kernel gets a grid,
one block for each filter. A function that does something that has no rule in `evaluation` is left to XLA. The same
kernel runs in Pallas' interpreter on a CPU, where the tests hold it against the function itself.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from epf_jax.core.checks import is_key
from epf_jax.core.kernels.cells import (
    MAX_PARTICLES,
    Block,
    Cells,
    NotFusable,
    filled,
    from_numbers,
    full_shape,
    layout_of,
    spread,
    to_numbers,
)
from epf_jax.core.kernels.evaluation import evaluate
from epf_jax.core.kernels.vectors import compiler

_PER_WARP = 128  # lanes: four to a thread
_SCRATCH_SLOTS = 48  # arrays of one word per particle, through which particles read what others have computed


def scan_on_chip(
    step: Callable, num_particles: int, by_particle: Any, state: Any, rows: Any, *, interpret: bool = False
) -> tuple[Any, Any]:
    """`jax.lax.scan(step, state, rows)` in one kernel, or in Pallas' interpreter; arguments as of `scan_on_device`.

    Raises:
        NotFusable: where the step does something that has no rule.
    """
    if num_particles > MAX_PARTICLES:
        raise NotFusable(f"{num_particles} particles, more than the {MAX_PARTICLES} of one block")
    row = jax.eval_shape(partial(jax.tree.map, lambda leaf: leaf[0]), rows)
    closed, shapes = jax.make_jaxpr(step, return_shape=True)(state, row)
    _check_effects(closed)
    jaxpr, consts = closed.jaxpr, closed.consts
    leaves, row_leaves = jax.tree.leaves(state), jax.tree.leaves(rows)
    flags = [
        *(np.shape(const)[:1] == (num_particles,) for const in consts),
        *jax.tree.leaves(jax.tree.map(lambda flag, tree: jax.tree.map(lambda _: flag, tree), by_particle, state)),
    ]
    for leaf, flag in zip(leaves, flags[len(consts) :], strict=True):
        if not flag and leaf.ndim:  # a memory of the series, say: too long for registers, whichever row is read
            raise NotFusable(f"a state with an array of shape {leaf.shape} that all particles share")
    variables: list[Any] = [*jaxpr.constvars, *jaxpr.invars]
    before, row_variables = variables[: len(flags)], variables[len(flags) :]
    outvars: list[Any] = jaxpr.outvars
    states, outs = outvars[: len(leaves)], outvars[len(leaves) :]
    _check_words([v.aval for v in (*variables, *outvars)])
    num_steps, width = row_leaves[0].shape[0], 1 << (num_particles - 1).bit_length()
    written = [v for v in outs if v.aval.size]  # arrays with no entries need no writing

    def kernel(*refs):
        given, results, memory = refs[: len(variables)], refs[len(variables) : -1], refs[-1]
        lane = jax.lax.iota(jnp.int32, width)
        slots = [i * width for i in range(_SCRATCH_SLOTS)]
        barrier = (lambda: None) if interpret else plgpu.debug_barrier
        block = Block(num_particles, lane, lane < num_particles, memory, slots, barrier, [0])
        loaded = [_load(block, r, v.aval, flag) for r, v, flag in zip(given, before, flags, strict=False)]
        constants, start = loaded[: len(consts)], loaded[len(consts) :]
        layout = layout_of(start, [v.aval.dtype for v in states])

        def turn(t, numbers):
            fresh = block._replace(free=list(slots))
            row = [
                _load(block, r, v.aval, False, (t,)) for r, v in zip(given[len(flags) :], row_variables, strict=True)
            ]
            values = evaluate(fresh, jaxpr, [*constants, *from_numbers(numbers, layout), *row])
            made = [value for value in values[len(states) :] if value.items.size]
            for ref, value, v in zip(results[len(states) :], made, written, strict=True):
                _store(block, ref, value, v.aval, (t,))
            return to_numbers(block, values[: len(states)], layout)

        final = jax.lax.fori_loop(0, num_steps, turn, to_numbers(block, start, layout))
        for ref, value, v in zip(results, from_numbers(final, layout), states, strict=False):
            _store(block, ref, value, v.aval)

    *found, _ = pl.pallas_call(
        kernel,
        out_shape=[
            *(_word_shape(v.aval) for v in states),
            *(_word_shape(v.aval, (num_steps,)) for v in written),
            jax.ShapeDtypeStruct((_SCRATCH_SLOTS * width,), jnp.int32),
        ],
        **compiler(width, interpret, _PER_WARP),
    )(*map(_as_words, (*consts, *leaves, *row_leaves)))
    final = [word.reshape(v.aval.shape).astype(v.aval.dtype) for word, v in zip(found, states, strict=False)]
    remaining = iter(found[len(states) :])
    made = [_all_steps(next(remaining) if v.aval.size else None, v.aval, num_steps) for v in outs]
    return tuple(
        jax.tree.unflatten(jax.tree.structure(shape), part) for shape, part in zip(shapes, (final, made), strict=True)
    )


def _all_steps(words: Any, aval: Any, num_steps: int) -> jax.Array:
    shape = (num_steps, *aval.shape)
    return jnp.zeros(shape, aval.dtype) if words is None else words.reshape(shape).astype(aval.dtype)


def _check_effects(closed: Any) -> None:
    if closed.effects:  # a kernel computes what leads to a result, and would leave out what is printed on the way
        raise NotFusable(f"a step with side effects: {', '.join(map(str, closed.effects))}")


def _check_words(avals: list[Any]) -> None:
    for aval in avals:
        if is_key(aval):
            if aval.shape != () or aval.dtype.itemsize != 8:
                raise NotFusable("keys other than one of two words")
        elif aval.dtype != bool and jnp.dtype(aval.dtype).itemsize != 4:
            raise NotFusable(f"an array of {aval.dtype}: the kernel works in 4-byte numbers")


def _as_words(leaf: Any) -> jax.Array:
    """An input as an array of 4-byte numbers with at least one axis."""
    leaf = jnp.asarray(leaf)
    leaf = jax.random.key_data(leaf) if is_key(leaf) else leaf
    leaf = leaf.astype(jnp.int32) if leaf.dtype == bool else leaf
    return leaf.reshape(1) if leaf.ndim == 0 else leaf


def _word_shape(aval: Any, lead: tuple[int, ...] = ()) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*lead, *aval.shape) or (1,), jnp.int32 if aval.dtype == bool else aval.dtype)


def _load(block: Block, ref: Any, aval: Any, by_particle: bool, lead: tuple = ()) -> Cells:
    def item(place):
        if by_particle:
            value = plgpu.load(ref.at[(*lead, block.lane, *place)], mask=block.inside, other=0)
        else:
            value = ref[(*lead, *place) or (0,)]
        return value != 0 if aval.dtype == bool else value

    shape = full_shape(aval)
    return filled(shape[1:] if by_particle else shape, item, 0 if by_particle else None)


def _store(block: Block, ref: Any, cells: Cells, aval: Any, lead: tuple = ()) -> None:
    if cells.axis not in (None, 0) or (cells.axis is None and block.num in aval.shape):
        raise NotFusable(f"a result of shape {aval.shape} with its particles along axis {cells.axis}")
    for place in np.ndindex(*cells.items.shape):
        value = jnp.asarray(cells.items[place], aval.dtype)
        value = value.astype(jnp.int32) if aval.dtype == bool else value
        if cells.axis == 0:
            plgpu.store(ref.at[(*lead, block.lane, *place)], spread(block, value), mask=block.inside)
        else:
            at = (*lead, *map(np.int32, place)) or (np.int32(0),)  # jax 0.10 asks for their shapes
            plgpu.store(ref.at[at], value)  # ref[...] = value: jax 0.12 makes a constant an int
