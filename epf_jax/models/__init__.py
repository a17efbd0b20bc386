"""Models ready to use, and what a model is."""

from epf_jax.models.ready_made import (
    ar1,
    cauchy_ar1,
    local_level,
    local_level_variances,
    pendulum,
    sinusoid,
    star,
    stochastic_volatility,
    switching_ar1,
)
from epf_jax.models.structural import structural

__all__ = [
    "ar1",
    "cauchy_ar1",
    "local_level",
    "local_level_variances",
    "pendulum",
    "sinusoid",
    "star",
    "stochastic_volatility",
    "structural",
    "switching_ar1",
]
