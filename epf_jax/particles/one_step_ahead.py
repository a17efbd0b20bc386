r"""One-step-ahead predictions, and the probability integral transform of the observation.

The one-step-ahead predictive distribution is a mixture over the particles before the observation,

.. math:: p(y_t \mid y_{1:t-1}) \approx \sum_i w^i_{t-1}\, p(y_t \mid x^i_t, \theta^i_{t-1}), \qquad
          x^i_t \sim p(x_t \mid x^i_{t-1}, \theta^i_{t-1}) ,

Its distribution function at y_t, the probability integral transform (Dawid 1984; Rosenblatt 1952), is uniform and
independent over time if model and filter are right. Each component of y has its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.densities import marginal_cdf, sample_each
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.weights import as_rows, normalised, row_sums


def advance(
    key: PRNGKeyArray, model: StateSpaceModel, theta: Theta, x: Float[Array, "N *x"], u: Any
) -> tuple[Float[Array, "N *x"], Float[Array, "N *y"]]:
    """Every particle moved one step by the transition, and an observation drawn for each."""
    key_state, key_observation = jax.random.split(key)
    num = x.shape[0]
    moved = sample_each(key_state, lambda theta, x: model.transition(theta, x, u), num, theta, x).astype(x.dtype)
    return moved, sample_each(key_observation, lambda theta, x: model.observation(theta, x, u), num, theta, moved)


def probability_integral_transform(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    theta: Theta,
    x: Float[Array, "N *x"],
    drawn: Float[Array, "N *y"],
    log_weights: Float[Array, " N"],
    y: Float[Array, "*y"],
    u: Any,
) -> Float[Array, "*y"]:
    """The mixture's distribution function at y, per component; NaN where y is missing.

    Args:
        key: a key that spreads a count over its step of the distribution function.
        model: the model.
        theta: the particles' parameters.
        x: the particles' predicted states x_t.
        drawn: an observation drawn for each particle; ranks among these are used if the observation has no `cdf`.
        log_weights: the particles' weights before the observation.
        y: the observation.
        u: the step's input.
    """
    w = normalised(log_weights)
    found = jax.vmap(lambda theta, x: marginal_cdf(model.observation(theta, x, u), y))(theta, x)
    below, upto = (drawn < y, drawn <= y) if found is None else found
    low, high = (row_sums(w * as_rows(each)).reshape(each.shape[1:]) for each in (below, upto))
    pit = jnp.clip(low + jax.random.uniform(key, low.shape, low.dtype) * (high - low), 0.0, 1.0)
    seen = ~jnp.isnan(y) if jnp.issubdtype(y.dtype, jnp.floating) else True
    return jnp.where(seen, pit, jnp.nan)
