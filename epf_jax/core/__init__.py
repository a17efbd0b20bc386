"""Numerics, traced programs, kernels, files: everything that does not depend on state-space models."""
