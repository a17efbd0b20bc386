"""Filters, one algorithm a file. All have the same form of state and of step report."""

from epf_jax.filters.bootstrap import bootstrap_filter
from epf_jax.filters.extended_parameter import (
    extended_parameter_filter,
    parameter_filter,
    particle_learning_filter,
    storvik_filter,
)
from epf_jax.filters.filter import Filter
from epf_jax.filters.known_theta import KnownTheta, kalman, sigma_points
from epf_jax.filters.liu_west import coordinate_kernel, covariance_kernel, liu_west_filter
from epf_jax.filters.node_filter import node_filter
from epf_jax.filters.online_em import online_em
from epf_jax.filters.practical import practical_filter
from epf_jax.filters.resample_move import resample_move_filter
from epf_jax.filters.smc2 import smc2_filter
from epf_jax.filters.state import FilterState, StepInfo

__all__ = [
    "Filter",
    "FilterState",
    "KnownTheta",
    "StepInfo",
    "bootstrap_filter",
    "coordinate_kernel",
    "covariance_kernel",
    "extended_parameter_filter",
    "kalman",
    "liu_west_filter",
    "node_filter",
    "online_em",
    "parameter_filter",
    "particle_learning_filter",
    "practical_filter",
    "resample_move_filter",
    "sigma_points",
    "smc2_filter",
    "storvik_filter",
]
