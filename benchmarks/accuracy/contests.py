"""What the league's methods contend on: six models, their data, and the exact posterior of each series."""

import pathlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.accuracy import sinusoid, star
from benchmarks.report import RESULTS
from epf_jax import exact
from epf_jax.apps.reproduce.cases import CAUCHY, solve
from epf_jax.apps.reproduce.on_cauchy import near_or_far

DATA_SEED = 123


class Contest(NamedTuple):
    """A model with its data and its gold: `gold(model, y)` gives the exact posterior on a grid, in double precision.

    `proposal(model)` is what every method that takes a proposal is given: None, for its own choice, but for Cauchy.
    """

    model: Callable[[], epf.StateSpaceModel]
    truth: dict[str, float]
    num_steps: int
    gold: Callable[[epf.StateSpaceModel, Any], exact.GridPosterior]
    proposal: Callable[[epf.StateSpaceModel], epf.Proposal | None] = lambda model: None


def cycle() -> epf.StateSpaceModel:
    """A damped oscillation, seen from one side: the state has two dimensions, and theta turns and shrinks it."""

    def transition(theta, x, u):
        c, s = jnp.cos(theta["frequency"]), jnp.sin(theta["frequency"])
        turned = jnp.stack([c * x[0] - s * x[1], s * x[0] + c * x[1]])
        return dist.Normal(theta["damping"] * turned, 0.5).to_event(1)

    return epf.StateSpaceModel(
        prior={"damping": dist.Beta(8.0, 2.0), "frequency": dist.LogNormal(-0.7, 0.4)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], 0.5),
    )


def volatility_log_evidence(theta: dict[str, Any], y: Any) -> Any:
    """Log p(y_1:t | theta) of `epf.models.stochastic_volatility` by quadrature, its kernel computed once for all t."""
    x = jnp.linspace(-4.5, 4.5, 141)  # 0.064 apart: 0.7 of the state's noise down to a variance of 0.0085
    model = epf.models.stochastic_volatility()
    kernel = jnp.exp(jax.vmap(lambda x_prev: model.transition(theta, x_prev, None).log_prob(x))(x)) * (x[1] - x[0])
    p = jnp.exp(model.initial(theta).log_prob(x)) * (x[1] - x[0])

    def step(carry, y):
        p, total = carry
        p = (p @ kernel) * jnp.exp(model.observation(theta, x, None).log_prob(y))
        total = total + jnp.log(p.sum())
        return (p / p.sum(), total), total

    return jax.lax.scan(step, (p, jnp.zeros(())), y)[1]


def volatility_gold(model: epf.StateSpaceModel, y: Any) -> exact.GridPosterior:
    """On a coarse grid first, then on one that follows the posterior."""
    coarse = {
        "level": np.linspace(-2.0, 2.0, 15), "persistence": np.linspace(0.5, 0.999, 17),
        "variance": np.geomspace(0.006, 0.5, 15),
    }  # fmt: skip
    found = exact.posterior(model, coarse, volatility_log_evidence, y)
    mean, sd = (jax.tree.map(lambda a: float(a[-1]), part) for part in (found.mean, found.sd))
    low, high = 0.2 * mean["variance"], mean["variance"] + 8.0 * sd["variance"]
    fine = {
        "level": np.linspace(mean["level"] - 6.0 * sd["level"], mean["level"] + 6.0 * sd["level"], 17),
        "persistence": np.linspace(mean["persistence"] - 7.0 * sd["persistence"], 0.9995, 25),
        "variance": np.geomspace(max(low, 0.006), high, 21),
    }
    return exact.posterior(model, fine, volatility_log_evidence, y)


def kalman_gold(axes: dict[str, Any], model: epf.StateSpaceModel, y: Any) -> exact.GridPosterior:
    """On a coarse grid, then around what it finds."""
    found = exact.kalman(model, y, axes)
    fine = exact.axes_around(found, num=33)
    inside = {name: np.clip(fine[name], axes[name][0], axes[name][-1]) for name in axes}
    return exact.kalman(model, y, {name: np.unique(axis) for name, axis in inside.items()})


CONTESTS = {
    "sin": Contest(epf.models.sinusoid, {"theta": 0.7}, 1000, sinusoid.posterior),
    "cauchy": Contest(
        epf.models.cauchy_ar1,
        {"a": 0.7},
        1000,
        lambda model, y: solve(CAUCHY, y),
        lambda model: epf.guided(near_or_far),
    ),
    "star": Contest(epf.models.star, {"gamma": 1.0, "c": 3.0}, 1000, star.posterior),
    "ar1": Contest(epf.models.ar1, {"phi": 0.7}, 1000, partial(kalman_gold, {"phi": np.linspace(-1.0, 1.2, 111)})),
    "volatility": Contest(
        epf.models.stochastic_volatility, {"level": 0.0, "persistence": 0.95, "variance": 0.05}, 300, volatility_gold
    ),
    "cycle": Contest(
        cycle,
        {"damping": 0.9, "frequency": 0.5},
        300,
        partial(kalman_gold, {"damping": np.linspace(0.3, 0.995, 51), "frequency": np.linspace(0.1, 1.2, 51)}),
    ),
}


@cache
def data(name: str, num_series: int) -> tuple[np.ndarray, list[exact.GridPosterior]]:
    """The series, and the exact posterior of each at the last observation; golds are kept in a file."""
    y = all_series(name, num_series)
    return y, [_gold(name, i, row) for i, row in enumerate(y)]


@cache
def all_series(name: str, num_series: int) -> np.ndarray:
    """The series of a contest, a row each."""
    return np.stack([_series(name, i) for i in range(num_series)])


def _series(name: str, i: int) -> np.ndarray:
    contest = CONTESTS[name]
    with jax.enable_x64(True), on_the_cpu():
        key = jax.random.fold_in(jax.random.key(DATA_SEED), i)
        return np.asarray(epf.simulate(key, model_of(name, double=True), contest.truth, contest.num_steps)[1])


@cache
def model_of(name: str, *, double: bool = False) -> epf.StateSpaceModel:
    """The model of a contest, made once; what a method is given it makes itself, on its device."""
    with jax.enable_x64(double), on_the_cpu():
        return CONTESTS[name].model()


def on_the_cpu() -> AbstractContextManager:
    """A context for what must be the same whatever the methods run on; JAX_PLATFORMS has to leave the CPU in."""
    return jax.default_device(jax.local_devices(backend="cpu")[0])


def gold_path(name: str, i: int) -> pathlib.Path:
    """Where the exact posterior of one series is kept."""
    return RESULTS / "golds" / f"{name}-{i}.npz"


def _gold(name: str, i: int, y: np.ndarray) -> exact.GridPosterior:
    path, contest = gold_path(name, i), CONTESTS[name]
    if not path.exists():
        with jax.enable_x64(True), on_the_cpu():
            found = contest.gold(model_of(name, double=True), jnp.asarray(y))
        path.parent.mkdir(exist_ok=True)
        axes = {f"axis_{k}": np.asarray(v) for k, v in found.axes.items()}
        np.savez(path, log_density=found.log_density[-1:], log_evidence=found.log_evidence[-1:], **axes)
    with np.load(path) as kept:
        axes = {k: kept[f"axis_{k}"] for k in sorted(contest.truth)}
        return exact.GridPosterior(axes, kept["log_density"], kept["log_evidence"])


def find_gold(task: tuple[str, int]) -> None:
    """One gold, for the pool."""
    name, i = task
    _gold(name, i, _series(name, i))


def mass_inside(gold: exact.GridPosterior, name: str, interval: Any) -> float:
    """The exact posterior's mass in an interval of one parameter."""
    axis, density = gold.axes[name], gold.marginal()[name][-1]
    cdf = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(axis))])
    low, high = np.interp(np.asarray(interval), axis, cdf / cdf[-1])
    return float(high - low)
