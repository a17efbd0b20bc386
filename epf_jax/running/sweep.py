"""A sweep of experiments: models x methods x seeds, as one table.

A cell is a model, a method and a seed. The seed alone makes its keys,

    key_data, key_filter = (jax.random.fold_in(jax.random.key(seed), i) for i in (0, 1))
    y = epf.simulate(key_data, model, theta, num_steps)[1]
    results = epf.run(key_filter, method(model), y)

so every method gets the same data. To rounding, a cell's results do not depend on the seeds of its batch or on the
process that ran it.

`folder/table.csv` is the table, written when the sweep is done. `folder/parts` has a folder for each model and method,
with `settings.json` and a file for each finished batch of seeds.
"""

import itertools
import os
import pathlib
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import sync_global_devices
from tqdm.auto import tqdm

from epf_jax.core.checks import brief, check_signature, check_whole_number
from epf_jax.core.machine import machine
from epf_jax.core.naming import LEVELS, scalars
from epf_jax.filters import Filter
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel, as_theta, check_is_model, simulate
from epf_jax.running.fingerprints import fingerprint
from epf_jax.running.replicate import replicate
from epf_jax.running.run import run
from epf_jax.running.sweep_folder import Parts, Row, check_folder, write_table


def sweep(
    models: Mapping[str, tuple[StateSpaceModel, Theta]],
    methods: Mapping[str, Callable[[StateSpaceModel], Filter]],
    seeds: Iterable[int],
    num_steps: int,
    folder: str | os.PathLike,
    *,
    batch: int = 16,
    progress: bool = False,
) -> list[Row]:
    """Run every method on data of every model, for every seed: one row per cell and scalar parameter.

    Finished batches are kept in the folder. The same call goes on after an interruption: it computes what is missing
    and tries failed cells again. You may add seeds, models or methods; the table holds the cells of this call. A name
    whose meaning has changed (other options, data, precision, versions, kind of device) raises an error.

    If a method cannot be built or run, its cells say so (`status`, `error`), and the other methods go on.

    Under `jax.distributed`, make the same call in every process with the same shared folder. Each process takes its
    share of the batches and returns the whole table.

    Args:
        models: for each name, a model and the theta that makes its data. Models that read inputs are not supported.
        methods: for each name, a function that builds a filter for a model.
        seeds: distinct whole numbers.
        num_steps: T, the length of every series.
        folder: the folder of the results.
        batch: how many seeds run at once, in one compiled program for each model and method. An interruption loses one
            batch. Several processes share whole batches, so make enough of them.
        progress: whether to show a progress bar.

    Returns:
        The table, as in `folder/table.csv`: a list of dicts, with None where there is no number. `mean`, `sd` and the
        quantiles are those of the last step; `seconds` are a cell's share of its batch, without compilation. The table
        counts steps with all weights zero and NaN densities of theta, instead of warnings.
    """
    models, methods, seeds = _check_models(models), _check_methods(methods), _check_seeds(seeds)
    check_whole_number("num_steps", num_steps, hint="It is the number of observations.")
    check_whole_number("batch", batch, hint="It is the number of seeds that run at once.")
    folder = check_folder(folder)
    trials = [_trial(folder, m, *models[m], n, methods[n], num_steps) for m in models for n in methods]
    shares = _deal([_batches(trial.parts.missing(seeds), batch) for trial in trials])
    _wait_for_all("read")  # before anybody writes, so that all deal out the same batches
    num_cells = sum(len(part) for share in shares for part, _ in share)
    with tqdm(total=num_cells, unit="cell", desc="sweeping", disable=not progress) as bar:
        for trial, share in zip(trials, shares, strict=True):
            run_batch = _runner(trial)
            for part, size in share:
                trial.parts.write(part, run_batch(part, size))
                bar.update(len(part))
    _wait_for_all("written")
    table = [row for trial in trials for row in trial.parts.read(seeds)]
    if jax.process_index() == 0:
        write_table(folder / "table.csv", table)
    _wait_for_all("joined")
    _warn_of_failures(table, folder)
    return table


class Trial(NamedTuple):
    """A method on a model.

    Attributes:
        model: the model.
        theta: the theta that makes the data.
        filter_: the filter; None if it could not be built.
        error: why it failed, or None.
        num_steps: T.
        parts: its results on disk.
        about: the columns that all its rows share.
    """

    model: StateSpaceModel
    theta: Theta
    filter_: Filter | None
    error: str | None
    num_steps: int
    parts: Parts
    about: Row


def _trial(folder, model_name, model, theta, method_name, method, num_steps) -> Trial:
    """The method built and traced, its settings compared with those in the folder."""
    filter_, program, error = None, None, None
    try:
        built = method(model)
        if not isinstance(built, Filter):
            raise TypeError(f"expected the method to return a filter, got {brief(built)}")
        program = fingerprint(lambda key: _one_cell(key, model, theta, built, num_steps), jax.random.key(0))
        filter_ = built
    except Exception as caught:  # whatever a user's functions may raise
        error = _in_a_line(caught)
    here = machine()
    about = {
        "num_particles": None if filter_ is None else filter_.num_particles,
        "num_steps": num_steps,
        "description": None if filter_ is None else repr(filter_),
        "precision": jnp.result_type(float).name,
        **{name: here[name] for name in ("device", "epf_jax", "jax", "numpyro", "numpy")},
    }
    settings = {name: value for name, value in about.items() if name != "device"}  # every row names its own
    truth = {name: float(value) for name, value in scalars(theta, 0).items()}
    settings |= {"truth": truth, "backend": jax.default_backend(), "program": program}
    parts = Parts(folder, model_name, method_name, settings if error is None else None)
    return Trial(model, theta, filter_, error, num_steps, parts, about)


def _one_cell(key, model, theta, filter_, num_steps):
    y = simulate(jax.random.fold_in(key, 0), model, theta, num_steps)[1]
    return run(jax.random.fold_in(key, 1), filter_, y, levels=tuple(LEVELS.values()))


Batch = tuple[list[int], int]


def _batches(seeds: list[int], batch: int) -> list[Batch]:
    """The seeds in batches of nearly equal size, each with the number of runs of their common program."""
    size = -(-len(seeds) // max(1, -(-len(seeds) // batch)))
    return [(seeds[i : i + size], size) for i in range(0, len(seeds), size or 1)]


def _deal(batches: list[list[Batch]]) -> list[list[Batch]]:
    """This process's share of every trial's batches."""
    turn = itertools.count()
    return [[b for b in row if next(turn) % jax.process_count() == jax.process_index()] for row in batches]


def _runner(trial: Trial) -> Callable[[list[int], int], list[Row]]:
    """A function that runs a batch and returns its rows, also for a failure; it compiles when first called."""
    program = None

    def summaries(seeds, size):
        nonlocal program
        fillers = seeds[-1:] * (size - len(seeds))  # so that one program serves a shorter last batch, too
        keys = [jax.random.key(seed) for seed in seeds + fillers]
        y = [simulate(jax.random.fold_in(key, 0), trial.model, trial.theta, trial.num_steps)[1] for key in keys]
        arguments = jnp.stack([jax.random.fold_in(key, 1) for key in keys]), jnp.stack(y)
        program = _compiled(trial.filter_, *arguments) if program is None else program
        start = time.perf_counter()
        found = jax.device_get(program(*arguments))
        return found, (time.perf_counter() - start) / size

    def run_batch(seeds, size):
        found, seconds, error = None, None, trial.error
        if error is None:
            try:
                found, seconds = summaries(seeds, size)
            except Exception as caught:  # a model's or the device's: out of memory, say
                error = _in_a_line(caught)
        return [row for i, seed in enumerate(seeds) for row in _rows(trial, seed, found, i, seconds, error)]

    return run_batch


def _compiled(filter_: Any, keys: Any, y: Any) -> Callable:
    """The program that runs a filter on many series and gives the summaries after the last step."""

    def last(keys, y):
        results = replicate(keys, filter_, y, levels=tuple(LEVELS.values()))
        return {
            "theta": jax.tree.map(lambda leaf: leaf[:, -1], results.theta),
            "log_evidence": results.log_evidence[:, -1],
            "smallest_ess": results.ess.min(axis=1),
            "num_collapsed": results.collapsed.sum(axis=1),
            "num_bad_densities": results.num_bad_densities.sum(axis=1),
        }

    return jax.jit(last).lower(keys, y).compile()


def _rows(trial: Trial, seed: int, found: Any, i: int, seconds: float | None, error: str | None) -> list[Row]:
    """The rows of one cell, one for each component of theta; one row without a name if there is nothing to learn."""
    numbers: dict[str, dict[str, np.ndarray]] = {}
    cell: dict[str, Any] = dict.fromkeys(("log_evidence", "smallest_ess", "num_collapsed", "num_bad_densities"))
    if found is not None:
        theta = found["theta"]
        levels = jax.tree.map(lambda leaf: np.moveaxis(leaf, -1, 0), theta.quantiles)
        numbers = {"mean": scalars(theta.mean, 1), "sd": scalars(theta.sd, 1)}
        numbers |= {name: scalars(jax.tree.map(lambda leaf, j=j: leaf[j], levels), 1) for j, name in enumerate(LEVELS)}
        cell = {name: found[name][i].item() for name in cell}
    truth: dict[str, Any] = {**scalars(trial.theta, 0)} or {"": None}
    return [
        {
            "model": trial.parts.model,
            "method": trial.parts.method,
            "seed": seed,
            "status": "ok" if error is None else "failed",
            "error": error,
            "parameter": name,
            "truth": None if value is None else float(value),
            **{column: _at(numbers, column, name, i) for column in ("mean", "sd", *LEVELS)},
            **cell,
            "seconds": seconds,
            **trial.about,
            "date": time.strftime("%Y-%m-%d"),
        }
        for name, value in truth.items()
    ]


def _at(numbers: dict[str, dict[str, np.ndarray]], column: str, name: str, i: int) -> float | None:
    """A number, or None if the method failed or knows theta."""
    values = numbers.get(column, {}).get(name)
    return None if values is None else values[i].item()


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def _wait_for_all(name: str) -> None:
    if jax.process_count() > 1:
        sync_global_devices(f"epf_jax sweep: {name}")


def _warn_of_failures(table: list[Row], folder: pathlib.Path) -> None:
    """Warn of failed cells, with the first error of each model and method."""
    cells = {(row["model"], row["method"], row["seed"]): row["error"] for row in table}
    failed = {cell: error for cell, error in cells.items() if error is not None}
    if failed:
        first = {cell[:2]: error for cell, error in reversed(failed.items())}
        causes = "; ".join(f"{method} on {model}: {error}" for (model, method), error in reversed(first.items()))
        warnings.warn(
            f"{len(failed)} of {len(cells)} cells failed ({causes}). They are marked in {folder / 'table.csv'}; the "
            "same call tries them again and leaves the others as they are.",
            RuntimeWarning,
            stacklevel=3,
        )


# ---------------------------------------------------------------------------------------------------------- checks


def _check_models(models: Any) -> dict[str, tuple[StateSpaceModel, Theta]]:
    hint = 'Write models={"sin": (epf.models.sinusoid(), {"theta": 0.7})}.'
    _check_named("models", models, "a dict of pairs (model, theta)", hint)
    checked = {}
    for name, pair in models.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"models[{name!r}]: expected a model and the theta of its data, got {brief(pair)}. {hint}")
        try:
            check_is_model(pair[0])
            as_theta(*pair)
            checked[name] = tuple(pair)
        except (TypeError, ValueError) as error:
            raise type(error)(f"models[{name!r}]: {error}") from error
    return checked


def _check_methods(methods: Any) -> dict[str, Callable[[StateSpaceModel], Filter]]:
    hint = 'Write methods={"epf": lambda model: epf.extended_parameter_filter(model, 1000)}.'
    _check_named("methods", methods, "a dict of functions that build a filter", hint)
    for name, method in methods.items():
        if isinstance(method, Filter):
            raise TypeError(f"methods[{name!r}]: expected a function of a model, got a filter, {method!r}. {hint}")
        check_signature(f"methods[{name!r}]", method, ("model",), "a filter")
    return dict(methods)


def _check_named(argument: str, value: Any, expected: str, hint: str) -> None:
    if not isinstance(value, Mapping) or not value or not all(isinstance(n, str) and n.strip() for n in value):
        raise TypeError(f"{argument}: expected {expected} by their names, got {brief(value)}. {hint}")


def _check_seeds(seeds: Any) -> list[int]:
    try:
        seeds = list(seeds)
    except TypeError as error:
        raise TypeError(f"seeds: expected whole numbers such as range(20), got {brief(seeds)}.") from error
    for i, seed in enumerate(seeds):
        check_whole_number(f"seeds[{i}]", seed, least=0, hint="Every seed stands for one data set.")
    if not seeds or len(set(seeds)) < len(seeds) or max(seeds) >= 2**31:
        raise ValueError(
            f"seeds: expected at least one, each once and below 2**31, got {brief(seeds)}. Write seeds=range(20)."
        )
    return [int(seed) for seed in seeds]
