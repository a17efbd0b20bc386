"""Tables of speed, memory and gradients."""

import json
import pathlib

from benchmarks.report import RESULTS


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


def defaults() -> str:
    """What a step of the filter that is chosen for a model costs, as Markdown."""
    lines = ["| model | statistic | machine | N | a step | by XLA alone | the call that compiles, less its steps |"]
    lines += ["|---" * 7 + "|"]
    for path in sorted(RESULTS.glob("speed_defaults*.json")):
        stored = json.loads(path.read_text())
        machine, found = _name_of(stored["machine"]), stored["rows"]
        alone = {(row["model"], row["N"]): f"{row['us a step']:.0f} us" for row in found if row["by"] == "XLA alone"}
        for row in (row for row in found if row["by"] == "as it is"):
            times = (
                f"{row['us a step']:.0f} us | {alone.get((row['model'], row['N']), '')} | {row['s to compile']:.1f} s"
            )
            lines.append(f"| {row['model']} | `{row['statistic']}` | {machine} | {row['N']:,} | {times} |")
    return "\n".join(lines) + "\n"


def noise() -> str:
    """What a step costs by the distribution of the states, as Markdown: a column for each machine and size."""
    columns: dict[str, dict[str, str]] = {}
    for path in sorted(RESULTS.glob("speed_noise*.json")):
        stored = json.loads(path.read_text())
        for row in stored["rows"]:
            where = f"{_name_of(stored['machine'])}, N = {row['N']:,}"
            columns.setdefault(where, {})[row["states"]] = f"{row['us a step']:.0f} us"
    states = list(next(iter(columns.values())))
    lines = [f"| states | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| `{name}` | {' | '.join(found[name] for found in columns.values())} |" for name in states]
    return "\n".join(lines) + "\n"


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
        f"{size['runs']} runs, of transport {size['runs of transport']}; q and r are the noise scales; in brackets the "
        "distance in standard errors):",
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
        "Filters draw from a generator of their own (`epf_jax/core/random.py`: keyed hashes of a counter, behind "
        "`jax.random`'s functions; your key may be of any kind), and on a CPU make normals of uniforms by a quantile "
        "in plain arithmetic (`epf_jax/core/elementary.py`), both tested against their laws "
        "(`tests/core/test_random.py`). What the two give over `jax.random`'s own, end to end "
        "(`python -m benchmarks.speed.generator`), bootstrap and "
        f"EPF, N = 1,000 to 100,000: {gains('speed_generator_aarch64')}; "
        f"{gains('speed_generator')}. On a GPU, where only the generator differs, {gains('speed_generator_gpu')}; it "
        "is kept there so that all devices draw the same words.\n"
    )


def startup() -> str:
    """How long the first result of the quickstart takes, as Markdown."""
    told = []
    for path in sorted(RESULTS.glob("speed_startup*.json")):
        name, stored = path.name, json.loads(path.read_text())
        seconds, here = {row["what"]: row["seconds"] for row in stored["rows"]}, stored["machine"]
        where = f"{here['cores']} cores, {here['processor']}" if here["device"] == "cpu" else here["device"]
        told.append(
            f"{seconds['build, trace and compile']:.1f} s after the import, which takes {seconds['import']:.1f} s, and "
            f"{seconds['the same, cached']:.2f} s with programs kept ({where}; "
            f"[{name}](benchmarks/results/{name}))"
        )
    return (
        f"- The first call compiles for seconds: the quickstart has its first result {'; '.join(told)}. "
        "`epf.cache_compiled_programs()` at the top of a script keeps programs between processes. The programs of "
        "`epf.run` are found again by the source of the model's functions and of all that they read; what cannot be "
        "known by reading, such as a file that a model opens, is compiled by jax's own rules.\n"
    )
