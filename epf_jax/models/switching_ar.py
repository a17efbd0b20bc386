"""A switching autoregression: a hidden regime decides which AR(1) moves the state."""

import jax.numpy as jnp
import numpyro.distributions as dist

from epf_jax.core.checks import check_whole_number
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.switching import split_regime, switching


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
