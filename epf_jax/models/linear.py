"""Linear-Gaussian models: an AR(1) with an unknown coefficient, and a local level with unknown noise scales.

All have an exact Kalman filter given theta (`epf_jax.exact.kalman_oracle`), and so serve as test cases.
"""

import jax.numpy as jnp
import numpyro.distributions as dist

from epf_jax.models.state_space import StateSpaceModel


def ar1(*, prior_sd: float = 0.5, noise: float = 1.0, observation_noise: float = 0.5) -> StateSpaceModel:
    r""":math:`x_t = \phi x_{t-1} + N(0, noise^2)`, :math:`y_t = x_t + N(0, observation\_noise^2)`, phi unknown."""
    return StateSpaceModel(
        prior={"phi": dist.Normal(0.0, prior_sd)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, noise),
        observation=lambda theta, x, u: dist.Normal(x, observation_noise),
    )


def local_level(*, level_noise: float = 0.5, observation_noise: float = 1.0, spread: float = 0.5) -> StateSpaceModel:
    r"""A random walk observed with noise, both scales unknown and positive.

    :math:`x_t = x_{t-1} + N(0, \sigma_x^2)`, :math:`y_t = x_t + N(0, \sigma_y^2)`; theta is `level_noise` and
    `observation_noise`, log-normal about the given values with log-scale `spread`.
    """
    return StateSpaceModel(
        prior={
            "level_noise": dist.LogNormal(jnp.log(level_noise), spread),
            "observation_noise": dist.LogNormal(jnp.log(observation_noise), spread),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x, theta["level_noise"]),
        observation=lambda theta, x, u: dist.Normal(x, theta["observation_noise"]),
    )


def local_level_variances(
    *, level_variance: float = 0.25, observation_variance: float = 1.0, shape: float = 3.0
) -> StateSpaceModel:
    r"""A random walk observed with noise, both *variances* unknown: `local_level` with conjugate priors.

    :math:`x_t = x_{t-1} + N(0, v_x)`, :math:`y_t = x_t + N(0, v_y)`; theta is `level_variance` and
    `observation_variance`, inverse-gamma with the given means and the given shape (above 1).
    """
    return StateSpaceModel(
        prior={
            "level_variance": dist.InverseGamma(shape, (shape - 1) * level_variance),
            "observation_variance": dist.InverseGamma(shape, (shape - 1) * observation_variance),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x, jnp.sqrt(theta["level_variance"])),
        observation=lambda theta, x, u: dist.Normal(x, jnp.sqrt(theta["observation_variance"])),
    )
