"""Models that people write, by the front door, by the default filter and by NUTS, against golds.

    python -m benchmarks.breadth [--seconds 60] [--only NAME ...] [--half tune] [--methods learn default nuts findings]

Every row comes from a fresh process on two cores, is kept in benchmarks/results/breadth.jsonl as it is finished, and
is not measured again: delete the file to start afresh. All rows go to benchmarks/results/breadth.json, in place of
older ones of the same model and method.
"""

import argparse
import json
import os
import pathlib
import queue
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from benchmarks.breadth.bars import findings_lines, lines
from benchmarks.breadth.entry import golds
from benchmarks.breadth.models import ENTRIES
from benchmarks.breadth.one import METHODS
from benchmarks.report import RESULTS, save, show

ROWS = RESULTS / "breadth.jsonl"
COLUMNS = (
    "model", "half", "method", "worst z", "lowest sd ratio", "highest sd ratio", "evidence error", "trusted", "cold s",
    "warm s", "failed",
)  # fmt: skip


def measured(name: str, method: str, seconds: float, limit: float, cores: set[int]) -> dict[str, Any]:
    """The row of a fresh process that keeps to its cores, or why there is none."""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}  # cold means cold
    command = [sys.executable, "-m", "benchmarks.breadth.one", name, method, str(seconds), str(time.time())]
    if hasattr(os, "sched_setaffinity"):
        command = ["taskset", "-c", ",".join(map(str, sorted(cores))), *command]
    row = {"model": name, "half": ENTRIES[name].half, "method": method, "seconds": seconds}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {**row, "failed": f"more than {limit:.0f} s"}
    if done.returncode != 0:
        return {**row, "failed": (done.stderr.strip().splitlines() or ["no word"])[-1][-300:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def identity(row: dict[str, Any]) -> tuple:
    """What tells a row from others."""
    return row["model"], row["method"], row["seconds"]


def kept(path: pathlib.Path) -> dict[tuple, dict[str, Any]]:
    """The rows that are known, the last of each, without those that failed: these are tried again."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {identity(row): row for row in rows if "failed" not in row}


def stored() -> dict[tuple, dict[str, Any]]:
    """The rows in benchmarks/results, of models that are still there."""
    path = RESULTS / "breadth.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {identity(row): row for row in rows if row["model"] in ENTRIES}


def run_all(tasks: list[tuple[str, str]], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure what is to do, `workers` at a time, each on cores of its own; rows are written as they come."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    free: queue.Queue[set[int]] = queue.Queue()
    for i in range(given.workers):
        free.put(set(allowed[i * given.cores : (i + 1) * given.cores]) or set(allowed))

    def one(task):
        cores = free.get()
        try:
            return measured(*task, given.seconds, given.limit, cores)
        finally:
            free.put(cores)

    rows = []
    with ThreadPoolExecutor(given.workers) as pool, given.rows.open("a") as file:
        for future in as_completed([pool.submit(one, task) for task in tasks]):
            rows.append(future.result())
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
            print({k: rows[-1][k] for k in COLUMNS if k in rows[-1]}, flush=True)
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="that `learn` is given")
    parser.add_argument("--only", nargs="+", choices=list(golds()), default=list(golds()), metavar="NAME")
    parser.add_argument("--half", choices=("tune", "report"), help="one half of the models; both by default")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=["learn", "default", "nuts"])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a row, or it has failed")
    parser.add_argument("--workers", type=int, default=1, help="rows measured at a time, each on its own cores")
    parser.add_argument("--cores", type=int, default=2, help="of each")
    parser.add_argument("--rows", type=pathlib.Path, default=ROWS, help="where rows are kept")
    given = parser.parse_args(arguments)
    given.rows.parent.mkdir(parents=True, exist_ok=True)
    names = [name for name in given.only if given.half in (None, ENTRIES[name].half)]
    asked = [(name, method) for name in names for method in given.methods]
    known = kept(given.rows)
    new = run_all([task for task in asked if (*task, given.seconds) not in known], given)
    known |= {identity(row): row for row in new}
    rows = [known[name, method, given.seconds] for name, method in asked]
    show("breadth", [{k: row.get(k, "") for k in COLUMNS} for row in rows])
    print(*lines(rows), *findings_lines(rows), sep="\n")
    known = stored() | known
    everything = [known[at] for at in sorted(known, key=lambda at: (list(ENTRIES).index(at[0]), *map(str, at[1:])))]
    print("stored in", save("breadth", {"limit": given.limit, "cores": given.cores}, everything))


if __name__ == "__main__":
    main()
