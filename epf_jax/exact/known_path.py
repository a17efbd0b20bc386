r"""The Gibbs density p(theta | x_0:t) of a known path, which a particle's statistic approximates.

.. math:: \log p(\theta \mid x_{0:t}) = \log p(\theta) + \log p(x_0 \mid \theta)
          + \sum_{s \le t} \log p(x_s \mid x_{s-1}, \theta) \;[\, + \log p(y_s \mid x_s, \theta)\,] + c
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epf_jax.core.densities import log_prob, observed_log_prob
from epf_jax.exact.given_series import as_path, in_double, series_at
from epf_jax.exact.theta_grid import Axes, GridPosterior, likelihood_of, posterior
from epf_jax.models.given_inputs import input_arrays
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel, input_rows, seen


def path_log_likelihood(
    model: StateSpaceModel,
    theta: Theta,
    x: Float[Array, "T+1 *x"],
    y: Float[Array, "T *y"] | None = None,
    *,
    inputs: Any = None,
) -> Float[Array, " T"]:
    """Log p(x_0:t | theta), or log p(x_0:t, y_1:t | theta) with observations, for every t."""
    if y is None:
        given = None if inputs is None else input_arrays(inputs)
        model = seen(model, given)
        x = as_path(model, theta, x)
        rows = input_rows(given, len(x) - 1, model=model)
    else:
        model, y, rows = series_at(model, theta, y, inputs)
        x = as_path(model, theta, x)
        if len(y) != len(x) - 1:
            raise ValueError(
                f"y: expected {len(x) - 1} observations for the path x_0..x_{len(x) - 1}, got {len(y)}. x_0 has none."
            )

    def term(x_prev, x, u):
        return log_prob(model.transition(theta, x_prev, u), x)

    def observed(x, y, u):
        return observed_log_prob(model.observation(theta, x, u), y)

    terms = jax.vmap(term)(x[:-1], x[1:], rows)
    if y is not None:
        terms = terms + jax.vmap(observed)(x[1:], y, rows)
    return log_prob(model.initial(theta), x[0]) + jnp.cumsum(terms)


def known_path(
    model: StateSpaceModel, x: Array, axes: Axes, y: Array | None = None, *, inputs: Any = None, batch_size: int = 64
) -> GridPosterior:
    """The Gibbs density of theta on a grid, for a known path x_0..x_T (and its observations).

    Args:
        model: the model.
        x: the path, x_0 first.
        axes: for each parameter, the increasing values of its grid: {"theta": jnp.linspace(-1.2, 1.2, 481)}.
        y: the observations, if theta enters their distribution.
        inputs: one row per observation, or None for the time index.
        batch_size: grid points evaluated at once.
    """
    with jax.enable_x64(True):
        if y is None:
            rows = None if inputs is None else input_arrays(inputs)
            model = seen(model, rows)
        else:
            model, y, rows = in_double(model, y, inputs)
    return posterior(model, axes, likelihood_of(path_log_likelihood, model), x, y, rows, batch_size=batch_size)
