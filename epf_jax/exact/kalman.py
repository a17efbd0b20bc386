r"""The Kalman filter's evidence of a linear-Gaussian model, and its smoother: exact, for any number of states.

.. math:: x_t = A x_{t-1} + a + N(0, Q), \qquad y_t = H x_t + c + N(0, R)

A, a, Q, H, c, R are read off the model at the given theta and input, and may vary with both. Missing components of y
are skipped exactly.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epf_jax.exact.data import as_arrays, as_observations
from epf_jax.exact.grid import Axes, GridPosterior, likelihood_of, posterior
from epf_jax.gaussian import condition, is_gaussian, is_linear_gaussian, linear_parts, moments
from epf_jax.model import StateSpaceModel, input_rows
from epf_jax.parameters import Theta
from epf_jax.precision import full_precision
from epf_jax.triangular import scale_of_sum


def kalman_log_evidence(
    model: StateSpaceModel, theta: Theta, y: Float[Array, "T *y"], *, inputs: Any = None
) -> Float[Array, " T"]:
    """Log p(y_1:t | theta) for every t, by the Kalman filter."""
    with full_precision():
        return jnp.cumsum(_forward(model, theta, y, inputs)[1].log_density)


def kalman_states(
    model: StateSpaceModel, theta: Theta, y: Float[Array, "T *y"], *, inputs: Any = None
) -> tuple[Float[Array, "T+1 *x"], Float[Array, "T+1 *x"]]:
    """Mean and sd of x_0 .. x_T given the whole series and theta: the smoother of Rauch, Tung and Striebel (1965)."""

    def back(after, step):
        # G = P A^T P'^-1, P' the covariance before y_t is seen, which is singular where components are copies.
        (m_after, P_after), P, P_next = after, step.L @ step.L.T, step.L_next @ step.L_next.T
        G = P @ step.A.T @ jnp.linalg.pinv(P_next, hermitian=True)
        m = step.m + G @ (m_after - step.m_next)
        P = P + G @ (P_after - P_next) @ G.T
        return (m, P), (m, jnp.diag(P))

    with full_precision():
        (m, L), steps = _forward(model, theta, y, inputs)
        P = L @ L.T
        means, variances = jax.lax.scan(back, (m, P), steps, reverse=True)[1]
        shape = (-1, *model.shapes.x.shape)
        means, variances = jnp.vstack([means, m]), jnp.vstack([variances, jnp.diag(P)])
        return means.reshape(shape), jnp.sqrt(variances).reshape(shape)


class _Step(NamedTuple):
    """What is known of x_{t-1} and, before y_t is seen, of x_t; how they hang together; and log p(y_t | y_1:t-1)."""

    m: Float[Array, " n"]
    L: Float[Array, "n n"]
    A: Float[Array, "n n"]
    m_next: Float[Array, " n"]
    L_next: Float[Array, "n n"]
    log_density: Float[Array, ""]


def _forward(model, theta, y, inputs) -> tuple[tuple[Array, Array], _Step]:
    """The Kalman filter: mean and scale of x_T, and every step."""
    y = as_observations(model, theta, y).astype(float)
    rows = input_rows(inputs, y.shape[0], model=model)
    _check_linear(model, theta, jax.tree.map(lambda a: a[0], rows))
    x_shape = model.shapes.x.shape

    def step(carry, row):
        m, L = carry
        y, u = row
        A, a, L_Q = linear_parts(lambda x: model.transition(theta, x, u), x_shape)
        m_next, L_next = A @ m + a, scale_of_sum(A @ L, L_Q)
        parts = linear_parts(lambda x: model.observation(theta, x, u), x_shape)
        found = condition(m_next, L_next, *parts, jnp.ravel(y))
        return (found.mean, found.scale_tril), _Step(m, L, A, m_next, L_next, found.log_density)

    m, L = (part.astype(float) for part in moments(model.initial(theta)))
    return jax.lax.scan(step, (m, L), (y, rows))


def kalman(
    model: StateSpaceModel, y: Float[Array, "T *y"], axes: Axes, *, inputs: Any = None, batch_size: int = 64
) -> GridPosterior:
    """The exact posterior of theta on a grid, for a model that is linear and Gaussian in its state.

    Args:
        model: the model; theta may enter in any way.
        y: the observations; NaN is missing.
        axes: for each parameter, the increasing values of its grid: {"phi": jnp.linspace(-0.2, 1.2, 71)}.
        inputs: one row per observation, or None for the time index.
        batch_size: grid points evaluated at once.
    """
    y, inputs = as_arrays(model, y, inputs)
    return posterior(model, axes, likelihood_of(kalman_log_evidence, model), y, inputs, batch_size=batch_size)


def _check_linear(model: StateSpaceModel, theta: Theta, u: Any) -> None:
    x = jnp.zeros(model.shapes.x.shape)
    if not is_gaussian(model.initial(theta)):
        raise ValueError(
            f"kalman: the initial distribution must be Gaussian, but is {type(model.initial(theta)).__name__}. For a "
            "model with a one-dimensional state use exact.quadrature."
        )
    for name, function in (("transition", model.transition), ("observation", model.observation)):
        if not is_linear_gaussian(lambda x, u, f=function: f(theta, x, u), x, u):
            raise ValueError(
                f"kalman: the {name} must be Gaussian with a mean linear in x and noise free of x. For a nonlinear "
                "model with a one-dimensional state use exact.quadrature."
            )
