"""Runs a filter over a table in pieces, with a progress bar and a checkpoint after each piece."""

import contextlib
import hashlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.core.files import held
from epf_jax.data.series import Series, series_of, shaped
from epf_jax.data.tables import listed, read_file
from epf_jax.filters import Filter, FilterState
from epf_jax.models.observed import Observed, observed_series, y_shape
from epf_jax.running.checkpoint_settings import state_like
from epf_jax.running.checkpoints import CheckpointError, check_notes, read_checkpoint, read_notes, write_checkpoint
from epf_jax.running.reference import Origin
from epf_jax.running.results import Results
from epf_jax.running.run import DEFAULT_LEVELS, check_room, join, pieces, run_jitted

_OPTIONS = (DEFAULT_LEVELS, False, None)  # levels, history, remat_every
_KIND = "fit"
_MOST, _SHORTEST = 50, 50  # pieces of a series, observations of a piece: a checkpoint costs, too
_NONE: Any = None


def series_from(
    path: pathlib.Path,
    columns: tuple[str, ...],
    time: str | None,
    unit: str | None,
    start: str | None,
    inputs: tuple[str, ...],
) -> Series:
    """The columns of a CSV or Parquet file that the options name."""
    table, row = read_file(path)
    try:
        series = series_of(table, columns or None, time, unit, start, inputs, row)
    except ValueError as error:
        told = str(error).replace("unit='days'", "--unit days")
        if "is not a number" in told and not columns:
            told += " If it is no observation: --columns NAME names those that are, --time NAME the column of stamps."
        raise ValueError(f"{path}: {told}") from error
    if np.isnan(series.y).all():
        raise ValueError(f"{path}: every value of {listed(series.columns)} is missing: there is nothing to learn from.")
    return series


def example_row(series: Series) -> Any:
    """One row of the inputs, or None without inputs."""
    return (
        None if series.inputs is None else {name: jnp.asarray(rows[0], float) for name, rows in series.inputs.items()}
    )


def room_for(num_rows: int, checkpoint: pathlib.Path | None) -> int:
    """How many rows a method that remembers them has room for: that of its checkpoint, as long as the rows fit."""
    kept = read_notes(checkpoint).get("room") if checkpoint is not None and checkpoint.exists() else None
    return kept if isinstance(kept, int) and kept >= num_rows else 1 << (2 * num_rows).bit_length()


def filter_series(
    filter_: Filter, series: Series, seed: int, checkpoint: pathlib.Path | None, advance: Callable[[int], Any]
) -> Results:
    """The same results as `run` on the series, from a checkpoint of its beginning if there is one.

    Diagnostics are recorded only without a checkpoint, which does not hold the descent of particles.

    Args:
        filter_: the filter.
        series: the data.
        seed: the seed of the run's key.
        checkpoint: the file that keeps the results so far.
        advance: called with the number of observations just done.
    """
    with contextlib.nullcontext() if checkpoint is None else held(checkpoint):
        return _filter_series(filter_, series, seed, checkpoint, advance)


def observed(series: Series, filter_: Filter) -> Observed:
    """The series as the filter's model observes it."""
    flat = series.y.reshape(len(series.y), -1)
    y = shaped(flat, series.columns, y_shape(filter_.model), "--columns")
    return observed_series(filter_.model, series._replace(y=y))


def _filter_series(
    filter_: Filter, series: Series, seed: int, checkpoint: pathlib.Path | None, advance: Callable[[int], Any]
) -> Results:
    found_series = observed(series, filter_)
    y, inputs = found_series.values, found_series.inputs
    check_room(filter_, len(y))
    key_init, key_steps = jax.random.split(jax.random.key(seed))
    begun = None if checkpoint is None or not checkpoint.exists() else _begun(checkpoint, filter_, y, inputs, seed)
    done = 0 if begun is None else len(begun.ess)
    state = filter_.init(key_init) if begun is None else begun.final
    advance(done)

    def found() -> Iterator[Results]:
        rows = [] if begun is None else [_rows(begun)]
        yield from [] if begun is None else [begun]
        rest = Observed(*jax.tree.map(lambda leaf: leaf[done:], (y, inputs)))
        size = max(_SHORTEST, -(-len(y) // _MOST))
        if done == len(y):
            return
        for piece in pieces(filter_, _OPTIONS, key_steps, state, rest, size, checkpoint is None):
            if checkpoint is not None:
                rows = [jax.tree.map(lambda *parts: np.concatenate(parts), *rows, jax.device_get(_rows(piece)))]
                _keep(checkpoint, filter_, piece.final, rows[0], y, inputs, seed)
            advance(len(piece.ess))
            yield piece

    return join(found())._replace(origin=Origin(filter_.model, found_series))


def _keep(
    path: pathlib.Path, filter_: Filter, state: FilterState, rows: Results, y: Any, inputs: Any, seed: int
) -> None:
    num = len(rows.ess)
    notes = {"kind": _KIND, "seed": seed, "t": num, "room": filter_.max_steps, "data": _digest(y, inputs, num)}
    write_checkpoint(path, filter_, (state, rows), notes)


def _begun(path: pathlib.Path, filter_: Filter, y: Any, inputs: Any, seed: int) -> Results:
    """The results in a checkpoint, of the first rows of these data."""
    notes = read_notes(path)
    check_notes(path, notes, _KIND, {"seed": int, "t": int, "data": str})
    num = notes["t"]
    same = num <= len(y) and notes["data"] == _digest(y, inputs, num)
    if not same or notes["seed"] != seed:
        why = f"--seed was {notes['seed']} and is {seed}" if same else f"the first {num} rows are not what they were"
        raise CheckpointError(
            f"{path}: it belongs to another fit: {why}. Add rows only at the end of the data, or choose another file. "
            "This file was not changed."
        )
    head = jax.tree.map(lambda leaf: leaf[:num], (y, inputs))
    like = jax.eval_shape(lambda: run_jitted(filter_, *_OPTIONS, False, jax.random.key(0), None, *head))
    state, rows = read_checkpoint(path, filter_, (state_like(filter_), _rows(like))).tree
    return rows._replace(final=state, levels=jnp.asarray(DEFAULT_LEVELS, rows.ess.dtype))


def _rows(results: Results) -> Results:
    return results._replace(final=_NONE, levels=_NONE)


def _digest(y: Any, inputs: Any, num: int) -> str:
    """A hash of the first rows of the data."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((y, inputs)):
        rows = np.ascontiguousarray(leaf[:num])
        digest.update(f"{rows.dtype} {rows.shape}".encode() + rows.tobytes())
    return digest.hexdigest()
