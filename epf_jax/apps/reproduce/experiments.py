"""Runs the experiments with a progress bar and writes the report."""

import json
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from epf_jax.apps.page import prepare_pictures
from epf_jax.apps.reproduce.cases import Size
from epf_jax.apps.reproduce.claims import Experiment, Findings
from epf_jax.apps.reproduce.report import write_report
from epf_jax.apps.reproduce.store import Store, Stored, Unit, write_atomically
from epf_jax.core.machine import machine

Progress = Callable[[list[Unit]], Iterable[Unit]]


def reproduce(
    experiments: Iterable[Experiment],
    size: Size,
    output: pathlib.Path,
    progress: Progress = lambda units: units,
    *,
    note: Callable[[str], Any] = lambda text: None,
    whole: bool = True,
) -> pathlib.Path:
    """Run what has not been run yet, and write the report, and its claims and tables as JSON.

    With all experiments the files are `index.html` and `claims.json`. With some, their names are added to the file
    names, so that a part never replaces the whole.

    Args:
        experiments: which parts of the paper.
        size: `DEMO`, `FULL`, or one of your own.
        output: the folder for the report; results are kept in its folder `data`.
        note: called with a sentence on what is kept from before.
        whole: whether these are all experiments.
        progress: wraps the list of units still to do, to show how far it has come.

    Returns:
        The path of the report.
    """
    experiments = list(experiments)
    store = Store(output / "data")
    prepare_pictures(output)
    start = time.perf_counter()
    work = {unit.name: unit for experiment in experiments for unit in experiment.units(size)}
    results: dict[str, Stored] = {}
    for name, unit in work.items():
        kept = store.load(unit)
        if kept is not None:
            results[name] = kept
    if results:
        note(f"{len(results)} of {len(work)} pieces of work are there already")
    for unit in progress([unit for name, unit in work.items() if name not in results]):
        results[unit.name] = store.compute(unit)
    sections = [(experiment, experiment.present(size, results)) for experiment in experiments]
    seconds = time.perf_counter() - start
    part = "" if whole else "-" + "-".join(experiment.name for experiment in experiments)
    _write_summary(output / f"claims{part}.json", size, sections, results)
    return write_report(output / f"index{part}.html", size, sections, results, seconds)


def _write_summary(
    path: pathlib.Path, size: Size, sections: list[tuple[Experiment, Findings]], results: dict[str, Stored]
) -> None:
    """Every claim and table as JSON, with the machine and the seconds of each piece of work."""
    summary: dict[str, Any] = {
        "size": size._asdict(),
        "machine": machine(),
        "claims": [{"experiment": e.name, **claim._asdict()} for e, section in sections for claim in section.claims],
        "tables": [{"experiment": e.name, **table._asdict()} for e, section in sections for table in section.tables],
        "work": {name: {"seconds": round(stored.about["seconds"], 2)} for name, stored in results.items()},
    }
    write_atomically(path, json.dumps(summary, indent=1) + "\n")
