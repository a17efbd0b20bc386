"""Packs the small arrays that a step records into one vector for each dtype."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

_SMALL = 64  # numbers; larger arrays are written on their own


def pack(row: Any) -> tuple[list[Array], list[Array]]:
    """The small arrays of a row as one vector for each dtype: one write a step instead of a dozen."""
    leaves = jax.tree.leaves(row)
    kinds: dict[Any, list[Array]] = {}
    for leaf in leaves:
        if leaf.size <= _SMALL:
            kinds.setdefault(_kind(leaf), []).append(jnp.ravel(leaf).astype(_kind(leaf)))
    return [jnp.concatenate(parts) for parts in kinds.values()], [leaf for leaf in leaves if leaf.size > _SMALL]


def unpack(packed: tuple[list[Array], list[Array]], row: Any) -> Any:
    """The rows of all steps, unpacked into arrays like those of one row."""
    leaves, treedef = jax.tree.flatten(row)
    order = list(dict.fromkeys(_kind(leaf) for leaf in leaves if leaf.size <= _SMALL))
    vectors, large = dict(zip(order, packed[0], strict=True)), iter(packed[1])
    used = dict.fromkeys(order, 0)
    rows = []
    for leaf in leaves:
        if leaf.size > _SMALL:
            rows.append(next(large))
            continue
        kind, start = _kind(leaf), used[_kind(leaf)]
        used[kind] += leaf.size
        part = vectors[kind][:, start : start + leaf.size]
        rows.append(part.reshape(part.shape[0], *leaf.shape).astype(leaf.dtype))
    return jax.tree.unflatten(treedef, rows)


def _kind(leaf: Any) -> Any:
    return leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.result_type(int)
