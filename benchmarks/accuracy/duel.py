"""What it takes on SIN and STAR: this library's own methods for a z rms of .10, their rivals for one of .30.

All on one machine, in one process and by turns, series after series: the seconds of one method beside those of another.
Rivals are the methods that the paper names and their successors, as this library has them, at more sizes than in the
league, so that each is seen where it just suffices.

    python -m benchmarks.accuracy.duel [--store]
"""

import argparse

import numpy as np

from benchmarks.accuracy.contestants import BY_LABEL
from benchmarks.accuracy.contests import CONTESTS
from benchmarks.accuracy.league import METHOD_SEED, NUM_SERIES
from benchmarks.accuracy.turns import by_turns
from benchmarks.report import of_this_cpu, save, show

OURS = {"node filter, sigma points": (9, 11, 15), "node filter": (2, 4), "EPF (default)": (50,)}
RIVALS = {
    "SIR": (200, 2000),
    "Liu-West": (100, 1000),
    "particle learning": (25, 50),
    "resample-move": (32, 48, 64, 80, 96, 128),
}  # the practical filter and SMC^2, which take a second and more in the league, are left out
BARS = {"ours": 0.1, "rival": 0.3}


def main(models=("sin", "star"), num_series: int = NUM_SERIES, *, store: bool = False) -> list[dict]:
    """Every row, and for each model the quickest of either side that gets to its bar."""
    rows = [row for model in models for row in race(model, num_series)]
    show("seconds and errors, by turns on one machine", rows)
    found = [best(rows, model) for model in models]
    show("the quickest that get there", found)
    if store:
        settings = {"series": num_series, "method seed": METHOD_SEED, "bars": BARS}
        print("stored in", save(of_this_cpu("accuracy_duel"), settings, [*rows, *found]))
    return found


def race(name: str, num_series: int) -> list[dict]:
    """Every contestant on one model: the worst parameter's z rms, and the median seconds of a series."""
    contest = CONTESTS[name]
    model = contest.model()
    proposal = contest.proposal(model)
    sides = {"ours": OURS, "rival": RIVALS}
    entries = [(side, label, size) for side, of in sides.items() for label in of for size in of[label]]

    def contestant(label, size):
        return lambda key, y: BY_LABEL[label].estimate(key, model, y, size, proposal)

    found = by_turns(name, num_series, {entry: contestant(*entry[1:]) for entry in entries})
    return [
        {
            "model": name, "side": side, "method": label, "size": str(size),
            "z rms": float(np.sqrt(np.mean(turns.z**2, axis=0)).max()), "seconds": float(np.median(turns.seconds)),
        }
        for (side, label, size), turns in found.items()
    ]  # fmt: skip


def best(rows: list[dict], model: str) -> dict:
    """The quickest of either side at its bar, and the ratio of their seconds."""
    told: dict = {"model": model}
    for side, bar in BARS.items():
        reached = [row for row in rows if row["model"] == model and row["side"] == side and row["z rms"] <= bar]
        if not reached:
            return {**told, side: f"none at {bar}", "met": False}
        quickest = min(reached, key=lambda row: row["seconds"])
        told[side] = f"{quickest['method']}, size {quickest['size']}"
        told |= {f"{side}: z rms": quickest["z rms"], f"{side}: seconds": quickest["seconds"]}
    ratio = told["rival: seconds"] / told["ours: seconds"]
    return {**told, "rival / ours": ratio, "met": ratio >= 1.0}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true")
    main(store=parser.parse_args().store)
