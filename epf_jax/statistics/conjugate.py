r"""Storvik's Gaussian system process: a Kalman filter in parameter space (Storvik 2002; Erol et al. 2013, appendix A).

For :math:`v_t = F_t^T \theta + b_t + \epsilon_t`, :math:`\epsilon_t \sim N(0, Q_t)`, and a Gaussian prior,
:math:`\theta \mid x_{0:t} \sim N(m_t, C_t)` with

.. math::
    D_t &= F_t^T C_{t-1} F_t + Q_t \\
    C_t &= C_{t-1} - C_{t-1} F_t D_t^{-1} F_t^T C_{t-1} \\
    m_t &= m_{t-1} + C_{t-1} F_t D_t^{-1} (v_t - b_t - F_t^T m_{t-1})

:math:`v_t` is the state x_t, the observation y_t, or both in turn, wherever theta enters linearly. F and b are derived
from the model, whose mean is affine in theta.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from epf_jax.core.gaussian import condition, is_gaussian, moments, solve_lower
from epf_jax.core.random import normal
from epf_jax.models.parameters import is_distribution
from epf_jax.models.path_terms import (
    GaussianTerm,
    Term,
    Terms,
    gaussian_term,
    is_linear,
    is_silent,
    path_terms,
    require_noise,
)
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.samplers import exact_draw
from epf_jax.statistics.statistic import Statistic, check_model_learns


class GaussianStatistic(NamedTuple):
    """theta | path ~ N(m, C), C = L L^T. In float32 C itself could not hold both a vague prior and precise data."""

    m: Float[Array, " P"]
    L: Float[Array, "P P"]

    @property
    def C(self) -> Float[Array, "P P"]:  # noqa: N802
        """The covariance."""
        return self.L @ self.L.swapaxes(-1, -2)  # of NumPy, too


class LinearPart(NamedTuple):
    """A Gaussian term whose mean is affine in theta.

    Attributes:
        gaussian: the term.
        inflate: `inflate(key, residual, x_prev, x, u)`, factors on the noise of each component given the standardised
            residual at the particle's own theta; None if the noise is that of the term.
    """

    gaussian: GaussianTerm
    inflate: Callable[..., Float[Array, " d"]] | None = None


@waits_for_inputs
def conjugate(model: StateSpaceModel) -> Statistic:
    """The exact statistic (m_t, C_t) of a model that is linear in theta with known Gaussian noise.

    theta may enter the transition, the observation (missing components are skipped exactly) or the initial state; x
    may enter in any way. The draw is exact, independent of the previous theta.
    """
    check_model_learns(model, "conjugate")
    problem = why_not_conjugate(model)
    if problem:
        raise ValueError(f"conjugate: {problem} Use epf.chebyshev(model) or epf.taylor(model, order=...).")
    terms = path_terms(model)
    require_noise(model, "conjugate")
    initial, steps = ([linear_part(term, model, terms) for term in group] for group in (terms.initial, terms.steps))
    return linear_gaussian_statistic(model, initial, steps, "conjugate")


def linear_part(term: Term, model: StateSpaceModel, terms: Terms, inflate: Callable | None = None) -> LinearPart:
    """The linear part of a term that is Gaussian and linear in theta (`why_not_linear`)."""
    gaussian = gaussian_term(term, model.parameters.centre, terms.example)
    assert gaussian is not None
    return LinearPart(gaussian, inflate)


def linear_gaussian_statistic(
    model: StateSpaceModel, initial: Sequence[LinearPart], steps: Sequence[LinearPart], name: str
) -> Statistic:
    """The statistic (m_t, C_t) of the given linear parts, its theta drawn exactly."""
    coordinates = model.parameters
    reference = coordinates.centre
    m_0, L_0 = _prior_moments(model)

    def absorb(key, S, part: LinearPart, theta, x_prev, x, y, u):
        gaussian = part.gaussian
        F = jax.jacfwd(gaussian.mean)(reference, x_prev, x, u)  # the paper's F_t^T: one row per component of the value
        b = gaussian.mean(reference, x_prev, x, u) - F @ reference
        scale = gaussian.scale_tril(reference, x_prev, x, u)
        value = jnp.ravel(gaussian.term.value(x, y))
        if len(value) > 1:
            value = jnp.where(is_silent(gaussian, value, scale), jnp.nan, value)
        if part.inflate is not None:
            residual = (value - F @ coordinates.to_vector(theta) - b) / jnp.diag(scale)
            scale = part.inflate(key, residual, x_prev, x, u)[:, None] * scale
        m, L, _ = condition(S.m, S.L, F, b, scale, value)  # a Kalman filter whose state is theta
        return GaussianStatistic(m, L)

    def init(x_0=None):
        S = GaussianStatistic(m_0, L_0)
        for part in initial if x_0 is not None else ():
            S = absorb(None, S, part, None, x_0, x_0, None, None)
        return S

    def update(key, S, theta, x_prev, x, y, u):
        for i, part in enumerate(steps):
            key_part = key if part.inflate is None else jax.random.fold_in(key, i)
            S = absorb(key_part, S, part, theta, x_prev, x, y, u)
        return S

    def log_target(S):
        def exponent(z):
            return -0.5 * jnp.sum(solve_lower(S.L, z - S.m) ** 2)

        constant = coordinates.log_prior(reference) - exponent(reference)
        return lambda z: constant + exponent(z)

    def log_density(S, theta):
        return log_target(S)(coordinates.to_vector(theta))  # z is theta itself: the Jacobian is one

    def sample(key, S, theta, population=None):
        noise = normal(key, (coordinates.dim,), S.m.dtype)
        return coordinates.to_theta(S.m + S.L @ noise), exact_draw(S.m.dtype)

    def sample_all(key, S, theta, population):
        noise = normal(key, S.m.shape, S.m.dtype)
        z = jax.vmap(lambda S, e: S.m + S.L @ e)(S, noise)
        return jax.vmap(coordinates.to_theta)(z), exact_draw(S.m.dtype)

    return Statistic(init, update, log_density, sample, log_target, sample_all=sample_all, name=name, model=model)


@lru_cache(maxsize=256)
def why_not_conjugate(model: StateSpaceModel) -> str:
    """A sentence that says why Storvik's recursion does not fit `model`, or an empty string."""
    problem = why_not_gaussian_prior(model, "conjugate")
    if problem:
        return problem
    terms = path_terms(model)
    for term in (*terms.initial, *terms.steps):
        problem = why_not_linear(term, model, terms)
        if problem:
            return problem
    return ""


def why_not_gaussian_prior(model: StateSpaceModel, who: str) -> str:
    """Why theta's prior is not Gaussian, or an empty string."""
    check_model_learns(model, who)
    for leaf in jax.tree.leaves(model.prior, is_leaf=is_distribution):
        if not is_gaussian(leaf):
            return f"the prior must be Gaussian, but holds a {type(leaf).__name__}."
    return ""


def why_not_linear(term: Term, model: StateSpaceModel, terms: Terms) -> str:
    """Why a term is not Gaussian and linear in theta, or an empty string."""
    gaussian = gaussian_term(term, model.parameters.centre, terms.example)
    if gaussian is None:
        return f"theta enters the {term.name}, which is not Gaussian."
    if not gaussian.known_noise:
        return f"the noise of the {term.name} depends on theta."
    if not is_linear(gaussian, model.parameters.centre, terms.example):
        return f"the mean of the {term.name} is not linear in theta."
    return ""


def _prior_moments(model: StateSpaceModel) -> tuple[Float[Array, " P"], Float[Array, "P P"]]:
    leaves: list[dist.Distribution] = jax.tree.leaves(model.prior, is_leaf=is_distribution)
    pairs = [moments(leaf) for leaf in leaves]
    mean = jnp.concatenate([jnp.asarray(m, float) for m, _ in pairs])
    scale = jax.scipy.linalg.block_diag(*(jnp.asarray(s, float) for _, s in pairs))
    return mean, scale
