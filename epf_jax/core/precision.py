"""Full precision for products of float32 matrices on a GPU."""

import contextlib
from typing import Any

import jax


def full_precision() -> contextlib.AbstractContextManager[Any]:
    """A context in which products of float32 matrices are computed in float32.

    By default a GPU rounds their factors to ten bits (TensorFloat-32), which is too little for log-densities of long
    series and for covariances. A precision that the user chose by `jax.default_matmul_precision` is kept.
    """
    chosen: Any = jax.config
    if chosen.jax_default_matmul_precision is not None:
        return contextlib.nullcontext()
    return jax.default_matmul_precision("highest")
