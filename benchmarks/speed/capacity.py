"""One GPU to its limits: particle-steps a second as filters are added, and the most particles and filters that fit.

SIN, EPF of order 7 with one Metropolis-Hastings step, float32, systematic resampling at every step, no quantiles. Sizes
grow until the device runs out of memory; the last that ran and the first that did not are both rows.
Run with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95, or jax keeps a quarter of the memory to itself.
"""

import warnings

import jax

import epf_jax as epf
from benchmarks.report import save, show
from benchmarks.speed.gpu import extended, replicating
from benchmarks.speed.racing import race, running

NUM_STEPS, REPEATS = 20, 3
BATCHES = (1, 32, 1024, 32_768, 262_144, 524_288, 1_048_576)
PARTICLES = tuple(2**k for k in (20, 24, 28, 29, 30))


def measured(run, batch, n):
    """A row for one size: seconds, or what stopped it."""
    row = {"filters": batch, "N": n}
    try:
        seconds = race({n: run}, REPEATS)[n].seconds
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        return row | {"stopped by": str(error).splitlines()[0][:100]}
    rate = batch * n * NUM_STEPS / seconds
    return row | {"us a step": seconds / NUM_STEPS * 1e6, "particle-steps a second": rate}


def growing(title, build, sizes):
    """Rows for growing sizes, until one does not run."""
    rows = []
    for size in sizes:
        rows.append({"series": title} | build(size))
        show(title, rows[-1:])
        if "stopped by" in rows[-1]:
            break
    return rows


def main():
    if jax.default_backend() != "gpu":
        print("no GPU here: nothing measured")
        return
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, NUM_STEPS)

    def many(batch):
        return measured(replicating(extended(model, 1000), y, batch), batch, 1000)

    def one(n):
        return measured(running(extended(model, n), y), 1, n)

    rows = growing("filters of 1000 particles", many, BATCHES)
    warnings.simplefilter("ignore", RuntimeWarning)  # that float32 is too coarse for so many: this is about memory
    rows += growing("one filter", one, PARTICLES)
    show("capacity of one GPU", rows)
    limit = jax.devices()[0].memory_stats()["bytes_limit"]
    print("stored in", save("capacity", {"steps": NUM_STEPS, "repeats": REPEATS, "bytes_limit": limit}, rows))


if __name__ == "__main__":
    main()
