"""What `learn` returns: the posterior of theta, how far it may be off, and what was done for it."""

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from epf_jax.core import student_mixtures
from epf_jax.core.importance import LARGEST_TAIL, moments
from epf_jax.core.naming import scalars
from epf_jax.filters import Filter, FilterState, smc2_filter
from epf_jax.learning.learned_table import at_level as _at_level
from epf_jax.learning.learned_table import table_of, verdict_of
from epf_jax.learning.routes import Route, StreamingRoute, inner_of, routes_of
from epf_jax.models.flat_theta import numbers_in_a_row
from epf_jax.models.observed import Observed
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.offline.smoothing import Smoothed, smooth
from epf_jax.plots.posterior import plot_learned
from epf_jax.running.certificate import Certificate
from epf_jax.running.clock import Clock
from epf_jax.running.exploration import Explored
from epf_jax.running.export import library, state_to_arviz
from epf_jax.running.forecast import Forecast, forecast
from epf_jax.running.likelihoods import Evaluated, Likelihoods
from epf_jax.running.results import Results, Summary
from epf_jax.running.run import DEFAULT_LEVELS, run

MOST_ERROR, MOST_SD_ERROR = 0.2, 0.2  # in posterior sds, and as a share of the sd, of an answer that is trusted
_NUM_THETAS = 512


class Attempt(NamedTuple):
    """Something that was tried.

    Attributes:
        method: in words.
        outcome: in words.
        taken: whether the answer is from it.
    """

    method: str
    outcome: str
    taken: bool

    @classmethod
    def of(cls, method: str, likelihood: Likelihoods, found: Certificate) -> "Attempt":
        """What came of a certificate."""
        particles = f", {likelihood.num_particles:,} particles a theta" if likelihood.num_particles else ""
        refits = f", fitted anew {found.num_refits} times" if found.num_refits else ""
        outcome = f"{len(found.weights):,} draws of theta worth {found.worth:,.0f}{particles}{refits}"
        return cls(method, outcome, True)


class Best(NamedTuple):
    """The best certificate, with the route and the likelihoods that gave it."""

    found: Certificate
    route: Route
    likelihood: Likelihoods


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Learned:
    """A posterior with its own error.

    Attributes:
        theta: summary of the parameters given the whole series: `.mean`, `.sd`, `.quantiles`.
        x: summary of the state at the last observation.
        levels: those of the quantiles.
        error: how far each mean is estimated to be off, in posterior standard deviations; like theta.
        sd_error: how far each standard deviation is, as a share of it.
        trusted: whether every mean is within .2 sds and every sd within a fifth, by these estimates.
        log_evidence: log p(y).
        log_evidence_error: its standard error.
        method: what was done, in words.
        why: why this method was chosen.
        attempts: what was tried, in order.
        notes: what else should be known, in words.
        seconds: how long it took.
        model: the model.
        y: the series.
        inputs: its inputs, a row for each observation.
        draws: the posterior as weighted draws of theta and of the last state, in the form of a filter's state.
        explored: the fit to them, where an update begins.
        best: the certificate that they are of, with the route to it; None where there is none.
        seed: of the random numbers of `results`.
        make_filter: makes `filter_`.
        make_results: makes `results` from it.
        learn_on: what `update` calls.
    """

    theta: Summary
    x: Summary
    levels: np.ndarray
    error: Any
    sd_error: Any
    trusted: bool
    log_evidence: float
    log_evidence_error: float
    method: str
    why: str
    attempts: tuple[Attempt, ...]
    notes: tuple[str, ...]
    seconds: float
    model: StateSpaceModel
    y: Any
    inputs: Any
    draws: FilterState
    explored: Explored
    best: Best | None
    seed: int
    make_filter: Callable[[], Filter]
    make_results: Callable[[Filter], Results]
    learn_on: Callable[..., "Learned"]

    def __repr__(self) -> str:
        """The table of the parameters, and what was done."""
        return "\n".join([*table_of(self), *verdict_of(self)])

    @cached_property
    def filter_(self) -> Filter:
        """A filter that goes on from here."""
        return self.make_filter()

    @cached_property
    def results(self) -> Results:
        """`Results` at every t, of a run of `filter_` over the series, made when they are first asked for."""
        return self.make_results(self.filter_)

    @property
    def state(self) -> FilterState:
        """The filter's state after the last observation, for `filter_.step`."""
        return self.results.final

    def update(
        self, key: PRNGKeyArray, y: Any, *, inputs: Any = None, seconds: float = 60.0, progress: bool = False
    ) -> "Learned":
        """Learn from more observations, which come after these: from this posterior on, and certified again.

        Args:
            key: a JAX random key.
            y: the observations that came since.
            inputs: theirs.
            seconds: the most to spend.
            progress: whether to show a progress bar.
        """
        return self.learn_on(key, self, y, inputs=inputs, seconds=seconds, progress=progress)

    def forecast(self, key: PRNGKeyArray, num_steps: int, *, inputs: Any = None) -> Forecast:
        """What the steps to come will be like: see `epf.forecast`."""
        return forecast(key, self.model, self.draws, num_steps, inputs=inputs)

    def smooth(self, key: PRNGKeyArray, **options: Any) -> Smoothed:
        """The states in hindsight, given the whole series: see `epf.smooth`."""
        return smooth(key, self.model, self.draws, self.y, inputs=self.inputs, **options)

    def plot(self, *, truth: Any = None, title: str | None = None) -> Any:
        """The posterior of each parameter with its prior behind, as a matplotlib figure: see `epf.plots`."""
        return plot_learned(self, truth=truth, title=title)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row for each number of theta: mean, sd, quantiles, and their errors."""
        columns = {
            "mean": scalars(self.theta.mean),
            "sd": scalars(self.theta.sd),
            **{f"{100 * level:g}%": _at_level(self, level) for level in self.levels},
            "error": scalars(self.error),
            "sd_error": scalars(self.sd_error),
        }
        names = list(columns["mean"])
        rows = {title: [float(column[name]) for name in names] for title, column in columns.items()}
        return library("pandas").DataFrame(rows, index=names)

    def to_xarray(self) -> Any:
        """An `xarray.Dataset` of `results`, over time."""
        return self.results.to_xarray()

    def to_arviz(self, *, seed: int = 0) -> Any:
        """Equally weighted draws of the posterior, and the scores of `results`, for ArviZ: see `Results.to_arviz`."""
        one_run = jax.tree.map(lambda leaf: leaf[None], self.draws._replace(S=()))
        return state_to_arviz(one_run, self.results, self.y, seed)


def learned_from(
    model: StateSpaceModel,
    series: Observed,
    best: Best | None,
    explored: list[Explored],
    attempts: list[Attempt],
    clock: Clock,
    seed: int,
    learn_on: Callable[..., Learned],
) -> Learned:
    """The answer of a certificate, or, where Ctrl-C left none, of how far the exploration came."""
    notes = []
    length = len(series.values)
    if best is None:
        last = explored[-1]
        of_theta = moments(last.draws.theta, last.weights)
        unknown = np.full_like(of_theta.error, np.inf)
        of_theta = of_theta._replace(error=unknown, sd_error=unknown)
        log_evidence, log_evidence_error, trusted = np.nan, np.inf, False
        notes.append(f"Stopped early: this answer knows of {last.num_steps} of {length} observations.")
    else:
        found = best.found
        last = Explored(
            student_mixtures.fit(found.draws.z, found.weights), found.draws, found.weights, length, 1.0, 0.0
        )
        of_theta = found.of_theta
        log_evidence, log_evidence_error = found.log_evidence, found.log_evidence_error
        trusted = found.holds and is_small(of_theta.error, MOST_ERROR) and is_small(of_theta.sd_error, MOST_SD_ERROR)
        notes += _notes(found, last)
        if not trusted:
            why = "the time was up" if clock.is_up() else "no method that fits the model did better"
            notes.append(f"The answer is not good enough to be trusted, and {why}. Try more seconds=...")
    seen = _seen(model, last.draws, last.weights, log_evidence, length)
    theta, x = (_summary(part, last.weights) for part in (seen.theta, seen.x))
    route = best.route if best else routes_of(model)[0]
    num_particles = best.likelihood.num_particles if best else _NUM_THETAS // 2
    return Learned(
        theta=theta,
        x=x,
        levels=np.asarray(DEFAULT_LEVELS),
        error=_like_theta(model, of_theta.error),
        sd_error=_like_theta(model, of_theta.sd_error),
        trusted=bool(trusted),
        log_evidence=log_evidence,
        log_evidence_error=log_evidence_error,
        method=route.method,
        why=route.why,
        attempts=tuple(attempts),
        notes=tuple(notes),
        seconds=clock.spent(),
        model=model,
        y=series.values,
        inputs=series.inputs,
        draws=seen,
        explored=last,
        best=best,
        seed=seed,
        make_filter=partial(filter_going_on, model, route, num_particles, length),
        make_results=partial(_run, seed, series),
        learn_on=learn_on,
    )


def learned_online(
    route: StreamingRoute, filter_: Filter, results: Results, certified: Learned, clock: Clock
) -> Learned:
    """The answer of a filter of constant cost, with its distance from a certified one as its error."""
    theta, x = (jax.tree.map(lambda leaf: np.asarray(leaf)[-1], part) for part in (results.theta, results.x))

    def off(mean, certified_mean, sd, error):
        return np.abs(mean - certified_mean) / np.where(sd > 0, sd, 1.0) + error

    def sd_off(sd, certified_sd, error):
        return np.abs(sd / np.where(certified_sd > 0, certified_sd, 1.0) - 1.0) + error

    error = jax.tree.map(off, theta.mean, certified.theta.mean, certified.theta.sd, certified.error)
    sd_error = jax.tree.map(sd_off, theta.sd, certified.theta.sd, certified.sd_error)
    numbers = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(part)]) for part in (error, sd_error)]
    small = is_small(numbers[0], MOST_ERROR) and is_small(numbers[1], MOST_SD_ERROR)
    log_evidence = float(results.log_evidence[-1])
    notes = list(certified.notes)
    if not small:
        notes.append("The stream's filter is further off than can be trusted: epf.learn without streaming=True is not.")
    return dataclasses.replace(
        certified,
        theta=theta,
        x=x,
        error=error,
        sd_error=sd_error,
        trusted=certified.trusted and small,
        log_evidence=log_evidence,
        log_evidence_error=abs(log_evidence - certified.log_evidence) + certified.log_evidence_error,
        method=route.method,
        why=route.why,
        attempts=(Attempt(route.method, "filtered the series, and was compared with:", True), *certified.attempts),
        notes=tuple(notes),
        seconds=clock.spent(),
        draws=results.final,
        best=None,
        make_filter=lambda: filter_,
        make_results=lambda _: results,
    )


def _run(seed: int, series: Observed, filter_: Filter) -> Results:
    return run(jax.random.key(seed), filter_, series)


def _like_theta(model: StateSpaceModel, numbers: np.ndarray) -> Any:
    """Numbers in a row with theta's structure."""
    return jax.tree.map(np.asarray, numbers_in_a_row(model.parameters).theta(jnp.asarray(numbers)))


def is_small(errors: np.ndarray, most: float) -> bool:
    """Whether no error is larger; NaN is."""
    return bool(np.all(errors <= most))


def _notes(found: Certificate, last: Explored) -> list[str]:
    """What else should be known of a certified posterior."""
    notes = []
    if found.tail > LARGEST_TAIL:
        notes.append("The errors are lower bounds: a few draws carry most of the weight.")
    num = student_mixtures.modes_apart(last.mixture) if found.worth >= 100 else 1
    if num > 1:
        notes.append(f"The posterior has {num} modes that are far apart: look at more than means (`.plot()`).")
    return notes


def _seen(
    model: StateSpaceModel, draws: Evaluated, weights: np.ndarray, log_evidence: float, length: int
) -> FilterState:
    """The weighted draws as particles."""
    theta = jax.vmap(numbers_in_a_row(model.parameters).theta)(jnp.asarray(draws.theta, float))
    with np.errstate(divide="ignore"):
        log_weights = jnp.asarray(np.log(weights), float)
    x = jnp.asarray(draws.x).astype(model.shapes.x.dtype)
    nothing: Any = None
    return FilterState(x, theta, nothing, log_weights, jnp.asarray(log_evidence, float), jnp.asarray(length))


def _summary(particles: Any, weights: np.ndarray) -> Summary:
    """Means, sds and quantiles of every leaf, in double precision."""

    def of(leaf):
        rows = np.asarray(leaf, float).reshape(len(weights), -1)
        found = moments(rows, weights)
        levels = np.stack([_quantiles(column, weights) for column in rows.T]) if rows.shape[1] else np.zeros((0, 0))
        shape = leaf.shape[1:]
        return found.mean.reshape(shape), found.sd.reshape(shape), levels.reshape(*shape, -1)

    structure: Any
    leaves, structure = jax.tree.flatten(particles)
    parts = zip(*map(of, leaves), strict=True)
    return Summary(*(structure.unflatten(part) for part in parts))


def _quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    at = np.searchsorted(reached, np.asarray(DEFAULT_LEVELS) * reached[-1])
    return values[order][np.minimum(at, len(values) - 1)]


def filter_going_on(model: StateSpaceModel, route: Route, num_particles: int, length: int) -> Filter:
    """The filter that goes on from an answer, with room for as many observations again."""
    max_steps = 2 * length + 100
    if route.exact:
        return smc2_filter(model, _NUM_THETAS, max_steps=max_steps, inner=inner_of(model, route, 0))
    return smc2_filter(model, _NUM_THETAS // 2, max_steps=max_steps, num_inner=num_particles, max_inner=num_particles)
