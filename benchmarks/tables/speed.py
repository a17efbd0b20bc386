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
        f"On a CPU ({here['processor']}, {here['cores']} cores, jax {here['jax']}, {here['date']}):",
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


def gpu_steps() -> str:
    """Where a GPU's step of the default EPF spends its time, as Markdown."""
    stored = json.loads((RESULTS / "gpu_default.json").read_text())
    here, size = stored["machine"], stored["settings"]
    lines = [
        f"{here['device']}, jax {here['jax']}, N = {size['particles']:,}, T = {size['steps']:,}; SMC² has "
        f"{size['thetas']:,} thetas. *Kernels* are XLA's in a turn of its loop, which has two steps (`gpu_default`).",
        "",
        "| filter | us a step | kernels | first call, s |",
        "|---|---|---|---|",
    ]
    for row in stored["rows"]:
        micros, first = (f"{row[of]:.1f}" if of in row else "" for of in ("us a step", "first call, s"))
        lines.append(f"| {row['work']} | {micros} | {row.get('kernels in a turn', '')} | {first} |")
    return "\n".join(lines) + "\n"


def growth() -> str:
    """How the time of a step grows with the series, and that of many filters with the devices, as Markdown."""
    stored = json.loads((RESULTS / "cost_per_step.json").read_text())
    size, ratios = stored["settings"], [row["ratio"] for row in stored["rows"]]
    cores = json.loads((RESULTS / "speed_cores.json").read_text())
    gain = max(row["times one core"] for row in cores["rows"])
    return (
        f"A step of {len(ratios)} filters takes {min(ratios):.2f} to {max(ratios):.2f} times as long at T = "
        f"{size['long']:,} as at T = {size['short']:,}. `epf.replicate` on {cores['settings']['cores']} CPU devices is "
        f"{gain:.1f} times as fast as on one core.\n"
    )


def defaults() -> str:
    """What a step of the filter that is chosen for a model costs, as Markdown."""
    lines = ["| model | statistic | machine | N | a step | without kernels | first call |"]
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
    lines = ["| filter | machine | N | no quantiles | five | five, halving only |", "|---|---|---|---|---|---|"]
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
        f"Gradients of the evidence compared with Kalman's (linear AR(1), T = {size['steps']}, N = "
        f"{size['particles']}, {size['runs']} runs, {size['runs of transport']} for transport). q and r are the noise "
        "scales. Brackets hold the distance from the exact gradient in standard errors. The last column is the noise "
        "of one estimate.",
        "",
        "| filter | gradient | of | exact | E[grad Z] / E[Z] | mean of grad log Z | sd |",
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
        f"`epf.fit` on SIN with both noise scales unknown, beside the exact maximum of the evidence ({size['series']} "
        f"series, T = {size['steps']}, `node_filter` with {size['nodes']} nodes of {size['particles at each']} "
        f"particles; start: noise {size['start']['noise']:g}, sensor {size['start']['sensor']:g}):",
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
        "Filters have their own random number generator (`epf_jax/core/random.py`: keyed hashes of a counter, behind "
        "the functions of `jax.random`; your key may be of any kind). On a CPU they make normals from uniforms by a "
        "quantile function (`epf_jax/core/elementary.py`). Tests compare both with their laws. Compared with "
        "`jax.random`, whole filters (bootstrap and EPF, N = 1,000 to 100,000; `python -m "
        "benchmarks.speed.generator`) are faster: "
        f"{gains('speed_generator_aarch64')}; {gains('speed_generator')}. On a GPU only the generator differs: "
        f"{gains('speed_generator_gpu')}.\n"
    )


def startup() -> str:
    """How long the first result of the quickstart takes, as Markdown."""
    lines = ["| machine | import | first result | with a cache |", "|---|---|---|---|"]
    for path in sorted(RESULTS.glob("speed_startup*.json")):
        stored = json.loads(path.read_text())
        seconds = {row["what"]: row["seconds"] for row in stored["rows"]}
        times = (seconds[what] for what in ("import", "build, trace and compile", "the same, cached"))
        lines.append(f"| {_name_of(stored['machine'])} | " + " | ".join(f"{time:.1f} s" for time in times) + " |")
    return "\n".join(lines) + "\n"
