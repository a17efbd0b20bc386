"""Whether a series is as long as a filter needs, and no longer than it has room for."""

import warnings

import jax
from jaxtyping import Array

from epf_jax.core.checks import frames_to_user
from epf_jax.filters import Filter


def check_room(filter_: Filter, num_steps: int, before: int | Array = 0) -> None:
    """Refuse more observations than a filter that keeps them has room for."""
    if filter_.max_steps is None or isinstance(before, jax.core.Tracer) or before + num_steps <= filter_.max_steps:
        return
    raise ValueError(
        f"y: {num_steps} observations after {int(before)} earlier ones are more than the {filter_.max_steps} that this "
        f"filter has room for. Build it with max_steps={int(before) + num_steps} or more."
    )


def why_no_estimate(filter_: Filter, num_steps: int) -> str:
    """What to say of so short a series that the filter has not estimated theta, or nothing."""
    if num_steps >= filter_.waits:
        return ""
    return (
        f"y: this filter gathers {filter_.waits} observations before it estimates theta, and has seen {num_steps}: "
        "theta is still where it started. Build it with a shorter wait=..., or take a filter that gives a posterior, "
        "such as epf.extended_parameter_filter."
    )


def warn_of_no_estimate(filter_: Filter, num_steps: int, before: int | Array = 0) -> None:
    """Tell of a series that ends before the filter estimates theta for the first time."""
    if filter_.waits and not isinstance(before, jax.core.Tracer):
        told = why_no_estimate(filter_, int(before) + num_steps)
        if told:
            warnings.warn(told, RuntimeWarning, stacklevel=frames_to_user())
