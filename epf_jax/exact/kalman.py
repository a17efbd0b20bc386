r"""The Kalman filter's evidence of a linear-Gaussian model: exact, for any number of states.

.. math:: x_t = A x_{t-1} + a + N(0, Q), \qquad y_t = H x_t + c + N(0, R)

A, a, Q, H, c, R are read off the model at the given theta and input, and may vary with both. Missing components of y
are skipped exactly.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epf_jax.exact.data import as_observations
from epf_jax.exact.grid import Axes, GridPosterior, posterior
from epf_jax.gaussian import (
    cholesky,
    depends_on,
    is_affine,
    is_gaussian,
    mask_covariance,
    mask_missing,
    masked_normal_log_prob,
    moments,
    solve_lower,
)
from epf_jax.model import StateSpaceModel, input_rows
from epf_jax.parameters import Theta


def kalman_log_evidence(
    model: StateSpaceModel, theta: Theta, y: Float[Array, "T *y"], *, inputs: Any = None
) -> Float[Array, " T"]:
    """Log p(y_1:t | theta) for every t, by the Kalman filter."""
    y = as_observations(model, theta, y).astype(float)
    rows = input_rows(inputs, y.shape[0])
    _check_linear(model, theta, jax.tree.map(lambda a: a[0], rows))
    x_shape = model.shapes.x.shape

    def linear(distribution):
        """Matrix, offset and covariance of a conditional Gaussian whose mean is affine in x."""

        def mean(flat):
            return moments(distribution(flat.reshape(x_shape)))[0]

        zero = jnp.zeros(model.shapes.x.size)
        scale = moments(distribution(zero.reshape(x_shape)))[1]
        return jax.jacfwd(mean)(zero), mean(zero), scale

    def step(carry, row):
        m, P, total = carry
        y, u = row
        A, a, L_Q = linear(lambda x: model.transition(theta, x, u))
        m, P = A @ m + a, A @ P @ A.T + L_Q @ L_Q.T
        H, c, L_R = linear(lambda x: model.observation(theta, x, u))
        y = jnp.ravel(y)
        y_seen, H, c = mask_missing(y, H, c)
        L_R = mask_covariance(y, L_R)
        L_D = cholesky(H @ P @ H.T + L_R @ L_R.T)
        innovation = y_seen - H @ m - c
        half = solve_lower(L_D, H @ P).T
        total += masked_normal_log_prob(jnp.where(jnp.isnan(y), y, innovation), jnp.zeros_like(innovation), L_D)
        return (m + half @ solve_lower(L_D, innovation), P - half @ half.T, total), total

    m, L = moments(model.initial(theta))
    return jax.lax.scan(step, (m, L @ L.T, jnp.zeros(())), (y, rows))[1]


def kalman(
    model: StateSpaceModel, y: Float[Array, "T *y"], axes: Axes, *, inputs: Any = None, batch_size: int = 64
) -> GridPosterior:
    """The exact posterior of theta on a grid, for a model that is linear and Gaussian in its state."""
    return posterior(
        model, axes, lambda theta: kalman_log_evidence(model, theta, y, inputs=inputs), batch_size=batch_size
    )


def _check_linear(model: StateSpaceModel, theta: Theta, u: Any) -> None:
    x = jnp.zeros(model.shapes.x.shape)
    if not is_gaussian(model.initial(theta)):
        raise ValueError(
            f"kalman: the initial distribution must be Gaussian, but is {type(model.initial(theta)).__name__}. For a "
            "model with a one-dimensional state use exact.quadrature."
        )
    for name, function in (("transition", model.transition), ("observation", model.observation)):
        kinds: list[Array] = []

        def look(x, function=function, kinds=kinds):
            kinds.append(function(theta, x, u))
            return jnp.zeros(())

        jax.eval_shape(look, x)
        gaussian = is_gaussian(kinds[-1])
        if not (
            gaussian
            and is_affine(lambda x, f=function: moments(f(theta, x, u))[0], x)
            and not depends_on(lambda x, f=function: moments(f(theta, x, u))[1], x)
        ):
            raise ValueError(
                f"kalman: the {name} must be Gaussian with a mean linear in x and noise free of x. For a nonlinear "
                "model with a one-dimensional state use exact.quadrature."
            )
