"""Whether kernels compile on this machine. Where they do not, XLA computes the same."""

from functools import cache

import jax
import jax.numpy as jnp


@cache
def why_no_kernels() -> str:
    """Why no kernel is used here, in a few words; empty where they are used.

    One small kernel with all that the others take from Pallas is compiled, once: a jax whose Pallas is gone, or has
    changed, is found out here.
    """
    if jax.default_backend() != "gpu":
        return "there is no GPU"
    try:
        _compile_one()
    except Exception as error:  # whatever a release of jax may raise
        return f"Pallas fails with {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return ""


def _compile_one() -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    def kernel(given, made):
        lane = jax.lax.iota(jnp.int32, 32)
        value = plgpu.load(given.at[lane], mask=lane < 31, other=0)
        plgpu.debug_barrier()
        plgpu.store(made.at[lane], value + pl.program_id(0), mask=lane < 31)

    shape = jax.ShapeDtypeStruct((32,), jnp.int32)
    options = plgpu.CompilerParams(num_warps=1, num_stages=1)
    jax.jit(pl.pallas_call(kernel, grid=(1,), out_shape=shape, compiler_params=options)).lower(shape).compile()
