"""`Filter`, and `build_filter`, which every filter is built by."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce, wraps
from typing import Any, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from epf_jax.core.checks import check_key, check_not_forked, check_whole_number
from epf_jax.core.densities import sample_each
from epf_jax.core.loops import step_on_device
from epf_jax.core.platforms import full_precision
from epf_jax.core.random import stream
from epf_jax.filters.state import (
    PARTICLES,
    FilterState,
    StepInfo,
    check_is_filters_state,
    in_words,
    strongly_typed,
    typed_as,
)
from epf_jax.models.missing import as_observation, check_input, check_observation, observed_number, of_one_kind
from epf_jax.models.parameters import Parameters, Theta
from epf_jax.models.state_space import StateSpaceModel, check_inputs_given, check_is_model, check_model, warn_of_slips
from epf_jax.models.waiting import Waiting, waits_for_inputs
from epf_jax.particles.devices import mesh_of, spread_particles
from epf_jax.particles.quasi_random import order_of
from epf_jax.particles.resampling import Resampler, Selection, check_resampler
from epf_jax.particles.weights import Population, Weighing, population, uniform_log_weights
from epf_jax.samplers import SampleInfo, together
from epf_jax.statistics import Statistic

P = ParamSpec("P")
_EDGE = 0.95  # in a box's own coordinates, -1 to 1: beyond lies a twentieth of it
_POPULATION_FLOOR = 1e-5  # least spread of the particles' theta, in prior standard deviations, that samplers are told


class Filter(NamedTuple):
    """A filter: an initial state, and one step per observation.

    Attributes:
        init: `init(key) -> state`, N draws from the prior.
        step: `step(key, state, y, u=None) -> state, info`, jitted; u is the row of the inputs, or the time index.
        model: the model that it filters.
        num_particles: N.
        description: the algorithm and its parts, in words; what `print` shows.
        mesh: the devices that its particles are spread over, or None for one device.
        by_particle: a prefix of its states: True where leaves have a row for each particle, False elsewhere.
        max_steps: the largest number of observations that it can keep, or None if it keeps none.
        waits: how many observations it gathers before it first estimates theta; usually 0.
        statistic: the `Statistic` that its particles keep, if any.
        edge: `edge(state)`, for each coordinate the share of the posterior in the outer twentieth of the filter's own
            box of theta (in the box's coordinates, of which the k-th is the first that moves theta's k-th), or None
            without such a box.
        roughness: `roughness(state)`, the noise of the log-likelihoods at the nodes of a grid of theta, or None without
            nodes.
        waiting: how it is built, while its model reads inputs of which it has seen none; otherwise None.
    """

    init: Callable[[PRNGKeyArray], FilterState]
    step: Callable[..., tuple[FilterState, StepInfo]]
    model: StateSpaceModel
    num_particles: int
    description: str = ""
    mesh: Mesh | None = None
    by_particle: FilterState = PARTICLES
    max_steps: int | None = None
    waits: int = 0
    statistic: Statistic | None = None
    edge: Callable[[FilterState], Float[Array, " P"]] | None = None
    roughness: Callable[[FilterState], Float[Array, ""]] | None = None
    waiting: Waiting | None = None

    def __repr__(self) -> str:
        return f"<{self.description}>"


def builds_filter(build: Callable[P, Filter]) -> Callable[P, Filter]:
    """The builder; of a model whose inputs are not known yet, it gives a filter that is built at the first row of them.

    `built_for(filter_, rows)` is the filter itself. A state of the one that waits holds the key from which it begins.
    """

    @wraps(build)
    def built(*args: P.args, **kwargs: P.kwargs) -> Filter:
        made = waits_for_inputs(build)(*args, **kwargs)
        return _filter_of(made) if isinstance(made, Waiting) else made

    return built


def _filter_of(waiting: Waiting) -> Filter:
    def step(key, state, y, u=None):
        check_is_filters_state(state)
        u = jax.tree.map(partial(of_one_kind, "u"), state.t + 1 if u is None else u)
        check_model(waiting.model, u)
        filter_ = waiting.built(u, 0)
        return filter_.step(key, begun(filter_, state), y, u)

    num_particles: Any = waiting.arguments.get("num_particles")
    description = repr(waiting).strip("<>")
    return Filter(not_begun, step, waiting.model, num_particles, description, waiting=waiting)


def not_begun(key: PRNGKeyArray) -> FilterState:
    """The state of a filter that waits for inputs."""
    none: Any = None
    return FilterState(none, none, check_key(key), none, jnp.zeros(()), jnp.zeros((), int))


def begun(filter_: Filter, state: FilterState) -> FilterState:
    """The state; the filter's first one, if there were no inputs yet to begin with."""
    return filter_.init(state.S) if state.log_weights is None else state


def start(
    key: PRNGKeyArray, model: StateSpaceModel, num_particles: int, statistic_of: Callable, draw: Callable = sample_each
) -> FilterState:
    """The state before any observation: N draws of theta and x_0, each with the statistic of its x_0."""
    key_theta, key_state = jax.random.split(key)
    theta = model.parameters.sample(key_theta, num_particles)
    return start_at(key_state, model, theta, num_particles, statistic_of, draw)


def start_at(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    theta: Theta,
    num_particles: int,
    statistic_of: Callable,
    draw: Callable = sample_each,
) -> FilterState:
    """The state before any observation for given parameters, a row for each particle; only x_0 is drawn."""
    rows = (theta, None if jax.tree.leaves(theta) else jnp.arange(num_particles))
    x = draw(key, lambda theta, _: model.initial(theta), num_particles, *rows)
    x = x.astype(model.shapes.x.dtype)
    log_weights = uniform_log_weights(num_particles)
    if draw is not sample_each:  # a lattice once more at the next step: over rows in order, or both would be shifts
        order = order_of(x, log_weights)
        x, theta = jax.tree.map(lambda leaf: leaf[order], (x, theta))
    return FilterState(x, theta, jax.vmap(statistic_of)(x), log_weights, jnp.zeros(()), jnp.zeros((), int))


def build_filter(
    model: StateSpaceModel,
    num_particles: int,
    init: Callable,
    step: Callable,
    description: str,
    resample: Resampler,
    *,
    by_particle: FilterState = PARTICLES,
    max_steps: int | None = None,
    waits: int = 0,
    statistic: Statistic | None = None,
    edge: Callable[[FilterState], Float[Array, " P"]] | None = None,
    roughness: Callable[[FilterState], Float[Array, ""]] | None = None,
) -> Filter:
    """A `Filter` from the bare `init(key)` and `step(key, state, y, u)` of an algorithm.

    Adds what all filters share: the time index if u is missing, checks of types and shapes, compilation, and particles
    spread over the devices of the resampler's mesh, if it has one.
    """
    mesh = mesh_of(resample)

    def turn(state, row):
        key, y, u = row
        before, (state, info) = state, step(key, state, y, u)
        return spread_particles(mesh, typed_as(before, state), by_particle), info

    def init_state(key):
        """The state before any observation: `num_particles` draws from the prior."""
        with full_precision():
            return spread_particles(mesh, strongly_typed(init(stream(check_key(key)))), by_particle)

    def step_state(key, state, y, u=None):
        """The state after one more observation, and a `StepInfo`; u is the row of the inputs, or the time index."""
        key = stream(check_key(key))
        check_is_filters_state(state)
        if u is None:
            check_inputs_given(model)
            u = state.t + 1
        y = as_observation(y, check_model(model, u).y)
        with full_precision():
            return step_on_device(turn, num_particles, by_particle, state, (key, y, u))

    jitted = jax.jit(init_state), _Step(jax.jit(step_state), model)
    of_grid = (edge, roughness)
    return Filter(*jitted, model, num_particles, description, mesh, by_particle, max_steps, waits, statistic, *of_grid)


class _Step:
    """A jitted step, which is given numbers of one kind; beside that it is the jitted function."""

    def __init__(self, jitted: Any, model: StateSpaceModel):
        self._jitted, self._model = jitted, model

    def __call__(self, key: PRNGKeyArray, state: FilterState, y: Any, u: Any = None) -> tuple[FilterState, StepInfo]:
        check_not_forked()
        y = observed_number(y, self._model)
        check_observation(y, self._model)
        u = jax.tree.map(partial(of_one_kind, "u"), u)
        check_input(u)
        return self._jitted(key, state, y, u)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_jitted":  # which a copy asks for before there is anything to forward to
            raise AttributeError(name)
        return getattr(self._jitted, name)


def check_state(state: Any, filter_: Filter) -> None:
    """Raise if it is not a state of this filter."""
    check_is_filters_state(state)
    expected, came = _shapes_of_state(filter_), jax.tree.map(jnp.shape, state)
    if came != expected:
        raise ValueError(
            f"state: expected the state of this filter, {filter_.num_particles} particles with shapes "
            f"{in_words(expected)}, got shapes {in_words(came)}. Go on with the filter that made the state."
        )


@lru_cache(maxsize=32)
def _shapes_of_state(filter_: Filter) -> Any:
    """The shapes of its state, found once: a run that goes on from a state is to cost little beside its steps."""
    return jax.tree.map(jnp.shape, jax.eval_shape(filter_.init, jax.random.key(0)))


def check_filter_arguments(model: Any, num_particles: Any, resample: Any, *, learns: bool = True) -> None:
    """Check the arguments that all filters share; `learns` says whether theta is learned."""
    check_is_model(model)
    check_whole_number("num_particles", num_particles, hint="A thousand is a good start.")
    check_resampler(resample, num_particles)
    check_model(model)
    if learns:
        warn_of_slips(model)


def step_info(selection: Selection, *weighings: Weighing, drawn: SampleInfo) -> StepInfo:
    """The report of a step with one resampling, one or two weighings, and draws of theta."""
    drawn = together(drawn)
    return StepInfo(
        ess=selection.ess,
        resampled=selection.resampled,
        ancestors=selection.ancestors,
        acceptance=drawn.acceptance,
        num_bad_weights=reduce(jnp.add, [w.num_bad for w in weighings]),
        num_bad_densities=drawn.num_bad,
        collapsed=collapsed(weighings),
        log_increment=reduce(jnp.add, [w.log_increment for w in weighings]) + selection.log_increment,
        overflowed=jnp.array(False),
    )


def collapsed(weighings: Sequence[Weighing]) -> Bool[Array, ""]:
    """Whether every weight was zero at any of a step's weighings."""
    return reduce(jnp.logical_or, [w.collapsed for w in weighings])


def edge_of_box(model: StateSpaceModel, statistic: Statistic, state: FilterState) -> Float[Array, " P"]:
    """For each coordinate, the weight of the particles in the outer part of their statistics' boxes."""
    z = jax.vmap(model.parameters.to_vector)(state.theta)
    box: Any = statistic.box
    low, high = jax.vmap(box)(state.S)
    outside = jnp.abs(z - 0.5 * (low + high)) > _EDGE * 0.5 * (high - low)
    return jnp.exp(state.log_weights) @ jnp.where(outside, 1.0, 0.0)


def spread_of(coordinates: Parameters, state: FilterState) -> Population:
    """Location and scale of the particles' theta for samplers, from the state before the step.

    An outlier may leave one survivor of the step, and copies of one theta have no spread.
    """
    z = jax.vmap(coordinates.to_vector)(state.theta)
    return population(z, state.log_weights, _POPULATION_FLOOR * coordinates.scale)
