"""The version, readable without importing jax."""

__version__ = "0.1.0"
