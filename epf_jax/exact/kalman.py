r"""The Kalman filter's evidence of a linear-Gaussian model: exact, for any number of states.

.. math:: x_t = A x_{t-1} + a + N(0, Q), \qquad y_t = H x_t + c + N(0, R)

A, a, Q, H, c, R are read off the model at the given theta and input, and may vary with both. Missing components of y
are skipped exactly.
"""

from typing import Any

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
    y = as_observations(model, theta, y).astype(float)
    rows = input_rows(inputs, y.shape[0], model=model)
    _check_linear(model, theta, jax.tree.map(lambda a: a[0], rows))
    x_shape = model.shapes.x.shape

    def step(carry, row):
        m, L, total = carry
        y, u = row
        A, a, L_Q = linear_parts(lambda x: model.transition(theta, x, u), x_shape)
        m, L = A @ m + a, scale_of_sum(A @ L, L_Q)
        found = condition(m, L, *linear_parts(lambda x: model.observation(theta, x, u), x_shape), jnp.ravel(y))
        total += found.log_density
        return (found.mean, found.scale_tril, total), total

    with full_precision():
        m, L = (part.astype(float) for part in moments(model.initial(theta)))
        return jax.lax.scan(step, (m, L, jnp.zeros(())), (y, rows))[1]


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
