"""The league: every method on six models at two budgets, judged by the exact posterior over twenty data sets.

z = (mean - exact mean) / exact sd at the last observation; sdr the median ratio of standard deviations; coverage the
exact posterior's mass inside the method's own 90% interval; the evidence's error is that of log p(y_1:T). Seconds are
for one series on one core, compiled; a new observation costs an online method their T-th part, an offline one all of
them. Golds: quadrature over the state (SIN, Cauchy, STAR, volatility), the Kalman filter (AR(1), the cycle, whose state
has two dimensions), each on a grid of theta.

    python -m benchmarks.accuracy.league --workers 16 [--models sin star ...] [--series 20]

Finished rows are kept in `league.jsonl` beside the table; the same command goes on from there.
"""

import argparse
import importlib.util
import json
import pathlib
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.accuracy import peer_methods, sinusoid, star
from benchmarks.pool import solve_all
from benchmarks.report import RESULTS, save, show
from epf_jax import exact
from epf_jax.machine import machine
from epf_jax.reproduce.cases import CAUCHY, solve
from epf_jax.reproduce.cauchy import learned_widely, near_or_far

NUM_SERIES, DATA_SEED, METHOD_SEED = 20, 123, 7
LEVELS = (0.05, 0.95)


class Contest(NamedTuple):
    """A model with its data and its gold: `gold(model, y)` gives the exact posterior on a grid, in double precision.

    `proposal(model)` is what every method that takes a proposal is given: None, for its own choice, but for Cauchy.
    """

    model: Callable[[], epf.StateSpaceModel]
    truth: dict[str, float]
    num_steps: int
    gold: Callable[[epf.StateSpaceModel, Any], exact.GridPosterior]
    proposal: Callable[[epf.StateSpaceModel], epf.Proposal | None] = lambda model: None


class Contestant(NamedTuple):
    """A method: `estimate(key, model, y, size, proposal)` gives an `Estimate`; sizes are those of the two budgets.

    One of another library names the package that it `needs`; one that takes minutes a series on a thousand
    observations says how many are the `most`.
    """

    label: str
    sizes: tuple[Any, Any]
    estimate: Callable[..., "Estimate"]
    online: bool = True
    fits: Callable[[epf.StateSpaceModel], bool] = lambda model: True
    needs: str | None = None
    most: int | None = None


class Estimate(NamedTuple):
    """What a method says after the last observation: for each parameter a mean, an sd, a 90% interval."""

    mean: dict[str, Any]
    sd: dict[str, Any]
    interval: dict[str, Any]
    log_evidence: Any


def cycle() -> epf.StateSpaceModel:
    """A damped oscillation, seen from one side: the state has two dimensions, and theta turns and shrinks it."""

    def transition(theta, x, u):
        c, s = jnp.cos(theta["frequency"]), jnp.sin(theta["frequency"])
        turned = jnp.stack([c * x[0] - s * x[1], s * x[0] + c * x[1]])
        return dist.Normal(theta["damping"] * turned, 0.5).to_event(1)

    return epf.StateSpaceModel(
        prior={"damping": dist.Beta(8.0, 2.0), "frequency": dist.LogNormal(-0.7, 0.4)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], 0.5),
    )


def volatility_log_evidence(theta: dict[str, Any], y: Any) -> Any:
    """Log p(y_1:t | theta) of `epf.models.stochastic_volatility` by quadrature, its kernel computed once for all t."""
    x = jnp.linspace(-4.5, 4.5, 141)  # 0.064 apart: 0.7 of the state's noise down to a variance of 0.0085
    model = epf.models.stochastic_volatility()
    kernel = jnp.exp(jax.vmap(lambda x_prev: model.transition(theta, x_prev, None).log_prob(x))(x)) * (x[1] - x[0])
    p = jnp.exp(model.initial(theta).log_prob(x)) * (x[1] - x[0])

    def step(carry, y):
        p, total = carry
        p = (p @ kernel) * jnp.exp(model.observation(theta, x, None).log_prob(y))
        total = total + jnp.log(p.sum())
        return (p / p.sum(), total), total

    return jax.lax.scan(step, (p, jnp.zeros(())), y)[1]


def volatility_gold(model: epf.StateSpaceModel, y: Any) -> exact.GridPosterior:
    """On a coarse grid first, then on one that follows the posterior."""
    coarse = {
        "level": np.linspace(-2.0, 2.0, 15), "persistence": np.linspace(0.5, 0.999, 17),
        "variance": np.geomspace(0.006, 0.5, 15),
    }  # fmt: skip
    found = exact.posterior(model, coarse, volatility_log_evidence, y)
    mean, sd = (jax.tree.map(lambda a: float(a[-1]), part) for part in (found.mean, found.sd))
    low, high = 0.2 * mean["variance"], mean["variance"] + 8.0 * sd["variance"]
    fine = {
        "level": np.linspace(mean["level"] - 6.0 * sd["level"], mean["level"] + 6.0 * sd["level"], 17),
        "persistence": np.linspace(mean["persistence"] - 7.0 * sd["persistence"], 0.9995, 25),
        "variance": np.geomspace(max(low, 0.006), high, 21),
    }
    return exact.posterior(model, fine, volatility_log_evidence, y)


def kalman_gold(axes: dict[str, Any], model: epf.StateSpaceModel, y: Any) -> exact.GridPosterior:
    """On a coarse grid, then around what it finds."""
    found = exact.kalman(model, y, axes)
    fine = exact.axes_around(found, num=33)
    inside = {name: np.clip(fine[name], axes[name][0], axes[name][-1]) for name in axes}
    return exact.kalman(model, y, {name: np.unique(axis) for name, axis in inside.items()})


CONTESTS = {
    "sin": Contest(epf.models.sinusoid, {"theta": 0.7}, 1000, sinusoid.posterior),
    "cauchy": Contest(
        epf.models.cauchy_ar1,
        {"a": 0.7},
        1000,
        lambda model, y: solve(CAUCHY, y),
        lambda model: epf.guided(near_or_far),
    ),
    "star": Contest(epf.models.star, {"gamma": 1.0, "c": 3.0}, 1000, star.posterior),
    "ar1": Contest(epf.models.ar1, {"phi": 0.7}, 1000, partial(kalman_gold, {"phi": np.linspace(-1.0, 1.2, 111)})),
    "volatility": Contest(
        epf.models.stochastic_volatility, {"level": 0.0, "persistence": 0.95, "variance": 0.05}, 300, volatility_gold
    ),
    "cycle": Contest(
        cycle,
        {"damping": 0.9, "frequency": 0.5},
        300,
        partial(kalman_gold, {"damping": np.linspace(0.3, 0.995, 51), "frequency": np.linspace(0.1, 1.2, 51)}),
    ),
}


def online(build: Callable[..., epf.Filter]) -> Callable[..., Estimate]:
    """An estimate by a filter of this library, `build(model, size, num_steps, proposal)`."""
    kept = cache(build)  # one filter for all series of a job, so that it compiles once

    def estimate(key, model, y, size, proposal):
        results = epf.run(key, kept(model, size, len(y), proposal), y, levels=LEVELS)
        last = jax.tree.map(lambda leaf: leaf[-1], (results.theta.mean, results.theta.sd, results.theta.quantiles))
        return Estimate(*last, results.log_evidence[-1])

    return estimate


def by_chains(sample: Callable[..., Any]) -> Callable[..., Estimate]:
    """An estimate by Markov chains."""

    def estimate(key, model, y, size, proposal):
        num_particles, num_draws = size
        sizes = {"num_particles": num_particles, "num_draws": num_draws, "num_warmup": num_draws // 2}
        chains = sample(key, model, y, proposal=proposal, **sizes)
        return Estimate(chains.mean, chains.sd, chains.quantiles(LEVELS), np.nan)

    return estimate


def by_peer(method: Callable[..., tuple]) -> Callable[..., Estimate]:
    """An estimate by a method of another library."""
    return lambda *given: Estimate(*method(*given))


def smc2(model, size, num_steps, proposal):
    num_particles, num_inner = size
    return epf.smc2_filter(model, num_particles, max_steps=num_steps, num_inner=num_inner, proposal=proposal)


def storvik_fits(model: epf.StateSpaceModel) -> bool:
    """Whether Storvik's filter finds an exact statistic by itself."""
    try:
        epf.storvik_filter(model, 10)
    except ValueError:
        return False
    return True


def adapts(model: epf.StateSpaceModel) -> bool:
    """Whether the fully adapted proposal fits."""
    try:
        epf.fully_adapted(model)
    except ValueError:
        return False
    return True


def assumed_density(model, size, num_steps, proposal):
    statistic = epf.assumed_density(model)
    return epf.extended_parameter_filter(model, size, statistic=statistic, proposal=proposal)


CONTESTANTS = [
    Contestant("SIR", (2000, 20_000), online(lambda m, n, _, q: epf.bootstrap_filter(m, n, proposal=q))),
    Contestant("Liu-West", (1000, 10_000), online(lambda m, n, _, q: epf.liu_west_filter(m, n))),
    Contestant(
        "Storvik", (250, 2500), online(lambda m, n, _, q: epf.storvik_filter(m, n, proposal=q)), fits=storvik_fits
    ),
    Contestant(
        "Storvik, wider prior",
        (500, 5000),
        online(lambda m, n, _, q: learned_widely(m, n)),
        fits=lambda model: set(model.prior) == {"a"},  # the Cauchy model alone calls its parameter so
    ),
    Contestant(
        "EPF (default)", (250, 2500), online(lambda m, n, _, q: epf.extended_parameter_filter(m, n, proposal=q))
    ),
    Contestant("EPF, assumed density", (250, 2500), online(assumed_density)),
    Contestant(
        "particle learning", (250, 2500), online(lambda m, n, _, q: epf.particle_learning_filter(m, n)), fits=adapts
    ),
    Contestant("practical filter", (50, 250), online(lambda m, n, _, q: epf.practical_filter(m, n, proposal=q))),
    Contestant(
        "resample-move",
        (250, 2500),
        online(lambda m, n, steps, q: epf.resample_move_filter(m, n, max_steps=steps, proposal=q)),
    ),
    Contestant("online EM", (100, 500), online(lambda m, n, _, q: epf.online_em(m, n, proposal=q))),
    Contestant("node filter", (16, 64), online(lambda m, n, _, q: epf.node_filter(m, n, proposal=q))),
    Contestant("SMC^2", ((64, 32), (256, 64)), online(smc2)),
    Contestant("PMMH", ((50, 200), (100, 500)), by_chains(epf.pmmh), online=False),
    Contestant("particle Gibbs", ((10, 100), (20, 300)), by_chains(epf.particle_gibbs), online=False),
    Contestant("smcx: Liu-West", (1000, 10_000), by_peer(peer_methods.smcx_liu_west), needs="smcx"),
    Contestant("smcx: SMC^2", ((64, 64), (256, 256)), by_peer(peer_methods.smcx_smc2), needs="smcx", most=300),
    Contestant(
        "particles: SMC^2",
        ((64, 32), (256, 64)),
        by_peer(peer_methods.particles_smc2),
        fits=lambda model: peer_methods.particles_model(model) is not None,
        needs="particles",
        most=300,
    ),
]
BY_LABEL = {contestant.label: contestant for contestant in CONTESTANTS}


@cache
def data(name: str, num_series: int) -> tuple[np.ndarray, list[exact.GridPosterior]]:
    """The series, and the exact posterior of each at the last observation; golds are kept in a file."""
    y = np.stack([_series(name, i) for i in range(num_series)])
    return y, [_gold(name, i, row) for i, row in enumerate(y)]


def _series(name: str, i: int) -> np.ndarray:
    contest = CONTESTS[name]
    with jax.enable_x64(True):
        key = jax.random.fold_in(jax.random.key(DATA_SEED), i)
        return np.asarray(epf.simulate(key, contest.model(), contest.truth, contest.num_steps)[1])


def _gold_path(name: str, i: int) -> pathlib.Path:
    return RESULTS / "golds" / f"{name}-{i}.npz"


def _gold(name: str, i: int, y: np.ndarray) -> exact.GridPosterior:
    path, contest = _gold_path(name, i), CONTESTS[name]
    if not path.exists():
        with jax.enable_x64(True):
            found = contest.gold(contest.model(), jnp.asarray(y))
        path.parent.mkdir(exist_ok=True)
        axes = {f"axis_{k}": np.asarray(v) for k, v in found.axes.items()}
        np.savez(path, log_density=found.log_density[-1:], log_evidence=found.log_evidence[-1:], **axes)
    with np.load(path) as kept:
        axes = {k: kept[f"axis_{k}"] for k in sorted(contest.truth)}
        return exact.GridPosterior(axes, kept["log_density"], kept["log_evidence"])


def find_gold(task: tuple[str, int]) -> None:
    """One gold, for the pool."""
    name, i = task
    _gold(name, i, _series(name, i))


def mass_inside(gold: exact.GridPosterior, name: str, interval: Any) -> float:
    """The exact posterior's mass in an interval of one parameter."""
    axis, density = gold.axes[name], gold.marginal()[name][-1]
    cdf = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(axis))])
    low, high = np.interp(np.asarray(interval), axis, cdf / cdf[-1])
    return float(high - low)


def contend(task: tuple[str, str, int, int]) -> dict[str, Any]:
    """One method at one budget on every series of one model: its row."""
    name, label, budget, num_series = task
    contest, contestant = CONTESTS[name], BY_LABEL[label]
    y, golds = data(name, num_series)
    model, size = contest.model(), contestant.sizes[budget]
    proposal = contest.proposal(model)
    row: dict[str, Any] = {"model": name, "method": label, "budget": ("small", "large")[budget], "size": str(size)}
    if contestant.needs and importlib.util.find_spec(contestant.needs) is None:
        return {**row, "skipped": f"{contestant.needs} is not installed"}
    if contestant.most is not None and contest.num_steps > contestant.most:
        return {**row, "skipped": f"takes minutes for a series of {contest.num_steps}"}
    if not contestant.fits(model):
        return {**row, "skipped": "does not fit the model"}
    estimates, seconds = [], []
    with np.errstate(all="ignore"):
        for i, series in enumerate(y):
            series = jnp.asarray(series, float)
            key = jax.random.fold_in(jax.random.key(METHOD_SEED), i)
            if i == 0:
                jax.block_until_ready(contestant.estimate(key, model, series, size, proposal))  # compile
            start = time.perf_counter()
            estimates.append(
                jax.device_get(jax.block_until_ready(contestant.estimate(key, model, series, size, proposal)))
            )
            seconds.append(time.perf_counter() - start)
    parts = {}
    for parameter in sorted(contest.truth):
        exact_mean, exact_sd = (
            np.array([float(getattr(g, what)[parameter][-1]) for g in golds]) for what in ("mean", "sd")
        )
        z = (np.array([float(e.mean[parameter]) for e in estimates]) - exact_mean) / exact_sd
        sdr = np.median(np.array([float(e.sd[parameter]) for e in estimates]) / exact_sd)
        covered = np.mean(
            [mass_inside(g, parameter, e.interval[parameter]) for g, e in zip(golds, estimates, strict=True)]
        )
        parts[parameter] = {
            "z rms": float(np.sqrt(np.mean(z**2))), "z max": float(np.max(np.abs(z))), "sdr": float(sdr),
            "coverage": float(covered), "z": [round(float(value), 4) for value in z],
        }  # fmt: skip
    worst = {k: v for k, v in max(parts.values(), key=lambda part: part["z rms"]).items() if k != "z"}
    errors = np.array(
        [float(e.log_evidence) - float(g.log_evidence[-1]) for e, g in zip(estimates, golds, strict=True)]
    )
    each = float(np.median(seconds))
    evidence = {} if np.isnan(errors).any() else {"log-evidence error, rms": float(np.sqrt(np.mean(errors**2)))}
    here = machine()
    return {
        **row, **worst, **evidence, "seconds": each,
        "on": f"{here['processor']}, {here['cores']} cores, jax {here['jax']}",
        "ms per new observation": 1e3 * (each / contest.num_steps if contestant.online else each),
        "parameters": parts,
    }  # fmt: skip


def recorded(contend: Callable, task: Any) -> dict[str, Any]:
    """The row, or why there is none; one method's failure stops no other."""
    try:
        return contend(task)
    except Exception as error:
        name, label, budget, _ = task
        row = {"model": name, "method": label, "budget": ("small", "large")[budget]}
        return {**row, "failed": f"{type(error).__name__}: {error}"[:300]}


def draw(rows: list[dict[str, Any]]) -> None:
    """Error against seconds for every model: each method a line from its small to its large budget."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 8))
    colours = dict(zip(BY_LABEL, plt.get_cmap("tab20").colors, strict=False))
    for axis, name in zip(axes.flat, CONTESTS, strict=True):
        for label in BY_LABEL:
            found = [r for r in rows if r["model"] == name and r["method"] == label and "z rms" in r]
            points = sorted((r["seconds"], r["z rms"]) for r in found)
            if points:
                online = BY_LABEL[label].online
                axis.plot(
                    *zip(*points, strict=True), "o-" if online else "s--", color=colours[label], label=label, ms=5
                )
        axis.set(xscale="log", yscale="log", title=name, xlim=(0.02, 40.0))  # the same seconds for all
        axis.axhline(0.1, color="0.7", lw=0.8, zorder=0)
        axis.set_ylim(top=min(axis.get_ylim()[1], 30.0))
        axis.grid(alpha=0.2)
    labelled = {label: h for axis in axes.flat for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(labelled.values(), labelled.keys(), loc="lower center", ncols=7, fontsize=9, frameon=False)
    figure.supxlabel(
        "seconds for one series on one core (dashed: offline, all of them again for a new observation)", y=0.09
    )
    figure.supylabel("z rms of the worst parameter")
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(RESULTS / "league.png", dpi=100)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(CONTESTS), default=list(CONTESTS))
    parser.add_argument("--methods", nargs="+", choices=list(BY_LABEL), default=list(BY_LABEL))
    parser.add_argument("--series", type=int, default=NUM_SERIES, help="data sets of each model")
    parser.add_argument("--workers", type=int, default=1, help="processes, a core each")
    given = parser.parse_args(arguments)
    kept = RESULTS / "league.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    rows = [row for row in rows if "is not installed" not in row.get("skipped", "")]
    done = {(row["model"], row["method"], row["budget"]) for row in rows}
    missing = [(n, i) for n in given.models for i in range(given.series) if not _gold_path(n, i).exists()]
    for _ in solve_all(find_gold, missing, given.workers):
        pass
    tasks = [
        (name, label, budget, given.series)
        for budget in (1, 0)  # the longest first: the pool ends together
        for label in reversed(given.methods)
        for name in given.models
        if (name, label, ("small", "large")[budget]) not in done
    ]
    with kept.open("a") as file:
        for row in solve_all(partial(recorded, contend), tasks, given.workers, in_order=False):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(
                {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items() if k != "parameters"}, flush=True
            )
    order = {label: i for i, label in enumerate(BY_LABEL)}
    rows.sort(key=lambda r: (list(CONTESTS).index(r["model"]), order[r["method"]], r["budget"] == "large"))
    for name in given.models:
        show(name, [{k: v for k, v in r.items() if k != "parameters"} for r in rows if r["model"] == name])
    draw(rows)
    settings = {"series": given.series, "data_seed": DATA_SEED, "method_seed": METHOD_SEED, "levels": LEVELS}
    print("stored in", save("league", settings, rows))


if __name__ == "__main__":
    main()
