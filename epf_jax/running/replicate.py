"""Many runs in one compiled program, shared out over all devices."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.checks import check_flag, check_key, kinds
from epf_jax.core.compilation_cache import warn_of_many_programs
from epf_jax.core.findings import warn_of
from epf_jax.core.number_arrays import numeric_array
from epf_jax.filters import Filter
from epf_jax.models.observed import observed_batch
from epf_jax.models.waiting import built_for
from epf_jax.running.alarms import alarms
from epf_jax.running.reference import Origin
from epf_jax.running.results import Results
from epf_jax.running.run import (
    DEFAULT_LEVELS,
    check_filter,
    check_levels,
    check_remat,
    check_room,
    run_jitted,
    warn_of_no_estimate,
)


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
    check_flag("inputs_per_series", inputs_per_series)
    batch = observed_batch(example.model, y, inputs, num, inputs_per_series)
    num_axes = 2 if batch.many_inputs else 1
    if example.waiting is not None and hyper is not None:
        row = jax.tree.map(lambda leaf: np.asarray(leaf)[(0,) * num_axes], batch.inputs)
        filter_ = _ForInputs(filter_, kinds(row), row)
    example = built_for(example, batch.inputs, num_axes)
    filter_ = example if hyper is None else filter_
    check_room(example, batch.num_steps)
    warn_of_no_estimate(example, batch.shortest)
    levels = check_levels(levels)
    check_remat(remat_every)
    check_flag("history", history)
    check_flag("diagnostics", diagnostics)

    batched = (True, True, batch.many, batch.many_inputs)
    options = (levels, history, remat_every, diagnostics)
    data = (batch.values, batch.inputs)
    results = _replicate(filter_, hyper is not None, options, devices, batched, keys, hyper, *data)
    results = results._replace(levels=jnp.asarray(levels, results.ess.dtype))
    warn_of(alarms(results), stacklevel=2)
    return results if hyper is not None else results._replace(origin=Origin(example.model, batch))


@dataclasses.dataclass(frozen=True)
class _ForInputs:
    """A function that builds filters from hyper-parameters, for inputs of one kind."""

    filter_of: Any
    kind: str
    row: Any = dataclasses.field(compare=False)

    def __call__(self, hyper: Any) -> Filter:
        return built_for(self.filter_of(hyper), self.row, 0)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _replicate(filter_, built_from_hyper, options, devices, batched, *args):
    """A run for each key, shared out evenly over the devices, which do not wait for each other."""
    warn_of_many_programs()

    def one(key, hyper, y, rows):
        built = filter_(hyper) if built_from_hyper else filter_
        none: Any = None  # the levels are those of all runs
        return run_jitted(built, *options, key, None, y, rows)._replace(levels=none)

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
