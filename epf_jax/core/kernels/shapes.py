"""Rules for shapes: cells moved about, the particles left alone."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from epf_jax.core.checks import is_key
from epf_jax.core.kernels.cells import (
    Block,
    Cells,
    NotFusable,
    filled,
    full_shape,
    inner_shape,
    mapped,
    spread,
    stacked,
)


def _broadcast_in_dim(block: Block, eqn: Any, x: Cells) -> Cells:
    shape, dims = full_shape(eqn.outvars[0].aval), eqn.params["broadcast_dimensions"]
    if is_key(eqn.outvars[0].aval):
        dims = (*dims, len(shape) - 1)
    axis = dims[x.axis] if x.axis is not None else None
    items = x.items
    if axis is None:  # a new axis as long as there are particles holds the same number in every lane
        old = dict(zip(dims, items.shape, strict=True))
        axis = next((i for i, size in enumerate(shape) if size == block.num and old.get(i, 1) == 1), None)
        if axis in dims:
            items = np.squeeze(items, dims.index(axis))
    kept = [d for d in dims if d != axis]
    spread = [1] * len(inner_shape(shape, axis))
    for d, size in zip(kept, items.shape, strict=True):
        spread[d - (axis is not None and d > axis)] = size
    return Cells(np.broadcast_to(items.reshape(spread), inner_shape(shape, axis)), axis)


def _reshape(block: Block, eqn: Any, x: Cells) -> Cells:
    old, new = (full_shape(v.aval) for v in (eqn.invars[0], eqn.outvars[0]))
    if x.axis is None:
        return Cells(x.items.reshape(new), None)
    before = int(np.prod(old[: x.axis], dtype=int))
    for b, size in enumerate(new):
        if size == block.num and int(np.prod(new[:b], dtype=int)) == before:
            return Cells(x.items.reshape(inner_shape(new, b)), b)
    raise NotFusable("a reshape that takes the particles' axis apart")


def _transpose(block: Block, eqn: Any, x: Cells) -> Cells:
    order = eqn.params["permutation"]
    if x.axis is None:
        return Cells(np.transpose(x.items, order), None)
    inner = [a - (a > x.axis) for a in order if a != x.axis]
    return Cells(np.transpose(x.items, inner), order.index(x.axis))


def _slice(block: Block, eqn: Any, x: Cells) -> Cells:
    p, shape = eqn.params, eqn.invars[0].aval.shape
    strides = p["strides"] or (1,) * len(shape)
    parts = [slice(*part) for part in zip(p["start_indices"], p["limit_indices"], strides, strict=True)]
    if x.axis is None:
        return Cells(x.items[(*parts, ...)], None)
    particles = range(block.num)[parts.pop(x.axis)]
    items = x.items[(*parts, ...)]
    if particles == range(block.num):
        return Cells(items, x.axis)
    if len(particles) > 1:
        raise NotFusable("a slice of the particles")
    zero, chosen = jnp.zeros((), eqn.invars[0].aval.dtype), block.lane == particles[0]
    one = mapped(lambda v: jnp.sum(jnp.where(chosen, spread(block, v), zero)), Cells(items, None))
    return Cells(np.expand_dims(one.items, x.axis), None)


def _concatenate(block: Block, eqn: Any, *parts: Cells) -> Cells:
    position = eqn.params["dimension"]
    axis = next((c.axis for c in parts if c.axis is not None), None)
    if any(c.axis != axis for c in parts) or axis == position:
        raise NotFusable("arrays joined along or across the particles' axis")
    return Cells(np.concatenate([c.items for c in parts], position - (axis is not None and position > axis)), axis)


def _stack(block: Block, eqn: Any, *parts: Cells) -> Cells:
    return stacked(list(parts), eqn.params["axis"])


def _pad(block: Block, eqn: Any, x: Cells, value: Cells) -> Cells:
    config = list(eqn.params["padding_config"])
    if x.axis is not None and config.pop(x.axis) != (0, 0, 0):
        raise NotFusable("padding of the particles' axis")
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        raise NotFusable("padding that cuts or spreads")
    items = np.full([n + low + high for n, (low, high, _) in zip(x.items.shape, config, strict=True)], None, object)
    items[...] = value.items[()]
    items[tuple(slice(low, low + n) for n, (low, _, _) in zip(x.items.shape, config, strict=True))] = x.items
    return Cells(items, x.axis)


def _iota(block: Block, eqn: Any) -> Cells:
    shape, along, dtype = eqn.params["shape"], eqn.params["dimension"], eqn.params["dtype"]
    axis = along if shape[along] == block.num else (shape.index(block.num) if block.num in shape else None)
    if axis == along:
        return filled(inner_shape(shape, axis), lambda _: block.lane.astype(dtype), axis)
    at = along - (axis is not None and along > axis)
    return filled(inner_shape(shape, axis), lambda place: np.asarray(place[at], dtype)[()], axis)


def _split(block: Block, eqn: Any, inputs: list[Cells]) -> list[Cells]:
    (x,), at = inputs, eqn.params["axis"]
    if at == x.axis:
        raise NotFusable("a split of the particles")
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    return [Cells(part, x.axis) for part in np.split(x.items, ends, at - (x.axis is not None and at > x.axis))]


def _unstack(block: Block, eqn: Any, inputs: list[Cells]) -> list[Cells]:
    (x,), at = inputs, eqn.params["axis"]
    if at == x.axis:
        raise NotFusable("the particles taken apart")
    items = np.moveaxis(x.items, at - (x.axis is not None and at > x.axis), 0)
    axis = None if x.axis is None else x.axis - (at < x.axis)
    return [Cells(items[i, ...], axis) for i in range(items.shape[0])]


RULES: dict[str, Callable] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
    "stack": _stack,
    "pad": _pad,
    "iota": _iota,
}
SEVERAL_RESULTS: dict[str, Callable] = {"split": _split, "unstack": _unstack}
