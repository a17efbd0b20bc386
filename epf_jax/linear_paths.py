r"""Paths of a model that is linear and Gaussian in its state, given theta and all observations: exact draws.

Of a path x* that was simulated with its observations y*, what is left when its mean given y* is taken away has the law
of a path given y less its own mean (Durbin and Koopman 2002):

.. math:: x = x^* + E_0[x \mid y - y^*],

E_0 the mean in the same model with all offsets zero. That mean is Kalman's filter and a pass back (de Jong 1989) in
which no covariance of states is inverted, so that components without noise are no trouble:

    forward   m_t, P_t given y_1:t; D_t, K_t and v_t, the scale, the gain and the surprise of y_t
    back      E[x_t] = m_t + P_t s_t,   s_T = 0,   s_{t-1} = A_t^T (H_t^T D_t^{-1} v_t + (I - K_t H_t)^T s_t)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.gaussian import (
    factors_of_gain,
    linear_parts,
    mask_covariance,
    mask_missing,
    moments,
    solve_lower,
    solve_upper,
)
from epf_jax.model import StateSpaceModel, simulate
from epf_jax.parameters import Theta
from epf_jax.random import threefry
from epf_jax.triangular import scale_of_sum


def draw_linear_path(
    key: PRNGKeyArray, model: StateSpaceModel, theta: Theta, y: Float[Array, "T *y"], u: Any
) -> Float[Array, "T+1 *x"]:
    """One draw of x_0 .. x_T given y_1:T and theta, of a model that `why_not_kalman` has nothing against."""
    x, y_simulated = simulate(threefry(key), model, theta, len(y), inputs=u)
    return x + _mean_of_states(model, theta, y - y_simulated, u).reshape(x.shape)


class _Step(NamedTuple):
    """What the pass back needs of a step: A_t, m_t, a scale of P_t, H_t^T D_t^-1 v_t and I - K_t H_t."""

    A: Float[Array, "n n"]
    m: Float[Array, " n"]
    L: Float[Array, "n n"]
    surprise: Float[Array, " n"]
    kept: Float[Array, "n n"]


def _mean_of_states(model, theta, y, rows) -> Float[Array, "T+1 n"]:
    """E_0[x_0 .. x_T | y]; NaN is missing."""
    x_shape, n = model.shapes.x.shape, max(1, model.shapes.x.size)

    def forward(carry, row):
        m, L = carry
        y, u = row
        A, _, L_Q = linear_parts(lambda x: model.transition(theta, x, u), x_shape)
        H, _, L_R = linear_parts(lambda x: model.observation(theta, x, u), x_shape)
        m, L = A @ m, scale_of_sum(A @ L, L_Q)
        y, (seen, H) = jnp.ravel(y), mask_missing(jnp.ravel(y), H)
        D, half, left = factors_of_gain(L, H, mask_covariance(y, L_R))
        white = solve_lower(D, seen - H @ m)
        surprise, kept = H.T @ solve_upper(D, white), jnp.eye(n) - half @ solve_lower(D, H)
        m = m + half @ white
        return (m, left), _Step(A, m, left, surprise, kept)

    def back(s, step):
        return step.A.T @ (step.surprise + step.kept.T @ s), step.m + step.L @ (step.L.T @ s)

    zero, (_, L) = jnp.zeros(n), moments(model.initial(theta))
    _, steps = jax.lax.scan(forward, (zero, L.astype(zero.dtype)), (y, rows))
    first, means = jax.lax.scan(back, zero, steps, reverse=True)
    return jnp.vstack([L @ (L.T @ first), means])
