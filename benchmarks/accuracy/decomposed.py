"""Theta taken apart (`epf.decomposed`): models with four to seven parameters, judged by NUTS, and the cost of a step.

STAR with all seven parameters unknown, a line and a sine with intercept, slope and noise scale, theta-logistic growth
with regressors on counts, and an exponential autoregression of the lynx series. NUTS moves on theta and all states,
which are centred. The last table has the time of a step by the number of linear parameters beside two nodal ones.

    python -m benchmarks.accuracy.decomposed [--only sine star] [--series 20] [--steps 500] [--particles 1000] [--store]
"""

import argparse
import pathlib
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.accuracy.judge import NUM_SERIES, Exam
from benchmarks.breadth.nuts import WARM_UP, Density, sampler, starts
from benchmarks.report import save, show
from epf_jax.core.densities import log_prob, observed_log_prob
from epf_jax.models.state_space import input_rows

NUM_STEPS, DRAWS, PARTICLES = 500, 1000, 1000
LYNX = pathlib.Path(__file__).parents[2] / "notebooks" / "data" / "lynx.csv"
BARS = {"star": {"z rms": 0.2, "sdr": 0.1}, "sine": {"z rms": 0.1}, "growth": {"z rms": 0.3}, "lynx": {"z max": 0.3}}


def star() -> epf.StateSpaceModel:
    """The paper's third example with every parameter unknown."""

    def transition(theta, x, u):
        G = jax.nn.sigmoid(theta["gamma"] * (x - theta["c"]))
        low, high = theta["low"] + theta["low_memory"] * x, theta["high"] + theta["high_memory"] * x
        return dist.Normal((1 - G) * low + G * high, theta["noise"])

    return epf.StateSpaceModel(
        prior={
            "low": dist.Normal(0.0, 0.5),
            "low_memory": dist.Normal(0.5, 0.5),
            "high": dist.Normal(0.0, 0.5),
            "high_memory": dist.Normal(0.5, 0.5),
            "gamma": dist.LogNormal(0.5, 0.5),
            "c": dist.Normal(1.0, 1.0),
            "noise": dist.LogNormal(0.0, 0.5),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, 0.1),
    )


def sine() -> epf.StateSpaceModel:
    """The paper's first example with an intercept, a slope and a noise scale."""
    return epf.StateSpaceModel(
        prior={
            "a": dist.Normal(0.0, 1.0),
            "b": dist.Normal(0.0, 0.5),
            "noise": dist.LogNormal(0.0, 0.5),
            "theta": dist.Normal(0.0, 0.5),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(
            theta["a"] + theta["b"] * x + jnp.sin(theta["theta"] * x), theta["noise"]
        ),
        observation=lambda theta, x, u: dist.Normal(x, 0.1),
    )


def growth() -> epf.StateSpaceModel:
    """Theta-logistic growth of a log-population, moved by a season, seen as counts."""

    def transition(theta, x, u):
        season = theta["cosine"] * jnp.cos(0.5 * u) + theta["sine"] * jnp.sin(0.5 * u)
        return dist.Normal(x + season - theta["growth"] * jnp.expm1(theta["rate"] * x), theta["noise"])

    return epf.StateSpaceModel(
        prior={
            "growth": dist.Normal(0.3, 0.2),
            "cosine": dist.Normal(0.0, 0.2),
            "sine": dist.Normal(0.0, 0.2),
            "rate": dist.LogNormal(0.0, 0.3),
            "noise": dist.LogNormal(-1.5, 0.5),
        },
        initial=lambda theta: dist.Normal(-1.0, 0.5),
        transition=transition,
        observation=lambda theta, x, u: dist.Poisson(jnp.exp(4.0 + x)),
    )


def exponential_autoregression() -> epf.StateSpaceModel:
    """Two lags whose coefficients fade with the size of the older one, of log10 of a trapped series."""

    def transition(theta, x, u):
        now, before = x
        fade = jnp.exp(-theta["gamma"] * before**2)
        mean = theta["level"] + (theta["now"] + theta["now_small"] * fade) * now
        mean += (theta["before"] + theta["before_small"] * fade) * before
        return dist.Normal(jnp.stack([mean, now]), jnp.stack([theta["noise"], jnp.full_like(mean, 0.01)])).to_event(1)

    priors = {name: dist.Normal(0.0, 1.0) for name in ("now", "before", "now_small", "before_small", "level")}
    return epf.StateSpaceModel(
        prior=priors | {"gamma": dist.LogNormal(0.5, 0.7), "noise": dist.LogNormal(-1.6, 0.5)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 0.5).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], 0.05),
    )


TRUTHS = {
    "star": {"low": 0.0, "low_memory": 0.9, "high": 0.5, "high_memory": 0.1, "gamma": 2.0, "c": 1.0, "noise": 1.0},
    "sine": {"a": 0.3, "b": 0.4, "noise": 1.0, "theta": 0.7},
    "growth": {"growth": 0.3, "cosine": 0.1, "sine": -0.1, "rate": 1.0, "noise": 0.2},
}
MODELS = {"star": star, "sine": sine, "growth": growth}


class Found(NamedTuple):
    """Posterior means and sds of theta, arrays of one number each, as oracles have them for every t."""

    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]


def nuts(model: epf.StateSpaceModel, y, states, draws: int = DRAWS) -> Found:
    """By NUTS on theta and all states, which start at `states`."""
    coordinates, rows = model.parameters, input_rows(None, len(y))

    def potential(at):
        theta, x = coordinates.to_theta(at["z"]), at["x"]
        moves = jax.vmap(lambda x_prev, x, u: log_prob(model.transition(theta, x_prev, u), x))(x[:-1], x[1:], rows)
        seen = jax.vmap(lambda x, y, u: observed_log_prob(model.observation(theta, x, u), y))(x[1:], y, rows)
        first = log_prob(model.initial(theta), x[0])
        return -(coordinates.log_prior(at["z"]) + first + jnp.sum(moves) + jnp.sum(seen))

    density = Density(potential, {"z": np.asarray(coordinates.centre, float), "x": np.asarray(states, float)})
    mcmc = sampler(density, 0, WARM_UP, draws)
    mcmc.run(jax.random.key(0), init_params=starts(density, 0))
    theta = jax.vmap(coordinates.to_theta)(mcmc.get_samples()["z"])
    return Found(*({k: np.atleast_1d(of(np.asarray(v))) for k, v in theta.items()} for of in (np.mean, np.std)))


def from_y(y):
    """States that the observations suggest."""
    return np.concatenate([y[:1], y])


def from_counts(y):
    """The same, of counts."""
    return np.log(from_y(y) + 0.5) - 4.0


def judged(name: str, num_series: int, num_steps: int, num_particles: int) -> list[dict]:
    """The rows of one simulated model."""
    states = from_counts if name == "growth" else from_y
    exam = Exam(name, MODELS[name], TRUTHS[name], lambda model, y: nuts(model, y, states(y)), num_series, num_steps)
    exam.judge("EPF (default)", lambda model: epf.extended_parameter_filter(model, num_particles), bars=BARS[name])
    return [{"model": name, **row} for row in exam.rows]


def of_lynx(num_particles: int) -> list[dict]:
    """The rows of the lynx series."""
    table = np.genfromtxt(LYNX, delimiter=",", comments="#", names=True, skip_header=3)
    y = np.log10(table["lynx"]) - 2.9
    with jax.enable_x64(True):
        model = exponential_autoregression()
        before = np.concatenate([y[:1], y[:-1]])
        gold = nuts(model, jnp.asarray(y), from_y(np.stack([y, before], axis=1)))
    model = exponential_autoregression()
    results = epf.run(jax.random.key(7), epf.extended_parameter_filter(model, num_particles), jnp.asarray(y, float))
    rows = []
    for name, (mean,) in gold.mean.items():
        sd = float(gold.sd[name][0])
        z = (float(results.theta.mean[name][-1]) - float(mean)) / sd
        rows.append({"model": "lynx", "parameter": name, "z": z, "sdr": float(results.theta.sd[name][-1]) / sd})
    show("exponential autoregression of log10 lynx less 2.9, against NUTS", rows)
    return rows


def costs(num_particles: int, linear=(0, 1, 2, 4, 6, 8), num_steps: int = 100) -> list[dict]:
    """Microseconds of a step with two nodal parameters, by the number of linear ones; least of three runs."""
    rows = []
    for k in linear:
        model = with_linear(k)
        y = epf.simulate(jax.random.key(0), model, model.parameters.to_theta(model.parameters.centre), num_steps)[1]
        filter_ = epf.extended_parameter_filter(model, num_particles)
        seconds = []
        for key in jax.random.split(jax.random.key(1), 4):
            start = time.perf_counter()
            jax.block_until_ready(epf.run(key, filter_, y).log_evidence)
            seconds.append(time.perf_counter() - start)
        rows.append({"linear": k, "statistic": filter_.statistic.name, "us a step": 1e6 * min(seconds[1:]) / num_steps})
    show(f"cost of a step, {num_particles} particles", rows)
    return rows


def with_linear(k: int) -> epf.StateSpaceModel:
    """A logistic transition of two parameters, beside k coefficients of waves in time."""

    def transition(theta, x, u):
        G = jax.nn.sigmoid(theta["gamma"] * (x - theta["c"]))
        waves = sum(theta[f"b{i}"] * jnp.cos(0.1 * (i + 1) * u) for i in range(k))
        return dist.Normal((0.9 - 0.8 * G) * x + waves, 1.0)

    return epf.StateSpaceModel(
        prior={f"b{i}": dist.Normal(0.0, 0.5) for i in range(k)}
        | {"gamma": dist.LogNormal(0.5, 0.5), "c": dist.Normal(1.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, 0.1),
    )


def main(
    only=("sine", "star", "growth", "lynx", "cost"),
    num_series: int = NUM_SERIES,
    num_steps: int = NUM_STEPS,
    num_particles: int = PARTICLES,
    *,
    store: bool = False,
) -> list[dict]:
    """A row for every parameter of every model, and for every number of linear parameters."""
    rows = []
    for name in only:
        if name == "lynx":
            rows += of_lynx(num_particles)
        elif name == "cost":
            rows += costs(num_particles)
        else:
            rows += judged(name, num_series, num_steps, num_particles)
        jax.clear_caches()
    if store:
        settings = {"series": num_series, "steps": num_steps, "particles": num_particles, "truths": TRUTHS}
        print("stored in", save("accuracy_decomposed", settings, rows))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=("sine", "star", "growth", "lynx", "cost"))
    parser.add_argument("--series", type=int, default=NUM_SERIES)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--particles", type=int, default=PARTICLES)
    parser.add_argument("--store", action="store_true")
    given = parser.parse_args()
    main(given.only, given.series, given.steps, given.particles, store=given.store)
