r"""What a filter of endless streams keeps instead of the whole series: a fit to all that came before a window.

Every W observations the thetas, their inner filters and their log-likelihoods are kept as an anchor, and the memory
begins anew. A theta that is new at time t begins there: its log-likelihood of y_1:s and its inner filter at the
anchor's time s are read from the anchor by regression on theta, and its filter then runs over y_s+1:t.

The log-likelihoods are regressed themselves, and not a density fitted to the thetas: where they are exact, so is all
that they say of the past, however few thetas there are, up to what a polynomial of low degree leaves out. That error
falls as the posterior narrows. The law of x_s matters the less the longer the window is: Kalman's means and scales are
regressed alike, particles are those of the nearest theta.

Coordinates are those of the posterior at the anchor, white. Beyond `_REACH` of its standard deviations the polynomial
is followed by a Gaussian's tail: no polynomial is to be believed where there were no thetas. Regression weighs each
theta by the root of its weight. Inner particles estimate likelihoods without bias, so that log-likelihoods err by minus
half their variance; and weights prefer thetas whose estimates came out high. With roots the two cancel.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from epf_jax.core.choice import where
from epf_jax.core.gaussian import solve_lower
from epf_jax.core.polynomials import monomials, num_coefficients
from epf_jax.filters.filter import spread_of
from epf_jax.filters.inner_sizes import Sizes, start_each
from epf_jax.filters.state import FilterState
from epf_jax.models.parameters import Parameters, Theta
from epf_jax.particles.weights import Population

_REACH = 2.0  # posterior standard deviations beyond the root of the number of parameters
_RIDGE = 1e-3  # of a coefficient, beside thetas of which each counts by the root of its weight
_MOST_DEGREE = 4
_NOISY_DEGREE = 2  # of estimates, whose noise more coefficients would follow
_PER_COEFFICIENT = 4  # thetas that each coefficient asks for


class Anchor(NamedTuple):
    """Thetas at the beginning of the window, and all that is known of them there.

    Attributes:
        z: unconstrained coordinates.
        spread: the posterior's.
        filters: the inner filters, a row for each theta.
        log_evidence: the log-likelihoods, but for a constant.
        log_weights: the thetas' weights.
        t: the number of observations until then; 0 where the window is the whole series.
    """

    z: Float[Array, "N P"]
    spread: Population
    filters: Any
    log_evidence: Float[Array, " N"]
    log_weights: Float[Array, " N"]
    t: Int[Array, ""]


def fitted_degree(num_thetas: int, dim: int, is_exact: bool) -> int:
    """The largest degree of which so many thetas tell every coefficient; 0 where none above the first does."""
    most = _MOST_DEGREE if is_exact else _NOISY_DEGREE
    fitting = [d for d in range(2, most + 1) if _PER_COEFFICIENT * num_coefficients(dim, d) <= num_thetas]
    return max(fitting, default=0)


def least_thetas(dim: int) -> int:
    """The fewest that a window works with."""
    return _PER_COEFFICIENT * num_coefficients(dim, 2)


def anchor_of(coordinates: Parameters, state: FilterState) -> Anchor:
    """What is known now, as the anchor of a window that begins after this observation."""
    z = jax.vmap(coordinates.to_vector)(state.theta)
    # But for a constant: differences of thetas would be lost in the sum of a long stream.
    log_evidence = state.S.log_evidence - jnp.max(state.S.log_evidence)
    return Anchor(z, spread_of(coordinates, state), state.S.filters, log_evidence, state.log_weights, state.t)


def anchored(coordinates: Parameters, state: FilterState, due: Bool[Array, ""]) -> FilterState:
    """The state with a new anchor where the window is full."""
    new = anchor_of(coordinates, state)
    kept = state.S.anchor, state.S.log_evidence
    anchor, log_evidence = jax.lax.cond(due, lambda: (new, new.log_evidence), lambda: kept)
    return state._replace(S=state.S._replace(anchor=anchor, log_evidence=log_evidence))


def begin_at(
    anchor: Anchor,
    key: PRNGKeyArray,
    sizes: Sizes,
    level: Int[Array, ""],
    z: Float[Array, "N P"],
    theta: Theta,
    *,
    degree: int,
) -> tuple[Any, Float[Array, " N"]]:
    """Inner filters of new thetas at the beginning of the window, and the log-likelihoods that they have there."""
    old, new = (solve_lower(anchor.spread.scale_tril, (at - anchor.spread.mean).T).T for at in (anchor.z, z))
    radius = jnp.linalg.norm(new, axis=1)
    reach = _REACH + math.sqrt(z.shape[1])
    within = new * jnp.minimum(1.0, reach / jnp.maximum(radius, reach))[:, None]
    shares = _regression(old / reach, anchor.log_weights, within / reach, degree)
    beyond = 0.5 * jnp.maximum(radius**2 - reach**2, 0.0)
    log_evidence = shares @ where(jnp.isfinite(anchor.log_evidence), anchor.log_evidence, 0.0) - beyond
    fresh = start_each(key, sizes, level, theta), jnp.zeros_like(log_evidence)
    size = sizes[-1]
    if size.num_particles:  # which have no average
        apart = jnp.sum((old - within[:, None]) ** 2, axis=-1)
        shares = jax.nn.one_hot(jnp.argmin(apart, axis=1), len(old))
    filters = jax.vmap(lambda theta, shares: size.between(theta, anchor.filters, shares))(theta, shares)
    return jax.tree.map(lambda a, b: where(anchor.t > 0, a, b), (filters, log_evidence), fresh)


def _regression(
    old: Float[Array, "N P"], log_weights: Float[Array, " N"], new: Float[Array, "M P"], degree: int
) -> Float[Array, "M N"]:
    """The shares of the values at old points of which a polynomial's values at new ones consist."""
    rows = jax.vmap(lambda s: monomials(s, degree))
    root = jnp.exp(0.25 * (log_weights - jnp.max(log_weights)))  # a square's weight is the root of the theta's
    A = root[:, None] * rows(old)
    Q, R = jnp.linalg.qr(jnp.concatenate([A, _RIDGE * jnp.eye(A.shape[1], dtype=A.dtype)]))
    # The Q of the rows of the thetas alone: those of the ridge have values of zero.
    half = jax.scipy.linalg.solve_triangular(R, rows(new).T, trans=1)
    return half.T @ Q[: len(old)].T * root
