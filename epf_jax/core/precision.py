"""Products of matrices as precise as the numbers in them."""

import contextlib
from typing import Any

import jax


def full_precision() -> contextlib.AbstractContextManager[Any]:
    """Within it products of float32 matrices are traced to be computed in float32.

    A GPU rounds their factors to ten bits (TensorFloat-32) unless told otherwise: log-densities of a long series, and
    the covariances that a statistic is updated by, do not bear it. A precision that the user chose, by
    `jax.default_matmul_precision` or its setting, is kept.
    """
    chosen: Any = jax.config
    if chosen.jax_default_matmul_precision is not None:
        return contextlib.nullcontext()
    return jax.default_matmul_precision("highest")
