"""`save` and `load`: a filter's state, or what was learned, in a file, to go on in another process.

What was learned is kept as what it was made from: the series, and the certificate's weighted draws. So `load` makes the
same table, and an answer that updates, forecasts and filters on as it would have. The file is a checkpoint of the
filter that goes on from it: damaged files and those of another model are refused.
"""

import dataclasses
import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.core.importance import Moments
from epf_jax.filters import Filter, FilterState
from epf_jax.learning.learn import update
from epf_jax.learning.learned import Attempt, Best, Learned, filter_going_on, learned_from
from epf_jax.learning.routes import ROUTES, inner_of
from epf_jax.models.observed import Observed
from epf_jax.models.state_space import StateSpaceModel, row_of, seen
from epf_jax.running import checkpoints
from epf_jax.running.certificate import Certificate
from epf_jax.running.checkpoints import CheckpointError, check_path, kept_in, read_checkpoint, write_checkpoint
from epf_jax.running.clock import Clock
from epf_jax.running.likelihoods import Evaluated, likelihoods

_KIND = "learn"
_ARRAYS = ("draws", "weights", "of_theta")  # of a certificate; the rest are numbers
_NUMBERS = [name for name in Certificate._fields if name not in _ARRAYS]
_NOTHING = Evaluated(0.0, 0.0, 0.0, 0.0, 0.0), 0.0, Moments(0.0, 0.0, 0.0, 0.0)  # type: ignore[arg-type]


def save(path: str | os.PathLike, state: FilterState | Learned, filter_: Filter | None = None) -> None:
    """Write a filter's state, or what was learned, to a file, whole or not at all, with a fingerprint of the model.

    Args:
        path: the file; an existing file is replaced.
        state: the state, from `filter_.step` or `results.final`; or the answer of `epf.learn`, alone.
        filter_: the filter that made the state.
    """
    if not isinstance(state, Learned):
        return checkpoints.save(path, state, filter_)  # type: ignore[arg-type]  # which says what is missing
    if filter_ is not None:
        raise TypeError("filter_: an answer of epf.learn knows its own. Call epf.save(path, learned).")
    if state.best is None:
        raise ValueError(
            "state: a stream's answer, or one that was stopped early, has no certified draws to keep. Keep its filter: "
            "epf.save(path, learned.state, learned.filter_)."
        )
    found, route, likelihood = state.best
    tree = _tree(state.y, state.inputs, found)
    notes = {
        "kind": _KIND,
        "route": ROUTES.index(route),
        "num_particles": likelihood.num_particles,
        "row": jax.tree.map(lambda leaf: np.asarray(leaf)[0].tolist(), state.inputs),
        "arrays": [[leaf.shape, leaf.dtype.name] for leaf in jax.tree.leaves(tree)],
        "numbers": {name: np.asarray(getattr(found, name)).item() for name in _NUMBERS},
        **{name: getattr(state, name) for name in ("seed", "attempts", "notes", "seconds")},
    }
    write_checkpoint(check_path(path), state.filter_, tree, notes)
    return None


def load(path: str | os.PathLike, filter_: Filter | StateSpaceModel) -> Any:
    """What `epf.save` wrote: a filter's state, given the filter; the answer of `epf.learn`, given its model.

    Raises `CheckpointError` (a `ValueError`) if the file is damaged, incomplete or no checkpoint, or if it belongs to
    another model, filter or precision. Files of other releases of epf_jax and jax can be read. Warns if only the code
    has changed.

    Args:
        path: the file.
        filter_: a filter built like the one that made the state, or the model that was learned; in this process or
            another.
    """
    if not isinstance(filter_, StateSpaceModel):
        return checkpoints.load(path, filter_)
    model, file = filter_, check_path(path)
    notes = kept_in(file).notes
    kinds = {"route": int, "num_particles": int, "arrays": list, "numbers": dict, "seed": int}
    if notes.get("kind") != _KIND or not all(isinstance(notes.get(name), kind) for name, kind in kinds.items()):
        raise CheckpointError(f"{file}: it does not hold an answer of epf.learn. Choose another file.")
    route, num_particles = ROUTES[notes["route"]], notes["num_particles"]
    row = jax.tree.map(lambda v: jnp.asarray(v)[None], notes.get("row"), is_leaf=lambda v: isinstance(v, list))
    model = seen(model, row)
    nothing: Any = None
    structure: Any = jax.tree.structure(_tree(0, row_of(model), nothing))
    like = structure.unflatten([jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in notes["arrays"]])
    filter_ = filter_going_on(model, route, num_particles, like["y"].shape[0])
    tree = read_checkpoint(file, filter_, like).state
    return _learned(model, tree, notes)


def _tree(y: Any, inputs: Any, found: Certificate | None) -> dict[str, Any]:
    """The arrays that are kept; without a certificate their structure."""
    parts = _NOTHING if found is None else (found.draws, found.weights, found.of_theta)
    draws, weights, of_theta = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), parts)
    return {"y": y, "inputs": inputs, "draws": draws, "weights": weights, "of_theta": of_theta}


def _learned(model: StateSpaceModel, tree: dict[str, Any], notes: dict[str, Any]) -> Learned:
    """The answer, made from what was kept as `learn` made it."""
    route, num_particles = ROUTES[notes["route"]], notes["num_particles"]
    parts = {name: jax.tree.map(lambda leaf: np.asarray(leaf, float), tree[name]) for name in _ARRAYS}
    series = Observed(tree["y"], tree["inputs"])
    likelihood = likelihoods(inner_of(model, route, num_particles), num_particles, *series[:2])
    best = Best(Certificate(**parts, **notes["numbers"]), route, likelihood)
    made = learned_from(model, series, best, [], [], Clock(math.inf), notes["seed"], update)
    attempts = tuple(Attempt(*attempt) for attempt in notes["attempts"])
    return dataclasses.replace(made, attempts=attempts, notes=tuple(notes["notes"]), seconds=notes["seconds"])
