"""The league: every method on six models at three budgets, judged by the exact posterior over twenty data sets.

z = (mean - exact mean) / exact sd at the last observation; sdr the median ratio of standard deviations; coverage the
exact posterior's mass inside the method's own 90% interval; the evidence's error is that of log p(y_1:T). Seconds are
for one series on one core, compiled; a new observation costs an online method their T-th part, an offline one all of
them. Golds: quadrature over the state (SIN, Cauchy, STAR, volatility), the Kalman filter (AR(1), the cycle, whose state
has two dimensions), each on a grid of theta. Who needs more than two minutes of a core for a series (`--limit`), or to
compile, is out; what runs in one compiled piece is found out when it ends.

    python -m benchmarks.accuracy.league --workers 16 [--models sin star ...] [--methods ...] [--series 20]

Finished rows are kept in `league.jsonl` beside the table, and what another library said of single series, which may
have taken minutes, in `league-*.jsonl` until their row is whole; the same command goes on from there. Several workers
share the series of a method that compiles at every call. On a GPU give it `XLA_PYTHON_CLIENT_PREALLOCATE=false`.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accuracy.contestants import BUDGETS, BY_LABEL, LEVELS, Contestant, Estimate
from benchmarks.accuracy.contests import (
    CONTESTS,
    DATA_SEED,
    Contest,
    all_series,
    data,
    find_gold,
    gold_path,
    mass_inside,
    model_of,
    on_the_cpu,
)
from benchmarks.accuracy.tasks import Run, Task, failure, here, keep, kept_runs, runs_path, timed_on_a_cpu, too_long
from benchmarks.pool import solve_all
from benchmarks.report import RESULTS, save, show
from epf_jax import exact

NUM_SERIES, METHOD_SEED = 20, 7
LONG = 20.0  # seconds for a series, after which one is told that it goes on
LIMIT = 120.0  # seconds of a core for a series, beyond which a method is out
NOT_RUN = "has not run yet"
IDENTITY = ("model", "method", "budget", "size", "series")


def contend(task: Task, limit: float = LIMIT) -> dict[str, Any]:
    """The row of a task; one method's failure stops no other."""
    contest = CONTESTS[task.model]
    runs, slow = kept_runs(task, limit)
    if slow is not None:
        return {**task.row, "failed": slow}
    try:
        missing = [i for i in range(task.num_series) if i not in runs]
        y, golds = data(task.model, task.num_series)
        for i, run in ask(task, y, missing, limit):
            runs[i] = run
        found = judged(contest, [runs[i].estimate for i in range(task.num_series)], golds)
        times = _times(contest, BY_LABEL[task.method], [run.seconds for run in runs.values()])
        return {**task.row, **found, **times}
    except Exception as error:
        return {**task.row, "failed": failure(error)}


def ask(task: Task, y: np.ndarray, series: list[int], limit: float) -> Iterator[tuple[int, Run]]:
    """What the method of a task says of some series, in time, and kept."""
    contestant = BY_LABEL[task.method]
    contestant = contestant._replace(estimate=in_time(contestant.estimate, limit))
    for i, run in estimates(CONTESTS[task.model], contestant, task.size, y, series):
        keep(task, i, run)
        if run.seconds > LONG:
            print(f"{task.method}, {task.model}: series {i + 1} of {len(y)}, {run.seconds:.0f} s", flush=True)
        yield i, run


def pieces_of(task: Task, limit: float) -> list[tuple[Task, int]]:
    """The series that workers may share: of another library's method that compiles at every call, and not kept yet."""
    contestant = BY_LABEL[task.method]
    if contestant.warms_up or contestant.needs is None:
        return []
    kept = kept_runs(task, limit)[0]
    return [(task, i) for i in range(task.num_series) if i not in kept]


def ask_ahead(piece: tuple[Task, int], limit: float = LIMIT) -> None:
    """Have the run of one series, or that it takes too long, kept for `contend` to find; it asks again for others."""
    task, i = piece
    if kept_runs(task, limit)[1] is None:
        try:
            list(ask(task, all_series(task.model, task.num_series), [i], limit))
        except Exception as error:
            keep(task, i, failure(error))


@cache
def passed_over(model: str, method: str) -> str | None:
    """Why a method has no rows on a model, or None where it is to have some."""
    contestant = BY_LABEL[method]
    if contestant.needs and importlib.util.find_spec(contestant.needs) is None:
        return f"{contestant.needs} is not installed"
    with on_the_cpu():
        return None if contestant.fits(model_of(model)) else "does not fit the model"


def in_time(estimate: Callable[..., Any], limit: float) -> Callable[..., Any]:
    """The same, but a TimeoutError after so many seconds of a core, or when what runs then comes back to Python."""

    def stop(signum, frame):
        raise too_long(limit)

    def limited(*given):
        before = signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, limit, 1.0)  # again and again, should the method catch it
        try:
            return jax.block_until_ready(estimate(*given))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)

    return limited


def estimates(
    contest: Contest, contestant: Contestant, size: Any, y: np.ndarray, series: Iterable[int]
) -> Iterator[tuple[int, Run]]:
    """What the method says of some of the series, and the seconds of each."""
    model = contest.model()
    proposal = contest.proposal(model)

    def estimate(i):
        key = jax.random.fold_in(jax.random.key(METHOD_SEED), i)
        return jax.device_get(contestant.estimate(key, model, jnp.asarray(y[i], float), size, proposal))

    warm = not contestant.warms_up
    with np.errstate(all="ignore"):  # methods that fail on the Cauchy model divide by nothing
        for i in series:
            if not warm:
                estimate(i)  # compile
                warm = True
            start = time.perf_counter()
            found = estimate(i)
            yield i, Run(found, time.perf_counter() - start)


def judged(contest: Contest, found: list[Estimate], golds: list[exact.GridPosterior]) -> dict[str, Any]:
    """The worst parameter's scores, the evidence's error, and every parameter's scores with the z of each series."""
    parts = {}
    for name in sorted(contest.truth):
        mean, sd = (np.array([float(getattr(gold, what)[name][-1]) for gold in golds]) for what in ("mean", "sd"))
        z = (np.array([float(e.mean[name]) for e in found]) - mean) / sd
        covered = [mass_inside(gold, name, e.interval[name]) for gold, e in zip(golds, found, strict=True)]
        parts[name] = {
            "z rms": float(np.sqrt(np.mean(z**2))), "z max": float(np.max(np.abs(z))),
            "sdr": float(np.median(np.array([float(e.sd[name]) for e in found]) / sd)),
            "coverage": float(np.mean(covered)), "z": [round(float(value), 4) for value in z],
        }  # fmt: skip
    worst = {k: v for k, v in max(parts.values(), key=lambda part: part["z rms"]).items() if k != "z"}
    errors = np.array([float(e.log_evidence) - float(g.log_evidence[-1]) for e, g in zip(found, golds, strict=True)])
    evidence = {} if np.isnan(errors).any() else {"log-evidence error, rms": float(np.sqrt(np.mean(errors**2)))}
    return {**worst, **evidence, "parameters": parts}


def _times(contest: Contest, contestant: Contestant, seconds: list[float]) -> dict[str, Any]:
    each = float(np.median(seconds))
    return {
        "seconds": each,
        "ms per new observation": 1e3 * (each / contest.num_steps if contestant.online else each),
        "on": here(),
    }


def identity(row: dict[str, Any]) -> tuple:
    """What tells a row from others."""
    return tuple(row[k] for k in IDENTITY)


def kept_rows(path: pathlib.Path, limit: float = LIMIT) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows that need no second run, and those that failed otherwise than by time, which may run again.

    Of several rows of a task the last counts, one with numbers before one without.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    slow = failure(too_long(limit))
    done = {identity(row): row for row in rows if row.get("failed") == slow}
    done |= {identity(row): row for row in rows if not {"failed", "skipped"} & row.keys()}
    failed = {identity(row): row for row in rows if "failed" in row and identity(row) not in done}
    return list(done.values()), list(failed.values())


def draw(rows: list[dict[str, Any]]) -> None:
    """Error against seconds for every model: each method a line from its tiny to its large budget."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 8))
    colours = dict(zip(BY_LABEL, plt.get_cmap("tab20").colors, strict=False))
    for axis, name in zip(axes.flat, CONTESTS, strict=True):
        for label in BY_LABEL:
            found = [r for r in rows if r["model"] == name and r["method"] == label and timed_on_a_cpu(r)]
            points = sorted((r["seconds"], r["z rms"]) for r in found)
            if points:
                online = BY_LABEL[label].online
                axis.plot(
                    *zip(*points, strict=True), "o-" if online else "s--", color=colours[label], label=label, ms=5
                )
        axis.set(xscale="log", yscale="log", title=name, xlim=(0.008, 150.0))  # the same seconds for all
        axis.axhline(0.1, color="0.7", lw=0.8, zorder=0)
        axis.set_ylim(top=min(axis.get_ylim()[1], 30.0))
        axis.grid(alpha=0.2)
    labelled = {label: h for axis in axes.flat for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(labelled.values(), labelled.keys(), loc="lower center", ncols=7, fontsize=9, frameon=False)
    figure.supxlabel(
        "seconds for one series on one core (dashed: offline, all of them again for a new observation)", y=0.09
    )
    figure.supylabel("z rms of the worst parameter")
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(RESULTS / "league.png", dpi=100)
    plt.close(figure)


def planned(given: argparse.Namespace, rows: list[dict[str, Any]], failed: list[dict[str, Any]]) -> tuple[list, list]:
    """What is to run, and the rows of what is not: those that are known, and for the others why there is nothing."""
    rows, failed = ([row for row in known if row["series"] == given.series] for known in (rows, failed))
    done = {identity(row) for row in rows}
    tasks = [
        Task(name, label, budget, given.series)
        for budget in reversed(BUDGETS)  # the longest first: the pool ends together
        for label in BY_LABEL
        for name in CONTESTS
    ]
    tasks = [task for task in tasks if identity(task.row) not in done]
    asked = {t for t in tasks if t.model in given.models and t.method in given.methods and t.budget in given.budgets}
    reasons = {task: passed_over(task.model, task.method) or (None if task in asked else NOT_RUN) for task in tasks}
    to_do = [task for task in tasks if reasons[task] is None]
    again = {identity(task.row) for task in to_do}
    failed = [row for row in failed if identity(row) not in again]
    known = {identity(row) for row in failed}
    skipped = [{**task.row, "skipped": reason} for task, reason in reasons.items() if reason is not None]
    return to_do, [*rows, *(row for row in skipped if identity(row) not in known), *failed]


def played(to_do: list[Task], workers: int, limit: float, file: TextIO) -> Iterator[dict[str, Any]]:
    """The row of every task, written to the file and told as it comes."""
    if workers > 1:
        pieces = [piece for task in to_do for piece in pieces_of(task, limit)]
        for _ in solve_all(partial(ask_ahead, limit=limit), pieces, workers, in_order=False):
            pass
    slow = failure(too_long(limit))
    for row in solve_all(partial(contend, limit=limit), to_do, workers, in_order=False):
        file.write(json.dumps(row) + "\n")
        file.flush()
        if row.get("failed", slow) == slow:  # others may run again
            runs_path(Task(*(row[k] for k in ("model", "method", "budget", "series")))).unlink(missing_ok=True)
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items() if k != "parameters"}, flush=True)
        yield row


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(CONTESTS), default=list(CONTESTS))
    parser.add_argument("--methods", nargs="+", choices=list(BY_LABEL), default=list(BY_LABEL))
    parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=BUDGETS)
    parser.add_argument("--series", type=int, default=NUM_SERIES, help="data sets of each model")
    parser.add_argument("--workers", type=int, default=1, help="processes, a core each")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of a core for a series, or a method is out")
    given = parser.parse_args(arguments)
    if given.workers == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # seconds are those of one core
    missing = [(n, i) for n in given.models for i in range(given.series) if not gold_path(n, i).exists()]
    for _ in solve_all(find_gold, missing, given.workers):
        pass
    kept = RESULTS / "league.jsonl"
    to_do, rows = planned(given, *kept_rows(kept, given.limit))
    with kept.open("a") as file:
        rows += played(to_do, given.workers, given.limit, file)
    methods, models = list(BY_LABEL), list(CONTESTS)
    rows.sort(key=lambda r: (models.index(r["model"]), methods.index(r["method"]), BUDGETS.index(r["budget"])))
    for name in given.models:
        show(name, [{k: v for k, v in r.items() if k != "parameters"} for r in rows if r["model"] == name])
    if given.series != NUM_SERIES:
        print(f"stored nothing: the league is of {NUM_SERIES} series")
        return
    draw(rows)
    settings = {"series": given.series, "data_seed": DATA_SEED, "method_seed": METHOD_SEED, "levels": LEVELS}
    print("stored in", save("league", settings, rows))


if __name__ == "__main__":
    main()
