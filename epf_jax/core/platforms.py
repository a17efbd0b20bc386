"""Which way a computation goes on the machine at hand: the same function, written for a CPU, a GPU, or any.

Where there is no GPU, no kernel is traced, and nothing of Pallas is imported.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax


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
    if isinstance(gpu, str):
        from epf_jax.core.kernels import vectors

        cuda = getattr(vectors, gpu)
    else:
        cuda = gpu or default
    return jax.lax.platform_dependent(*given, cpu=cpu or default, cuda=cuda, default=default)


def on_cpu() -> contextlib.AbstractContextManager:
    """Where programs that look at a model are compiled: on a CPU, which takes a fraction of a GPU's time for it."""
    if jax.default_backend() == "cpu":
        return contextlib.nullcontext()
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # by JAX_PLATFORMS there is no other
        return contextlib.nullcontext()
