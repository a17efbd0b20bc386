"""The league's tables, and the guide drawn from them."""

import json

from benchmarks.accuracy.contestants import BY_LABEL
from benchmarks.accuracy.tasks import timed_on_a_cpu
from benchmarks.report import RESULTS

KINDS = {
    "sin": "SIN: one parameter, nonlinear, precise data",
    "cauchy": "Cauchy: one parameter, jumps",
    "star": "STAR: two parameters, nonlinear, precise data",
    "ar1": "AR(1) in noise: one parameter, linear",
    "volatility": "stochastic volatility: three parameters",
    "cycle": "cycle: two parameters, two states of which one is observed",
}
SHOWN = ("small", "large")  # budgets


def league() -> str:
    """The stored league as Markdown: errors and seconds, what each method needs for an error, and who agrees."""
    stored = json.loads((RESULTS / "league.json").read_text())
    rows, size = [row for row in stored["rows"] if "z rms" in row], stored["settings"]
    models = list(dict.fromkeys(row["model"] for row in stored["rows"]))
    machines = [row["on"] for row in rows]
    where = max(set(machines), key=machines.count)
    collapsed = [f"{r['model']} ({r['budget']})" for r in rows if r["method"] == "smcx: SMC^2" and r["sdr"] < 1e-3]
    on_cores = [row for row in rows if timed_on_a_cpu(row)]
    lines = [
        f"{size['series']} series a model. Seconds are of {where}; a star marks other machines. An empty cell: the "
        "method does not fit the model, or was not run. Too slow: more than 120 s for a series. On the Cauchy model, "
        "methods that take a proposal have one that allows for jumps. Sizes, z max, sdr, coverage and evidence are in "
        "[league.json](benchmarks/results/league.json).",
        "",
        *_by_model(["method", "budget"], models, _league_rows(stored["rows"], where, SHOWN)),
        "",
        "smcx's SMC^2 runs its loops in Python. `quicken` in `benchmarks/accuracy/peer_methods.py` shortens its "
        "seconds on the series of 1000, and keeps its numbers. In most series its parameters end as one value (sdr "
        "below 0.001) "
        f"on {', '.join(collapsed)}.",
        "",
        "Seconds that each method needs for z rms of at most 0.3, and of at most 0.1, at the cheapest of its three "
        "budgets:",
        "",
        *_by_model(["method"], models, _needed_rows(on_cores, where)),
        "",
        agreement(),
    ]
    return "\n".join(lines) + "\n"


def guide() -> str:
    """What to take for a model like those of the league, as Markdown."""
    rows = [row for row in json.loads((RESULTS / "league.json").read_text())["rows"] if "z rms" in row]
    lines = ["| a model like | error at most 0.3 | error at most 0.1 |", "|---|---|---|"]
    for model, kind in KINDS.items():
        found = [row for row in rows if row["model"] == model and timed_on_a_cpu(row) and _is_ours_and_online(row)]
        cells = []
        for most in (0.3, 0.1):
            reached = [row for row in found if row["z rms"] <= most]
            row = min(reached, key=lambda r: r["seconds"]) if reached else min(found, key=lambda r: r["z rms"])
            missed = "" if reached else "none; the best is "
            cells.append(f"{missed}{row['method']}, size {row['size']}: {row['z rms']:.2f} in {row['seconds']:.2g} s")
        lines.append(f"| {kind} | {cells[0]} | {'the same' if cells[1] == cells[0] else cells[1]} |")
    return "\n".join(lines) + "\n"


def _by_model(heads, models, rows) -> list[str]:
    """A table with a column for each model; a row is its first cells, and a dict of the others."""
    lines = ["| " + " | ".join([*heads, *models]) + " |", "|---" * (len(heads) + len(models)) + "|"]
    return lines + ["| " + " | ".join([*first, *(cells.get(m, "") for m in models)]) + " |" for first, cells in rows]


def _league_rows(rows, where, budgets):
    rows = [row for row in rows if row["budget"] in budgets and "skipped" not in row]
    for method, budget in dict.fromkeys((row["method"], row["budget"]) for row in rows):
        found = [row for row in rows if (row["method"], row["budget"]) == (method, budget)]
        yield (method, budget), {row["model"]: _league_cell(row, where) for row in found}


def _league_cell(row, where) -> str:
    if "failed" in row:
        return "too slow" if row["failed"].startswith("TimeoutError") else "fails"
    z = f"{row['z rms']:.2f}" if row["z rms"] < 10 else f"{row['z rms']:.0f}"
    return f"{z} ({_seconds(row, where)})"


def _seconds(row, where) -> str:
    seconds = f"{row['seconds']:.2g}" if row["seconds"] < 99.5 else f"{row['seconds']:.0f}"
    if not timed_on_a_cpu(row):
        return f"{seconds} s on {row['on'].split(',')[0]}"
    return f"{seconds} s{'' if row['on'] == where else '*'}"


def _needed_rows(rows, where):
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = {}
        for model in dict.fromkeys(row["model"] for row in rows if row["method"] == method):
            found = [row for row in rows if (row["method"], row["model"]) == (method, model)]
            reached = [
                min((row for row in found if row["z rms"] <= most), key=lambda row: row["seconds"], default=None)
                for most in (0.3, 0.1)
            ]
            cells[model] = ", ".join("-" if row is None else _seconds(row, where) for row in reached)
        if any(cell != "-, -" for cell in cells.values()):
            yield (method,), cells


def _is_ours_and_online(row) -> bool:
    contestant = BY_LABEL[row["method"]]
    return contestant.online and contestant.needs is None


def agreement() -> str:
    """How far apart the methods are that volatility is judged by, and how far off others, as stored."""
    stored = json.loads((RESULTS / "accuracy_agreement.json").read_text())
    rows, nodes = stored["rows"], " x ".join(map(str, stored["settings"]["nodes"]))
    methods = {row["method"]: row for row in rows if "method" in row}
    pairs = [r for r in rows if "between" in r]
    told = [f"{r['between']} {r['rms']:.2f} ({r['most']:.2f} at most)" for r in pairs]
    beyond = [r["between"] for r in pairs if not r["met in every series"]]
    single = f" In single series these differ by more than {pairs[0]['bar']}: {'; '.join(beyond)}." if beyond else ""
    sizes = ", ".join(f"{name} {row['size']}" for name, row in methods.items())
    off = {name: f"{row['z rms']:.2f}" for name, row in methods.items()}
    return (
        "On volatility, three methods at large sizes check each other. Their posterior means differ by so many exact "
        f"standard deviations (rms over the series, worst parameter): {', '.join(told)}.{single} "
        f"From the exact mean, the node filter is {off['node filter']} away, SMC^2 {off['SMC^2']}, PMMH {off['PMMH']}, "
        f"Storvik's filter {off['Storvik']}, and the default EPF {off['EPF (default)']}: the last two lose old paths. "
        f"(Sizes: {sizes}; {nodes} nodes; [accuracy_agreement.json](benchmarks/results/accuracy_agreement.json).)"
    )
