"""Nanoseconds per particle-step on SIN: this library, NumPy by hand, plain JAX, and the peers that are installed.

Interleaved runs, medians, compile time apart, ratios against the bars. Every contestant of a race estimates the same
log-evidence, which is compared, so that nobody is fast by being wrong.
"""

import statistics

import jax
import numpy as np

import epf_jax as epf
from benchmarks.report import of_this_cpu, save, show
from benchmarks.speed import by_hand, gpu
from benchmarks.speed.peers import PEERS, THETA, available
from benchmarks.speed.racing import agreement, race, running

NUM_STEPS = {1_000: 1000, 10_000: 200, 100_000: 100}  # of each number of particles
TURNS = {1_000: 2, 10_000: 2, 100_000: 1}  # how many more turns the small, noisier races get
BOOTSTRAP, EPF = "epf_jax bootstrap", "epf_jax EPF, Taylor 7"


def ours_bootstrap(y, num_particles, dtype):
    return running(gpu.bootstrap(epf.models.sinusoid(), num_particles), y)


def ours_epf(y, num_particles, dtype):
    return running(gpu.extended(epf.models.sinusoid(), num_particles), y)


def rows_of(work, n, dtype, builds, y, repeats, bars, reference):
    """One race: a row for each contestant, with what the bars say of ours."""
    y = y[: NUM_STEPS[n]]
    contestants = {name: build(y, n, dtype) for name, build in builds.items()}
    taken = race(contestants, repeats * TURNS[n])
    rows = []
    for name, (seconds, _, values) in taken.items():
        times_ours = seconds / taken[next(iter(builds))].seconds
        rows.append(
            {
                "work": work,
                "N": n,
                "contestant": name,
                "ns a particle-step": seconds / (n * len(y)) * 1e9,
                "times ours": times_ours,
                "bar": bars.get(name, ""),
                "met": "" if name not in bars else times_ours >= bars[name],
                "log-evidence": statistics.mean(values),
                "z against": agreement(values, taken[reference].values),
            }
        )
    return rows


def peers(names):
    """Builds of the peers that are installed, and notes on those that are not."""
    versions = available()
    found = {f"{name} {versions[name]}": PEERS[name].build for name in names if name in versions}
    return found, [name for name in names if name not in versions]


def main(repeats: int = 5, sizes=tuple(NUM_STEPS), *, store: bool = True):
    _, y = epf.simulate(jax.random.key(0), epf.models.sinusoid(), {"theta": THETA}, max(NUM_STEPS.values()))
    found, missing = peers(list(PEERS))
    rows = [{"work": "peer not installed", "contestant": peer} for peer in missing]
    hand = {"NumPy by hand": by_hand.numpy_bootstrap, "plain JAX": by_hand.jax_bootstrap}
    bars = {"NumPy by hand": 1.0, "plain JAX": 2.0, **dict.fromkeys(found, 1.0)}
    for n in sizes:
        builds = {BOOTSTRAP: ours_bootstrap, **hand, **found}
        rows += rows_of("bootstrap, float32", n, np.float32, builds, y, repeats, bars, "NumPy by hand")
    jax.config.update("jax_enable_x64", True)  # the flag, not its context: one peer's callback sees no other
    try:
        others = {peer: build for peer, build in found.items() if not peer.startswith("blackjax")}
        y64 = np.asarray(y, float)
        for n in sizes:
            builds = {BOOTSTRAP: ours_bootstrap, "NumPy by hand": by_hand.numpy_bootstrap, **others}
            bars64 = dict.fromkeys(others, 1.0)
            rows += rows_of("bootstrap, float64", n, np.float64, builds, y64, repeats, bars64, "NumPy by hand")
    finally:
        jax.config.update("jax_enable_x64", False)
    for n in sizes:
        builds = {EPF: ours_epf, "NumPy EPF": by_hand.numpy_epf, "plain JAX EPF": by_hand.jax_epf}
        rows += rows_of(
            "EPF, float32", n, np.float32, builds, y, repeats, {"NumPy EPF": 4.0, "plain JAX EPF": 2.0}, "NumPy EPF"
        )
        ours = {
            row["contestant"]: row["ns a particle-step"]
            for row in rows
            if row.get("N") == n and "float32" in row["work"]
        }
        ratio = ours[EPF] / ours[BOOTSTRAP]
        rows.append(
            {
                "work": "EPF over bootstrap",
                "N": n,
                "contestant": EPF,
                "times ours": ratio,
                "bar": 3.5,
                "met": ratio <= 3.5,
            }
        )
    show(
        f"SIN, systematic resampling at every step, T by N: {NUM_STEPS}, medians of {repeats} or more interleaved runs",
        rows,
    )
    settings = {
        "steps": {str(n): t for n, t in NUM_STEPS.items()},
        "repeats": repeats,
        "theta": THETA,
        "peers": available(),
    }
    if store:
        print("stored in", save(of_this_cpu("particle_step"), settings, rows))
    return rows


if __name__ == "__main__":
    main()
