"""The report: one self-contained page with every figure, table and verdict."""

import pathlib

from epf_jax.apps.page import Html, Section, Table, text_of, write_page
from epf_jax.apps.reproduce.cases import DEMO, FULL, Size
from epf_jax.apps.reproduce.claims import Claim, Experiment, Findings
from epf_jax.apps.reproduce.store import Stored
from epf_jax.core.machine import machine

_MARKS = {"yes": "&#10003;", "partly": "&#8776;", "no": "&#10007;"}
_PAPER = (
    "Every experiment of Erol, Li, Ramsundar and Russell, The Extended Parameter Filter (ICML 2013), run again with "
    "`epf_jax` and judged against exact posteriors, which the paper did not have. Each verdict rests on numbers of this "
    "run."
)
_WORDS = (
    "A filter <em>agrees</em> with the exact posterior when, at the last observation, the median |z| over the data sets "
    "is at most 0.6 and the median ratio of sds between 0.75 and 1.33; below 0.1 its spread is <em>lost</em>; above 1 sd "
    "it is <em>off</em>. SIR is the bootstrap filter with theta in its state; the Gibbs density is that of theta given a "
    "known path."
)


def write_report(
    path: pathlib.Path,
    size: Size,
    found: list[tuple[Experiment, Findings]],
    results: dict[str, Stored],
    seconds: float,
) -> pathlib.Path:
    """Draw every figure (also kept as PNG files), and write the page."""
    claims = [(experiment.name, claim) for experiment, findings in found for claim in findings.claims]
    counts = {kind: sum(claim.kind == kind for _, claim in claims) for kind in _MARKS}
    count = (
        f"<p><strong>{len(claims)} claims: {counts['yes']} reproduce, {counts['partly']} only with a condition, "
        f"{counts['no']} do not.</strong> {text_of(_this_run(size, results, seconds))}</p>"
    )
    sections = [Section("claims", "Claims and verdicts", [_overview(claims), Html(f"<p class='note'>{_WORDS}</p>")])]
    rows = [row for _, findings in found for table in findings.tables for row in table.rows if "method" in row]
    sections += [Section("league", "League table", [Table("", rows, _LEAGUE)])] if rows else []
    sections += [_section(*both) for both in found]
    sections.append(Section("work", "Timings", [_timings(results)], folded=True))
    return write_page(
        path, "The extended parameter filter, reproduced", [_PAPER, *_reduced(size), Html(count)], sections
    )


def _this_run(size: Size, results: dict[str, Stored], seconds: float) -> str:
    here = machine()
    processors = " and ".join(sorted({stored.about["processor"] for stored in results.values()}))
    computed = sum(stored.about["seconds"] for stored in results.values())
    one = " One data set is one draw: `epf reproduce --full` runs twenty, with error bars."
    sets = "one data set per model" if size.num_series == 1 else f"{size.num_series} data sets per model"
    return (
        f"This run: {sets}, T = {size.num_steps}; {here['device']} device, {processors}, {here['cores']} cores, Python "
        f"{here['python']}, jax {here['jax']}, {here['date']}; {computed:.0f} s of work in all, {seconds:.0f} s just now."
        + (one if size.num_series == 1 else "")
    )


def _reduced(size: Size) -> list[str]:
    """Says of a smaller run that it is one."""
    told = (
        f"Reduced size: T = {size.num_steps}, numbers of particles divided by {size.divide}. The verdicts are about "
        "these settings, not the paper's."
    )
    return [] if size in (DEMO, FULL) else [told]


def _overview(claims: list[tuple[str, Claim]]) -> Html:
    """Every claim on a line, with its verdict."""
    rows = "".join(
        f"<tr><td class='{claim.kind}'>{text_of(claim.where)}</td><td>{text_of(claim.says)}</td>"
        f"<td><span class='mark'>{_MARKS[claim.kind]}</span><a href='#{name}'>{text_of(claim.verdict)}</a></td></tr>"
        for name, claim in claims
    )
    head = "<thead><tr><th>where</th><th>the paper says</th><th>verdict</th></tr></thead>"
    return Html(f"<div class='scroll'><table class='claims'>{head}<tbody>{rows}</tbody></table></div>")


_LEAGUE = (
    "All methods on all models, at the last observation, against the exact posterior: z = (filter mean - exact mean) / "
    "exact sd, sdr = filter sd / exact sd; 0 and 1 are right. Seconds are per series, in a batch of all of a model's "
    "series, compilation apart."
)


def _section(experiment: Experiment, findings: Findings) -> Section:
    settings = [dict(zip(("", "paper", "here"), row, strict=True)) for row in findings.settings]
    claims = [_claim(claim) for claim in findings.claims]
    content = [*findings.text, Table("Settings", settings), *findings.figures, *findings.tables, *claims]
    return Section(experiment.name, experiment.title, content)


def _claim(claim: Claim) -> Html:
    return Html(
        f"<div class='claim {claim.kind}'><p><strong>{text_of(claim.where)}.</strong> {text_of(claim.says)}</p>"
        f"<p class='verdict'><span class='mark'>{_MARKS[claim.kind]}</span>{text_of(claim.verdict)}</p>"
        f"<p>{text_of(claim.evidence)}</p></div>"
    )


def _timings(results: dict[str, Stored]) -> Table:
    rows = [
        {
            "work": name,
            "seconds": f"{stored.about['seconds']:.1f}",
            "date": stored.about["date"],
            "device": stored.about["device"],
            "jax": stored.about["jax"],
        }
        for name, stored in results.items()
    ]
    note = "Compilation included. Results are kept in data/ and computed again only when settings or code change."
    return Table("", rows, note)
