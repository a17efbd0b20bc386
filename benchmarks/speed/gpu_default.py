"""One GPU: where a step of the default EPF spends its time, what a first call takes, and SMC^2 with Kalman's inside.

    python -m benchmarks.speed.gpu_default

A step's parts are found by leaving them out: each row is the default EPF with one part less. Interleaved runs,
medians, the first call apart. On a GPU a turn of XLA's loop is two steps. On a CPU nothing is timed, only counted.
"""

import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.report import save, show
from benchmarks.speed.gpu import REPEATS, THETA, extended, without_kernels
from benchmarks.speed.racing import key_of, race, running
from epf_jax.core.kernels.on_chip import scan_on_chip
from epf_jax.models.state_space import input_rows
from epf_jax.running.run import DEFAULT_LEVELS, run_jitted
from epf_jax.samplers.sampler import SampleInfo

N, STEPS, THETAS = 1000, 1000, 1000
_LAUNCHED = r" = [^=]*? (fusion|custom-call|copy|dot|sort|scatter|conditional|while|reduce|dynamic-update-slice)\("
_START = r"\n(?=(?:ENTRY )?%?[\w.\-]+ \([^\n]*\{\n)"  # of a computation


def staying() -> epf.Sampler:
    """A sampler that leaves theta where it is."""

    def step(key, theta, log_density, population=None):
        return theta, SampleInfo(jnp.ones((), theta.dtype), jnp.zeros((), int))

    return epf.Sampler(step, "none")


def parts(model: epf.StateSpaceModel) -> dict[str, epf.Filter]:
    """The default EPF, itself with one part less each, and what it is compared with."""
    default, never = epf.extended_parameter_filter, epf.when_ess_below(0.0, epf.systematic)
    kept = epf.chebyshev(model, shrink=None)
    return {
        "default EPF": default(model, N),
        "its box never moves": default(model, N, statistic=kept),
        "its theta is not redrawn": default(model, N, sampler=staying()),
        "neither": default(model, N, statistic=kept, sampler=staying()),
        "never resampled": default(model, N, resample=never),
        "no look-ahead": default(model, N, proposal=epf.bootstrap()),
        "no statistic": epf.bootstrap_filter(model, N, proposal=epf.fully_adapted(model)),
        "10 nodes": default(model, N, statistic=epf.chebyshev(model, 10)),
        "EPF, Taylor 7": extended(model, N),
        "bootstrap, theta unknown": epf.bootstrap_filter(model, N),
    }


def level_and_noise() -> epf.StateSpaceModel:
    """A local level with both scales unknown."""
    return epf.StateSpaceModel(
        prior={"q": dist.LogNormal(-1.0, 1.0), "r": dist.LogNormal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 5.0),
        transition=lambda theta, x, u: dist.Normal(x, theta["q"]),
        observation=lambda theta, x, u: dist.Normal(x, theta["r"]),
    )


def kernels(filter_: epf.Filter, y: Any) -> dict[str, Any]:
    """What XLA alone starts in one turn of the loop over time, on this device; branches are not counted."""
    rows, lowered = input_rows(None, len(y)), []
    given = (filter_, (), False, None, False, key_of(0), None, jnp.asarray(y), rows)
    without_kernels(lambda: lambda seed: lowered.append(run_jitted.lower(*given)))()
    text = lowered[0].compile().as_text()
    computations = {}
    for part in re.split(_START, text):
        computations[part.split("(")[0].replace("ENTRY", "").strip().lstrip("%")] = part

    def started(name):
        inner = re.findall(r" call\(.*?to_apply=%?([\w.\-]+)", computations[name])
        return re.findall(_LAUNCHED, computations[name]) + [kind for called in inner for kind in started(called)]

    found = [started(name) for name in re.findall(r" while\(.*?body=%?([\w.\-]+)", text)]
    most = max(found, key=len, default=[])
    told = ", ".join(f"{most.count(kind)} {kind}" for kind in sorted(set(most)))
    return {"kernels in a turn": len(most), "of which": told}


def why_not_on_chip(filter_: epf.Filter) -> str:
    """Why the filter's steps are not one kernel, in a few words; empty if they are."""
    state = jax.eval_shape(filter_.init, key_of(0))
    rows = (jax.random.split(key_of(0), 2), jnp.zeros(2), jnp.arange(2))

    def turn(state, row):
        state, info = filter_.step(row[0], state, *row[1:])
        return state, info.ess

    def scan(state):
        step, captured = jax.closure_convert(turn, state, jax.tree.map(lambda leaf: leaf[0], rows))
        return scan_on_chip(lambda *given: step(*given, *captured), N, filter_.by_particle, state, rows)

    try:
        jax.eval_shape(scan, state)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return ""


def row(work: str, taken: Any, per_step: int = N, **more: Any) -> dict[str, Any]:
    us, rate = taken.seconds / STEPS * 1e6, per_step * STEPS / taken.seconds
    evidence = statistics.mean(taken.values)
    return {"work": work, "us a step": us, "particle-steps a second": rate, "log-evidence": evidence, **more}


def summarised(filter_: epf.Filter, y: Any) -> Callable[[int], Any]:
    """The run with its default quantiles."""
    return lambda seed: np.asarray(epf.run(key_of(seed), filter_, y).log_evidence)[-1]


def of_the_default(model: epf.StateSpaceModel, y: Any) -> list[dict[str, Any]]:
    told = {name: {**kernels(f, y), "not on chip": why_not_on_chip(f)} for name, f in parts(model).items()}
    if jax.default_backend() != "gpu":
        return [{"work": name, **counted} for name, counted in told.items()]
    filters, others = parts(model), parts(model)  # built anew: what was traced without kernels stays without
    runs = {name: running(filter_, y) for name, filter_ in filters.items()}
    for name in ("default EPF", "EPF, Taylor 7"):
        runs[f"{name}, XLA alone"] = without_kernels(running)(others[name], y)
        runs[f"{name}, with quantiles"] = summarised(filters[name], y)
    return [row(name, taken, **told.get(name, {})) for name, taken in race(runs, REPEATS).items()]


def first_calls(model: epf.StateSpaceModel, y: Any) -> list[dict[str, Any]]:
    """The first call in a process that is warm, with our kernels and by XLA alone, of filters built anew."""
    if jax.default_backend() != "gpu":
        return []
    rows = []
    for name in ("default EPF", "EPF, Taylor 7"):
        for how, contestant in {"": running, ", XLA alone": without_kernels(running)}.items():
            filter_ = parts(model)[name]
            start = time.perf_counter()
            contestant(filter_, y)(0)
            rows.append({"work": f"first call of {name}{how}", "first call, s": time.perf_counter() - start})
    return rows


def of_smc2(*_: Any) -> list[dict[str, Any]]:
    """SMC^2 with Kalman's filters inside, and with fewer moves: what is left is the filters' own steps."""
    model = level_and_noise()
    _, y = epf.simulate(key_of(1), model, {"q": 0.5, "r": 1.0}, STEPS)
    built = {
        "SMC^2 with Kalman's": {},
        "1 move in place of 5": {"num_moves": 1},
        "never resampled, never moved": {"resample": epf.when_ess_below(0.0)},
    }
    filters = {
        name: epf.smc2_filter(model, THETAS, max_steps=STEPS, inner=epf.kalman(model), **given)
        for name, given in built.items()
    }
    if jax.default_backend() != "gpu":
        return [{"work": name, **kernels(filter_, y)} for name, filter_ in filters.items()]
    taken = race({name: running(filter_, y) for name, filter_ in filters.items()}, REPEATS)
    return [
        row(name, found, THETAS, **kernels(filters[name], y), **{"first call, s": found.first})
        for name, found in taken.items()
    ]


def main() -> None:
    model = epf.models.sinusoid()
    _, y = epf.simulate(key_of(0), model, THETA, STEPS)
    settings = {"particles": N, "steps": STEPS, "thetas": THETAS, "repeats": REPEATS, "levels": len(DEFAULT_LEVELS)}
    rows: list[dict[str, Any]] = []
    for measure in (of_the_default, first_calls, of_smc2):
        rows += measure(model, y)
        if jax.default_backend() == "gpu":
            save("gpu_default", settings, rows)  # as it goes: a machine that is lent may be taken back
    show("one GPU, the default EPF on SIN and SMC^2 on a local level, float32", rows)


if __name__ == "__main__":
    main()
