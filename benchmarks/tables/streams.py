"""The table of long streams: what the filters that `learn(..., streaming=True)` takes are off by, and cost."""

import json

from benchmarks.report import RESULTS
from benchmarks.streams import TOLD, WRONG, judged

TITLES = {
    "ar1": "AR(1) in noise, its coefficient unknown",
    "level": "local level, both scales unknown",
    "outliers": "the same, with a gross outlier every 1000",
    "volatility": "stochastic volatility, three parameters",
}


def streams() -> str:
    """Every stream at every time, as Markdown."""
    path = RESULTS / "streams.json"
    if not path.exists():
        return ""
    stored = json.loads(path.read_text())
    here = stored["machine"]
    lines = [
        f"A row has several series, each with a key and a core of its own ({here['processor']}, jax {here['jax']}). "
        f"*Untold* counts runs with a mean more than {WRONG:g} sd off whose `error` is below {TOLD:g}.",
        "",
        "| stream | observations | series | z rms | sd ratios | `error` | untold | us an observation | MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in judged(stored["rows"]):
        lines.append(
            f"| {TITLES[row['stream']]} | {row['t']:,} | {row['runs']} | {row['z rms']:.2f} | {row['sd ratios']} | "
            f"{row['error told']:.2f} | {row['wrong, untold']} | {row['us']:,.0f} | {row['MB']:.1f} |"
        )
    return "\n".join(lines) + "\n"
