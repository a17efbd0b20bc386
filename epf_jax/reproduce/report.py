"""The report: one page that holds every figure, table and verdict, and needs nothing else to be read."""

import base64
import html
import io
import pathlib
from typing import Any

from epf_jax.machine import machine
from epf_jax.reproduce.cases import DEMO, FULL, Size
from epf_jax.reproduce.claims import Claim, Experiment, Section, Table
from epf_jax.reproduce.store import Stored, StoreError, write_atomically

_MARKS = {"yes": "&#10003;", "partly": "&#8776;", "no": "&#10007;"}
_STYLE = """
:root { --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --tint: #f6f8fa; }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); margin: 0 auto; max-width: 66rem; padding: 1.5rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; margin: 3rem 0 0.5rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 0.4rem; }
p, figcaption, li { max-width: 46rem; }
figure { margin: 1.2rem 0; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption, .note { color: var(--soft); font-size: 0.9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.88rem; margin: 0.3rem 0; }
th, td { text-align: left; padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; }
.claim { border-left: 4px solid var(--line); background: var(--tint); padding: 0.6rem 0.9rem; margin: 0.7rem 0; }
.claim p { margin: 0.25rem 0; }
.yes { border-color: #2a8f5a; } .partly { border-color: #c9a227; } .no { border-color: #c43c39; }
.verdict { font-weight: 600; }
.mark { display: inline-block; width: 1.3em; font-weight: 700; }
td.yes, td.partly, td.no { border-left: 4px solid; padding-left: 0.6rem; }
td.yes { border-left-color: #2a8f5a; } td.partly { border-left-color: #c9a227; } td.no { border-left-color: #c43c39; }
nav { display: flex; flex-wrap: wrap; gap: 0.3rem 1.2rem; }
@media (max-width: 40rem) { body { padding: 1rem; font-size: 15px; } h1 { font-size: 1.35rem; }
  table { font-size: 0.8rem; } .claims th, .claims td { display: block; border-bottom: 0; padding: 0.1rem 0 0.1rem 0.6rem; }
  .claims thead { display: none; } .claims tr { display: block; border-bottom: 1px solid var(--line); padding: 0.5rem 0; } }
"""


def prepare(output: pathlib.Path) -> None:
    """Refuse now what would fail once all the work is done: no matplotlib, a folder that cannot be made."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise StoreError('the report needs matplotlib: pip install "epf_jax[plots]". Nothing was computed.') from error
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
    page = (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>The extended parameter filter, reproduced</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )
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
        f"<tr><td class='{claim.kind}'>{_text(claim.where)}</td><td>{_text(claim.says)}</td>"
        f"<td><span class='mark'>{_MARKS[claim.kind]}</span>"
        f"<a href='#{experiment.name}'>{_text(claim.verdict)}</a></td></tr>"
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
        f"{counts['no']} do not.</strong> This run: {sets}, T = {size.num_steps}; {_text(here['device'])} device, "
        f"{_text(processors)}, {here['cores']} cores, Python {here['python']}, jax {here['jax']}, {here['date']}; "
        f"{computed:.0f} s of work in all, {seconds:.0f} s just now"
        + ("" if size.num_series > 1 else ". One data set is one draw: <code>epf reproduce --full</code> runs twenty, with "
           "error bars") + ".</p>"
        "<nav>" + ("<a href='#league'>League table</a>" if league else "")
        + "".join(f"<a href='#{e.name}'>{_text(e.title)}</a>" for e, _ in sections) + "</nav>"
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
    return f"<h2 id='league'>League table</h2>{_table(Table('', rows, note))}"


def _section(experiment: Experiment, section: Section, folder: pathlib.Path) -> str:
    parts = [f"<h2 id='{experiment.name}'>{_text(experiment.title)}</h2>"]
    parts += [f"<p>{_text(paragraph)}</p>" for paragraph in section.text]
    rows = [dict(zip(("", "paper", "here"), row, strict=True)) for row in section.settings]
    parts.append(_table(Table("Settings", rows)))
    for figure in section.figures:
        parts.append(
            f"<figure><img alt='{_text(figure.caption)}' src='data:image/png;base64,{_picture(figure, folder)}'>"
            f"<figcaption>{_text(figure.caption)}</figcaption></figure>"
        )
    parts += [_table(table) for table in section.tables]
    parts += [_claim(claim) for claim in section.claims]
    return "\n".join(parts)


def _picture(figure: Any, folder: pathlib.Path) -> str:
    import matplotlib.pyplot as plt

    drawn = figure.draw()
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=110)
    plt.close(drawn)
    write_atomically(folder / f"{figure.name}.png", buffer.getvalue())
    return base64.b64encode(buffer.getvalue()).decode()


def _claim(claim: Claim) -> str:
    return (
        f"<div class='claim {claim.kind}'><p><strong>{_text(claim.where)}.</strong> {_text(claim.says)}</p>"
        f"<p class='verdict'><span class='mark'>{_MARKS[claim.kind]}</span>{_text(claim.verdict)}</p>"
        f"<p>{_text(claim.evidence)}</p></div>"
    )


def _table(table: Table) -> str:
    columns = list(dict.fromkeys(key for row in table.rows for key in row))
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(row.get(c, ''))}</td>" for c in columns) + "</tr>" for row in table.rows
    )
    title = f"<h3>{_text(table.title)}</h3>" if table.title else ""
    note = f"<p class='note'>{_text(table.note)}</p>" if table.note else ""
    return f"{title}<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"


def _timings(results: dict[str, Stored]) -> str:
    rows = [
        {"work": name, "seconds": f"{stored.about['seconds']:.1f}", "date": stored.about["date"],
         "device": stored.about["device"], "jax": stored.about["jax"]}
        for name, stored in results.items()
    ]  # fmt: skip
    note = "Compilation included. Results are kept in data/ and computed again only when settings or code change."
    return "<h2 id='work'>Timings</h2>" + _table(Table("", rows, note))


def _text(value: Any) -> str:
    return html.escape(str(value)).replace("+-", "&plusmn;")
