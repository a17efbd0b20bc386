"""Kernels for GPUs, behind the functions that XLA serves elsewhere."""

from epf_jax.core.kernels.cells import NotFusable
from epf_jax.core.kernels.dispatch import scan_on_device, step_on_device

__all__ = ["NotFusable", "scan_on_device", "step_on_device"]
