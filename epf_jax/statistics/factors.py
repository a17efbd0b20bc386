r"""Factors: one density of the path, kept as sums that its log-likelihood is written in.

A Gaussian factor with residual :math:`W_t\,c(\beta)`, the noise of component i having variance
:math:`v_{k(i)}\,g_i(x)`, is

.. math:: \log L = -\tfrac12 \sum_k \Big( n_k \log v_k + \frac1{v_k}\, c^T Q_k\, c \Big), \qquad
          Q_k = \sum_{t,\,i:\,k(i) = k} \frac{W_{ti}^T W_{ti}}{g_i}, \quad n_k = \sum_{t,\,i:\,k(i) = k} 1

with :math:`c(\beta) = (1, -\delta, -\delta_p\delta_q ..)`, delta = beta - reference: a mean that is affine in each
leaf, products of two leaves included. :math:`k(i)` may depend on the state: each regime has a variance of its own.
A full unknown covariance keeps :math:`\sum_t \mathrm{vec}(W_t)\mathrm{vec}(W_t)^T`; a categorical factor keeps counts.
Nothing is written by hand: W, g, k and the rows of a transition matrix are read off the model. What a model is at the
steps that it was looked at, it may not be at all: a step that does not fit makes the sums NaN.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from epf_jax.dependence import abstractly, depends_on, is_affine
from epf_jax.gaussian import base_distribution, solve_lower
from epf_jax.statistics.families import (
    COEFFICIENTS,
    COVARIANCE,
    PROBABILITIES,
    VARIANCE,
    Family,
    Leaf,
    NotConjugateError,
)
from epf_jax.switching import Switching, rest_log_prob, split_regime
from epf_jax.terms import GaussianTerm, Term, gaussian_term, whiten

_MOST_PRODUCTS = 36  # of two leaves' entries that are all kept, whichever the simulated steps had


class Factor(NamedTuple):
    """One density of the path.

    Attributes:
        init: `init() -> s`, the sums of no steps.
        update: `update(s, x_prev, x, y, u) -> s`.
        log_likelihood: `log_likelihood(s, features)`, up to a constant; `features` has the features of every leaf.
        products: pairs of leaves whose product enters, by position: they cannot be drawn together.
    """

    init: Callable[[], Any]
    update: Callable[..., Any]
    log_likelihood: Callable[[Any, list[Any]], Float[Array, ""]]
    products: frozenset[tuple[int, int]] = frozenset()


class View(NamedTuple):
    """How factors look at a model.

    Attributes:
        leaves: the leaves of the prior.
        reference: a central theta: the value of each leaf.
        example: arguments x_prev, x, y, u of the right shapes.
        probe: `probe(function)`, the values of `function(x_prev, x, y, u)` at simulated steps of the model, and at the
            same steps with other inputs.
    """

    leaves: list[Leaf]
    reference: list[Array]
    example: tuple
    probe: Callable[[Callable], np.ndarray]

    def entering(self, function: Callable) -> list[int]:
        """Positions of the leaves that `function(theta, x_prev, x, u)` depends on."""
        x_prev, x, _, u = self.example

        def depends(i):
            return depends_on(
                lambda v, *given: function(self.replace([i], [v]), *given), self.reference[i], x_prev, x, u
            )

        return [i for i in range(len(self.leaves)) if depends(i)]

    def is_affine(self, function: Callable, i: int) -> bool:
        """Whether `function(theta, x_prev, x, u)` is affine in leaf i, whatever the other arguments are."""
        x_prev, x, _, u = self.example
        return is_affine(lambda v, *given: function(self.replace([i], [v]), *given), self.reference[i], x_prev, x, u)

    def multiplies(self, function: Callable, i: int, j: int) -> bool:
        """Whether the slope of `function(theta, x_prev, x, u)` in leaf i may depend on leaf j."""
        x_prev, x, _, u = self.example

        def slope(of_j, of_i, *given):
            return jax.jacfwd(lambda v: function(self.replace([i, j], [v, of_j]), *given))(of_i)

        return depends_on(slope, self.reference[j], self.reference[i], x_prev, x, u)

    def watched(self, fits: Callable) -> Callable:
        """`fits(x_prev, x, u)`, whether a step is what all that were looked at are, as a guard of the sums after it."""
        x_prev, x, _, u = self.example
        if not depends_on(lambda given: fits(*given), (x_prev, x, u)):
            return lambda sums, x_prev, x, u: sums  # it is the same at all steps

        def guard(sums, x_prev, x, u):
            so = fits(x_prev, x, u)
            return jax.tree.map(lambda a: jnp.where(so, a, jnp.nan), sums)

        return guard

    def replace(self, positions: list[int], values: list[Array]) -> list[Array]:
        """The reference with other values of some leaves."""
        theta = list(self.reference)
        for i, value in zip(positions, values, strict=True):
            theta[i] = value
        return theta

    def part(self, positions: list[int]) -> tuple[Float[Array, " p"], Callable, np.ndarray]:
        """Some leaves of the reference as one vector; the theta with another such vector; whose each entry is."""
        values = [self.reference[i] for i in positions]
        with jax.ensure_compile_time_eval():  # a filter may be built inside somebody's jit
            flat, unravel = ravel_pytree(values)
            flat = flat.astype(float)
        owner = np.repeat(positions, [value.size for value in values]).astype(int)
        return flat, lambda vector: self.replace(positions, unravel(vector)), owner


def factors_of(term: Term, view: View) -> list[Factor]:
    """The factors of a term that theta enters; a switching term has two."""
    x_prev, x, _, u = view.example
    whole = abstractly(term.distribution, view.reference, x_prev, x, u)
    if isinstance(whole, Switching):
        parts = [
            part for part in _regime_and_rest(term) if view.entering(lambda *a, part=part: _at_example(part, view, a))
        ]
        return [factor for part in parts for factor in factors_of(part, view)]
    if isinstance(base_distribution(whole), (dist.CategoricalProbs, dist.CategoricalLogits)):
        return [categorical_factor(term, view)]
    gaussian = gaussian_term(term, view.reference, view.example)
    if gaussian is None:
        raise NotConjugateError(f"theta enters the {term.name}, which is neither Gaussian nor categorical.")
    noise = view.entering(gaussian.scale_tril)
    if [view.leaves[i].family for i in noise] == [COVARIANCE]:
        return [covariance_factor(gaussian, noise[0], view)]
    return [regression_factor(gaussian, noise, view)]


def _at_example(part: Term, view: View, arguments: tuple) -> Any:
    theta, x_prev, x, u = arguments
    return part.log_prob(theta, x_prev, x, view.example[2], u)


def _regime_and_rest(term: Term) -> tuple[Term, Term]:
    """A switching term as two: its regime, and the rest of the state given the regime."""

    def regime(z, x_prev, x, u):
        return dist.Categorical(probs=term.distribution(z, x_prev, x, u).probabilities)

    def rest(z, x_prev, x, u):
        return term.distribution(z, x_prev, x, u).given(split_regime(x)[0])

    def part(name, distribution, value):
        def log_prob(z, x_prev, x, y, u):
            return rest_log_prob(distribution(z, x_prev, x, u), value(x, y))

        return Term(f"{term.name} ({name})", distribution, value, log_prob)

    return part("regime", regime, lambda x, y: split_regime(x)[0]), part("rest", rest, lambda x, y: split_regime(x)[1])


# ---------------------------------------------------------------------------------------------------------- Gaussian


class RegressionSums(NamedTuple):
    """Counts and products of one Gaussian factor, for each of its K variances (a known one counts as one)."""

    n: Float[Array, " K"]
    Q: Float[Array, "K m m"]


def regression_factor(gaussian: GaussianTerm, noise: list[int], view: View) -> Factor:
    """The factor of a Gaussian term whose variances are known, or unknown but one for each component."""
    name = gaussian.term.name
    _require(noise, VARIANCE, f"the noise of the {name}", view)
    design = _design(gaussian, view)
    variances, with_variances, _ = view.part(noise)
    one = np.ones(variances.shape, variances.dtype)

    def groups(x_prev, x, u):
        """Which variance each component has, one-hot; the first column is known noise."""

        def diagonal(v):
            return jnp.sum(gaussian.scale_tril(with_variances(v), x_prev, x, u) ** 2, axis=1)

        total = diagonal(one)[:, None]
        share = jnp.where(total > 0, jax.jacfwd(diagonal)(one) / jnp.where(total > 0, total, 1.0), 0.0)
        known = jnp.where(total > 0, 1 - jnp.sum(share, axis=1, keepdims=True), 0.0)  # without noise: none of them
        return jnp.concatenate([known, share], axis=1)

    def is_one_each(shares, tolerance):
        whole = jnp.round(shares)
        return jnp.all(jnp.abs(shares - whole) < tolerance) & jnp.all((whole == 0) | (whole == 1))

    probed = view.probe(lambda x_prev, x, y, u: groups(x_prev, x, u))
    guard = view.watched(lambda x_prev, x, u: is_one_each(groups(x_prev, x, u), 0.05))  # a little jitter may be known
    if not is_one_each(probed, 1e-3):
        raise NotConjugateError(
            f"the noise of the {name} is not proportional to one variance of theta for each component. A variance is "
            "not a standard deviation: dist.Normal takes its square root. (Other inputs than example_input were tried, "
            "too. A dummy that chooses between variances: jnp.where(u > 0, v, w), or a truth value as example_input.)"
        )
    if not gaussian.diagonal and not np.allclose(probed, probed[:, :1], atol=1e-3):
        raise NotConjugateError(f"the noise of the {name} is correlated, and its components have several variances.")
    num = 1 + len(one)  # sums for each of them, whichever the simulated steps had: a regime may be rare

    def init():
        return RegressionSums(jnp.zeros(num), jnp.zeros((num, design.width, design.width)))

    def update(s, x_prev, x, y, u):
        value = jnp.ravel(gaussian.term.value(x, y))
        scale = gaussian.scale_tril(with_variances(one), x_prev, x, u)
        share = jnp.round(groups(x_prev, x, u))
        seen, rows, share, scale = whiten(gaussian, value, scale, design.rows(x_prev, x, u), share)
        W = solve_lower(scale, rows.at[:, 0].add(seen))
        sums = RegressionSums(s.n + jnp.sum(share, axis=0), s.Q + jnp.einsum("ik,ia,ib->kab", share, W, W))
        return guard(sums, x_prev, x, u)

    def log_likelihood(s, features):
        c = design.coefficients(features)
        logs = [jnp.zeros(1)] + [jnp.ravel(features[i][0]) for i in noise]
        inverses = [jnp.ones(1)] + [jnp.ravel(features[i][1]) for i in noise]
        squares = jnp.einsum("a,kab,b->k", c, s.Q, c)
        return -0.5 * (s.n @ jnp.concatenate(logs) + squares @ jnp.concatenate(inverses))

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

    def covariance(x_prev, x, y, u):
        L = gaussian.scale_tril(view.reference, x_prev, x, u)
        return L @ L.T

    if reference.shape != (d, d) or not np.allclose(view.probe(covariance), reference, rtol=1e-3, atol=1e-5):
        raise NotConjugateError(f"the covariance of the {name} is not theta's {view.leaves[leaf].name!r} itself.")
    guard = view.watched(
        lambda x_prev, x, u: jnp.allclose(covariance(x_prev, x, None, u), reference, rtol=1e-3, atol=1e-5)
    )

    def init():
        return ScatterSums(jnp.zeros(()), jnp.zeros((d, design.width, d, design.width)))

    def update(s, x_prev, x, y, u):
        W = design.rows(x_prev, x, u).at[:, 0].add(jnp.ravel(gaussian.term.value(x, y)))
        return guard(ScatterSums(s.n + 1, s.Q + jnp.einsum("ia,jb->iajb", W, W)), x_prev, x, u)

    def log_likelihood(s, features):
        c, (log_det, inverse) = design.coefficients(features), features[leaf]
        return -0.5 * (s.n * log_det + jnp.sum(inverse * jnp.einsum("a,iajb,b->ij", c, s.Q, c)))

    return Factor(init, update, log_likelihood, design.products)


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


def _design(gaussian: GaussianTerm, view: View) -> _Design:
    name = gaussian.term.name
    entering = view.entering(gaussian.mean)
    _require(entering, COEFFICIENTS, f"the mean of the {name}", view)
    centre, with_coefficients, owner = view.part(entering)

    def mean(beta, x_prev, x, u):
        return gaussian.mean(with_coefficients(beta), x_prev, x, u)

    def curvature(x_prev, x, y, u):
        return jax.hessian(mean)(centre, x_prev, x, u)

    curved = np.any(np.abs(view.probe(curvature)) > 1e-5, axis=(0, 1)) if entering else np.zeros((0, 0), bool)
    for i in entering:
        if not view.is_affine(gaussian.mean, i):
            raise NotConjugateError(
                f"the mean of the {name} is not linear in theta's {view.leaves[i].name!r}, as far as can be told."
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
        return jnp.concatenate([jnp.ones(1), -delta, -delta[p] * delta[q]])

    products = frozenset((int(owner[i]), int(owner[j])) for i, j in zip(p, q, strict=True))
    return _Design(rows, coefficients, 1 + len(owner) + len(p), products)


# ------------------------------------------------------------------------------------------------------- categorical


def categorical_factor(term: Term, view: View) -> Factor:
    """The factor of a categorical term whose probabilities are a row of one Dirichlet leaf: counts."""

    def probabilities(theta, x_prev, x, u):
        return base_distribution(term.distribution(theta, x_prev, x, u)).probs

    entering = view.entering(probabilities)
    _require(entering, PROBABILITIES, f"the probabilities of the {term.name}", view)
    if len(entering) != 1:
        raise NotConjugateError(f"the probabilities of the {term.name} mix several of theta's leaves.")
    leaf = view.leaves[entering[0]]
    rows, with_rows, _ = view.part(entering)

    def row(x_prev, x, u):
        """The derivative of the probabilities by the leaf: one where a probability is an entry of the leaf."""
        return jnp.round(jax.jacfwd(lambda v: probabilities(with_rows(v), x_prev, x, u))(rows))

    def difference(x_prev, x, y, u):
        return row(x_prev, x, u) @ rows - probabilities(view.reference, x_prev, x, u)

    if not np.allclose(view.probe(difference), 0.0, atol=1e-5):
        raise NotConjugateError(f"the probabilities of the {term.name} are not a row of theta's {leaf.name!r}.")
    guard = view.watched(lambda x_prev, x, u: jnp.all(jnp.abs(difference(x_prev, x, None, u)) < 1e-4))

    def init():
        return jnp.zeros(leaf.shape)

    def update(s, x_prev, x, y, u):
        value = term.value(x, y)
        missing = jnp.isnan(value)
        entry = row(x_prev, x, u)[jnp.where(missing, 0, value).astype(int)]
        return guard(s + jnp.where(missing, 0.0, entry).reshape(leaf.shape), x_prev, x, u)

    def log_likelihood(s, features):
        return jnp.sum(s * features[entering[0]])

    return Factor(init, update, log_likelihood)


def _require(entering: list[int], family: Family, what: str, view: View) -> None:
    for leaf in (view.leaves[i] for i in entering):
        if leaf.family is not family:
            raise NotConjugateError(
                f"{what} depends on theta's {leaf.name!r}, whose prior is a {type(leaf.prior).__name__}. What enters "
                f"there must be {family.name}."
            )
