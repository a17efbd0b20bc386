"""The league's tables, and the guide drawn from them."""

import json

from benchmarks.accuracy.contestants import BY_LABEL
from benchmarks.accuracy.tasks import timed_on_a_cpu
from benchmarks.report import RESULTS

KINDS = {
    "sin": "one parameter, not linear; Gaussian noise, seen well",
    "cauchy": "one parameter, jumps",
    "star": "two parameters, not linear; Gaussian noise",
    "ar1": "one parameter, linear; Gaussian noise",
    "volatility": "three parameters, one of them a variance; seen through its own noise",
    "cycle": "two parameters, a state of two dimensions of which one is seen",
}
SHOWN = ("small", "large")  # budgets


def league() -> str:
    """The stored league as Markdown: errors and seconds, what each method needs for an error, and who agrees."""
    stored = json.loads((RESULTS / "league.json").read_text())
    rows, size = [row for row in stored["rows"] if "z rms" in row], stored["settings"]
    models = list(dict.fromkeys(row["model"] for row in stored["rows"]))
    machines = [row["on"] for row in rows]
    where = max(set(machines), key=machines.count)
    blank = {row["skipped"] for row in stored["rows"] if "skipped" in row and row["budget"] in SHOWN}
    failed = {row["failed"] for row in stored["rows"] if "failed" in row and row["budget"] in SHOWN}
    slow = {text.removeprefix("TimeoutError: ") for text in failed if text.startswith("TimeoutError")}
    collapsed = [f"{r['model']} ({r['budget']})" for r in rows if r["method"] == "smcx: SMC^2" and r["sdr"] < 1e-3]
    on_cores = [row for row in rows if timed_on_a_cpu(row)]
    lines = [
        f"z rms of the worst parameter over {size['series']} data sets, and in brackets the seconds of one series "
        "on one core, at a small and a large budget (sizes, a tiny budget, z max, sdr, coverage and evidence are in "
        "[benchmarks/results/league.json](benchmarks/results/league.json)). T = 1000, volatility and cycle 300; cycle "
        f"has a two-dimensional state. Blank: {', or '.join(sorted(blank))}. Where a method fails, the file "
        f"says how; too slow is {', or '.join(sorted(slow))}. On the Cauchy "
        "model every method that takes one has a proposal that allows for jumps. "
        f"Seconds are of {where}; those with a star, of other machines, which the file names; those of particles were "
        "taken beside other work, and are too long. smcx's SMC^2 runs its loops in Python, an operation at a time; on "
        "the series of 1000 (but AR(1), small) it had help from `quicken` in `benchmarks/accuracy/peer_methods.py`, "
        "which shortens its seconds and leaves its numbers, and on a GPU sixteen series were run at a time. Its inner "
        "filters draw from the transition alone, and do not grow in number; in most series its parameters end as one "
        f"value (sdr below 0.001) on {', '.join(collapsed)}:",
        "",
        *_by_model(["method", "budget"], models, _league_rows(stored["rows"], where, SHOWN)),
        "",
        "Seconds that each method needs for a z rms of at most 0.3, and of at most 0.1: the cheapest of its three "
        "budgets that gets there:",
        "",
        *_by_model(["method"], models, _needed_rows(on_cores, where)),
        "",
        agreement(),
    ]
    return "\n".join(lines) + "\n"


def guide() -> str:
    """What to take for a model like those of the league, as Markdown."""
    rows = [row for row in json.loads((RESULTS / "league.json").read_text())["rows"] if "z rms" in row]
    lines = ["| a model like | z rms at most 0.3 | z rms at most 0.1 |", "|---|---|---|"]
    for model, kind in KINDS.items():
        found = [row for row in rows if row["model"] == model and timed_on_a_cpu(row) and _is_ours_and_online(row)]
        cells = []
        for most in (0.3, 0.1):
            reached = [row for row in found if row["z rms"] <= most]
            row = min(reached, key=lambda r: r["seconds"]) if reached else min(found, key=lambda r: r["z rms"])
            missed = "" if reached else "none has it; "
            cells.append(f"{missed}{row['method']}, size {row['size']}: {row['z rms']:.2f} in {row['seconds']:.2g} s")
        lines.append(f"| {model}: {kind} | " + " | ".join(cells) + " |")
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
    single = f" In single series these are further apart than {pairs[0]['bar']}: {'; '.join(beyond)}." if beyond else ""
    sizes = ", ".join(f"{name} {row['size']}" for name, row in methods.items())
    off = {name: f"{row['z rms']:.2f}" for name, row in methods.items()}
    return (
        "On volatility, the posterior means of three ways to the exact one lie apart by so many exact standard "
        f"deviations (rms over the series, for the parameter where it is most): {', '.join(told)}.{single} From "
        f"the exact mean, the node filter is {off['node filter']} away, SMC^2 {off['SMC^2']}, PMMH {off['PMMH']}; "
        f"Storvik's filter {off['Storvik']}, and the default EPF, which takes the same statistic with fewer particles, "
        f"{off['EPF (default)']}: their paths degenerate. (Sizes: {sizes}; the node filter with {nodes} nodes; "
        "[accuracy_agreement.json](benchmarks/results/accuracy_agreement.json).)"
    )
