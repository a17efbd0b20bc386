"""SIN: the sinusoidal model of Erol et al. (2013), section 5.1."""

import jax.numpy as jnp
import numpyro.distributions as dist

from epf_jax.models.state_space import StateSpaceModel


def sinusoid(*, prior_sd: float = 0.2, noise: float = 1.0, observation_noise: float = 0.1) -> StateSpaceModel:
    r""":math:`x_t = \sin(\theta x_{t-1}) + N(0, noise^2)`, :math:`y_t = x_t + N(0, observation\_noise^2)`.

    Defaults are the paper's, which generates data with theta = 0.7, 3.5 prior standard deviations from 0.
    """
    return StateSpaceModel(
        prior={"theta": dist.Normal(0.0, prior_sd)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(jnp.sin(theta["theta"] * x), noise),
        observation=lambda theta, x, u: dist.Normal(x, observation_noise),
    )
