r"""The terms of a path's likelihood that theta enters.

.. math:: \log p(x_{0:t}, y_{1:t} \mid \theta) = \log p(x_0 \mid \theta)
          + \sum_t \log p(x_t \mid x_{t-1}, \theta) + \log p(y_t \mid x_t, \theta)

A statistic sums those terms that depend on theta. Transition and observation have the same form: each is the density of
a value (x_t or y_t) under a distribution that depends on theta. So every statistic learns parameters of observations
and of transitions alike.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float

from epf_jax.core.checks import frames_to_user
from epf_jax.core.choice import where
from epf_jax.core.densities import log_prob, observed_log_prob
from epf_jax.core.dependence import abstractly, depends_on, is_affine
from epf_jax.core.gaussian import base_distribution, is_gaussian, mask_covariance, mask_missing, moments, without_noise
from epf_jax.models.parameters import evaluated
from epf_jax.models.state_space import StateSpaceModel, row_of

_PROBES = 16


class Term(NamedTuple):
    """One conditional density of the path.

    Attributes:
        name: "initial", "transition" or "observation".
        distribution: `distribution(z, x_prev, x, u)` at unconstrained parameters z, or at theta's leaves (`natural`).
        value: `value(x, y)`, the value whose density this is; components of observations may be NaN (missing).
        log_prob: `log_prob(z, x_prev, x, y, u)`.
    """

    name: str
    distribution: Callable[[Any, Array, Array, Any], Any]
    value: Callable[[Array, Array], Array]
    log_prob: Callable[..., Float[Array, ""]]


class GaussianTerm(NamedTuple):
    """A Gaussian term: value = mean(z) + scale(z) noise, with missing components masked out.

    Attributes:
        mean: `mean(z, x_prev, x, u)`, flattened.
        scale_tril: `scale_tril(z, x_prev, x, u)`.
        known_noise: whether the scale does not depend on theta.
        dim: number of components.
        diagonal: whether components are independent.
    """

    term: Term
    mean: Callable[..., Float[Array, " d"]]
    scale_tril: Callable[..., Float[Array, "d d"]]
    known_noise: bool
    dim: int
    diagonal: bool


class Terms(NamedTuple):
    """The terms of a model that depend on theta, and arguments of the right shapes to trace them with."""

    initial: tuple[Term, ...]
    steps: tuple[Term, ...]
    example: tuple[Any, Any, Any, Any]  # x_prev, x, y, u


@lru_cache(maxsize=256)
def path_terms(model: StateSpaceModel, *, natural: bool = False) -> Terms:
    """The theta-dependent terms of `model`.

    Args:
        model: the model.
        natural: whether the terms are functions of theta's leaves, a list in the user's own units, instead of z.
    """
    shapes = model.shapes
    to_theta: Callable[[Any], Any] = model.parameters.to_theta
    z: Any = model.parameters.centre
    if natural:
        structure: Any
        z, structure = jax.tree.flatten(jax.eval_shape(to_theta, z))
        to_theta = structure.unflatten
    u = row_of(model)
    x = np.zeros(shapes.x.shape, shapes.x.dtype)
    y = np.zeros(shapes.y.shape, shapes.y.dtype)
    example = (x, x, y, u)

    def initial(z, x_prev, x, u):
        return model.initial(to_theta(z))

    def transition(z, x_prev, x, u):
        return model.transition(to_theta(z), x_prev, u)

    def observation(z, x_prev, x, u):
        return model.observation(to_theta(z), x, u)

    def term(name, distribution, value, density):
        def term_log_prob(z, x_prev, x, y, u):
            return density(distribution(z, x_prev, x, u), value(x, y))

        return Term(name, distribution, value, term_log_prob)

    def matters(candidate):
        return depends_on(candidate.log_prob, z, *example)

    first = term("initial", initial, lambda x, y: x, log_prob)
    steps = (
        term("transition", transition, lambda x, y: x, log_prob),
        term("observation", observation, lambda x, y: y, observed_log_prob),
    )
    return Terms(tuple(filter(matters, [first])), tuple(filter(matters, steps)), example)


def require_noise(model: StateSpaceModel, who: str) -> None:
    """Raise if a Gaussian vector has a component without noise whose mean depends on theta."""
    name = _told_exactly(model)
    if name:
        raise ValueError(
            f"{who}: the {name} has a component without noise whose mean depends on theta. Each path would then tell "
            "its own theta exactly, and theta could never move. Give that component a little noise."
        )


def warn_of_moving_bounds(model: StateSpaceModel, who: str) -> None:
    """Warn if the support of a density depends on theta: interpolation between thetas ignores such a bound."""
    name = _moving_bound(model)
    if name:
        warnings.warn(
            f"{who}: where the {name}'s values end depends on theta (a Uniform's bound, a Pareto's least value), so "
            "its density jumps in theta, and the posterior may be far off. Use epf.resample_move_filter or "
            "epf.smc2_filter, which evaluate every theta itself.",
            UserWarning,
            stacklevel=frames_to_user(),
        )


@lru_cache(maxsize=256)
def _moving_bound(model: StateSpaceModel) -> str:
    """The name of a term whose support depends on theta, or None."""
    terms = path_terms(model)
    x_prev, x, _, u = terms.example
    for term in (*terms.initial, *terms.steps):

        def bounds(z, term=term):
            support = getattr(term.distribution(z, x_prev, x, u), "support", None)
            return [jnp.asarray(bound) for bound in jax.tree.leaves(support)]

        if depends_on(bounds, model.parameters.centre):
            return term.name
    return ""


@lru_cache(maxsize=256)
def _told_exactly(model: StateSpaceModel) -> str:
    """The name of a term that theta enters without noise, or None."""
    terms, centre = path_terms(model), model.parameters.centre
    x, _, _, u = terms.example
    # Of many sizes and signs: a noise may vanish at some states and thetas, and theta may do nothing at x = 0.
    rng = np.random.default_rng(1)
    states = (rng.normal(size=(2, _PROBES, *x.shape)) * np.exp(rng.normal(size=(2, _PROBES, *x.shape)))).astype(x.dtype)
    thetas = centre + model.parameters.scale * rng.normal(size=(_PROBES, len(centre))).astype(centre.dtype)
    for term in (*terms.initial, *terms.steps):
        gaussian = gaussian_term(term, centre, terms.example)
        if gaussian is None or gaussian.dim == 1:
            continue

        def look(z, x_prev, x, gaussian=gaussian):
            slope = jax.jacfwd(gaussian.mean)(z, x_prev, x, u)
            moved = jnp.any(jnp.isfinite(slope) & (slope != 0), axis=1)
            return moved, without_noise(gaussian.scale_tril(z, x_prev, x, u))

        moved, fixed = evaluated(jax.vmap(look), thetas, *states)
        if not isinstance(fixed, jax.core.Tracer) and np.any(np.any(moved, axis=0) & np.all(fixed, axis=0)):
            return term.name
    return ""


def gaussian_term(term: Term, z: Any, example: tuple) -> GaussianTerm | None:
    """`term` as a Gaussian, or None if it is not one."""
    x_prev, x, _, u = example
    family = abstractly(term.distribution, z, x_prev, x, u)
    if not is_gaussian(family):
        return None

    def mean(z, x_prev, x, u):
        return moments(term.distribution(z, x_prev, x, u))[0]

    def scale_tril(z, x_prev, x, u):
        return moments(term.distribution(z, x_prev, x, u))[1]

    return GaussianTerm(
        term=term,
        mean=mean,
        scale_tril=scale_tril,
        known_noise=not depends_on(scale_tril, z, x_prev, x, u),
        dim=jax.eval_shape(mean, z, x_prev, x, u).shape[0],
        diagonal=not isinstance(base_distribution(family), dist.MultivariateNormal),
    )


def is_linear(gaussian: GaussianTerm, z: Float[Array, " P"], example: tuple) -> bool:
    """Whether the mean is affine in theta and the noise is free of it."""
    x_prev, x, _, u = example
    return gaussian.known_noise and is_affine(gaussian.mean, z, x_prev, x, u)


def noise_is_of_theta_alone(gaussian: GaussianTerm, z: Any, example: tuple) -> bool:
    """Whether the noise depends on theta alone. False for a joint observation, any part of which may be missing."""
    x_prev, x, _, u = example
    free = not depends_on(lambda given, z: gaussian.scale_tril(z, *given), (x_prev, x, u), z)
    return free and (gaussian.diagonal or gaussian.term.name != "observation")


def whiten(gaussian: GaussianTerm, value: Array, scale_tril: Float[Array, "d d"], *rows: Array) -> tuple[Array, ...]:
    """The flattened value and `rows` (d rows each), with silent components zeroed, and the scale to divide by.

    Silent components are missing ones, and in a vector those without noise.
    """
    value = jnp.ravel(value)
    if gaussian.dim == 1 and gaussian.term.name != "observation":
        return (value, *rows, scale_tril)
    silent = is_silent(gaussian, value, scale_tril)
    marked = where(silent, jnp.nan, 0.0)
    if gaussian.diagonal:
        scale_tril = jnp.diag(where(silent, 1.0, jnp.diag(scale_tril)))
    else:
        scale_tril = mask_covariance(marked, scale_tril)
    return (*mask_missing(marked, value, *rows)[1:], scale_tril)


def is_silent(gaussian: GaussianTerm, value: Float[Array, " d"], scale_tril: Float[Array, "d d"]) -> Bool[Array, " d"]:
    """Which components say nothing about theta: missing observations, and in a vector those without noise."""
    missing = jnp.isnan(value) if gaussian.term.name == "observation" else jnp.zeros(value.shape, bool)
    return missing if gaussian.dim == 1 else missing | without_noise(scale_tril)


def other_inputs(rows: Any) -> np.ndarray:
    """Other rows of an input, for tests: numbers of the same sign, both truth values, whole numbers up to 1e5."""
    rows = np.asarray(rows)
    if rows.dtype == bool:
        return ~rows
    rng = np.random.default_rng(1)
    if np.issubdtype(rows.dtype, np.integer):
        steps = np.concatenate([np.arange(len(rows) // 2), np.logspace(0, 5, len(rows) - len(rows) // 2)])
        return rows + steps.astype(rows.dtype).reshape(-1, *[1] * (rows.ndim - 1))
    draws = rng.normal(size=rows.shape).astype(rows.dtype)
    return np.where(rows == 0, draws, rows * np.exp(0.5 * draws)).astype(rows.dtype)
