"""Runs a filter over a series in pieces, with a progress bar and a checkpoint after each piece."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.apps.commands.data_file import observed
from epf_jax.apps.commands.options import progress_bar
from epf_jax.core.files import held
from epf_jax.data.series import STEP, Series
from epf_jax.filters import Filter
from epf_jax.models.observed import Observed
from epf_jax.running.checkpoint_settings import state_like
from epf_jax.running.checkpoints import (
    Checkpoint,
    CheckpointError,
    digest_of,
    kept_in,
    read_checkpoint,
    write_checkpoint,
)
from epf_jax.running.reference import Origin
from epf_jax.running.results import Results
from epf_jax.running.run import DEFAULT_LEVELS, check_room, join, pieces, run_jitted

_OPTIONS = (DEFAULT_LEVELS, False, None)  # levels, history, remat_every
_MOST, _SHORTEST = 50, 50  # pieces of a series, observations of a piece: a checkpoint costs, too
_NONE: Any = None


def room_for(num_rows: int, checkpoint: pathlib.Path | None) -> int:
    """How many rows a method that remembers them has room for: that of its checkpoint, as long as the rows fit."""
    kept = kept_in(checkpoint).notes.get("room")
    return kept if isinstance(kept, int) and kept >= num_rows else 1 << (2 * num_rows).bit_length()


def filter_series(
    filter_: Filter, series: Series, seed: int, checkpoint: pathlib.Path | None, label: str = "filtering"
) -> Results:
    """The same results as `run` on the series, from a checkpoint of its beginning if there is one.

    With a checkpoint, diagnostics are not recorded, because it does not hold the descent of particles. One that a
    stream or `epf.save` wrote has no results over time: those returned begin after it.

    Args:
        filter_: the filter.
        series: the data.
        seed: the seed of the run's key.
        checkpoint: the file that keeps the state and the results so far.
        label: of the progress bar.
    """
    with contextlib.nullcontext() if checkpoint is None else held(checkpoint), progress_bar() as bar:
        task = bar.add_task(label, total=len(series.y))
        found = []
        for piece in _pieces(filter_, series, seed, checkpoint):
            found.append(piece)
            bar.update(task, completed=int(piece.final.t))
        return join(found)._replace(origin=Origin(filter_.model, observed(series, filter_.model)))


def _pieces(filter_: Filter, series: Series, seed: int, checkpoint: pathlib.Path | None) -> Iterator[Results]:
    whole = observed(series, filter_.model)
    check_room(filter_, len(whole.values))
    key_init, key_steps = jax.random.split(jax.random.key(seed))
    digests = () if checkpoint is None else _digests(series)
    begun = None if checkpoint is None or not checkpoint.exists() else _begun(checkpoint, filter_, whole, digests, seed)
    state = filter_.init(key_init) if begun is None else begun.state
    done = int(state.t)
    rows = None if begun is None else begun.rows
    if begun is not None and rows is not None:
        yield rows._replace(final=state, levels=jnp.asarray(DEFAULT_LEVELS, rows.ess.dtype))
    elif done == len(whole.values):
        raise CheckpointError(f"{checkpoint}: it has counted all {done} rows already. Add rows to the data.")
    rest = Observed(*jax.tree.map(lambda leaf: leaf[done:], tuple(whole[:2])))
    size = max(_SHORTEST, -(-len(series.y) // _MOST))
    for piece in pieces(filter_, _OPTIONS, key_steps, state, rest, size, checkpoint is None):
        if checkpoint is not None:
            new = jax.device_get(_rows(piece))
            rows = new if rows is None else jax.tree.map(lambda *parts: np.concatenate(parts), rows, new)
            notes = _notes(series, int(piece.final.t), digests, seed, filter_.max_steps)
            write_checkpoint(checkpoint, filter_, piece.final, notes, rows)
        yield piece


def _notes(series: Series, num: int, digests: tuple[str, ...], seed: int, room: int | None) -> dict[str, Any]:
    stamped = series.times is not None and STEP in (series.inputs or {})
    stamp = {"stamp": str(series.times[num - 1])} if stamped and series.times is not None else {}
    return {"seed": seed, "room": room, "data": digests[num], **stamp}


def _begun(path: pathlib.Path, filter_: Filter, whole: Observed, digests: tuple[str, ...], seed: int) -> Checkpoint:
    """What a checkpoint holds, if it is of the first rows of these data."""
    notes, num_rows = kept_in(path)
    like = None
    if num_rows:
        head = jax.tree.map(lambda leaf: leaf[:1], tuple(whole[:2]))
        one = jax.eval_shape(lambda: run_jitted(filter_, *_OPTIONS, False, jax.random.key(0), None, *head))
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), leaf.dtype), _rows(one))
    found = read_checkpoint(path, filter_, state_like(filter_), like)
    num = int(found.state.t)
    same = num < len(digests) and notes.get("data", digests[num]) == digests[num]
    if not same or notes.get("seed", seed) != seed:
        why = f"--seed was {notes['seed']} and is {seed}" if same else f"the first {num} rows are not what they were"
        raise CheckpointError(
            f"{path}: it belongs to another fit: {why}. Add rows only at the end of the data, or choose another file. "
            "This file was not changed."
        )
    return found


def _rows(results: Results) -> Results:
    return results._replace(final=_NONE, levels=_NONE)


def _digests(series: Series) -> tuple[str, ...]:
    """The digest of the first 0, 1, 2, ... rows."""
    found = [""]
    for i, y in enumerate(series.y):
        found.append(digest_of(found[-1], y, {name: rows[i] for name, rows in (series.inputs or {}).items()}))
    return tuple(found)
