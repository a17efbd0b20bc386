"""Many independent pieces of work on the cores of one machine, a process and a core each."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from typing import Any


def on_one_core(cores: Any) -> None:
    """Keep this process, whose jax has not started its threads yet, on a core of its own."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})


def solve_all(
    solve: Callable[[Any], Any], tasks: list[Any], num_workers: int, *, in_order: bool = True
) -> Iterator[Any]:
    """`solve(task)` for every task, in their order or as they are finished, by `num_workers` processes."""
    if num_workers == 1 or not tasks:
        yield from map(solve, tasks)
        return
    context = multiprocessing.get_context("spawn")
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    cores = context.Queue()
    for i in range(num_workers):
        cores.put(allowed[i % len(allowed)])
    with context.Pool(num_workers, on_one_core, (cores,)) as pool:
        yield from (pool.imap if in_order else pool.imap_unordered)(solve, tasks, chunksize=1)
