"""What a step records, packed for the scan: the numbers of a row as one vector for each kind of number."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def pack(row: Any) -> list[Array]:
    """The numbers of a row as one vector for each kind: one write a step instead of a dozen."""
    kinds: dict[Any, list[Array]] = {}
    for leaf in jax.tree.leaves(row):
        kinds.setdefault(_kind(leaf), []).append(leaf.astype(_kind(leaf)))
    return [_one_vector(parts) for parts in kinds.values()]


def unpack(packed: list[Array], row: Any) -> Any:
    """The rows of all steps, taken apart again into arrays like those of one row, or like parts of these."""
    leaves, treedef = jax.tree.flatten(row)
    of_kinds: dict[Any, list[Any]] = {}
    for leaf in leaves:
        of_kinds.setdefault(_kind(leaf), []).append(leaf)
    found = {kind: _taken_apart(vectors, of_kinds[kind]) for kind, vectors in zip(of_kinds, packed, strict=True)}
    return jax.tree.unflatten(treedef, [next(found[_kind(leaf)]).astype(leaf.dtype) for leaf in leaves])


def _one_vector(parts: list[Array]) -> Array:
    """Arrays side by side; numbers that stand together are stacked at once."""
    vectors: list[Array] = []
    for run in _runs(parts):
        vectors += [jnp.stack(run)] if run[0].ndim == 0 else map(jnp.ravel, run)
    return jnp.concatenate(vectors) if len(vectors) > 1 else vectors[0]


def _taken_apart(vectors: Array, leaves: list[Any]) -> Iterator[Array]:
    """The way back, for many vectors."""
    start = 0
    for run in _runs(leaves):
        size = sum(leaf.size for leaf in run)
        part = vectors[:, start : start + size]
        start += size
        if run[0].ndim == 0:
            yield from jnp.unstack(part, axis=1)
        else:
            ends = np.cumsum([leaf.size for leaf in run])[:-1]
            pieces = jnp.split(part, ends, axis=1)
            yield from (piece.reshape(len(part), *leaf.shape) for piece, leaf in zip(pieces, run, strict=True))


def _runs(leaves: list[Any]) -> Iterator[list[Any]]:
    """Numbers that stand together, and arrays that do."""
    for _, run in itertools.groupby(leaves, lambda leaf: leaf.ndim == 0):
        yield list(run)


def _kind(leaf: Any) -> Any:
    return leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.result_type(int)
