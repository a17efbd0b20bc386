"""Chooses between versions of a function for a CPU, a GPU, or any platform.

Where there is no GPU, or Pallas does not work, no kernel is traced.
"""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import jax

from epf_jax.core.kernels.guard import why_no_kernels


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
