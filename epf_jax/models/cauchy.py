"""The Cauchy AR(1) model of Erol et al. (2013), section 5.2."""

import numpyro.distributions as dist

from epf_jax.models.state_space import StateSpaceModel


def cauchy_ar1(
    *, prior_mean: float = 0.0, prior_sd: float = 0.2, noise: float = 1.0, observation_noise: float = 10.0
) -> StateSpaceModel:
    r""":math:`x_t = a x_{t-1} + \mathrm{Cauchy}(0, noise)`, :math:`y_t = x_t + N(0, observation\_noise^2)`.

    Defaults are the paper's, which generates data with a = 0.7 and reads N(0, sigma_obs) as having sd 10.
    """
    return StateSpaceModel(
        prior={"a": dist.Normal(prior_mean, prior_sd)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Cauchy(theta["a"] * x, noise),
        observation=lambda theta, x, u: dist.Normal(x, observation_noise),
    )
