"""Write the README's accuracy table from benchmarks/results: `python -m benchmarks.readme`."""

import json
import pathlib

from benchmarks.report import RESULTS

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"
START = "<!-- accuracy table, written by python -m benchmarks.readme -->\n"
END = "<!-- end of accuracy table -->\n"
TITLES = {"sinusoid": "SIN", "ar1": "linear AR(1)", "star": "STAR"}


def table() -> str:
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


def written(text: str) -> str:
    """The README with the table between its markers."""
    before, rest = text.split(START)
    _, after = rest.split(END)
    return before + START + table() + END + after


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
