"""The methods that the command line knows by name: the one place where a name becomes a filter."""

from collections.abc import Callable

from epf_jax.filters import Filter, bootstrap_filter, extended_parameter_filter, liu_west_filter, storvik_filter
from epf_jax.model import StateSpaceModel

METHODS: dict[str, Callable[[StateSpaceModel, int], Filter]] = {
    "epf": extended_parameter_filter,
    "storvik": storvik_filter,
    "liu-west": liu_west_filter,
    "sir": bootstrap_filter,
}
DEFAULT_METHOD = "epf"
DEFAULT_PARTICLES = 1000


def in_words() -> str:
    """The names that there are."""
    return ", ".join(METHODS)


def filter_of(name: str, model: StateSpaceModel, num_particles: int | None) -> Filter:
    """The named method for a model, or an error that lists the names that there are."""
    if name not in METHODS:
        raise ValueError(
            f"--method: there is no {name!r}; choose one of {in_words()}, or build a filter with your own options in "
            "the model's file and name it there, model.py:my_filter."
        )
    return METHODS[name](model, DEFAULT_PARTICLES if num_particles is None else num_particles)
