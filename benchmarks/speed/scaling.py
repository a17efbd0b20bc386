"""How the cost of a step grows: with the series (it must not), with the order of the expansion, with the parameters.

Medians of interleaved runs, compile time apart. A turn filters a short series as often as it takes to filter as many
observations as the longest has: what a call costs beside its steps is counted, what it costs to wake up after seconds
of something else is not. The theoretical count beside each curve is the number of multiplications that a step's
statistic asks of one particle: products of the squared residual, and the polynomial read twice.
"""

import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.report import RESULTS, of_this_cpu, save, show
from benchmarks.speed.gpu import extended
from benchmarks.speed.racing import race, running
from epf_jax.core.polynomials import num_coefficients

LENGTHS, ORDERS, DIMS = (100, 300, 1000, 3000, 10_000), (3, 5, 7, 9, 11, 13, 15), (1, 2, 3, 4)
PICTURE = RESULTS / f"{of_this_cpu('speed_scaling')}.png"


def several_parameters(dim):
    """Regression on `dim` waves, each damped by a parameter of its own, which enters nonlinearly."""

    def mean(theta, x):
        return sum(jnp.sin(theta["theta"][i] * x) / (i + 1) for i in range(dim))

    return epf.StateSpaceModel(
        prior={"theta": dist.Normal(jnp.full(dim, 0.3), 0.2).to_event(1)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(mean(theta, x), 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.1),
    )


def microseconds_per_step(runs, repeats):
    """Of {label: (filter, y)}."""
    longest = max(len(y) for _, y in runs.values())

    def often(filter_, y):
        run = running(filter_, y)

        def turn(seed):
            for _ in range(longest // len(y) if seed else 1):  # the first turn, which compiles, is not counted
                last = run(seed)
            return last

        return turn

    taken = race({label: often(*what) for label, what in runs.items()}, repeats)
    return {label: taken[label].seconds / (longest // len(y) * len(y)) * 1e6 for label, (_, y) in runs.items()}


def count(dim, order):
    """Multiplications per particle: of the squared residual (by symmetry half of all pairs), and of two readings."""
    terms = num_coefficients(dim, order)
    return terms * (terms + 1) // 2 + 2 * num_coefficients(dim, 2 * order)


def peak_memory(num_steps):
    """Largest resident memory, in MiB, of a process that runs T observations at N = 10000."""
    code = (
        "import jax, jax.numpy as jnp, epf_jax as epf, pathlib\n"
        "m = epf.models.sinusoid()\n"
        "f = epf.extended_parameter_filter(m, 10_000, statistic=epf.taylor(m, 7), proposal=epf.bootstrap())\n"
        f"jax.block_until_ready(epf.run(jax.random.key(0), f, jnp.zeros({num_steps}), levels=()))\n"
        # Not ru_maxrss, which begins with what the process that started this one had.
        "print(next(l.split()[1] for l in pathlib.Path('/proc/self/status').open() if l.startswith('VmHWM')))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(out.stdout) / 1024


def memory_of_run(num_steps):
    """What XLA gives the program of such a run beside its arguments: temporary arrays, and results; MiB."""
    filter_, y = extended(epf.models.sinusoid(), 10_000, 7), jnp.zeros(num_steps)
    run = jax.jit(lambda key: epf.run(key, filter_, y, levels=()))
    found = run.lower(jax.random.key(0)).compile().memory_analysis()
    return {"temporary": found.temp_size_in_bytes / 2**20, "results": found.output_size_in_bytes / 2**20}


def draw(by_length, by_order, by_dim, picture):
    """Three curves, with the theoretical count on an axis of its own beside the last two."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13.5, 3.8))
    axes[0].plot(list(by_length), list(by_length.values()), "o-")
    axes[0].set(xscale="log", xlabel="observations T", ylabel="µs a step", title="the series (order 7, N = 1000)")
    axes[0].set_ylim(0, 1.2 * max(by_length.values()))
    axes[0].spines[["top", "right"]].set_visible(False)
    for ax, found, label, title, counts in (
        (axes[1], by_order, "order M", "the order (N = 10 000)", {m: count(1, m) for m in by_order}),
        (axes[2], by_dim, "parameters", "the parameters (order 3, N = 1000)", {d: count(d, 3) for d in by_dim}),
    ):
        other = ax.twinx()
        (measured,) = ax.plot(list(found), list(found.values()), "o-", label="measured (left)")
        (theory,) = other.plot(list(counts), list(counts.values()), "--", color="0.5", label="theory (right)")
        ax.set(xlabel=label, ylabel="µs a step", title=title, xticks=list(found), ylim=(0, 1.15 * max(found.values())))
        other.set(ylabel="multiplications a particle", ylim=(0, 1.15 * max(counts.values())))
        ax.legend(handles=[measured, theory], frameon=False, loc="upper left")
        for side in (ax, other):
            side.spines["top"].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main(repeats: int = 5, lengths=LENGTHS, orders=ORDERS, *, store: bool = True):
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, max(lengths))
    filter_ = extended(model, 1000, 7)
    by_length = microseconds_per_step({t: (filter_, y[:t]) for t in lengths}, repeats)
    by_order = microseconds_per_step({m: (extended(model, 10_000, m), y[:100]) for m in orders}, repeats)
    by_dim = microseconds_per_step({d: (extended(several_parameters(d), 1000, 3), y[:100]) for d in DIMS}, repeats)
    memory = {t: {"process": peak_memory(t), **memory_of_run(t)} for t in (100, 10_000)}
    flat = {t: us / by_length[1000] for t, us in by_length.items()}
    rows = [
        {"what": "series", "T": t, "us a step": us, "against T = 1000": flat[t], "met": 0.9 <= flat[t] <= 1.1}
        for t, us in by_length.items()
    ]
    rows += [{"what": "order", "M": m, "us a step": us, "multiplications": count(1, m)} for m, us in by_order.items()]
    rows += [
        {"what": "parameters", "P": d, "us a step": us, "multiplications": count(d, 3)} for d, us in by_dim.items()
    ]
    rows += [{"what": "memory, MiB", "T": t, **found} for t, found in memory.items()]
    show("how a step's cost grows (EPF, Taylor, float32)", rows)
    picture = PICTURE if store else pathlib.Path("results") / PICTURE.name
    picture.parent.mkdir(exist_ok=True)
    draw(by_length, by_order, by_dim, picture)
    print("drawn in", picture)
    if store:
        print(
            "stored in",
            save(of_this_cpu("speed_scaling"), {"repeats": repeats, "N": {"series": 1000, "order": 10_000}}, rows),
        )
    return rows


if __name__ == "__main__":
    main()
