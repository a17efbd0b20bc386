"""The README's short tables, each of rows that a page of docs/ has in full."""

import json

from benchmarks.report import RESULTS

# what is shown of each file: the model in words, and the rows that are the model's; then a name for each filter
ERRORS = (
    (
        "accuracy_sinusoid",
        "the paper's sinusoid, 1000 observations",
        {"precision": "float32"},
        {
            "EPF default: Chebyshev, fully adapted": "`extended_parameter_filter`, 1000 particles",
            "EPF literal: Taylor 7 at 0, bootstrap, multinomial, 1 MH": "the same to the paper's letter",
            "Liu-West, N = 1000": "`liu_west_filter`, 1000 particles",
            "SIR, theta in the state, N = 1000": "`bootstrap_filter` with theta in the state, 1000 particles",
        },
    ),
    (
        "accuracy_star",
        "the paper's STAR, 2 parameters, 1000 observations",
        {"precision": "float32"},
        {
            "EPF default: Chebyshev 24 x 24, fully adapted, N = 1000": "`extended_parameter_filter`, 1000 particles",
        },
    ),
    (
        "accuracy_vague",
        "mean reversion, 3 parameters, the mean's prior sd 100, 100 observations",
        {"unknown": "m, b, s", "prior sd": 100.0},
        {
            "EPF (default), 1000 particles": "`extended_parameter_filter`, 1000 particles",
            "node filter (default)": "`node_filter`",
        },
    ),
    (
        "accuracy_many",
        "AR(1) in noise, 4 parameters, 300 observations",
        {"model": "AR(1) in noise"},
        {
            "EPF (default)": "`extended_parameter_filter`, 2000 particles",
            "SMC^2 with Kalman inside, half the particles": "`smc2_filter(..., inner=epf.kalman(model))`, 1000 thetas",
        },
    ),
    (
        "accuracy_many",
        "seasonal counts, 4 parameters, 300 observations",
        {"model": "seasonal counts"},
        {
            "EPF (default)": "`extended_parameter_filter`, 2000 particles",
        },
    ),
)


def errors() -> str:
    """How far filters are from the exact posterior, the worst parameter of each, as Markdown."""
    lines = ["| data | filter | z rms | z max | sdr |", "|---|---|---|---|---|"]
    for file, title, which, filters in ERRORS:
        stored = json.loads((RESULTS / f"{file}.json").read_text())["rows"]
        stored = [row for row in stored if all(row[key] == value for key, value in which.items())]
        for label, name in filters.items():
            row = max((row for row in stored if row["filter"] == label), key=lambda row: row["z rms"])
            lines.append(f"| {title} | {name} | {row['z rms']:.2f} | {row['z max']:.2f} | {row['sdr']:.2f} |")
            title = ""
    return "\n".join(lines) + "\n"


def verdicts() -> str:
    """What of the paper's claims does not hold, or only with a condition, without the numbers, as Markdown."""
    claims = json.loads((RESULTS / "reproduce_full.json").read_text())["claims"]
    others = [claim for claim in claims if claim["verdict"] != "reproduces"]
    lines = [
        f"Of {len(claims)} claims {len(claims) - len(others)} reproduce. The others:",
        "",
        "| the paper says | verdict |",
        "|---|---|",
    ]
    for claim in others:
        cells = f"{claim['says']} ({claim['where']})", claim["verdict"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def races() -> str:
    """How many times as long as ours every contestant takes, from the least to the most over N, as Markdown."""
    stored = [json.loads((RESULTS / f"{name}.json").read_text()) for name in ("particle_step", "particle_step_aarch64")]
    gpu = json.loads((RESULTS / "gpu.json").read_text())
    heads = [f"{file['machine']['processor']}, {file['machine']['cores']} cores" for file in stored]
    lines = [
        f"| race | contestant | {heads[0]} | {heads[1]} | {gpu['machine']['device']}, N = 1,000 | the same, "
        "N = 1,000,000 |",
        "|---|---|---|---|---|---|",
    ]
    shown = {
        (r["work"], r["contestant"]): None for r in stored[0]["rows"] if "times ours" in r and r["times ours"] != 1.0
    }
    for work, contestant in shown:
        cells = [_range(file["rows"], work, contestant) for file in stored]
        cells += [_on_gpu(gpu["rows"], work, contestant.split()[0], n) for n in (1_000, 1_000_000)]
        lines.append(f"| {work} | {contestant} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _range(rows: list[dict], work: str, contestant: str) -> str:
    times = [r["times ours"] for r in rows if (r["work"], r.get("contestant")) == (work, contestant)]
    return f"{min(times):.1f} to {max(times):.1f} x" if times else ""


def _on_gpu(rows: list[dict], work: str, peer: str, n: int) -> str:
    """A peer's time over that of our bootstrap filter; the GPU's races are in float32."""
    took = {r["work"]: r["us a step"] for r in rows if "us a step" in r and (r["filters"], r["N"]) == (1, n)}
    return f"{took[peer] / took['bootstrap']:.1f} x" if work == "bootstrap, float32" and peer in took else "not raced"
