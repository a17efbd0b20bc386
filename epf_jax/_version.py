"""The version, readable without importing jax."""

__version__ = "0.2.0"
