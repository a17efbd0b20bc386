r"""Smoothing: the law of all states given the whole series, :math:`p(x_{0:T} \mid y_{1:T})`.

A filter's states are given y_1:t, and the paths of its particles have coalesced. So paths are drawn again, each for its
own theta:

    1. theta   drawn from the last particles by their weights, evenly
    2. path    if the model is linear and Gaussian in x, drawn exactly from :math:`p(x_{0:T} \mid y_{1:T}, \theta)`
               (`linear_paths.py`); otherwise a first path, then sweeps of conditional SMC with ancestor sampling
               (`conditional_smc.py`), which leave that law invariant (Lindsten, Jordan and Schön 2014)

The law of theta is the filter's. Sweeps are right once they have forgotten the first path; the share of paths that they
renewed at every t shows whether they have. Every sweep reads the whole series, so the cost grows with it.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from tqdm.auto import tqdm

from epf_jax.core.checks import check_flag, check_key, check_whole_number, frames_to_user
from epf_jax.core.naming import component_names
from epf_jax.core.platforms import full_precision
from epf_jax.core.random import stream
from epf_jax.exact.linear_paths import draw_linear_path
from epf_jax.filters import Filter, FilterState
from epf_jax.models.observed import observed_series
from epf_jax.models.state_space import StateSpaceModel, seen
from epf_jax.models.waiting import built_for
from epf_jax.particles.conditional_smc import first_path, redraw_whole_path
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.proposals import Proposal, check_proposal, why_not_kalman
from epf_jax.particles.resampling import spread_ancestors
from epf_jax.particles.weights import uniform_log_weights
from epf_jax.running.export import STATE, stamps, tidy
from epf_jax.running.forecast import check_particles, model_of
from epf_jax.running.records import Summary, summarise
from epf_jax.running.run import DEFAULT_LEVELS, check_levels

_MOST_NUMBERS = 2e7  # of all paths that are drawn at once: their particles, 80 MiB and as much again for ancestors
_PIECES = 20  # between which a progress bar moves
_LEAST_RENEWED = 0.98  # of the paths, at every t: a few old ones are far out, and spoil sds and outer quantiles


class Smoothed(NamedTuple):
    """The states given the whole series.

    Attributes:
        x: summary of x_1 .. x_T given y_1:T, a row for each observation, as in `Results`.
        paths: D equally likely draws of x_0 .. x_T.
        theta: the parameters of each path.
        renewed: the share of paths that the sweeps drew anew, for x_0 .. x_T. It should be near 1, and is 1 if paths
            are drawn exactly.
        t: the time indices of x.
        levels: the quantile levels of x.
        names: of the state's numbers, as the model names them; only those are drawn.
    """

    x: Summary
    paths: Float[Array, "D T+1 *x"]
    theta: Any
    renewed: Float[Array, " T+1"]
    t: Int[Array, " T"]
    levels: Float[Array, " Q"]
    names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """How many paths of how many states, without the arrays."""
        return f"<Smoothed: {len(self.paths)} paths of {len(self.t)} observations>"

    def to_pandas(self, series: Any = None) -> Any:
        """A tidy `pandas.DataFrame`: a row for each time and component of x given all observations.

        Args:
            series: what `epf.from_table` gave, whose time stamps then stand in a column `time`.

        Returns:
            Columns t, variable (x, or x[0], x[1], ..., or the model's names of them), mean, sd, and one for each
            quantile level.
        """
        along = {"t": np.asarray(self.t)}
        if series is not None:
            along["time"] = stamps(len(self.t), len(self.t), series)
        table = tidy(along, "variable", [(STATE, *map(np.asarray, self.x))], self.levels)
        names = component_names(STATE, self.x.mean.shape[1:])
        return table.replace({"variable": dict(zip(names, self.names, strict=False))})

    def plot(
        self, y: Any = None, *, results: Any = None, on_state: bool | None = None, title: str | None = None
    ) -> Any:
        """The states as a matplotlib figure, with the data, and a run's filtered means: see `epf.plots`."""
        from epf_jax.plots import plot_smoothed

        return plot_smoothed(self, y, results=results, on_state=on_state, title=title)


def smooth(
    key: PRNGKeyArray,
    filter_: Filter | StateSpaceModel,
    state: FilterState,
    y: Any,
    *,
    inputs: Any = None,
    num_paths: int = 200,
    num_particles: int = 50,
    num_sweeps: int = 20,
    proposal: Proposal | None = None,
    levels: tuple[float, ...] = DEFAULT_LEVELS,
    progress: bool = False,
) -> Smoothed:
    """The states x_0 .. x_T given all observations: paths drawn for thetas of the posterior.

    Args:
        key: a JAX random key.
        filter_: the filter that made the state, or its model.
        state: the state after the last observation: `results.final` of a filter or of chains. (In `online_em` all
            particles have one theta, the estimate.)
        y: all observations of the state, as they were given to `epf.run`; NaN is missing.
        inputs: their inputs, as they were given to `epf.run`.
        num_paths: D, each with its own theta. The Monte Carlo error of the mean of x_t is its sd / sqrt(D).
        num_particles: the number of particles of every sweep, at least two.
        num_sweeps: the number of sweeps for every path.
        proposal: how the sweeps draw states. By default, paths are drawn exactly without sweeps if the model is linear
            and Gaussian in x. Otherwise `epf.fully_adapted(model)` if the model allows it, or `epf.bootstrap()`.
        levels: quantile levels of the summary.
        progress: whether to show a progress bar.
    """
    key_theta, key_paths = jax.random.split(stream(check_key(key)))
    call = "epf.smooth(key, filter, state, y)"
    model = model_of(filter_, state, call)
    check_whole_number("num_paths", num_paths, hint="A few hundred are a good start.")
    check_whole_number("num_particles", num_particles, least=2, hint="The path is one of them; fifty is a good start.")
    check_whole_number("num_sweeps", num_sweeps, hint="Twenty are a good start.")
    check_flag("progress", progress)
    levels = check_levels(levels)
    y, rows = observed_series(model, y, inputs)[:2]
    model = seen(model, rows)
    check_particles(model.shapes, state, call)
    if proposal is not None:
        proposal = built_for(proposal, rows)
        check_proposal(proposal, model)
    _check_all_seen(state, len(y))

    chosen = spread_ancestors(key_theta, state.log_weights, num_paths)
    theta = jax.tree.map(lambda leaf: leaf[chosen], state.theta)
    keys = jax.random.split(key_paths, num_paths)
    path = _path_of(model, proposal, num_particles, num_sweeps)
    n = max(1, model.shapes.x.size)
    size = _at_once(num_paths, (len(y) + 1) * n * max(num_particles, 4 * n), progress)
    paths, renewed = _in_pieces(lambda keys, theta: _draw(path, keys, theta, y, rows), keys, theta, size, progress)
    _warn_of_old_paths(renewed)
    x = _summary(levels, paths[:, 1:])
    t, levels_kept = 1 + jnp.arange(len(y)), jnp.asarray(levels, renewed.dtype)
    return Smoothed(x, paths, theta, renewed, t, levels_kept, tuple(model.state_names))


@lru_cache(maxsize=64)
def _path_of(model: StateSpaceModel, proposal: Proposal | None, num_particles: int, num_sweeps: int) -> Callable:
    """`path(key, theta, y, rows) -> x, renewed` for one theta; the same object for the same parts, so compiled once."""
    if proposal is None and not why_not_kalman(model):
        return lambda key, theta, y, rows: (draw_linear_path(key, model, theta, y, rows), jnp.ones(len(y) + 1, bool))
    parts = (model, default_proposal(model) if proposal is None else proposal, num_particles)

    def by_sweeps(key, theta, y, rows):
        key_first, key_sweeps = jax.random.split(key)
        x = first_path(key_first, *parts, theta, y, rows)

        def sweep(carry, key):
            x, renewed = carry
            redrawn = redraw_whole_path(key, *parts, theta, x, y, rows)
            return (redrawn.x, renewed | redrawn.renewed), None

        return jax.lax.scan(sweep, (x, jnp.zeros(len(x), bool)), jax.random.split(key_sweeps, num_sweeps))[0]

    return by_sweeps


@partial(jax.jit, static_argnums=0)
def _draw(path, keys, theta, y, rows):
    with full_precision():
        return jax.vmap(path, in_axes=(0, 0, None, None))(keys, theta, y, rows)


@partial(jax.jit, static_argnums=0)
def _summary(levels, paths):
    weights = uniform_log_weights(len(paths))
    return jax.vmap(lambda x: summarise(x, weights, levels))(jnp.swapaxes(paths, 0, 1))


def _in_pieces(draw, keys, theta, size, progress):
    """`draw` for many paths, piece by piece, with one program; the last piece is filled up with paths of the first."""
    num = len(keys)
    order = np.resize(np.arange(num), (-(-num // size), size))
    paths, renewed = [], []
    with tqdm(total=num, unit="path", desc="smoothing", disable=not progress) as bar:
        for piece in order:
            x, new = jax.block_until_ready(draw(*jax.tree.map(lambda leaf, piece=piece: leaf[piece], (keys, theta))))
            paths.append(x)
            renewed.append(new)
            bar.update(min(size, num - bar.n))
    return jnp.concatenate(paths)[:num], jnp.mean(jnp.concatenate(renewed)[:num], axis=0)


def _at_once(num_paths: int, numbers_each: float, progress: bool) -> int:
    most = max(1, int(_MOST_NUMBERS / numbers_each))
    return min(num_paths, most, -(-num_paths // _PIECES) if progress else num_paths)


def _check_all_seen(state: FilterState, num_steps: int) -> None:
    if isinstance(state.t, jax.core.Tracer):
        raise TypeError(
            "state: smooth cannot be traced by jax.jit or jax.vmap, because it checks its draws. Call it outside."
        )
    seen = int(state.t)
    if seen != num_steps:
        raise ValueError(
            f"y: expected all {seen} observations that the state has seen, got {num_steps}. Give the whole series that "
            "was filtered."
        )


def _warn_of_old_paths(renewed: Any) -> None:
    """Warn if paths were hardly renewed."""
    least = np.asarray(renewed)
    if least.min() < _LEAST_RENEWED:
        warnings.warn(
            f"At t = {int(np.argmin(least))} only {least.min():.0%} of the paths were drawn anew by the sweeps, so "
            "the states there may be wrong. Give smooth more num_particles or num_sweeps, or a proposal that looks at "
            "the data (epf.laplace, epf.guided).",
            RuntimeWarning,
            stacklevel=frames_to_user(),
        )
