"""Models ready to use: the paper's three, linear-Gaussian ones, a pendulum, volatility, regimes.

The paper is Erol et al. (2013); its models are `sinusoid` (section 5.1), `cauchy_ar1` (5.2) and `star` (5.3).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from epf_jax.core.checks import check_whole_number
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.switching import split_regime, switching


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


def pendulum(*, time_step: float = 0.1, observation_noise: float = 0.1) -> StateSpaceModel:
    r"""The angle q and velocity v of a pendulum, by Euler steps of length h, both observed in Gaussian noise.

    .. math:: q_t &= q_{t-1} + h\, v_{t-1} + N(0, 0.02^2) \\
              v_t &= v_{t-1} - h\,(k \sin q_{t-1} + c\, v_{t-1}) + N(0, \sigma^2)

    theta is the `stiffness` k, the `damping` c and the `noise` sigma, all positive with log-normal priors.
    """

    def transition(theta, x, u):
        q, v = x
        force = -theta["stiffness"] * jnp.sin(q) - theta["damping"] * v
        mean = jnp.stack([q + time_step * v, v + time_step * force])
        return dist.Normal(mean, jnp.stack([jnp.full_like(theta["noise"], 0.02), theta["noise"]])).to_event(1)

    return StateSpaceModel(
        prior={
            "stiffness": dist.LogNormal(jnp.log(4.0), 0.5),
            "damping": dist.LogNormal(jnp.log(0.3), 0.5),
            "noise": dist.LogNormal(jnp.log(0.2), 0.5),
        },
        initial=lambda theta: dist.Normal(jnp.array([1.0, 0.0]), 0.5).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, observation_noise).to_event(1),
    )


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


def switching_ar1(
    *, num_regimes: int = 2, spread: float = 2.0, stickiness: float = 8.0, observation_noise: float = 0.3
) -> StateSpaceModel:
    r"""Regimes :math:`r_t \sim P_{r_{t-1}\cdot}`, and :math:`w_t = a_{r_t} + \phi_{r_t} w_{t-1} + N(0, v_{r_t})`.

    The state is (r_t, w_t), and y_t = w_t in noise. theta is the `matrix` P with Dirichlet rows (`stickiness` on the
    diagonal, 1 elsewhere), and for each regime an `intercept` a, a `persistence` phi and a `variance` v: Gaussian and
    inverse-gamma. The prior means of the intercepts lie between -spread and spread, in order, so that regimes keep
    their names.
    """
    check_whole_number("num_regimes", num_regimes, least=2)
    K = num_regimes

    def transition(theta, x, u):
        regime, rest = split_regime(x)

        def given(r):
            return dist.Normal(
                theta["intercept"][r] + theta["persistence"][r] * rest[0], jnp.sqrt(theta["variance"][r])
            )

        return switching(theta["matrix"][regime], given)

    return StateSpaceModel(
        prior={
            "matrix": dist.Dirichlet(1.0 + (stickiness - 1.0) * jnp.eye(K)),
            "intercept": dist.Normal(jnp.linspace(-spread, spread, K), 0.5).to_event(1),
            "persistence": dist.Normal(0.5 * jnp.ones(K), 0.3).to_event(1),
            "variance": dist.InverseGamma(3.0 * jnp.ones(K), 0.5).to_event(1),
        },
        initial=lambda theta: switching(jnp.full(K, 1.0 / K), lambda r: dist.Normal(0.0, 1.0)),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[1], observation_noise),
    )
