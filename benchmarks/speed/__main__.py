"""The speed suite: `python -m benchmarks.speed`, or `make bench`.

    python -m benchmarks.speed            quick: one repeat, the smallest and the largest number of particles, curves of
                                          fewer points; nothing stored, ratios compared with those stored
    python -m benchmarks.speed --store    all of it, stored under benchmarks/results

Ratios are compared, not times: a machine may be slow, but not slow for this library alone. A ratio may be worse than
the stored one by up to half before the check fails, about what two runs on a busy machine differ by.
"""

import argparse
import json
import sys

from benchmarks.report import RESULTS, of_this_cpu, show
from benchmarks.speed import cores, particle_step, scaling, startup

SLACK = 1.5
QUICK_SIZES, QUICK_LENGTHS, QUICK_ORDERS = (1_000, 100_000), (100, 1000, 10_000), (3, 7, 11, 15)


def stored_ratios() -> dict[tuple, float]:
    path = RESULTS / f"{of_this_cpu('particle_step')}.json"
    if not path.exists():
        print(f"no ratios of this kind of processor are stored in {path}: there is nothing to compare with")
        return {}
    rows = json.loads(path.read_text())["rows"]
    return {_name(row): row["times ours"] for row in rows if "times ours" in row}


def _name(row) -> tuple:
    return row["work"], row["N"], row["contestant"].split(" 0.")[0].split(" 1.")[0].split(" 2.")[0]


def compare(rows, stored) -> list[dict]:
    """Contestants' times as multiples of ours, now and stored: ours is slower where the multiple has shrunk."""
    compared = []
    for row in rows:
        if "times ours" not in row or _name(row) not in stored or row["times ours"] == 1.0:
            continue
        before, now = stored[_name(row)], row["times ours"]
        worse = now / before if row["work"] == "EPF over bootstrap" else before / now
        what = {"work": row["work"], "N": row["N"], "against": row["contestant"]}
        compared.append({**what, "stored": before, "now": now, "fine": worse < SLACK})
    return compared


def store() -> int:
    for part in (particle_step, startup, cores, scaling):
        part.main()
    return 0


def check() -> int:
    stored = stored_ratios()
    rows = particle_step.main(1, QUICK_SIZES, store=False)
    startup.main(1, store=False)
    cores.main(1, store=False)
    scaling.main(1, QUICK_LENGTHS, QUICK_ORDERS, store=False)
    if not stored:
        return 0
    compared = compare(rows, stored)
    show("ratios against those stored in benchmarks/results", compared)
    slower = sum(not row["fine"] for row in compared)
    print(
        f"{slower} of {len(compared)} ratios are worse than stored by more than half" if slower else "no ratio is worse"
    )
    return 1 if slower else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true")
    sys.exit(store() if parser.parse_args().store else check())
