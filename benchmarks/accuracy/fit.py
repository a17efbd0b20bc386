"""epf.fit on data whose answer is known: two noise scales, and a neural transition, while the filter learns theta.

SIN. The noise of the state and of the sensor are learned from a start far away. An estimate is judged by the truth,
and by the exact maximum of the evidence: by quadrature over the state and over theta, climbed by Newton's method. The
maximum itself misses the truth by a few per cent, and no estimate from the same data can do much better. The start has
half the noise of the state and half as much again of the sensor. At the other end, where the sensor has a few per cent
of the variance, the evidence hardly depends on its share: a fit from noise 2 and sensor 0.4 may stay there for 150
steps. Further out on this side, noise 0.4 and sensor 2, one of the twenty (the 13th) stays away from the maximum.

NEURAL. x_t = f(x_{t-1}) + theta u_t + noise, with f learned as a small network. theta's posterior under the learned
network is judged by that under the true f, and by the truth: over many data sets z = (mean - truth) / sd should have a
root mean square of 1, and nine of ten 90% intervals should hold the truth.

`python -m benchmarks.accuracy.fit --workers 16`: one data set per process, each on one core.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from jax.scipy.special import logsumexp

import epf_jax as epf
from benchmarks.pool import solve_all
from benchmarks.report import RESULTS, save, show
from epf_jax import exact

NUM_SERIES, DATA_SEED, FIT_SEED, JUDGE_SEED = 20, 123, 7, 11

SIN = {"steps": 4000, "nodes": 11, "particles at each": 16, "b1": 0.5, "b2": 0.9}
SIN_STAGES = {  # the learning rate falls to a twentieth in each
    "by score": {"optimizer steps": 25, "learning rate": 0.15},
    "by path": {"optimizer steps": 35, "learning rate": 0.05},
}
SIN_TRUTH, SIN_START, SIN_THETA = {"noise": 1.0, "sensor": 1.0}, {"noise": 0.5, "sensor": 1.5}, 0.7
SIN_PRIOR = (0.5, 0.5)
WITHIN = 0.10  # of the truth

NEURAL = {"steps": 500, "particles": 100, "optimizer steps": 400, "patience": 50, "learning rate": 0.03, "hidden": 8}
NEURAL_THETA, NEURAL_NOISE, NEURAL_SENSOR, NEURAL_JUDGES = 0.8, 0.3, 0.3, 5000


def sinusoid(hyper: dict[str, Any]) -> epf.StateSpaceModel:
    """SIN with both noise scales unknown."""
    return epf.StateSpaceModel(
        prior={"theta": dist.Normal(*SIN_PRIOR)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(jnp.sin(theta["theta"] * x), hyper["noise"]),
        observation=lambda theta, x, u: dist.Normal(x, hyper["sensor"]),
    )


def by_ratio(hyper: dict[str, Any]) -> dict[str, Any]:
    """Both scales from their total and their ratio.

    The data tell the sum of the two variances well and its split badly: in the scales themselves the evidence is a
    narrow ridge across both axes, along which Adam, whose steps are scaled axis by axis, hardly moves.
    """
    noise = hyper["total"] / jnp.sqrt(1.0 + hyper["ratio"] ** 2)
    return {"noise": noise, "sensor": hyper["ratio"] * noise}


def sin_data(i: int) -> np.ndarray:
    """The i-th series."""
    key = jax.random.fold_in(jax.random.key(DATA_SEED), i)
    return np.asarray(epf.simulate(key, sinusoid(SIN_TRUTH), {"theta": SIN_THETA}, SIN["steps"])[1])


def sin_filter(model: epf.StateSpaceModel, gradient: str) -> epf.Filter:
    """A small filter at each of some values of theta, none of which degenerates, with one of two gradients.

    Far from the maximum, where the noise is small, paths part exponentially fast: their scores stay finite, but are
    noisy and, with a fading memory, biased. Near it paths contract, and the gradient by reparameterisation is unbiased
    and far less noisy.
    """
    by_score = gradient == "by score"
    proposal = epf.score_gradient(epf.fully_adapted(model)) if by_score else epf.fully_adapted(model)
    return epf.node_filter(
        model,
        SIN["particles at each"],
        num_nodes=SIN["nodes"],
        num_points=256,
        proposal=epf.quasi_random(proposal),
        resample=epf.stop_gradient_resampling(epf.in_order(), memory=0.95 if by_score else 1.0),
    )


def sin_fit(i: int) -> dict[str, Any]:
    """What epf.fit makes of the i-th series, in two stages."""
    y, (noise, sensor) = sin_data(i), SIN_START.values()
    hyper = {"total": math.hypot(noise, sensor), "ratio": sensor / noise}
    start, found = time.perf_counter(), {}
    for stage, size in SIN_STAGES.items():
        num_steps = size["optimizer steps"]
        fitted = epf.fit(
            lambda hyper: sinusoid(by_ratio(hyper)),
            hyper,
            y,
            key=jax.random.fold_in(jax.random.key(FIT_SEED), i),
            filter_of=lambda model, stage=stage: sin_filter(model, stage),
            optimizer=optax.adam(
                optax.cosine_decay_schedule(size["learning rate"], num_steps, alpha=0.05), b1=SIN["b1"], b2=SIN["b2"]
            ),
            num_steps=num_steps,
            patience=num_steps // 3,
            support=dist.constraints.positive,
            remat_every=16,  # as fast on one core, and sixteen of them share a memory
        )
        hyper = fitted.hyper
        found[f"ratio {stage}"] = float(hyper["ratio"])
        found[f"steps {stage}"], found[f"lost {stage}"] = len(fitted.log_evidence), fitted.num_lost
    return {
        **{name: float(value) for name, value in by_ratio(hyper).items()},
        "theta": float(fitted.results.theta.mean["theta"][-1]),
        "theta sd": float(fitted.results.theta.sd["theta"][-1]),
        **found,
        "optimizer steps": found["steps by score"] + found["steps by path"],
        "seconds": time.perf_counter() - start,
    }


def sin_maximum(i: int) -> dict[str, Any]:
    """The noise scales at the evidence's maximum, exactly, with the standard deviations that its curvature tells."""
    start = time.perf_counter()
    names = sorted(SIN_TRUTH)
    y = sin_data(i)
    with jax.enable_x64(True):
        y, nodes, grid = jnp.asarray(y, float), jnp.linspace(-8.0, 8.0, 29), jnp.linspace(0.2, 1.2, 31)
        log_prior = dist.Normal(*SIN_PRIOR).log_prob(grid)

        def log_evidence(z):
            model = sinusoid(dict(zip(names, jnp.exp(z), strict=True)))
            terms = jax.vmap(lambda value: exact.quadrature_log_evidence(model, {"theta": value}, y, nodes)[-1])(grid)
            return logsumexp(terms + log_prior)

        # Forward derivatives of two numbers: going back through 4000 steps would keep all of them in memory.
        derivatives = jax.jit(lambda z: (jax.jacfwd(log_evidence)(z), jax.jacfwd(jax.jacfwd(log_evidence))(z)))
        z, step = jnp.zeros(2), jnp.ones(2)
        for _ in range(8):
            gradient, curvature = derivatives(z)
            step = -jnp.linalg.solve(curvature, gradient)
            z = z + jnp.clip(step, -0.2, 0.2)
            if float(jnp.max(jnp.abs(step))) < 1e-3:  # Newton's next error is of the order of its square
                break
        sd = np.sqrt(np.diag(-np.linalg.inv(curvature)))
        z, step = np.asarray(z), np.asarray(step)
    found = {name: float(value) for name, value in zip(names, np.exp(z), strict=True)}
    spread = {f"{name} sd": float(value) for name, value in zip(names, sd, strict=True)}
    converged = bool(np.max(np.abs(step)) < 1e-3)
    return {**found, **spread, "converged": converged, "seconds": time.perf_counter() - start}


def true_transition(x: Any) -> Any:
    """What the network is to learn."""
    return 1.5 * jnp.sin(x)


def network(weights: dict[str, Any], x: Any) -> Any:
    """One hidden layer of tanh."""
    return weights["out"] @ jnp.tanh(weights["in"] * x + weights["bias"]) + weights["level"]


def first_weights(key: Any) -> dict[str, Any]:
    """Weights to start from: bends spread over the range of the data, and an output near zero."""
    key_in, key_bias, key_out = jax.random.split(key, 3)
    hidden = NEURAL["hidden"]
    return {
        "in": jax.random.normal(key_in, (hidden,)),
        "bias": jax.random.normal(key_bias, (hidden,)),
        "out": 0.3 * jax.random.normal(key_out, (hidden,)),
        "level": jnp.zeros(()),
    }


def driven(transition: Callable) -> epf.StateSpaceModel:
    """x_t = transition(x_{t-1}) + theta u_t + noise, observed with noise."""
    return epf.StateSpaceModel(
        prior={"theta": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(transition(x) + theta["theta"] * u, NEURAL_NOISE),
        observation=lambda theta, x, u: dist.Normal(x, NEURAL_SENSOR),
    )


def neural_fit(i: int) -> dict[str, Any]:
    """The posterior of theta for the i-th series under the learned network and under the true transition."""
    key_u, key_data = jax.random.split(jax.random.fold_in(jax.random.key(DATA_SEED), i))
    key_weights, key_fit = jax.random.split(jax.random.fold_in(jax.random.key(FIT_SEED), i))
    u = jax.random.normal(key_u, (NEURAL["steps"],))
    x, y = epf.simulate(key_data, driven(true_transition), {"theta": NEURAL_THETA}, NEURAL["steps"], inputs=u)
    start = time.perf_counter()
    fitted = epf.fit(
        lambda weights: driven(lambda x: network(weights, x)),
        first_weights(key_weights),
        y,
        key=key_fit,
        num_particles=NEURAL["particles"],
        optimizer=optax.adam(NEURAL["learning rate"]),
        num_steps=NEURAL["optimizer steps"],
        patience=NEURAL["patience"],
        inputs=u,
    )
    seconds = time.perf_counter() - start
    row = {"optimizer steps": len(fitted.log_evidence), "lost": fitted.num_lost, "seconds": seconds}
    for name, f in (("learned", lambda x: network(fitted.hyper, x)), ("true", true_transition)):
        filter_ = epf.extended_parameter_filter(driven(f), NEURAL_JUDGES)
        key_judge = jax.random.fold_in(jax.random.key(JUDGE_SEED), i)
        results = epf.run(key_judge, filter_, y, inputs=u, levels=(0.05, 0.95))
        low, high = map(float, results.theta.quantiles["theta"][-1])
        row[f"{name} mean"] = float(results.theta.mean["theta"][-1])
        row[f"{name} sd"] = float(results.theta.sd["theta"][-1])
        row[f"{name} holds the truth"] = low <= NEURAL_THETA <= high
        row[f"{name} log-evidence"] = float(results.log_evidence[-1])
    wanted, found = true_transition(x), jax.vmap(lambda x: network(fitted.hyper, x))(x)
    row["network error"] = float(jnp.sqrt(jnp.mean((found - wanted) ** 2)) / jnp.std(wanted))
    return row


def sin_rows(fits: list[dict[str, Any]], maxima: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each noise scale as epf.fit finds it, and one for its exact maximum."""
    rows = []
    for label, found in (("epf.fit", fits), ("exact maximum", maxima)):
        for name, truth in SIN_TRUTH.items():
            value, best = np.array([f[name] for f in found]), np.array([m[name] for m in maxima])
            off, from_best = np.abs(value / truth - 1.0), np.abs(value / best - 1.0)
            row = {
                "model": "SIN",
                "estimate": label,
                "of": name,
                "truth": truth,
                "started at": SIN_START[name] if found is fits else truth,
                "median": float(np.median(value)),
                "off the truth, median": float(np.median(off)),
                "off the truth, max": float(off.max()),
                f"within {WITHIN:.0%}": f"{int(np.sum(off <= WITHIN))} of {len(off)}",
            }
            if found is fits:
                row["off the maximum, median"] = float(np.median(from_best))
                row["off the maximum, max"] = float(from_best.max())
                row["optimizer steps, median"] = int(np.median([f["optimizer steps"] for f in fits]))
            row["seconds, median"] = float(np.median([f["seconds"] for f in found]))
            rows.append(row)
    return rows


def neural_rows(fits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The posterior of theta under the learned network and under the true transition."""
    column = {name: np.array([f[name] for f in fits]) for name in fits[0]}
    rows = []
    for name in ("learned", "true"):
        mean, sd = column[f"{name} mean"], column[f"{name} sd"]
        rms = float(np.sqrt(np.mean(((mean - NEURAL_THETA) / sd) ** 2)))
        held = int(np.sum(column[f"{name} holds the truth"]))
        row = {
            "model": "NEURAL",
            "transition": name,
            "z rms to the truth": rms,
            "90% intervals that hold it": f"{held} of {len(mean)}",
            "calibrated": 0.7 <= rms <= 1.3 and held >= 0.75 * len(mean),
        }
        if name == "learned":
            z = (mean - column["true mean"]) / column["true sd"]
            row["z rms to the true transition's"] = float(np.sqrt(np.mean(z**2)))
            row["z max to it"] = float(np.max(np.abs(z)))
            row["sd ratio to it, median"] = float(np.median(sd / column["true sd"]))
            row["sd ratio, range"] = f"{np.min(sd / column['true sd']):.2f} to {np.max(sd / column['true sd']):.2f}"
            row["network error / sd of f, median"] = float(np.median(column["network error"]))
            row["network error, max"] = float(np.max(column["network error"]))
            row["optimizer steps, median"] = int(np.median(column["optimizer steps"]))
            row["seconds, median"] = float(np.median(column["seconds"]))
        rows.append(row)
    return rows


def solve(task: tuple[Callable[[int], dict[str, Any]], int]) -> dict[str, Any]:
    """One data set by one method."""
    job, i = task
    found = job(i)
    print(f"{job.__name__} {i}:", {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}, flush=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=NUM_SERIES, help="data sets of each model")
    parser.add_argument("--part", choices=("sin", "neural"), help="one model alone; the other's stored rows are kept")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    given = parser.parse_args(arguments)
    jobs = {"sin": (sin_fit, sin_maximum), "neural": (neural_fit,)}  # the longest first: the pool ends together
    chosen = [job for part, jobs in jobs.items() if given.part in (None, part) for job in jobs]
    start = time.perf_counter()
    found = list(solve_all(solve, [(job, i) for job in chosen for i in range(given.series)], given.workers))
    seconds = time.perf_counter() - start
    by_job = {job.__name__: found[k * given.series : (k + 1) * given.series] for k, job in enumerate(chosen)}
    rows: list[dict[str, Any]] = []
    if "sin_fit" in by_job:
        rows += sin_rows(by_job["sin_fit"], by_job["sin_maximum"])
        show(f"SIN: {given.series} data sets, T = {SIN['steps']}", rows)
    if "neural_fit" in by_job:
        rows += neural_rows(by_job["neural_fit"])
        show(f"NEURAL: {given.series} data sets, T = {NEURAL['steps']}", rows[-2:])
    print(f"{seconds:.0f} s with {given.workers} processes")
    if given.series != NUM_SERIES:
        print(f"stored nothing: the tables are of {NUM_SERIES} series")
        return
    run = {"series": given.series, "workers": given.workers, "seconds": seconds}
    sin = {"stages": SIN_STAGES, "theta": SIN_THETA, "prior": SIN_PRIOR, "truth": SIN_TRUTH, "start": SIN_START}
    neural = {"theta": NEURAL_THETA, "noise": NEURAL_NOISE, "sensor": NEURAL_SENSOR, "judges": NEURAL_JUDGES}
    about: dict[str, Any] = {"sin": {**run, **SIN, **sin}, "neural": {**run, **NEURAL, **neural}}
    if given.part is not None:
        stored = json.loads((RESULTS / "accuracy_fit.json").read_text())
        rows = sorted(
            rows + [r for r in stored["rows"] if r["model"].lower() != given.part], key=lambda r: r["model"] != "SIN"
        )
        by_job = {**stored["settings"]["per series"], **by_job}
        about = {part: about[part] if part == given.part else stored["settings"][part] for part in about}
    settings = {
        **about, "data_seed": DATA_SEED, "fit_seed": FIT_SEED, "judge_seed": JUDGE_SEED, "per series": by_job
    }  # fmt: skip
    print("stored in", save("accuracy_fit", settings, rows))


if __name__ == "__main__":
    main()
