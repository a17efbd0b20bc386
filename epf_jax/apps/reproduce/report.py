"""The report: one self-contained page with every figure, table and verdict."""

import pathlib

from epf_jax.apps.page import Table, page_of, picture_of, table_of, text_of
from epf_jax.apps.reproduce.cases import DEMO, FULL, Size
from epf_jax.apps.reproduce.claims import Claim, Experiment, Section
from epf_jax.apps.reproduce.store import Stored, StoreError, write_atomically
from epf_jax.core.checks import pip_install
from epf_jax.core.machine import machine

_MARKS = {"yes": "&#10003;", "partly": "&#8776;", "no": "&#10007;"}


def prepare(output: pathlib.Path) -> None:
    """Raise before the work starts if matplotlib is missing or the folder cannot be made."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise StoreError(f"the report needs matplotlib: {pip_install('plots')}. Nothing was computed.") from error
    mpl.use("Agg")
    try:
        (output / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"--output: cannot make {output / 'figures'} ({error}). Nothing was computed.") from error


def write_report(
    path: pathlib.Path,
    size: Size,
    sections: list[tuple[Experiment, Section]],
    results: dict[str, Stored],
    seconds: float,
) -> pathlib.Path:
    """Draw every figure (also kept as PNG files), and write the page, `index.html` if it holds every experiment."""
    figures = path.parent / "figures"
    parts = [_head(size, sections, results, seconds)]
    for experiment, section in sections:
        parts.append(_section(experiment, section, figures))
    parts.append(_timings(results))
    page = page_of("The extended parameter filter, reproduced", parts)
    write_atomically(path, page)
    return path


def _head(size, sections, results, seconds) -> str:
    claims = [(experiment, claim) for experiment, section in sections for claim in section.claims]
    counts = {kind: sum(claim.kind == kind for _, claim in claims) for kind in _MARKS}
    here = machine()
    processors = " and ".join(sorted({stored.about["processor"] for stored in results.values()}))
    reduced = (
        ""
        if size in (DEMO, FULL)
        else (
            f"<p><strong>Reduced size:</strong> T = {size.num_steps}, numbers of particles divided by {size.divide}. The verdicts "
            "are about these settings, not the paper's.</p>"
        )
    )
    computed = sum(stored.about["seconds"] for stored in results.values())
    rows = "".join(
        f"<tr><td class='{claim.kind}'>{text_of(claim.where)}</td><td>{text_of(claim.says)}</td>"
        f"<td><span class='mark'>{_MARKS[claim.kind]}</span>"
        f"<a href='#{experiment.name}'>{text_of(claim.verdict)}</a></td></tr>"
        for experiment, claim in claims
    )
    league = _league(sections)
    sets = "one data set per model" if size.num_series == 1 else f"{size.num_series} data sets per model"
    return (
        "<h1>The extended parameter filter, reproduced</h1>"
        "<p>Every experiment of Erol, Li, Ramsundar and Russell, <em>The Extended Parameter Filter</em> (ICML 2013), run "
        "again with <code>epf_jax</code> and judged against exact posteriors, which the paper did not have. Each verdict "
        "rests on numbers of this run.</p>" + reduced +
        f"<p><strong>{len(claims)} claims: {counts['yes']} reproduce, {counts['partly']} only with a condition, "
        f"{counts['no']} do not.</strong> This run: {sets}, T = {size.num_steps}; {text_of(here['device'])} device, "
        f"{text_of(processors)}, {here['cores']} cores, Python {here['python']}, jax {here['jax']}, {here['date']}; "
        f"{computed:.0f} s of work in all, {seconds:.0f} s just now"
        + ("" if size.num_series > 1 else ". One data set is one draw: <code>epf reproduce --full</code> runs twenty, with "
           "error bars") + ".</p>"
        "<nav>" + ("<a href='#league'>League table</a>" if league else "")
        + "".join(f"<a href='#{e.name}'>{text_of(e.title)}</a>" for e, _ in sections) + "</nav>"
        "<h3>Claims and verdicts</h3><div class='scroll'><table class='claims'><thead><tr><th>where</th><th>the paper says</th>"
        f"<th>verdict</th></tr></thead><tbody>{rows}</tbody></table></div>"
        "<p class='note'>A filter <em>agrees</em> with the exact posterior when, at the last observation, the median |z| over the "
        "data sets is at most 0.6 and the median ratio of sds between 0.75 and 1.33; below 0.1 its spread is <em>lost</em>; "
        "above 1 sd it is <em>off</em>. SIR is the bootstrap filter with theta in its state; the Gibbs density is that of theta "
        "given a known path.</p>" + league
    )  # fmt: skip


def _league(sections) -> str:
    """The rows of every model's table of methods, together."""
    rows = [row for _, section in sections for table in section.tables for row in table.rows if "method" in row]
    if not rows:
        return ""
    note = (
        "All methods on all models, at the last observation, against the exact posterior: z = (filter mean - exact mean) / "
        "exact sd, sdr = filter sd / exact sd; 0 and 1 are right. Seconds are per series, in a batch of all of a model's series, "
        "compilation apart."
    )
    return f"<h2 id='league'>League table</h2>{table_of(Table('', rows, note))}"


def _section(experiment: Experiment, section: Section, folder: pathlib.Path) -> str:
    parts = [f"<h2 id='{experiment.name}'>{text_of(experiment.title)}</h2>"]
    parts += [f"<p>{text_of(paragraph)}</p>" for paragraph in section.text]
    rows = [dict(zip(("", "paper", "here"), row, strict=True)) for row in section.settings]
    parts.append(table_of(Table("Settings", rows)))
    for figure in section.figures:
        picture, content = picture_of(figure)
        write_atomically(folder / f"{figure.name}.png", content)
        parts.append(picture)
    parts += [table_of(table) for table in section.tables]
    parts += [_claim(claim) for claim in section.claims]
    return "\n".join(parts)


def _claim(claim: Claim) -> str:
    return (
        f"<div class='claim {claim.kind}'><p><strong>{text_of(claim.where)}.</strong> {text_of(claim.says)}</p>"
        f"<p class='verdict'><span class='mark'>{_MARKS[claim.kind]}</span>{text_of(claim.verdict)}</p>"
        f"<p>{text_of(claim.evidence)}</p></div>"
    )


def _timings(results: dict[str, Stored]) -> str:
    rows = [
        {"work": name, "seconds": f"{stored.about['seconds']:.1f}", "date": stored.about["date"],
         "device": stored.about["device"], "jax": stored.about["jax"]}
        for name, stored in results.items()
    ]  # fmt: skip
    note = "Compilation included. Results are kept in data/ and computed again only when settings or code change."
    return "<h2 id='work'>Timings</h2>" + table_of(Table("", rows, note))
