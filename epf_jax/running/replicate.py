"""Many runs in one compiled program, shared out over all devices."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.checks import check_flag, check_key, numeric_array
from epf_jax.core.compilation_cache import warn_of_many_programs
from epf_jax.data.series import Panel
from epf_jax.data.tables import columns_of, is_table
from epf_jax.filters import Filter
from epf_jax.models.observed import (
    check_lengths,
    check_series,
    observations,
    rows_per_series,
    warn_if_missing,
    with_own_inputs,
    y_shape,
)
from epf_jax.models.state_space import check_rows, input_rows
from epf_jax.running.results import Results
from epf_jax.running.room import check_room, warn_of_no_estimate
from epf_jax.running.run import DEFAULT_LEVELS, check_filter, check_levels, check_remat, run_jitted
from epf_jax.running.trouble import warn_of_trouble


def replicate(
    keys: PRNGKeyArray,
    filter_: Filter | Callable[[Any], Filter],
    y: Float[Array, "..."],
    *,
    hyper: Any = None,
    inputs: Any = None,
    inputs_per_series: bool = False,
    levels: tuple[float, ...] = DEFAULT_LEVELS,
    history: bool = False,
    diagnostics: bool = False,
    remat_every: int | None = None,
    mesh: Mesh | None = None,
) -> Results:
    """Run a filter B times in one compiled program: over B keys, B series, B sets of hyper-parameters.

    Runs are shared out over all devices of this process, or those of `mesh`. A CPU is one device by default. With
    `jax.config.update("jax_num_cpu_devices", 2)` before anything else, each of two cores takes half of the runs. The
    results are the same on any number of devices.

    Args:
        keys: B random keys, `jax.random.split(key, B)`.
        filter_: the filter; with `hyper`, a function that builds it, such as
            `lambda h: epf.bootstrap_filter(model_of(h), 100)`. Reuse the function: a new one is compiled again.
        y: one series for all keys, or B series of one length along the first axis, one per key. For series of unequal
            length give the result of `epf.panel`, which brings its inputs.
        hyper: the argument of `filter_`: a pytree of arrays with a leading axis of length B, one entry per run.
        inputs: shared by all runs, or with a leading axis of B if `inputs_per_series`.
        inputs_per_series: whether inputs have a leading axis of length B.
        levels: quantile levels of the summaries.
        history: whether to keep every particle at every step.
        diagnostics: as in `run`.
        remat_every: as in `run`.
        mesh: the devices to use.

    Returns:
        `Results` with a leading axis of length B on every array but `levels`.
    """
    keys = check_key(keys, ndim=1)
    num = keys.shape[0]
    if num == 0:
        raise ValueError("keys: there are no keys. Give one key for each run, jax.random.split(key, B).")
    hyper = None if hyper is None else _hyper_rows(hyper, num)
    if hyper is None and inspect.isfunction(filter_):
        raise TypeError(
            "filter_: a function that builds the filter needs hyper. Call replicate(keys, lambda h: ..., y, "
            "hyper=...), or give the filter itself."
        )
    example = check_filter(filter_ if hyper is None else _first_of(filter_, hyper))
    devices = _devices_of(example, mesh)
    check_lengths(y)
    shortest = int(min(y.lengths)) if isinstance(y, Panel) else None
    inputs_per_series = inputs_per_series or (isinstance(y, Panel) and inputs is None and y.inputs is not None)
    y, inputs = with_own_inputs(y, inputs, many=True)
    y = observations(y, example.model)
    shape = _y_shape(example, inputs, 2 if inputs_per_series else 1)
    per_series = jnp.ndim(y) == 2 + len(shape) if shape is not None else jnp.ndim(y) > 1
    y = check_series(y, example.model, ndim_batch=1 if per_series else 0)
    warn_if_missing(y)
    if per_series and y.shape[0] != num:
        turned = f" Or did time come first? Then give y.T, {num} series." if y.ndim == 2 and y.shape[1] == num else ""
        raise ValueError(
            f"y: {y.shape[0]} series came with {num} keys; give one key per series: "
            f"jax.random.split(key, {y.shape[0]}).{turned}"
        )
    num_steps = y.shape[1] if per_series else y.shape[0]
    check_room(example, num_steps)
    warn_of_no_estimate(example, num_steps if shortest is None else shortest)
    rows = (
        rows_per_series(inputs, num, num_steps)
        if inputs_per_series
        else input_rows(inputs, num_steps, model=example.model)
    )
    check_rows(example.model, rows, 2 if inputs_per_series else 1)
    levels = check_levels(levels)
    check_remat(remat_every)
    check_flag("history", history)
    check_flag("diagnostics", diagnostics)
    check_flag("inputs_per_series", inputs_per_series)

    batched = (True, True, per_series, inputs_per_series)
    options = (levels, history, remat_every, diagnostics)
    results = _replicate(filter_, hyper is not None, options, devices, batched, keys, hyper, y, rows)
    results = results._replace(levels=jnp.asarray(levels, results.ess.dtype))
    warn_of_trouble(results)
    return results


def _y_shape(filter_: Filter, inputs: Any, num_axes: int) -> tuple[int, ...] | None:
    """Shape of one observation, by the model itself or by the inputs that it reads."""
    known = y_shape(filter_.model)
    if known is not None or inputs is None:
        return known
    rows = columns_of(inputs) if is_table(inputs) else inputs
    rows = jax.tree.map(lambda leaf: numeric_array("inputs", leaf, "Give arrays with a row for each step."), rows)
    y: Any = check_rows(filter_.model, rows, num_axes).y
    return y.shape


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _replicate(filter_, built_from_hyper, options, devices, batched, *args):
    """A run for each key, shared out evenly over the devices, which do not wait for each other."""
    warn_of_many_programs()

    def one(key, hyper, y, rows):
        built = filter_(hyper) if built_from_hyper else filter_
        return run_jitted(built, *options, key, None, y, rows)._replace(levels=None)

    many = jax.vmap(one, in_axes=[0 if flag else None for flag in batched])
    num = args[0].shape[0]
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


def _hyper_rows(hyper: Any, num: int) -> Any:
    rows = jax.tree.map(lambda leaf: numeric_array("hyper", leaf, "Give arrays whose first axis is B."), hyper)
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        if leaf.ndim == 0 or leaf.shape[0] != num:
            raise ValueError(
                f"hyper{jax.tree_util.keystr(path)}: expected one entry for each of the {num} keys along its first "
                f"axis, got shape {leaf.shape}."
            )
    return rows


def _first_of(filter_of: Any, hyper: Any) -> Filter:
    """The filter of the first run, which is checked for all."""
    if isinstance(filter_of, Filter) or not callable(filter_of):
        raise TypeError(
            "filter_: with hyper, give a function of one entry of it that builds the filter, such as "
            f"lambda h: epf.bootstrap_filter(model_of(h), 1000), got {type(filter_of).__name__}."
        )
    return filter_of(jax.tree.map(lambda leaf: leaf[0], hyper))


def _devices_of(filter_: Filter, mesh: Any) -> tuple[Any, ...]:
    if filter_.mesh is not None:
        raise ValueError(
            "filter_: its particles are already spread over the devices of a mesh. Run it key by key with epf.run, or "
            "give it a resampler for one device, such as epf.systematic."
        )
    if mesh is None:
        return tuple(jax.local_devices())
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh: expected a jax.sharding.Mesh, jax.make_mesh((2,), ('runs',)), got {mesh!r}.")
    devices = tuple(mesh.devices.flat)
    if any(device.process_index != jax.process_index() for device in devices):
        raise ValueError(
            "mesh: it has devices of other processes. Let each process replicate its own share of the keys "
            "(epf.sweep does so), or spread one filter's particles over all of them by epf.across_devices(mesh)."
        )
    return devices
