"""One GPU: microseconds a step against the bars, what the kernels give over XLA alone, and smcx and cuthbert beside.

Interleaved runs, medians, compile time apart. Bootstrap filters estimate the same log-evidence.
Peers that cannot be imported are named. On a machine without a GPU nothing is measured.
"""

import statistics

import jax
import numpy as np

import epf_jax as epf
from benchmarks.report import save, show
from benchmarks.speed.peers import PEERS, available
from benchmarks.speed.racing import key_of, race, running
from epf_jax.core import loops

THETA, REPEATS, BATCH = {"theta": 0.7}, 5, 1024
STEPS = {1_000: 1000, 10_000: 1000, 100_000: 500, 1_000_000: 200}


def bootstrap(model, n):
    return epf.bootstrap_filter(model, n, theta=THETA)


def extended(model, n, order=7):
    return epf.extended_parameter_filter(model, n, statistic=epf.taylor(model, order), proposal=epf.bootstrap())


def replicating(filter_, y, batch):
    replicate = jax.jit(lambda keys: epf.replicate(keys, filter_, y, levels=()).log_evidence[:, -1])
    return lambda seed: replicate(jax.random.split(key_of(seed), batch))


def without_kernels(build):
    """The same filter by XLA alone."""

    def built(*args):
        limit = loops.MAX_PARTICLES
        loops.MAX_PARTICLES = 0
        try:
            run = build(*args)
            jax.block_until_ready(run(0))  # traced and compiled now, while the kernels are off
        finally:
            loops.MAX_PARTICLES = limit
        return run

    return built


def row(work, n, batch, num_steps, taken, bar=None):
    seconds, first, values = taken
    us = seconds / num_steps * 1e6
    return {
        "work": work,
        "filters": batch,
        "N": n,
        "us a step": us,
        "particle-steps a second": batch * n * num_steps / seconds,
        "bar": bar or "",
        "first call, s": first,
        "log-evidence": statistics.mean(values),
        "its sd": statistics.stdev(values),
    }


def main():
    if jax.default_backend() != "gpu":
        print("no GPU here: nothing measured")
        return
    model = epf.models.sinusoid()
    _, series = epf.simulate(jax.random.key(0), model, THETA, 1000)
    rows, versions = [], available()
    settings = {"steps": {str(n): t for n, t in STEPS.items()}, "repeats": REPEATS, "theta": THETA, "peers": versions}
    bars = {1_000: "<= 20 us", 1_000_000: "<= 150 us"}
    for n, num_steps in STEPS.items():
        y = series[:num_steps]
        contestants = {
            "EPF, Taylor 7": running(extended(model, n), y),
            "bootstrap": running(bootstrap(model, n), y),
        }
        if n <= loops.MAX_PARTICLES:
            contestants["EPF, Taylor 7, XLA alone"] = without_kernels(running)(extended(model, n), y)
            contestants["bootstrap, XLA alone"] = without_kernels(running)(bootstrap(model, n), y)
        if n in (1_000, 1_000_000):
            for name in ("smcx", "cuthbert"):
                if name in versions:
                    contestants[name] = PEERS[name].build(y, n, np.float32)
                else:
                    rows.append({"work": f"{name}: not installed", "N": n})
        for name, taken in race(contestants, REPEATS).items():
            rows.append(row(name, n, 1, num_steps, taken, bars.get(n) if name == "EPF, Taylor 7" else None))
        save("gpu", settings, rows)  # as it goes: a machine that is lent may be taken back
    y = series[:200]
    for batch in (16, 128, 1024, 8192):
        runs = {"EPF, Taylor 7": replicating(extended(model, 1000), y, batch)}
        if batch == BATCH:
            runs["EPF, Taylor 7, XLA alone"] = without_kernels(replicating)(extended(model, 1000), y, batch)
            runs["bootstrap"] = replicating(bootstrap(model, 1000), y, batch)
        for name, taken in race(runs, REPEATS).items():
            bar = ">= 8e9 a second" if batch == BATCH and name == "EPF, Taylor 7" else None
            rows.append(row(name, 1000, batch, 200, taken, bar))
        stored = save("gpu", settings, rows)
    show("one GPU, SIN, float32, systematic resampling at every step, no quantiles", rows)
    print("stored in", stored)


if __name__ == "__main__":
    main()
