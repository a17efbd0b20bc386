r"""Factors of densities whose log is linear in features of theta's leaves: sums of the coefficients.

The log-density of a count given its rate, of successes given their probability, of a Laplace's value given its scale is

.. math:: \log p = a\,\phi_1(\theta) + b\,\phi_2(\theta) + \text{const}, \qquad
          \text{rate}: (\log\lambda,\,\lambda), \quad \text{probability}: (\log p,\,\log(1 - p)), \quad
          \text{variance}: (\log v,\,1/v), \quad \text{probabilities}: \log p

Its slopes at two thetas far apart give a and b, which are summed. This works for any such distribution. At the
particle's own theta and one near it, the log-density itself shows whether a step has this form; if not, the sums become
NaN.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epf_jax.core.gaussian import base_distribution
from epf_jax.models.path_terms import Term
from epf_jax.statistics.factors.factor import Factor, View, require, whole
from epf_jax.statistics.families import PROBABILITIES, RATE, SHARE, VARIANCE, NotConjugateError

_TOLERANCE, _ROUNDING = 1e-3, 64  # of the comparison: relative, and in units of the log-density's own rounding


def natural_factor(term: Term, view: View) -> Factor:
    """The factor of a term whose log-density is linear in the features of each leaf that enters."""
    entering = view.entering_density(term)
    require(entering, [RATE, SHARE, VARIANCE, PROBABILITIES], f"the {term.name}, which is not Gaussian,", view)
    families: list[Any] = [view.leaves[i].family for i in entering]
    reference = [view.reference[i] for i in entering]
    ends = list(zip(*(family.ends(value) for family, value in zip(families, reference, strict=True)), strict=True))

    def features_at(values):
        return [tuple(jax.tree.leaves(f.features(value))) for f, value in zip(families, values, strict=True)]

    def init():
        return tuple(tuple(map(jnp.zeros_like, f.slopes(value))) for f, value in zip(families, reference, strict=True))

    def coefficients(log_prob):
        """The coefficients of each leaf's features, from slopes at the ends."""
        of_leaves = [jax.grad(log_prob)(list(values)) for values in ends]
        of_features = [[f.slopes(value) for f, value in zip(families, values, strict=True)] for values in ends]
        found = tuple(_solved(*each) for each in zip(*of_leaves, *of_features, strict=True))
        # Where nothing can be counted, a slope may be zero times infinity.
        return jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), a, 0.0), found)

    def fits(found, log_prob, log_p, own):
        """Whether the log-density changes between the particle's theta and one near it as the coefficients predict."""
        near = [f.near(value, k) for k, (f, value) in enumerate(zip(families, own, strict=True))]
        nearby = log_prob(near)
        by = jax.tree.map(jnp.subtract, features_at(near), features_at(own))
        parts = [a * change for a, change in zip(jax.tree.leaves(found), jax.tree.leaves(by), strict=True)]
        claimed, size = sum(map(jnp.sum, parts)), sum(jnp.sum(jnp.abs(part)) for part in parts)
        rounding = _ROUNDING * jnp.finfo(log_p.dtype).eps * (1 + jnp.abs(log_p) + jnp.abs(nearby))
        return jnp.abs(nearby - log_p - claimed) <= _TOLERANCE * size + rounding

    def update(s, theta, x_prev, x, y, u):
        def log_prob(values):
            return term.log_prob(view.replace(entering, values), x_prev, x, y, u)

        own = [theta[i] for i in entering]
        found, log_p = coefficients(log_prob), log_prob(own)
        wrong = jnp.where(fits(found, log_prob, log_p, own), 0.0, jnp.nan)
        # What is impossible for this theta says nothing: its particle will not live.
        return jax.tree.map(lambda total, a: total + jnp.where(jnp.isfinite(log_p), a + wrong, 0.0), s, found)

    def log_likelihood(s, features):
        seen = jax.tree.leaves([features[i] for i in entering])
        return sum((jnp.sum(a * phi) for a, phi in zip(jax.tree.leaves(s), seen, strict=True)), jnp.zeros(()))

    return Factor(init, update, log_likelihood)


def _solved(first: Array, second: Array, of_first: tuple, of_second: tuple) -> tuple[Array, ...]:
    """The coefficients of one or two features, from the slopes of the log-density at two places."""
    if len(of_first) == 1:
        return (first / of_first[0],)
    determinant = of_first[0] * of_second[1] - of_first[1] * of_second[0]
    a = (first * of_second[1] - second * of_first[1]) / determinant
    return a, (second * of_first[0] - first * of_second[0]) / determinant


def categorical_factor(term: Term, view: View) -> Factor:
    """The factor of a categorical term whose probabilities are a row of one Dirichlet leaf: counts."""

    def probabilities(theta, x_prev, x, u):
        return base_distribution(term.distribution(theta, x_prev, x, u)).probs

    entering = view.entering(probabilities)
    require(entering, [PROBABILITIES], f"the probabilities of the {term.name}", view)
    if len(entering) != 1:
        raise NotConjugateError(f"the probabilities of the {term.name} mix several of theta's leaves.")
    leaf = view.leaves[entering[0]]
    rows, with_rows, _ = view.part(entering)

    def row(x_prev, x, u):
        """The derivative of the probabilities by the leaf: one where a probability is an entry of the leaf."""
        return whole(jax.jacfwd(lambda v: probabilities(with_rows(v), x_prev, x, u))(rows))

    def difference(theta, x_prev, x, u):
        return row(x_prev, x, u) @ jnp.ravel(theta[entering[0]]) - probabilities(theta, x_prev, x, u)

    probed = view.probe(lambda x_prev, x, y, u: difference(view.reference, x_prev, x, u))
    if not np.allclose(probed, 0.0, atol=1e-5):
        raise NotConjugateError(f"the probabilities of the {term.name} are not a row of theta's {leaf.name!r}.")
    guard = view.watched(lambda *given: jnp.all(jnp.abs(difference(*given)) < 1e-4))

    def init():
        return jnp.zeros(leaf.shape)

    def update(s, theta, x_prev, x, y, u):
        value = term.value(x, y)
        missing = jnp.isnan(value)
        entry = row(x_prev, x, u)[jnp.where(missing, 0, value).astype(int)]
        return guard(s + jnp.where(missing, 0.0, entry).reshape(leaf.shape), theta, x_prev, x, u)

    def log_likelihood(s, features):
        return jnp.sum(s * features[entering[0]])

    return Factor(init, update, log_likelihood)
