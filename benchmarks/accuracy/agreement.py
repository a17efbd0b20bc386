"""Stochastic volatility, three parameters: do three ways to the exact posterior agree, and how far off are the others?

`node_filter`, `smc2_filter` and `pmmh` at sizes whose own Monte Carlo error is small, on the league's series; beside
them Storvik's filter and the default EPF, whose paths degenerate, at the league's large budget. Distances are those of
posterior means at the last observation, in exact standard deviations.

    python -m benchmarks.accuracy.agreement [--methods ...] [--series 20] [--workers 2]

Finished rows are kept in `agreement.jsonl` beside the table; the same command goes on from there.
"""

import argparse
import itertools
import json
from typing import Any, NamedTuple

import numpy as np

import epf_jax as epf
from benchmarks.accuracy.contestants import BY_LABEL, online
from benchmarks.accuracy.contests import CONTESTS, DATA_SEED, data
from benchmarks.accuracy.league import METHOD_SEED, NUM_SERIES, estimates, identity, judged, kept_rows
from benchmarks.pool import solve_all
from benchmarks.report import RESULTS, save, show
from epf_jax.core.machine import machine

MODEL, BAR = "volatility", 0.3
# Level, persistence, variance: the nearer persistence is to one, the less the data say of the level. The box is as wide
# as the widest of these posteriors, and the narrowest is to be read in it: more nodes along the level than by default.
NODES = (21, 15, 11)
CONTESTANTS = {
    **BY_LABEL,
    "node filter": BY_LABEL["node filter"]._replace(
        estimate=online(lambda m, n, _, q: epf.node_filter(m, n, num_nodes=NODES, proposal=q))
    ),
}
SIZES = {"node filter": 256, "SMC^2": (4096, 64), "PMMH": (100, 4000), "Storvik": 2500, "EPF (default)": 1000}
EXACT = ("node filter", "SMC^2", "PMMH")


class Task(NamedTuple):
    """One method on so many series."""

    method: str
    num_series: int

    @property
    def row(self) -> dict[str, Any]:
        """What the row starts with."""
        size = str(SIZES[self.method])
        return {"model": MODEL, "method": self.method, "budget": "agreement", "size": size, "series": self.num_series}


def row_of(task: Task) -> dict[str, Any]:
    """A method's row of the league, at the size that this script gives it."""
    contest, here = CONTESTS[MODEL], machine()
    y, golds = data(MODEL, task.num_series)
    said = estimates(contest, CONTESTANTS[task.method], SIZES[task.method], y, range(len(y)))
    found = [run.estimate for _, run in said]
    return {**task.row, **judged(contest, found, golds), "on": f"{here['device']}, jax {here['jax']}"}


def distances(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every two exact methods, for the parameter where they are farthest apart: rms and most over the series.

    Issue 6 asks for 0.3 and does not say of which: both verdicts are kept.
    """
    z = {row["method"]: {name: part["z"] for name, part in row["parameters"].items()} for row in rows}
    found = []
    for one, other in itertools.combinations(EXACT, 2):
        apart = {name: np.subtract(z[one][name], z[other][name]) for name in z[one]}
        rms = max(float(np.sqrt(np.mean(d**2))) for d in apart.values())
        most = max(float(np.max(np.abs(d))) for d in apart.values())
        found.append(
            {
                "between": f"{one} and {other}",
                "rms": rms,
                "most": most,
                "bar": BAR,
                "met by the rms": rms <= BAR,
                "met in every series": most <= BAR,
            }
        )
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--series", type=int, default=NUM_SERIES, help="data sets")
    parser.add_argument("--workers", type=int, default=1, help="processes, a core each")
    given = parser.parse_args(arguments)
    kept = RESULTS / "agreement.jsonl"
    found = {identity(row): row for row in kept_rows(kept)[0]}
    tasks = [Task(method, given.series) for method in SIZES]
    to_do = [task for task in tasks if task.method in given.methods and identity(task.row) not in found]
    with kept.open("a") as file:
        for row in solve_all(row_of, to_do, given.workers, in_order=False):
            found[identity(row)] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
    rows = [found[identity(task.row)] for task in tasks if identity(task.row) in found]
    show("volatility, from the exact posterior", [{k: v for k, v in r.items() if k != "parameters"} for r in rows])
    if len(rows) < len(tasks):
        print("stored nothing: some methods have not run yet")
        return
    apart = distances(rows)
    show("volatility, from each other", apart)
    if given.series != NUM_SERIES:
        print(f"stored nothing: the table is of {NUM_SERIES} series")
        return
    settings = {"series": given.series, "data_seed": DATA_SEED, "method_seed": METHOD_SEED, "nodes": NODES}
    print("stored in", save("accuracy_agreement", settings, [*rows, *apart]))


if __name__ == "__main__":
    main()
