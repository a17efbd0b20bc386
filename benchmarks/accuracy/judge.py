"""Judging filters by exact posteriors over many simulated data sets.

z = (filter mean - exact mean) / exact sd, at the last observation; sdr = filter sd / exact sd. A table reports the
root mean square and the largest |z| over the data sets, and the median sdr. With `repeats`, the whole exam is taken
that often with other filter seeds, and the row is the median exam, its range beside it: a bootstrap filter
that loses most of its particles at one outlier is as good as its luck there.
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
        num_steps: int = NUM_STEPS,
    ):
        """Simulate `num_series` series at `truth` and solve each with `exact(model, y)`."""
        self.name, self.build_model, self.rows = name, build_model, []
        self.title = f"{name}: {num_series} data sets, T = {num_steps}"
        self.settings = {
            "model": name, "truth": truth, "series": num_series, "steps": num_steps,
            "data_seed": DATA_SEED, "filter_seed": FILTER_SEED,
        }  # fmt: skip
        with jax.enable_x64(True):
            model = build_model()
            keys = jax.random.split(jax.random.key(DATA_SEED), num_series)
            simulated = jax.vmap(lambda key: epf.simulate(key, model, truth, num_steps)[1])(keys)
            self.y = np.asarray(simulated)
            solved = []
            for i, y in enumerate(self.y):
                print(f"\r{name}: exact posterior {i + 1} of {num_series}", end="", flush=True)
                found = exact(model, jnp.asarray(y))
                solved.append(jax.tree.map(lambda a: float(a[-1]), (found.mean, found.sd)))
            print()
        self.mean = {k: np.array([mean[k] for mean, _ in solved]) for k in solved[0][0]}
        self.sd = {k: np.array([sd[k] for _, sd in solved]) for k in solved[0][1]}

    def judge(
        self,
        label: str,
        build_filter: Callable,
        *,
        bars: dict[str, float] | None = None,
        x64: bool = False,
        repeats: int = 1,
    ):
        """Run a filter on every series, and add its row: accuracy, seconds, and whether it meets its bars."""
        exams, seconds = [], []
        with jax.enable_x64(x64):
            filter_ = build_filter(self.build_model())
            for seed in range(FILTER_SEED, FILTER_SEED + repeats):
                keys = jax.random.split(jax.random.key(seed), len(self.y))
                start = time.perf_counter()
                results = jax.block_until_ready(epf.replicate(keys, filter_, jnp.asarray(self.y, float), levels=()))
                seconds.append(time.perf_counter() - start)
                exams.append(results.theta)
        for name in self.mean:
            z = np.stack([(np.asarray(e.mean[name])[:, -1] - self.mean[name]) / self.sd[name] for e in exams])
            rms, largest = np.sqrt(np.mean(z**2, axis=1)), np.max(np.abs(z), axis=1)
            row = {
                "filter": label,
                "precision": "float64" if x64 else "float32",
                "parameter": name,
                "z rms": float(np.median(rms)),
                "z max": float(np.median(largest)),
                "sdr": float(np.median([np.asarray(e.sd[name])[:, -1] / self.sd[name] for e in exams])),
                "seconds": seconds[0],
            }
            if repeats > 1:
                row["exams"] = repeats
                row["z rms range"] = f"{rms.min():.2f} to {rms.max():.2f}"
                row["z max range"] = f"{largest.min():.2f} to {largest.max():.2f}"
            if bars is not None:
                row["bar"] = ", ".join(f"{k} {v}" for k, v in bars.items())
                row["met"] = meets(row, bars)
            self.rows.append(row)
        show(self.title, self.rows[-len(self.mean) :])

    def report(self) -> None:
        """Print the whole table and store it."""
        show(f"{self.title}, against the exact posterior", self.rows)
        print("stored in", save(f"accuracy_{self.name}", self.settings, self.rows))


def meets(row: dict[str, Any], bars: dict[str, float]) -> bool:
    """Whether a row keeps every bar: `z rms` and `z max` at most, `sdr` within the given distance of 1."""
    return all(abs(row[k] - 1.0) <= bar if k == "sdr" else row[k] <= bar for k, bar in bars.items())
