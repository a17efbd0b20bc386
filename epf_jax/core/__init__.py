"""Numerics, traced programs, kernels, files: nothing here knows of a state-space model."""
