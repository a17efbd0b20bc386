"""Rules for what particles read from each other, and for each particle's random numbers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton as plgpu

from epf_jax.core.kernels.cells import Block, Cells, NotFusable, filled, inner_shape, mapped, one_cell, spread
from epf_jax.core.kernels.vectors import BEYOND
from epf_jax.core.random import WORDS, split_words


def _gather(block: Block, eqn: Any, x: Cells, indices: Cells) -> Cells:
    """`x[indices]` along the particles of both."""
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    plain = (
        x.axis == indices.axis == 0
        and numbers.start_index_map == numbers.collapsed_slice_dims == (0,)
        and not numbers.operand_batching_dims
        and tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])
        and numbers.offset_dims == tuple(range(1, len(shape)))
    )
    if not plain:
        return _static_gather(block, eqn, x, indices)
    index = jnp.clip(indices.items.reshape(-1)[0], 0, block.num - 1)
    return mapped(lambda value: _read_at(block, value, index), x)


def _static_gather(block: Block, eqn: Any, x: Cells, indices: Cells) -> Cells:
    """A gather whose indices are known: it moves cells about, and leaves the particles alone."""
    known = indices.axis is None and all(isinstance(i, (int, np.generic)) for i in indices.items.ravel())
    numbers, sizes = eqn.params["dimension_numbers"], list(eqn.params["slice_sizes"])
    if not known or (x.axis is not None and (x.axis in numbers.start_index_map or sizes[x.axis] != block.num)):
        raise NotFusable("a gather that is neither of whole particles nor of places known beforehand")
    shape = list(eqn.invars[0].aval.shape)
    if x.axis is not None:
        shape[x.axis] = sizes[x.axis] = 1
    with jax.ensure_compile_time_eval():
        places = np.asarray(
            jax.lax.gather(
                jnp.arange(int(np.prod(shape))).reshape(shape),
                jnp.asarray(indices.items.astype(np.int32)),
                numbers,
                tuple(sizes),
                mode=eqn.params["mode"],
            )
        )
    axis = None
    if x.axis is not None:
        kept = [a for a in range(len(shape)) if a not in numbers.collapsed_slice_dims]
        axis = numbers.offset_dims[kept.index(x.axis)]
        places = np.squeeze(places, axis)
    return Cells(x.items.reshape(-1)[places] if places.ndim else one_cell(x.items.reshape(-1)[int(places)]), axis)


def _read_at(block: Block, value: Any, index: jax.Array) -> jax.Array:
    """Every lane's reading of the value in lane `index`."""
    value = spread(block, value)
    if value.dtype == bool:
        return _through_memory(block, value.astype(jnp.int32))(index) != 0
    words = _through_memory(block, jax.lax.bitcast_convert_type(value, jnp.int32))(index)
    return jax.lax.bitcast_convert_type(words, value.dtype)


def _through_memory(block: Block, words: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """A function that reads other lanes' words."""
    if not block.free:
        raise NotFusable("more arrays that particles read from each other than scratch memory holds")
    start = block.free.pop()
    block.barrier()  # no lane may still be reading what stood there, one turn of a loop ago
    plgpu.store(block.memory.at[start + block.lane], words)
    block.barrier()
    return lambda index: plgpu.load(block.memory.at[start + index])


def ancestors_of_counts(block: Block, counts: Cells) -> Cells:
    """`resampling.ancestors_of_counts`, by bisection: how many of the sorted counts are at most j, in lane j."""
    if counts.axis != 0 or counts.items.shape:
        raise NotFusable("ancestors by counts that are not one for each particle")
    counts_at = _through_memory(block, jnp.where(block.inside, spread(block, counts.items[()]), jnp.int32(BEYOND)))
    below, step = jnp.zeros_like(block.lane), block.lane.shape[0]
    while step > 1:
        step //= 2
        below = jnp.where(counts_at(below + (step - 1)) <= block.lane, below + step, below)
    return filled((), lambda _: jnp.minimum(below, block.num - 1), 0)


def _random_bits(block: Block, eqn: Any, key: Cells) -> Cells:
    shape = eqn.params["shape"]
    if eqn.params["bit_width"] != 32:
        raise NotFusable("random numbers of other than 32 bits")
    words = _words_of(eqn)
    axis = shape.index(block.num) if block.num in shape else None
    strides = np.cumprod([1, *shape[:0:-1]])[::-1]

    def item(place):
        full = list(place) if axis is None else [*place[:axis], 0, *place[axis:]]
        counter = jnp.uint32(int(np.dot(full, strides[: len(full)])) if full else 0)
        if axis is not None:
            counter = counter + block.lane.astype(jnp.uint32) * jnp.uint32(int(strides[axis]))
        return words(key.items[0], key.items[1], counter)

    return filled(inner_shape(shape, axis), item, axis)


def _random_split(block: Block, eqn: Any, key: Cells) -> Cells:
    _words_of(eqn)  # those known are split alike
    shape = eqn.params["shape"]
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    items = np.empty((*shape, 2), object)
    for place in np.ndindex(*shape):
        items[(*place, 0)], items[(*place, 1)] = split_words(
            key.items[0], key.items[1], jnp.uint32(int(numbers[place]))
        )
    return Cells(items, None)


def _words_of(eqn: Any) -> Callable[..., Any]:
    """The generator of the equation's key."""
    kind, shape = eqn.invars[0].aval.dtype.name, eqn.invars[0].aval.shape
    if shape:
        raise NotFusable(f"an array of keys, of shape {shape}")
    if kind not in WORDS:
        raise NotFusable(f"random numbers of {kind}")
    return WORDS[kind]


RULES: dict[str, Callable] = {
    "gather": _gather,
    "random_bits": _random_bits,
    "random_split": _random_split,
    "random_wrap": lambda block, eqn, x: x,
    "random_unwrap": lambda block, eqn, x: x,
}
