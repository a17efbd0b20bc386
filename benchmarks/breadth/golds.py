"""The right answer for every model of the breadth table, by two methods that have to agree.

    python -m benchmarks.breadth.golds --workers 16 --seconds 100 --out DIR [names...]

Every opinion is a piece of work of its own: it is written to DIR/NAME.OPINION.json as it is finished, and is not
computed again. At the end the golds of all models whose two opinions are there go to golds.json: the one with the
smaller errors, and how far the other is from it. A gold counts where means agree within .1 sd, and sds within 10%:
`agree` says whether.
"""

import argparse
import json
import pathlib
import time
import traceback
from typing import Any, NamedTuple

import jax

from benchmarks.breadth import importance, likelihoods, nuts
from benchmarks.breadth.entry import GOLDS, Case
from benchmarks.breadth.models import ENTRIES, cases
from benchmarks.pool import solve_all
from epf_jax.core.machine import machine

MEAN_APART, SD_APART = 0.1, 0.1


class Task(NamedTuple):
    """One opinion on one model; `size` scales draws and particles, 1 for the golds."""

    name: str
    opinion: str
    seconds: float
    size: float
    folder: str

    @property
    def path(self) -> pathlib.Path:
        """Where it is written."""
        return pathlib.Path(self.folder) / f"{self.name}.{self.opinion}.json"


def by_kalman(case: Case, seconds: float, size: float) -> dict[str, Any]:
    target = importance.target_of(case, likelihoods.kalman(case), 1, 256)
    num = _power_of_two(2048 * size)
    return importance.posterior(case, target, target, seconds=seconds, num=num, enough=20_000 * size)


def by_particles(case: Case, seconds: float, size: float) -> dict[str, Any]:
    num = max(int(case.entry.num_inner * size), 20)
    pilot = importance.target_of(case, likelihoods.particles(case, num // 4), 2, 32)
    target = importance.target_of(case, likelihoods.particles(case, num), 3, 32)
    return importance.posterior(case, pilot, target, seconds=seconds, num=_power_of_two(256 * size), enough=8000 * size)


def by_quadrature(case: Case, seconds: float, size: float) -> dict[str, Any]:
    pilot = importance.target_of(case, likelihoods.particles(case, max(int(250 * size), 20)), 2, 32)
    target = importance.target_of(case, likelihoods.quadrature(case), 4, 4)
    return importance.posterior(case, pilot, target, seconds=seconds, num=_power_of_two(128 * size), enough=2000 * size)


def by_joint_nuts(case: Case, seconds: float, size: float) -> dict[str, Any]:
    return _by_nuts(case, nuts.joint(case), seconds, size)


def by_marginal_nuts(case: Case, seconds: float, size: float) -> dict[str, Any]:
    return _by_nuts(case, nuts.marginal(case), seconds, size)


def _by_nuts(case: Case, density: nuts.Density, seconds: float, size: float) -> dict[str, Any]:
    draws, warm_up = max(int(1000 * size), 20), max(int(nuts.WARM_UP * size), 20)
    return nuts.posterior(case, density, seconds=seconds, draws=draws, enough=2000 * size, warm_up=warm_up)


def _power_of_two(number: float) -> int:
    return 1 << max(round(number).bit_length() - 1, 4)


METHODS = {
    "kalman": by_kalman, "particles": by_particles, "quadrature": by_quadrature, "joint_nuts": by_joint_nuts,
    "marginal_nuts": by_marginal_nuts,
}  # fmt: skip


def solve(task: Task) -> str:
    """Write the opinion, or why there is none; a line that says how it went."""
    begin = time.time()
    jax.config.update("jax_enable_x64", task.opinion not in ("particles",))
    (case,) = cases([task.name])
    try:
        found = METHODS[task.opinion](case, task.seconds, task.size)
    except Exception:  # one model must not take the others with it; the reason is kept beside them
        task.path.with_suffix(".failed").write_text(traceback.format_exc())
        return f"{task.name:22} {task.opinion:14} FAILED, {time.time() - begin:6.1f} s: {_last_line()}"
    task.path.write_text(json.dumps({**found, "machine": machine()}, indent=1) + "\n")
    errors = [row["mean_error"] / row["sd"] for row in found["parameters"].values()]
    return (
        f"{task.name:22} {task.opinion:14} ess {found['ess']:8.0f} of {found['draws']:6d}, error {max(errors):5.3f} sd,"
        f" {time.time() - begin:6.1f} s"
    )


def _last_line() -> str:
    return traceback.format_exc().strip().splitlines()[-1]


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The gold of two opinions, (name, what was found): the one with the smaller error, and how far the other is."""
    chosen, other = sorted((first, second), key=_error)
    apart = [
        abs(row["mean"] - other["parameters"][name]["mean"]) / row["sd"] for name, row in chosen["parameters"].items()
    ]
    ratios = [other["parameters"][name]["sd"] / row["sd"] for name, row in chosen["parameters"].items()]
    with_evidence = chosen if "log_evidence" in chosen else other
    return {
        "parameters": chosen["parameters"],
        **{k: with_evidence[k] for k in ("log_evidence", "log_evidence_error")},
        "method": chosen["opinion"], "ess": chosen["ess"],
        "second": other["opinion"], "second_ess": other["ess"],
        "means_apart": max(apart), "sd_ratios": [min(ratios), max(ratios)],
        "agree": max(apart) <= MEAN_APART and min(ratios) >= 1 - SD_APART and max(ratios) <= 1 + SD_APART,
    }  # fmt: skip


def _error(found: dict[str, Any]) -> float:
    return max(row["mean_error"] / row["sd"] for row in found["parameters"].values())


def merge(folder: pathlib.Path, known: dict[str, Any]) -> dict[str, Any]:
    """The golds that are known, and those of every model of which the folder has both opinions."""
    for name, entry in ENTRIES.items():
        paths = [folder / f"{name}.{opinion}.json" for opinion in entry.opinions]
        if all(path.exists() for path in paths):
            opinions = zip(entry.opinions, paths, strict=True)
            known[name] = merged(*({"opinion": o, **json.loads(path.read_text())} for o, path in opinions))
            gold = known[name]
            low, high = gold["sd_ratios"]
            print(
                f"{name:22} {'agree' if gold['agree'] else 'DISAGREE':8} means {gold['means_apart']:.3f} sd apart, "
                f"sds {low:.2f} to {high:.2f}; {gold['method']} {gold['ess']:.0f}, {gold['second']} "
                f"{gold['second_ess']:.0f}, log evidence {gold['log_evidence']:.2f} +- {gold['log_evidence_error']:.2f}"
            )
    return {name: known[name] for name in ENTRIES if name in known}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models; all by default")
    parser.add_argument("--workers", type=int, default=1, help="processes, a core each")
    parser.add_argument("--seconds", type=float, default=100.0, help="for one opinion, compilation left out")
    parser.add_argument("--size", type=float, default=1.0, help="of draws and particles; below 1 to try things out")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the opinions")
    parser.add_argument("--store", action="store_true", help="put the golds into the repository")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    tasks = [
        Task(name, opinion, given.seconds, given.size, str(given.out))
        for name in given.names or ENTRIES
        for opinion in ENTRIES[name].opinions
    ]
    slow = ("quadrature", "particles", "joint_nuts")  # first, so that the pool ends together
    to_do = sorted((t for t in tasks if not t.path.exists()), key=lambda task: task.opinion not in slow)
    for line in solve_all(solve, to_do, given.workers, in_order=False):
        print(line, flush=True)
    known = json.loads(GOLDS.read_text()) if given.store and GOLDS.exists() else {}
    path = GOLDS if given.store else given.out / "golds.json"
    path.write_text(json.dumps(merge(given.out, known), indent=1) + "\n")
    print("written to", path)


if __name__ == "__main__":
    main()
