"""Factors: the densities of a path, kept as sums from which their log-likelihood is computed.

Regressors and variances, the rows of a transition matrix, and the coefficients of a count's log-density are derived
from the model. The model is inspected at some steps; if it has another form at a later step, the sums become NaN.
"""

import numpyro.distributions as dist

from epf_jax.core.dependence import abstractly
from epf_jax.core.gaussian import base_distribution
from epf_jax.models.path_terms import Term, gaussian_term
from epf_jax.models.switching import Switching, rest_log_prob, split_regime
from epf_jax.statistics.factors.factor import Factor, View
from epf_jax.statistics.factors.natural import categorical_factor, natural_factor
from epf_jax.statistics.factors.regression import covariance_factor, glance_at, regression_factor
from epf_jax.statistics.families import COVARIANCE

__all__ = ["Factor", "View", "factors_of", "refuse_at_a_glance"]


def factors_of(term: Term, view: View) -> list[Factor]:
    """The factors of a term that theta enters; a switching term has two."""
    x_prev, x, _, u = view.example
    whole = abstractly(term.distribution, view.reference, x_prev, x, u)
    if isinstance(whole, Switching):
        parts = filter(view.entering_density, _regime_and_rest(term))
        return [factor for part in parts for factor in factors_of(part, view)]
    if isinstance(base_distribution(whole), (dist.CategoricalProbs, dist.CategoricalLogits)):
        return [categorical_factor(term, view)]
    gaussian = gaussian_term(term, view.reference, view.example)
    if gaussian is None:
        return [natural_factor(term, view)]
    noise = view.entering(gaussian.scale_tril)
    if [view.leaves[i].family for i in noise] == [COVARIANCE]:
        return [covariance_factor(gaussian, noise[0], view)]
    return [regression_factor(gaussian, noise, view)]


def refuse_at_a_glance(term: Term, view: View) -> None:
    """Raise for terms that are plainly not conjugate, before anything is simulated."""
    gaussian = gaussian_term(term, view.reference, view.example)
    if gaussian is not None:
        glance_at(gaussian, view.entering(gaussian.scale_tril), view)


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
