"""Loops over as many rows as are told when the program runs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from epf_jax.core.kernels.dispatch import jvp_of_what_varies


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
