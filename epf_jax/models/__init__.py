"""Models ready to use, one file each: the paper's three, linear-Gaussian ones, and a pendulum."""

from epf_jax.models.cauchy import cauchy_ar1
from epf_jax.models.linear import ar1, local_level
from epf_jax.models.pendulum import pendulum
from epf_jax.models.sinusoid import sinusoid
from epf_jax.models.star import star

__all__ = ["ar1", "cauchy_ar1", "local_level", "pendulum", "sinusoid", "star"]
