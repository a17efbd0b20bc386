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
        f"The default statistic is `linear_means`; other models would get `chebyshev`. {size['series']} series of "
        f"{size['steps']} observations, exact posteriors by Kalman filters on a grid ({here['processor']}"
        f"{_elsewhere(size)}; `vague`). A cell has z rms / z max / sdr of the worst parameter.",
        "",
        "| unknown | w | " + " | ".join(filters) + " |",
        "|---|---|" + "---|" * len(filters),
    ]
    for unknown, width in dict.fromkeys((row["unknown"], row["prior sd"]) for row in rows):
        case = [row for row in rows if (row["unknown"], row["prior sd"]) == (unknown, width)]
        lines.append(f"| {unknown} | {width:g} | " + " | ".join(_of_the_worst(case, filters)) + " |")
    return "\n".join(lines) + "\n"


def _elsewhere(size: dict) -> str:
    """Where rows were measured that were not measured with the others."""
    machine = size.get("other rows by")
    return "" if machine is None else f", the default filter; others: {machine['processor']}, {machine['date']}"


def _of_the_worst(case: list[dict], filters: list[str]) -> list[str]:
    """A cell for each filter: z rms / z max / sdr of the parameter that it knows worst."""
    cells = []
    for label in filters:
        row = max((row for row in case if row["filter"] == label), key=lambda row: row["z rms"], default=None)
        cells.append("" if row is None else f"{row['z rms']:.2f} / {row['z max']:.2f} / {row['sdr']:.2f}")
    return cells


def many() -> str:
    """Four parameters and more, as Markdown."""
    stored = json.loads((RESULTS / "accuracy_many.json").read_text())
    here, size, rows = stored["machine"], stored["settings"], stored["rows"]
    filters, models = (list(dict.fromkeys(row[key] for row in rows)) for key in ("filter", "model"))
    lines = [
        f"All parameters are unknown under ordinary priors. The default filter has {size['particles']} particles. Its "
        "statistic is `linear_means` for the first three models, `assumed_density` for the counts. "
        f"{size['series']} series of {size['steps']} observations, exact posteriors by importance sampling with an "
        f"error of at most {size['least draws'] ** -0.5:.2f} ({here['processor']}; `many`). SMC^2 with Kalman filters "
        "inside serves models that are linear and Gaussian in x, and remembers the series. A cell has z rms / z max / "
        "sdr of the worst parameter.",
        "",
        "| model | " + " | ".join(filters) + " |",
        "|---|" + "---|" * len(filters),
    ]
    for name in models:
        case = [row for row in rows if row["model"] == name]
        lines.append(f"| {name} | " + " | ".join(_of_the_worst(case, filters)) + " |")
    return "\n".join(lines) + "\n"


def proposals() -> str:
    """What `laplace` gives, as Markdown."""
    path = min(RESULTS.glob("accuracy_proposals*.json"))
    stored = json.loads(path.read_text())
    here, size = stored["machine"], stored["settings"]
    lines = [
        f"{size['series']} series of {size['steps']} observations, exact posteriors by quadrature "
        f"({here['processor']}, {here['cores']} cores; `proposals`).",
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
        f"{size['paths']} paths for thetas of the default filter with {size['particles']} particles; so many paths "
        f"alone make z rms {size['paths'] ** -0.5:.2f}. {size['series']} series of {size['steps']} observations, exact "
        "states by Kalman's smoother and by quadrature, with theta integrated out "
        f"({here['device']}, jax {here['jax']}; `smoothing`).",
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
    size, here, found = stored["size"], stored["machine"], stored["claims"]
    whole, partly = (sum(c["verdict"].startswith(words) for c in found) for words in ("reproduces", "reproduces only"))
    lines = [
        f"Of {len(found)} claims, {whole - partly} reproduce, {partly} reproduce only under a condition, and "
        f"{len(found) - whole} do not reproduce. (`make full`, {size['num_series']} data sets per model, T = "
        f"{size['num_steps']}; {here['device']}, jax {here['jax']}, {here['date']}.)",
        "",
    ]
    for claim in found:
        verdict = claim["verdict"][0].upper() + claim["verdict"][1:]
        lines.append(f"1. *{_escaped(claim['says'])}* ({claim['where']})<br>")
        lines.append(f"   **{_escaped(verdict)}.** {_escaped(claim['evidence'])}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """The text with what Markdown would read as marks."""
    return text.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


def duel() -> str:
    """What our methods and their rivals need, side by side on one machine, as Markdown."""
    stored = json.loads((RESULTS / "accuracy_duel_aarch64.json").read_text())
    here, found = stored["machine"], [row for row in stored["rows"] if "met" in row]
    lines = [
        "Ours is the quickest method of this library with z rms of at most 0.1. The other is the quickest of all other "
        "methods with at most 0.3, at more sizes than in the league. Both took turns in one process "
        f"({here['processor']}, {here['cores']} cores, jax {here['jax']}; `duel`).",
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
        f"The EPF with `chebyshev` and {size['particles']} particles, theta drawn by our samplers and by blackjax "
        f"{size['blackjax']}. {size['series']} series of 1000 observations; seconds of one series "
        f"({here['processor']}, {here['cores']} cores, jax {here['jax']}; `samplers`).",
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


def evidence() -> str:
    """How far estimates of the evidence are from unbiased, as Markdown."""
    stored = json.loads((RESULTS / "accuracy_evidence.json").read_text())
    rows, size = stored["rows"], stored["settings"]
    most = max(abs(row["in errors"]) for row in rows)
    return (
        "A particle filter's estimate of the evidence should be unbiased. For "
        f"{len(rows)} combinations of filter, resampler and ESS threshold, the mean of estimate / exact evidence over "
        f"{size['runs']} runs is within {most:.1f} standard errors of 1 (`evidence`).\n"
    )


def decomposed() -> str:
    """Theta taken apart, as Markdown: the worst parameter of each model, and the density of a known path."""
    stored = json.loads((RESULTS / "accuracy_decomposed.json").read_text())
    here, size, rows = stored["machine"], stored["settings"], stored["rows"]
    lines = [
        f"`epf.decomposed`, {size['particles']:,} particles, against NUTS on states and parameters: {size['series']} "
        f"series of {size['steps']} observations each, and the lynx series ({here['processor']}, jax {here['jax']}; "
        "`decomposed`). Columns are of the parameter that is known worst.",
        "",
        "| model | parameters | z rms | z max | sd ratios |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["model"] for row in rows if "sdr" in row):
        of_model = [row for row in rows if row["model"] == name and "sdr" in row]
        rms, most = (max(abs(row.get(of, row.get("z"))) for row in of_model) for of in ("z rms", "z max"))
        ratios = [row["sdr"] for row in of_model]
        numbers = f"{rms:.2f} | {most:.2f} | {min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(f"| {name} | {len(of_model)} | {numbers} |")
    paths = [f"{row['model']} {row['rms']:.1g}" for row in rows if "of a known path" in row]
    return "\n".join([*lines, "", f"The log-density given a known path is read to, rms: {', '.join(paths)}."]) + "\n"


def attack() -> str:
    """What the attack tried and found, as Markdown."""
    stored = json.loads((RESULTS / "attack.json").read_text())
    lines = ["| attack | tried | wrong | lost |", "|---|---|---|---|"]
    for row in stored["rows"]:
        ended = "" if row["whole"] else " (out of time)"
        lines.append(f"| {row['promise']} | {row['tried']}{ended} | {row['wrong']} | {row['lost']} |")
    return "\n".join(lines) + "\n"


def calibration() -> str:
    """The stored calibration as Markdown."""
    stored = json.loads((RESULTS / "accuracy_calibration.json").read_text())
    rows, size = stored["rows"], stored["settings"]
    inside, outside = ("; ".join(r["method"] for r in rows if r["calibrated"] == flag) for flag in (True, False))
    low, high = size["band"]
    return (
        f"Simulation-based calibration: {size['replicates']} parameters are drawn from the prior, a series is "
        f"simulated from each, and the true parameter is ranked among {size['draws']} posterior draws "
        f"({size['model']}; T = {size['steps']}; `calibration`). If a method is right, ranks are uniform: each of ten "
        f"bins then has {low} to {high} of them, in 99% of all histograms. Inside these bounds: {inside}. Outside: "
        f"{outside}.\n\n![Rank histograms of every method](benchmarks/results/calibration.png)\n"
    )
