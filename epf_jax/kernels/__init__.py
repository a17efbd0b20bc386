"""Kernels for GPUs, behind the functions that XLA serves elsewhere."""

from epf_jax.kernels.cells import NotFusable
from epf_jax.kernels.on_chip import scan_on_chip, scan_on_device, step_on_device
from epf_jax.kernels.vectors import ancestors_by_bisection, running_sum_by_blocks

__all__ = [
    "NotFusable",
    "ancestors_by_bisection",
    "running_sum_by_blocks",
    "scan_on_chip",
    "scan_on_device",
    "step_on_device",
]
