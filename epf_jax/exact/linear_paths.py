r"""The states of a linear-Gaussian model given theta and all observations: exact moments and exact draws.

.. math:: x_t = A x_{t-1} + a + N(0, Q), \qquad y_t = H x_t + c + N(0, R)

Kalman's filter goes forward. The smoother goes back: the next state is a linear observation of each state (Rauch, Tung
and Striebel 1965; Carter and Kohn 1994):

    forward   x_t | y_1:t ~ N(m_t, L_t L_t^T)
    back      x_t | x_{t+1}, y_1:t ~ N(m_t + G (x_{t+1} - A m_t - a), B B^T)

G and B come from the rotations of `gaussian.condition`. No covariance is formed, inverted or subtracted, so that a
vague prior does no harm in float32. A component of x_{t+1} that is already known, such as one without noise from a
known start, says nothing about x_t.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.gaussian import condition, factors_of_gain, linear_parts, moments, solve_lower
from epf_jax.core.random import normal
from epf_jax.core.triangular import scale_of_sum
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel


class Steps(NamedTuple):
    """Every step from x_{t-1}, with mean m and scale L, to x_t; and log p(y_t | y_1:t-1)."""

    m: Float[Array, "T n"]
    L: Float[Array, "T n n"]
    A: Float[Array, "T n n"]
    a: Float[Array, "T n"]
    L_Q: Float[Array, "T n n"]
    log_density: Float[Array, " T"]


def forward(
    model: StateSpaceModel, theta: Theta, y: Float[Array, "T *y"], rows: Any
) -> tuple[tuple[Float[Array, " n"], Float[Array, "n n"]], Steps]:
    """Kalman's filter: mean and scale of x_T given y_1:T, and every step. NaN is missing."""
    x_shape = model.shapes.x.shape

    def step(known, row):
        m, L = known
        y, u = row
        A, a, L_Q = linear_parts(lambda x: model.transition(theta, x, u), x_shape)
        seen = linear_parts(lambda x: model.observation(theta, x, u), x_shape)
        found = condition(A @ m + a, scale_of_sum(A @ L, L_Q), *seen, jnp.ravel(y))
        return (found.mean, found.scale_tril), Steps(m, L, A, a, L_Q, found.log_density)

    m, L = (part.astype(float) for part in moments(model.initial(theta)))
    return jax.lax.scan(step, (m, L), (y, rows))


def draw_linear_path(
    key: PRNGKeyArray, model: StateSpaceModel, theta: Theta, y: Float[Array, "T *y"], rows: Any
) -> Float[Array, "T+1 *x"]:
    """One draw of x_0 .. x_T given y_1:T and theta, for a model that is linear and Gaussian (`why_not_kalman`)."""
    (m, L), steps = forward(model, theta, y, rows)
    noises = normal(key, (len(y) + 1, len(m)))
    last = m + L @ noises[-1]

    def back(x, row):
        step, noise = row
        gain, left = _given_next(step)
        x = step.m + gain(x - step.A @ step.m - step.a) + left @ noise
        return x, x

    path = jax.lax.scan(back, last, (steps, noises[:-1]), reverse=True)[1]
    return jnp.vstack([path, last]).reshape(-1, *model.shapes.x.shape)


def smoothed_moments(
    model: StateSpaceModel, theta: Theta, y: Float[Array, "T *y"], rows: Any
) -> tuple[Float[Array, "T+1 *x"], Float[Array, "T+1 *x"]]:
    """Mean and sd of x_0 .. x_T given y_1:T and theta."""
    last, steps = forward(model, theta, y, rows)

    def back(after, step):
        m_after, L_after = after
        gain, left = _given_next(step)
        m = step.m + gain(m_after - step.A @ step.m - step.a)
        L = scale_of_sum(left, gain(L_after))
        return (m, L), (m, L)

    means, scales = jax.lax.scan(back, last, steps, reverse=True)[1]
    m, L = jnp.vstack([means, last[0]]), jnp.concatenate([scales, last[1][None]])
    shape = (-1, *model.shapes.x.shape)
    return m.reshape(shape), jnp.sqrt(jnp.sum(L**2, axis=-1)).reshape(shape)


def _given_next(step: Steps) -> tuple[Any, Float[Array, "n n"]]:
    """G, as a function of what it multiplies, and B."""
    D, half, left = factors_of_gain(step.L, step.A, step.L_Q)
    size = jnp.sqrt(jnp.sum(D**2, axis=1))
    known = jnp.diag(D) <= 10 * len(D) * jnp.finfo(D.dtype).eps * size  # a pivot that is no more than rounding
    D = jnp.where(known[:, None], 0.0, D) + jnp.diag(jnp.where(known, 1.0, 0.0))
    half = jnp.where(known, 0.0, half)
    return lambda gap: half @ solve_lower(D, jnp.where(known.reshape(-1, *[1] * (gap.ndim - 1)), 0.0, gap)), left
