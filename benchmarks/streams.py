"""Right for ever: the filters that `learn(..., streaming=True)` takes, over long streams, against exact posteriors.

    python -m benchmarks.streams --workers 16 --store             # all, stores benchmarks/results/streams.json
    python -m benchmarks.streams --only level --num-series 1      # a look at one
    python -m benchmarks.streams --longest 1000                   # a look at all

After t observations the means and standard deviations of theta are compared with exact ones: of a linear model by
Kalman's likelihoods on a grid of theta that is fitted to the posterior, of stochastic volatility by importance sampling
with likelihoods by quadrature over the state. A row is a series with a key of its own, on a core of its own.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.stats import multivariate_t

from benchmarks.pool import solve_all
from benchmarks.report import save, show
from epf_jax import models, run, simulate
from epf_jax.core.importance import temperature
from epf_jax.learning.routes import streaming_filter

CHUNK = 1000
TIMES = (1_000, 10_000, 100_000)
WRONG, TOLD = 0.5, 0.2  # a mean off by more sds than the first is wrong, and told of by an error above the second
_PERSISTENCE = dist.TransformedDistribution(dist.Beta(20.0, 1.5), dist.transforms.AffineTransform(-1.0, 2.0))
VOLATILITY_PRIOR = {"persistence": _PERSISTENCE}


class Stream(NamedTuple):
    """A model, the theta that its series are simulated with, and what its posterior is known by.

    Attributes:
        model: the model.
        truth: theta.
        gold: `gold(model, y)`, exact means and standard deviations of theta's numbers in a row.
        times: when the filter is judged.
        outlier: what is added to every thousandth observation.
        num_series: how many are measured.
    """

    model: Callable
    truth: dict
    gold: Callable
    times: tuple[int, ...] = TIMES
    outlier: float = 0.0
    num_series: int = 3


def on_a_grid(linear: Callable) -> Callable:
    """Exact moments of theta by Kalman's filter on a grid, whose box is fitted to the posterior in several rounds.

    `linear(theta)` is (a, q, r) of x' = a x + N(0, q^2), y = x + N(0, r^2). The first rounds look at the beginning of
    the series, because a wide grid would miss a narrow posterior.
    """

    def gold(model, y):
        centre, half = np.asarray(model.parameters.centre, float), 3.0 * np.asarray(model.parameters.scale, float)
        lengths = [min(length, len(y)) for length in (200, 4_000, len(y))]
        for length in np.repeat(lengths, 3):
            z, rows = _grid(model, centre, half)
            log_p = np.asarray(jax.vmap(model.parameters.log_prior)(jnp.asarray(z)), float)
            w = _weights(log_p + _kalman(*linear(_theta_of(model, z)), y[:length]))
            last, (centre, sd) = half, _moments(z, w)
            half = np.maximum(5.0 * sd, 3.0 * last / rows)
        return _moments(_numbers(model, z), w)

    return gold


def _grid(model, centre, half):
    """Points of a grid over a box, and how many there are along each coordinate."""
    num = 301 if len(centre) == 1 else 31
    axes = [np.linspace(c - h, c + h, num) for c, h in zip(centre, half, strict=True)]
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1), num


def _theta_of(model, z):
    return {name: np.asarray(v, float) for name, v in jax.vmap(model.parameters.to_theta)(jnp.asarray(z)).items()}


def _numbers(model, z):
    """Theta's numbers, a row for each z."""
    theta = _theta_of(model, z)
    return np.stack([theta[name] for name in model.prior], axis=1)


def _weights(log_p):
    w = np.exp(log_p - log_p.max())
    return w / w.sum()


def _moments(rows, w):
    mean = w @ rows
    return mean, np.sqrt(w @ (rows - mean) ** 2)


def _kalman(a, q, r, y):
    """Log-likelihoods of x' = a x + N(0, q^2), y = x + N(0, r^2), x_0 ~ N(0, 1), for many (a, q, r) at once."""
    m, P, total = 0.0, 1.0, 0.0
    for value in np.asarray(y, float):
        m, P = a * m, a * a * P + q * q
        S = P + r * r
        e = value - m
        total = total - 0.5 * (np.log(S) + e * e / S)
        gain = P / S
        m, P = m + gain * e, (1 - gain) * P
    return total


def by_importance(model, y):
    """Moments of the volatility model's theta: likelihoods by quadrature over x, of draws that are fitted in rounds."""
    log_prior = jax.jit(jax.vmap(model.parameters.log_prior))
    centre = np.asarray(model.parameters.to_vector({"level": 0.0, "persistence": 0.95, "variance": 0.05}), float)
    covariance, rng = np.diag([0.2, 0.5, 0.5]) ** 2, np.random.default_rng(0)
    for num_draws in (200, 200, 200, 600):
        proposal = multivariate_t(centre, 1.2 * covariance, df=8)
        z = proposal.rvs(num_draws, random_state=rng)
        theta = _theta_of(model, z)
        log_p = [_volatility(y, **{name: v[i] for name, v in theta.items()}) for i in range(num_draws)]
        base = np.asarray(log_prior(jnp.asarray(z)), float) - proposal.logpdf(z)
        _, w = temperature(base, np.array(log_p), 30.0)
        centre = w @ z
        covariance = (w[:, None] * (z - centre)).T @ (z - centre)
    return _moments(_numbers(model, z), w)


def _volatility(y, level, persistence, variance, num=161):
    """The log-likelihood, with the law of x kept on a grid: Gaussian kernels are summed exactly by even spacing."""
    if not (0 < variance < 1 and abs(persistence) < 0.9995):
        return -np.inf
    sd = np.sqrt(variance / (1 - persistence**2))
    x = np.linspace(level - 6 * sd, level + 6 * sd, num)
    kernel = np.exp(-0.5 * (x[None] - level - persistence * (x[:, None] - level)) ** 2 / variance)
    kernel *= (x[1] - x[0]) / np.sqrt(2 * np.pi * variance)
    p = np.exp(-0.5 * x**2)
    p /= p.sum()
    half, precision, total = 0.5 * x, 0.5 * np.exp(-x), 0.0
    for value in np.asarray(y, float):
        p = (p @ kernel) * np.exp(-half - precision * value**2)
        mass = p.sum()
        total += np.log(mass)
        p /= mass
    return total


SCALES = {"level_noise": 0.5, "observation_noise": 1.0}
of_level = on_a_grid(lambda theta: (1.0, theta["level_noise"], theta["observation_noise"]))
STREAMS = {
    "ar1": Stream(models.ar1, {"phi": 0.7}, on_a_grid(lambda theta: (theta["phi"], 1.0, 0.5))),
    "level": Stream(models.local_level, SCALES, of_level, num_series=4),
    "outliers": Stream(models.local_level, SCALES, of_level, outlier=20.0),
    "volatility": Stream(
        lambda: models.stochastic_volatility(prior=VOLATILITY_PRIOR),
        {"level": 0.0, "persistence": 0.95, "variance": 0.05},
        by_importance,
        times=(1_000, 10_000),
    ),
}


class Task(NamedTuple):
    """A piece of work for one core: filter a stream's series, no longer than that, or find its gold."""

    stream: str
    series: int
    longest: int
    is_gold: bool


def solved(task: Task) -> tuple[Task, list[Any]]:
    """At each time the moments of theta; of a filter also the error that it tells, microseconds and bytes."""
    stream = STREAMS[task.stream]
    model = stream.model()
    times = [t for t in stream.times if t <= task.longest]
    _, y = simulate(jax.random.key(1000 + task.series), model, stream.truth, times[-1])
    y = np.array(y)
    y[999::1000] += stream.outlier
    if task.is_gold:
        return task, [(t, *stream.gold(model, y[:t])) for t in times]
    return task, _filtered(jax.random.key(task.series), streaming_filter(model), y, times)


def _filtered(key, filter_, y, times):
    state, spent, found = None, [], []
    for start in range(0, times[-1], CHUNK):
        begin = time.perf_counter()
        results = run(key, filter_, y[start : start + CHUNK], state=state, levels=())
        state = jax.block_until_ready(results.final)
        spent.append((time.perf_counter() - begin) / CHUNK * 1e6)
        if start + CHUNK in times:
            moments = [
                np.array([float(v[-1]) for v in part.values()]) for part in (results.theta.mean, results.theta.sd)
            ]
            found.append((start + CHUNK, *moments, float(results.error[-1])))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    return [(*row, _typical(spent, row[0] // CHUNK), size) for row in found]


def _typical(spent: list[float], num: int) -> float:
    """Microseconds an observation about the end of so many chunks; the first of all compiles."""
    warm = spent[1:] or spent
    return float(np.median(warm[max(min(num, len(warm)) - 20, 0) : num]))


def rows_of(filtered: Task, found: list[Any], golds: list[Any]) -> list[dict]:
    """A row for each time."""
    rows = []
    for (t, means, sds, error, micros, size), (_, mean, sd) in zip(found, golds, strict=True):
        row = {"stream": filtered.stream, "series": filtered.series, "t": t, "z": ((means - mean) / sd).tolist()}
        row |= {"sd_ratio": (sds / sd).tolist(), "error": error}
        rows.append(row | {"us_per_observation": micros, "state_bytes": size})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(STREAMS))
    parser.add_argument("--num-series", type=int, help="of each stream")
    parser.add_argument("--longest", type=int, default=TIMES[-1])
    parser.add_argument("--workers", type=int, default=1, help="processes, each on a core of its own")
    parser.add_argument("--store", action="store_true", help="write benchmarks/results/streams.json")
    options = parser.parse_args()
    names = [options.only] if options.only else list(STREAMS)[::-1]  # the longest first: the pool ends together
    tasks = [
        Task(name, series, options.longest, is_gold)
        for name in names
        for is_gold in (False, True)
        for series in range(options.num_series or STREAMS[name].num_series)
    ]
    found: dict[Task, list[Any]] = {}
    rows: list[dict] = []
    for task, answer in solve_all(solved, tasks, options.workers, in_order=False):
        found[task] = answer
        filtered, gold = (task._replace(is_gold=flag) for flag in (False, True))
        if filtered in found and gold in found:
            some = rows_of(filtered, found[filtered], found[gold])
            rows += some
            show(f"{filtered.stream}, series {filtered.series}", judged(some))
            rows.sort(key=_place)
            if options.store:
                save("streams", {"chunk": CHUNK, "workers": options.workers, "longest": options.longest}, rows)
    show("streams", judged(rows))


def _place(row: dict) -> tuple:
    return list(STREAMS).index(row["stream"]), row["t"], row["series"]


def judged(rows: list[dict]) -> list[dict]:
    """A row for each stream and time."""
    found = []
    for name, t in dict.fromkeys((row["stream"], row["t"]) for row in rows):
        some = [row for row in rows if (row["stream"], row["t"]) == (name, t)]
        z = np.array([row["z"] for row in some])
        ratios = np.array([row["sd_ratio"] for row in some]).ravel()
        error = np.array([row["error"] for row in some])
        wrong = (np.max(np.abs(z), axis=1) > WRONG) & (error < TOLD)
        found.append(
            {
                "stream": name,
                "t": t,
                "runs": len(some),
                "z rms": float(np.max(np.sqrt(np.mean(z**2, axis=0)))),
                "sd ratios": f"{ratios.min():.2f} to {ratios.max():.2f}",
                "error told": float(np.median(error)),
                "wrong, untold": int(np.sum(wrong)),
                "us": float(np.median([row["us_per_observation"] for row in some])),
                "MB": some[0]["state_bytes"] / 1e6,
            }
        )
    return found


if __name__ == "__main__":
    main()
