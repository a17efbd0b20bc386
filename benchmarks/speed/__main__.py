"""The speed suite: `python -m benchmarks.speed`, or `make bench`.

    python -m benchmarks.speed            quick: few repeats, nothing stored, ratios compared with those stored
    python -m benchmarks.speed --store    more repeats, stored under benchmarks/results

Ratios are compared, not times: a machine may be slow, but not slow for this library alone. A ratio may be worse than
the stored one by up to half before the check fails, about what two runs on a busy machine differ by.
"""

import json
import sys

from benchmarks.report import RESULTS, of_this_cpu, show
from benchmarks.speed import cores, particle_step, scaling, startup

SLACK = 1.5


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


def main(store: bool) -> int:
    stored = {} if store else stored_ratios()
    rows = particle_step.main() if store else particle_step.main(repeats=1, store=False)
    for part in (startup, cores, scaling):
        part.main(**({} if store else {"repeats": 1, "store": False}))
    if store:
        return 0
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
    sys.exit(main("--store" in sys.argv[1:]))
