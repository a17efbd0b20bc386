"""Write the README's tables from benchmarks/results: `python -m benchmarks.readme`."""

import json
import pathlib

from benchmarks.accuracy.contestants import BY_LABEL
from benchmarks.accuracy.tasks import timed_on_a_cpu
from benchmarks.report import RESULTS

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
MARKS = "<!-- {0} table, written by python -m benchmarks.readme -->\n", "<!-- end of {0} table -->\n"
KINDS = {
    "sin": "one parameter, not linear; Gaussian noise, seen well",
    "cauchy": "one parameter, jumps",
    "star": "two parameters, not linear; Gaussian noise",
    "ar1": "one parameter, linear; Gaussian noise",
    "volatility": "three parameters, one of them a variance; seen through its own noise",
    "cycle": "two parameters, a state of two dimensions of which one is seen",
}
SHOWN = ("small", "large")  # budgets
TITLES = {"sinusoid": "SIN", "ar1": "linear AR(1)", "star": "STAR"}


def accuracy() -> str:
    """The stored accuracy rows as Markdown."""
    lines = ["| model | filter | precision | parameter | z rms | z max | sdr |", "|---|---|---|---|---|---|---|"]
    for name, title in TITLES.items():
        for row in json.loads((RESULTS / f"accuracy_{name}.json").read_text())["rows"]:
            spread = [f" ({row[k + ' range']})" if k + " range" in row else "" for k in ("z rms", "z max", "sdr")]
            numbers = " | ".join(
                f"{row[k]:.2f}{extra}" for k, extra in zip(("z rms", "z max", "sdr"), spread, strict=True)
            )
            lines.append(f"| {title} | {row['filter']} | {row['precision']} | {row['parameter']} | {numbers} |")
    return "\n".join(lines) + "\n"


def claims() -> str:
    """The verdicts of the stored full reproduction as Markdown."""
    stored = json.loads((RESULTS / "reproduce_full.json").read_text())
    size, here = stored["size"], stored["machine"]
    ran = f"{size['num_series']} data sets per model, T = {size['num_steps']}; {here['device']}, jax {here['jax']}, "
    ran += here["date"]
    lines = [f"From `make full` ({ran}):", "", "| the paper says | verdict | measured |", "|---|---|---|"]
    for claim in stored["claims"]:
        cells = (f"{claim['says']} ({claim['where']})", claim["verdict"], claim["evidence"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def speed() -> str:
    """The stored races as Markdown: how many times ours each contestant takes."""
    races = [line for path in sorted(RESULTS.glob("particle_step*.json")) for line in _races(path)]
    return "\n".join([*races, *_gpu()]) + "\n"


def _races(path: pathlib.Path) -> list[str]:
    stored = json.loads(path.read_text())
    rows, here = [row for row in stored["rows"] if "N" in row], stored["machine"]
    sizes = sorted({row["N"] for row in rows})
    lines = [
        f"On a CPU ({here['processor']}, {here['cores']} cores, jax {here['jax']}, {here['date']}; times as multiples "
        "of ours, ours in ns a particle-step):",
        "",
        "| race | contestant | " + " | ".join(f"N = {n:,}" for n in sizes) + " |",
        "|---" * (2 + len(sizes)) + "|",
    ]
    for work, contestant in dict.fromkeys((row["work"], row["contestant"]) for row in rows):
        found = {row["N"]: row for row in rows if (row["work"], row["contestant"]) == (work, contestant)}
        cells = [_speed_cell(found[n]) for n in sizes]
        lines.append(f"| {work} | {contestant} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _speed_cell(row) -> str:
    ours = row["times ours"] == 1.0
    return f"**{row['ns a particle-step']:.0f} ns**" if ours else f"{row['times ours']:.1f} x"


def _gpu() -> list[str]:
    stored = json.loads((RESULTS / "gpu.json").read_text())
    here = stored["machine"]
    lines = [f"On one GPU ({here['device']}, jax {here['jax']}, {here['date']}):", ""]
    lines += ["| filter | filters at once | N | us a step | particle-steps a second |", "|---|---|---|---|---|"]
    for row in stored["rows"]:
        if "us a step" in row:
            numbers = f"{row['us a step']:.1f} | {row['particle-steps a second']:.1e}"
            lines.append(f"| {row['work']} | {row['filters']} | {row['N']:,} | {numbers} |")
    return lines


def summaries() -> str:
    """What a step costs with and without quantiles, as Markdown."""
    lines = ["| filter | machine | N | no quantiles | five | five by halving alone |", "|---|---|---|---|---|---|"]
    for path in sorted(RESULTS.glob("speed_summaries*.json")):
        stored = json.loads(path.read_text())
        here = stored["machine"]
        machine = _name_of(here)
        for row in stored["rows"]:
            times = " | ".join(f"{row[f'{kind}, us']:.0f} us" for kind in ("none", "chosen", "halving"))
            lines.append(f"| {row['filter']} | {machine} | {row['N']:,} | {times} |")
    return "\n".join(lines) + "\n"


def gradient() -> str:
    """The stored gradients as Markdown: with theta known, of an EPF whose theta moves by MH, of the node filter."""
    stored = json.loads((RESULTS / "accuracy_gradients.json").read_text())
    size = stored["settings"]
    lines = [
        f"Gradients of log Z against Kalman's (linear AR(1), T = {size['steps']}, N = {size['particles']}; "
        f"{size['runs']} runs; q and r are the noise scales; in brackets the distance in standard errors):",
        "",
        "| filter | gradient | of | exact | E[grad Z] / E[Z] | mean of grad log Z | sd of one |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in stored["rows"]:
        literal = row["filter"].startswith("EPF") and row["gradient"] == "stop-gradient"
        if row["filter"] == "bootstrap, phi known" or literal or row["filter"].startswith("node"):
            numbers = f"{row['exact']:.2f} | {row['E[grad Z] / E[Z]']:.2f} ({row['in errors']:+.1f}) | "
            numbers += f"{row['mean of grad log Z']:.2f} | {row['sd of one']:.2f}"
            lines.append(f"| {row['filter']} | {row['gradient']} | {row['of']} | {numbers} |")
    lines += ["", *_gradient_cost(), "", *_fits()]
    return "\n".join(lines) + "\n"


def _fits() -> list[str]:
    stored = json.loads((RESULTS / "accuracy_fit.json").read_text())
    size = stored["settings"]["sin"]
    lines = [
        f"`epf.fit` on SIN with both noise scales unknown ({size['series']} series, T = {size['steps']}, by "
        f"`node_filter` with {size['nodes']} nodes of {size['particles at each']} particles), beside the exact "
        f"maximum of the evidence. Each started at noise {size['start']['noise']:g} and sensor "
        f"{size['start']['sensor']:g}:",
        "",
        "| estimate | of | truth | median | largest error | within 10% of the truth |",
        "|---|---|---|---|---|---|",
    ]
    for row in stored["rows"]:
        if row["model"] == "SIN":
            numbers = f"{row['truth']:g} | {row['median']:.2f} | {row['off the truth, max']:.0%} | {row['within 10%']}"
            lines.append(f"| {row['estimate']} | {row['of']} | {numbers} |")
    return lines


def _gradient_cost() -> list[str]:
    lines = ["| gradient through | on | remat_every | seconds | over the evidence | temporary memory |"]
    lines.append("|---|---|---|---|---|---|")
    for name in ("speed_gradient", "speed_gradient_gpu"):
        stored = json.loads((RESULTS / f"{name}.json").read_text())
        size, device = stored["settings"], stored["machine"]["device"]
        for row in stored["rows"]:
            if row["what"] == "gradient":
                lines.append(
                    f"| T = {size['steps']:,}, N = {size['particles']:,} | {device} | {row['remat_every']} | "
                    f"{row['seconds']:.2f} | {row['over the evidence']:.1f} x | {row['temporary MiB']:.0f} MiB |"
                )
    return lines


def _name_of(machine: dict) -> str:
    """A GPU by its name, a CPU by its processor and cores."""
    return machine["device"] if machine["device"] != "cpu" else f"{machine['processor']}, {machine['cores']} cores"


def capacity() -> str:
    """The stored limits of one GPU as Markdown."""
    stored = json.loads((RESULTS / "capacity.json").read_text())
    here = stored["machine"]
    gibibytes = stored["settings"]["bytes_limit"] / 2**30
    lines = [f"The most that fits one GPU ({here['device']}, {gibibytes:.0f} GiB for jax; EPF, Taylor 7, float32):", ""]
    lines += ["| filters | N | us a step | particle-steps a second |", "|---|---|---|---|"]
    for row in stored["rows"]:
        end = "out of memory | " if "stopped by" in row else ""
        end = end or f"{row['us a step']:.0f} | {row['particle-steps a second']:.1e}"
        lines.append(f"| {row['filters']:,} | {row['N']:,} | {end} |")
    return "\n".join(lines) + "\n"


def generator() -> str:
    """What the library's own random numbers give, as Markdown."""

    def gains(name):
        path = RESULTS / f"{name}.json"
        stored = json.loads(path.read_text())
        found, where = sorted(row["gain"] for row in stored["rows"]), _name_of(stored["machine"])
        return f"{found[0]:.2f} to {found[-1]:.2f} times ({where}; [{path.name}](benchmarks/results/{path.name}))"

    return (
        "Filters draw from a generator of their own (`epf_jax/random.py`: keyed hashes of a counter, behind "
        "`jax.random`'s functions; your key may be of any kind), and on a CPU make normals of uniforms by a quantile "
        "in plain arithmetic (`epf_jax/elementary.py`), both tested against their laws (`tests/test_random.py`). What "
        "the two give over `jax.random`'s own, end to end (`python -m benchmarks.speed.generator`), bootstrap and "
        f"EPF, N = 1,000 to 100,000: {gains('speed_generator_aarch64')}; the generator alone, "
        f"{gains('speed_generator')}. On a GPU, where only the generator differs, {gains('speed_generator_gpu')}; it "
        "is kept there so that all devices draw the same words.\n"
    )


def startup() -> str:
    """How long the first result of the quickstart takes, as Markdown."""
    stored = json.loads((RESULTS / "speed_startup_aarch64.json").read_text())
    seconds = {row["what"]: row["seconds"] for row in stored["rows"]}
    here = stored["machine"]
    return (
        f"- The first call compiles for seconds: on {here['cores']} cores ({here['processor']}) the quickstart has its "
        f"first result {seconds['build, trace and compile']:.1f} s after the import, which takes "
        f"{seconds['import']:.1f} s. `epf.cache_compiled_programs()` at the top of a script keeps programs between "
        f"processes: the next one has its first result after {seconds['the same, cached']:.2f} s "
        "([speed_startup_aarch64.json](benchmarks/results/speed_startup_aarch64.json)). The programs of `epf.run` are "
        "found again by the source of the model's functions and of all that they read; what cannot be known by "
        "reading, such as a file that a model opens, is compiled by jax's own rules.\n"
    )


def duel() -> str:
    """What our methods and their rivals need, side by side on one machine, as Markdown."""
    stored = json.loads((RESULTS / "accuracy_duel_aarch64.json").read_text())
    here, found = stored["machine"], [row for row in stored["rows"] if "met" in row]
    lines = [
        f"By turns in one process, on one machine ({here['processor']}, {here['cores']} cores, jax {here['jax']}; "
        "`python -m benchmarks.accuracy.duel`, [accuracy_duel_aarch64.json]"
        "(benchmarks/results/accuracy_duel_aarch64.json)): the quickest of this library's own filters with a z rms of "
        "at most 0.1, and the quickest of the others, here at more sizes than above, with at most 0.3:",
        "",
        "| model | ours | z rms | seconds | best of the others | z rms | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        sides = (f"{row[s]} | {row[f'{s}: z rms']:.2f} | {row[f'{s}: seconds']:.3f}" for s in ("ours", "rival"))
        lines.append(f"| {row['model']} | " + " | ".join(sides) + " |")
    return "\n".join(lines) + "\n"


def samplers() -> str:
    """The EPF with every sampler, as Markdown."""
    stored = json.loads((RESULTS / "accuracy_samplers.json").read_text())
    here, size, rows = stored["machine"], stored["settings"], stored["rows"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    heads = " | ".join(f"{model}: accepted | z rms | sdr | seconds" for model in models)
    lines = [
        f"The EPF (Chebyshev, {size['particles']} particles) with theta drawn by this library's samplers and by "
        f"kernels of blackjax {size['blackjax']}: {size['series']} data sets of 1000 observations, seconds of a series "
        f"by turns in one process ({here['processor']}, {here['cores']} cores, jax {here['jax']}; "
        "`python -m benchmarks.accuracy.samplers`, [accuracy_samplers.json]"
        "(benchmarks/results/accuracy_samplers.json)):",
        "",
        f"| sampler | {heads} |",
        "|---|" + "---|" * 4 * len(models),
    ]
    for label in dict.fromkeys(row["sampler"] for row in rows):
        found = {row["model"]: row for row in rows if row["sampler"] == label}
        cells = [
            f"{r['acceptance']:.2f} | {r['z rms']:.2f} | {r['sdr']:.2f} | {r['seconds']:.2f}" if r else " | | | "
            for r in map(found.get, models)
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


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
        "What to take, by this table: of the methods here that go on with every observation, the quickest with a z rms "
        "of at most 0.3, and the quickest with at most 0.1, or, where none has it, the one with the least error. A "
        "size is the number of particles, of SMC^2 those of theta and of each one's states "
        "(`smc2_filter(model, 64, num_inner=32, ...)`), of a node filter those at each node, and with sigma points the "
        "nodes for each parameter (`num_nodes`; `num_points` and `reach` are in `benchmarks/accuracy/contestants.py`). "
        "For models unlike these, see [which filter to use](docs/which_filter.md):",
        "",
        *_guide(on_cores, where),
        "",
        agreement(),
    ]
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


def _guide(rows, where) -> list[str]:
    lines = ["| a model like | z rms at most 0.3 | z rms at most 0.1 |", "|---|---|---|"]
    for model, kind in KINDS.items():
        found = [row for row in rows if row["model"] == model and _is_ours_and_online(row)]
        cells = []
        for most in (0.3, 0.1):
            reached = [row for row in found if row["z rms"] <= most]
            row = min(reached, key=lambda r: r["seconds"]) if reached else min(found, key=lambda r: r["z rms"])
            cells.append(f"{row['method']}, size {row['size']}: {_league_cell(row, where)}")
        lines.append(f"| {model}: {kind} | " + " | ".join(cells) + " |")
    return lines


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


def calibration() -> str:
    """The stored calibration as Markdown."""
    stored = json.loads((RESULTS / "accuracy_calibration.json").read_text())
    rows, size = stored["rows"], stored["settings"]
    inside, outside = (", ".join(r["method"] for r in rows if r["calibrated"] == flag) for flag in (True, False))
    low, high = size["band"]
    return (
        f"Simulation-based calibration ({size['model']}; {size['replicates']} parameters from the prior, T = "
        f"{size['steps']}): the ranks of the true parameter among {size['draws']} draws stay in the band that 99% of "
        f"uniform histograms keep to, {low} to {high} in every bin of ten, for {inside}; they leave it for {outside}.\n"
        "\n![Rank histograms of every method](benchmarks/results/calibration.png)\n"
    )


TABLES = {
    "accuracy": accuracy,
    "league": league,
    "duel": duel,
    "samplers": samplers,
    "calibration": calibration,
    "claims": claims,
    "speed": speed,
    "summaries": summaries,
    "gradient": gradient,
    "capacity": capacity,
    "generator": generator,
    "startup": startup,
}


def written(text: str) -> str:
    """The README with the tables between their markers."""
    for name, table in TABLES.items():
        start, end = (mark.format(name) for mark in MARKS)
        before, rest = text.split(start)
        text = before + start + table() + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
