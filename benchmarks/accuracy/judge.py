"""Judging filters by exact posteriors over many simulated data sets.

z = (filter mean - exact mean) / exact sd, at the last observation; sdr = filter sd / exact sd. A table reports the
root mean square and the largest |z| over the data sets, and the median sdr.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import epf_jax as epf
from benchmarks.report import save, show
from epf_jax.exact import GridPosterior

NUM_SERIES, NUM_STEPS = 20, 1000
DATA_SEED, FILTER_SEED = 123, 7


class Exam:
    """Simulated series of a model with the exact posterior of each, in float64, and the table of filters judged."""

    def __init__(
        self,
        name: str,
        build_model: Callable[[], epf.StateSpaceModel],
        truth: Any,
        exact: Callable[[epf.StateSpaceModel, Any], GridPosterior],
        num_series: int = NUM_SERIES,
    ):
        """Simulate `num_series` series at `truth` and solve each with `exact(model, y)`."""
        self.name, self.build_model, self.rows = name, build_model, []
        self.settings = {
            "model": name, "truth": truth, "series": num_series, "steps": NUM_STEPS,
            "data_seed": DATA_SEED, "filter_seed": FILTER_SEED,
        }  # fmt: skip
        with jax.enable_x64(True):
            model = build_model()
            keys = jax.random.split(jax.random.key(DATA_SEED), num_series)
            simulated = jax.vmap(lambda key: epf.simulate(key, model, truth, NUM_STEPS)[1])(keys)
            self.y = np.asarray(simulated)
            solved = []
            for i, y in enumerate(self.y):
                print(f"\r{name}: exact posterior {i + 1} of {num_series}", end="", flush=True)
                found = exact(model, jnp.asarray(y))
                solved.append(jax.tree.map(lambda a: float(a[-1]), (found.mean, found.sd)))
            print()
        self.mean = {k: np.array([mean[k] for mean, _ in solved]) for k in solved[0][0]}
        self.sd = {k: np.array([sd[k] for _, sd in solved]) for k in solved[0][1]}

    def judge(self, label: str, build_filter: Callable, *, bars: dict[str, float] | None = None, x64: bool = False):
        """Run a filter on every series, and add its row: accuracy, seconds, and whether it meets its bars."""
        with jax.enable_x64(x64):
            filter_ = build_filter(self.build_model())
            keys = jax.random.split(jax.random.key(FILTER_SEED), len(self.y))
            start = time.perf_counter()
            results = jax.block_until_ready(epf.replicate(keys, filter_, jnp.asarray(self.y, float), levels=()))
            seconds = time.perf_counter() - start
        for name in self.mean:
            z = (np.asarray(results.theta.mean[name])[:, -1] - self.mean[name]) / self.sd[name]
            row = {
                "filter": label,
                "precision": "float64" if x64 else "float32",
                "parameter": name,
                "z rms": float(np.sqrt(np.mean(z**2))),
                "z max": float(np.max(np.abs(z))),
                "sdr": float(np.median(np.asarray(results.theta.sd[name])[:, -1] / self.sd[name])),
                "seconds": seconds,
            }
            if bars is not None:
                row["bar"] = ", ".join(f"{k} {v}" for k, v in bars.items())
                row["met"] = meets(row, bars)
            self.rows.append(row)
        show(f"{self.name}: {len(self.y)} data sets, T = {NUM_STEPS}", self.rows[-len(self.mean) :])

    def report(self) -> None:
        """Print the whole table and store it."""
        show(f"{self.name}: {len(self.y)} data sets, T = {NUM_STEPS}, against the exact posterior", self.rows)
        print("stored in", save(f"accuracy_{self.name}", self.settings, self.rows))


def meets(row: dict[str, Any], bars: dict[str, float]) -> bool:
    """Whether a row keeps every bar: `z rms` and `z max` at most, `sdr` within the given distance of 1."""
    return all(abs(row[k] - 1.0) <= bar if k == "sdr" else row[k] <= bar for k, bar in bars.items())
