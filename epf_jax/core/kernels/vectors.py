"""Kernels over vectors too long for one block, where XLA's own take many passes."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

BEYOND = 2**30  # more than any count of particles
_BLOCK = 1024
_PER_WARP = 256  # elements: eight to a thread


def compiler(width: int, interpret: bool, per_warp: int = _PER_WARP) -> dict[str, Any]:
    """Options of `pallas_call`: the Triton backend with threads for blocks of `width`, or the interpreter."""
    if interpret:
        return {"interpret": True}
    return {"compiler_params": plgpu.CompilerParams(num_warps=max(width // per_warp, 1), num_stages=1)}


def running_sum_by_blocks(x: jax.Array, *, interpret: bool = False) -> jax.Array:
    """Cumulative sum of a long vector: each block's own in one kernel, then the blocks' totals, which are few."""
    n, num_blocks = x.shape[0], -(-x.shape[0] // _BLOCK)

    def kernel(x_ref, sums_ref, totals_ref):
        place = pl.program_id(0) * _BLOCK + jax.lax.iota(jnp.int32, _BLOCK)
        block = plgpu.load(x_ref.at[place], mask=place < n, other=0)
        plgpu.store(sums_ref.at[place], jax.lax.cumsum(block, axis=0), mask=place < n)
        totals_ref[pl.program_id(0)] = jnp.sum(block)

    sums, totals = pl.pallas_call(
        kernel,
        grid=(num_blocks,),
        out_shape=[jax.ShapeDtypeStruct((n,), x.dtype), jax.ShapeDtypeStruct((num_blocks,), x.dtype)],
        **compiler(_BLOCK, interpret),
    )(x)
    before = jnp.cumsum(totals) - totals
    return sums + before[jnp.arange(n, dtype=jnp.int32) // _BLOCK]


def ancestors_by_bisection(counts: jax.Array, *, interpret: bool = False) -> jax.Array:
    """How many of the sorted counts are at most j, for j = 0..N-1, in one kernel; XLA's own search takes many."""
    n = counts.shape[0]

    def kernel(counts_ref, out_ref):
        j = pl.program_id(0) * _BLOCK + jax.lax.iota(jnp.int32, _BLOCK)
        below, step = jnp.zeros_like(j), 1 << n.bit_length()
        while step > 1:
            step //= 2
            at = below + (step - 1)
            count = plgpu.load(counts_ref.at[at], mask=at < n, other=BEYOND)
            below = jnp.where(count <= j, below + step, below)
        plgpu.store(out_ref.at[j], below, mask=j < n)

    grid = (-(-n // _BLOCK),)
    shape = jax.ShapeDtypeStruct((n,), jnp.int32)
    return pl.pallas_call(kernel, grid=grid, out_shape=shape, **compiler(_BLOCK, interpret))(counts)
