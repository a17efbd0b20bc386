"""Tables of accuracy: by model, by sampler, with vague priors, in calibration; and of the paper's claims."""

import json

from benchmarks.report import RESULTS

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


def vague() -> str:
    """Vague priors, as Markdown."""
    stored = json.loads((RESULTS / "accuracy_vague.json").read_text())
    here, size, rows = stored["machine"], stored["settings"], stored["rows"]
    filters = list(dict.fromkeys(row["filter"] for row in rows))
    lines = [
        "Vague priors: x_t = a + b x_{t-1} + N(0, s), y_t = x_t + N(0, 0.3), a ~ N(0, w), b ~ U(-1, 1), log s ~ "
        "N(0, 1), or with the mean m that it reverts to, a = m (1 - b), m ~ N(0, w), nothing tuned; the default "
        "statistic is `linear_means`, and `chebyshev` what another model would get "
        f"({size['series']} data sets of {size['steps']} observations, exact posteriors by the Kalman filter on a "
        f"grid; {here['processor']}{_elsewhere(size)}; `python -m benchmarks.accuracy.vague`, "
        "[accuracy_vague.json](benchmarks/results/accuracy_vague.json)). z rms / z max / sdr of every unknown "
        "parameter:",
        "",
        "| unknown | w | " + " | ".join(filters) + " |",
        "|---|---|" + "---|" * len(filters),
    ]
    for unknown, width in dict.fromkeys((row["unknown"], row["prior sd"]) for row in rows):
        case = [row for row in rows if (row["unknown"], row["prior sd"]) == (unknown, width)]
        lines.append(f"| {unknown} | {width:g} | " + " | ".join(_by_parameter(case, filters)) + " |")
    return "\n".join(lines) + "\n"


def _elsewhere(size: dict) -> str:
    """Where rows were measured that were not measured with the others."""
    machine = size.get("other rows by")
    return "" if machine is None else f"; all but the default's on {machine['processor']}, {machine['date']}"


def _by_parameter(case: list[dict], filters: list[str]) -> list[str]:
    """A cell for each filter: z rms / z max / sdr of every parameter."""
    return [
        "; ".join(
            f"{r['parameter']} {r['z rms']:.2f} / {r['z max']:.2f} / {r['sdr']:.2f}"
            for r in case
            if r["filter"] == label
        )
        for label in filters
    ]


def many() -> str:
    """Four parameters and more, as Markdown."""
    stored = json.loads((RESULTS / "accuracy_many.json").read_text())
    here, size, rows = stored["machine"], stored["settings"], stored["rows"]
    filters, models = (list(dict.fromkeys(row[key] for row in rows)) for key in ("filter", "model"))
    lines = [
        "Four parameters and more, everything unknown under priors as one would write them: the default filter "
        f"(`linear_means` for the first three models, assumed densities for counts) with {size['particles']} "
        f"particles, and what else goes with any model ({size['series']} data sets of {size['steps']} observations, "
        "exact posteriors by "
        f"importance sampling, each worth {size['least draws']:.0f} draws or more; {here['processor']}; `python -m "
        "benchmarks.accuracy.many`, [accuracy_many.json](benchmarks/results/accuracy_many.json)), so that z itself is "
        f"known to {size['least draws'] ** -0.5:.2f} at the worst. SMC^2 with Kalman's filter inside is for models "
        "that are linear and Gaussian in x, and it remembers the series. z rms / z max / sdr:",
        "",
        "| model | " + " | ".join(filters) + " |",
        "|---|" + "---|" * len(filters),
    ]
    for name in models:
        case = [row for row in rows if row["model"] == name]
        lines.append(f"| {name} | " + " | ".join(_by_parameter(case, filters)) + " |")
    return "\n".join(lines) + "\n"


def proposals() -> str:
    """What `laplace` gives, as Markdown."""
    path = min(RESULTS.glob("accuracy_proposals*.json"))
    stored = json.loads(path.read_text())
    here, size = stored["machine"], stored["settings"]
    lines = [
        "Proposals: the default filter on three models whose state is Gaussian and whose observations are not, with "
        "x_t drawn from the transition, or near the mode of what y_t says of it "
        f"({size['series']} data sets of {size['steps']} observations, exact posteriors by quadrature; microseconds by "
        f"turns on {here['processor']}, {here['cores']} cores; `python -m benchmarks.accuracy.proposals`, "
        f"[{path.name}](benchmarks/results/{path.name})). "
        "Of a volatility one observation says little, and there is nothing to gain, but time to lose:",
        "",
        "| model | proposal, particles | z rms | z max | sdr | µs a step |",
        "|---|---|---|---|---|---|",
    ]
    for row in stored["rows"]:
        numbers = " | ".join(f"{row[k]:.2f}" for k in ("z rms", "z max", "sdr"))
        lines.append(f"| {row['model']} | {row['filter']} | {numbers} | {row['us a step']:.0f} |")
    return "\n".join(lines) + "\n"


def smoothing() -> str:
    """What `epf.smooth` makes of the states, as Markdown."""
    stored = json.loads((RESULTS / "accuracy_smoothing.json").read_text())
    here, size = stored["machine"], stored["settings"]
    lines = [
        f"`epf.smooth` with its defaults, but for the proposal: {size['paths']} paths for thetas of the "
        f"default filter with {size['particles']} particles ({size['series']} data sets of {size['steps']} "
        "observations; exact states by Kalman's smoother and by quadrature, theta integrated out; "
        f"{here['device']}, jax {here['jax']}; `python -m benchmarks.accuracy.smoothing`, "
        "[accuracy_smoothing.json](benchmarks/results/accuracy_smoothing.json)). z is that of a state's mean, over all "
        f"t: so many paths alone make its rms {size['paths'] ** -0.5:.2f}. *Renewed* is the least share, over t and "
        "data sets, of the paths that sweeps drew anew; seconds are those of a series, the median. Where the level "
        "behind Student noise is unknown, what is seen is its sum with the state: the filter's error of theta "
        "(*Proposals*, above) is in the states, too:",
        "",
        "| model | states | z rms | z max | sdr | renewed | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in stored["rows"]:
        numbers = " | ".join(f"{row[k]:.2f}" for k in ("z rms", "z max", "sdr"))
        more = f"{row['renewed, least']:.2f} | {row['seconds']:.2g}" if "seconds" in row else " | "
        lines.append(f"| {row['model']} | {row['states']} | {numbers} | {more} |")
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
