r"""Conjugate families: the features of a parameter that its likelihood is linear in, and its exact conditional.

An inverse-gamma variance v, an inverse-Wishart covariance V, a Dirichlet row p, a gamma rate and a beta probability
have exponential-family densities,

.. math:: v: (\log v,\; 1/v) \qquad V: (\log |V|,\; V^{-1}) \qquad p: \log p \qquad \lambda: (\log\lambda,\; \lambda)
          \qquad q: (\log q,\; \log(1 - q)),

and a log-likelihood that is *linear* in these features. Its gradient with respect to them is all that the data say: the
conditional posterior is the prior with that gradient added to its natural parameters (half the count and half the sum
of squares, the scatter matrix, the counts of transitions). Coefficients (Gaussian parameters) enter quadratically;
their conditional is the Gaussian with the gradient and Hessian of the log-density.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from epf_jax.core.elementary import log_ndtr, normal_quantile_of_log
from epf_jax.core.gammas import gamma, log_gamma
from epf_jax.core.gaussian import base_distribution, cholesky, is_gaussian, solve_lower, solve_upper
from epf_jax.core.random import normal, side_by_side
from epf_jax.models.parameters import is_distribution


class NotConjugateError(ValueError):
    """The model has no exact conditionals of this kind."""


class Family(NamedTuple):
    """A conjugate family.

    Attributes:
        name: the name for messages.
        features: `features(value)`, the pytree that log-likelihoods are written in.
        draw: `draw(key, prior, gradient)`, the leaf of every particle given the gradients of their log-likelihoods with
            respect to its features; None for coefficients, which are drawn together (`draw_coefficients`).
        ends: `ends(value)`, two values far apart, at which slopes give the coefficients of the features for any data;
            None if features are not functions of one entry each.
        near: `near(value, k)`, another value close by, with each entry moved by its own share, which depends on k.
    """

    name: str
    features: Callable[[Array], Any]
    draw: Callable[[PRNGKeyArray, Any, Any], Array] | None = None
    ends: Callable[[Array], tuple[Array, Array]] | None = None
    near: Callable[[Array, int], Array] | None = None

    def slopes(self, value: Array) -> tuple[Array, ...]:
        """Of each feature, entry by entry."""
        return tuple(jax.tree.leaves(jax.jvp(self.features, (value,), (jnp.ones_like(value),))[1]))


class Leaf(NamedTuple):
    """One distribution of the prior.

    Attributes:
        name: its place in theta.
        prior: the distribution.
        family: its family.
        shape: the shape of its value.
    """

    name: str
    prior: Any
    family: Family
    shape: tuple[int, ...]


def prior_leaves(model: Any) -> list[Leaf]:
    """The leaves of the model's prior."""
    paths = jax.tree_util.tree_flatten_with_path(model.prior, is_leaf=is_distribution)[0]
    shapes = [leaf.shape for leaf in jax.tree.leaves(model.shapes.theta)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "theta" for path, _ in paths]
    return [
        Leaf(name, prior, family_of(name, prior), shape)
        for name, (_, prior), shape in zip(names, paths, shapes, strict=True)
    ]


def has_conjugate_noise(model: Any) -> bool:
    """Whether the prior has more than coefficients, and only conjugate families."""
    try:
        return any(leaf.family is not COEFFICIENTS for leaf in prior_leaves(model))
    except NotConjugateError:
        return False


def family_of(name: str, prior: Any) -> Family:
    """The conjugate family that a prior belongs to."""
    base = base_distribution(prior)
    if is_gaussian(prior) or _is_truncated_normal(prior):
        return COEFFICIENTS
    if type(base) is dist.InverseGamma:
        return VARIANCE
    if type(prior) is dist.InverseWishart and prior.batch_shape == ():
        return COVARIANCE
    if type(base) is dist.Dirichlet:
        return PROBABILITIES
    if type(base) in (dist.Gamma, dist.Exponential):
        return RATE
    if type(base) is dist.Beta:
        return SHARE
    raise NotConjugateError(
        f"the prior of {name!r} is a {type(prior).__name__}, which has no exact conditional: it takes Normal, "
        "TruncatedNormal (of a scalar), InverseGamma, InverseWishart, Dirichlet, Gamma, Exponential and Beta."
    )


def is_bounded(leaf: Leaf) -> bool:
    """Whether a leaf of coefficients is a truncated Gaussian."""
    return not is_gaussian(leaf.prior)


def _is_truncated_normal(prior: Any) -> bool:
    truncated = getattr(prior, "base_dist", None)
    has_bounds = hasattr(prior, "low") or hasattr(prior, "high")
    return has_bounds and type(truncated) is dist.Normal and prior.batch_shape == prior.event_shape == ()


# ------------------------------------------------------------------------------ variances, rates and probabilities


def _draw_variance(key, prior, gradient):
    by_log, by_inverse = gradient  # -n / 2 and minus half the sum of squares
    base = base_distribution(prior)
    return (base.rate - by_inverse) / _gamma(key, base.concentration - by_log)


def _draw_rate(key, prior, gradient):
    by_log, by_rate = gradient  # the count, and minus the exposure
    base = base_distribution(prior)
    return _positive(_gamma(key, getattr(base, "concentration", 1.0) + by_log) / (base.rate - by_rate))


def _draw_share(key, prior, gradient):
    successes, failures = gradient
    base = base_distribution(prior)
    both = jnp.stack(jnp.broadcast_arrays(base.concentration1 + successes, base.concentration0 + failures))
    drawn = jax.nn.sigmoid(jnp.subtract(*log_gamma(key, both)))
    return jnp.clip(drawn, jnp.finfo(drawn.dtype).tiny, 1 - jnp.finfo(drawn.dtype).eps)


def _gamma(key, concentration):
    return _positive(gamma(key, concentration))


def _covariance_features(value):
    L = cholesky(value)
    white = solve_lower(L, jnp.eye(value.shape[0], dtype=value.dtype))
    return 2 * jnp.sum(jnp.log(jnp.diag(L))), white.T @ white


def _draw_covariance(key, prior, gradient):
    by_log_det, by_inverse = gradient
    scale = prior.scale_matrix - 2 * by_inverse
    scale = 0.5 * (scale + scale.mT)
    num, d, _ = scale.shape
    degrees = prior.concentration - 2 * by_log_det[:, None]
    # Bartlett: the inverse is Wishart, L^{-T} A A^T L^{-1} with scale = L L^T, so the draw is B B^T, B^T = A^{-1} L^T.
    key_diagonal, key_below = jax.random.split(key)
    diagonal = jnp.sqrt(2 * _gamma(key_diagonal, (degrees - jnp.arange(d)).astype(scale.dtype) / 2))
    below = side_by_side(normal, key_below, (num,), (d, d), scale.dtype)

    def draw(scale, diagonal, below):
        B = solve_lower(jnp.tril(below, -1) + jnp.diag(diagonal), cholesky(scale).T)
        return B.T @ B

    return jax.vmap(draw)(scale, diagonal, below)


def _draw_probabilities(key, prior, gradient):
    concentration = jnp.broadcast_to(base_distribution(prior).concentration, gradient.shape) + gradient
    rows = _positive(jax.nn.softmax(log_gamma(key, concentration.astype(gradient.dtype))))
    return rows / jnp.sum(rows, axis=-1, keepdims=True)


def _positive(drawn):
    """The draw, with the smallest positive number instead of zero, so that theta stays inside its support."""
    return jnp.maximum(drawn, jnp.finfo(drawn.dtype).tiny)


def _far_apart(value):
    return jnp.clip(1e-8 * value, 1e-14, 1e-2), jnp.clip(1e8 * value, 1e2, 1e14)


def _shares(value, k):
    """Numbers between 0 and 1, different for each entry."""
    return (0.618 * (jnp.arange(value.size) + 1) + 0.414 * k).reshape(value.shape) % 1.0


def _longer(value, k):
    return value * (1.2 + 0.6 * _shares(value, k))


def _between(value, k):
    return 0.7 * value + 0.3 * (0.1 + 0.8 * _shares(value, k))


def _mixed(value, k):
    others = 0.1 + _shares(value, k)
    return 0.7 * value + 0.3 * others / jnp.sum(others, axis=-1, keepdims=True)


COEFFICIENTS = Family("Gaussian", lambda value: value)
VARIANCE = Family(
    "an inverse-gamma variance", lambda value: (jnp.log(value), 1 / value), _draw_variance, _far_apart, _longer
)
COVARIANCE = Family("an inverse-Wishart covariance", _covariance_features, _draw_covariance)
PROBABILITIES = Family("Dirichlet", jnp.log, _draw_probabilities, lambda value: (value, value), _mixed)
RATE = Family("a gamma rate", lambda value: (jnp.log(value), value), _draw_rate, _far_apart, _longer)
SHARE = Family(
    "a beta probability",
    lambda value: (jnp.log(value), jnp.log1p(-value)),
    _draw_share,
    lambda value: (jnp.full_like(value, 1e-3), jnp.full_like(value, 1 - 1e-3)),
    _between,
)


# ------------------------------------------------------------------------------------------------------ coefficients


def draw_coefficients(
    key: PRNGKeyArray, leaves: list[Leaf], values: list[Array], log_likelihood: Callable[..., Float[Array, ""]], S: Any
) -> list[Array]:
    """The leaves of every particle from their joint conditional.

    Args:
        key: a random key.
        leaves: the leaves to draw.
        values: the current values of each particle.
        log_likelihood: `log_likelihood(values, S)` of one particle, jointly quadratic in its values.
        S: the statistic of each particle.
    """
    bounded = [leaf for leaf in leaves if is_bounded(leaf)]
    num, dtype = values[0].shape[0], jnp.result_type(*values)
    if bounded:
        numbers = jax.random.uniform(key, (num,), dtype, minval=jnp.finfo(dtype).tiny)
    else:
        numbers = side_by_side(normal, key, (num,), (sum(value[0].size for value in values),), dtype)

    def draw(numbers, values, S):
        flat, structure = ravel_pytree(values)

        def log_joint(flat):
            values = structure(flat)
            prior = sum(jnp.sum(_untruncated(leaf).log_prob(v)) for leaf, v in zip(leaves, values, strict=True))
            return prior + log_likelihood(values, S)

        # A quadratic is known from its slope and curvature anywhere: here, where the particle stands.
        slope, curvature = jax.grad(log_joint)(flat), jax.hessian(log_joint)(flat)
        L = cholesky(-curvature)
        white = solve_lower(L, slope)
        if bounded:
            return [_truncated(numbers, bounded[0].prior, flat[0] + white[0] / L[0, 0], 1 / L[0, 0])]
        return structure(flat + solve_upper(L, white + numbers))

    return jax.vmap(draw)(numbers, values, S)


def _untruncated(leaf: Leaf) -> Any:
    return leaf.prior.base_dist if is_bounded(leaf) else leaf.prior


def _truncated(u, prior, mean, sd):
    """The quantile at u of a Gaussian between the prior's bounds, never exactly on a bound."""
    low, high = (
        jnp.asarray(getattr(prior, side, end), sd.dtype) for side, end in (("low", -jnp.inf), ("high", jnp.inf))
    )
    a, b = (low - mean) / sd, (high - mean) / sd
    mirrored = a > -b  # the interval is more to the right, where the distribution function is too near to one
    a, b = jnp.where(mirrored, -b, a), jnp.where(mirrored, -a, b)
    log_a, log_b = log_ndtr(a), log_ndtr(b)
    log_p = log_b + jnp.log(u + (1 - u) * jnp.exp(log_a - log_b))  # of the draw: in logs, for both may be next to zero
    standard = jnp.clip(normal_quantile_of_log(log_p), a, b)
    inside = (jnp.nextafter(low, high), jnp.nextafter(high, low))
    return jnp.clip(mean + sd * jnp.where(mirrored, -standard, standard), *inside)
