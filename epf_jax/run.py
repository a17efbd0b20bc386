"""Running a filter over a series: one jitted `lax.scan`, the same numbers as `filter.step` one at a time.

`run(key, filter, y)` is exactly

    key_init, key_steps = jax.random.split(key)
    state = filter.init(key_init)
    for t in 1..T:
        state, info = filter.step(jax.random.fold_in(key_steps, t), state, y[t - 1])

so a series may be cut anywhere, continued from `results.final` with the same key, or fed one observation at a time.
"""

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray
from tqdm.auto import tqdm

from epf_jax.checks import check_key, numeric_array
from epf_jax.densities import can_be_partly_missing
from epf_jax.filters import Filter, FilterState
from epf_jax.filters.base import PARTICLES, check_state
from epf_jax.kernels import scan_on_device
from epf_jax.model import check_model, example_input, input_rows
from epf_jax.results import Results, record

DEFAULT_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_PROGRESS_CHUNKS = 50


def run(
    key: PRNGKeyArray,
    filter_: Filter,
    y: Float[Array, "T *y"],
    *,
    inputs: Any = None,
    state: FilterState | None = None,
    levels: tuple[float, ...] = DEFAULT_LEVELS,
    history: bool = False,
    progress: bool = False,
) -> Results:
    """Filter a series of observations.

    Args:
        key: a JAX random key.
        filter_: the filter.
        y: observations, time along the first axis. NaN is a missing value, per component.
        inputs: one row per observation (any pytree of arrays with T rows); the time index by default.
        state: where to go on from, usually `results.final` of an earlier run; the prior by default. With the same key,
            two runs over two halves of a series equal one over the whole.
        levels: quantile levels of the summaries; an empty tuple skips their computation.
        history: whether to keep every particle at every step (12 bytes and more per particle-step).
        progress: whether to show a progress bar; the series is then scanned in pieces, with the same result.
    """
    _check_filter(filter_)
    key = check_key(key)
    y = check_series(y, filter_, ndim_batch=0)
    num_steps = y.shape[0]
    if state is not None:
        check_state(state, filter_)
    first = 1 if state is None else state.t + 1
    inputs = input_rows(inputs, num_steps, first)
    check_model(filter_.model, jax.tree.map(lambda a: a[0], inputs))
    levels = _check_levels(levels)
    if progress:
        key_init, key_steps = jax.random.split(key)
        state = filter_.init(key_init) if state is None else state
        results = _in_pieces(filter_, key_steps, state, y, inputs, levels, history)
    else:
        results = _run(filter_, levels, history, key, state, y, inputs)
    _warn_of_trouble(results)
    return results


def replicate(
    keys: PRNGKeyArray,
    filter_: Filter,
    y: Float[Array, "..."],
    *,
    inputs: Any = None,
    inputs_per_series: bool = False,
    levels: tuple[float, ...] = DEFAULT_LEVELS,
    history: bool = False,
) -> Results:
    """Run a filter B times in one compiled program: over B keys, and over B series if y has a batch axis.

    Runs are dealt out over all of jax's devices. A CPU is one device unless told otherwise: with
    `jax.config.update("jax_num_cpu_devices", 2)` before anything else, each of two cores takes half of the runs. The
    numbers are the same on any number of devices.

    Args:
        keys: B random keys, `jax.random.split(key, B)`.
        filter_: the filter.
        y: one series for all keys, or B series along the first axis, one per key.
        inputs: shared by all runs, or with a leading axis of B if `inputs_per_series`.
        inputs_per_series: whether inputs have a leading axis of length B.
        levels: quantile levels of the summaries.
        history: whether to keep every particle at every step.

    Returns:
        `Results` with a leading axis of length B on every array but `levels`.
    """
    _check_filter(filter_)
    keys = check_key(keys, ndim=1)
    shape = _y_shape(filter_)
    per_series = jnp.ndim(y) == 2 + len(shape) if shape is not None else jnp.ndim(y) > 1
    y = check_series(y, filter_, ndim_batch=1 if per_series else 0)
    if per_series and y.shape[0] != keys.shape[0]:
        raise ValueError(
            f"y: {y.shape[0]} series came with {keys.shape[0]} keys; give one key per series: "
            f"jax.random.split(key, {y.shape[0]})."
        )
    num_steps = y.shape[1] if per_series else y.shape[0]
    rows = _rows_per_series(inputs, keys.shape[0], num_steps) if inputs_per_series else input_rows(inputs, num_steps)
    check_model(filter_.model, jax.tree.map(lambda a: a[0, 0] if inputs_per_series else a[0], rows))
    levels = _check_levels(levels)

    batched = (True, per_series, inputs_per_series)
    results = _replicate(filter_, levels, history, batched, keys, y, rows)
    results = results._replace(levels=jnp.asarray(levels, results.ess.dtype))
    _warn_of_trouble(results)
    return results


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _replicate(filter_, levels, history, batched, *args):
    """A run for each key, dealt out evenly over the devices: each device runs its share, and none waits for another."""

    def one(key, y, rows):
        return _run(filter_, levels, history, key, None, y, rows)._replace(levels=None)

    many = jax.vmap(one, in_axes=[0 if flag else None for flag in batched])
    devices, num = jax.local_devices(), args[0].shape[0]
    if len(devices) == 1 or num == 1:
        return many(*args)
    devices = devices[: min(len(devices), num)]
    spare = -num % len(devices)  # the last run again, so that all shares are equal; then left out
    padded = [_pad_rows(arg, spare) if flag else arg for arg, flag in zip(args, batched, strict=True)]
    specs = tuple(PartitionSpec("runs") if flag else PartitionSpec() for flag in batched)
    mesh = Mesh(np.array(devices), ("runs",))
    # Without checks of what varies over the mesh: `jet` has no rules for them.
    dealt = jax.shard_map(many, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("runs"), check_vma=False)
    return jax.tree.map(lambda leaf: leaf[:num], dealt(*padded))


def _pad_rows(tree: Any, num: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[-1:], num, axis=0)]) if num else leaf, tree)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _run(filter_, levels, history, key, state, y, inputs):
    key_init, key_steps = jax.random.split(key)
    state = filter_.init(key_init) if state is None else state
    return _scan(filter_, levels, history, key_steps, state, y, inputs)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _scan(filter_, levels, history, key_steps, state, y, inputs):
    layout: dict[str, Any] = {}

    def body(state, row):
        key, y, u = row
        state, info = filter_.step(key, state, y, u)
        # Summaries are not to be fused into the step, which alone must give the same bits. (On a CPU XLA drops the
        # barrier before it fuses; there the tests find the bits the same without it.)
        state, info = jax.lax.optimization_barrier((state, info))
        layout["row"] = record(state, info, levels, history)
        return state, _pack(layout["row"])

    # One batch of keys for all steps, rather than one more small computation in every turn of the loop.
    keys = jax.vmap(partial(jax.random.fold_in, key_steps))(state.t + 1 + jnp.arange(y.shape[0]))
    final, rows = scan_on_device(body, filter_.num_particles, PARTICLES, state, (keys, y, inputs))
    rows = _unpack(rows, layout["row"])
    return Results(**rows, levels=jnp.asarray(levels, rows["ess"].dtype), final=final)


_SMALL = 64  # numbers; larger arrays are written on their own


def _pack(row: Any) -> tuple[list[Array], list[Array]]:
    """The small arrays of a row as one vector for each kind of number: one write a step instead of a dozen."""
    leaves = jax.tree.leaves(row)
    kinds: dict[Any, list[Array]] = {}
    for leaf in leaves:
        if leaf.size <= _SMALL:
            kinds.setdefault(_kind(leaf), []).append(jnp.ravel(leaf).astype(_kind(leaf)))
    return [jnp.concatenate(parts) for parts in kinds.values()], [leaf for leaf in leaves if leaf.size > _SMALL]


def _unpack(packed: tuple[list[Array], list[Array]], row: Any) -> Any:
    """The rows of all steps, taken apart again into arrays like those of one row."""
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


def _in_pieces(filter_, key_steps, state, y, inputs, levels, history):
    """The same scan in equal pieces, a progress bar between them."""
    num_steps = y.shape[0]
    size = -(-num_steps // _PROGRESS_CHUNKS)
    pieces = []
    with tqdm(total=num_steps, unit="obs", desc="filtering") as bar:
        for start in range(0, num_steps, size):
            part = slice(start, start + size)
            rows = jax.tree.map(lambda a, part=part: a[part], inputs)
            piece = _scan(filter_, levels, history, key_steps, state, y[part], rows)
            state = jax.block_until_ready(piece.final)
            pieces.append(piece._replace(final=None, levels=None))
            bar.update(len(y[part]))
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *pieces)
    return joined._replace(final=state, levels=jnp.asarray(levels, joined.ess.dtype))


# ---------------------------------------------------------------------------------------------------------- checks


def check_series(y: Any, filter_: Filter, ndim_batch: int) -> Array:
    """The series as an array of the model's shape and kind, or an error that says what is wrong with it."""
    y = numeric_array("y", y, "Give an array whose first axis is time, NaN where a value is missing.")
    if y.dtype == bool or jnp.issubdtype(y.dtype, jnp.complexfloating):
        raise TypeError(
            f"y: expected real numbers, got dtype {y.dtype}. Write truth values as y.astype(float), and the parts of a "
            "complex number as two components."
        )
    expected = _y_shape(filter_)
    lead = ("B", "T")[1 - ndim_batch :]
    if y.ndim < len(lead) or (expected is not None and y.shape[len(lead) :] != expected):
        shape = ", ".join([*lead, *map(str, ("...",) if expected is None else expected)])
        shape = shape if "," in shape else f"{shape},"
        raise ValueError(
            f"y: expected shape ({shape}), time first and then one observation as the model's observation draws it, "
            f"got shape {y.shape}."
        )
    if 0 in y.shape[: len(lead)]:
        raise ValueError(f"y: the series is empty (shape {y.shape}); at least one observation is needed.")
    if not isinstance(y, jax.core.Tracer) and jnp.issubdtype(y.dtype, jnp.floating):
        _check_values(np.asarray(y), filter_)
    return y


def _check_values(y: np.ndarray, filter_: Filter) -> None:
    infinite = np.argwhere(np.isinf(y))
    if len(infinite):
        raise ValueError(
            f"y: {len(infinite)} infinite value{'s' if len(infinite) > 1 else ''}, the first at index "
            f"{tuple(map(int, infinite[0]))}. No density allows them; write NaN for a missing value."
        )
    missing = np.isnan(y)
    model, expected = filter_.model, filter_.model.shapes.y
    if expected is None or expected.shape == () or not missing.any():
        return
    axes = tuple(range(y.ndim - len(expected.shape), y.ndim))
    partly = missing.any(axis=axes) & ~missing.all(axis=axes)
    if not partly.any():
        return
    theta = model.parameters.to_theta(model.parameters.centre)
    d = model.observation(theta, jnp.zeros(model.shapes.x.shape, model.shapes.x.dtype), example_input(model))
    if not can_be_partly_missing(d, expected):
        raise ValueError(
            f"y: some components are missing while others are seen (first in row {int(np.argwhere(partly)[0][-1])}), "
            f"and a {type(d).__name__} observation cannot be marginalised. Use independent components "
            "(.to_event(1)) or a MultivariateNormal, or make the whole row NaN."
        )


def _y_shape(filter_: Filter) -> tuple[int, ...] | None:
    y = filter_.model.shapes.y
    return None if y is None else y.shape


def _check_filter(filter_: Any) -> None:
    if not isinstance(filter_, Filter):
        raise TypeError(
            f"filter_: expected a filter such as epf.extended_parameter_filter(model, num_particles=1000), got "
            f"{type(filter_).__name__}. The arguments are (key, filter, y)."
        )


def _rows_per_series(inputs: Any, num_series: int, num_steps: int) -> Any:
    rows = jax.tree.map(lambda leaf: numeric_array("inputs", leaf, "Give arrays of shape (B, T, ...)."), inputs)
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        if leaf.shape[:2] != (num_series, num_steps):
            raise ValueError(
                f"inputs{jax.tree_util.keystr(path)}: expected shape ({num_series}, {num_steps}, ...), one series of "
                f"rows for each key, got shape {leaf.shape}. For inputs shared by all, leave inputs_per_series False."
            )
    return rows


def _check_levels(levels: Any) -> tuple[float, ...]:
    try:
        levels = tuple(float(level) for level in levels)
    except (TypeError, ValueError) as error:
        raise TypeError(f"levels: expected a tuple of numbers such as (0.05, 0.5, 0.95), got {levels!r}.") from error
    if not all(0.0 < level < 1.0 for level in levels):
        raise ValueError(f"levels: expected quantile levels strictly between 0 and 1, got {levels}.")
    return levels


def _warn_of_trouble(results: Results) -> None:
    """Tell of steps at which every weight was zero, and of densities of theta that were NaN."""
    if isinstance(results.collapsed, jax.core.Tracer):
        return
    collapsed, bad = np.argwhere(np.asarray(results.collapsed)), np.asarray(results.num_bad_densities)
    if len(collapsed):
        warnings.warn(
            f"Every particle had zero weight at {_steps(collapsed)}; the particles were kept, and log_evidence is -inf "
            "from there on. Likely causes: an observation that the model all but rules out (an outlier, wrong units), "
            "an observation noise too small for num_particles (try epf.fully_adapted or epf.guided), or a density that "
            "returns NaN.",
            RuntimeWarning,
            stacklevel=3,
        )
    if bad.any():
        warnings.warn(
            f"The density of theta was NaN at {int(bad.sum())} of the places where its sampler looked, at "
            f"{_steps(np.argwhere(bad))}; theta was never moved there. Likely causes: a statistic that overflowed (a "
            "Taylor polynomial far from its centre: try epf.chebyshev, or jax_enable_x64), or a model whose density is "
            "NaN for some theta, such as the logarithm of a negative number.",
            RuntimeWarning,
            stacklevel=3,
        )


def _steps(where: np.ndarray) -> str:
    """'3 steps (first at t = 17)', from the indices of the steps, time last."""
    return f"{len(where)} step{'s' if len(where) > 1 else ''} (first at t = {int(where[:, -1].min()) + 1})"
