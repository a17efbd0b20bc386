"""One model of the breadth table: how it is written, what its series was drawn from, how its gold is found."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import jax
import numpy as np

import epf_jax as epf

HERE = pathlib.Path(__file__).resolve().parent
SERIES, GOLDS = HERE / "series.json", HERE / "golds.json"
NUTS = ("particles", "joint_nuts")
QUADRATURE = ("particles", "quadrature")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model and its series.

    Args:
        half: "tune", whose series defaults may be tuned on, or "report".
        build: makes the model.
        num_steps: the length of the series.
        truth: the parameters that the series was drawn at; empty for real data.
        inputs: makes the inputs, `inputs(rng, num_steps)`.
        spoil: changes the series, `spoil(y)`: an outlier, missing values.
        data: the real series, in place of one that is drawn.
        opinions: the two methods whose answers have to agree.
        centred: whether NUTS moves the states themselves, or the noises that make them.
        start: makes a path x_0 .. x_T for NUTS to start at, `start(y)`; where there is none, the path without noise.
        near: `near(theta, y)`, a distribution of x_t that half of the particles come from.
        nodes: `nodes(y)`, the states x_0 .. x_T at which quadrature looks, one row for each.
        num_inner: particles of the filters that estimate likelihoods.
    """

    half: str
    build: Callable[[], epf.StateSpaceModel]
    num_steps: int
    truth: dict[str, Any] = dataclasses.field(default_factory=dict)
    inputs: Callable[[np.random.Generator, int], Any] | None = None
    spoil: Callable[[np.ndarray], np.ndarray] | None = None
    data: tuple[float, ...] | None = None
    opinions: tuple[str, str] = ("kalman", "marginal_nuts")
    centred: bool = True
    start: Callable[[np.ndarray], np.ndarray] | None = None
    near: Callable[[Any, Any], Any] | None = None
    nodes: Callable[[np.ndarray], np.ndarray] | None = None
    num_inner: int = 500


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with its stored series."""

    name: str
    entry: Entry

    @property
    def half(self) -> str:
        """Either "tune" or "report"."""
        return self.entry.half

    @cached_property
    def model(self) -> epf.StateSpaceModel:
        """The model, with a row of its inputs as an example."""
        model = self.entry.build()
        if self.inputs is None:
            return model
        return dataclasses.replace(model, row=jax.tree.map(lambda rows: rows[0], self.inputs))

    @cached_property
    def y(self) -> np.ndarray:
        """The observations; NaN is missing."""
        return np.array(stored_series()[self.name]["y"], float)

    @cached_property
    def inputs(self) -> Any:
        """One row for each observation, or None."""
        rows = stored_series()[self.name].get("inputs")
        return None if rows is None else np.array(rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parameters, in the order of `flat`."""
        return self.model.parameters.names


@lru_cache(maxsize=1)
def stored_series() -> dict[str, Any]:
    """The series of all models, as they are in the repository."""
    return json.loads(SERIES.read_text()) if SERIES.exists() else {}


@lru_cache(maxsize=1)
def golds() -> dict[str, Any]:
    """The golds in the repository, by the model's name."""
    return json.loads(GOLDS.read_text())


def flat(theta: Any) -> np.ndarray:
    """The numbers of theta, or of its mean or sd, in one row, in the order of the parameters' names."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(theta)])


def between(low: float, high: float, num: int = 300) -> Callable[[np.ndarray], np.ndarray]:
    """The same nodes for quadrature at every time."""
    return lambda y: np.broadcast_to(np.linspace(low, high, num), (len(y) + 1, num))


def with_first(path: np.ndarray) -> np.ndarray:
    """The path from x_1 on, with x_1 for x_0, too."""
    return np.concatenate([path[:1], path])
