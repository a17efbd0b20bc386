r"""What a filter of endless streams keeps instead of the whole series: a fit to all that came before a window.

Every W observations the memory begins anew, at an anchor: thetas, their inner filters, and their log-likelihoods of all
observations so far. A theta that is new at time t begins there: its log-likelihood of y_1:s and its inner filter at the
anchor's time s are read from the anchor by regression on theta, and its filter then runs over y_s+1:t.

    1. spread    thetas are drawn about the posterior, near its mean and far from it
    2. run       each begins at the last anchor, and its filter runs over the window
    3. weigh     the filter's own thetas anew: by the fit to these, in place of what each of them was told

The draws go far beyond the posterior, because it may: an outlier moves it by several of its standard deviations, and
what was never looked at cannot be known any more. How far they go is drawn, too, between `_WIDTHS`. Where a fit is
asked for more than it knows, groups with other draws come to disagree (see `groups`), though not always at once.

The log-likelihoods are regressed themselves, and not a density fitted to the thetas: where they are exact, so is all
that they say of the past, however few thetas there are, up to what a polynomial of low degree leaves out. That error
falls as the posterior narrows. The law of x_s matters the less the longer the window is: Kalman's means and scales are
regressed alike, particles are those of the nearest theta.

Particles' estimates are noisy, by as much at every time: only the window's likelihoods are estimated, by inner filters
of one size for ever. What the fits have kept of that noise is known the worse the more windows there were. Draws far
from the mean keep it small, because noise counts by how steep a line it draws through them.

Coordinates are those of the posterior at the anchor, white. Beyond the draws the polynomial is followed by a Gaussian's
tail: no polynomial is to be believed where there were no thetas.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from epf_jax.core.choice import where
from epf_jax.core.gaussian import solve_lower
from epf_jax.core.polynomials import monomials, num_coefficients
from epf_jax.core.random import normal, uniform
from epf_jax.filters.filter import spread_of
from epf_jax.filters.inner_sizes import Sizes, start_each
from epf_jax.filters.state import FilterState
from epf_jax.models.parameters import Parameters, Theta
from epf_jax.particles.weights import Population

_WIDTHS = 4.0, 6.0  # posterior standard deviations of the widest draws
_POWER = 0.25  # of a draw's density, by which it counts in the fit: enough for those far away to count
_RIDGE = 1e-3  # of a coefficient, beside thetas of which the likeliest counts one
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
        log_weights: by which the thetas count.
        width: posterior standard deviations of the widest thetas.
        t: the number of observations until then; 0 where the window is the whole series.
    """

    z: Float[Array, "N P"]
    spread: Population
    filters: Any
    log_evidence: Float[Array, " N"]
    log_weights: Float[Array, " N"]
    width: Float[Array, ""]
    t: Int[Array, ""]


def fitted_degree(num_thetas: int, dim: int, is_exact: bool) -> int:
    """The largest degree of which so many thetas tell every coefficient; 0 where none above the first does."""
    most = _MOST_DEGREE if is_exact else _NOISY_DEGREE
    fitting = [d for d in range(2, most + 1) if _PER_COEFFICIENT * num_coefficients(dim, d) <= num_thetas]
    return max(fitting, default=0)


def least_thetas(dim: int) -> int:
    """The fewest that a window works with."""
    return _PER_COEFFICIENT * num_coefficients(dim, 2)


def first_anchor(coordinates: Parameters, state: FilterState) -> Anchor:
    """The anchor of a window that begins with the series: nothing is asked of it."""
    z, spread = jax.vmap(coordinates.to_vector)(state.theta), spread_of(coordinates, state)
    return Anchor(z, spread, state.S.filters, state.S.log_evidence, state.log_weights, jnp.ones(()), state.t)


def wide(key: PRNGKeyArray, spread: Population, num: int) -> tuple[Float[Array, "num P"], Float[Array, ""]]:
    """Thetas about the posterior, near its mean and far from it, and the width of the widest."""
    key_normal, key_scale, key_width = jax.random.split(key, 3)
    width = _WIDTHS[0] + (_WIDTHS[1] - _WIDTHS[0]) * uniform(key_width)
    white = normal(key_normal, (num, len(spread.mean)))
    return spread.mean + width * uniform(key_scale, (num, 1)) * white @ spread.scale_tril.T, width


def next_anchor(
    coordinates: Parameters,
    spread: Population,
    z: Float[Array, "N P"],
    width: Float[Array, ""],
    told: tuple[Any, Float[Array, " N"]],
    t: Int[Array, ""],
) -> Anchor:
    """The anchor of a window that begins now, by wide draws, and their filters and log-likelihoods."""
    filters, log_evidence = told
    # But for a constant: differences of thetas would be lost in the sum of a long stream.
    log_evidence = log_evidence - jnp.max(log_evidence)
    log_density = jax.vmap(coordinates.log_prior)(z) + log_evidence
    log_weights = _POWER * where(jnp.isfinite(log_density), log_density, -jnp.inf)
    return Anchor(z, spread, filters, log_evidence, log_weights, width, t)


def read(anchor: Anchor, z: Float[Array, "N P"], degree: int) -> tuple[Array, Array, Array]:
    """Log-likelihoods by the fit, the shares that the anchor's thetas have in them, and their squared distances."""
    old, new = (solve_lower(anchor.spread.scale_tril, (at - anchor.spread.mean).T).T for at in (anchor.z, z))
    radius = jnp.linalg.norm(new, axis=1)
    reach = anchor.width * math.sqrt(z.shape[1])
    within = new * jnp.minimum(1.0, reach / jnp.maximum(radius, reach))[:, None]
    shares = _regression(old / reach, anchor.log_weights, within / reach, degree)
    beyond = 0.5 * jnp.maximum(radius**2 - reach**2, 0.0)
    log_evidence = shares @ where(jnp.isfinite(anchor.log_evidence), anchor.log_evidence, 0.0) - beyond
    return log_evidence, shares, jnp.sum((old - within[:, None]) ** 2, axis=-1)


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
    log_evidence, shares, apart = read(anchor, z, degree)
    fresh = start_each(key, sizes, level, theta), jnp.zeros_like(log_evidence)
    size = sizes[-1]
    if size.num_particles:  # which have no average
        shares = jax.nn.one_hot(jnp.argmin(apart, axis=1), len(anchor.z))
    filters = jax.vmap(lambda theta, shares: size.between(theta, anchor.filters, shares))(theta, shares)
    return jax.tree.map(lambda a, b: where(anchor.t > 0, a, b), (filters, log_evidence), fresh)


def _regression(
    old: Float[Array, "N P"], log_weights: Float[Array, " N"], new: Float[Array, "M P"], degree: int
) -> Float[Array, "M N"]:
    """The shares of the values at old points of which a polynomial's values at new ones consist."""
    rows = jax.vmap(lambda s: monomials(s, degree))
    root = jnp.exp(0.5 * (log_weights - jnp.max(log_weights)))
    A = root[:, None] * rows(old)
    Q, R = jnp.linalg.qr(jnp.concatenate([A, _RIDGE * jnp.eye(A.shape[1], dtype=A.dtype)]))
    # The Q of the rows of the thetas alone: those of the ridge have values of zero.
    half = jax.scipy.linalg.solve_triangular(R, rows(new).T, trans=1)
    return half.T @ Q[: len(old)].T * root
