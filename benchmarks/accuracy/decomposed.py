"""Theta taken apart (`epf.decomposed`): models with four to seven parameters, judged by NUTS, and the cost of a step.

STAR with all seven parameters unknown, a line and a sine with intercept, slope and noise scale, theta-logistic growth
with regressors on counts, and an exponential autoregression of the lynx series. NUTS moves on theta and all states,
which are centred. Then the density of a known path against the exact one, a linear model against `conjugate`, and last,
by itself, the time of a step by the number of linear parameters beside two nodal ones.

    python -m benchmarks.accuracy.decomposed [--only sine star] [--series 20] [--steps 500] [--particles 1000]
                                             [--workers 16] [--store]
"""

import argparse
import os
import pathlib
import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import epf_jax as epf
from benchmarks.accuracy.judge import DATA_SEED, FILTER_SEED, NUM_SERIES, meets
from benchmarks.breadth.nuts import Density, sampler, starts
from benchmarks.pool import solve_all
from benchmarks.report import save, show
from epf_jax import exact
from epf_jax.core.densities import log_prob, observed_log_prob
from epf_jax.models.partly_linear import (
    exponential_autoregression,
    seasonal_growth,
    sine_and_line,
    smooth_transition,
    waves_and_sigmoid,
)
from epf_jax.models.state_space import input_rows

NUM_STEPS, PARTICLES = 500, 1000
WARM_UP, DRAWS = 500, 750  # of each of NUTS's four chains
LYNX = pathlib.Path(__file__).parents[2] / "notebooks" / "data" / "lynx.csv"
NUM_LINEAR = (0, 1, 2, 4, 6, 8)
_CHAINS, _TURNS = 200, 40  # draws of theta given a known path, and steps that each is from the truth


class Simulated(NamedTuple):
    """A model, what its series are simulated at, states that observations suggest, and its bars."""

    model: Callable[[], epf.StateSpaceModel]
    truth: dict[str, float]
    states: Callable[[np.ndarray], np.ndarray]
    bars: dict[str, float]


def from_y(y):
    """States that the observations suggest."""
    return np.concatenate([y[:1], y])


def from_counts(y):
    """The same, of counts."""
    return np.log(from_y(y) + 0.5) - 4.0


SIMULATED = {
    "star": Simulated(
        smooth_transition,
        {"low": 0.0, "low_memory": 0.9, "high": 0.5, "high_memory": 0.1, "gamma": 2.0, "c": 1.0, "noise": 1.0},
        from_y,
        {"z rms": 0.2, "sdr": 0.1},
    ),
    "sine": Simulated(sine_and_line, {"a": 0.3, "b": 0.4, "s": 1.0, "theta": 0.7}, from_y, {"z rms": 0.1}),
    "growth": Simulated(
        seasonal_growth,
        {"growth": 0.3, "cosine": 0.1, "sine": -0.1, "rate": 1.0, "noise": 0.2},
        from_counts,
        {"z rms": 0.3},
    ),
}


class Task(NamedTuple):
    """One piece of work, of so many steps and particles: a series of a model, or what else `ALONE` names."""

    name: str
    series: int
    num_steps: int
    num_particles: int


def solve(task: Task) -> list[dict[str, Any]]:
    """The rows of one piece of work."""
    return ALONE[task.name](task) if task.name in ALONE else of_series(task)


def nuts(model: epf.StateSpaceModel, y, states) -> tuple[dict, dict]:
    """Posterior means and sds of theta by NUTS on theta and all states, which start at `states`."""
    coordinates, rows = model.parameters, input_rows(None, len(y))

    def potential(at):
        theta, x = coordinates.to_theta(at["z"]), at["x"]
        moves = jax.vmap(lambda x_prev, x, u: log_prob(model.transition(theta, x_prev, u), x))(x[:-1], x[1:], rows)
        seen = jax.vmap(lambda x, y, u: observed_log_prob(model.observation(theta, x, u), y))(x[1:], y, rows)
        first = log_prob(model.initial(theta), x[0])
        return -(coordinates.log_prior(at["z"]) + first + jnp.sum(moves) + jnp.sum(seen))

    density = Density(potential, {"z": np.asarray(coordinates.centre, float), "x": np.asarray(states, float)})
    mcmc = sampler(density, 0, WARM_UP, DRAWS)
    mcmc.run(jax.random.key(0), init_params=starts(density, 0))
    theta = jax.vmap(coordinates.to_theta)(mcmc.get_samples()["z"])
    mean, sd = ({name: float(of(np.asarray(v))) for name, v in theta.items()} for of in (np.mean, np.std))
    return mean, sd


@cache
def default_filter(name: str, num_particles: int) -> epf.Filter:
    """The default filter of a model: one object, so that a process compiles it once."""
    return epf.extended_parameter_filter(SIMULATED[name].model(), num_particles)


def of_series(task: Task) -> list[dict[str, Any]]:
    """The errors of each parameter's mean and sd for one simulated series."""
    case = SIMULATED[task.name]
    with jax.enable_x64(True):
        model = case.model()
        y = epf.simulate(jax.random.fold_in(jax.random.key(DATA_SEED), task.series), model, case.truth, task.num_steps)[
            1
        ]
        y = np.asarray(y)
        gold = nuts(model, jnp.asarray(y), case.states(y))
    key = jax.random.fold_in(jax.random.key(FILTER_SEED), task.series)
    return errors(task.name, gold, key, default_filter(task.name, task.num_particles), y)


def errors(name: str, gold: tuple[dict, dict], key: Any, filter_: epf.Filter, y: Any) -> list[dict[str, Any]]:
    """A filter's last means and sds against the gold's."""
    start = time.perf_counter()
    theta = epf.run(key, filter_, jnp.asarray(y, float), levels=()).theta
    mean, sd = ({k: float(v[-1]) for k, v in part.items()} for part in (theta.mean, theta.sd))
    seconds = time.perf_counter() - start
    return [
        {"model": name, "parameter": k, "z": (mean[k] - m) / s, "sdr": sd[k] / s, "seconds": seconds}
        for k, m, s in ((k, m, gold[1][k]) for k, m in gold[0].items())
    ]


def of_lynx(task: Task) -> list[dict[str, Any]]:
    """The errors for the lynx series."""
    table = np.genfromtxt(LYNX, delimiter=",", comments="#", names=True, skip_header=3)
    y = np.log10(table["lynx"]) - 2.9
    with jax.enable_x64(True):
        before = np.concatenate([y[:1], y[:-1]])
        gold = nuts(exponential_autoregression(), jnp.asarray(y), from_y(np.stack([y, before], axis=1)))
    filter_ = epf.extended_parameter_filter(exponential_autoregression(), task.num_particles)
    rows = errors("lynx", gold, jax.random.key(FILTER_SEED), filter_, y)
    return [{**row, "bar": "z max 0.3", "met": abs(row["z"]) <= 0.3} for row in rows]


def of_known_paths(task: Task) -> list[dict[str, Any]]:
    """How far log p(theta | path) is off where theta is, for a path that the box has followed, in float64."""
    return [{**_of_known_path(name, task.num_steps), "bar": "rms 1e-3"} for name in SIMULATED]


def _of_known_path(name: str, num_steps: int) -> dict[str, Any]:
    with jax.enable_x64(True):
        case = SIMULATED[name]
        model, key_path, key_draw = case.model(), *jax.random.split(jax.random.key(DATA_SEED))
        x, y = epf.simulate(key_path, model, case.truth, num_steps)
        statistic = epf.decomposed(model)
        S = followed(statistic, x, y)
        thetas = draws_given(statistic, S, key_draw, case.truth)
        approximate = jax.vmap(lambda theta: statistic.log_density(S, theta))(thetas)
        coordinates = model.parameters

        def log_density(theta):
            z = coordinates.to_vector(theta)
            log_prior = coordinates.log_prior(z) - coordinates.log_jacobian(z)
            return log_prior + exact.path_log_likelihood(model, theta, x)[-1]

        off = np.array(jax.lax.map(log_density, thetas) - approximate)
    off -= off.mean()
    rms = float(off.std())
    return {
        "model": name, "of a known path": statistic.name, "rms": rms, "max": float(np.abs(off).max()),
        "KL": float(np.log(np.mean(np.exp(off)))), "met": rms <= 1e-3,
    }  # fmt: skip


def followed(statistic: epf.Statistic, x: Any, y: Any) -> Any:
    """The statistic of a path, alone in its cloud, so that the box follows it."""
    once = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)  # noqa: E731
    assert statistic.model is not None
    assert statistic.update_all is not None
    coordinates, update_all = statistic.model.parameters, statistic.update_all
    theta = once(coordinates.to_theta(coordinates.centre))

    def step(carry, row):
        S, theta = carry
        x_prev, x, y, t, key = row
        key_update, key_draw = jax.random.split(key)
        S = update_all(key_update, S, theta, once(x_prev), once(x), y, t, jnp.zeros(1), t)
        assert statistic.sample_all is not None
        return (S, statistic.sample_all(key_draw, S, theta, None)[0]), None

    times, keys = jnp.arange(1, len(y) + 1), jax.random.split(jax.random.key(FILTER_SEED), len(y))
    run = jax.jit(lambda S, theta, rows: jax.lax.scan(step, (S, theta), rows)[0][0])
    return jax.tree.map(lambda leaf: leaf[0], run(once(statistic.init(x[0])), theta, (x[:-1], x[1:], y, times, keys)))


def draws_given(statistic: epf.Statistic, S: Any, key: Any, start: Any) -> Any:
    """Draws of theta from a statistic, each by a chain of its own."""
    assert statistic.sample_all is not None
    sample_all = statistic.sample_all
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (_CHAINS, *leaf.shape)), S)
    theta = jax.tree.map(lambda leaf: jnp.full(_CHAINS, leaf), start)
    turn = jax.jit(lambda theta, key: (sample_all(key, many, theta, None)[0], None))
    return jax.lax.scan(turn, theta, jax.random.split(key, _TURNS))[0]


def of_linear(task: Task) -> list[dict[str, Any]]:
    """The largest difference between `decomposed` and `conjugate` on a linear model, in sds, from one key."""
    rows = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            model = epf.models.ar1()
            y = epf.simulate(jax.random.key(DATA_SEED), model, {"phi": 0.7}, task.num_steps)[1]
            filters = (
                epf.extended_parameter_filter(model, task.num_particles, statistic=build(model))
                for build in (epf.conjugate, epf.decomposed)
            )
            ours, theirs = (epf.run(jax.random.key(FILTER_SEED), filter_, y, levels=()).theta for filter_ in filters)
            off = float(jnp.max(jnp.abs(ours.mean["phi"] - theirs.mean["phi"]) / theirs.sd["phi"]))
        precision = "float64" if x64 else "float32"
        rows.append({"model": "linear", "precision": precision, "off": off, "bar": "1e-5", "met": off <= 1e-5})
    return rows


def of_costs(task: Task) -> list[dict[str, Any]]:
    """Microseconds of a step with two nodal parameters, by the number of linear ones; least of three runs."""
    rows = []
    for k in NUM_LINEAR:
        model, num_steps = waves_and_sigmoid(k), min(task.num_steps, 100)
        y = epf.simulate(jax.random.key(0), model, model.parameters.to_theta(model.parameters.centre), num_steps)[1]
        filter_ = epf.extended_parameter_filter(model, task.num_particles)
        seconds = []
        for key in jax.random.split(jax.random.key(1), 4):
            start = time.perf_counter()
            jax.block_until_ready(epf.run(key, filter_, y).log_evidence)
            seconds.append(time.perf_counter() - start)
        us = 1e6 * min(seconds[1:]) / num_steps
        ratio = us / rows[0]["us a step"] if rows else 1.0
        rows.append({"linear": k, "statistic": filter_.statistic.name, "us a step": us, "times k = 0": ratio})
    return rows


ALONE = {"lynx": of_lynx, "paths": of_known_paths, "linear": of_linear, "cost": of_costs}


def judged(name: str, errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each parameter of a simulated model, from its errors for all series."""
    rows = []
    for parameter in SIMULATED[name].truth:
        own = [error for error in errors if error["parameter"] == parameter]
        z = np.array([error["z"] for error in own])
        row: dict[str, Any] = {
            "model": name, "parameter": parameter, "z rms": float(np.sqrt(np.mean(z**2))),
            "z max": float(np.max(np.abs(z))), "sdr": float(np.median([error["sdr"] for error in own])),
        }  # fmt: skip
        bars = SIMULATED[name].bars
        rows.append({**row, "bar": ", ".join(f"{k} {v}" for k, v in bars.items()), "met": meets(row, bars)})
    return rows


def main(
    only=(*SIMULATED, *ALONE),
    num_series: int = NUM_SERIES,
    num_steps: int = NUM_STEPS,
    num_particles: int = PARTICLES,
    *,
    workers: int = 1,
    store: bool = False,
) -> list[dict]:
    """A row for every parameter of every model, for each check, and for every number of linear parameters."""
    tasks = [
        Task(name, i, num_steps, num_particles)
        for name in only
        if name != "cost"  # a time is measured on a machine that does nothing else
        for i in range(num_series if name in SIMULATED else 1)
    ]
    done: dict[str, list[dict]] = {name: [] for name in only}
    for i, (task, rows) in enumerate(zip(tasks, solve_all(solve, tasks, workers), strict=True)):
        done[task.name] += rows
        print(f"\r{i + 1} of {len(tasks)}", end="", flush=True)
    if "cost" in only:
        done["cost"] = of_costs(Task("cost", 0, num_steps, num_particles))
    table = {name: judged(name, rows) if name in SIMULATED else rows for name, rows in done.items()}
    for name, rows in table.items():
        show(f"{name}: {num_particles} particles", rows)
    rows = [row for part in table.values() for row in part]
    if store:
        truths = {name: case.truth for name, case in SIMULATED.items()}
        settings = {"series": num_series, "steps": num_steps, "particles": num_particles, "truths": truths}
        print("stored in", save("accuracy_decomposed", settings, rows))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=(*SIMULATED, *ALONE), choices=(*SIMULATED, *ALONE))
    parser.add_argument("--series", type=int, default=NUM_SERIES)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--particles", type=int, default=PARTICLES)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--store", action="store_true")
    given = parser.parse_args()
    main(given.only, given.series, given.steps, given.particles, workers=given.workers, store=given.store)
