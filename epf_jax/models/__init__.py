"""Models ready to use, one file each: the paper's three, linear-Gaussian ones, a pendulum, volatility, regimes."""

from epf_jax.models.cauchy import cauchy_ar1
from epf_jax.models.linear import ar1, local_level, local_level_variances
from epf_jax.models.pendulum import pendulum
from epf_jax.models.sinusoid import sinusoid
from epf_jax.models.star import star
from epf_jax.models.switching_ar import switching_ar1
from epf_jax.models.volatility import stochastic_volatility

__all__ = [
    "ar1",
    "cauchy_ar1",
    "local_level",
    "local_level_variances",
    "pendulum",
    "sinusoid",
    "star",
    "stochastic_volatility",
    "switching_ar1",
]
