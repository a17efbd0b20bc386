"""The league's rows before they are whole: what is to be run, and what another library said of single series.

The latter may have taken minutes, and is kept in `league-*.jsonl` beside the table until its row has been judged.
"""

import importlib.metadata
import json
import os
import pathlib
import re
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.accuracy.contestants import BUDGETS, BY_LABEL, Estimate
from benchmarks.report import RESULTS
from epf_jax.core.machine import machine


class Task(NamedTuple):
    """One row of the table: a method at one budget on every series of one model."""

    model: str
    method: str
    budget: str
    num_series: int

    @property
    def size(self) -> Any:
        """What the method spends at this budget."""
        return BY_LABEL[self.method].sizes[BUDGETS.index(self.budget)]

    @property
    def row(self) -> dict[str, Any]:
        """What the row starts with."""
        return {
            "model": self.model,
            "method": self.method,
            "budget": self.budget,
            "size": str(self.size),
            "series": self.num_series,
        }


class Run(NamedTuple):
    """What a method says of one series, and the seconds that it took."""

    estimate: Estimate
    seconds: float


def too_long(limit: float) -> TimeoutError:
    """What is said of a method that needs more."""
    return TimeoutError(f"more than {limit:.3g} s of a core for a series")


def failure(error: Exception) -> str:
    """An error as a row tells of it."""
    return f"{type(error).__name__}: {error}"[:300]


def here() -> str:
    """The machine that seconds are of."""
    this = machine()
    where = f"{this['processor']}, {os.cpu_count()} cores" if this["device"] == "cpu" else this["device"]
    return f"{where}, jax {this['jax']}"


def timed_on_a_cpu(row: dict[str, Any]) -> bool:
    """Whether a row has seconds that compare with the others': not those of a GPU."""
    return "cores" in row.get("on", "")


def runs_path(task: Task) -> pathlib.Path:
    """Where the runs of a task on single series are kept."""
    words = f"{task.method} {task.size} {task.model}"
    return RESULTS / f"league-{re.sub('[^a-z0-9]+', '-', words.lower())}.jsonl"


def kept_runs(task: Task, limit: float) -> tuple[dict[int, Run], str | None]:
    """What another library said of single series before, and that one took longer than this limit, if so."""
    path, by = runs_path(task), _by(task)
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [row for row in map(_parsed, lines) if row.get("by") == by and row["i"] < task.num_series]
    runs = {row["i"]: Run(Estimate(**row["estimate"]), row["seconds"]) for row in rows if "estimate" in row}
    slow = failure(too_long(limit))
    return runs, slow if any(row.get("failed") == slow for row in rows) else None


def _parsed(line: str) -> dict[str, Any]:
    try:
        return json.loads(line)
    except json.JSONDecodeError:  # it was cut off, or is empty
        return {}


def keep(task: Task, i: int, found: Run | str) -> None:
    """Keep what another library said of a series, or how it failed; our own methods may change until the next time."""
    if BY_LABEL[task.method].needs is None:
        return
    said: dict[str, Any] = {"failed": found}
    if isinstance(found, Run):
        estimate = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), found.estimate._asdict())
        said = {"estimate": estimate, "seconds": found.seconds}
    with runs_path(task).open("a") as file:
        file.write("\n" + json.dumps({"by": _by(task), "i": i, **said}) + "\n")  # the last may have been cut off


def _by(task: Task) -> str:
    """Whose code ran where: what others said elsewhere does not belong to the same row."""
    needs = BY_LABEL[task.method].needs
    return f"{needs} {importlib.metadata.version(needs) if needs else ''}, {here()}"
