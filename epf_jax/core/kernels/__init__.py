"""Kernels for GPUs; `core.loops` and `core.platforms` say where they are used, and XLA serves elsewhere."""
