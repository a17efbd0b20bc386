r"""Gaussian terms as regressions that nodal parameters are given for, and their coefficients given all the rest.

A term with the mean :math:`H_t(\eta)\, \beta + h_t(\eta)` has a row :math:`(H_t, v_t - h_t)` for each component. The
sum of the products of its rows is all that a path says of :math:`\beta` and of its noise, given :math:`\eta`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.choice import where
from epf_jax.core.gaussian import cholesky, diagonal, is_gaussian, moments, solve_lower, solve_upper
from epf_jax.models.flat_theta import Numbers, numbers_in_a_row
from epf_jax.models.parameters import evaluated, is_distribution
from epf_jax.models.path_terms import Term, gaussian_term, is_silent, path_terms, whiten
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.statistics.coefficients import put
from epf_jax.statistics.means import which_enter

NOTHING = np.zeros(0, int)  # of theta's numbers
_ROUNDING = 1e-3  # of a sum of squares, far above what rounding leaves of one
_RIDGE = 20  # roundings of its own diagonal, by which a matrix of products is kept regular


class Piece(NamedTuple):
    """One term's share; t is theta's flat vector.

    Attributes:
        nodal: the numbers that its mean must be given, to be linear in `columns`.
        columns: the numbers that its mean is linear in.
        size: how many sums it keeps.
        terms: `terms(c, x_prev, x, y, u)`, what a step adds to the sums, at the nodal numbers of c.
        read: `read(sums, t)`, the products of all rows, divided by the noise at t, and the logarithm of that noise.
    """

    nodal: Int[np.ndarray, " q"]
    columns: Int[np.ndarray, " m"]
    size: int
    terms: Callable[..., Float[Array, " size"]]
    read: Callable[[Array, Array], tuple[Float[Array, "m+1 m+1"], Float[Array, ""]]]


class Coefficients(NamedTuple):
    """The numbers of theta that are integrated out.

    Attributes:
        places: their places in theta's flat vector.
        own: their coordinates in z.
        rest: all other coordinates.
        precision: of their Gaussian prior, whose mean is the prior's centre.
    """

    places: Int[np.ndarray, " k"]
    own: Int[np.ndarray, " k"]
    rest: Int[np.ndarray, " r"]
    precision: Float[Array | np.ndarray, "k k"]


def none_integrated(dim: int) -> Coefficients:
    """No number of theta integrated out."""
    return Coefficients(NOTHING, NOTHING, np.arange(dim), np.zeros((0, 0)))


def _piece(term: Term, numbers: Numbers, example: tuple, nodal: Int[np.ndarray, " q"]) -> Piece:
    gaussian = gaussian_term(term, numbers.leaves(numbers.c), example)
    assert gaussian is not None
    in_mean, in_noise = (which_enter(f, numbers, example) for f in (gaussian.mean, gaussian.scale_tril))
    later = not np.isin(in_noise, nodal).all()  # are rows divided by their noise
    columns, m, d = np.setdiff1d(in_mean, nodal), len(np.setdiff1d(in_mean, nodal)) + 1, gaussian.dim if later else 1
    i, j = np.triu_indices(m)
    pairs = np.zeros((m, m), int)
    pairs[i, j] = pairs[j, i] = np.arange(len(i))

    def rows_of(c, x_prev, x, y, u):
        """Slopes and residuals, of nothing for silent components, their noise, and which are not silent."""

        def mean(step):
            value = gaussian.mean(numbers.leaves(put(c, columns, list(numbers.c[columns] + step))), x_prev, x, u)
            return value, value

        value = jnp.ravel(gaussian.term.value(x, y))
        slopes, offset = jax.jacfwd(mean, has_aux=True)(jnp.zeros(len(columns)))
        scale = gaussian.scale_tril(numbers.leaves(c), x_prev, x, u)
        seen = ~is_silent(gaussian, value, scale)
        value, slopes, offset, scale = whiten(gaussian, value, scale, slopes, offset)
        return jnp.concatenate([slopes, (value - offset)[:, None]], axis=1), scale, seen

    def terms(c, x_prev, x, y, u):
        rows, scale, seen = rows_of(c, x_prev, x, y, u)
        if later:
            return jnp.concatenate([jnp.ravel(rows[:, i] * rows[:, j]), seen.astype(rows.dtype)])
        white = solve_lower(scale, rows)
        log_noise = jnp.sum(jnp.log(diagonal(scale)))
        return jnp.append(jnp.sum(white[:, i] * white[:, j], axis=0), log_noise if len(in_noise) else 0.0)

    def read(sums, t):
        products, others = sums[: d * len(i)].reshape(d, -1), sums[d * len(i) :]
        if not later:
            return products[0][pairs], others[0]
        x_prev, x, _, u = example
        scale = diagonal(gaussian.scale_tril(numbers.leaves(t), x_prev, x, u))
        possible = jnp.all((scale > 0) & jnp.isfinite(scale) | (others == 0))  # what was never seen has no noise
        scale = where(possible & (others > 0), scale, 1.0)
        return (scale**-2 @ products)[pairs], where(possible, others @ jnp.log(scale), jnp.inf)

    own = np.intersect1d(in_mean if later else np.union1d(in_mean, in_noise), nodal)
    return Piece(own, columns, d * len(i) + (d if later else 1), terms, read)


def pieces_of(model: StateSpaceModel, nodal: Int[np.ndarray, " q"]) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """The shares of the initial state and of the terms of a step."""
    numbers, terms = numbers_in_a_row(model.parameters), path_terms(model, natural=True)
    initial, steps = (tuple(_piece(t, numbers, terms.example, nodal) for t in g) for g in (terms.initial, terms.steps))
    return initial, steps


def coefficients_of(model: StateSpaceModel, pieces: Sequence[Piece]) -> Coefficients:
    """Those numbers in which all means are linear, that enter no noise and have a Gaussian prior."""
    coordinates, numbers = model.parameters, numbers_in_a_row(model.parameters)
    terms = path_terms(model, natural=True)
    leaves, noise = numbers.leaves(numbers.c), [NOTHING]
    for term in (*terms.initial, *terms.steps):
        gaussian = gaussian_term(term, leaves, terms.example)
        assert gaussian is not None
        noise.append(which_enter(gaussian.scale_tril, numbers, terms.example))
    linear = np.setdiff1d(np.concatenate([NOTHING, *(p.columns for p in pieces)]), np.concatenate(noise))
    priors = jax.tree.leaves(model.prior, is_leaf=is_distribution)
    both = list(zip(priors, numbers.places, strict=True))
    own = [(prior, places) for prior, places in both if is_gaussian(prior) and np.isin(places, linear).all()]
    places = np.concatenate([NOTHING, *(places for _, places in own)])

    def precision():
        scale = jax.scipy.linalg.block_diag(jnp.zeros((0, 0)), *(jnp.asarray(moments(p)[1], float) for p, _ in own))
        white = solve_lower(scale, jnp.eye(len(places))) if len(places) else scale
        return white.T @ white

    at = coordinates.own[places]
    return Coefficients(places, at, np.setdiff1d(np.arange(coordinates.dim), at), evaluated(precision))


def conditional(
    pieces: Sequence[Piece], coefficients: Coefficients, numbers: Numbers, sums: Sequence[Array], t: Array
) -> tuple[Float[Array, ""], Callable[[Array], Array]]:
    """The log-likelihood at t with the coefficients integrated out, and what draws them, less their prior mean.

    Sums read between nodes that are too far apart may be no sums of squares: what leaves a negative square is not
    believed.
    """
    A, b = jnp.asarray(coefficients.precision), jnp.zeros(len(coefficients.places))
    squares, noises = jnp.zeros(()), jnp.zeros(())
    for piece, s in zip(pieces, sums, strict=True):
        products, log_noise = piece.read(s, t)
        free = _chosen(coefficients.places, np.append(piece.columns, -1))
        w = _residual(piece, np.setdiff1d(piece.columns, coefficients.places), numbers, t)
        u = products @ w
        A, b = A + free @ products @ free.T, b + free @ u
        squares, noises = squares + w @ u, noises + log_noise
    if len(b) == 0:
        return -0.5 * squares - noises, lambda noise: b
    A = A * (1 + _RIDGE * len(b) * jnp.finfo(A.dtype).eps * np.eye(len(b), dtype=A.dtype))
    # From the last to the first: then draws are those of `conjugate` from the same noise.
    L = cholesky(A[::-1, ::-1])
    white = solve_lower(L, b[::-1])
    left = squares - jnp.sum(white**2)
    log_p = where(left >= -_ROUNDING * squares, -0.5 * left - jnp.sum(jnp.log(diagonal(L))) - noises, -jnp.inf)
    return log_p, lambda noise: solve_upper(L, white + noise[::-1])[::-1]


def _chosen(places: Int[np.ndarray, " k"], of: Int[np.ndarray, " m"]) -> np.ndarray:
    """The matrix that takes the numbers at some places out of a vector of numbers at others; NumPy's, of 0 and 1."""
    return (places[:, None] == of).astype(jnp.result_type(float))


def _residual(piece: Piece, moved: Int[np.ndarray, " k"], numbers: Numbers, t: Array) -> Float[Array, " m+1"]:
    """The vector whose product with a row is the residual, of which some columns are moved to the value's side at t."""
    away = _chosen(np.append(np.where(np.isin(piece.columns, moved), piece.columns, -1), -1), np.arange(len(numbers.c)))
    return away @ (numbers.c - t) + np.eye(len(away), dtype=away.dtype)[-1]
