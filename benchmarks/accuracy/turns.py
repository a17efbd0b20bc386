"""Methods on the series of one contest, by turns in one process: the seconds of one beside those of another."""

import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accuracy.contests import CONTESTS, data
from benchmarks.accuracy.league import METHOD_SEED

Label = TypeVar("Label", bound=Hashable)


class Turns(NamedTuple):
    """What one method did on all series, a row each; parameters are in the order of their names."""

    z: np.ndarray
    sd_ratio: np.ndarray
    seconds: np.ndarray


def by_turns(contest: str, num_series: int, methods: dict[Label, Callable[[Any, Any], Any]]) -> dict[Label, Turns]:
    """Every method, `method(key, y)` with a mean and an sd of theta, on every series, after a turn that compiles."""
    y, golds = data(contest, num_series)
    names = sorted(CONTESTS[contest].truth)
    rows: dict[Label, list[tuple]] = {label: [] for label in methods}
    for i in (0, *range(num_series)):
        series, key = jnp.asarray(y[i], float), jax.random.fold_in(jax.random.key(METHOD_SEED), i)
        for label, method in methods.items():
            start = time.perf_counter()
            found = jax.device_get(method(key, series))
            seconds = time.perf_counter() - start
            mean, sd = (np.array([part[name][-1] for name in names]) for part in (golds[i].mean, golds[i].sd))
            z = (np.array([found.mean[name] for name in names]) - mean) / sd
            rows[label].append((z, np.array([found.sd[name] for name in names]) / sd, seconds))
    return {label: Turns(*map(np.array, zip(*turns[1:], strict=True))) for label, turns in rows.items()}
