r"""Evaluating a jaxpr inside a kernel, with every array taken apart into cells.

A *cell* is one number, or one number for each particle: the lanes of the kernel's single block, padded to a power of
two. What crosses particles, sums, running sums and the reading of ancestors, has a rule of its own; all else is
arithmetic on cells. A primitive without a rule raises `NotFusable`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton as plgpu

from epf_jax.kernels.vectors import BEYOND
from epf_jax.random import WORDS, split_words

MAX_OPERATIONS = 1500  # of a kernel
_UNROLL = 4  # loops up to this length are written out


class NotFusable(Exception):  # noqa: N818  it says what a function is
    """What stands in the way of running a function in one kernel."""


class Cells(NamedTuple):
    """An array taken apart.

    Attributes:
        items: an array of cells, with the array's shape but for the particles' axis.
        axis: where the particles' axis stands; None where there is none.
    """

    items: Any
    axis: int | None


class Block(NamedTuple):
    """What the rules know of the kernel that they write.

    Attributes:
        num: the number of particles.
        lane: 0, 1, ..., one for each lane.
        inside: which lanes are particles.
        memory: scratch memory, through which particles read what others have computed.
        free: offsets of its unused slots, each with a word for every lane.
        barrier: waits for all lanes.
        written: how many operations the kernel has so far.
    """

    num: int
    lane: jax.Array
    inside: jax.Array
    memory: Any
    free: list[int]
    barrier: Callable[[], None]
    written: list[int]


def is_key(aval: Any) -> bool:
    """Whether an array is of random keys."""
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)


def full_shape(aval: Any) -> tuple[int, ...]:
    """The shape of an array's items: a key is two words."""
    return (*aval.shape, 2) if is_key(aval) else aval.shape


# --------------------------------------------------------------------------------------------------- the evaluation


def evaluate(block: Block, jaxpr: Any, inputs: list[Cells]) -> list[Cells]:
    """The results of a jaxpr for the given constants and inputs."""
    env: dict[Any, Cells] = dict(zip([*jaxpr.constvars, *jaxpr.invars], inputs, strict=True))

    def read(variable):
        return _constant(block, variable.val) if hasattr(variable, "val") else env[variable]

    for eqn in _needed(jaxpr):
        env.update(zip(eqn.outvars, _apply(block, eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _call(block: Block, closed: Any, inputs: list[Cells]) -> list[Cells]:
    return evaluate(block, closed.jaxpr, [*(_constant(block, const) for const in closed.consts), *inputs])


def _needed(jaxpr: Any) -> list[Any]:
    """The equations that lead to a result."""
    live, needed = {v for v in jaxpr.outvars if not hasattr(v, "val")}, []
    for eqn in reversed(jaxpr.eqns):
        if any(v in live for v in eqn.outvars):
            needed.append(eqn)
            live.update(v for v in eqn.invars if not hasattr(v, "val"))
    return needed[::-1]


def _constant(block: Block, value: Any) -> Cells:
    array = np.asarray(value)
    if block.num in array.shape and block.num > 1:
        raise NotFusable("an inner constant with a number for each particle")
    return filled(array.shape, lambda place: array[place], None)


def filled(inner: tuple[int, ...], item: Callable[[tuple], Any], axis: int | None) -> Cells:
    """Cells from a function of their place."""
    items = np.empty(inner, object)
    for place in np.ndindex(*inner):
        items[place] = item(place)
    return Cells(items, axis)


def spread(block: Block, value: Any) -> jax.Array:
    """The value in every lane."""
    return jnp.broadcast_to(value, block.lane.shape)


def _apply(block: Block, eqn: Any, inputs: list[Cells]) -> list[Cells]:
    name, params = eqn.primitive.name, eqn.params
    if name in ("jit", "pjit", "closed_call") and params.get("name") in _NAMED:
        return [_NAMED[params["name"]](block, *inputs)]
    if name in ("jit", "pjit", "closed_call", "custom_jvp_call"):
        return _call(block, params["call_jaxpr"] if name == "custom_jvp_call" else params["jaxpr"], inputs)
    if name in _CONTROL:
        return _CONTROL[name](block, eqn, inputs)
    if name in _ELEMENTWISE:
        return [_elementwise(block, eqn, inputs)]
    if name in _RULES:
        return [_RULES[name](block, eqn, *inputs)]
    raise NotFusable(f"the primitive {name!r}, which has no rule")


# ------------------------------------------------------------------------------------------------------- arithmetic

_ELEMENTWISE = frozenset(
    [
        "abs",
        "add",
        "add_any",
        "and",
        "atan2",
        "bitcast_convert_type",
        "ceil",
        "clamp",
        "convert_element_type",
        "copy",
        "cos",
        "cosh",
        "div",
        "eq",
        "erf_inv",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "integer_pow",
        "is_finite",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "not",
        "or",
        "pow",
        "rem",
        "rsqrt",
        "select_n",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tan",
        "tanh",
        "xor",
    ]
)


def _elementwise(block: Block, eqn: Any, inputs: list[Cells]) -> Cells:
    shape = eqn.outvars[0].aval.shape
    axis = next((c.axis for c in inputs if c.axis is not None), None)
    inner = _inner(shape, axis)
    spread = [np.broadcast_to(_aligned(c, axis, len(shape)), inner) for c in inputs]
    return filled(inner, lambda place: _bind(block, eqn, [s[place] for s in spread]), axis)


def _aligned(c: Cells, axis: int | None, ndim: int) -> np.ndarray:
    """The items of an array that meets others with their particles along `axis`: a single number, or alike."""
    if c.items.ndim == 0 or c.axis == axis:
        return c.items
    if c.axis is None and axis is not None and c.items.ndim == ndim and c.items.shape[axis] == 1:
        return np.squeeze(c.items, axis)
    raise NotFusable(f"arithmetic on arrays with their particles along axes {c.axis} and {axis}")


def _inner(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else (*shape[:axis], *shape[axis + 1 :])


def _count(block: Block) -> None:
    block.written[0] += 1
    if block.written[0] > MAX_OPERATIONS:
        raise NotFusable(f"more than {MAX_OPERATIONS} operations, which would take minutes to compile")


def _bind(block: Block, eqn: Any, values: list[Any]) -> Any:
    if all(isinstance(v, (int, float, np.generic)) for v in values):  # known already, and so is the result
        with jax.ensure_compile_time_eval():
            return np.asarray(_bind_arrays(block, eqn, values))[()]
    return _bind_arrays(block, eqn, values)


def _bind_arrays(block: Block, eqn: Any, values: list[Any]) -> Any:
    name = eqn.primitive.name
    _count(block)
    values = [jnp.asarray(v, i.aval.dtype) for v, i in zip(values, eqn.invars, strict=True)]
    if any(v.ndim for v in values):
        values = [spread(block, v) for v in values]
    if name in ("copy", "stop_gradient"):
        return values[0]
    if name == "convert_element_type":
        return values[0].astype(eqn.params["new_dtype"])
    return eqn.primitive.bind(*values, **eqn.params)


def _reduction(combine: Callable, over_lanes: Callable, neutral: Callable) -> Callable:
    def rule(block: Block, eqn: Any, x: Cells) -> Cells:
        axes, dtype, shape = eqn.params["axes"], eqn.invars[0].aval.dtype, eqn.outvars[0].aval.shape
        moved = [a - (x.axis is not None and a > x.axis) for a in axes if a != x.axis]
        front = np.moveaxis(x.items, moved, range(len(moved))).reshape(-1, *_inner_after(x, moved))
        across = x.axis is not None and x.axis in axes
        axis = None if x.axis is None or across else x.axis - sum(a < x.axis for a in axes)

        def item(place):
            total = front[(0, *place)]
            for i in range(1, front.shape[0]):
                total = combine(total, front[(i, *place)])
            if across:
                lanes = spread(block, jnp.asarray(total, dtype))
                total = over_lanes(jnp.where(block.inside, lanes, jnp.asarray(neutral(dtype), dtype)))
            return total

        return filled(_inner(shape, axis), item, axis)

    return rule


def _inner_after(x: Cells, removed: list[int]) -> tuple[int, ...]:
    return tuple(size for i, size in enumerate(x.items.shape) if i not in removed)


def _extreme(sign: float) -> Callable:
    def of(dtype):
        if jnp.issubdtype(dtype, jnp.floating):
            return sign * jnp.inf
        return jnp.iinfo(dtype).max if sign > 0 else jnp.iinfo(dtype).min

    return of


def _cumsum(block: Block, eqn: Any, x: Cells) -> Cells:
    if eqn.params["axis"] != x.axis or eqn.params["reverse"]:
        raise NotFusable("a running sum that is not over the particles")
    return _running_sum(block, x)


def _running_sum(block: Block, x: Cells) -> Cells:
    def of(value):
        lanes = spread(block, value)
        return jax.lax.cumsum(jnp.where(block.inside, lanes, jnp.zeros((), lanes.dtype)), axis=0)

    return _map(of, x)


def _map(function: Callable, x: Cells) -> Cells:
    return filled(x.items.shape, lambda place: function(x.items[place]), x.axis)


def _dot_general(block: Block, eqn: Any, x: Cells, y: Cells) -> Cells:
    (contract_x, contract_y), (batch_x, batch_y) = eqn.params["dimension_numbers"]
    labels_x, labels_y = {}, {}
    for kind, xs, ys in (("c", contract_x, contract_y), ("b", batch_x, batch_y)):
        for i, (a, b) in enumerate(zip(xs, ys, strict=True)):
            labels_x[a] = labels_y[b] = (kind, i)
    shapes = [v.aval.shape for v in eqn.invars]
    for labels, shape, kind in ((labels_x, shapes[0], "x"), (labels_y, shapes[1], "y")):
        labels.update({a: (kind, a) for a in range(len(shape)) if a not in labels})
    lanes = {labels[c.axis] for labels, c in ((labels_x, x), (labels_y, y)) if c.axis is not None}
    if len(lanes) > 1:
        raise NotFusable("a matrix product with particles along two axes")
    lane = next(iter(lanes), None)
    sizes = {label: shapes[0][a] for a, label in labels_x.items()} | {b: shapes[1][a] for a, b in labels_y.items()}
    if lane is not None and any(
        c.axis is None and lane in labels.values() for labels, c in ((labels_x, x), (labels_y, y))
    ):
        raise NotFusable("a matrix product of lanes with numbers that are none")
    out = [labels_x[a] for a in batch_x] + [b for b in labels_x.values() if b[0] == "x"]
    out = (
        sorted(out[: len(batch_x)]) + sorted(out[len(batch_x) :]) + sorted(b for b in labels_y.values() if b[0] == "y")
    )
    summed = [label for label in sizes if label[0] == "c" and label != lane]
    axis = out.index(lane) if lane in out else None
    kept = [label for label in out if label != lane]

    def pick(c, labels, where):
        return c.items[tuple(where[labels[a]] for a in range(len(labels)) if a != c.axis)]

    def item(place):
        total: Any = None
        for inner in np.ndindex(*(sizes[label] for label in summed)):
            where = dict(zip(kept, place, strict=True)) | dict(zip(summed, inner, strict=True))
            _count(block)
            term = jnp.asarray(pick(x, labels_x, where)) * pick(y, labels_y, where)
            total = term if total is None else total + term
        if lane is not None and lane[0] == "c":
            total = jnp.sum(jnp.where(block.inside, spread(block, total), jnp.zeros((), total.dtype)))
        return total

    return filled(tuple(sizes[label] for label in kept), item, axis)


# ------------------------------------------------------------------------------------------------- particles' places


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
    return _map(lambda value: _read_at(block, value, index), x)


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
    return Cells(x.items.reshape(-1)[places] if places.ndim else _cell(x.items.reshape(-1)[int(places)]), axis)


def _cell(value: Any) -> np.ndarray:
    items = np.empty((), object)
    items[()] = value
    return items


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


def _ancestors_of_counts(block: Block, counts: Cells) -> Cells:
    """`resampling.ancestors_of_counts`, by bisection: how many of the sorted counts are at most j, in lane j."""
    counts_at = _through_memory(block, jnp.where(block.inside, spread(block, counts.items[()]), jnp.int32(BEYOND)))
    below, step = jnp.zeros_like(block.lane), block.lane.shape[0]
    while step > 1:
        step //= 2
        below = jnp.where(counts_at(below + (step - 1)) <= block.lane, below + step, below)
    return filled((), lambda _: jnp.minimum(below, block.num - 1), 0)


# ---------------------------------------------------------------------------------------------------- random numbers


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

    return filled(_inner(shape, axis), item, axis)


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
    kind = eqn.invars[0].aval.dtype.name
    if kind not in WORDS:
        raise NotFusable(f"random numbers of {kind}")
    return WORDS[kind]


# ------------------------------------------------------------------------------------------------------------ shapes


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
    spread = [1] * len(_inner(shape, axis))
    for d, size in zip(kept, items.shape, strict=True):
        spread[d - (axis is not None and d > axis)] = size
    return Cells(np.broadcast_to(items.reshape(spread), _inner(shape, axis)), axis)


def _reshape(block: Block, eqn: Any, x: Cells) -> Cells:
    old, new = (full_shape(v.aval) for v in (eqn.invars[0], eqn.outvars[0]))
    if x.axis is None:
        return Cells(x.items.reshape(new), None)
    before = int(np.prod(old[: x.axis], dtype=int))
    for b, size in enumerate(new):
        if size == block.num and int(np.prod(new[:b], dtype=int)) == before:
            return Cells(x.items.reshape(_inner(new, b)), b)
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
    one = _map(lambda v: jnp.sum(jnp.where(chosen, spread(block, v), zero)), Cells(items, None))
    return Cells(np.expand_dims(one.items, x.axis), None)


def _concatenate(block: Block, eqn: Any, *parts: Cells) -> Cells:
    position = eqn.params["dimension"]
    axis = next((c.axis for c in parts if c.axis is not None), None)
    if any(c.axis != axis for c in parts) or axis == position:
        raise NotFusable("arrays joined along or across the particles' axis")
    return Cells(np.concatenate([c.items for c in parts], position - (axis is not None and position > axis)), axis)


def _stack(block: Block, eqn: Any, *parts: Cells) -> Cells:
    return _stacked(list(parts), eqn.params["axis"])


def _stacked(parts: list[Cells], at: int) -> Cells:
    axes = {c.axis for c in parts}
    if len(axes) > 1:
        raise NotFusable("a stack of arrays with their particles along different axes")
    axis = axes.pop()
    items = np.stack([c.items for c in parts], at - (axis is not None and at > axis))
    return Cells(items, None if axis is None else axis + (at <= axis))


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
        return filled(_inner(shape, axis), lambda _: block.lane.astype(dtype), axis)
    at = along - (axis is not None and along > axis)
    return filled(_inner(shape, axis), lambda place: np.asarray(place[at], dtype)[()], axis)


# ----------------------------------------------------------------------------------------------------------- control


def _cond(block: Block, eqn: Any, inputs: list[Cells]) -> list[Cells]:
    index, *operands = inputs
    chosen, branches = index.items[()], eqn.params["branches"]
    if isinstance(chosen, (int, np.integer)):
        return _call(block, branches[int(chosen)], operands)
    if len(branches) != 2:
        raise NotFusable("a choice between more than two branches")
    no, yes = (_call(block, branch, operands) for branch in branches)

    def choose(a, b, aval):
        axis = a.axis if a.axis is not None else b.axis
        if a.axis != b.axis and aval.shape:
            raise NotFusable("branches with their particles along different axes")
        pick = lambda place: jnp.where(jnp.asarray(chosen) != 0, b.items[place], a.items[place])  # noqa: E731
        return filled(a.items.shape, pick, axis)

    return [choose(a, b, v.aval) for a, b, v in zip(no, yes, eqn.outvars, strict=True)]


def _platform_index(block: Block, eqn: Any, inputs: list[Cells]) -> list[Cells]:
    """The branch for all platforms: those for a GPU are made of kernels, and none can stand inside another."""
    others = [i for i, names in enumerate(eqn.params["platforms"]) if not names]
    if not others:
        raise NotFusable("a choice of platforms without one for all")
    return [filled((), lambda _: others[0], None)]


def _scan(block: Block, eqn: Any, inputs: list[Cells]) -> list[Cells]:
    p = eqn.params
    length, (num_consts, num_carry) = p["length"], _loop_arguments(p, len(inputs))
    consts, carry = inputs[:num_consts], inputs[num_consts : num_consts + num_carry]
    rows = inputs[num_consts + num_carry :]
    dtypes = [v.aval.dtype for v in eqn.outvars[:num_carry]]
    if length > _UNROLL:
        if rows or len(eqn.outvars) > num_carry:
            raise NotFusable(f"a loop of {length} steps over rows")
        return _loop(block, p["jaxpr"], consts, carry, dtypes, length)
    if any(c.axis == 0 for c in rows):
        raise NotFusable("a loop over the particles")
    made = []
    for i in reversed(range(length)) if p["reverse"] else range(length):
        row = [Cells(c.items[i, ...], None if c.axis is None else c.axis - 1) for c in rows]
        out = _call(block, p["jaxpr"], [*consts, *carry, *row])
        carry = out[:num_carry]
        made.append(out[num_carry:])
    made = made[::-1] if p["reverse"] else made
    return [*carry, *(_stacked([row[k] for row in made], 0) for k in range(len(eqn.outvars) - num_carry))]


def _loop_arguments(params: dict[str, Any], num: int) -> tuple[int, int]:
    """How many of a scan's arguments are constants, and how many are carried: two spellings, of jax 0.10 and 0.11."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].update(list(range(num))).unpack()
    return len(list(consts)), len(list(carry))


def _loop(
    block: Block, body: Any, consts: list[Cells], carry: list[Cells], dtypes: list[Any], length: int
) -> list[Cells]:
    """A long loop with no rows stays a loop."""
    layout = layout_of(carry, dtypes)

    def turn(_, numbers):
        return to_numbers(block, _call(block, body, [*consts, *from_numbers(numbers, layout)]), layout)

    return from_numbers(jax.lax.fori_loop(0, length, turn, to_numbers(block, carry, layout)), layout)


class Layout(NamedTuple):
    """How a loop's carried arrays lie in one flat tuple of numbers and lanes: shapes of items, axes and kinds."""

    inner: tuple[int, ...]
    axis: int | None
    dtype: Any


def layout_of(carry: list[Cells], dtypes: list[Any]) -> list[Layout]:
    """The layout of what a loop carries."""
    return [Layout(c.items.shape, c.axis, dtype) for c, dtype in zip(carry, dtypes, strict=True)]


def to_numbers(block: Block, carry: list[Cells], layout: list[Layout]) -> tuple[jax.Array, ...]:
    """Cells as a flat tuple, for a loop to carry."""
    numbers = []
    for c, part in zip(carry, layout, strict=True):
        if c.items.shape != part.inner or c.axis not in (None, part.axis):
            raise NotFusable("a loop whose carry changes its shape or its particles' axis")
        for value in c.items.ravel():
            value = jnp.asarray(value, part.dtype)
            numbers.append(spread(block, value) if part.axis is not None else value)
    return tuple(numbers)


def from_numbers(numbers: tuple[jax.Array, ...], layout: list[Layout]) -> list[Cells]:
    """The cells of a loop's flat tuple."""
    remaining = iter(numbers)
    return [filled(part.inner, lambda _: next(remaining), part.axis) for part in layout]


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


_CONTROL: dict[str, Callable] = {
    "optimization_barrier": lambda block, eqn, inputs: inputs,
    "split": _split,
    "unstack": _unstack,
    "cond": _cond,
    "platform_index": _platform_index,
    "scan": _scan,
}
_NAMED = {"ancestors_of_counts": _ancestors_of_counts, "running_sum": _running_sum}
_RULES: dict[str, Callable] = {
    "reduce_sum": _reduction(lambda a, b: a + b, jnp.sum, lambda _: 0),
    "reduce_max": _reduction(jnp.maximum, jnp.max, _extreme(-1)),
    "reduce_min": _reduction(jnp.minimum, jnp.min, _extreme(1)),
    "reduce_or": _reduction(jnp.logical_or, lambda v: jnp.max(v.astype(jnp.int32)) > 0, lambda _: False),
    "reduce_and": _reduction(jnp.logical_and, lambda v: jnp.min(v.astype(jnp.int32)) > 0, lambda _: True),
    "cumsum": _cumsum,
    "dot_general": _dot_general,
    "gather": _gather,
    "random_bits": _random_bits,
    "random_split": _random_split,
    "random_wrap": lambda block, eqn, x: x,
    "random_unwrap": lambda block, eqn, x: x,
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
