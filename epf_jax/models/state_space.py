"""State-space models with unknown static parameters, and data simulated from them.

    theta ~ prior
    x_0   ~ initial(theta)
    x_t   ~ transition(theta, x_{t-1}, u_t)
    y_t   ~ observation(theta, x_t, u_t)          t = 1..T, y[0] of an array is y_1

The functions are about ONE particle and return distributions; filters use `vmap`. `u_t` is row t of the inputs, or the
time index t = 1, 2, ... without inputs.
"""

import copy
import dataclasses
import warnings
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from epf_jax.core.checks import (
    brief,
    check_key,
    check_signature,
    check_whole_number,
    frames_to_user,
    is_like,
    kinds,
)
from epf_jax.core.number_arrays import numeric_array
from epf_jax.core.platforms import full_precision
from epf_jax.models.given_inputs import check_num_rows, input_arrays, time_index
from epf_jax.models.one_particle import SIGNATURES, WantsInputsError, drawn, positive_leaves
from epf_jax.models.parameters import Parameters, Theta, evaluated, parameters


@dataclasses.dataclass(frozen=True, eq=False)
class StateSpaceModel:
    """A state-space model: a prior and three functions that return numpyro distributions.

    Args:
        prior: the prior of theta: a distribution, or a dict (any pytree) of them. theta has the same structure.
        initial: `initial(theta)`, the distribution of x_0, which carries no observation.
        transition: `transition(theta, x_prev, u)`, the distribution of x_t.
        observation: `observation(theta, x, u)`, the distribution of y_t.
        example_input: no longer needed. Whoever gives a series gives its inputs.
        state_names: names of the state's numbers for pictures and tables. Those after the last name are not drawn.
        row: a row of the inputs that the model has seen: see `for_inputs`.

    States and observations are scalars or vectors. A vector may be a distribution's event (`MultivariateNormal`,
    `Normal(...).to_event(1)`) or its batch (`Normal(vector, 1.0)`), whose components are then independent.
    """

    prior: Any
    initial: Callable[[Theta], Any]
    transition: Callable[[Theta, Array, Any], Any]
    observation: Callable[[Theta, Array, Any], Any]
    example_input: dataclasses.InitVar[Any] = None
    state_names: tuple[str, ...] = ()
    row: Any = dataclasses.field(default=None, kw_only=True, repr=False)

    def __post_init__(self, example_input: Any):
        for name, arguments in SIGNATURES.items():
            check_signature(name, getattr(self, name), arguments)
        if example_input is not None:
            warnings.warn(
                "example_input: it is no longer needed, because a filter looks at the first row of the inputs that it "
                "is given. Leave it out; in a loop or jit of your own, build from model.for_inputs(inputs[0]).",
                DeprecationWarning,
                stacklevel=frames_to_user(),
            )
            object.__setattr__(self, "row", example_input)
        texts = [leaf for leaf in jax.tree.leaves(self.row) if isinstance(leaf, str)]
        if texts:
            raise TypeError(f"row: expected one row of the inputs, as numbers, got the text {texts[0]!r}.")
        _ = self.parameters  # now, where the prior's numbers live: what is cached must not outlive a trace

    @cached_property
    def parameters(self) -> Parameters:
        """The coordinates of theta: prior draws, and the maps to and from unconstrained vectors."""
        return parameters(self.prior)

    @cached_property
    def shapes(self) -> "Shapes":
        """Shapes and dtypes of x and y, from abstract evaluation with the row of inputs, or with a time index."""
        try:
            return _shapes(self, row_of(self))
        except WantsInputsError as error:
            if self.row is None or error.__cause__ is None:
                raise
            raise error.__cause__ from None  # which no other inputs can be hoped to mend

    @cached_property
    def wants_inputs(self) -> bool:
        """Whether its functions read inputs of which it has seen no row."""
        try:
            return not self.shapes
        except WantsInputsError:
            return True

    def for_inputs(self, row: Any) -> "StateSpaceModel":
        """The model that has seen a row of its inputs, for a loop or `jit` of your own; `run` and others do it for you.

        The same model and inputs of one kind give the same object, so that what is compiled for it is found again.
        """
        return _with_row(self, jax.tree.map(lambda leaf: np.asarray(leaf, jnp.result_type(leaf)), row), 0)

    @cached_property
    def _by_inputs(self) -> dict[Any, "StateSpaceModel"]:
        """The same model with rows of inputs, by their kinds."""
        return {}


class Shapes(NamedTuple):
    """The shapes of a model, by abstract evaluation.

    Attributes:
        theta, x, y: shape and dtype of one theta, state and observation.
        unread: theta's leaves that none of the three functions reads.
        reads_inputs: whether the transition or the observation reads u.
    """

    theta: PyTree[jax.ShapeDtypeStruct]
    x: jax.ShapeDtypeStruct
    y: jax.ShapeDtypeStruct
    unread: tuple[int, ...]
    reads_inputs: bool


def row_of(model: StateSpaceModel) -> Any:
    """One row of the inputs: the one that the model has seen, or a time index."""
    return model.row if model.row is not None else np.asarray(1, jnp.result_type(int))


def seen(model: StateSpaceModel, rows: Any, num_axes: int = 1) -> StateSpaceModel:
    """The model that has seen the first of these rows of inputs, if it reads any, and they are no time index."""
    leaves = jax.tree.leaves(rows)
    has_rows = leaves and all(leaf.ndim >= num_axes and 0 not in leaf.shape[:num_axes] for leaf in leaves)
    if model.row is not None or not has_rows or _is_index(rows, num_axes):
        return model
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    wants = model.wants_inputs or (model.shapes.reads_inputs and not traced)
    return _with_row(model, rows, num_axes) if wants else model


def _with_row(model: StateSpaceModel, rows: Any, num_axes: int) -> StateSpaceModel:
    leaves, structure = jax.tree.flatten(rows)
    kind = (structure, tuple((leaf.shape[num_axes:], leaf.dtype) for leaf in leaves), _x64())
    if kind not in model._by_inputs:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise ValueError(
                "inputs: they are traced, and the model has seen none to look at. Build the filter from "
                "model.for_inputs(inputs[0]), outside of jit."
            )
        found = copy.copy(model)  # with its parameters, which do not depend on inputs
        for name in ("shapes", "wants_inputs", "_by_inputs"):
            found.__dict__.pop(name, None)
        object.__setattr__(found, "row", jax.tree.map(lambda leaf: np.asarray(leaf)[(0,) * num_axes], rows))
        model._by_inputs[kind] = found
    return model._by_inputs[kind]


def known(model: StateSpaceModel, theta: Theta) -> StateSpaceModel:
    """The model with theta known. Nothing is left to learn: its own theta is the empty dict."""
    theta = as_theta(model, theta)
    return dataclasses.replace(
        model,
        prior={},
        initial=lambda _: model.initial(theta),
        transition=lambda _, x_prev, u: model.transition(theta, x_prev, u),
        observation=lambda _, x, u: model.observation(theta, x, u),
    )


def simulate(
    key: PRNGKeyArray, model: StateSpaceModel, theta: Theta, num_steps: int, *, inputs: Any = None
) -> tuple[Float[Array, "T+1 *x"], Float[Array, "T *y"]]:
    """A path x_0..x_T (`num_steps` + 1 rows, x_0 first) and observations y_1..y_T.

    Args:
        key: a JAX random key.
        model: the model.
        theta: the parameters, with the prior's structure.
        num_steps: T.
        inputs: one row per step (any pytree of arrays with T rows), or None for the time index 1..T.
    """
    key = check_key(key)
    check_is_model(model)
    check_whole_number("num_steps", num_steps, hint="It is the number of observations.")
    theta = as_theta(model, theta)
    inputs = input_rows(inputs, num_steps, model=model)
    shapes = check_rows(model, inputs)
    return _simulate(model, shapes.x.shape, shapes.x.dtype, key, theta, inputs)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _simulate(model, x_shape, x_dtype, key, theta, inputs):
    key_initial, key_steps = jax.random.split(key)

    def step(x_prev, step_inputs):
        key, u = step_inputs
        key_x, key_y = jax.random.split(key)
        x = model.transition(theta, x_prev, u).sample(key_x).astype(x_dtype)
        return x, (x, model.observation(theta, x, u).sample(key_y))

    num_steps = len(jax.tree.leaves(inputs)[0])
    with full_precision():
        x_0 = jnp.broadcast_to(model.initial(theta).sample(key_initial), x_shape).astype(x_dtype)
        _, (x, y) = jax.lax.scan(step, x_0, (jax.random.split(key_steps, num_steps), inputs))
    return jnp.concatenate([x_0[None], x]), y


def as_theta(model: StateSpaceModel, theta: Theta) -> Theta:
    """Theta as finite arrays with the prior's structure and shapes; an error says where it differs."""
    theta = jax.tree.map(lambda leaf: numeric_array("theta", leaf, "Give one value for each parameter.", float), theta)
    z = model.parameters.to_vector(theta)  # checks the structure and the shapes
    values = [leaf for leaf in jax.tree.leaves(theta) if not isinstance(leaf, jax.core.Tracer)]
    if not all(np.all(np.isfinite(leaf)) for leaf in values):
        raise ValueError(f"theta: expected finite numbers, got {theta}.")
    if not isinstance(z, jax.core.Tracer) and not np.all(np.isfinite(z)):
        outside = [
            name for name, value in zip(model.parameters.names, np.asarray(z), strict=True) if not np.isfinite(value)
        ]
        raise ValueError(
            f"theta: {', '.join(outside)} lies outside the support of its prior (a negative scale, say), got {theta}."
        )
    return theta


def check_inputs_given(model: StateSpaceModel) -> None:
    """Raise if no inputs are given although the model has seen some that are no time index."""
    if model.row is not None and not _is_index(model.row):
        raise ValueError(
            f"inputs: none were given, but the model has seen inputs, {kinds(model.row)}. Give one row for each step, "
            "inputs=... (u for one step); forecasts need those of future steps."
        )


def _is_index(rows: Any, num_axes: int = 0) -> bool:
    """Whether they are whole numbers, one a row, as the time index is."""
    return jax.tree_util.all_leaves([rows]) and jnp.ndim(rows) == num_axes and jnp.result_type(rows).kind in "iu"


def input_rows(inputs: Any, num_steps: int, first: int | Array = 1, *, model: StateSpaceModel | None = None) -> Any:
    """The inputs as a pytree of arrays with `num_steps` rows; the time index `first`, first+1, ... when None.

    A table of pandas or polars is a dict of its columns; a series of `from_table` has its own inputs. If a model is
    given, the time index does not replace inputs that it reads.
    """
    if inputs is None:
        if model is not None:
            check_inputs_given(model)
        index = time_index(num_steps, _x64())
        return index if isinstance(first, int) and first == 1 else index + (first - 1)
    rows = input_arrays(inputs)
    check_num_rows(rows, (num_steps,))
    return rows


def _x64() -> bool:
    """Whether numbers have 64 bits; read from the setting itself, because every run asks."""
    config: Any = jax.config
    return config.jax_enable_x64


# ---------------------------------------------------------------------------------------------------------- checks


def check_is_model(model: Any) -> None:
    """Raise if it is not a model."""
    if not isinstance(model, StateSpaceModel):
        raise TypeError(
            f"model: expected an epf.StateSpaceModel, got {type(model).__name__}: {brief(model)}. "
            "Build one from a prior and three functions, or take one of epf.models."
        )


def check_model(model: StateSpaceModel, u: Any = None) -> Shapes:
    """The model's shapes, or an error that says which of its functions is wrong.

    With an input row `u`, everything is checked with it.
    """
    if u is None:
        return model.shapes
    leaves, structure = jax.tree.flatten(u)
    return _checked(model, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves], structure)


def warn_of_slips(model: StateSpaceModel) -> None:
    """Warn of likely slips in a model that runs."""
    _warn_of_unread(model)
    _warn_of_negative_scales(model)


def _warn_of_unread(model: StateSpaceModel) -> None:
    """Warn of parameters that have a prior but are read nowhere."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(model.shapes.theta)]
    names = [jax.tree_util.keystr(paths[i]) for i in model.shapes.unread]
    if names:
        warnings.warn(
            f"Neither initial nor transition nor observation reads theta{' or theta'.join(names)}, so its posterior "
            "will be its prior. Use the parameter in a function, or take it out of the prior.",
            UserWarning,
            stacklevel=frames_to_user(),
        )


def _warn_of_negative_scales(model: StateSpaceModel) -> None:
    """Warn of numbers that must be positive but whose prior allows negative ones."""
    told = _negative_scales(model)
    if told:
        warnings.warn(
            f"{told} For those the model has no density: what becomes of such particles is each filter's own, and so "
            "is the answer. Take a prior of positive numbers, dist.HalfNormal(1.0) or dist.LogNormal(0.0, 0.5), say.",
            UserWarning,
            stacklevel=frames_to_user(),
        )


@lru_cache(maxsize=256)
def _negative_scales(model: StateSpaceModel) -> str:
    shapes, u = model.shapes, row_of(model)
    arguments = {"initial": (), "transition": (shapes.x, u), "observation": (shapes.x, u)}
    found = [
        (name, argument, leaf)
        for name, others in arguments.items()
        for argument, leaf in positive_leaves(getattr(model, name), shapes.theta, *others)
    ]
    if not found:
        return ""
    lowest = jax.tree_util.tree_leaves_with_path(evaluated(model.parameters.to_theta, model.parameters.box[0]))
    return " ".join(
        f"{name}: its {argument} is theta{jax.tree_util.keystr(path)}, whose prior has negative numbers."
        for name, argument, leaf in found
        for path, low in lowest[leaf : leaf + 1]
        if not isinstance(low, jax.core.Tracer) and np.max(low) < 0
    )


def check_rows(model: StateSpaceModel, rows: Any, num_axes: int = 1) -> Shapes:
    """`check_model` with one row of inputs that have many rows along the first axes."""
    leaves, structure = jax.tree.flatten(rows)
    return _checked(model, [(leaf.shape[num_axes:], leaf.dtype) for leaf in leaves], structure)


def _checked(model: StateSpaceModel, row: list, structure: Any) -> Shapes:
    try:
        return _shapes_for(model, tuple(row), structure, _x64())
    except WantsInputsError as error:
        came = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*kind) for kind in row])
        problem: Any = error.__cause__
        if model.row is None or is_like(jax.tree.map(jnp.asarray, model.row), came):
            raise problem from None
        raise ValueError(
            f"inputs: the model cannot read them. It has seen {kinds(model.row)}, and a row came as {kinds(came)}. "
            "Give inputs like those that it has seen, named as the model names them."
        ) from problem


@lru_cache(maxsize=256)
def _shapes_for(model: StateSpaceModel, kinds: tuple, structure: Any, x64: bool) -> Shapes:
    """The shapes for inputs of given kinds, evaluated once, so that checking a run costs little."""
    return _shapes(model, jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*kind) for kind in kinds]))


def _shapes(model: StateSpaceModel, u: Any) -> Shapes:
    key = jax.random.key(0)
    theta = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], model.parameters.sample(key, 1)))
    x, read = _drawn("initial", model, theta)
    if len(model.state_names) > x.size:
        raise ValueError(
            f"state_names: {len(model.state_names)} names were given for a state of {x.size} numbers. Give at most one "
            "name for each number."
        )
    x_next, read_next = _drawn("transition", model, theta, x, u)
    if x_next.shape != x.shape:
        raise ValueError(
            f"transition: draws x_t of shape {x_next.shape}, but initial draws x_0 of shape {x.shape}. "
            "The state must keep its shape; check the broadcasting inside transition."
        )
    y, read_last = _drawn("observation", model, theta, x, u)
    x = jax.ShapeDtypeStruct(x.shape, jnp.promote_types(x.dtype, x_next.dtype))
    num = len(jax.tree.leaves(theta))
    unread = tuple(i for i in range(num) if not (read[i] or read_next[i] or read_last[i]))
    return Shapes(theta, x, y, unread, any(read_next[num + 1 :]) or any(read_last[num + 1 :]))


def _drawn(name: str, model: StateSpaceModel, *arguments: Any) -> tuple[jax.ShapeDtypeStruct, list[bool]]:
    return drawn(name, f"{name}({', '.join(SIGNATURES[name])})", getattr(model, name), *arguments)
