r"""Deterministic quadrature over a one-dimensional state: the exact evidence and states of a nonlinear model.

The filtering density is kept at nodes :math:`x_t^j` with trapezoidal weights,

.. math:: p(x_t^j, y_t \mid y_{1:t-1}) = p(y_t \mid x_t^j) \sum_i w_{t-1}^i\, p(x_t^j \mid x_{t-1}^i)\,
          p(x_{t-1}^i \mid y_{1:t-1}),

and the evidence is the sum of its weights. The trapezoidal rule converges exponentially for smooth densities that
vanish at the ends: a Gaussian of standard deviation s needs a spacing of about 0.7 s for ten digits. Nodes may move
with the data (`nodes_around`), so that a precise observation needs few of them.
"""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Num

from epf_jax.core.checks import frames_to_user
from epf_jax.core.densities import log_prob, observed_log_prob
from epf_jax.core.naming import named_leaves
from epf_jax.exact.given_series import as_states, in_double, series_at
from epf_jax.exact.theta_grid import Axes, GridPosterior, likelihood_of, log_joint_at, posterior
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel


def nodes_around(
    y: Any, half_width: float, num_nodes: int, *, initial: tuple[float, float] = (-8.0, 8.0)
) -> Float[np.ndarray, "T+1 G"]:
    """Nodes for x_0..x_T: equally spaced over y_t +- `half_width`, and over `initial` for x_0.

    For observations y = x + Gaussian noise, take a half-width of 8 noise standard deviations, and a spacing below 0.7
    of the smallest standard deviation in the model. With missing observations or outliers, give fixed nodes instead:
    `jnp.linspace(low, high, num_nodes)`.
    """
    centres = np.asarray(y, float)  # NumPy's double precision, whatever jax's
    if np.any(np.isnan(centres)):
        raise ValueError("y: nodes_around needs every observation; with missing values give a fixed grid of nodes.")
    offsets = np.linspace(-half_width, half_width, num_nodes)
    return np.concatenate([np.linspace(*initial, num_nodes)[None], centres[:, None] + offsets])


_ERROR, _MOST_ERROR = 0.02, 0.5  # of the log-likelihood: told of, refused


def quadrature_log_evidence(
    model: StateSpaceModel,
    theta: Theta,
    y: Float[Array, " T"],
    nodes: Any,
    *,
    inputs: Any = None,
) -> Float[Array, " T"]:
    """Log p(y_1:t | theta) for every t, by quadrature over the state at `nodes` (one row each for x_0..x_T, or one).

    Args:
        model: a model with a scalar state.
        theta: the parameters.
        y: the observations; NaN is missing.
        nodes: equally spaced states, an array of shape (T + 1, G) or (G,). If states are whole numbers, all that
            matter.
        inputs: one row per observation, or None for the time index.
    """
    return jnp.cumsum(_forward(model, theta, y, nodes, inputs)[1].log_density)


def quadrature_states(
    model: StateSpaceModel, theta: Theta, y: Float[Array, " T"], nodes: Any, *, inputs: Any = None
) -> tuple[Float[Array, "T+1"], Float[Array, "T+1"]]:
    """Mean and sd of x_0 .. x_T given the whole series and theta, by quadrature; arguments as above."""

    def back(after, step):
        # p(x_{t-1} | x_t, y_1:t-1) in the columns, averaged over what x_t is.
        states, log_after = after
        kernel = _log_kernel(model, theta, step.states, states, step.u)
        log_given = jax.nn.log_softmax(step.log_mass[:, None] + kernel, axis=0)
        log_given = jnp.where(jnp.isfinite(log_after), log_given, -jnp.inf)  # a node with no mass says nothing
        log_mass = logsumexp(log_given + log_after, axis=1)
        return (step.states, log_mass), log_mass

    (last, log_last), steps = _forward(model, theta, y, nodes, inputs)
    log_masses = jax.lax.scan(back, (last, log_last), steps, reverse=True)[1]
    w = jnp.exp(jnp.vstack([log_masses, log_last]))
    states = jnp.vstack([steps.states, last])
    mean = jnp.sum(w * states, axis=1) / jnp.sum(w, axis=1)
    return mean, jnp.sqrt(jnp.sum(w * (states - mean[:, None]) ** 2, axis=1) / jnp.sum(w, axis=1))


class _Step(NamedTuple):
    """The nodes of x_{t-1}, the log of the mass at each given y_1:t-1, u_t, and log p(y_t | y_1:t-1)."""

    states: Float[Array, " G"]
    log_mass: Float[Array, " G"]
    u: Any
    log_density: Float[Array, ""]


def _forward(model, theta, y, nodes, inputs, is_sure=None) -> tuple[tuple[Array, Array], _Step]:
    """The filter on nodes: the nodes of x_T, the log of their masses, and every step.

    `is_sure` says at which nodes the model's functions must have values; at other nodes NaN counts as zero density.
    """
    model, y, rows = series_at(model, theta, y, inputs)
    if model.shapes.x.shape != ():
        raise ValueError(
            f"quadrature: the state must be a scalar, but has shape {model.shapes.x.shape}. A linear-Gaussian model of "
            "any size has exact.kalman."
        )
    nodes = _check_nodes(model, nodes, len(y))

    def step(carry, row):
        states_prev, log_mass = carry
        states, y, u = row
        kernel = _log_kernel(model, theta, states_prev, states, u)
        log_lik = jax.vmap(lambda x: observed_log_prob(model.observation(theta, x, u), y))(states)
        if is_sure is not None:
            kernel = _where_sure(is_sure[:, None] & is_sure, kernel)
            log_lik = _where_sure(is_sure, log_lik)
        # In logs: an outlier may underflow every density, and still tell one theta from another.
        log_joint = logsumexp(log_mass[:, None] + kernel, axis=0) + log_lik + jnp.log(states[1] - states[0])
        evidence = logsumexp(log_joint)
        return (states, log_joint - evidence), _Step(states_prev, log_mass, u, evidence)

    log_density = jax.vmap(lambda x: _log_prob(model.initial(theta), x))(nodes[0])
    if is_sure is not None:
        log_density = _where_sure(is_sure, log_density)
    start = (nodes[0], log_density + jnp.log(nodes[0][1] - nodes[0][0]))
    return jax.lax.scan(step, start, (nodes[1:], y, rows))


def _log_kernel(model, theta, states_prev, states, u) -> Float[Array, "G G"]:
    """Log p(x_t | x_{t-1}) from every node to every node."""
    return jax.vmap(lambda x_prev: jax.vmap(lambda x: _log_prob(model.transition(theta, x_prev, u), x))(states))(
        states_prev
    )


def _log_prob(d: Any, x: Array) -> Float[Array, ""]:
    """Log density of a state, which is zero outside of its distribution's support."""
    found, support = log_prob(d, x), getattr(d, "support", None)
    return found if support is None else jnp.where(support(x), found, -jnp.inf)


def _where_sure(is_sure: Array, log_density: Array) -> Array:
    return jnp.where(~is_sure & jnp.isnan(log_density), -jnp.inf, log_density)


def quadrature(
    model: StateSpaceModel,
    y: Float[Array, " T"],
    axes: Axes,
    nodes: Any,
    *,
    inputs: Any = None,
    batch_size: int = 32,
) -> GridPosterior:
    """The exact posterior of theta on a grid, for any model with a scalar state.

    Args:
        model: the model.
        y: the observations; NaN is missing.
        axes: for each parameter, the increasing values of its grid: {"theta": jnp.linspace(-1.0, 1.2, 111)}. The grid
            should cover the posterior at every t, half a posterior sd apart or closer.
        nodes: equally spaced states to integrate over, one row each for x_0..x_T, or one for all:
            `nodes_around(y, half_width=0.8, num_nodes=25)` for y = x + N(0, 0.1^2). If states are whole numbers, all
            that matter: `jnp.arange(2)` for two regimes.
        inputs: one row per observation, or None for the time index.
        batch_size: grid points evaluated at once.
    """
    model, values, rows = in_double(model, y, inputs)
    _check_nodes(model, nodes, len(values))
    found = posterior(
        model, axes, likelihood_of(quadrature_log_evidence, model), values, nodes, rows, batch_size=batch_size
    )
    _check_likelihood(model, found, values, np.asarray(nodes, float), rows)
    return found


def _check_likelihood(model, found: GridPosterior, y, nodes: np.ndarray, inputs) -> None:
    """Compute the log-likelihood of the most likely theta again, on nodes that reach further and lie closer."""
    structure: Any
    leaves, structure = jax.tree.flatten(found.axes)
    at = int(np.argmax(found.log_density[-1]))
    along = np.unravel_index(at, found.log_density.shape[1:])
    theta = structure.unflatten([leaf[i] for leaf, i in zip(leaves, along, strict=True)])
    log_joint = found.log_density.reshape(len(found.log_evidence), -1)[:, at] + found.log_evidence
    whole = jnp.issubdtype(model.shapes.x.dtype, jnp.integer)
    again = likelihood_of(_log_evidence_on_more, model)
    missed = np.abs(log_joint_at(model, again, theta, y, *_more(nodes, whole), inputs) - log_joint)
    worst, first = float(np.max(missed)), int(np.argmax(~(missed <= _ERROR)))
    named = ", ".join(f"{name} = {value:.3g}" for name, value in named_leaves(theta, "theta"))
    message = (
        f"nodes: from observation {first + 1} on the log-likelihood of {named}, the most likely, comes out otherwise, "
        f"by up to {worst:.3g}, on nodes that reach half as far again to either side, at half the spacing. Take more "
        "of them, below 0.7 of the smallest standard deviation in the model apart, or wider ones: "
        "exact.nodes_around(..., initial=(low, high)) for x_0, jnp.linspace(low, high, num_nodes) for outliers."
    )
    if not worst < _MOST_ERROR:
        raise ValueError(message)
    if worst > _ERROR:
        warnings.warn(message, RuntimeWarning, stacklevel=frames_to_user())


def _more(nodes: np.ndarray, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Every row, half as long again at either end and halved in its spacing, and which nodes were in reach before.

    States that are whole numbers have nothing between them.
    """
    num = nodes.shape[-1]
    per_gap = 1 if whole else 2
    place = np.arange(-(num // 2) * per_gap, (num - 1 + num // 2) * per_gap + 1) / per_gap
    steps = (nodes[..., -1:] - nodes[..., :1]) / (num - 1)
    return nodes[..., :1] + steps * place, (place >= 0) & (place <= num - 1)


def _log_evidence_on_more(model, theta, y, nodes, is_sure, *, inputs):
    return jnp.cumsum(_forward(model, theta, y, nodes, inputs, is_sure)[1].log_density)


def _check_nodes(model: StateSpaceModel, nodes: Any, num_steps: int) -> Num[Array, "T+1 G"]:
    nodes = jnp.asarray(nodes, float)
    if nodes.ndim not in (1, 2) or nodes.shape[-1] < 2 or (nodes.ndim == 2 and len(nodes) != num_steps + 1):
        raise ValueError(
            f"nodes: expected one grid of G >= 2 states, shape (G,), or one for each of x_0..x_{num_steps}, shape "
            f"({num_steps + 1}, G), got shape {nodes.shape}. Use jnp.linspace or exact.nodes_around."
        )
    _check_spacing(nodes)
    states = as_states("nodes", model, nodes)
    whole = jnp.issubdtype(states.dtype, jnp.integer)
    if whole and not isinstance(states, jax.core.Tracer) and np.any(np.diff(np.asarray(states), axis=-1) != 1):
        raise ValueError("nodes: the model's states are whole numbers, and none may be left out. Use jnp.arange.")
    return jnp.broadcast_to(states, (num_steps + 1, nodes.shape[-1]))


def _check_spacing(nodes: Any) -> None:
    """Raise if nodes are not equally spaced, because all have the same weight."""
    if isinstance(nodes, jax.core.Tracer):
        return
    steps = np.diff(np.asarray(nodes, float), axis=-1)
    mean = steps.mean(axis=-1, keepdims=True)
    if not np.all((steps > 0) & (np.abs(steps - mean) < 0.1 * mean)):  # float32 rounds nodes that are far from zero
        raise ValueError(
            "nodes: expected equally spaced increasing states in every row. Use jnp.linspace or exact.nodes_around."
        )
