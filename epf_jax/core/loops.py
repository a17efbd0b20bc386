"""Loops of a filter's steps: in one kernel on a GPU, by XLA, or over as many rows as are told when the program runs.

Where there is no GPU, or Pallas does not work, no kernel is traced.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Int

from epf_jax.core.kernels.cells import MAX_PARTICLES
from epf_jax.core.platforms import why_no_kernels


def scan_on_device(step: Callable, num_particles: int, by_particle: Any, state: Any, rows: Any) -> tuple[Any, Any]:
    """`jax.lax.scan(step, state, rows)`: on chip where the filter is small and the device a GPU, by XLA elsewhere.

    Args:
        step: `step(state, row) -> state, out`.
        num_particles: N.
        by_particle: a prefix of `state`: True where leaves have a leading axis of particles, False elsewhere.
        state: the first state.
        rows: arrays with a leading axis of time.
    """
    on_gpu = jax.default_backend() == "gpu"
    # Two steps to a turn spare a GPU the copies of the state that one needs; on a CPU they cost more than they spare.
    by_xla = partial(jax.lax.scan, step, unroll=2 if on_gpu else 1)
    if num_particles > MAX_PARTICLES or why_no_kernels():
        return by_xla(state, rows)
    from epf_jax.core.kernels.on_chip import scan_on_chip

    row = jax.eval_shape(partial(jax.tree.map, lambda leaf: leaf[0]), rows)
    step, captured = jax.closure_convert(step, state, row)  # what is differentiated must come in as an argument

    def by_xla_given(captured, state, rows):
        return jax.lax.scan(lambda state, row: step(state, row, *captured), state, rows, unroll=2)

    def on_chip_given(captured, state, rows):
        return scan_on_chip(lambda state, row: step(state, row, *captured), num_particles, by_particle, state, rows)

    try:
        jax.eval_shape(on_chip_given, captured, state, rows)
    except Exception:  # a rule that a release of jax breaks, too: XLA tells again of what is wrong with the step itself
        return by_xla(state, rows)

    @jax.custom_jvp  # Pallas cannot differentiate the kernel: derivatives are XLA's
    def scan(captured, state, rows):
        return jax.lax.platform_dependent(captured, state, rows, cuda=on_chip_given, default=by_xla_given)

    scan.defjvp(partial(jvp_of_what_varies, by_xla_given), symbolic_zeros=True)
    return scan(captured, state, rows)


def jvp_of_what_varies(function: Callable, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The derivative along those inputs that have a tangent: a zero made an array would look like one that has."""
    treedef: Any
    leaves, treedef = jax.tree.flatten(primals)
    slopes = treedef.flatten_up_to(tangents)
    varies = [not isinstance(slope, SymbolicZero) for slope in slopes]

    def given(moving):
        moving = iter(moving)
        full = [next(moving) if v else leaf for v, leaf in zip(varies, leaves, strict=True)]
        state, out = function(*treedef.unflatten(full))
        return state, _batched_first(out)

    moving = [leaf for v, leaf in zip(varies, leaves, strict=True) if v]
    return jax.jvp(given, (moving,), ([slope for v, slope in zip(varies, slopes, strict=True) if v],))


def _batched_first(out: Any) -> Any:
    """The rows of a scan, of which `vmap` makes batches along the first axis, as of those of any other loop.

    A scan's batches are along the second axis. JAX takes a jitted function's results to be batched like those of its
    custom derivative, and does not look: with as many runs as rows, the wrong numbers have the right shape.
    """
    return jax.lax.cond(True, lambda rows: rows, partial(jax.tree.map, jnp.zeros_like), out)


def step_on_device(step: Callable, num_particles: int, by_particle: Any, state: Any, row: Any) -> tuple[Any, Any]:
    """`step(state, row)`: the same numbers as `scan_on_device` gives for it."""
    if num_particles > MAX_PARTICLES or why_no_kernels():
        return step(state, row)
    rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], row)
    state, out = scan_on_device(step, num_particles, by_particle, state, rows)
    return state, jax.tree.map(lambda leaf: leaf[0], out)


def scan_first(num_steps: Int[Array, ""], step: Callable, state: Any, rows: Any) -> tuple[Any, Any]:
    """`jax.lax.scan(step, state, rows)` over the first `num_steps` rows, and zeros for the others.

    A loop of unknown length has no gradient in reverse mode: derivatives are those of a scan that passes rows over.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    row = jax.eval_shape(lambda: _row(rows, 0))
    step, captured = jax.closure_convert(step, state, row)  # what is differentiated must be an argument

    def over_the_first(captured, num_steps, state, rows):
        def turn(t, carried):
            state, found = carried
            state, out = step(state, _row(rows, t), *captured)
            put = partial(jax.lax.dynamic_update_index_in_dim, index=t, axis=0)
            return state, jax.tree.map(put, found, out)

        nothing = _zeros(jax.eval_shape(step, state, row, *captured)[1], num_rows)
        # Of an unsigned place nobody asks whether it counts from the end.
        return jax.lax.fori_loop(jnp.uint32(0), jnp.asarray(num_steps, jnp.uint32), turn, (state, nothing))

    def passing_over(captured, num_steps, state, rows):
        def turn(state, numbered):
            t, row = numbered
            nothing = _zeros(jax.eval_shape(step, state, row, *captured)[1])
            return jax.lax.cond(t < num_steps, step, lambda state, *_: (state, nothing), state, row, *captured)

        return jax.lax.scan(turn, state, (jnp.arange(num_rows), rows))

    scan = jax.custom_jvp(over_the_first)
    scan.defjvp(partial(jvp_of_what_varies, passing_over), symbolic_zeros=True)
    return scan(captured, num_steps, state, rows)


def _row(rows: Any, t: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, t, keepdims=False), rows)


def _zeros(like: Any, *shape: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), like)
