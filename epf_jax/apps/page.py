"""Report pages: figures, tables and text in one self-contained HTML file."""

import base64
import html
import io
import re
from collections.abc import Callable
from typing import Any, NamedTuple

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
td:nth-child(2) { min-width: 8rem; }
.claim { border-left: 4px solid var(--line); background: var(--tint); padding: 0.6rem 0.9rem; margin: 0.7rem 0; }
.claim p { margin: 0.25rem 0; }
.yes { border-color: #2a8f5a; } .partly { border-color: #c9a227; } .no { border-color: #c43c39; }
.verdict { font-weight: 600; }
.mark { display: inline-block; width: 1.3em; font-weight: 700; }
td.yes, td.partly, td.no { border-left: 4px solid; padding-left: 0.6rem; }
td.yes { border-left-color: #2a8f5a; } td.partly { border-left-color: #c9a227; } td.no { border-left-color: #c43c39; }
nav { display: flex; flex-wrap: wrap; gap: 0.3rem 1.2rem; }
@media (max-width: 40rem) { body { padding: 1rem; font-size: 15px; } h1 { font-size: 1.35rem; }
  table { font-size: 0.8rem; }
  .claims th, .claims td { display: block; border-bottom: 0; padding: 0.1rem 0 0.1rem 0.6rem; }
  .claims thead { display: none; }
  .claims tr { display: block; border-bottom: 1px solid var(--line); padding: 0.5rem 0; } }
"""


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


def page_of(title: str, parts: list[str]) -> str:
    """The page with its parts, pieces of HTML, below each other."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{text_of(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def picture_of(figure: Figure) -> tuple[str, bytes]:
    """The figure as HTML with the picture inside, and the picture as PNG bytes."""
    import matplotlib.pyplot as plt

    drawn = figure.draw()
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=110)
    plt.close(drawn)
    content, caption, alt = buffer.getvalue(), text_of(figure.caption), html.escape(figure.caption)
    source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return f"<figure><img alt='{alt}' src='{source}'><figcaption>{caption}</figcaption></figure>", content


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
