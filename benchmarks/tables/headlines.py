"""The README's short table of errors and its sentence on speed; docs/ has them in full."""

import json

from benchmarks.report import RESULTS
from benchmarks.tables.breadth import learned

# A file of results, the data in words, the rows to take from the file, and a name for each filter that is shown.
ERRORS = (
    (
        "accuracy_sinusoid",
        "sinusoid, 1 parameter",
        {"precision": "float32"},
        {
            "EPF default: Chebyshev, fully adapted": "EPF",
            "EPF literal: Taylor 7 at 0, bootstrap, multinomial, 1 MH": "EPF exactly as in the paper",
            "Liu-West, N = 1000": "Liu and West",
            "SIR, theta in the state, N = 1000": "bootstrap filter, theta in the state",
        },
    ),
    (
        "accuracy_star",
        "STAR, 2 parameters",
        {"precision": "float32"},
        {"EPF default: Chebyshev 24 x 24, fully adapted, N = 1000": "EPF"},
    ),
    (
        "accuracy_many",
        "AR(1) in noise, 4 parameters",
        {"model": "AR(1) in noise"},
        {
            "EPF (default)": "EPF",
            "SMC^2 with Kalman inside, half the particles": "SMC² with Kalman filters inside",
        },
    ),
    ("accuracy_many", "seasonal counts, 4 parameters", {"model": "seasonal counts"}, {"EPF (default)": "EPF"}),
)


def answer() -> str:
    """What `print(learned)` shows in the README's example: the table and the verdict."""
    rows = json.loads((RESULTS / "quickstart.json").read_text())["rows"]
    return "\n".join(["```text", *(row["line"] for row in rows[:4]), "```"]) + "\n"


def errors() -> str:
    """How far filters are from the exact posterior, for the worst parameter of each, and `learn`, as Markdown."""
    lines = ["| data | filter | error | largest | width |", "|---|---|---|---|---|"]
    for file, title, which, filters in ERRORS:
        stored = json.loads((RESULTS / f"{file}.json").read_text())["rows"]
        stored = [row for row in stored if all(row[key] == value for key, value in which.items())]
        for label, name in filters.items():
            row = max((row for row in stored if row["filter"] == label), key=lambda row: row["z rms"])
            lines.append(f"| {title} | {name} | {row['z rms']:.2f} | {row['z max']:.2f} | {row['sdr']:.2f} |")
    return "\n".join([*lines, "", learned()])


def race() -> str:
    """How many times as long as ours a step of other bootstrap filters takes, in one sentence."""
    names = "particle_step", "particle_step_aarch64"
    rows = [row for name in names for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]]
    rows = [row for row in rows if row.get("work", "").startswith("bootstrap") and row.get("times ours", 1.0) != 1.0]
    times, num = [row["times ours"] for row in rows], len({row["contestant"] for row in rows})
    return (
        f"On two CPU cores, a step of the same bootstrap filter written in {num} other ways (NumPy, plain JAX, other "
        f"libraries) takes {min(times):.1f} to {max(times):.0f} times as long. [How fast?](docs/speed.md) has the "
        "races.\n"
    )
