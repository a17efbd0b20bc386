"""The bars of the breadth table, and how its rows stand to them."""

from typing import Any, NamedTuple

import numpy as np

from benchmarks.breadth.entry import golds

Rows = list[dict[str, Any]]
RIGHT_Z, RIGHT_RATIOS = 0.3, (0.8, 1.25)
WRONG_Z, WRONG_RATIOS = 0.5, (0.67, 1.5)


class Counted(NamedTuple):
    """The rows of `learn`: all, those whose golds' two opinions disagree, and what the others are.

    Attributes:
        all: the rows of `learn`.
        no_gold: those that are not judged, because two methods do not agree on what is right.
        judged: the others.
        trusted: of those that are judged.
        right: of those that are trusted.
        wrong: of those that are trusted; an answer may be neither right nor wrong.
    """

    all: Rows
    no_gold: Rows
    judged: Rows
    trusted: Rows
    right: Rows
    wrong: Rows


def counted(rows: Rows) -> Counted:
    """How the rows of `learn` stand to the bars."""
    learned = [row for row in rows if row["method"] == "learn"]
    judged = [row for row in learned if golds()[row["model"]]["agree"]]
    trusted = [row for row in judged if row.get("trusted")]
    right = [row for row in trusted if row["worst z"] <= RIGHT_Z and within(row, RIGHT_RATIOS)]
    wrong = [row for row in trusted if row["worst z"] > WRONG_Z or not within(row, WRONG_RATIOS)]
    return Counted(learned, [row for row in learned if row not in judged], judged, trusted, right, wrong)


def within(row: dict[str, Any], bounds: tuple[float, float]) -> bool:
    """Whether all sds are off by no more than that."""
    return bounds[0] <= row["lowest sd ratio"] and row["highest sd ratio"] <= bounds[1]


def named(rows: Rows) -> str:
    """How many, and which."""
    names = ", ".join(row["model"] for row in rows)
    return f"{len(rows)} ({names})" if names else "0"


def cold_on_both(rows: Rows) -> tuple[int, float, float]:
    """How many models both `learn` and NUTS have finished, and the median cold seconds of each on these."""
    learn, nuts = (cold_seconds(rows, method) for method in ("learn", "nuts"))
    both = [name for name in learn if name in nuts]
    ours, theirs = (float(np.median([cold[name] for name in both])) if both else np.nan for cold in (learn, nuts))
    return len(both), ours, theirs


def cold_seconds(rows: Rows, method: str) -> dict[str, float]:
    """Of a method, by the model's name."""
    return {row["model"]: row["cold s"] for row in rows if row["method"] == method and "cold s" in row}


def lines(rows: Rows) -> list[str]:
    """The bars in words, for the screen; none without rows of `learn`."""
    found = counted(rows)
    if not found.all:
        return []
    (num, ours, theirs), lost = cold_on_both(rows), [row for row in found.all if not row.get("trusted")]
    return [
        f"not judged, because the gold's two opinions disagree: {named(found.no_gold)} of {len(found.all)}",
        f"trusted with worst |z| <= .3 and sd ratios in .8 to 1.25: {len(found.right)} of {len(found.trusted)} "
        "(bar: all but 2%)",
        f"trusted and wrong: {named(found.wrong)} (bar: none)",
        f"not trusted: {named(lost)} of {len(found.all)} (bar: at most 10%)",
        f"median cold seconds on {num} models: learn {ours:.1f}, NUTS {theirs:.1f} (bar: learn ahead)",
    ]


def findings_lines(rows: Rows) -> list[str]:
    """How the grades of `diagnose` stand to how far the default filter is off; none without rows of `findings`."""
    graded = [row for row in rows if row["method"] == "findings" and "grade" in row and golds()[row["model"]]["agree"]]
    near, far = ([row for row in graded if fits(row["worst z"])] for fits in (lambda z: z < 0.2, lambda z: z > 1.0))
    if not graded:
        return []
    cried, silent = [row for row in near if row["grade"] != "harmless"], [r for r in far if r["grade"] == "harmless"]
    return [
        f"worst |z| < .2 and a finding above harmless: {named(cried)} of {len(near)} (bar: none)",
        f"worst |z| > 1 and none: {named(silent)} of {len(far)} (bar: none)",
    ]
