"""How theta is drawn: this library's samplers and blackjax's kernels in the same filters, by turns on one machine.

The filter is the EPF with its Chebyshev statistic and 200 particles, on SIN (one parameter) and STAR (two).
Needs blackjax.

    python -m benchmarks.accuracy.samplers [--store]
"""

import argparse

import blackjax
import numpy as np

import epf_jax as epf
from benchmarks.accuracy.contestants import last_row
from benchmarks.accuracy.contests import CONTESTS
from benchmarks.accuracy.league import METHOD_SEED, NUM_SERIES
from benchmarks.accuracy.turns import by_turns
from benchmarks.report import of_this_cpu, save, show

NUM_PARTICLES = 200
SAMPLERS = {
    "random_walk()": epf.random_walk(),
    "random_walk(num_steps=4)": epf.random_walk(num_steps=4),
    "slice_sampler()": epf.slice_sampler(),
    "grid_sampler()": epf.grid_sampler(),
    "blackjax normal_random_walk, sigma 1.7": epf.blackjax_sampler(blackjax.normal_random_walk, sigma=1.7),
    "the same, 4 steps": epf.blackjax_sampler(blackjax.normal_random_walk, sigma=1.7, num_steps=4),
    "blackjax mala, step 0.7": epf.blackjax_sampler(blackjax.mala, step_size=0.7),
    "blackjax barker, step 1.5": epf.blackjax_sampler(blackjax.barker, step_size=1.5),
    "blackjax hmc, step 0.6, 3 of them": epf.blackjax_sampler(blackjax.hmc, step_size=0.6, num_integration_steps=3),
    "blackjax nuts, step 0.6": epf.blackjax_sampler(blackjax.nuts, step_size=0.6),
}


def main(models=("sin", "star"), num_series: int = NUM_SERIES, *, store: bool = False) -> list[dict]:
    """A row for every sampler on every model."""
    rows = [row for model in models for row in race(model, num_series)]
    show("the EPF by its sampler, by turns on one machine", rows)
    if store:
        settings = {"series": num_series, "particles": NUM_PARTICLES, "method seed": METHOD_SEED}
        settings["blackjax"] = blackjax.__version__
        print("stored in", save(of_this_cpu("accuracy_samplers"), settings, rows))
    return rows


def race(name: str, num_series: int) -> list[dict]:
    """Every sampler on one model; z and sdr are those of the worst parameter."""
    contest = CONTESTS[name]
    model = contest.model()
    fitting = {label: s for label, s in SAMPLERS.items() if s.max_dim is None or s.max_dim >= model.parameters.dim}
    acceptance: dict[str, list[float]] = {label: [] for label in fitting}

    def method(label):
        filter_ = epf.extended_parameter_filter(
            model,
            NUM_PARTICLES,
            statistic=epf.chebyshev(model),
            sampler=fitting[label],
            proposal=contest.proposal(model),
        )

        def estimate(key, y):
            results = epf.run(key, filter_, y, levels=())
            acceptance[label].append(float(results.acceptance.mean()))
            return last_row(results)

        return estimate

    turns = by_turns(name, num_series, {label: method(label) for label in fitting})
    return [
        {
            "model": name, "sampler": label, "acceptance": float(np.mean(acceptance[label][1:])),
            "z rms": float(np.sqrt(np.mean(found.z**2, axis=0)).max()), "z max": float(np.abs(found.z).max()),
            "sdr": float(max(np.median(found.sd_ratio, axis=0), key=lambda ratio: abs(np.log(ratio)))),
            "seconds": float(np.median(found.seconds)),
        }
        for label, found in turns.items()
    ]  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true")
    main(store=parser.parse_args().store)
