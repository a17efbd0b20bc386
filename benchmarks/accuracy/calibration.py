"""Simulation-based calibration (Talts et al. 2018): is what a method claims about theta true as often as it says?

theta is drawn from the prior, a series from theta, and the rank of theta among independent draws from the method's
posterior is noted. If the posterior is right the ranks are uniform. A method leaves the band when a bin of the
histogram holds more or fewer ranks than all but 1% of uniform ones would have in any of their bins: too many at both
ends mean intervals that are too narrow, a slope means a bias.

    python -m benchmarks.accuracy.calibration --workers 8 [--replicates 200] [--methods "SIR" ...]

Methods that are not asked for keep their stored rows.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import epf_jax as epf
from benchmarks.pool import solve_all
from benchmarks.report import RESULTS, save, show

NUM_REPLICATES, NUM_STEPS, NUM_DRAWS, NUM_BINS = 200, 100, 99, 10
DATA_SEED, METHOD_SEED, BAND = 31, 7, 0.99


def model() -> epf.StateSpaceModel:
    """AR(1) in noise: linear, so that even Storvik's filter is exact, with a prior whose draws do not explode."""
    return epf.models.ar1(prior_sd=0.3, observation_noise=1.0)


def replicates(num: int) -> tuple[Any, Any]:
    """True parameters from the prior, and a series from each."""
    build = model()
    keys = jax.random.split(jax.random.key(DATA_SEED), num)

    def one(key):
        key_theta, key_data = jax.random.split(key)
        theta = jax.tree.map(lambda leaf: leaf[0], build.parameters.sample(key_theta, 1))
        return theta, epf.simulate(key_data, build, theta, NUM_STEPS)[1]

    return jax.jit(jax.vmap(one))(keys)


def by_filter(build: Callable[[epf.StateSpaceModel], epf.Filter], keys: Any, y: Any) -> np.ndarray:
    """Independent draws of phi from the filter's final particles, a row for each series."""
    filter_ = build(model())

    @jax.jit
    def draws(key, series):
        key_run, key_draw = jax.random.split(key)
        final = epf.run(key_run, filter_, series, levels=()).final
        return final.theta["phi"][jax.random.categorical(key_draw, final.log_weights, shape=(NUM_DRAWS,))]

    return np.stack([np.asarray(draws(key, series)) for key, series in zip(keys, y, strict=True)])


def by_chains(sample: Callable[..., Any], num_particles: int, keys: Any, y: Any) -> np.ndarray:
    """Thinned draws of Markov chains: nearly independent."""
    build, rows = model(), []
    for key, series in zip(keys, y, strict=True):
        results = sample(key, build, series, num_particles=num_particles, num_draws=500, num_warmup=250)
        pooled = np.asarray(results.final.theta["phi"])
        rows.append(pooled[np.linspace(0, len(pooled) - 1, NUM_DRAWS).astype(int)])
    return np.stack(rows)


METHODS: dict[str, Callable[[Any, Any], np.ndarray]] = {
    "Storvik, conjugate": partial(by_filter, lambda m: epf.storvik_filter(m, 1000)),
    "node filter": partial(by_filter, lambda m: epf.node_filter(m, 32)),
    "node filter, sigma points": partial(by_filter, lambda m: epf.node_filter(m, inner=epf.sigma_points(m))),
    "SMC^2": partial(by_filter, lambda m: epf.smc2_filter(m, 200, max_steps=NUM_STEPS, num_inner=32)),
    "PMMH": partial(by_chains, epf.pmmh, 50),
    "particle Gibbs": partial(by_chains, epf.particle_gibbs, 20),
    "EPF, Taylor 2": partial(by_filter, lambda m: epf.extended_parameter_filter(m, 1000, statistic=epf.taylor(m, 2))),
    "EPF, Chebyshev": partial(by_filter, lambda m: epf.extended_parameter_filter(m, 1000, statistic=epf.chebyshev(m))),
    "EPF, assumed density": partial(
        by_filter, lambda m: epf.extended_parameter_filter(m, 1000, statistic=epf.assumed_density(m))
    ),
    "particle learning": partial(by_filter, lambda m: epf.particle_learning_filter(m, 1000)),
    "resample-move": partial(by_filter, lambda m: epf.resample_move_filter(m, 500, max_steps=NUM_STEPS)),
    "practical filter": partial(by_filter, lambda m: epf.practical_filter(m, 100)),
    "SIR": partial(by_filter, lambda m: epf.bootstrap_filter(m, 200)),
    "Liu-West": partial(by_filter, lambda m: epf.liu_west_filter(m, 200)),
}
EXACT = ("Storvik, conjugate", "node filter", "node filter, sigma points", "SMC^2", "PMMH", "particle Gibbs")
KNOWN_TO_FAIL = ("SIR", "Liu-West")


def histogram(label: str, num: int = NUM_REPLICATES) -> np.ndarray:
    """How many true parameters rank in each bin among the method's draws."""
    theta, y = replicates(num)
    keys = jax.random.split(jax.random.key(METHOD_SEED), num)
    draws = METHODS[label](keys, y)
    rng = np.random.default_rng(0)
    below, equal = (np.sum(test(draws, np.asarray(theta["phi"])[:, None]), axis=1) for test in (np.less, np.equal))
    ranks = below + rng.integers(0, equal + 1)  # ties, of which a degenerate method has many, are broken by lot
    return np.histogram(ranks, bins=np.linspace(0, NUM_DRAWS + 1, NUM_BINS + 1))[0]


def band(num: int = NUM_REPLICATES) -> tuple[int, int]:
    """Fewest and most counts that a bin may have: 99% of uniform histograms stay between them in all bins."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(num, np.full(NUM_BINS, 1.0 / NUM_BINS), size=200_000)
    low, high = counts.min(axis=1), counts.max(axis=1)
    half = (1.0 - BAND) / 2.0
    return int(np.quantile(low, half)), int(np.quantile(high, 1.0 - half))


def is_calibrated(counts: np.ndarray) -> bool:
    """Whether no bin leaves the band."""
    low, high = band(int(counts.sum()))
    return bool(np.all((counts >= low) & (counts <= high)))


def _row(task: tuple[str, int]) -> dict[str, Any]:
    label, num = task
    counts = histogram(label, num)
    return {"method": label, "counts": counts.tolist(), "calibrated": is_calibrated(counts), "exact": label in EXACT}


def draw(rows: list[dict[str, Any]], num: int) -> None:
    """The histograms, each with the band."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    low, high = band(num)
    columns = 5
    figure, axes = plt.subplots(-(-len(rows) // columns), columns, figsize=(14, 6.5), sharex=True, squeeze=False)
    for axis, row in zip(axes.flat, rows, strict=False):
        colour = "tab:blue" if row["calibrated"] else "tab:red"
        axis.bar(np.arange(NUM_BINS), row["counts"], width=0.95, color=colour, alpha=0.8)
        axis.axhspan(low, high, color="0.8", zorder=0)
        axis.axhline(num / NUM_BINS, color="0.4", lw=0.8)
        axis.set_title(row["method"] + ("" if row["calibrated"] else ": leaves the band"), fontsize=10)
        axis.set_xticks([0, NUM_BINS - 1], ["lowest", "highest"])
    for axis in list(axes.flat)[len(rows) :]:
        axis.set_visible(False)
    figure.supxlabel("rank of the true parameter among the posterior's draws")
    figure.supylabel(f"replicates of {num}")
    figure.tight_layout()
    figure.savefig(RESULTS / "calibration.png", dpi=110)
    plt.close(figure)


def stored_rows(num: int) -> dict[str, dict[str, Any]]:
    """The rows of an earlier run with as many replicates, by method."""
    path = RESULTS / "accuracy_calibration.json"
    stored = json.loads(path.read_text()) if path.exists() else {"rows": []}
    return {row["method"]: row for row in stored["rows"] if sum(row["counts"]) == num}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=NUM_REPLICATES)
    parser.add_argument("--workers", type=int, default=1, help="processes, a core each")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    given = parser.parse_args(arguments)
    found = {} if set(given.methods) == set(METHODS) else stored_rows(given.replicates)
    asked = solve_all(_row, [(label, given.replicates) for label in given.methods], given.workers)
    found |= {row["method"]: row for row in asked}
    rows = [found[label] for label in METHODS if label in found]
    show(f"ranks of the true parameter in {NUM_BINS} bins; the band is {band(given.replicates)}", rows)
    if given.replicates != NUM_REPLICATES:
        print(f"stored nothing: the table is of {NUM_REPLICATES} replicates")
        return
    draw(rows, given.replicates)
    settings = {
        "replicates": given.replicates, "steps": NUM_STEPS, "draws": NUM_DRAWS, "band": band(given.replicates),
        "data_seed": DATA_SEED, "method_seed": METHOD_SEED, "model": "AR(1), phi ~ N(0, 0.3^2), noise 1, sensor 1",
    }  # fmt: skip
    print("stored in", save("accuracy_calibration", settings, rows))


if __name__ == "__main__":
    main()
