"""What a step costs as `run` gives it by default, with five quantiles of theta and x, and without any.

Quantiles by either way of `epf_jax.particles.quantiles`, and by the one that is chosen. Interleaved runs, medians,
compile time apart.
"""

from unittest import mock

import jax
import numpy as np

import epf_jax as epf
from benchmarks.report import of_this_cpu, save, show
from benchmarks.speed.racing import key_of, race
from epf_jax.particles import quantiles
from epf_jax.running.run import DEFAULT_LEVELS

SIZES = {"cpu": {1000: 500, 10_000: 100, 100_000: 40}, "gpu": {10_000: 500, 100_000: 500, 1_000_000: 100}}  # N: T
FILTERS = {"bootstrap": epf.bootstrap_filter, "EPF (default)": epf.extended_parameter_filter}
WAYS = {"halving": quantiles.by_halving, "counting": quantiles.by_counting}


def running(build, n, y, levels, way=None):
    """A run with quantiles found in one way, traced and compiled while there is no other."""
    filter_ = build(epf.models.sinusoid(), n)  # one for each contestant: programs are kept by filter

    def run(seed):
        return np.asarray(epf.run(key_of(seed), filter_, y, levels=levels).log_evidence)[-1]

    if way is not None:
        with mock.patch.object(quantiles, "by_platform", lambda *given, **_: way(*given)):
            run(0)
    return run


def row(name, n, y, repeats):
    """One filter with one number of particles."""
    runs = {"none": running(FILTERS[name], n, y, ()), "chosen": running(FILTERS[name], n, y, DEFAULT_LEVELS)}
    runs |= {kind: running(FILTERS[name], n, y, DEFAULT_LEVELS, way) for kind, way in WAYS.items()}
    taken = {kind: found.seconds / len(y) * 1e6 for kind, found in race(runs, repeats).items()}
    gain = (taken["halving"] - taken["none"]) / (taken["chosen"] - taken["none"])
    return {"filter": name, "N": n, "T": len(y), **{f"{k}, us": us for k, us in taken.items()}, "over halving": gain}


def main(repeats: int = 5, *, store: bool = True):
    backend = jax.default_backend()
    _, y = epf.simulate(jax.random.key(0), epf.models.sinusoid(), {"theta": 0.7}, max(SIZES[backend].values()))
    rows = [row(name, n, y[:t], repeats) for name in FILTERS for n, t in SIZES[backend].items()]
    show(f"a step of SIN with no quantiles, or five of theta and x, on {backend}, float32", rows)
    if store:
        name = of_this_cpu("speed_summaries") if backend == "cpu" else f"speed_summaries_{backend}"
        print("stored in", save(name, {"repeats": repeats, "levels": DEFAULT_LEVELS}, rows))
    return rows


if __name__ == "__main__":
    main()
