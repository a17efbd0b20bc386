"""Running a filter over a series: one jitted `lax.scan`, the same numbers as `filter.step` one at a time.

`run(key, filter, y)` is exactly

    key_init, key_steps = jax.random.split(key)
    state = filter.init(key_init)
    for t in 1..T:
        state, info = filter.step(jax.random.fold_in(key_steps, t), state, y[t - 1])

so you can split a series anywhere, go on from `results.final` with the same key, or feed one observation at a time.
On a CPU the series is filled up to a power of two, and the program is told how many rows are observations: series of
other lengths reuse it.
"""

import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from tqdm.auto import tqdm

from epf_jax.core.checks import check_flag, check_key, check_whole_number, frames_to_user
from epf_jax.core.compilation_cache import warn_of_many_programs
from epf_jax.core.findings import warn_of
from epf_jax.core.loops import scan_first, scan_on_device
from epf_jax.core.packing import pack, unpack
from epf_jax.core.platforms import full_precision
from epf_jax.filters import Filter, FilterState, KnownTheta
from epf_jax.filters.filter import begun, check_state
from epf_jax.filters.state import check_is_filters_state
from epf_jax.models.observed import Observed, observed_series
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import built_for
from epf_jax.running.alarms import alarms
from epf_jax.running.buckets import can_be_padded, padded, room_for, trimmed
from epf_jax.running.health import LINEAGE, examine, start_lineage
from epf_jax.running.records import History, like_both, record, theta_and_x
from epf_jax.running.reference import Origin
from epf_jax.running.results import Results

DEFAULT_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_PROGRESS_CHUNKS = 50


def run(
    key: PRNGKeyArray,
    filter_: Filter,
    y: Float[Array, "T *y"] | Observed,
    *,
    inputs: Any = None,
    state: FilterState | None = None,
    levels: tuple[float, ...] = DEFAULT_LEVELS,
    history: bool = False,
    diagnostics: bool = False,
    progress: bool = False,
    remat_every: int | None = None,
) -> Results:
    """Filter a series of observations.

    Args:
        key: a JAX random key.
        filter_: the filter.
        y: observations, time along the first axis: an array, or a DataFrame of pandas or polars with a column for each
            component. NaN is a missing value, per component. The result of `epf.from_table` works as well, and brings
            its inputs.
        inputs: one row per observation (any pytree of arrays with T rows); the time index by default.
        state: the state to go on from, usually `results.final` of an earlier run; the prior by default. With the same
            key, two runs over two halves of a series equal one run over the whole.
        levels: quantile levels of the summaries; an empty tuple skips their computation.
        history: whether to keep every particle at every step (12 bytes and more per particle-step).
        diagnostics: whether to record the predictive check, the health of the statistic and the descent of particles
            for `results.diagnose()` and the plots. The filter's results are the same to rounding. A step takes longer,
            but its cost does not grow with t. A run that goes on from a state counts descent anew.
        progress: whether to show a progress bar; the result is the same.
        remat_every: for gradients through long series: keep only the first state of every so many steps, and compute
            the steps again on the way back (`jax.checkpoint`). About the square root of T needs the least memory. The
            results are the same.
    """
    check_filter(filter_)
    key = check_key(key)
    if state is not None:
        check_is_filters_state(state)
    series = observed_series(filter_.model, y, inputs, first=1 if state is None else state.t + 1)
    filter_ = built_for(filter_, series.inputs)
    if state is not None:
        state = begun(filter_, state)
        check_state(state, filter_)
    before = 0 if state is None else state.t
    check_room(filter_, len(series.values), before)
    warn_of_no_estimate(filter_, len(series.values), before)
    levels = check_levels(levels)
    check_remat(remat_every)
    check_flag("history", history)
    check_flag("diagnostics", diagnostics)
    check_flag("progress", progress)
    if progress:
        key_init, key_steps = jax.random.split(key)
        state = filter_.init(key_init) if state is None else state
        results = _in_pieces(filter_, (levels, history, remat_every), key_steps, state, series, diagnostics)
    else:
        options = (levels, history, remat_every, diagnostics)
        if history or remat_every is not None or not can_be_padded((series.values, series.inputs)):
            results = run_jitted(filter_, *options, key, state, series.values, series.inputs)
        else:
            num_steps = len(series.values)
            rows = padded((series.values, series.inputs), room_for(num_steps))
            results = trimmed(run_jitted(filter_, *options, key, state, *rows, num_steps), num_steps)
    warn_of(alarms(results), stacklevel=2)
    return results if state is not None else results._replace(origin=Origin(filter_.model, series))


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def run_jitted(filter_, levels, history, remat_every, diagnostics, key, state, y, inputs, num_steps=None) -> Results:
    """`run` without its checks; with `num_steps`, only so many rows are observations."""
    key_init, key_steps = jax.random.split(key)
    state = filter_.init(key_init) if state is None else state
    lineage = start_lineage(state) if diagnostics else None
    return _scan(filter_, levels, history, remat_every, key_steps, state, y, inputs, lineage, num_steps)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _scan(filter_, levels, history, remat_every, key_steps, state, y, inputs, lineage=None, num_steps=None):
    warn_of_many_programs()
    layout: dict[str, Any] = {}

    def body(carried, row):
        before, lineage = carried
        key, y, u = row
        state, info = filter_.step(key, before, y, u)
        recorded = record(state, info, levels)
        kept = History(state.x, state.theta, state.log_weights, info.ancestors) if history else None
        if lineage is not None:
            with full_precision():
                lineage, found = examine(key, filter_, before, state, info, y, u, lineage, levels)
            recorded["diagnostics"] = found
        layout["row"] = recorded | {"theta_and_x": like_both(recorded["theta_and_x"], state)}
        return (state, lineage), (pack(recorded), kept)

    # One batch of keys for all steps, rather than one more small computation in every turn of the loop.
    keys = jax.vmap(partial(jax.random.fold_in, key_steps))(state.t + 1 + jnp.arange(y.shape[0]))
    particles = (filter_.by_particle, None if lineage is None else LINEAGE)
    scan = partial(scan_on_device, body, filter_.num_particles, particles)
    if remat_every is not None:
        scan = partial(_in_segments, scan, remat_every)
    if num_steps is not None:
        scan = partial(scan_first, num_steps, body)
    (final, lineage), (packed, kept) = scan((state, lineage), (keys, y, inputs))
    rows = unpack(packed, layout["row"])
    theta, x = theta_and_x(rows.pop("theta_and_x"), final)
    if lineage is not None:
        rows["diagnostics"] = rows["diagnostics"]._replace(lineage=lineage)
    return Results(theta, x, **rows, history=kept, levels=jnp.asarray(levels, rows["ess"].dtype), final=final)


def _in_segments(scan, size, state, rows):
    """The scan in segments, whose steps are computed again when a gradient goes back through them."""
    num_steps = jax.tree.leaves(rows)[0].shape[0]
    whole = num_steps - num_steps % size
    segment = jax.checkpoint(scan, prevent_cse=False)
    made = []
    if whole:
        head = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, size, *leaf.shape[1:]), rows)
        state, out = jax.lax.scan(segment, state, head)
        made.append(jax.tree.map(lambda leaf: leaf.reshape(whole, *leaf.shape[2:]), out))
    if whole < num_steps:
        state, out = segment(state, jax.tree.map(lambda leaf: leaf[whole:], rows))
        made.append(out)
    return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), *made)


def _in_pieces(filter_, options, key_steps, state, series, diagnostics):
    """The same scan in equal pieces, a progress bar between them."""

    def shown():
        with tqdm(total=len(series.values), unit="obs", desc="filtering") as bar:
            for piece in pieces(filter_, options, key_steps, state, series, diagnostics=diagnostics):
                bar.update(len(piece.ess))
                yield piece

    return join(shown())


def pieces(
    filter_, options, key_steps, state, series: Observed, size: int | None = None, diagnostics: bool = False
) -> Iterator[Results]:
    """The results of `run`, piece by piece as they are found; `options` are levels, history and remat_every."""
    size = -(-len(series.values) // _PROGRESS_CHUNKS) if size is None else size
    lineage = start_lineage(state) if diagnostics else None
    for start in range(0, len(series.values), size):
        part = slice(start, start + size)
        y, rows = jax.tree.map(lambda a, part=part: a[part], (series.values, series.inputs))
        piece = _scan(filter_, *options, key_steps, state, y, rows, lineage)
        state = jax.block_until_ready(piece.final)
        lineage = piece.diagnostics.lineage if diagnostics else None
        yield piece


def join(found: Iterable[Results]) -> Results:
    """The results of one run from those of its pieces; only the last state and lineage are kept."""
    rows: list[Any] = []
    none: Any = None
    for piece in found:
        diagnostics = None if piece.diagnostics is None else piece.diagnostics._replace(lineage=none)
        rows.append(piece._replace(final=none, levels=none, diagnostics=diagnostics))
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *rows)
    if piece.diagnostics is not None:
        joined = joined._replace(diagnostics=joined.diagnostics._replace(lineage=piece.diagnostics.lineage))
    return joined._replace(final=piece.final, levels=piece.levels)


def check_filter(filter_: Any) -> Filter:
    """The filter; raises if it is not a filter."""
    if not isinstance(filter_, Filter):
        hint = "The arguments are (key, filter, y)."
        if isinstance(filter_, StateSpaceModel):
            hint = "Build one from the model."
        elif isinstance(filter_, KnownTheta):
            hint = "It runs inside of one: epf.smc2_filter(model, 1000, max_steps=len(y), inner=...)."
        elif callable(filter_):
            hint = "Call it with a model; epf.pmmh and epf.particle_gibbs run by themselves, epf.pmmh(key, model, y)."
        raise TypeError(
            f"filter_: expected a filter such as epf.extended_parameter_filter(model, num_particles=1000), got "
            f"{type(filter_).__name__}. {hint}"
        )
    return filter_


def check_remat(remat_every: Any) -> None:
    """Raise if `remat_every` is not a number of steps."""
    if remat_every is not None:
        check_whole_number("remat_every", remat_every, hint="The square root of the number of steps is a good start.")


def check_levels(levels: Any) -> tuple[float, ...]:
    """The quantile levels as floats."""
    try:
        levels = tuple(float(level) for level in levels)
    except (TypeError, ValueError) as error:
        raise TypeError(f"levels: expected a tuple of numbers such as (0.05, 0.5, 0.95), got {levels!r}.") from error
    if not all(0.0 < level < 1.0 for level in levels):
        raise ValueError(f"levels: expected quantile levels strictly between 0 and 1, got {levels}.")
    return levels


def check_room(filter_: Filter, num_steps: int, before: int | Array = 0) -> None:
    """Raise if there are more observations than the filter can keep."""
    if filter_.max_steps is None or isinstance(before, jax.core.Tracer) or before + num_steps <= filter_.max_steps:
        return
    raise ValueError(
        f"y: {num_steps} observations after {int(before)} earlier ones are more than the {filter_.max_steps} that this "
        f"filter has room for. Build it with max_steps={int(before) + num_steps} or more."
    )


def warn_of_no_estimate(filter_: Filter, num_steps: int, before: int | Array = 0) -> None:
    """Warn if a series ends before the filter estimates theta for the first time."""
    if not filter_.waits or isinstance(before, jax.core.Tracer) or int(before) + num_steps >= filter_.waits:
        return
    warnings.warn(
        f"y: this filter gathers {filter_.waits} observations before it estimates theta, and has seen "
        f"{int(before) + num_steps}. Build it with a shorter wait=..., or take a filter that gives a posterior, such "
        "as epf.extended_parameter_filter.",
        RuntimeWarning,
        stacklevel=frames_to_user(),
    )
