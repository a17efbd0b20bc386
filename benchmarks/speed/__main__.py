"""The speed suite: `python -m benchmarks.speed`, or `make bench`.

    python -m benchmarks.speed            every benchmark, stored under benchmarks/results
    python -m benchmarks.speed --check    the race alone, fewer repeats, its ratios against those stored

Ratios are compared, not times: a machine may be slow, but not slow for this library alone. A ratio may be worse than
the stored one by up to half before the check fails, about what two runs on a busy machine differ by.
"""

import json
import sys

from benchmarks.report import RESULTS, show
from benchmarks.speed import cores, particle_step, scaling, startup

SLACK = 1.5


def stored_ratios() -> dict[tuple, float]:
    rows = json.loads((RESULTS / "particle_step.json").read_text())["rows"]
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


def main(check: bool) -> int:
    stored = stored_ratios() if check else {}
    rows = particle_step.main(repeats=3, name=None) if check else particle_step.main()
    if check:
        compared = compare(rows, stored)
        show("ratios against those stored in benchmarks/results/particle_step.json", compared)
        return 0 if all(row["fine"] for row in compared) else 1
    startup.main()
    cores.main()
    scaling.main()
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
