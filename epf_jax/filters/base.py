"""The filter nouns, shared by every filter: `Filter`, `FilterState`, `StepInfo`."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from epf_jax.checks import check_key, check_whole_number, numeric_array
from epf_jax.densities import sample_each
from epf_jax.devices import mesh_of, spread_particles
from epf_jax.kernels import step_on_device
from epf_jax.model import StateSpaceModel, check_inputs_given, check_is_model, check_model, warn_of_slips
from epf_jax.naming import estimates
from epf_jax.parameters import Parameters, Theta
from epf_jax.precision import full_precision
from epf_jax.quasi import order_of
from epf_jax.random import stream
from epf_jax.resampling import Resampler, Selection, check_resampler
from epf_jax.samplers import SampleInfo, together
from epf_jax.statistics import Statistic
from epf_jax.tables import count_of
from epf_jax.weights import Population, Weighing, population, uniform_log_weights

_EDGE = 0.95  # in a box's own coordinates, -1 to 1: beyond lies a twentieth of it
_POPULATION_FLOOR = 1e-5  # least spread of the particles' theta, in prior standard deviations, that samplers are told


class FilterState(NamedTuple):
    """What the next step needs and nothing else. N particles along the first axis of x, theta and S.

    Attributes:
        x: states x_t.
        theta: parameters, a pytree with the prior's structure.
        S: statistics of the particles' paths.
        log_weights: normalised.
        log_evidence: log p(y_1:t), estimated.
        t: number of observations so far.
    """

    x: Float[Array, "N *x"]
    theta: Theta
    S: Any
    log_weights: Float[Array, " N"]
    log_evidence: Float[Array, ""]
    t: Int[Array, ""]

    def __repr__(self) -> str:
        """What is known, without the arrays; whole where it holds anything else than numbers."""
        if not _are_numbers(self) or np.ndim(self.log_weights) != 1:
            return f"FilterState{tuple(self)}" if not np.ndim(self.log_weights) else f"<FilterState of {_runs(self)}>"
        seen = count_of(int(self.t), "observation")
        lines = [f"<FilterState after {seen}, {_runs(self)}, log-evidence {float(self.log_evidence):.2f}"]
        average = partial(np.average, axis=0, weights=np.exp(np.asarray(self.log_weights, float)))
        mean = jax.tree.map(average, self.theta)
        sd = jax.tree.map(lambda leaf, centre: np.sqrt(average((np.asarray(leaf) - centre) ** 2)), self.theta, mean)
        return "\n".join([*lines, *estimates(mean, sd)]) + ">"


class StepInfo(NamedTuple):
    """What one step reports.

    Attributes:
        ess: effective sample size of the weights before resampling.
        resampled: whether the step resampled.
        ancestors: for each particle, the row of the previous generation that it descends from.
        acceptance: mean acceptance rate of the moves of theta (1 for exact draws, 0 where theta never moves, NaN at
            steps that try no move, of filters that move it now and then or never mean to).
        num_bad_weights: how many weights were NaN or +inf, and counted as zero; of filters inside of this one, the
            share of theirs, times the number of particles.
        num_bad_densities: how often theta's density was NaN where its sampler looked; theta never moves there.
        collapsed: whether every weight was zero; the particles and their old weights are then kept.
        log_increment: log p(y_t | y_1:t-1), estimated.
        overflowed: whether the observation came after the filter's `max_steps`; theta cannot be moved from there on.
    """

    ess: Float[Array, ""]
    resampled: Bool[Array, ""]
    ancestors: Int[Array, " N"]
    acceptance: Float[Array, ""]
    num_bad_weights: Int[Array, ""]
    num_bad_densities: Int[Array, ""]
    collapsed: Bool[Array, ""]
    log_increment: Float[Array, ""]
    overflowed: Bool[Array, ""]

    def __repr__(self) -> str:
        """What is reported, without the ancestors; whole where it holds anything else than numbers."""
        told = {name: value for name, value in self._asdict().items() if name != "ancestors"}
        if not _are_numbers(told) or any(np.ndim(value) for value in told.values()):
            return f"StepInfo{tuple(self)}"
        return f"<StepInfo {', '.join(f'{name} {value:.4g}' for name, value in told.items())}>"


def _are_numbers(tree: Any) -> bool:
    """Whether all of it is known: neither traced, nor a prefix, a shape or a kind of something."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: leaf is None)
    return all(isinstance(leaf, jax.Array | np.ndarray) and not isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def _runs(state: FilterState) -> str:
    *runs, num = np.shape(state.log_weights)
    return f"{runs[0]} runs of {num} particles" if runs else f"{num} particles"


_which: Any = (True, True, True, True, False, False)
PARTICLES = FilterState(*_which)  # which parts of a state have a row for each particle


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
        max_steps: the most observations that it has room for, or None where it keeps none.
        statistic: what its particles keep of their paths, where they keep a `Statistic`.
        edge: `edge(state)`, for each coordinate the share of the posterior in the outer twentieth of the box that the
            filter confines theta to (the box's own coordinates, of which the k-th is the first that moves theta's k-th
            along it), or None where it confines it to none but perhaps the statistic's.
        roughness: `roughness(state)`, the noise that can be told from the log-likelihoods at the nodes of a grid of
            theta, or None where there are none.
    """

    init: Callable[[PRNGKeyArray], FilterState]
    step: Callable[..., tuple[FilterState, StepInfo]]
    model: StateSpaceModel
    num_particles: int
    description: str = ""
    mesh: Mesh | None = None
    by_particle: FilterState = PARTICLES
    max_steps: int | None = None
    statistic: Statistic | None = None
    edge: Callable[[FilterState], Float[Array, " P"]] | None = None
    roughness: Callable[[FilterState], Float[Array, ""]] | None = None

    def __repr__(self) -> str:
        return f"<{self.description}>"


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
    """The state before any observation for given parameters, a row for each particle: x_0 alone is drawn."""
    rows = (theta, jnp.arange(num_particles))
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
    statistic: Statistic | None = None,
    edge: Callable[[FilterState], Float[Array, " P"]] | None = None,
    roughness: Callable[[FilterState], Float[Array, ""]] | None = None,
) -> Filter:
    """A `Filter` from the bare `init(key)` and `step(key, state, y, u)` of an algorithm.

    Adds what every filter owes its user: the time index for a missing u, checks of the kinds and shapes of what comes
    in, compilation, and particles spread over the devices of the resampler's mesh, if it has one.
    """
    mesh = mesh_of(resample)

    def turn(state, row):
        key, y, u = row
        before, (state, info) = state, step(key, state, y, u)
        return spread_particles(mesh, _typed_as(before, state), by_particle), info

    turn = turn if mesh is None else _by_itself(turn)

    def init_state(key):
        """The state before any observation: `num_particles` draws from the prior."""
        with full_precision():
            return spread_particles(mesh, _strongly_typed(init(stream(check_key(key)))), by_particle)

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
    return Filter(*jitted, model, num_particles, description, mesh, by_particle, max_steps, statistic, *of_grid)


class _Step:
    """A jitted step, which is given numbers of one kind; beside that it is the jitted function."""

    def __init__(self, jitted: Any, model: StateSpaceModel):
        self._jitted, self._model = jitted, model

    def __call__(self, key: PRNGKeyArray, state: FilterState, y: Any, u: Any = None) -> tuple[FilterState, StepInfo]:
        y = _observed_number(y, self._model)
        _check_finite(y)
        return self._jitted(key, state, y, jax.tree.map(_of_one_kind, u))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_jitted":  # which a copy asks for before there is anything to forward to
            raise AttributeError(name)
        return getattr(self._jitted, name)


def _observed_number(y: Any, model: StateSpaceModel) -> Any:
    """`_of_one_kind`, whole numbers made real where the model observes real ones."""
    if isinstance(y, str):
        raise TypeError(
            f"y: expected one observation as numbers, got the text {y!r}. Give a number, float('NaN') for one "
            "that is missing."
        )
    if isinstance(y, np.ma.MaskedArray):
        y = np.ma.filled(y.astype(float), np.nan)
    y, expected = _of_one_kind(y), model.shapes.y
    whole = isinstance(y, np.ndarray) and y.dtype.kind in "biu"
    return y.astype(jnp.result_type(float)) if whole and expected is not None and expected.dtype.kind == "f" else y


def _check_finite(y: Any) -> None:
    """Refuse an observation that no density allows, and that a state would not recover from; NaN is a missing one."""
    if (isinstance(y, np.ndarray) or _is_on_host(y)) and jnp.issubdtype(y.dtype, jnp.floating) and np.isinf(y).any():
        raise ValueError(f"y: expected finite numbers, got {np.asarray(y).tolist()}; write NaN for a missing value.")


def _is_on_host(y: Any) -> bool:
    """Whether it is an array that can be read without a transfer, for which an accelerator's queue would wait."""
    concrete = isinstance(y, jax.Array) and not isinstance(y, jax.core.Tracer) and y.is_fully_addressable
    return concrete and all(device.platform == "cpu" for device in y.devices())


def _of_one_kind(number: Any) -> Any:
    """A number as an array of the precision in use: 20.0 and np.float64(20) would each compile a step of their own."""
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(number)):
        return number
    array = np.asarray(number)
    if array.dtype.kind not in "biuf":
        return number
    found = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    return found if array.dtype.kind == "f" or np.array_equal(found, array) else number  # too large a whole number


def _by_itself(turn: Callable) -> Callable:
    """The same turn as the branch of a condition that always holds, which XLA does not know.

    It compiles a branch without what is around it. Of particles across devices a turn in a run's loop would otherwise
    be fused, and so rounded, in another way than the turn of a step.
    """

    def guarded(state, row):
        out = jax.eval_shape(turn, state, row)
        never = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), out)
        return jax.lax.cond(state.t >= 0, lambda: turn(state, row), lambda: never)

    return guarded


def _strongly_typed(state: FilterState) -> FilterState:
    """The state without weak types, which would make the second step compile again."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)


def _typed_as(before: FilterState, state: FilterState) -> FilterState:
    """The state, strongly typed, or an error where numbers went from one precision to another on the way."""
    state = _strongly_typed(state)
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(state), strict=True):
        old_kind, new_kind = getattr(old, "dtype", None) or jnp.result_type(old), new.dtype
        if old_kind != new_kind:
            raise TypeError(
                f"filter_: state{jax.tree_util.keystr(path)} went into the step as {old_kind} and came out as "
                f"{new_kind}. Is jax_enable_x64 other than it was when model and filter were built, or is a number of "
                "the model's of another precision? Set it first, then build both."
            )
    return state


def check_is_state(state: Any) -> None:
    """Refuse what is not a filter's state."""
    if not isinstance(state, FilterState):
        came = "an array" if isinstance(state, jax.Array) else type(state).__name__
        hint = "The arguments of step are (key, state, y, u), those of epf.save (path, state, filter)."
        if came in ("Results", "Chains"):
            hint = "Give results.final."
        raise TypeError(
            f"state: expected the FilterState of filter.init(key), of the last step, or of results.final, got {came}. "
            f"{hint}"
        )


def check_is_filters_state(state: Any) -> None:
    """Refuse what no filter can go on from."""
    check_is_state(state)
    if state.S is None:
        raise ValueError(
            "state: these are the draws of Markov chains. epf.forecast goes on from them, but no filter: it would need "
            "what its particles keep of their paths. Run the filter over the whole series."
        )


def check_state(state: Any, filter_: Filter) -> None:
    """Refuse what is not a state of this filter."""
    check_is_filters_state(state)
    expected, came = _shapes_of_state(filter_), jax.tree.map(jnp.shape, state)
    if came != expected:
        raise ValueError(
            f"state: expected the state of this filter, {filter_.num_particles} particles with shapes "
            f"{_in_words(expected)}, got shapes {_in_words(came)}. Go on with the filter that made the state."
        )


def _in_words(shapes: FilterState) -> str:
    """Shapes of a state, which shows itself in fewer words."""
    return ", ".join(f"{name} {shape}" for name, shape in shapes._asdict().items() if shape not in ((), None))


@lru_cache(maxsize=32)
def _shapes_of_state(filter_: Filter) -> Any:
    """The shapes of its state, found once: a run that goes on from a state is to cost little beside its steps."""
    return jax.tree.map(jnp.shape, jax.eval_shape(filter_.init, jax.random.key(0)))


def as_observation(y: Any, expected: Any) -> Array:
    """One observation as an array of the model's shape, or an error that says what came."""
    y = numeric_array("y", y, "Give one observation as numbers, NaN where a value is missing.")
    if y.shape != expected.shape:
        raise ValueError(
            f"y: expected one observation of shape {expected.shape}, as the model's observation draws, got shape "
            f"{y.shape}. For a whole series use epf.run(key, filter, y)."
        )
    return y


def missing_where(condition: Any, y: Array) -> Array:
    """y, or NaN (missing) where the condition holds; integers have no NaN and stay."""
    return jnp.where(condition, jnp.nan, y) if jnp.issubdtype(y.dtype, jnp.floating) else y


def check_filter_arguments(model: Any, num_particles: Any, resample: Any, *, learns: bool = True) -> None:
    """Refuse wrong arguments common to all filters, by name; `learns` is whether theta is to be learned."""
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
        num_bad_weights=jnp.sum(jnp.stack([w.num_bad for w in weighings])),
        num_bad_densities=drawn.num_bad,
        collapsed=jnp.any(jnp.stack([w.collapsed for w in weighings])),
        log_increment=jnp.sum(jnp.stack([w.log_increment for w in weighings])) + selection.log_increment,
        overflowed=jnp.array(False),
    )


def edge_of_box(model: StateSpaceModel, statistic: Statistic, state: FilterState) -> Float[Array, " P"]:
    """For each coordinate, the weight of the particles in the outer part of their statistics' boxes."""
    z = jax.vmap(model.parameters.to_vector)(state.theta)
    box: Any = statistic.box
    low, high = jax.vmap(box)(state.S)
    outside = jnp.abs(z - 0.5 * (low + high)) > _EDGE * 0.5 * (high - low)
    return jnp.exp(state.log_weights) @ jnp.where(outside, 1.0, 0.0)


def spread_of(coordinates: Parameters, state: FilterState) -> Population:
    """Location and scale of the particles' theta, which samplers are tuned to: those of a state before the step.

    An outlier may leave one survivor of the step, and copies of one theta have no spread to tune to.
    """
    z = jax.vmap(coordinates.to_vector)(state.theta)
    return population(z, state.log_weights, _POPULATION_FLOOR * coordinates.scale)
