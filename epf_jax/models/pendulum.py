"""A damped pendulum under noise: two states, two observations, three positive parameters."""

import jax.numpy as jnp
import numpyro.distributions as dist

from epf_jax.models.state_space import StateSpaceModel


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
