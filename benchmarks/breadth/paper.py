"""The paper's three models by the front door: `epf.learn` with its defaults on simulated series, against quadrature.

    python -m benchmarks.breadth.paper [sin star cauchy] [--series 12] [--seconds 60] [--workers N]

Every series is a piece of work of its own, on one core where there are several workers. Exact posteriors are kept in
benchmarks/breadth/paper.json. All three models on twelve series go to benchmarks/results/breadth_paper.json.
"""

import argparse
import json
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import epf_jax as epf
from benchmarks.accuracy.contests import CONTESTS
from benchmarks.breadth.entry import HERE, flat
from benchmarks.pool import solve_all
from benchmarks.report import save, show

GOLDS = HERE / "paper.json"
BARS = {"sin": 0.1, "star": 0.1, "cauchy": 0.3}  # of z rms
NUM_SERIES, NUM_STEPS = 12, 200
DATA_SEED = 41


class Task(NamedTuple):
    """One series of a model, and the seconds that `learn` is given."""

    model: str
    i: int
    seconds: float


def series(name: str, i: int) -> np.ndarray:
    """Drawn in double precision, at the parameters of the paper."""
    contest = CONTESTS[name]
    with jax.enable_x64(True):
        key = jax.random.fold_in(jax.random.key(DATA_SEED), i)
        return np.asarray(epf.simulate(key, contest.model(), contest.truth, NUM_STEPS)[1])


def exact(name: str, y: np.ndarray) -> dict[str, Any]:
    """The exact posterior after the last observation, in double precision."""
    with jax.enable_x64(True):
        found = CONTESTS[name].gold(CONTESTS[name].model(), jnp.asarray(y))
    mean, sd = (jax.tree.map(lambda a: float(a[-1]), part) for part in (found.mean, found.sd))
    return {"mean": mean, "sd": sd, "log_evidence": float(found.log_evidence[-1])}


def stored() -> dict[str, Any]:
    """The exact posteriors in the repository, by model and number of the series."""
    return json.loads(GOLDS.read_text()) if GOLDS.exists() else {}


def solve(task: Task) -> dict[str, Any]:
    """The row of a series: what `learn` says, and how far that is from the exact posterior."""
    name, y = task.model, series(task.model, task.i)
    gold = stored().get(f"{name} {task.i}") or exact(name, y)
    begin = time.perf_counter()
    learned = epf.learn(jax.random.key(task.i), CONTESTS[name].model(), y, seconds=task.seconds)
    seconds = time.perf_counter() - begin
    sd = flat(gold["sd"])
    return {
        "model": name, "i": task.i, "z": ((flat(learned.theta.mean) - flat(gold["mean"])) / sd).tolist(),
        "sd ratio": (flat(learned.theta.sd) / sd).tolist(), "trusted": bool(learned.trusted),
        "evidence error": float(learned.log_evidence) - gold["log_evidence"], "seconds": seconds, "gold": gold,
    }  # fmt: skip


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each model: of the worst parameter, over the series."""
    found = []
    for name in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == name]
        z, ratios = (np.array([row[what] for row in mine]) for what in ("z", "sd ratio"))
        rms = float(np.max(np.sqrt(np.mean(z**2, axis=0))))
        found.append({
            "model": name, "series": len(mine), "z rms": rms, "z max": float(np.max(np.abs(z))),
            "lowest sd ratio": float(np.min(ratios)), "highest sd ratio": float(np.max(ratios)),
            "trusted": sum(row["trusted"] for row in mine), "bar": BARS[name], "met": rms <= BARS[name],
            "median s": float(np.median([row["seconds"] for row in mine])),
        })  # fmt: skip
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="sin, star, cauchy; all by default")
    parser.add_argument("--series", type=int, default=NUM_SERIES, help="of each model")
    parser.add_argument("--seconds", type=float, default=60.0, help="that `learn` is given for a series")
    parser.add_argument("--workers", type=int, default=1, help="processes, a core each")
    given = parser.parse_args(arguments)
    # Series by series: a process that has compiled a model's program meets it again.
    tasks = [Task(name, i, given.seconds) for name in given.models or BARS for i in range(given.series)]
    rows = []
    for row in solve_all(solve, tasks, given.workers, in_order=False):
        rows.append(row)
        print({k: v for k, v in row.items() if k != "gold"}, flush=True)
    rows.sort(key=lambda row: (list(BARS).index(row["model"]), row["i"]))
    golds = stored() | {f"{row['model']} {row['i']}": row["gold"] for row in rows}
    GOLDS.write_text(json.dumps(golds, indent=1) + "\n")
    show(f"the paper's models by `learn`, T = {NUM_STEPS}", judged(rows))
    if len(rows) == len(BARS) * NUM_SERIES:
        settings = {"seconds": given.seconds, "workers": given.workers, "steps": NUM_STEPS, "series": NUM_SERIES}
        print("stored in", save("breadth_paper", settings, [{k: row[k] for k in row if k != "gold"} for row in rows]))


if __name__ == "__main__":
    main()
