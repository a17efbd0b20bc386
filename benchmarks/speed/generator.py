"""What this library's own random numbers (`epf_jax.core.random`) give over those of `jax.random` in the same filters.

Interleaved runs, medians, compile time apart. What differs is the key that a filter draws with. On a GPU a batch of
small filters runs, too.
"""

from unittest import mock

import jax

import epf_jax as epf
from benchmarks.report import of_this_cpu, save, show
from benchmarks.speed import gpu
from benchmarks.speed.particle_step import TURNS
from benchmarks.speed.peers import THETA
from benchmarks.speed.racing import agreement, race, running
from epf_jax.core.random import stream, threefry
from epf_jax.filters import filter as base

NUM_STEPS = {"cpu": 200, "gpu": 1000}
FILTERS = {"bootstrap": gpu.bootstrap, "EPF, Taylor 7": gpu.extended}
BAR = 1.3
KINDS = {
    "own": stream,
    "jax.random's": threefry,
}


def drawing(kind, build, *args):
    """A run, traced and compiled while filters draw with keys of this kind."""
    with mock.patch.object(base, "stream", KINDS[kind]):
        run = build(*args)
        jax.block_until_ready(run(0))
    return run


def row(name, n, batch, y, repeats):
    """Own random numbers and jax's under one filter, or a batch of them."""
    build, args = (running, ()) if batch == 1 else (gpu.replicating, (batch,))
    # A filter of its own for each: programs are kept by filter.
    runs = {kind: drawing(kind, build, FILTERS[name](epf.models.sinusoid(), n), y, *args) for kind in KINDS}
    taken = race(runs, repeats)
    gain = taken["jax.random's"].seconds / taken["own"].seconds
    ns = {f"{kind}, ns a particle-step": t.seconds / (batch * n * len(y)) * 1e9 for kind, t in taken.items()}
    z = agreement(taken["own"].values, taken["jax.random's"].values)
    return {"filter": name, "filters": batch, "N": n, **ns, "gain": gain, "bar": BAR, "met": gain >= BAR, "z": z}


def main(repeats: int = 5, *, store: bool = True):
    backend = jax.default_backend()
    _, y = epf.simulate(jax.random.key(0), epf.models.sinusoid(), {"theta": THETA}, NUM_STEPS[backend])
    sizes = [(n, 1, repeats * more) for n, more in TURNS.items()]
    if backend == "gpu":
        sizes += [(1_000_000, 1, repeats), (1000, gpu.BATCH, repeats)]
    rows = [row(name, n, batch, y, more) for name in FILTERS for n, batch, more in sizes]
    show(f"random numbers: own against jax.random's on {backend}, SIN, T = {len(y)}, float32", rows)
    if store:
        settings = {"steps": len(y), "repeats": repeats, "theta": THETA}
        name = of_this_cpu("speed_generator") if backend == "cpu" else f"speed_generator_{backend}"
        print("stored in", save(name, settings, rows))
    return rows


if __name__ == "__main__":
    main()
