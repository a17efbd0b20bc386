"""Filters: one step per observation, the same state and report for all."""

from epf_jax.filters.base import Filter, FilterState, StepInfo
from epf_jax.filters.bootstrap import bootstrap_filter
from epf_jax.filters.liu_west import coordinate_kernel, covariance_kernel, liu_west_filter
from epf_jax.filters.parameter import extended_parameter_filter, parameter_filter, storvik_filter
from epf_jax.filters.practical import practical_filter

__all__ = [
    "Filter",
    "FilterState",
    "StepInfo",
    "bootstrap_filter",
    "coordinate_kernel",
    "covariance_kernel",
    "extended_parameter_filter",
    "liu_west_filter",
    "parameter_filter",
    "practical_filter",
    "storvik_filter",
]
