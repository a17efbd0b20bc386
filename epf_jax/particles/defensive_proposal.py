r"""A proposal for heavy-tailed transitions seen through Gaussian noise: half the transition, half what y_t says of x_t.

After a jump no draw of the transition is near y_t. An observation :math:`y_t \sim N(H x_t + c, R)`, H invertible, says
of itself that :math:`x_t \sim N(H^{-1}(y_t - c), H^{-1} R H^{-T})`, whose density is :math:`|H|\, p(y_t \mid x_t)`.
Draws come from

.. math:: q(x_t) = \tfrac12\, p(x_t \mid x_{t-1}, \theta) + \tfrac12\, |H|\, p(y_t \mid x_t, \theta)

and weigh :math:`p(x_t)\, p(y_t \mid x_t) / q(x_t)`, which is at most :math:`2 \min(p(x_t) / |H|, p(y_t \mid x_t))`.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.densities import log_prob, observed_log_prob
from epf_jax.core.dependence import abstractly
from epf_jax.core.gaussian import is_gaussian, linear_parts, normal_log_prob
from epf_jax.models.state_space import StateSpaceModel, check_is_model, row_of
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.particles.proposals import Proposal, why_not_linear_observation


@waits_for_inputs
def defensive(model: StateSpaceModel) -> Proposal:
    """Draw half of the particles from the transition and half from what y_t says of x_t.

    For transitions with heavy tails (Cauchy, Student) and an observation that is Gaussian with a mean linear in x, as
    many components as the state has. Where a component of y_t is missing, all draws are from the transition.

    Args:
        model: the model.
    """
    check_is_model(model)
    problem = why_not_defensive(model)
    if problem:
        raise ValueError(f"defensive: {problem} Use epf.bootstrap(), or epf.guided(q) with a proposal of your own.")
    x_shape, x_dtype = model.shapes.x.shape, model.shapes.x.dtype

    def by_y(model, theta, y, u):
        H, c, scale = linear_parts(lambda x: model.observation(theta, x, u), x_shape, x_dtype)
        volume = jnp.abs(jnp.linalg.det(H)) if len(H) > 1 else jnp.abs(H[0, 0])
        blind = jnp.any(jnp.isnan(y)) | ~(volume > 0)
        return jnp.where(blind, jnp.eye(len(H), dtype=H.dtype), H), c, scale, volume, blind

    def distribution(model, theta, x_prev, y, u):
        H, c, scale, _, blind = by_y(model, theta, y, u)
        return _Half(model.transition(theta, x_prev, u), H, c, scale, blind, jnp.asarray(y))

    def log_weight(model, theta, x_prev, x, y, u):
        volume, blind = by_y(model, theta, y, u)[-2:]
        prior = log_prob(model.transition(theta, x_prev, u), x)
        likelihood = observed_log_prob(model.observation(theta, x, u), y)
        near = jnp.where(blind, -jnp.inf, likelihood + jnp.log(volume))
        return jnp.where(blind, likelihood, prior + likelihood - jnp.logaddexp(prior, near) + jnp.log(2.0))

    return Proposal(distribution, log_weight, name="defensive", made_for=model, why_not=why_not_defensive)


class _Half(NamedTuple):
    """The mixture q of the module's docstring, to be drawn from."""

    transition: Any
    H: Float[Array, "d d"]
    c: Float[Array, " d"]
    scale: Float[Array, "d d"]
    blind: Array
    y: Array

    def sample(self, key: PRNGKeyArray) -> Array:
        """One draw."""
        key_which, key_prior, key_near = jax.random.split(key, 3)
        moved = self.transition.sample(key_prior)
        noise = self.scale @ jax.random.normal(key_near, self.c.shape, self.c.dtype)
        apart = jnp.nan_to_num(jnp.ravel(self.y) - self.c + noise)
        near = apart / self.H[0] if len(self.c) == 1 else jnp.linalg.solve(self.H, apart)
        from_transition = self.blind | (jax.random.uniform(key_which) < 0.5)
        return jnp.where(from_transition, moved, near.reshape(jnp.shape(moved)).astype(moved.dtype))

    def log_prob(self, x: Array) -> Float[Array, ""]:
        """The log-density of the mixture."""
        prior = log_prob(self.transition, x)
        seen = normal_log_prob(jnp.ravel(self.y) - self.c - self.H @ jnp.ravel(x), self.scale)
        near = seen + jnp.linalg.slogdet(self.H)[1]
        return jnp.where(self.blind, prior, jnp.logaddexp(prior, jnp.nan_to_num(near)) - jnp.log(2.0))


@lru_cache(maxsize=256)
def why_not_defensive(model: StateSpaceModel) -> str:
    """What keeps `model` from the defensive proposal, in a sentence; empty when nothing does."""
    problem = why_not_linear_observation(model)
    if problem:
        return problem
    x, y = model.shapes.x, model.shapes.y
    if math.prod(x.shape) != math.prod(y.shape):
        return f"an observation has shape {y.shape}, the state {x.shape}: y_t does not say where all of x_t is."
    theta = model.parameters.to_theta(model.parameters.centre)
    kind = abstractly(model.transition, theta, np.zeros(x.shape, x.dtype), row_of(model))
    if is_gaussian(kind):
        return "the transition is Gaussian: epf.fully_adapted(model) does better."
    support = getattr(kind, "support", None)
    support = getattr(support, "base_constraint", support)
    if type(support).__name__.lstrip("_").lower() not in ("real", "realvector"):
        return f"the transition is {type(kind).__name__}, whose states are not all real numbers."
    return ""
