"""STAR: the smooth-transition autoregression of Erol et al. (2013), section 5.3."""

import jax
import numpyro.distributions as dist

from epf_jax.models.state_space import StateSpaceModel


def star(
    *, low_memory: float = 0.1, high_memory: float = 0.9, noise: float = 1.0, observation_noise: float = 0.1
) -> StateSpaceModel:
    r""":math:`x_t = (a (1 - G) + b G) x_{t-1} + N(0, noise^2)`, :math:`G = 1/(1 + e^{-\gamma(x_{t-1} - c)})`.

    a = `high_memory`, b = `low_memory`; :math:`y_t = x_t + N(0, observation\_noise^2)`. The paper generates data with
    gamma = 1, c = 3 and states no prior; gamma ~ N(.5, .5^2) and c ~ N(2, 1) are ours.
    """

    def transition(theta, x, u):
        G = jax.nn.sigmoid(theta["gamma"] * (x - theta["c"]))
        return dist.Normal((high_memory * (1 - G) + low_memory * G) * x, noise)

    return StateSpaceModel(
        prior={"gamma": dist.Normal(0.5, 0.5), "c": dist.Normal(2.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, observation_noise),
    )
