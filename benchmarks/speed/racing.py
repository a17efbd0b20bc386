"""How speeds are measured here: contestants take turns, the first turn compiles, and medians are of the others."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

import epf_jax as epf


class Taken(NamedTuple):
    """What one contestant took.

    Attributes:
        seconds: the median over all turns but the first.
        first: seconds of the first turn, in which it compiled.
        values: what it found in each turn, the log-evidence in most races: nobody is to be fast by being wrong.
    """

    seconds: float
    first: float
    values: list[float]


@cache
def key_of(seed: int) -> PRNGKeyArray:
    """A random key, made before the clock starts: other contestants make theirs inside of a compiled program."""
    return jax.random.key(seed)


def running(filter_: epf.Filter, y: Any) -> Callable[[int], Any]:
    """A contestant: this library's filter over a series, without quantiles; its log-evidence."""
    return lambda seed: np.asarray(epf.run(key_of(seed), filter_, y, levels=()).log_evidence)[-1]


def race(contestants: Mapping[Any, Callable[[int], Any]], repeats: int) -> dict[Any, Taken]:
    """Each contestant's `run(seed)`, in turns; of a value that is an array the mean is kept."""
    seconds: dict[Any, list[float]] = {name: [] for name in contestants}
    values: dict[Any, list[float]] = {name: [] for name in contestants}
    jax.block_until_ready([key_of(repeat) for repeat in range(repeats + 1)])
    for repeat in range(repeats + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            value = np.asarray(jax.block_until_ready(run(repeat)))
            seconds[name].append(time.perf_counter() - start)
            values[name].append(float(np.mean(value)))
    return {name: Taken(statistics.median(taken[1:]), taken[0], values[name]) for name, taken in seconds.items()}


def agreement(values: list[float], others: list[float]) -> float:
    """The difference of two contestants' mean log-evidences, in standard errors; both are heavy-tailed at small N."""
    error = np.sqrt((np.var(values, ddof=1) + np.var(others, ddof=1)) / len(values))
    return float((np.mean(values) - np.mean(others)) / error)
