"""What a CPU and a GPU need each: versions of a function, full precision, and whether kernels compile."""

import contextlib
import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp


def by_platform(
    *given: Any,
    default: Callable,
    cpu: Callable | None = None,
    gpu: Callable | str | None = None,
) -> Any:
    """`function(*given)` in the version for the program's platform.

    Args:
        given: its arguments.
        default: the version for most platforms, and for a filter in one kernel.
        cpu: another version for a CPU, if any.
        gpu: another version for a GPU, if any: the name of a kernel in `kernels.vectors`.
    """
    backend = jax.default_backend()
    if backend != "gpu":
        return (cpu or default)(*given) if backend == "cpu" else default(*given)
    cuda = gpu or default
    if isinstance(cuda, str):
        cuda = default if why_no_kernels() else getattr(importlib.import_module("epf_jax.core.kernels.vectors"), cuda)
    return jax.lax.platform_dependent(*given, cpu=cpu or default, cuda=cuda, default=default)


def on_cpu() -> contextlib.AbstractContextManager:
    """A context that compiles on the CPU, which is much faster than a GPU for programs that inspect a model."""
    if jax.default_backend() == "cpu":
        return contextlib.nullcontext()
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # by JAX_PLATFORMS there is no other
        return contextlib.nullcontext()


def full_precision() -> contextlib.AbstractContextManager[Any]:
    """A context in which products of float32 matrices are computed in float32.

    By default a GPU rounds their factors to ten bits (TensorFloat-32), which is too little for log-densities of long
    series and for covariances. A precision that the user chose by `jax.default_matmul_precision` is kept.
    """
    chosen: Any = jax.config
    if chosen.jax_default_matmul_precision is not None:
        return contextlib.nullcontext()
    return jax.default_matmul_precision("highest")


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
