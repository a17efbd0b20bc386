"""The method names of the command line, and the filters that they stand for."""

from collections.abc import Callable
from typing import NamedTuple

from epf_jax.filters import (
    Filter,
    bootstrap_filter,
    extended_parameter_filter,
    kalman,
    liu_west_filter,
    node_filter,
    online_em,
    particle_learning_filter,
    practical_filter,
    resample_move_filter,
    smc2_filter,
    storvik_filter,
)
from epf_jax.learning.routes import streaming_filter
from epf_jax.models.state_space import StateSpaceModel


class Method(NamedTuple):
    """A method of the command line.

    Attributes:
        build: builds the filter from a model and a number of particles.
        num_particles: the default number of particles; None where the filter has its own.
        remembers: whether it remembers the whole series.
        caution: what is wrong with its posterior by design, or "".
    """

    build: Callable[..., Filter]
    num_particles: int | None = 1000
    remembers: bool = False
    caution: str = ""


def ibis(model: StateSpaceModel, num_particles: int, *, max_steps: int) -> Filter:
    """SMC^2 with Kalman filters inside."""
    return smc2_filter(model, num_particles, max_steps=max_steps, inner=kalman(model))


METHODS = {
    "epf": Method(extended_parameter_filter),
    "storvik": Method(storvik_filter),
    "node": Method(node_filter, None),
    "particle-learning": Method(particle_learning_filter),
    "practical": Method(practical_filter, 100, caution="it is too wide where noise variances are learned"),
    "resample-move": Method(resample_move_filter, remembers=True),
    "smc2": Method(smc2_filter, 256, remembers=True),
    "ibis": Method(ibis, remembers=True),
    "window": Method(streaming_filter, None),
    "liu-west": Method(liu_west_filter, caution="its posterior is biased, and too narrow after long series"),
    "sir": Method(bootstrap_filter, caution="it never redraws theta, and ends with a few values of it"),
    "online-em": Method(online_em, 200, caution="it has a point estimate, and no posterior"),
}
FOR_STREAMS = "window"  # what `epf.learn(..., streaming=True)` takes


def in_words() -> str:
    """All method names, with commas."""
    return ", ".join(METHODS)


def check_method(name: str, option: str = "--method") -> None:
    """Raise if no method has this name."""
    if name not in METHODS:
        raise ValueError(
            f"{option}: there is no {name!r}; choose one of {in_words()}, or build a filter with your own options in "
            "the model's file and name it there, model.py:my_filter."
        )


def filter_of(name: str, model: StateSpaceModel, num_particles: int | None, room: int | None = None) -> Filter:
    """The named filter for a model; `room` is the number of observations that it can remember."""
    check_method(name)
    method = METHODS[name]
    options = {}
    if method.remembers:
        if room is None:
            raise ValueError(
                f"--method: {name} remembers every observation, and a stream has no end. Choose another, or build the "
                "filter with max_steps=... in the model's file and name it there, model.py:my_filter."
            )
        options["max_steps"] = room
    num_particles = method.num_particles if num_particles is None else num_particles
    return method.build(model, *(() if num_particles is None else (num_particles,)), **options)
