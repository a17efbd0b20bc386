"""Rules for arithmetic: number by number, and sums and products over cells and particles."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.core.kernels.cells import Block, Cells, NotFusable, count_operations, filled, inner_shape, mapped, spread

ELEMENTWISE = frozenset([
    "abs", "add", "add_any", "and", "atan2", "bitcast_convert_type", "ceil", "clamp", "convert_element_type",
    "copy", "cos", "cosh", "div", "eq", "erf_inv", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow",
    "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not",
    "or", "pow", "rem", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor"
])  # fmt: skip


def elementwise(block: Block, eqn: Any, inputs: list[Cells]) -> Cells:
    """A primitive that treats every number alike."""
    shape = eqn.outvars[0].aval.shape
    axis = next((c.axis for c in inputs if c.axis is not None), None)
    inner = inner_shape(shape, axis)
    spread = [np.broadcast_to(_aligned(c, axis, len(shape)), inner) for c in inputs]
    return filled(inner, lambda place: _bind(block, eqn, [s[place] for s in spread]), axis)


def _aligned(c: Cells, axis: int | None, ndim: int) -> np.ndarray:
    """The items of an array that meets others with their particles along `axis`: a single number, or alike."""
    if c.items.ndim == 0 or c.axis == axis:
        return c.items
    if c.axis is None and axis is not None and c.items.ndim == ndim and c.items.shape[axis] == 1:
        return np.squeeze(c.items, axis)
    raise NotFusable(f"arithmetic on arrays with their particles along axes {c.axis} and {axis}")


def _bind(block: Block, eqn: Any, values: list[Any]) -> Any:
    if all(isinstance(v, (int, float, np.generic)) for v in values):  # known already, and so is the result
        with jax.ensure_compile_time_eval():
            return np.asarray(_bind_arrays(block, eqn, values))[()]
    return _bind_arrays(block, eqn, values)


def _bind_arrays(block: Block, eqn: Any, values: list[Any]) -> Any:
    name = eqn.primitive.name
    count_operations(block)
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

        return filled(inner_shape(shape, axis), item, axis)

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
    return running_sum(block, x)


def running_sum(block: Block, x: Cells) -> Cells:
    """`resampling.running_sum`, over the particles."""
    if x.axis is None:
        raise NotFusable("a running sum that is not over the particles")

    def of(value):
        lanes = spread(block, value)
        return jax.lax.cumsum(jnp.where(block.inside, lanes, jnp.zeros((), lanes.dtype)), axis=0)

    return mapped(of, x)


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
            count_operations(block)
            term = jnp.asarray(pick(x, labels_x, where)) * pick(y, labels_y, where)
            total = term if total is None else total + term
        if lane is not None and lane[0] == "c":
            total = jnp.sum(jnp.where(block.inside, spread(block, total), jnp.zeros((), total.dtype)))
        return total

    return filled(tuple(sizes[label] for label in kept), item, axis)


RULES: dict[str, Callable] = {
    "reduce_sum": _reduction(lambda a, b: a + b, jnp.sum, lambda _: 0),
    "reduce_max": _reduction(jnp.maximum, jnp.max, _extreme(-1)),
    "reduce_min": _reduction(jnp.minimum, jnp.min, _extreme(1)),
    "reduce_or": _reduction(jnp.logical_or, lambda v: jnp.max(v.astype(jnp.int32)) > 0, lambda _: False),
    "reduce_and": _reduction(jnp.logical_and, lambda v: jnp.min(v.astype(jnp.int32)) > 0, lambda _: True),
    "cumsum": _cumsum,
    "dot_general": _dot_general,
}
