"""Forecasts: every particle goes on with its own theta, without observations.

The quantiles contain the uncertainty about theta, about the present state and about future noise. The cost is
`num_steps` draws for each particle.
"""

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from epf_jax.core.checks import brief, check_key, check_whole_number, frames_to_user
from epf_jax.core.naming import component_names
from epf_jax.core.platforms import full_precision
from epf_jax.core.random import stream
from epf_jax.data.series import STEP, Series
from epf_jax.data.tables import count_of
from epf_jax.filters import Filter, FilterState
from epf_jax.filters.state import check_is_state
from epf_jax.models.state_space import Shapes, StateSpaceModel, check_rows, input_rows
from epf_jax.particles.one_step_ahead import advance
from epf_jax.running.export import STATE, tidy
from epf_jax.running.records import Summary, summarise
from epf_jax.running.run import DEFAULT_LEVELS, check_levels


class Forecast(NamedTuple):
    """The predictive distribution of the next H steps.

    Attributes:
        x: summary of the states x_{t+1} .. x_{t+H} given y_1:t.
        y: summary of the observations y_{t+1} .. y_{t+H} given y_1:t.
        t: their time indices.
        levels: the quantile levels of the summaries.
        dt: the time before each step if the inputs contain it, as those of `epf.from_table` do; or None.
    """

    x: Summary
    y: Summary
    t: Int[Array, " H"]
    levels: Float[Array, " Q"]
    dt: Float[Array, " H"] | None = None

    def __repr__(self) -> str:
        """What is ahead, without the arrays."""
        return f"<Forecast of {len(self.t)} observations, t = {int(self.t[0])} to {int(self.t[-1])}>"

    def to_pandas(self, series: Any = None) -> Any:
        """A tidy `pandas.DataFrame`: a row for each step ahead and component of y and x.

        Args:
            series: what `epf.from_table` gave, up to where the forecast begins: its time stamps, if it has two and
                more, go on in a column `time`, and what is observed has the names of its columns, unless one is a
                state's.

        Returns:
            Columns t, variable (y, or y[0], y[1], ..., and x likewise), mean, sd, and one for each quantile level.
        """
        summaries = [(name, *map(np.asarray, summary)) for name, summary in (("y", self.y), (STATE, self.x))]
        along, names = {"t": np.asarray(self.t)}, component_names("y", self.y.mean.shape[1:])
        if series is not None:
            if not isinstance(series, Series):
                raise TypeError(
                    f"series: expected what epf.from_table(table, ..., time='date') gave, got {brief(series)}."
                )
            if series.times is not None and len(series.times) > 1:
                along["time"] = series.stamps_ahead(len(self.t), self.dt)
        table = tidy(along, "variable", summaries, self.levels)
        if series is None or len(series.columns) != len(names) or not set(series.columns).isdisjoint(table["variable"]):
            return table
        return table.replace({"variable": dict(zip(names, series.columns, strict=True))})

    def plot(self, y: Any = None, *, truth: Any = None, title: str | None = None, num_past: int | None = None) -> Any:
        """The fan chart as a matplotlib figure, after the observations y so far, if given: see `epf.plots`."""
        from epf_jax.plots import plot_forecast

        return plot_forecast(self, y, truth=truth, title=title, num_past=num_past)


def forecast(
    key: PRNGKeyArray,
    filter_: Filter | StateSpaceModel,
    state: FilterState,
    num_steps: int,
    *,
    inputs: Any = None,
    levels: tuple[float, ...] = DEFAULT_LEVELS,
) -> Forecast:
    """Forecast the steps after `state`: every particle is simulated forward with its own theta.

    Args:
        key: a JAX random key.
        filter_: the filter that made the state, or its model.
        state: the state to start from: `results.final`, or the state of a live filter.
        num_steps: H, the number of steps.
        inputs: the inputs of these steps (any pytree of arrays with H rows, or the result of `epf.from_table`); by
            default the time index, going on from the state's.
        levels: quantile levels of the summaries.
    """
    key = check_key(key)
    call = "epf.forecast(key, filter, state, num_steps)"
    model = model_of(filter_, state, call)
    check_whole_number("num_steps", num_steps, hint="It is the number of steps ahead.")
    rows = input_rows(inputs, num_steps, state.t + 1, model=model)
    check_particles(check_rows(model, rows), state, call)
    levels = check_levels(levels)
    x, y = _forecast(model, levels, key, state, rows)
    _warn_of_lost(x, y, state)
    dt = rows.get(STEP) if isinstance(rows, dict) else None
    return Forecast(x, y, state.t + 1 + jnp.arange(num_steps), jnp.asarray(levels, state.log_weights.dtype), dt)


@partial(jax.jit, static_argnums=(0, 1))
def _forecast(model, levels, key, state, rows):
    def ahead(x, row):
        key, u = row
        x, y = advance(key, model, state.theta, x, u)
        return x, (summarise(x, state.log_weights, levels), summarise(y, state.log_weights, levels))

    keys = jax.random.split(stream(key), len(jax.tree.leaves(rows)[0]))
    with full_precision():
        return jax.lax.scan(ahead, state.x, (keys, rows))[1]


def _warn_of_lost(x: Summary, y: Summary, state: FilterState) -> None:
    """Warn if the particles become NaN or infinite."""
    means = [x.mean, y.mean]
    if any(isinstance(mean, jax.core.Tracer) for mean in means):
        return
    lost = np.any([~np.isfinite(np.asarray(mean)).reshape(len(mean), -1).all(axis=1) for mean in means], axis=0)
    if lost.any():
        warnings.warn(
            f"The forecast is NaN or infinite at t = {int(state.t) + 1 + int(np.argmax(lost))}, the first of "
            f"{count_of(int(lost.sum()), 'such step')}. Look for a transition that is NaN for an input (a negative "
            "time step under a square root), or that explodes.",
            RuntimeWarning,
            stacklevel=frames_to_user(),
        )


def model_of(filter_: Filter | StateSpaceModel, state: FilterState, call: str) -> StateSpaceModel:
    """The model of the filter; raises for what is none, and for states of many runs."""
    model = filter_.model if isinstance(filter_, Filter) else filter_
    if not isinstance(model, StateSpaceModel):
        raise TypeError(
            f"filter_: expected the filter that made the state, or its model, got {type(model).__name__}. The "
            f"arguments are those of {call}."
        )
    check_is_state(state, call)
    if jnp.ndim(state.log_weights) != 1:
        raise ValueError(
            f"state: expected the state of one run, got those of {len(state.log_weights)}. Take one of them, "
            "results.one(0).final (of a panel's shorter series that is not where it ends, but where the longest does: "
            "run it alone)."
        )
    return model


def check_particles(shapes: Shapes, state: FilterState, call: str) -> None:
    """Raise for a state whose particles are of another model than that of the shapes."""
    for name, of_model, of_particles in (("theta", shapes.theta, state.theta), ("x", shapes.x, state.x)):
        expected = jax.tree.map(lambda leaf: leaf.shape, of_model)
        got = jax.tree.map(lambda leaf: jnp.shape(leaf)[1:], of_particles)
        if expected != got:  # a filter with theta known has no theta
            raise ValueError(
                f"state: expected particles with the model's {name}, of shapes {expected}, got {got}. Give the "
                f"filter that made the state: {call}."
            )
