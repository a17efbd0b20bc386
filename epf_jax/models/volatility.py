"""Stochastic volatility: the log-variance of returns is an autoregression."""

from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist

from epf_jax.models.state_space import StateSpaceModel


def stochastic_volatility(*, prior: dict[str, Any] | None = None) -> StateSpaceModel:
    r"""Returns :math:`y_t = N(0, e^{x_t})` and their log-volatility :math:`x_t = \mu + \phi (x_{t-1} - \mu) + N(0, v)`.

    theta is the `level` mu, the `persistence` phi and the `variance` v (the volatility of volatility, squared). The
    priors are mu ~ N(0, 1), phi ~ N(0.9, 0.1^2) between -1 and 1, v ~ IG(2.5, 0.075), and x_0 ~ N(0, 1). They are
    conjugate block by block, so that `storvik_filter` is exact given each path. `prior` replaces any of the three, for
    example by the transformed beta distribution of Kim, Shephard and Chib (1998) for phi, which other filters can
    learn. Data: level = 0, persistence = 0.95, variance = 0.05.
    """
    default = {
        "level": dist.Normal(0.0, 1.0),
        "persistence": dist.TruncatedNormal(0.9, 0.1, low=-1.0, high=1.0),
        "variance": dist.InverseGamma(2.5, 0.075),
    }

    def transition(theta, x, u):
        mean = theta["level"] + theta["persistence"] * (x - theta["level"])
        return dist.Normal(mean, jnp.sqrt(theta["variance"]))

    return StateSpaceModel(
        prior=default | (prior or {}),
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(0.0, jnp.exp(x / 2)),
    )
