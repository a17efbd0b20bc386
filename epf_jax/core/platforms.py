"""Which way a computation goes on the machine at hand: the same function, written for a CPU, a GPU, or any.

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
    """`function(*given)` in the way of the platform that the program is for.

    Args:
        given: what it is given.
        default: the way of most platforms, and of a filter that is one kernel.
        cpu: the way of a CPU, where it is another.
        gpu: the way of a GPU, where it is another; a kernel by its name in `kernels.vectors`.
    """
    backend = jax.default_backend()
    if backend != "gpu":
        return (cpu or default)(*given) if backend == "cpu" else default(*given)
    cuda = gpu or default
    if isinstance(cuda, str):
        cuda = default if why_no_kernels() else getattr(importlib.import_module("epf_jax.core.kernels.vectors"), cuda)
    return jax.lax.platform_dependent(*given, cpu=cpu or default, cuda=cuda, default=default)


def on_cpu() -> contextlib.AbstractContextManager:
    """Where programs that look at a model are compiled: on a CPU, which takes a fraction of a GPU's time for it."""
    if jax.default_backend() == "cpu":
        return contextlib.nullcontext()
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # by JAX_PLATFORMS there is no other
        return contextlib.nullcontext()
