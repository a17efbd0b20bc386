"""What every benchmark shares: the machine it ran on, its table on the screen, its numbers in a file."""

import json
import pathlib
import platform
from typing import Any

from epf_jax.core.machine import machine

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table; a row's keys are the columns."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_text(row.get(c, "")) for c in columns] for row in rows]
    widths = [max(len(c), *(len(r[i]) for r in cells)) for i, c in enumerate(columns)]
    print(f"\n{title}")
    print("  ".join(c.ljust(w) for c, w in zip(columns, widths, strict=True)))
    print("  ".join("-" * w for w in widths))
    for row in cells:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)), flush=True)


def of_this_cpu(name: str) -> str:
    """The name under which a CPU's speeds are stored: ratios on x86_64 are not those on another architecture."""
    architecture = platform.machine()
    return name if architecture == "x86_64" else f"{name}_{architecture}"


def save(name: str, settings: dict[str, Any], rows: list[dict[str, Any]]) -> pathlib.Path:
    """Write a benchmark's rows, settings and machine to `benchmarks/results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"settings": settings, "machine": machine(), "rows": rows}, indent=1) + "\n")
    return path


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
