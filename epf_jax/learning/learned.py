"""What `learn` returns: the posterior of theta, how far it may be off, and what was done for it."""

import dataclasses
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from epf_jax.core.naming import scalars
from epf_jax.filters import Filter, FilterState, smc2_filter
from epf_jax.learning import student_mixtures
from epf_jax.learning.certificate import Certificate
from epf_jax.learning.clock import Clock
from epf_jax.learning.exploration import Explored
from epf_jax.learning.importance import LARGEST_TAIL, moments
from epf_jax.learning.likelihoods import Evaluated, Likelihoods
from epf_jax.learning.routes import Route, inner_of, routes_of
from epf_jax.models.flat_theta import numbers_in_a_row
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.running.forecast import Forecast, forecast
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
    _route: Route
    _num_particles: int
    _seed: int

    def __repr__(self) -> str:
        """The table of the parameters, and what was done."""
        return "\n".join([*_table(self), *_verdict(self)])

    @cached_property
    def filter_(self) -> Filter:
        """A filter that goes on from here: SMC^2 with the likelihoods that were chosen."""
        return _filter_of(self.model, self._route, self._num_particles, 2 * len(self.y) + 100)

    @cached_property
    def results(self) -> Results:
        """`Results` at every t, of a run of `filter_` over the series, made when they are first asked for."""
        return run(jax.random.key(self._seed), self.filter_, self.y, inputs=self.inputs)

    @property
    def state(self) -> FilterState:
        """The filter's state after the last observation, for `filter_.step`."""
        return self.results.final

    def forecast(self, key: PRNGKeyArray, num_steps: int, *, inputs: Any = None) -> Forecast:
        """What the steps to come will be like: see `epf.forecast`."""
        return forecast(key, self.model, self.draws, num_steps, inputs=inputs)


def learned_from(
    model: StateSpaceModel,
    y: Any,
    inputs: Any,
    best: tuple[Certificate, Route, Likelihoods] | None,
    explored: list[Explored],
    attempts: list[Attempt],
    clock: Clock,
    seed: int,
) -> Learned:
    """The answer of a certificate, or, where Ctrl-C left none, of how far the exploration came."""
    notes = []
    if best is None:
        last = explored[-1]
        draws, weights, of_theta = last.draws, last.weights, moments(last.draws.theta, last.weights)
        unknown = np.full_like(of_theta.error, np.inf)
        of_theta = of_theta._replace(error=unknown, sd_error=unknown)
        log_evidence, log_evidence_error, trusted = np.nan, np.inf, False
        notes.append(f"Stopped early: this answer knows of {last.num_steps} of {len(y)} observations.")
    else:
        found = best[0]
        draws, weights, of_theta = found.draws, found.weights, found.of_theta
        log_evidence, log_evidence_error = found.log_evidence, found.log_evidence_error
        trusted = found.holds and _is_small(of_theta.error, MOST_ERROR) and _is_small(of_theta.sd_error, MOST_SD_ERROR)
        notes += _notes(found, model)
    if best is not None and not trusted:
        why = "its time was up" if clock.is_up() else "no method that fits the model did better"
        notes.append(f"The answer is not good enough to trust, and {why}. More seconds=... may help.")
    seen = _seen(model, draws, weights, log_evidence, len(y))
    theta, x = (_summary(part, weights) for part in (seen.theta, seen.x))
    like_theta = numbers_in_a_row(model.parameters).theta
    route = best[1] if best else None
    return Learned(
        theta=theta,
        x=x,
        levels=np.asarray(DEFAULT_LEVELS),
        error=jax.tree.map(np.asarray, like_theta(jnp.asarray(of_theta.error))),
        sd_error=jax.tree.map(np.asarray, like_theta(jnp.asarray(of_theta.sd_error))),
        trusted=bool(trusted),
        log_evidence=log_evidence,
        log_evidence_error=log_evidence_error,
        method=route.method if route else "exploration alone",
        why=route.why if route else "",
        attempts=tuple(attempts),
        notes=tuple(notes),
        seconds=clock.spent(),
        model=model,
        y=y,
        inputs=inputs,
        draws=seen,
        _route=route or routes_of(model)[0],
        _num_particles=best[2].num_particles if best else 0,
        _seed=seed,
    )


def _is_small(errors: np.ndarray, most: float) -> bool:
    return bool(np.all(errors <= most))


def _notes(found: Certificate, model: StateSpaceModel) -> list[str]:
    """What else should be known of a certified posterior."""
    notes = []
    if found.tail > LARGEST_TAIL:
        notes.append("The errors are lower bounds: a few draws carry most of the weight.")
    if found.worth >= 100:
        num = student_mixtures.modes_apart(student_mixtures.fit(found.draws.z, found.weights))
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


def _filter_of(model: StateSpaceModel, route: Route, num_particles: int, max_steps: int) -> Filter:
    if route.exact:
        return smc2_filter(model, _NUM_THETAS, max_steps=max_steps, inner=inner_of(model, route, 0))
    return smc2_filter(model, _NUM_THETAS // 2, max_steps=max_steps, num_inner=num_particles, max_inner=num_particles)


def _table(learned: Learned) -> list[str]:
    """A line for every number of theta."""
    parts = [scalars(part) for part in (learned.theta.mean, learned.theta.sd, learned.error)]
    levels = [
        scalars(jax.tree.map(lambda leaf, i=i: leaf[..., i], learned.theta.quantiles))
        for level in (0.05, 0.5, 0.95)
        for i in [int(np.argmin(np.abs(learned.levels - level)))]
    ]
    columns = [*parts[:2], *levels, parts[2]]
    names = list(parts[0])
    width = max([len(name) for name in names] + [9])
    head = f"{'':{width}}" + "".join(f"{title:>10}" for title in ("mean", "sd", "5%", "50%", "95%", "error"))
    rows = [
        f"{name:{width}}"
        + "".join(f"{float(column[name]):>10.4g}" for column in columns[:-1])
        + f"{float(columns[-1][name]):>10.2g}"
        for name in names
    ]
    return [head, *rows]


def _verdict(learned: Learned) -> list[str]:
    """The evidence, whether to trust it all, and what was done."""
    worst = max([float(error) for error in scalars(learned.error).values()], default=0.0)
    word = "Trusted" if learned.trusted else "NOT trusted"
    lines = [
        f"log-evidence {learned.log_evidence:.2f} +- {learned.log_evidence_error:.2g}",
        f"{word}: the means are within about {worst:.2g} posterior sds (column `error`).",
        f"By {learned.method}: {learned.why}. {learned.seconds:.1f} s.",
    ]
    lines += [f"  {attempt.method}: {attempt.outcome}" for attempt in learned.attempts]
    return lines + list(learned.notes)
