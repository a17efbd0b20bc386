"""The table of models that people write: what `learn` makes of each, and how long it and NUTS take."""

import json
from typing import Any

from benchmarks.breadth.bars import Rows, cold_on_both, cold_seconds, counted, named
from benchmarks.breadth.entry import golds
from benchmarks.breadth.paper import judged
from benchmarks.report import RESULTS

Stored = dict[str, Any]


def breadth() -> str:
    """Every model, and the counts, as Markdown."""
    stored = json.loads((RESULTS / "breadth.json").read_text())
    rows = stored["rows"]
    cold = cold_seconds(rows, "nuts")
    lines = [
        *_counts(stored),
        "",
        "| model | parameters | worst \\|z\\| | sd ratio | trusted | cold s | warm s | NUTS, cold s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in counted(rows).all:
        gold, name = golds()[row["model"]], row["model"].replace("_", " ")
        star = "" if gold["agree"] else "*"
        nuts = f"{cold[row['model']]:.0f}" if row["model"] in cold else ""
        lines.append(
            f"| {name}{star} | {len(gold['parameters'])} | {row['worst z']:.2f} | {row['lowest sd ratio']:.2f} to "
            f"{row['highest sd ratio']:.2f} | {'yes' if row['trusted'] else 'no'} | {row['cold s']:.0f} | "
            f"{row['warm s']:.1f} | {nuts} |"
        )
    return "\n".join(lines) + "\n"


def _counts(stored: Stored) -> list[str]:
    """What the rows add up to."""
    rows, here, size = stored["rows"], stored["machine"], stored["settings"]
    found, (num, ours, theirs) = counted(rows), cold_on_both(rows)
    told = [row for row in found.all if row.get("trusted")]
    nuts = [row for row in rows if row["method"] == "nuts" and "cold s" in row]
    off = [row for row in nuts if row["worst z"] > 0.5 and golds()[row["model"]]["agree"]]
    apart = [row for row in found.judged if row["half"] == "report"]
    seconds = found.all[0]["seconds"]
    return [
        f"`learn` had {seconds:.0f} seconds and {size['cores']} cores for each model ({here['processor']}, "
        f"{here['cores']} cores, jax {here['jax']}; several models at a time). Cold seconds count imports and "
        "compilation; warm seconds are those of a second key in the same process.",
        "",
        f"- `learn` trusts {len(told)} of its {len(found.all)} answers.",
        f"- {len(found.judged)} models are judged. {_left_out(found.no_gold)}",
        f"- Of the {len(found.trusted)} trusted answers that are judged, {len(found.right)} are right (worst \\|z\\| "
        f"at most 0.3, sd ratios 0.8 to 1.25) and {_spaced(named(found.wrong))} are wrong (worst \\|z\\| above 0.5, "
        "or an sd ratio outside 0.67 to 1.5).",
        f"- {len(apart)} of the models that are judged are set apart: no default may be tuned on them. On these, "
        f"{sum(row in found.right for row in apart)} answers are right.",
        f"- NUTS (numpyro, on parameters and states; 4 chains, 1000 draws each after 1000 to warm up) had finished "
        f"{len(nuts)} models when the time on that machine was over. Its r_hat is below 1.01 on "
        f"{sum(bool(row['trusted']) for row in nuts)} of them, and its worst \\|z\\| is above 0.5 on "
        f"{_spaced(named(off))}.",
        f"- Median cold seconds on the {num} models that both finished: `learn` {ours:.1f}, NUTS {theirs:.1f}.",
        *_paper(),
    ]


def _left_out(rows: Rows) -> str:
    if not rows:
        return "For each, two methods agree on the right answer within 0.1 sd of means and 10% of sds."
    return (
        f"Left out, with a star: {_spaced(named(rows))}. There, two methods do not agree on the right answer within "
        "0.1 sd of means and 10% of sds."
    )


def _spaced(text: str) -> str:
    return text.replace("_", " ")


def _paper() -> list[str]:
    """The paper's three models on several series each, where that was measured."""
    path = RESULTS / "breadth_paper.json"
    if not path.exists():
        return []
    stored = json.loads(path.read_text())
    rows = judged(stored["rows"])
    cells = "; ".join(f"{row['model']} {row['z rms']:.2f} ({row['trusted']} trusted)" for row in rows)
    return [
        f"- The paper's models, {stored['settings']['series']} series of {stored['settings']['steps']} each, z rms of "
        f"the worst parameter: {cells}."
    ]


def learned() -> str:
    """What the table adds up to, in one sentence for the README."""
    found = counted(json.loads((RESULTS / "breadth.json").read_text())["rows"])
    return (
        f"`learn` on {len(found.judged)} [everyday models](docs/accuracy.md#models-that-people-write): "
        f"{len(found.trusted)} answers trusted, {len(found.wrong) or 'none'} wrong.\n"
    )
