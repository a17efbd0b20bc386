"""`epf.smooth` judged by the exact law of every state given the whole series, theta integrated out.

An AR(1) in noise, whose paths are drawn exactly, and by sweeps of conditional SMC for comparison; the models of
`proposals.py`, by sweeps with the bootstrap proposal and with `epf.laplace`. Theta is learned by the default filter
with 1000 particles and the same proposal. z is the error of a state's mean in exact standard deviations, over all t and
all data sets: D paths alone make it 1 / sqrt(D).

    python -m benchmarks.accuracy.smoothing [--store]
"""

import argparse
import time
import warnings

import jax
import numpy as np

import epf_jax as epf
from benchmarks.accuracy.judge import NUM_SERIES
from benchmarks.accuracy.proposals import MODELS
from benchmarks.report import save, show
from epf_jax import exact

NUM_STEPS, NUM_PARTICLES = 200, 1000
AR1 = "AR(1) in noise"
CASES = {
    AR1: (epf.models.ar1, {"phi": 0.8}, {"phi": np.linspace(0.2, 1.2, 101)}, None),
    **MODELS,
}
# how the paths are drawn, by the name of the row: the proposal, or None for the default
WAYS = {
    AR1: {"exact draws": None, "sweeps, fully adapted": epf.fully_adapted},
    **{
        name: {
            "sweeps, bootstrap": lambda model: epf.bootstrap(),
            "sweeps, laplace": epf.laplace,
        }
        for name in MODELS
    },
}


def main(models=tuple(CASES), num_series: int = NUM_SERIES, *, store: bool = False, **options):
    """A row for every model and way, and one for the filter's own states."""
    rows: list[dict] = []
    for name in models:
        build, truth, axes, nodes = CASES[name]
        model = build()
        y = [epf.simulate(jax.random.key(i), model, truth, NUM_STEPS)[1] for i in range(num_series)]
        golds = [exact.states(model, each, axes, nodes) for each in y]
        for way, build_proposal in WAYS[name].items():
            proposal = None if build_proposal is None else build_proposal(model)
            filter_ = epf.extended_parameter_filter(model, NUM_PARTICLES, proposal=proposal)
            found = [_smoothed(i, filter_, each, proposal, options) for i, each in enumerate(y)]
            results, smoothed, seconds = zip(*found, strict=True)
            if len(rows) == 0 or rows[-1]["model"] != name:
                rows.append({"model": name, "states": "filter, given y_1:t"} | _errors(golds, [r.x for r in results]))
            rows.append(
                {"model": name, "states": f"smooth: {way}"}
                | _errors(golds, [s.x for s in smoothed])
                | {"renewed, least": float(min(s.renewed.min() for s in smoothed)), "seconds": np.median(seconds)}
            )
            print(rows[-1], flush=True)
    paths = smoothed[0].paths.shape[0]
    show(f"smoothing: {num_series} data sets, T = {NUM_STEPS}, {paths} paths (z rms {paths**-0.5:.2f} by chance)", rows)
    if store:
        settings = {"series": num_series, "steps": NUM_STEPS, "particles": NUM_PARTICLES, "paths": paths}
        print("stored in", save("accuracy_smoothing", settings, rows))
    return rows


def _smoothed(seed, filter_, y, proposal, options):
    results = epf.run(jax.random.key(1000 + seed), filter_, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of paths that are not renewed: a column says so
        began = time.perf_counter()
        found = epf.smooth(jax.random.key(2000 + seed), filter_, results.final, y, proposal=proposal, **options)
        jax.block_until_ready(found.paths)
    return results, found, time.perf_counter() - began


def _errors(golds, states):
    z = np.array([(np.asarray(x.mean) - gold.mean[1:]) / gold.sd[1:] for gold, x in zip(golds, states, strict=True)])
    ratios = [np.asarray(x.sd) / gold.sd[1:] for gold, x in zip(golds, states, strict=True)]
    return {"z rms": float(np.sqrt(np.mean(z**2))), "z max": float(np.abs(z).max()), "sdr": float(np.median(ratios))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true")
    main(store=parser.parse_args().store)
