"""One model by one method, twice in a fresh process: what `python -m benchmarks.breadth` runs for every row.

    python -m benchmarks.breadth.one NAME METHOD SECONDS STARTED

STARTED is the time at which this process was asked for: cold seconds count the imports. The row is the last line.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import epf_jax as epf
from benchmarks.breadth import nuts
from benchmarks.breadth.entry import Case, flat, golds
from benchmarks.breadth.models import cases
from epf_jax.core.machine import machine

DRAWS = 1000  # of each chain, after as many to warm up


class Answer(NamedTuple):
    """What a method says; `told` is whether it trusts itself, None where it never says."""

    mean: np.ndarray
    sd: np.ndarray
    log_evidence: float | None = None
    told: bool | None = None
    more: dict[str, Any] | None = None


def by_learn(case: Case, seed: int, seconds: float) -> Answer:
    """The front door."""
    learned = epf.learn(jax.random.key(seed), case.model, case.y, inputs=case.inputs, seconds=seconds)
    errors = np.max(np.abs(flat(learned.error)))
    more = {"error told": float(errors), "evidence error told": float(learned.log_evidence_error)}
    mean, sd = flat(learned.theta.mean), flat(learned.theta.sd)
    return Answer(mean, sd, float(learned.log_evidence), bool(learned.trusted), more)


def by_default(case: Case, seed: int, seconds: float) -> Answer:
    """The default filter, which takes the time that it takes."""
    filter_ = epf.extended_parameter_filter(case.model, num_particles=1000)
    results = epf.run(jax.random.key(seed), filter_, case.y, inputs=case.inputs)
    mean, sd = (
        flat(jax.tree.map(lambda a: np.asarray(a)[-1], part)) for part in (results.theta.mean, results.theta.sd)
    )
    return Answer(mean, sd, float(results.log_evidence[-1]))


def by_findings(case: Case, seed: int, seconds: float) -> Answer:
    """The default filter, and the worst that `diagnose` finds of it."""
    results = epf.run(jax.random.key(seed), epf.extended_parameter_filter(case.model, 1000), case.y, inputs=case.inputs)
    mean, sd = (
        flat(jax.tree.map(lambda a: np.asarray(a)[-1], part)) for part in (results.theta.mean, results.theta.sd)
    )
    found = results.diagnose(seconds=seconds)
    grade = found[0].grade if found else "harmless"
    more = {"grade": grade, "findings": repr(found), "evidence error told": results.log_evidence_error}
    return Answer(mean, sd, float(results.log_evidence[-1]), grade == "harmless", more)


def by_nuts(case: Case, seed: int, seconds: float) -> Answer:
    """NUTS on the joint density: four chains of a thousand draws, whatever they take."""
    found = nuts.posterior(case, nuts.joint(case), seconds=0.0, draws=DRAWS, enough=0.0, warm_up=DRAWS, seed=seed)
    rows = found["parameters"].values()
    mean, sd = (np.array([row[what] for row in rows]) for what in ("mean", "sd"))
    return Answer(mean, sd, None, found["r_hat"] < 1.01, {"ess": found["ess"], "r_hat": found["r_hat"]})


METHODS: dict[str, Callable[[Case, int, float], Answer]] = {
    "learn": by_learn, "default": by_default, "nuts": by_nuts, "findings": by_findings,
}  # fmt: skip


def judged(name: str, answer: Answer) -> dict[str, Any]:
    """How far the answer is from the gold."""
    gold = golds()[name]
    mean, sd = (np.array([row[what] for row in gold["parameters"].values()]) for what in ("mean", "sd"))
    z, ratio = (answer.mean - mean) / sd, answer.sd / sd
    worst = float(np.max(np.abs(z))) if np.all(np.isfinite(z)) else float("inf")
    evidence = {} if answer.log_evidence is None else {"evidence error": answer.log_evidence - gold["log_evidence"]}
    return {
        "worst z": worst, "lowest sd ratio": float(np.min(ratio)), "highest sd ratio": float(np.max(ratio)), **evidence,
        "trusted": answer.told, **(answer.more or {}), "z": dict(zip(gold["parameters"], z.tolist(), strict=True)),
        "sd ratio": dict(zip(gold["parameters"], ratio.tolist(), strict=True)),
    }  # fmt: skip


def main() -> None:
    name, method, seconds, started = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    (case,) = cases([name])
    answer = METHODS[method](case, 0, seconds)
    cold = time.time() - started
    begin = time.perf_counter()
    METHODS[method](case, 1, seconds)
    warm = time.perf_counter() - begin
    row = {"model": name, "half": case.half, "method": method, "seconds": seconds, "cold s": cold, "warm s": warm}
    print(json.dumps({**row, **judged(name, answer), "machine": machine()}), flush=True)


if __name__ == "__main__":
    main()
