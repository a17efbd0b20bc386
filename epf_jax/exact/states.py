"""The exact mean and sd of the states given the whole series, with theta integrated out on a grid."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from epf_jax.exact.given_series import in_double
from epf_jax.exact.kalman_oracle import kalman, kalman_states
from epf_jax.exact.quadrature import quadrature, quadrature_states
from epf_jax.exact.theta_grid import Axes
from epf_jax.models.state_space import StateSpaceModel

_LEAST_WEIGHT = 1e-9  # of a point of the grid that counts


class GridStates(NamedTuple):
    """Moments of x_0 .. x_T given y_1:T, with theta integrated out."""

    mean: Float[np.ndarray, "T+1 *x"]
    sd: Float[np.ndarray, "T+1 *x"]


def states(
    model: StateSpaceModel,
    y: Float[Array, "T *y"],
    axes: Axes,
    nodes: Any = None,
    *,
    inputs: Any = None,
    batch_size: int = 16,
) -> GridStates:
    """The exact mean and sd of every state given the whole series.

    Args:
        model: linear and Gaussian in its state; or, with `nodes`, any with a scalar state.
        y: the observations; NaN is missing.
        axes: for each parameter, the increasing values of its grid, as for `exact.kalman`.
        nodes: states to integrate over, as for `exact.quadrature`; by default Kalman's smoother.
        inputs: one row per observation, or None for the time index.
        batch_size: grid points evaluated at once.
    """
    model, values, rows = in_double(model, y, inputs)
    along = () if nodes is None else (nodes,)
    found = (kalman if nodes is None else quadrature)(model, values, axes, *along, inputs=rows)
    thetas, weights = found.points()
    counts = weights > _LEAST_WEIGHT
    thetas, weights = jax.tree.map(lambda leaf: leaf[counts], thetas), weights[counts] / np.sum(weights[counts])
    with jax.enable_x64(True):
        of = kalman_states if nodes is None else quadrature_states
        means, sds = map(np.asarray, _at_each(of, model, batch_size, thetas, values, along, rows))
    mean = np.tensordot(weights, means, axes=1)
    return GridStates(mean, np.sqrt(np.tensordot(weights, sds**2 + (means - mean) ** 2, axes=1)))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _at_each(of, model, batch_size, thetas, y, along, inputs):
    return jax.lax.map(lambda theta: of(model, theta, y, *along, inputs=inputs), thetas, batch_size=batch_size)
