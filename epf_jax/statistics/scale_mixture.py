r"""Student and Cauchy noise as a Gaussian scale mixture: Storvik's exact recursion for heavy tails.

A Student variable of :math:`\nu` degrees of freedom (Cauchy: :math:`\nu = 1`) is Gaussian given a random precision,

.. math:: v_t \mid \lambda_t \sim N(0, s^2/\lambda_t), \quad \lambda_t \sim \mathrm{Gamma}(\nu/2, \nu/2), \qquad
          \lambda_t \mid v_t \sim \mathrm{Gamma}\Big(\frac{\nu+1}{2}, \frac{\nu + v_t^2/s^2}{2}\Big) .

Each particle draws :math:`\lambda_t` from its conditional at its own theta, as part of its path. Given the path, theta
is Gaussian again, with the recursion of `conjugate` at noise :math:`s/\sqrt{\lambda_t}`: for an autoregression, the
sums of :math:`\lambda_t x_{t-1}^2` and :math:`\lambda_t x_t x_{t-1}`. Erol et al. (2013), section 5.2, say that no
sufficient statistics exist for this model; that is true without lambda.

The density is exact, but each lambda is drawn only once, at the theta that its particle had then. If a jump suddenly
narrows the posterior, early lambdas hold theta back, and `chebyshev` is more accurate with the same number of particles
(`benchmarks/results/reproduce_full.json`).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from epf_jax.core.dependence import abstractly, depends_on
from epf_jax.core.gammas import gamma
from epf_jax.core.gaussian import base_distribution
from epf_jax.models.path_terms import Term, Terms, path_terms
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.statistics.conjugate import (
    LinearPart,
    linear_gaussian_statistic,
    linear_part,
    why_not_gaussian_prior,
    why_not_linear,
)
from epf_jax.statistics.statistic import Statistic


@waits_for_inputs
def scale_mixture(model: StateSpaceModel) -> Statistic:
    """The exact statistic of a model that is linear in theta with Student, Cauchy or Gaussian noise of known scale.

    theta needs a Gaussian prior and may enter the transition, the observation or both. The draw of theta is exact
    given the path and its lambdas; `log_density` is that same Gaussian.
    """
    problem = why_not_scale_mixture(model)
    if problem:
        raise ValueError(f"scale_mixture: {problem} Use epf.chebyshev(model) or epf.taylor(model, order=...).")
    terms = path_terms(model)
    initial, steps = ([_part(term, model, terms) for term in group] for group in (terms.initial, terms.steps))
    return linear_gaussian_statistic(model, initial, steps, "scale_mixture")


def why_not_scale_mixture(model: StateSpaceModel) -> str:
    """A sentence that says why the statistic does not fit `model`, or an empty string."""
    problem = why_not_gaussian_prior(model, "scale_mixture")
    if problem:
        return problem
    terms, centre = path_terms(model), model.parameters.centre
    x_prev, x, _, u = terms.example
    for term in (*terms.initial, *terms.steps):
        problem = why_not_linear(_core(term), model, terms)
        if problem:
            return problem
        if _is_heavy(term, model, terms) and term.name == "initial":
            return "x_0 has heavy tails and depends on theta."
        if _is_heavy(term, model, terms) and depends_on(partial(_degrees, term), centre, x_prev, x, u):
            return f"the degrees of freedom of the {term.name} depend on theta."
    return ""


def _part(term: Term, model: StateSpaceModel, terms: Terms) -> LinearPart:
    if not _is_heavy(term, model, terms):
        return linear_part(term, model, terms)
    is_cauchy = isinstance(_family(term, model, terms), dist.Cauchy)

    def inflate(key, residual, x_prev, x, u):
        """1 / sqrt(lambda), with lambda drawn given the residual; 1 where the value is missing."""
        degrees = _degrees(term, model.parameters.centre, x_prev, x, u)
        if is_cauchy:  # Gamma(1), without a rejection loop
            drawn = jax.random.exponential(key, residual.shape, residual.dtype)
        else:
            drawn = gamma(key, jnp.broadcast_to((degrees + 1) / 2, residual.shape).astype(residual.dtype))
        # A draw may round to 0, and an infinite noise would spoil the recursion: one of 1e-10 is as good as none.
        drawn = jnp.maximum(drawn, 1e-10)
        return jnp.where(jnp.isnan(residual), 1.0, jnp.sqrt((degrees + residual**2) / (2 * drawn)))

    return linear_part(_core(term), model, terms, inflate)


def _core(term: Term) -> Term:
    """The term with its Student or Cauchy distribution replaced by the Gaussian of the same location and scale."""

    def distribution(*given):
        whole = term.distribution(*given)
        base = base_distribution(whole)
        if not isinstance(base, (dist.StudentT, dist.Cauchy)):
            return whole
        shape = whole.batch_shape + whole.event_shape
        return dist.Normal(jnp.broadcast_to(base.loc, shape), jnp.broadcast_to(base.scale, shape))

    return term._replace(distribution=distribution)


def _degrees(term: Term, *given: Any) -> Any:
    whole = term.distribution(*given)
    base = base_distribution(whole)
    degrees = base.df if isinstance(base, dist.StudentT) else 1.0
    return jnp.broadcast_to(jnp.asarray(degrees, float), whole.batch_shape + whole.event_shape).ravel()


def _is_heavy(term: Term, model: StateSpaceModel, terms: Terms) -> bool:
    return isinstance(_family(term, model, terms), (dist.StudentT, dist.Cauchy))


def _family(term: Term, model: StateSpaceModel, terms: Terms) -> Any:
    x_prev, x, _, u = terms.example
    return base_distribution(abstractly(term.distribution, model.parameters.centre, x_prev, x, u))
