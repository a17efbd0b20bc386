"""Write the README's tables from benchmarks/results: `python -m benchmarks.readme`."""

import json
import pathlib

from benchmarks.report import RESULTS

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
MARKS = "<!-- {0} table, written by python -m benchmarks.readme -->\n", "<!-- end of {0} table -->\n"
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
    stored = json.loads((RESULTS / "particle_step.json").read_text())
    rows, here = [row for row in stored["rows"] if "N" in row], stored["machine"]
    sizes = sorted({row["N"] for row in rows})
    lines = [
        f"On a CPU ({here['cores']} cores, jax {here['jax']}, {here['date']}; times as multiples of ours, ours in ns a "
        "particle-step):",
        "",
        "| race | contestant | " + " | ".join(f"N = {n:,}" for n in sizes) + " |",
        "|---" * (2 + len(sizes)) + "|",
    ]
    for work, contestant in dict.fromkeys((row["work"], row["contestant"]) for row in rows):
        found = {row["N"]: row for row in rows if (row["work"], row["contestant"]) == (work, contestant)}
        cells = [_speed_cell(found[n]) for n in sizes]
        lines.append(f"| {work} | {contestant} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_gpu()]) + "\n"


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


def gradient() -> str:
    """The stored gradients as Markdown: the one-theta-known filter, and the EPF whose theta moves by MH."""
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
        if row["filter"] == "bootstrap, phi known" or literal:
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


def league() -> str:
    """The stored league as Markdown: z of the worst parameter and seconds, for every method and model."""
    stored = json.loads((RESULTS / "league.json").read_text())
    rows, size = stored["rows"], stored["settings"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    machines = [row["on"] for row in rows if "on" in row]
    where = max(set(machines), key=machines.count)
    lines = [
        f"z rms of the worst parameter over {size['series']} data sets, and in brackets the seconds of one series "
        "on one core, at a small and a large budget (sizes, z max, sdr, coverage and evidence are in "
        "[benchmarks/results/league.json](benchmarks/results/league.json)). T = 1000, volatility and cycle 300; cycle "
        "has a two-dimensional state. Where nothing stands, the method does not fit the model, or was not run yet. On "
        "the Cauchy model every method that takes one has a proposal that allows for jumps. "
        f"Seconds are of {where}; those with a star, of another machine with other work on it:",
        "",
        "| method | budget | " + " | ".join(models) + " |",
        "|---" * (2 + len(models)) + "|",
    ]
    for method, budget in dict.fromkeys((row["method"], row["budget"]) for row in rows):
        found = {row["model"]: row for row in rows if (row["method"], row["budget"]) == (method, budget)}
        if not any("z rms" in row for row in found.values()):
            continue
        cells = [_league_cell(found.get(model, {}), where) for model in models]
        lines.append(f"| {method} | {budget} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _league_cell(row, where) -> str:
    if "z rms" not in row:
        return ""
    z = f"{row['z rms']:.2f}" if row["z rms"] < 10 else f"{row['z rms']:.0f}"
    return f"{z} ({row['seconds']:.2g} s{'' if row['on'] == where else '*'})"


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
    "calibration": calibration,
    "claims": claims,
    "speed": speed,
    "gradient": gradient,
    "capacity": capacity,
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
