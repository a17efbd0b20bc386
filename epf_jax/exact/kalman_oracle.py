r"""The Kalman filter's evidence and smoother for linear-Gaussian models with any number of states.

.. math:: x_t = A x_{t-1} + a + N(0, Q), \qquad y_t = H x_t + c + N(0, R)

A, a, Q, H, c, R are taken from the model at the given theta and input, and may vary with both. Missing components of y
are marginalised exactly.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epf_jax.core.gaussian import is_gaussian, is_linear_gaussian
from epf_jax.core.platforms import full_precision
from epf_jax.exact.given_series import in_double, series_at
from epf_jax.exact.linear_paths import forward, smoothed_moments
from epf_jax.exact.theta_grid import Axes, GridPosterior, likelihood_of, posterior
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel


def kalman_log_evidence(
    model: StateSpaceModel, theta: Theta, y: Float[Array, "T *y"], *, inputs: Any = None
) -> Float[Array, " T"]:
    """Log p(y_1:t | theta) for every t, by the Kalman filter."""
    with full_precision():
        model, y, rows = _checked(model, theta, y, inputs)
        return jnp.cumsum(forward(model, theta, y, rows)[1].log_density)


def kalman_states(
    model: StateSpaceModel, theta: Theta, y: Float[Array, "T *y"], *, inputs: Any = None
) -> tuple[Float[Array, "T+1 *x"], Float[Array, "T+1 *x"]]:
    """Mean and sd of x_0 .. x_T given the whole series and theta: the smoother of Rauch, Tung and Striebel (1965)."""
    with full_precision():
        model, y, rows = _checked(model, theta, y, inputs)
        return smoothed_moments(model, theta, y, rows)


def _checked(model: StateSpaceModel, theta: Theta, y: Any, inputs: Any) -> tuple[StateSpaceModel, Array, Any]:
    """What `series_at` gives, where the model is linear and Gaussian."""
    model, y, rows = series_at(model, theta, y, inputs)
    _check_linear(model, theta, jax.tree.map(lambda a: a[0], rows))
    return model, y.astype(float), rows


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
    model, values, rows = in_double(model, y, inputs)
    likelihood = likelihood_of(kalman_log_evidence, model)
    return posterior(model, axes, likelihood, values, rows, batch_size=batch_size)


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
