r"""Exact statistics of separable systems (Erol et al. 2013, Theorem 1).

For :math:`f_\theta(x) = l(x)^T h(\theta)` and Gaussian noise of covariance Q,

.. math:: \log p(\theta \mid x_{0:t}) = \log p(\theta) + S_1^T h(\theta) - \tfrac12 h(\theta)^T S_2\, h(\theta) + c,
          \quad S_1 = \sum_t l(x_{t-1}) Q^{-1} x_t, \quad S_2 = \sum_t l(x_{t-1}) Q^{-1} l(x_{t-1})^T .

h may be any function of theta. Only the values of l enter the sums, so the statistic always has m + m^2 numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.checks import check_signature, shape_of_call
from epf_jax.core.gaussian import solve_lower
from epf_jax.models.path_terms import GaussianTerm, gaussian_term, other_inputs, path_terms, whiten
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.samplers import Sampler
from epf_jax.statistics.statistic import Statistic, check_model_learns, from_log_target

_PROBES = 6  # places at which features and coefficients are compared with the model


class SeparableStatistic(NamedTuple):
    """The sums S_1 and S_2 of one term."""

    S_1: Float[Array, " m"]
    S_2: Float[Array, "m m"]


@waits_for_inputs
def separable(
    model: StateSpaceModel,
    features: Callable[[Array, Any], Array] | None = None,
    coefficients: Callable[[Any], Array] | None = None,
    *,
    observation_features: Callable[[Array, Any], Array] | None = None,
    observation_coefficients: Callable[[Any], Array] | None = None,
    sampler: Sampler | None = None,
) -> Statistic:
    """The exact statistic of a system whose mean is features(x)^T coefficients(theta), with known Gaussian noise.

    Args:
        model: the model; its transition must have exactly this mean, which is checked at a few points.
        features: `l(x_prev, u)`, of shape (m,) for a scalar state and (m, d) for a vector one.
        coefficients: `h(theta)`, of shape (m,).
        observation_features: `l(x, u)` for the mean of y, if theta enters the observation.
        observation_coefficients: `h(theta)` for the mean of y.
        sampler: how theta is drawn; `random_walk()` by default.
    """
    check_model_learns(model, "separable")
    coordinates, terms = model.parameters, path_terms(model)
    if terms.initial:
        raise ValueError(
            "separable: the distribution of x_0 depends on theta, which these sums do not contain. "
            "Use epf.chebyshev(model)."
        )
    given = {
        "transition": (features, coefficients),
        "observation": (observation_features, observation_coefficients),
    }
    parts = [_part(term, *given[term.name], model, terms.example) for term in terms.steps]

    def init(x_0=None):
        return tuple(SeparableStatistic(jnp.zeros(m), jnp.zeros((m, m))) for *_, m in parts)

    def update(key, S, theta, x_prev, x, y, u):
        return tuple(absorb(s, part, x_prev, x, y, u) for s, part in zip(S, parts, strict=True))

    def absorb(s, part, x_prev, x, y, u):
        gaussian, l, _, m = part
        scale = gaussian.scale_tril(coordinates.centre, x_prev, x, u)
        rows = jnp.reshape(l(_given(gaussian, x_prev, x), u), (m, -1)).T
        value, rows, scale = whiten(gaussian, gaussian.term.value(x, y), scale, rows)
        white = solve_lower(scale, rows)
        return SeparableStatistic(s.S_1 + white.T @ solve_lower(scale, value), s.S_2 + white.T @ white)

    def log_likelihood(S, theta):
        total = jnp.zeros(())
        for s, (_, _, h, _) in zip(S, parts, strict=True):
            total += s.S_1 @ h(theta) - 0.5 * h(theta) @ s.S_2 @ h(theta)
        return total

    reference = coordinates.to_theta(coordinates.centre)

    def log_target(S):
        at_reference = log_likelihood(S, reference)
        return lambda z: coordinates.log_prior(z) + log_likelihood(S, coordinates.to_theta(z)) - at_reference

    return from_log_target(model, init, update, log_target, sampler, "separable")


def _given(gaussian: GaussianTerm, x_prev, x):
    return x_prev if gaussian.term.name == "transition" else x


def _part(term, features, coefficients, model, example):
    """The term with its l, h and m, after checking that they agree with the model."""
    prefix = "observation_" if term.name == "observation" else ""
    if features is None or coefficients is None:
        raise ValueError(
            f"separable: theta enters the {term.name}, so {prefix}features and {prefix}coefficients are needed: its "
            "mean as features(x)^T coefficients(theta)."
        )
    gaussian = gaussian_term(term, model.parameters.centre, example)
    if gaussian is None or not gaussian.known_noise:
        what = "is not Gaussian" if gaussian is None else "has noise that depends on theta"
        raise ValueError(
            f"separable: the {term.name} {what}. Use epf.chebyshev(model) or epf.taylor(model, order=...)."
        )
    _, x, _, u = example
    theta = model.parameters.to_theta(model.parameters.centre)
    check_signature(f"{prefix}features", features, ("x", "u"), returns="an array")
    check_signature(f"{prefix}coefficients", coefficients, ("theta",), returns="a vector")
    h = shape_of_call(f"{prefix}coefficients", coefficients, theta)
    l = shape_of_call(f"{prefix}features", features, x, u)
    if len(h) != 1:
        raise ValueError(
            f"{prefix}coefficients: expected a vector h(theta) of shape (m,), got shape {h}. Put the m numbers into "
            "one vector, for example with jnp.stack."
        )
    if l not in {(h[0],), (h[0], gaussian.dim)} or (len(l) == 1 and gaussian.dim != 1):
        raise ValueError(
            f"{prefix}features: expected shape (m, {gaussian.dim}){' or (m,)' if gaussian.dim == 1 else ''} for the "
            f"m = {h[0]} coefficients, one row each, got shape {l}."
        )
    _check_same_mean(gaussian, features, coefficients, model, example, prefix)
    return gaussian, features, coefficients, h[0]


def _check_same_mean(gaussian, features, coefficients, model, example, prefix):
    _, x, _, u = example
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(u)):
        return
    key_theta, key_x = jax.random.split(jax.random.key(0))
    thetas = model.parameters.sample(key_theta, _PROBES)
    states = jax.random.normal(key_x, (_PROBES, *x.shape))
    rows = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (_PROBES, *np.shape(leaf))).copy(), u)
    inputs = jax.tree.map(lambda leaf: np.concatenate([leaf[:1], other_inputs(leaf)[1:]]), rows)

    def both(theta, state, u):
        z = model.parameters.to_vector(theta)
        product = jnp.reshape(features(state, u), (-1, gaussian.dim)).T @ coefficients(theta)
        noise = jnp.linalg.norm(gaussian.scale_tril(z, state, state, u), axis=1)
        return gaussian.mean(z, state, state, u), product, noise

    found = jax.vmap(both)(thetas, states, inputs)
    if isinstance(found[0], jax.core.Tracer):
        return
    mean, product, noise = (np.asarray(each, float) for each in found)
    # A state or an input that is made up may be impossible, and what has no noise does not count. A hundredth of the
    # noise is what rounding makes of a season, sin(2 pi u / 12), at u = 1e5 in float32, twice over.
    meant = np.isfinite(mean) & (noise > 0)
    off = meant & ~(np.abs(mean - product) <= 1e-4 * np.abs(mean) + 1e-2 * noise)
    if off.any():
        i = int(np.argmax(off.any(axis=1)))
        given = jax.tree.map(lambda leaf: leaf[i].tolist(), inputs)
        raise ValueError(
            f"{prefix}features, {prefix}coefficients: features(x)^T coefficients(theta) is not the mean of the model's "
            f"{gaussian.term.name}. At a state drawn at random and u = {given} they give {product[i]}, the model "
            f"{mean[i]}."
        )
