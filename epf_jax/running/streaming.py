"""A filter that takes one observation at a time, with a summary of the posterior after each, and checkpoints.

Step t draws from `fold_in(key_steps, t)`, as in `run`. So a stream that was stopped and goes on from its checkpoint
gives the same results as one that never stopped, and as `run`.
"""

import json
import pathlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.core.naming import LEVELS, scalars
from epf_jax.data.text_lines import LineError, Observation
from epf_jax.filters import Filter, FilterState
from epf_jax.models.observed import check_values
from epf_jax.running.checkpoint_settings import state_like
from epf_jax.running.checkpoints import CheckpointError, digest_of, read_checkpoint, write_checkpoint
from epf_jax.running.records import apart, record, summaries, theta_and_x

Line = dict[str, Any]


class FullError(LineError):
    """The filter has no room for another observation, so no later line can be counted."""


class Stream:
    """A filter's state and the summary of its posterior.

    Attributes:
        t: how many observations it has counted.
        sequence: the number of the last observation, if observations are numbered.
        line: the summary after the last observation, or of the prior.
        notes: other contents of a checkpoint, such as the header of a CSV.
        resumed: whether there was a checkpoint.
    """

    def __init__(self, filter_: Filter, seed: int, checkpoint: pathlib.Path | None = None):
        """Begin with the prior, or go on from the checkpoint if the file exists."""
        self._filter, self._seed, self._checkpoint = filter_, seed, checkpoint
        key_init, self._key_steps = jax.random.split(jax.random.key(seed))
        self.resumed = checkpoint is not None and checkpoint.exists()
        self.sequence: int | None = None
        self.notes: dict[str, Any] = {}
        if checkpoint is not None and checkpoint.exists():
            self._state: FilterState = self._resume(checkpoint)
        else:
            self._state = filter_.init(key_init)
            self.notes["data"] = ""
        self.t = int(self._state.t)
        self.line: Line = self.notes.pop("line", None) or _line_of(self._state)

    def take(self, observation: Observation) -> Line:
        """Count one more observation and summarise the posterior; does not write the checkpoint."""
        y, room = observation.y, self._filter.max_steps
        if room is not None and self.t >= room:
            raise FullError(f"the filter has room for {room} observations, and has counted as many (max_steps)")
        try:
            check_values(y[None], self._filter.model)
        except ValueError as error:
            raise LineError(str(error).removeprefix("y: ").rstrip(".")) from error
        u = None if observation.u is None else {k: jnp.asarray(value, float) for k, value in observation.u.items()}
        before = self._state
        self._state, info = self._filter.step(_fold_in(self._key_steps, self.t + 1), self._state, y, u)
        row = jax.device_get(_row(self._state, info))
        means = jax.tree.leaves((row[0]["theta"].mean, row[0]["x"].mean))
        if not all(np.isfinite(leaf).all() for leaf in means):
            self._state = before
            raise LineError("the model gives NaN or infinity for what it says, which would spoil all that is known")
        self.t += 1
        self.sequence = self.sequence if observation.sequence is None else observation.sequence
        self.line = _line(self.t, row, observation.sequence)
        if "data" in self.notes:
            self.notes["data"] = digest_of(self.notes["data"], observation.y, observation.u)
        return self.line

    def save(self) -> None:
        """Write the checkpoint if one is wanted, so that no counted observation is lost."""
        if self._checkpoint is not None:
            kept = {**self.notes, "seed": self._seed, "sequence": self.sequence, "line": self.line}
            write_checkpoint(self._checkpoint, self._filter, self._state, kept)

    def _resume(self, path: pathlib.Path) -> FilterState:
        state, self.notes, _ = read_checkpoint(path, self._filter, state_like(self._filter))
        seed = self.notes.get("seed", self._seed)
        if seed != self._seed:
            raise CheckpointError(
                f"{path}: it was begun with --seed {seed}, and goes on with that seed only; got {self._seed}."
            )
        self.sequence = self.notes.pop("sequence", None)
        return state


def as_json(line: Line) -> str:
    """The line as JSON, with null for numbers that are not finite."""
    return json.dumps(line, allow_nan=False)


_fold_in = jax.jit(jax.random.fold_in)


@jax.jit
def _row(state: FilterState, info: Any) -> tuple[dict[str, Any], Any]:
    row = record(state, info, tuple(LEVELS.values()))
    row["theta"], row["x"] = theta_and_x(apart(row.pop("theta_and_x"), (state.theta, state.x)), state)
    return row, info.log_increment


@jax.jit
def _summaries(state: FilterState) -> tuple[Any, Any]:
    return summaries(state, tuple(LEVELS.values()))


def _line(t: int, row: Any, sequence: int | None) -> Line:
    found, log_score = row
    line = {
        "t": t,
        **_posterior(found["theta"], found["x"]),
        "log_evidence": _number(found["log_evidence"]),
        "log_score": _number(log_score),
        "ess": _number(found["ess"]),
        "acceptance": _number(found["acceptance"]),
        "collapsed": bool(found["collapsed"]),
        "error": _number(found["error"]),
    }
    return line if sequence is None else {**line, "sequence": sequence}


def _line_of(state: FilterState) -> Line:
    """What a state says by itself."""
    theta, x, log_evidence = jax.device_get((*_summaries(state), state.log_evidence))
    return {"t": int(state.t), **_posterior(theta, x), "log_evidence": _number(log_evidence)}


def _posterior(theta: Any, x: Any) -> Line:
    return {"theta": _moments(theta, "theta"), "x": _moments(x, "x")}


def _moments(summary: Any, root: str) -> dict[str, dict[str, float | None]]:
    """Mean, sd and quantiles of every scalar component by its name."""
    named = partial(scalars, root=root)
    columns = {"mean": named(summary.mean), "sd": named(summary.sd)}
    levels = jax.tree.map(lambda leaf: np.moveaxis(leaf, -1, 0), summary.quantiles)
    columns |= {name: named(jax.tree.map(lambda leaf, j=j: leaf[j], levels)) for j, name in enumerate(LEVELS)}
    return {name: {column: _number(columns[column][name]) for column in columns} for name in columns["mean"]}


def _number(value: Any) -> float | None:
    """The shortest decimal with the same bits; None if it is not finite."""
    return float(str(value)) if np.isfinite(value) else None
