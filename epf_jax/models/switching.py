r"""A state whose first coordinate is a regime: drawn first, and the rest of the state given it.

.. math:: r_t \sim \mathrm{Categorical}(p), \qquad w_t \sim p(w_t \mid r_t), \qquad x_t = (r_t, w_t)

States are one array, so the regime is a whole number stored as a float, x[0]; a model reads it with `x[0].astype(int)`.
If the state is only a regime, use `dist.Categorical` instead.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.checks import check_signature
from epf_jax.core.densities import log_prob
from epf_jax.core.no_gradient import guarded
from epf_jax.models.parameters import is_distribution


class Switching:
    """The joint distribution of a regime and the rest of the state; see `switching`."""

    def __init__(self, probabilities: Float[Array, " K"], given: Callable[[Array], Any]):
        self.probabilities = probabilities
        self.given = given

    def sample(self, key: PRNGKeyArray) -> Float[Array, " 1+d"]:
        """One draw, the regime first."""
        key_regime, key_rest = jax.random.split(key)
        regime = guarded(dist.Categorical(probs=self.probabilities)).sample(key_regime)  # a regime has no gradient
        rest = jnp.atleast_1d(self.given(regime).sample(key_rest))
        return jnp.concatenate([regime[None].astype(rest.dtype), rest])

    def log_prob(self, value: Float[Array, " 1+d"]) -> Float[Array, ""]:
        """Log p(regime) + log p(rest | regime)."""
        regime, rest = split_regime(value)
        return jnp.log(self.probabilities[regime]) + rest_log_prob(self.given(regime), rest)


def switching(probabilities: Float[Array, " K"], given: Callable[[Array], Any]) -> Switching:
    """The distribution of a state (regime, rest): what a switching model's `initial` and `transition` return.

    Args:
        probabilities: probabilities of the K regimes, such as a row of the transition matrix,
            `theta["matrix"][x_prev[0].astype(int)]`.
        given: `given(regime)`, the distribution of the rest of the state, a scalar or a vector. The regime is a whole
            number: `lambda r: dist.Normal(theta["phi"][r] * x_prev[1], 1.0)`.
    """
    if len(jnp.shape(probabilities)) != 1:
        raise ValueError(
            f"probabilities: expected a vector, one probability for each regime, got shape {jnp.shape(probabilities)}. "
            "Take the row of the transition matrix that belongs to the previous regime."
        )
    check_signature("given", given, ("regime",))
    if not is_distribution(given(jnp.asarray(0))):
        raise TypeError(
            f"given: expected a function of the regime that returns a distribution, but it returned "
            f"{type(given(jnp.asarray(0))).__name__}. Write it as lambda regime: dist.Normal(...)."
        )
    return Switching(jnp.asarray(probabilities), given)


def rest_log_prob(given: Any, rest: Float[Array, " d"]) -> Float[Array, ""]:
    """Log-density of the rest of the state; a scalar's distribution gets it without its axis."""
    shape = jax.eval_shape(given.sample, jax.random.key(0)).shape
    return log_prob(given, rest.reshape(shape))


def split_regime(x: Float[Array, " 1+d"]) -> tuple[Array, Float[Array, " d"]]:
    """The regime as a whole number, and the rest of the state."""
    return x[0].astype(int), x[1:]
