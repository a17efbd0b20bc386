"""Stochastic volatility, three parameters: do three ways to the exact posterior agree, and how far off are the others?

`node_filter`, `smc2_filter` and `pmmh` at sizes whose own Monte Carlo error is small, on the league's series; beside
them Storvik's filter and the default EPF, whose paths degenerate, at the league's large budget. Distances are those of
posterior means at the last observation, in exact standard deviations.

    python -m benchmarks.accuracy.agreement [--series 20] [--workers 2]
"""

import argparse
import itertools
from typing import Any

import numpy as np

from benchmarks.accuracy.contestants import BY_LABEL
from benchmarks.accuracy.contests import CONTESTS, DATA_SEED, data
from benchmarks.accuracy.league import METHOD_SEED, NUM_SERIES, estimates, judged
from benchmarks.pool import solve_all
from benchmarks.report import save, show

MODEL, BAR = "volatility", 0.3
SIZES = {"node filter": 256, "SMC^2": (1024, 64), "PMMH": (100, 2000), "Storvik": 2500, "EPF (default)": 1000}
EXACT = ("node filter", "SMC^2", "PMMH")


def row_of(task: tuple[str, int]) -> dict[str, Any]:
    """One method on all series: its row of the league, at the size that this script gives it."""
    method, num_series = task
    contest, contestant = CONTESTS[MODEL], BY_LABEL[method]
    y, golds = data(MODEL, num_series)
    found, _ = estimates(contest, contestant, SIZES[method], y)
    return {"method": method, "size": str(SIZES[method]), **judged(contest, found, golds)}


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
    parser.add_argument("--series", type=int, default=NUM_SERIES, help="data sets")
    parser.add_argument("--workers", type=int, default=1, help="processes, a core each")
    given = parser.parse_args(arguments)
    rows = list(solve_all(row_of, [(method, given.series) for method in SIZES], given.workers))
    apart = distances(rows)
    show("volatility, from the exact posterior", [{k: v for k, v in r.items() if k != "parameters"} for r in rows])
    show("volatility, from each other", apart)
    settings = {"series": given.series, "data_seed": DATA_SEED, "method_seed": METHOD_SEED}
    print("stored in", save("accuracy_agreement", settings, [*rows, *apart]))


if __name__ == "__main__":
    main()
