r"""Gaussian factors: a regression with unknown variances, or with an unknown covariance.

A Gaussian factor with residual :math:`W_t\,c(\beta)`, the noise of component i having variance
:math:`v_{k(i)}\,g_i(x)`, is

.. math:: \log L = -\tfrac12 \sum_k \Big( n_k \log v_k + \frac1{v_k}\, c^T Q_k\, c \Big), \qquad
          Q_k = \sum_{t,\,i:\,k(i) = k} \frac{W_{ti}^T W_{ti}}{g_i}, \quad n_k = \sum_{t,\,i:\,k(i) = k} 1

with :math:`c(\beta) = (1, -\delta, -\delta_p\delta_q ..)`, delta = beta - reference: a mean that is affine in each
leaf, products of two leaves included. :math:`k(i)` may depend on the state: each regime has a variance of its own.
Instead of a variance its inverse may be unknown, a rate. A full unknown covariance keeps
:math:`\sum_t \mathrm{vec}(W_t)\mathrm{vec}(W_t)^T`.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from epf_jax.core.gaussian import solve_lower
from epf_jax.models.path_terms import GaussianTerm, whiten
from epf_jax.statistics.factors.factor import Factor, View, require, whole
from epf_jax.statistics.families import COEFFICIENTS, RATE, VARIANCE, NotConjugateError

_MOST_PRODUCTS = 36  # of two leaves' entries that are all kept, whichever the simulated steps had


class RegressionSums(NamedTuple):
    """Counts and products of one Gaussian factor, for each of its K variances (a known one counts as one)."""

    n: Float[Array, " K"]
    Q: Float[Array, "K m m"]


class _Variances(NamedTuple):
    """How the noise of a Gaussian term depends on theta's variances.

    Attributes:
        one: variances of one, as a flat vector.
        turned: for which of them theta holds the inverse.
        theta: theta with these variances.
        groups: `groups(variances, x_prev, x, u)`, which of them each component has, one-hot; the first column is known
            noise.
    """

    one: Float[np.ndarray, " k"]
    turned: Bool[np.ndarray, " k"]
    theta: Callable[[Any], Any]
    groups: Callable[..., Float[Array, "d k+1"]]


def _variances(gaussian: GaussianTerm, noise: list[int], view: View) -> _Variances:
    require(noise, [VARIANCE, RATE], f"the noise of the {gaussian.term.name}", view)
    values, with_values, owner = view.part(noise)
    one = np.ones(values.shape, values.dtype)
    turned = np.array([view.leaves[i].family is RATE for i in owner], bool)

    def theta(variances):
        return with_values(jnp.where(turned, 1 / variances, variances))

    def groups(variances, x_prev, x, u):
        def diagonal(variances):
            return jnp.sum(gaussian.scale_tril(theta(variances), x_prev, x, u) ** 2, axis=1)

        total = diagonal(variances)[:, None]
        slopes = jax.jacfwd(diagonal)(variances) * variances
        share = jnp.where(total > 0, slopes / jnp.where(total > 0, total, 1.0), 0.0)
        known = jnp.where(total > 0, 1 - jnp.sum(share, axis=1, keepdims=True), 0.0)  # without noise: none of them
        return jnp.concatenate([known, share], axis=1)

    return _Variances(one, turned, theta, groups)


def _is_one_each(shares: Any, tolerance: float) -> Any:
    nearest = whole(shares)
    return ((abs(shares - nearest) < tolerance) & ((nearest == 0) | (nearest == 1))).all()


def _require_one_each(gaussian: GaussianTerm, shares: np.ndarray) -> None:
    if not _is_one_each(shares, 1e-3):
        raise NotConjugateError(
            f"the noise of the {gaussian.term.name} is not proportional to one variance of theta for each component. "
            "dist.Normal takes the square root of a variance. If an input chooses between variances, write "
            "jnp.where(u > 0, v, w), or build from model.for_inputs(True)."
        )


def glance_at(gaussian: GaussianTerm, noise: list[int], view: View) -> None:
    """Raise for leaves in a mean that are not coefficients, and for rates in noise that are not inverse variances."""
    _coefficients_of(gaussian, view)
    if any(view.leaves[i].family is RATE for i in noise):
        variances = _variances(gaussian, noise, view)
        seen = view.glance(lambda x_prev, x, y, u: variances.groups(variances.one, x_prev, x, u))
        _require_one_each(gaussian, np.nan_to_num(seen))


def regression_factor(gaussian: GaussianTerm, noise: list[int], view: View) -> Factor:
    """The factor of a Gaussian term whose variances are known, or unknown but one for each component."""
    name, (one, turned, with_variances, groups) = gaussian.term.name, _variances(gaussian, noise, view)
    probed = view.probe(lambda x_prev, x, y, u: groups(one, x_prev, x, u))
    _require_one_each(gaussian, probed)

    def own(theta):
        values = jnp.concatenate([jnp.zeros(0), *(jnp.ravel(theta[i]) for i in noise)])
        return jnp.where(turned, 1 / values, values)

    guard = view.watched(lambda theta, *given: _is_one_each(groups(own(theta), *given), 0.02))  # a little may be known
    if not gaussian.diagonal and not np.allclose(probed, probed[:, :1], atol=1e-3):
        raise NotConjugateError(f"the noise of the {name} is correlated, and its components have several variances.")
    design = _design(gaussian, view)
    num = 1 + len(one)  # sums for each of them, whichever the simulated steps had: a regime may be rare

    def init():
        return RegressionSums(jnp.zeros(num), jnp.zeros((num, design.width, design.width)))

    def update(s, theta, x_prev, x, y, u):
        value = jnp.ravel(gaussian.term.value(x, y))
        scale = gaussian.scale_tril(with_variances(one), x_prev, x, u)
        share = whole(groups(one, x_prev, x, u))
        seen, rows, share, scale = whiten(gaussian, value, scale, design.rows(x_prev, x, u), share)
        W = solve_lower(scale, _with_value(seen, rows))
        sums = RegressionSums(s.n + jnp.sum(share, axis=0), s.Q + jnp.einsum("ik,ia,ib->kab", share, W, W))
        return guard(sums, theta, x_prev, x, u)

    def log_likelihood(s, features):
        c = design.coefficients(features)
        logs, inverses = (jnp.concatenate([jnp.zeros(0), *(jnp.ravel(features[i][k]) for i in noise)]) for k in (0, 1))
        logs = jnp.where(turned, -logs, logs)
        squares = jnp.einsum("a,kab,b->k", c, s.Q, c)
        return -0.5 * (s.n[1:] @ logs + squares[0] + squares[1:] @ inverses)

    return Factor(init, update, log_likelihood, design.products)


class ScatterSums(NamedTuple):
    """Count and products of a Gaussian factor with a full unknown covariance."""

    n: Float[Array, ""]
    Q: Float[Array, "d m d m"]


def covariance_factor(gaussian: GaussianTerm, leaf: int, view: View) -> Factor:
    """The factor of a Gaussian term whose whole covariance is one inverse-Wishart leaf."""
    name, d = gaussian.term.name, gaussian.dim
    if name == "observation":
        raise NotConjugateError(
            "the covariance of the observation is unknown as a whole, and a partly missing observation would have no "
            "exact conditional."
        )
    design, reference = _design(gaussian, view), view.reference[leaf]

    def covariance(theta, x_prev, x, u):
        L = gaussian.scale_tril(theta, x_prev, x, u)
        return L @ L.T

    probed = view.probe(lambda x_prev, x, y, u: covariance(view.reference, x_prev, x, u))
    if reference.shape != (d, d) or not np.allclose(probed, reference, rtol=1e-3, atol=1e-5):
        raise NotConjugateError(f"the covariance of the {name} is not theta's {view.leaves[leaf].name!r} itself.")

    def fits(theta, *given):
        return jnp.allclose(covariance(theta, *given), theta[leaf], rtol=1e-3, atol=1e-5)

    guard = view.watched(fits)

    def init():
        return ScatterSums(jnp.zeros(()), jnp.zeros((d, design.width, d, design.width)))

    def update(s, theta, x_prev, x, y, u):
        W = _with_value(jnp.ravel(gaussian.term.value(x, y)), design.rows(x_prev, x, u))
        return guard(ScatterSums(s.n + 1, s.Q + jnp.einsum("ia,jb->iajb", W, W)), theta, x_prev, x, u)

    def log_likelihood(s, features):
        c, (log_det, inverse) = design.coefficients(features), features[leaf]
        return -0.5 * (s.n * log_det + jnp.sum(inverse * jnp.einsum("a,iajb,b->ij", c, s.Q, c)))

    return Factor(init, update, log_likelihood, design.products)


def _with_value(value: Float[Array, " d"], rows: Float[Array, "d m"]) -> Float[Array, "d m"]:
    return jnp.concatenate([value[:, None] + rows[:, :1], rows[:, 1:]], axis=1)


class _Design(NamedTuple):
    """A mean as rows of regressors: value - mean = (value, 0, ..) + rows c.

    Attributes:
        rows: `rows(x_prev, x, u)`, shape (d, width).
        coefficients: `coefficients(features)`, the vector c.
        width: its length.
        products: as `Factor` has it.
    """

    rows: Callable[..., Float[Array, "d m"]]
    coefficients: Callable[[list[Any]], Float[Array, " m"]]
    width: int
    products: frozenset[tuple[int, int]]


def _coefficients_of(gaussian: GaussianTerm, view: View) -> list[int]:
    entering = view.entering(gaussian.mean)
    require(entering, [COEFFICIENTS], f"the mean of the {gaussian.term.name}", view)
    return entering


def _design(gaussian: GaussianTerm, view: View) -> _Design:
    name, entering = gaussian.term.name, _coefficients_of(gaussian, view)
    centre, with_coefficients, owner = view.part(entering)

    def mean(beta, x_prev, x, u):
        return gaussian.mean(with_coefficients(beta), x_prev, x, u)

    def curvature(x_prev, x, y, u):
        return jax.hessian(mean)(centre, x_prev, x, u)

    curved = np.any(np.abs(view.probe(curvature)) > 1e-5, axis=(0, 1)) if entering else np.zeros((0, 0), bool)
    for i in entering:
        if not view.is_affine(gaussian.mean, i):
            raise NotConjugateError(
                f"the mean of the {name} does not seem to be linear in theta's {view.leaves[i].name!r}."
            )
    for i, j in combinations(entering, 2):
        if view.multiplies(gaussian.mean, i, j) and not np.any(curved[np.ix_(owner == i, owner == j)]):
            names = " and ".join(repr(view.leaves[k].name) for k in (i, j))
            raise NotConjugateError(f"the mean of the {name} may multiply theta's {names}, and no simulated step did.")
        if view.multiplies(gaussian.mean, i, j) and np.sum(owner == i) * np.sum(owner == j) <= _MOST_PRODUCTS:
            curved |= np.outer(owner == i, owner == j) | np.outer(owner == j, owner == i)  # a regime may be rare
    p, q = np.nonzero(np.triu(curved))

    def rows(x_prev, x, u):
        first = jax.jacfwd(mean)(centre, x_prev, x, u)
        columns = [-mean(centre, x_prev, x, u)[:, None], first]
        if len(p):
            curvature = jax.hessian(mean)(centre, x_prev, x, u)
            left_out = jnp.any(jnp.abs(jnp.where(curved, 0.0, curvature)) > 1e-5)
            columns.append(jnp.where(left_out, jnp.nan, curvature[:, p, q]))
        return jnp.concatenate(columns, axis=1)

    def coefficients(features):
        parts = [jnp.ravel(features[i]) for i in entering]
        delta = jnp.concatenate([*parts, jnp.zeros(0)]) - centre
        squares = [-delta[i : i + 1] * delta[j : j + 1] for i, j in zip(p, q, strict=True)]
        return jnp.concatenate([jnp.ones(1), -delta, *squares])

    products = frozenset((int(owner[i]), int(owner[j])) for i, j in zip(p, q, strict=True))
    return _Design(rows, coefficients, 1 + len(owner) + len(p), products)
