r"""Gaussian algebra: moments of a distribution, small dense matrices, conditioning on a linear observation.

Matrices are tiny (the dimension of a state, an observation or a parameter), and there are thousands of them. LAPACK
would be called once per matrix, at about a microsecond each. Written as scalar operations, the algebra runs over all
particles at once, and `jet` can differentiate it. Above `_UNROLL` there are loops instead.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float

from epf_jax.core.choice import where
from epf_jax.core.dependence import abstractly, depends_on, is_affine

_UNROLL = 6
_LOG_2PI = math.log(2 * math.pi)


def is_gaussian(d: Any) -> bool:
    """Whether d is a Normal (of any shape, expanded or not), its `to_event`, or a MultivariateNormal."""
    base = base_distribution(d)
    if type(base) is dist.MultivariateNormal:
        return d.batch_shape + d.event_shape == base.event_shape
    return type(base) is dist.Normal


def moments(d: Any) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Mean and lower-triangular scale of a Gaussian, its components flattened to one vector."""
    shape, d = d.batch_shape + d.event_shape, base_distribution(d)
    if isinstance(d, dist.MultivariateNormal):
        return d.loc, d.scale_tril
    mean = jnp.broadcast_to(d.loc, shape).ravel()
    return mean, diagonal_matrix(jnp.broadcast_to(d.scale, shape).ravel())


def base_distribution(d: Any) -> Any:
    """The distribution inside `to_event` and `expand`."""
    while isinstance(d, (dist.Independent, dist.ExpandedDistribution)):
        d = d.base_dist
    return d


def diagonal_matrix(values: Float[Array, " d"]) -> Float[Array, "d d"]:
    """`jnp.diag(values)`, in a few equations."""
    return where(np.eye(len(values), dtype=bool), values[:, None], 0.0) if len(values) > 1 else values[:, None]


def diagonal(a: Float[Array, "d d"]) -> Float[Array, " d"]:
    """`jnp.diag(a)`, in a few equations."""
    return a.ravel()[:: len(a) + 1]


def root(variance: Array) -> Array:
    """Square root with a zero, not infinite, slope at 0."""
    positive = variance > 0
    return where(positive, jnp.sqrt(where(positive, variance, 1.0)), 0.0)


def cholesky(a: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Lower Cholesky factor; a pivot within rounding counts as zero."""
    d = a.shape[-1]
    least = 10 * d * jnp.finfo(a.dtype).eps  # of a pivot, beside the number that it is made of
    if d > _UNROLL:
        return _cholesky_by_columns(a, least * diagonal(a))
    rows: list[list[Any]] = [[jnp.zeros_like(a[0, 0])] * d for _ in range(d)]
    for j in range(d):
        pivot = a[j, j] - sum(rows[j][k] ** 2 for k in range(j)) if j else a[j, j]
        counts = pivot > least * a[j, j]
        root = jnp.sqrt(where(counts, pivot, 1.0))
        rows[j][j] = where(counts, root, 0.0)
        for i in range(j + 1, d):
            rest = (a[i, j] - sum(rows[i][k] * rows[j][k] for k in range(j)) if j else a[i, j]) / root
            rows[i][j] = where(counts, rest, 0.0)
    return jnp.stack([jnp.stack(row) for row in rows])


def _cholesky_by_columns(a: Float[Array, "d d"], least: Float[Array, " d"]) -> Float[Array, "d d"]:
    """The Cholesky factor by a loop over columns, for all particles. LAPACK's is all NaN for a singular matrix."""
    d = a.shape[-1]

    def with_column(j, lower):
        rest = a[:, j] - lower @ lower[j]  # whose columns from j on are zero
        counts = rest[j] > least[j]
        root = jnp.sqrt(where(counts, rest[j], 1.0))
        return lower.at[:, j].set(where(counts & (jnp.arange(d) >= j), rest / root, 0.0))

    return jax.lax.fori_loop(0, d, with_column, jnp.zeros_like(a))


def solve_lower(lower: Float[Array, "d d"], b: Float[Array, "d *k"]) -> Float[Array, "d *k"]:
    """L^{-1} b by forward substitution."""
    d = lower.shape[-1]
    if d > _UNROLL:
        matrix = b.reshape(d, -1)
        return jax.scipy.linalg.solve_triangular(lower, matrix, lower=True).reshape(b.shape)
    rows: list[Any] = []
    for i in range(d):
        rest = b[i] - sum(lower[i, k] * rows[k] for k in range(i)) if i else b[i]
        rows.append(rest / lower[i, i])
    return jnp.stack(rows)


def solve_upper(lower: Float[Array, "d d"], b: Float[Array, " d"]) -> Float[Array, " d"]:
    """L^{-T} b by back substitution."""
    d = lower.shape[-1]
    if d > _UNROLL:
        return jax.scipy.linalg.solve_triangular(lower, b, trans="T", lower=True)
    rows: dict[int, Any] = {}
    for i in reversed(range(d)):
        rows[i] = (b[i] - sum(lower[k, i] * rows[k] for k in reversed(range(i + 1, d)))) / lower[i, i]
    return jnp.stack([rows[i] for i in range(d)])


def normal_log_prob(residual: Float[Array, " d"], scale_tril: Float[Array, "d d"]) -> Float[Array, ""]:
    r"""Log N(residual; 0, L L^T)."""
    return _log_prob_of_white(solve_lower(scale_tril, residual), scale_tril, len(residual))


def _log_prob_of_white(white: Float[Array, " d"], scale_tril: Float[Array, "d d"], num: Any) -> Float[Array, ""]:
    """That of so many components; masked ones are N(0, 1) at 0, whose constants are not counted."""
    return -0.5 * (jnp.sum(white**2) + num * _LOG_2PI) - jnp.sum(jnp.log(diagonal(scale_tril)))


def without_noise(scale_tril: Float[Array, "d d"]) -> Bool[Array, " d"]:
    """Which components have no noise, such as the lags of an AR(p), or a position that moves by its velocity."""
    return jnp.all(scale_tril == 0, axis=-1)


def noisy_part(scale_tril: Float[Array, "d d"], diagonal: bool = False) -> Float[Array, "d d"]:
    """Scale of the components that have noise, with unit variance for the others."""
    fixed = without_noise(scale_tril)
    if diagonal:
        return scale_tril + diagonal_matrix(where(fixed, 1.0, 0.0))
    return mask_covariance(where(fixed, jnp.nan, 0.0), scale_tril)


def mask_missing(value: Float[Array, " d"], *rows: Float[Array, "d *k"]) -> tuple[Array, ...]:
    """`value` and `rows` with zeros in the rows where `value` is NaN, so that these components say nothing."""
    seen = ~jnp.isnan(value)

    def keep(a):
        return where(seen.reshape((-1,) + (1,) * (a.ndim - 1)), a, 0.0)

    return (keep(value), *(keep(a) for a in rows))


def mask_covariance(value: Float[Array, " d"], scale_tril: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Scale of the observed components' marginal, with unit variance where `value` is NaN."""
    if scale_tril.shape[-1] == 1:
        return where(jnp.isnan(value)[:, None], 1.0, scale_tril)
    seen = ~jnp.isnan(value)
    covariance = scale_tril @ scale_tril.T
    return cholesky(where(seen[:, None] & seen[None, :], covariance, jnp.eye(seen.shape[0])))


def masked_normal_log_prob(
    value: Float[Array, " d"], mean: Float[Array, " d"], scale_tril: Float[Array, "d d"]
) -> Float[Array, ""]:
    """Log N(value; mean, L L^T) of the components of `value` that are not NaN, the rest integrated out."""
    seen, scale_tril = ~jnp.isnan(value), mask_covariance(value, scale_tril)
    white = solve_lower(scale_tril, where(seen, value - mean, 0.0))
    return _log_prob_of_white(white, scale_tril, jnp.sum(seen, dtype=value.dtype))


class Conditioned(NamedTuple):
    """A Gaussian vector after a linear observation of it.

    Attributes:
        mean: mean of the vector given the observation.
        scale_tril: scale of the vector given the observation.
        log_density: log-density of the observation.
    """

    mean: Float[Array, " d"]
    scale_tril: Float[Array, "d d"]
    log_density: Float[Array, ""]


@jax.jit  # traced once for all its uses in a program
def condition(
    mean: Float[Array, " d"],
    scale_tril: Float[Array, "d d"],
    H: Float[Array, "k d"],
    offset: Float[Array, " k"],
    noise_tril: Float[Array, "k k"],
    value: Float[Array, " k"],
) -> Conditioned:
    r"""The vector v ~ N(mean, P) given value = H v + offset + N(0, R); components of value that are NaN are skipped.

    .. math:: D = H P H^T + R, \quad K = P H^T D^{-1}, \quad v \mid value \sim N(mean + K (value - H\,mean - offset),\;
              (I - KH) P)

    The Kalman filter over states, Storvik's recursion over parameters, and the fully adapted proposal all use it.
    """
    seen = ~jnp.isnan(value)
    D, half, left = factors_of_gain(scale_tril, where(seen[:, None], H, 0.0), mask_covariance(value, noise_tril))
    white = solve_lower(D, where(seen, value - H @ mean - offset, 0.0))
    log_density = _log_prob_of_white(white, D, jnp.sum(seen, dtype=value.dtype))
    return Conditioned(mean + half @ white, left, log_density)


def factors_of_gain(
    scale_tril: Float[Array, "d d"], H: Float[Array, "k d"], noise_tril: Float[Array, "k k"]
) -> tuple[Float[Array, "k k"], Float[Array, "d k"], Float[Array, "d d"]]:
    r"""The scale of D, :math:`K D^{1/2}`, and the scale of what is left of P, as `condition` writes them."""
    factors = _rotated if H.size <= _UNROLL**2 else _by_covariances
    return factors(noise_tril, H @ scale_tril, scale_tril)


def _rotated(noise: Float[Array, "k k"], HL: Float[Array, "k d"], L: Float[Array, "d d"]) -> tuple[Array, Array, Array]:
    r"""Factors of D, K and of what is left of P: :math:`(R^{1/2}, HL; 0, L)`, rotated until HL is gone.

    No covariance is formed: in float32 it could not hold both a vague prior and what a precise observation leaves of
    it. Each Givens rotation turns a column of the noise and one of L so that an entry of HL vanishes. Taken from the
    last column of L to the first, L stays lower triangular.
    """
    k, d = HL.shape
    if k == d == 1:  # columns of one number, which XLA need not put together and take apart again
        c, s = rotation(noise, HL)
        return c * noise + s * HL, s * L, c * L
    both = jnp.concatenate(
        [jnp.concatenate([noise, HL], axis=1), jnp.concatenate([jnp.zeros((d, k), L.dtype), L], axis=1)]
    )
    columns = [both[:, i] for i in range(k + d)]
    for i in range(k):
        for j in reversed(range(k, k + d)):
            columns[i], columns[j] = _givens(columns[i], columns[j], columns[i][i], columns[j][i])
    both = jnp.stack(columns, axis=1)
    return both[:k, :k], both[k:, :k], both[k:, k:]


def _by_covariances(noise: Array, HL: Array, L: Array) -> tuple[Array, Array, Array]:
    """The same factors for large matrices, where many rotations one after another would take long."""
    D = cholesky(HL @ HL.T + noise @ noise.T)
    half = solve_lower(D, HL @ L.T).T
    # (I - KH) P in Joseph's form, (I - KH) P (I - KH)^T + K R K^T: no cancellation when R is small.
    left, right = L - half @ solve_lower(D, HL), half @ solve_lower(D, noise)
    return D, half, cholesky(left @ left.T + right @ right.T)


def _givens(first: Array, second: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Two columns rotated so that of the numbers a and b in one row the second becomes zero."""
    c, s = rotation(a, b)
    return c * first + s * second, c * second - s * first


def rotation(a: Array, b: Array) -> tuple[Array, Array]:
    """Cosine and sine of Givens' rotation that makes (r, 0) of (a, b), r not negative."""
    square = a**2 + b**2
    nothing = square == 0
    r = jnp.sqrt(where(nothing, 1.0, square))
    return where(nothing, 1.0, a / r), b / r


# -------------------------------------------------------------------------------------------- looking at functions


def is_linear_gaussian(distribution: Callable, x: Any, *others: Any) -> bool:
    """Whether `distribution(x, *others)` is Gaussian with a mean affine in x and a covariance free of x."""
    if not is_gaussian(abstractly(distribution, x, *others)):
        return False
    mean, scale = (lambda *given, i=i: moments(distribution(*given))[i] for i in (0, 1))
    return is_affine(mean, x, *others) and not depends_on(scale, x, *others)


def linear_parts(
    distribution: Callable, x_shape: tuple[int, ...], dtype: Any = float
) -> tuple[Float[Array, "k d"], Float[Array, " k"], Float[Array, "k k"]]:
    """Matrix, offset and noise scale of a Gaussian `distribution(x)` whose mean is affine in x."""
    dim = math.prod(x_shape)

    def along(direction):
        return jax.jvp(lambda flat: moments(distribution(flat.reshape(x_shape))), (np.zeros(dim, dtype),), (direction,))

    (offset, scale), (slopes, _) = jax.vmap(along, out_axes=(None, -1))(np.eye(dim, dtype=dtype))
    return slopes, offset, scale
