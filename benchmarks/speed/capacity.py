"""One GPU to its limits: particle-steps a second as filters are added, and the most particles and filters that fit.

SIN, EPF of order 7 with one Metropolis-Hastings step, float32, systematic resampling at every step, no quantiles. Sizes
double until the device runs out of memory (or time); the last that ran and the first that did not are both rows.
Run with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95, or jax keeps a quarter of the memory to itself.
"""

import statistics
import time

import jax

import epf_jax as epf
from benchmarks.report import save, show
from benchmarks.speed.gpu import extended, replicating, running

NUM_STEPS, REPEATS, MOST_SECONDS = 50, 3, 20.0


def measured(run, batch, n):
    """A row for one size: seconds, or what stopped it."""
    row = {"filters": batch, "N": n}
    try:
        jax.block_until_ready(run(0))
        taken = []
        for repeat in range(1, REPEATS + 1):
            start = time.perf_counter()
            jax.block_until_ready(run(repeat))
            taken.append(time.perf_counter() - start)
        seconds = statistics.median(taken)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        return row | {"stopped by": str(error).splitlines()[0][:100]}
    rate = batch * n * NUM_STEPS / seconds
    return row | {"us a step": seconds / NUM_STEPS * 1e6, "particle-steps a second": rate}


def doubling(title, build, first):
    """Rows for sizes that double, until one does not run or takes too long."""
    rows, size = [], first
    while not rows or ("stopped by" not in rows[-1] and rows[-1]["us a step"] * NUM_STEPS < MOST_SECONDS * 1e6):
        rows.append({"series": title} | build(size))
        show(title, rows[-1:])
        size *= 2
    return rows


def main():
    if jax.default_backend() != "gpu":
        print("no GPU here: nothing measured")
        return
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, NUM_STEPS)
    rows = doubling(
        "filters of 1000 particles", lambda b: measured(replicating(extended(model, 1000), y, b), b, 1000), 1
    )
    rows += doubling("one filter", lambda n: measured(running(extended(model, n), y), 1, n), 2**20)
    show("capacity of one GPU", rows)
    limit = jax.devices()[0].memory_stats()["bytes_limit"]
    print("stored in", save("capacity", {"steps": NUM_STEPS, "repeats": REPEATS, "bytes_limit": limit}, rows))


if __name__ == "__main__":
    main()
