"""Report pages: figures, tables and text in one self-contained HTML file."""

import base64
import html
import io
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from epf_jax.core.checks import pip_install
from epf_jax.core.files import write_atomically

_STYLE = """
:root { --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --tint: #f6f8fa; }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); margin: 0 auto; max-width: 66rem; padding: 1.5rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; margin: 3rem 0 0.5rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 0.4rem; }
p, figcaption, li { max-width: 46rem; }
figure { margin: 1.2rem 0; overflow-x: auto; }
figure img { max-width: max(100%, 34rem); height: auto; display: block; }
figcaption, .note { color: var(--soft); font-size: 0.9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.88rem; margin: 0.3rem 0; }
th, td { text-align: left; padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; }
.claims td:nth-child(2) { min-width: 8rem; }
.claim { border-left: 4px solid var(--line); background: var(--tint); padding: 0.6rem 0.9rem; margin: 0.7rem 0; }
.claim p { margin: 0.25rem 0; }
.yes { border-color: #2a8f5a; } .partly { border-color: #c9a227; } .no { border-color: #c43c39; }
.verdict { font-weight: 600; }
.mark { display: inline-block; width: 1.3em; font-weight: 700; }
td.yes, td.partly, td.no { border-left: 4px solid; padding-left: 0.6rem; }
td.yes { border-left-color: #2a8f5a; } td.partly { border-left-color: #c9a227; } td.no { border-left-color: #c43c39; }
nav { display: flex; flex-wrap: wrap; gap: 0.3rem 1.2rem; }
details { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1rem; }
summary { cursor: pointer; }
summary h2 { display: inline-block; border-top: 0; margin: 0; padding: 0; }
pre { background: var(--tint); padding: 0.6rem 0.9rem; white-space: pre-wrap; font-size: 0.85rem; }
pre { overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { padding: 1rem; font-size: 15px; } h1 { font-size: 1.35rem; }
  table { font-size: 0.8rem; }
  .claims th, .claims td { display: block; border-bottom: 0; padding: 0.1rem 0 0.1rem 0.6rem; }
  .claims thead { display: none; }
  .claims tr { display: block; border-bottom: 1px solid var(--line); padding: 0.5rem 0; } }
"""

# A link to what is folded opens it.
_SCRIPT = "addEventListener('hashchange', () => { document.querySelector(location.hash).open = true })"


class Figure(NamedTuple):
    """A picture: the name of its file, its caption, and the function that draws it."""

    name: str
    caption: str
    draw: Callable[[], Any]


class Table(NamedTuple):
    """Rows under a title; a row's keys are the columns."""

    title: str
    rows: list[dict[str, Any]]
    note: str = ""


class Html(NamedTuple):
    """A piece of the page as it is."""

    source: str


class Section(NamedTuple):
    """A part of a page under a heading.

    Attributes:
        name: what links point at.
        title: its heading, and its entry in the line of contents.
        content: figures, tables, paragraphs of text, and pieces of HTML, below each other.
        folded: whether it opens by a click.
    """

    name: str
    title: str
    content: list[Any]
    folded: bool = False


def write_page(path: pathlib.Path, title: str, lead: list[Any], sections: list[Section]) -> pathlib.Path:
    """Write a page that stands alone: the lead, a line of contents, and the sections, with pictures inside.

    Pictures are also written as files, to the folder `figures` beside the page.
    """
    figures = path.parent / "figures"
    links = (f"<a href='#{section.name}'>{text_of(section.title)}</a>" for section in sections)
    parts = [f"<h1>{text_of(title)}</h1>", *(_html(part, figures) for part in lead), f"<nav>{''.join(links)}</nav>"]
    for section in sections:
        content = "\n".join(_html(part, figures) for part in section.content)
        heading = f"<h2>{text_of(section.title)}</h2>"
        if section.folded:
            parts.append(f"<details id='{section.name}'><summary>{heading}</summary>{content}</details>")
        else:
            parts.append(f"<section id='{section.name}'>{heading}{content}</section>")
    page = (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{text_of(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + f"\n<script>{_SCRIPT}</script></body></html>\n"
    )
    write_atomically(path, page)
    return path


def prepare_pictures(folder: pathlib.Path) -> None:
    """Make the folder of a page's pictures; raise if it cannot be made, or if matplotlib is missing."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ImportError(f"{error}: {pip_install('plots')}. Nothing was computed.") from error
    mpl.use("Agg")
    (folder / "figures").mkdir(parents=True, exist_ok=True)


def _html(part: Any, figures: pathlib.Path) -> str:
    if isinstance(part, Figure):
        return _picture(part, figures)
    if isinstance(part, Table):
        return table_of(part)
    return part.source if isinstance(part, Html) else f"<p>{text_of(part)}</p>"


def _picture(figure: Figure, folder: pathlib.Path) -> str:
    """The figure as HTML with the picture inside, which is also written as a file."""
    import matplotlib.pyplot as plt

    drawn = figure.draw()
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=110)
    plt.close(drawn)
    write_atomically(folder / f"{figure.name}.png", buffer.getvalue())
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    alt, caption = html.escape(figure.caption), text_of(figure.caption)
    return f"<figure><img alt='{alt}' src='{source}'><figcaption>{caption}</figcaption></figure>"


def table_of(table: Table) -> str:
    """The table as HTML; empty without rows."""
    if not table.rows:
        return ""
    columns = list(dict.fromkeys(key for row in table.rows for key in row))
    head = "".join(f"<th>{text_of(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{text_of(row.get(c, ''))}</td>" for c in columns) + "</tr>" for row in table.rows
    )
    title = f"<h3>{text_of(table.title)}</h3>" if table.title else ""
    note = f"<p class='note'>{text_of(table.note)}</p>" if table.note else ""
    return f"{title}<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"


def text_of(value: Any) -> str:
    """The value as text that is safe in HTML; text between backticks becomes code."""
    plain = html.escape(str(value)).replace("+-", "&plusmn;")
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", plain)
