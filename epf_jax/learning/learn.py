r"""`learn`: the posterior of a model's parameters given a series, by the method that fits, with how far it may be off.

    1. route      by the model's structure: exact likelihoods where Kalman's filter gives them, else particle filters'
    2. explore    from the prior, twice, with other random numbers: a fit of the posterior (`exploration`)
    3. certify    fresh draws of both fits, weighed by fresh likelihoods, tell the answer and its error (`certificate`)
    4. try again  with more particles where likelihoods are too noisy, by the next route, or by a fit made anew, until
                  the answer is good enough or the time is up

A stream (`streaming=True`) is filtered by a method of constant cost, whose answer is then compared with that of 1 to 4.
"""

import math
import numbers
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from epf_jax.core import student_mixtures
from epf_jax.core.checks import check_flag, check_key
from epf_jax.data.series import Panel
from epf_jax.learning.learned import MOST_ERROR, Attempt, Best, Learned, learned_from, learned_online
from epf_jax.learning.learned_panel import LearnedPanel
from epf_jax.learning.routes import Route, inner_of, routes_of, streaming_filter, streaming_route_of
from epf_jax.models.observed import Observed, observed_series
from epf_jax.models.state_space import StateSpaceModel, check_is_model, seen, warn_of_slips
from epf_jax.running.certificate import certify
from epf_jax.running.clock import Clock
from epf_jax.running.exploration import MOST_NOISE, MOST_PARTICLES, Explored, explore, explore_with_enough
from epf_jax.running.likelihoods import Likelihoods
from epf_jax.running.run import run

_NUM_STARTS = 2
_MANY_PARTICLES = 1024  # above which another route is taken where there is one


def learn(
    key: PRNGKeyArray,
    model: StateSpaceModel | Any,
    y: Any,
    *,
    inputs: Any = None,
    seconds: float = 60.0,
    streaming: bool = False,
    progress: bool = False,
) -> Learned | Any:
    """Learn a model's parameters from a series: chooses the method, and says how good the answer is.

    Args:
        key: a JAX random key.
        model: the state-space model. For a panel also a function from the name of a series to its model.
        y: observations, time along the first axis; NaN is missing. What `epf.from_table` makes goes in as it is. An
            `epf.panel` is learned series by series; series of similar lengths and one model share a compiled program.
        inputs: one row per observation (any pytree of arrays with T rows); the time index by default.
        seconds: the most to spend on a series, compilation included. Most answers take a few.
        streaming: whether `filter_` must have memory and cost per observation that never grow.
        progress: whether to show a progress bar.

    Returns:
        `Learned`: `print` it for a table of the parameters with their errors, and of what was done. Ctrl-C returns the
        best answer so far. For a panel, `LearnedPanel`: `print` it for one table; `learned["name"]` is one series'.
    """
    key = check_key(key)
    if isinstance(y, Panel):
        options = {"seconds": seconds, "streaming": streaming, "progress": progress}
        return _learn_each(key, model, y, inputs, options)
    check_is_model(model)
    check_flag("streaming", streaming)
    check_flag("progress", progress)
    if model.parameters.dim == 0:
        raise ValueError("model: its prior is empty, so that there is nothing to learn. Use epf.bootstrap_filter.")
    series = observed_series(model, y, inputs)
    model = seen(model, series.inputs)
    warn_of_slips(model)
    clock = clock_of(seconds, progress)
    try:
        return (_learn_online if streaming else _learn)(key, model, series, clock)
    finally:
        clock.close()


def _learn_each(key: PRNGKeyArray, model: Any, panel: Panel, inputs: Any, options: dict[str, Any]) -> LearnedPanel:
    """An answer for each series of a panel."""
    if inputs is not None:
        raise ValueError("inputs: a panel brings its own. Name their columns, epf.panel(..., inputs=...).")
    model_of = (lambda name: model) if isinstance(model, StateSpaceModel) or not callable(model) else model
    found = {}
    for i, (name, length) in enumerate(zip(panel.names, panel.lengths, strict=True)):
        rows = None if panel.inputs is None else {u: values[i, :length] for u, values in panel.inputs.items()}
        key_series, y = jax.random.fold_in(key, i), panel.y[i, :length]
        try:
            found[name] = learn(key_series, model_of(name), y, inputs=rows, **options)
        except (TypeError, ValueError) as error:
            error.add_note(f"This is of the series {name!r}.")
            raise
    return LearnedPanel(found)


def update(
    key: PRNGKeyArray, learned: Learned, y: Any, *, inputs: Any = None, seconds: float = 60.0, progress: bool = False
) -> Learned:
    """What `learn` would say of the series with more observations at its end, from where it stands: see `Learned`."""
    more = observed_series(learned.model, y, inputs, first=len(learned.y) + 1)
    parts = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), (learned.y, learned.inputs), tuple(more[:2]))
    clock = clock_of(seconds, progress)
    try:
        return _learn(check_key(key), learned.model, Observed(*parts), clock, learned.explored)
    finally:
        clock.close()


def clock_of(seconds: Any, progress: bool) -> Clock:
    """The clock of a budget, or an error where it is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not float(seconds) > 0:
        raise ValueError(f"seconds: expected a number above zero, got {seconds!r}. Give the most seconds to spend.")
    return Clock(float(seconds), progress)


def _learn(
    key: PRNGKeyArray, model: StateSpaceModel, series: Observed, clock: Clock, begin: Explored | None = None
) -> Learned:
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    attempts: list[Attempt] = []
    best: Best | None = None
    explored: list[Explored] = []
    tries = [Try(route, _first_num_particles(series, route), begin) for route in routes_of(model)]
    while tries and not clock.stopped:
        tried, *tries = tries
        try:
            explored, likelihood, problem = _explore(rng, model, tried, series, clock, bool(tries))
            if problem:
                attempts.append(Attempt(tried.route.method, problem, False))
                continue
            if clock.stopped:
                break
            found = certify(rng, likelihood, _both(explored), len(series.values), clock)
        except KeyboardInterrupt:
            if not explored:
                raise
            clock.stopped = True
            break
        attempts.append(Attempt.of(tried.route.method, likelihood, found))
        if best is None or (not found.holds, found.error) < (not best.found.holds, best.found.error):
            best = Best(found, tried.route, likelihood)
        if (found.holds and found.error <= MOST_ERROR) or clock.is_up():
            break
        if 0 < likelihood.num_particles < MOST_PARTICLES:
            tries.append(Try(tried.route, 4 * likelihood.num_particles, _furthest(explored)[0]))
    return learned_from(model, series, best, explored, attempts, clock, int(rng.integers(2**31)), update)


class Try(NamedTuple):
    """A route, how many particles a theta it begins with, and the exploration that it goes on from, if any."""

    route: Route
    num_particles: int
    begin: Explored | None


def _explore(
    rng: np.random.Generator, model: StateSpaceModel, tried: Try, series: Observed, clock: Clock, has_other: bool
) -> tuple[list[Explored], Likelihoods, str]:
    """Independent fits, likelihoods with little enough noise, and why another route is better, if it is."""
    route, num_particles, begin = tried
    limit = _MANY_PARTICLES if has_other else math.inf
    found, likelihood = explore_with_enough(
        rng, model, partial(inner_of, model, route), num_particles, series, clock, begin, limit=limit
    )
    if has_other and found.noise > MOST_NOISE and not clock.is_up():
        size, variance = likelihood.num_particles, found.noise
        problem = f"{size} particles a theta leave a variance of {variance:.1f} in log-likelihoods"
        return [found], likelihood, problem
    explored = [found]
    for _ in range(_NUM_STARTS - 1):
        if clock.is_up():
            break
        try:
            explored.append(explore(rng, model, likelihood, len(series.values), clock))
        except KeyboardInterrupt:
            clock.stopped = True
    return explored, likelihood, ""


def _furthest(explored: list[Explored]) -> list[Explored]:
    """Those that came furthest."""
    furthest = max((found.num_steps, found.power) for found in explored)
    return [found for found in explored if (found.num_steps, found.power) == furthest]


def _both(explored: list[Explored]) -> student_mixtures.Mixture:
    """The fits of all starts that came furthest, as one mixture."""
    last = _furthest(explored)
    return student_mixtures.pooled([found.mixture for found in last], [1.0 / len(last)] * len(last))


def _first_num_particles(series: Observed, route: Route) -> int:
    """Particles of each inner filter to begin with: the noise of log-likelihoods grows with the series."""
    if route.exact:
        return 0
    return int(np.clip(2 ** round(math.log2(max(len(series.values), 1) / 2)), 64, 256))


def _learn_online(key: PRNGKeyArray, model: StateSpaceModel, series: Observed, clock: Clock) -> Learned:
    """The answer of a filter whose cost never grows, judged by that of `_learn`."""
    key_filter, key_certificate = jax.random.split(key)
    route = streaming_route_of(model)
    filter_ = streaming_filter(model)
    clock.tell(f"filtering by {route.method}")
    results = run(key_filter, filter_, series)
    return learned_online(route, filter_, results, _learn(key_certificate, model, series, clock), clock)
