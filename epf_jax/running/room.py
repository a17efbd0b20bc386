"""Checks that a series is neither too long nor too short for a filter."""

import warnings

import jax
from jaxtyping import Array

from epf_jax.core.checks import frames_to_user
from epf_jax.filters import Filter


def check_room(filter_: Filter, num_steps: int, before: int | Array = 0) -> None:
    """Raise if there are more observations than the filter can keep."""
    if filter_.max_steps is None or isinstance(before, jax.core.Tracer) or before + num_steps <= filter_.max_steps:
        return
    raise ValueError(
        f"y: {num_steps} observations after {int(before)} earlier ones are more than the {filter_.max_steps} that this "
        f"filter has room for. Build it with max_steps={int(before) + num_steps} or more."
    )


def why_no_estimate(filter_: Filter, num_steps: int) -> str:
    """A message if the series is too short for an estimate of theta, else an empty string."""
    if num_steps >= filter_.waits:
        return ""
    return (
        f"y: this filter gathers {filter_.waits} observations before it estimates theta, and has seen {num_steps}: "
        "theta is still where it started. Build it with a shorter wait=..., or take a filter that gives a posterior, "
        "such as epf.extended_parameter_filter."
    )


def warn_of_no_estimate(filter_: Filter, num_steps: int, before: int | Array = 0) -> None:
    """Warn if a series ends before the filter estimates theta for the first time."""
    if filter_.waits and not isinstance(before, jax.core.Tracer):
        told = why_no_estimate(filter_, int(before) + num_steps)
        if told:
            warnings.warn(told, RuntimeWarning, stacklevel=frames_to_user())
