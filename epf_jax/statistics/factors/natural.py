r"""Factors of other densities, linear in what theta's leaves are seen by: sums of the coefficients.

The log-density of a count given its rate, of successes given their probability, of a Laplace's value given its scale is

.. math:: \log p = a\,\phi_1(\theta) + b\,\phi_2(\theta) + \text{const}, \qquad
          \text{rate}: (\log\lambda,\,\lambda), \quad \text{probability}: (\log p,\,\log(1 - p)), \quad
          \text{variance}: (\log v,\,1/v), \quad \text{probabilities}: \log p

and its slopes at two thetas tell a and b, which are summed. Nothing is written by hand for any distribution. A third
theta tells whether a step is so: the sums become NaN where it is not.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epf_jax.gaussian import base_distribution
from epf_jax.statistics.factors.base import Factor, View, require
from epf_jax.statistics.families import PROBABILITIES, RATE, SHARE, VARIANCE, NotConjugateError
from epf_jax.terms import Term

_TOLERANCE = 1e-3  # of the comparison at a third theta, relative


def natural_factor(term: Term, view: View) -> Factor:
    """The factor of a term whose log-density is linear in the features of each leaf that enters."""
    entering = view.entering_density(term)
    require(entering, [RATE, SHARE, VARIANCE, PROBABILITIES], f"the {term.name}, which is not Gaussian,", view)
    families: list[Any] = [view.leaves[i].family for i in entering]
    places = [family.places(view.reference[i]) for i, family in zip(entering, families, strict=True)]

    def at(k, x_prev, x, y, u):
        """The log-density with each leaf in its k-th place, its slopes by them, and those of their features."""
        values = [place[k] for place in places]

        def log_prob(values):
            return term.log_prob(view.replace(entering, values), x_prev, x, y, u)

        of_features = [family.slopes(value) for family, value in zip(families, values, strict=True)]
        return *jax.value_and_grad(log_prob)(values), of_features

    def init():
        leaves = [view.reference[i] for i in entering]
        return tuple(tuple(map(jnp.zeros_like, f.slopes(leaf))) for f, leaf in zip(families, leaves, strict=True))

    def update(s, x_prev, x, y, u):
        (_, *first), (_, *second), (log_p, *third) = (at(k, x_prev, x, y, u) for k in range(3))
        found = tuple(_solved(*each) for each in zip(*first, *second, strict=True))
        fits = jnp.all(jnp.stack([_fits(*each) for each in zip(found, *third, strict=True)]))
        # What is impossible, whatever theta is, says nothing of it.
        says = jax.tree.map(lambda a: jnp.where(jnp.isfinite(log_p), jnp.where(fits, a, jnp.nan), 0.0), found)
        return jax.tree.map(jnp.add, s, says)

    def log_likelihood(s, features):
        seen = jax.tree.leaves([features[i] for i in entering])
        return sum((jnp.sum(a * phi) for a, phi in zip(jax.tree.leaves(s), seen, strict=True)), jnp.zeros(()))

    return Factor(init, update, log_likelihood)


def _solved(first: Array, of_first: tuple, second: Array, of_second: tuple) -> tuple[Array, ...]:
    """The coefficients of one feature, or of two, of which the log-density has these slopes at two places."""
    if len(of_first) == 1:
        return (first / of_first[0],)
    determinant = of_first[0] * of_second[1] - of_first[1] * of_second[0]
    a = (first * of_second[1] - second * of_first[1]) / determinant
    return a, (second * of_first[0] - first * of_second[0]) / determinant


def _fits(found: tuple[Array, ...], slope: Array, of_features: tuple) -> Array:
    """Whether the coefficients have this slope where the features have theirs."""
    parts = jnp.stack([a * phi for a, phi in zip(found, of_features, strict=True)])
    return jnp.all(jnp.abs(jnp.sum(parts, axis=0) - slope) <= _TOLERANCE * jnp.sum(jnp.abs(parts), axis=0))


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
