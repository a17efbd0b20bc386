r"""A proposal by Laplace's method: draws x_t near its mode given y_t, for any smooth observation.

A Gaussian transition is :math:`x_t = f + L e`, :math:`e \sim N(0, I)`, f and L functions of x_{t-1} and theta. Given
y_t, e has a density proportional to :math:`N(e; 0, I)\, p(y_t \mid f + L e)`. Newton's method finds its mode m from
e = 0, and its curvature there, :math:`H = I - \nabla^2 \log p(y_t \mid f + L e)`, says how wide it is (Tierney and
Kadane 1986; as a proposal, Doucet, Godsill and Andrieu 2000, section II.D). Draws come from

.. math:: q(e) = (1 - \epsilon)\, N(e; m, H^{-1}) + \epsilon\, N(e; 0, I)

with the weight :math:`N(e; 0, I)\, p(y_t \mid x_t) / q(e)`, at most :math:`p(y_t \mid x_t) / \epsilon`. So a misleading
mode (an outlier under heavy tails, which makes two modes) costs particles but leaves the answer right.
"""

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.checks import check_whole_number
from epf_jax.core.densities import observed_log_prob, sample_each
from epf_jax.core.dependence import abstractly
from epf_jax.core.gaussian import cholesky, moments, normal_log_prob, solve_lower, solve_upper
from epf_jax.core.random import normal
from epf_jax.models.state_space import StateSpaceModel, check_is_model
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.particles.proposals import Proposal, why_not_gaussian

_SHORTER = (1.0, 0.5, 0.25, 1 / 16, 1 / 128, 0.0)  # shares of Newton's step, of which the best is taken


@waits_for_inputs
def laplace(model: StateSpaceModel, num_steps: int = 3, *, defensive: float = 0.1) -> Proposal:
    """Draw x_t near the mode of p(x_t | x_{t-1}, y_t, theta): for Gaussian transitions and any smooth observation.

    Use it if `fully_adapted` does not fit and `bootstrap` wastes its particles, because the data say much more about
    x_t than x_{t-1} does: counts, Student noise, ranges, bearings. For each particle it costs some tens of evaluations
    of the observation's density and `num_steps` of its derivatives. y_t may be missing, wholly or in part.

    Args:
        model: the model, whose transition is Normal or MultivariateNormal with a state of at most one axis. The
            observation's density must have two derivatives with respect to x.
        num_steps: steps of Newton's method, each shortened until it improves.
        defensive: the share of draws from the transition, above 0 and below 1, which bound the weights.
    """
    check_is_model(model)
    check_whole_number("num_steps", num_steps, hint="Three find most modes.")
    if isinstance(defensive, bool) or not isinstance(defensive, numbers.Real) or not 0.0 < defensive < 1.0:
        raise ValueError(f"defensive: expected a share above 0 and below 1, such as 0.1, got {defensive!r}.")
    problem = why_not_laplace(model)
    if problem:
        raise ValueError(f"laplace: {problem} Use epf.bootstrap(), or epf.guided(q) with a proposal of your own.")

    def distribution(model, theta, x_prev, y, u):
        mean, scale_tril = moments(model.transition(theta, x_prev, u))
        scale_tril = _with_zero_columns(scale_tril)

        def log_likelihood(e):
            x = (mean + scale_tril @ e).reshape(jnp.shape(x_prev))
            return observed_log_prob(model.observation(theta, x, u), y)

        mode, precision_tril = _mode(log_likelihood, mean.shape[0], mean.dtype, num_steps)
        return _NearMode(mean.reshape(jnp.shape(x_prev)), scale_tril, mode, precision_tril, jnp.asarray(defensive))

    def log_weight(model, theta, x_prev, x, y, u):
        given_y = distribution(model, theta, x_prev, y, u)
        return observed_log_prob(model.observation(theta, x, u), y) - given_y.log_ratio(x)

    return Proposal(distribution, log_weight, name="Laplace", draw=_draw, made_for=model, why_not=why_not_laplace)


def why_not_laplace(model: StateSpaceModel) -> str:
    """What keeps `model` from Laplace's proposal, in a sentence; empty when nothing does."""
    return why_not_gaussian(model, "transition")


class _NearMode(NamedTuple):
    """The mixture q(e) of the module's docstring, as a distribution of x = mean + scale_tril e."""

    mean: Float[Array, "*d"]
    scale_tril: Float[Array, "d d"]
    mode: Float[Array, " d"]
    precision_tril: Float[Array, "d d"]  # the Cholesky factor of H
    defensive: Float[Array, ""]

    def sample(self, key: PRNGKeyArray) -> Array:
        """One draw, for checks of its shape; `_draw` makes those of all particles at once."""
        key_which, key_noise = jax.random.split(key)
        return self.at(jax.random.uniform(key_which), normal(key_noise, self.mode.shape))

    def at(self, which: Float[Array, ""], noise: Float[Array, " d"]) -> Array:
        """The draw, from a uniform number and standard normals."""
        near = self.mode + solve_upper(self.precision_tril, noise)
        e = jnp.where(which < self.defensive, noise, near)
        return self.mean + (self.scale_tril @ e).reshape(self.mean.shape)

    def log_ratio(self, x: Array) -> Float[Array, ""]:
        """Log q(x) - log p(x), p the transition's density."""
        # What x does not depend on is no nearer to the mode than before y: any number will do for it.
        e = jnp.where(jnp.diag(self.scale_tril) > 0, solve_lower(self._noisy_part, jnp.ravel(x - self.mean)), 0.0)
        white = self.precision_tril.T @ (e - self.mode)
        near = 0.5 * (e @ e - white @ white) + jnp.sum(jnp.log(jnp.diag(self.precision_tril)))
        return jnp.logaddexp(jnp.log1p(-self.defensive) + near, jnp.log(self.defensive))

    def log_prob(self, x: Array) -> Float[Array, ""]:
        return self.log_ratio(x) + normal_log_prob(jnp.ravel(x - self.mean), self._noisy_part)

    @property
    def _noisy_part(self) -> Array:
        diagonal = jnp.diag(self.scale_tril)
        return self.scale_tril + jnp.diag(jnp.where(diagonal > 0, 0.0, 1.0))


def _with_zero_columns(scale_tril: Array) -> Array:
    """A scale of the same noise; if it is singular, the columns of components without noise are zero.

    Examples: a lag in a companion form, or a position moved only by the noise of its velocity. x says nothing about e
    there.
    """
    if scale_tril.shape[0] == 1:
        return scale_tril
    is_singular = jnp.any(jnp.diag(scale_tril) == 0)
    return jnp.where(is_singular, cholesky(scale_tril @ scale_tril.T), scale_tril)


def _draw(key: PRNGKeyArray, distribution: Callable, num: int, *batched: Any) -> Array:
    """One draw of x_0 or x_t for each particle, like `densities.sample_each`."""
    kind = abstractly(distribution, *jax.tree.map(lambda leaf: leaf[0], batched))
    if not isinstance(kind, _NearMode):
        return sample_each(key, distribution, num, *batched)
    key_which, key_noise = jax.random.split(key)
    which, noise = jax.random.uniform(key_which, (num,)), normal(key_noise, (num, kind.mode.shape[0]))
    return jax.vmap(lambda which, noise, row: distribution(*row).at(which, noise))(which, noise, batched)


def _mode(log_likelihood: Any, dim: int, dtype: Any, num_steps: int) -> tuple[Array, Array]:
    """The mode of N(e; 0, I) L(e) that Newton's method finds, and the Cholesky factor of its curvature."""

    def log_density(e):
        value = log_likelihood(e) - 0.5 * e @ e
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    def step(e):
        gradient = jnp.nan_to_num(jax.grad(log_likelihood)(e) - e, posinf=0.0, neginf=0.0)
        curvature = _curvature(log_likelihood, e)
        newton = solve_upper(curvature, solve_lower(curvature, gradient))
        tried = e + jnp.asarray(_SHORTER, dtype)[:, None] * newton
        return tried[jnp.argmax(jax.vmap(log_density)(tried))]

    e = jnp.zeros(dim, dtype)
    for _ in range(num_steps):  # not a `fori_loop`: the draw's and the weight's would both be run
        e = step(e)
    return e, _curvature(log_likelihood, e)


def _curvature(log_likelihood: Any, e: Array) -> Array:
    """The Cholesky factor of H at e, or of a replacement if the density is not concave there."""
    hessian = jnp.nan_to_num(jax.hessian(log_likelihood)(e), posinf=0.0, neginf=0.0)
    unit = jnp.eye(e.shape[0], dtype=e.dtype)
    # Where log L is concave every pivot is 1 at least; elsewhere, as in the flanks of a Student density, how fast the
    # slope changes says how far a step may go, either way that it changes.
    factor = cholesky(unit - hessian)
    is_concave = jnp.all(jnp.diag(factor) >= 1.0 - 1e-3)
    apart = jnp.diag(jnp.sqrt(1.0 + jnp.abs(jnp.diag(hessian))))
    return jnp.where(is_concave, factor, apart)
