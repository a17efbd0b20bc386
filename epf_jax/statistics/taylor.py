r"""Taylor statistics: the extended parameter filter of Erol et al. (2013), Theorem 3.

Expanding the transition function in theta about a centre c, :math:`f_\theta(x) \approx \sum_{|i| \le M} H^i(x)
(\theta - c)^i`, and squaring the residual, the log-density of a path becomes a polynomial of degree 2M in theta whose
coefficients are sums over time: an exponential family with a fixed-size statistic,

.. math:: \log\hat p(\theta \mid x_{0:t}) = \log p(\theta) - \tfrac12 \sum_t \Big\| L^{-1}\big(x_t -
          \sum_i H^i(x_{t-1}) (\theta - c)^i\big) \Big\|^2, \qquad Q = L L^T .

The theorem's equation has this sign; the proof in the paper's appendix has it flipped. The expansion is in
unconstrained coordinates, which equal theta if its prior is on the real line. But if the means are linear in theta
itself, and not in these coordinates, the expansion is in theta itself, and exact.

Departures: vector states, several parameters and observation parameters are treated alike. A noise scale that depends
on theta is not expanded: the polynomial of squared residuals is kept separately and divided by the scale when the
density is evaluated. For a model that is not Gaussian, the log-density is expanded instead (`taylor_log_density`).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.checks import check_positive, check_whole_number
from epf_jax.core.dependence import is_affine
from epf_jax.core.derivatives import taylor_expansion
from epf_jax.core.gaussian import noisy_part, solve_lower
from epf_jax.core.polynomials import evaluate, is_zero, monomials, multiply, num_coefficients
from epf_jax.models.flat_theta import numbers_in_a_row
from epf_jax.models.parameters import Theta
from epf_jax.models.path_terms import (
    GaussianTerm,
    Term,
    Terms,
    gaussian_term,
    is_silent,
    noise_is_of_theta_alone,
    path_terms,
    require_noise,
    whiten,
)
from epf_jax.models.state_space import StateSpaceModel, as_theta
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.samplers import Sampler
from epf_jax.statistics.statistic import Statistic, check_model_learns, from_log_target

_SEPARATE = 64  # up to this many coefficients are an array each; beyond it, XLA compiles one of them all far sooner


class _Piece(NamedTuple):
    """One term's share of the statistic: s = 0, s += phi(...), and <psi(dz), s> at dz = z - centre.

    If means are linear in theta itself, z stands for theta's flat vector. Shares are relative to dz = 0, where they
    vanish. `bounded` says that a share cannot grow without limit.
    """

    zero: Any
    phi: Callable[[Array, Array, Any, Any], Any]
    log_likelihood: Callable[[Any, Float[Array, " P"]], Float[Array, ""]]
    bounded: bool = True


@waits_for_inputs
def taylor(
    model: StateSpaceModel, order: int = 7, *, centre: Theta | None = None, sampler: Sampler | None = None
) -> Statistic:
    """The Taylor statistic of the transition function (and of the observation's mean, if theta enters it).

    Gaussian terms whose noise is known or depends on theta alone give a log-polynomial of degree 2 `order`. It is
    bounded above, and so always a proper density. If the means are linear in theta, the expansion is in theta itself,
    and exact at any order and under any prior. In float32, data should lie within some hundred noise scales of the
    centre's predictions.

    For other terms the log-density is expanded to degree `order`, and theta is confined to a box, as in
    `taylor_log_density`.

    Args:
        model: the model.
        order: M, the order of the expansion.
        centre: the theta to expand about, with the prior's structure; the prior's centre by default.
        sampler: how theta is drawn; one step of `random_walk()` by default, as in the paper.
    """
    return _taylor(model, order, centre, sampler, radius=6.0, gaussian=True)


@waits_for_inputs
def taylor_log_density(
    model: StateSpaceModel,
    order: int = 6,
    *,
    centre: Theta | None = None,
    radius: float = 6.0,
    sampler: Sampler | None = None,
) -> Statistic:
    """The Taylor statistic of the log-density itself: a log-polynomial of degree `order` for any model.

    Such a polynomial may grow without limit away from its centre. So theta is confined to `radius` prior standard
    deviations about the centre.

    Args:
        model: the model.
        order: M, the order of the expansion.
        centre: the theta to expand about, with the prior's structure; the prior's centre by default.
        radius: half-width of the box that theta is confined to, in prior standard deviations of each coordinate.
        sampler: how theta is drawn; one step of `random_walk()` by default.
    """
    check_positive("radius", radius, "a positive number of prior standard deviations")
    return _taylor(model, order, centre, sampler, radius=radius, gaussian=False)


def _taylor(model, order, centre, sampler, *, radius, gaussian):
    check_whole_number("order", order, hint="It is the degree of the expansion, 7 in the paper.")
    check_model_learns(model, "taylor")
    require_noise(model, "taylor")
    coordinates = model.parameters
    z_c = coordinates.centre if centre is None else _vector(model, centre)
    straight = gaussian and _is_straight_in_theta_alone(model)
    terms, c, place = (_in_theta_itself if straight else _in_z)(model, z_c)

    def piece(term: Term) -> _Piece:
        found = gaussian_term(term, c, terms.example) if gaussian else None
        if found is not None and found.known_noise:
            return _squared_residuals(found, c, order, terms.example)
        if found is not None and noise_is_of_theta_alone(found, c, terms.example):
            return _scaled_residuals(found, c, order, terms.example)
        return _log_density(term, c, order, terms.example)

    initial, steps = [piece(term) for term in terms.initial], [piece(term) for term in terms.steps]
    confined = not all(p.bounded for p in (*initial, *steps))
    reach = radius * coordinates.scale

    def init(x_0=None):
        started = [p.zero if x_0 is None else p.phi(x_0, x_0, None, None) for p in initial]
        return (tuple(started), tuple(p.zero for p in steps))

    def update(key, S, theta, x_prev, x, y, u):
        started, sums = S
        return started, tuple(_add(s, p.phi(x_prev, x, y, u)) for s, p in zip(sums, steps, strict=True))

    def log_target(S):
        started, sums = S

        def log_density(z):
            away, total = place(z) - c, coordinates.log_prior(z)
            for s, p in zip((*started, *sums), (*initial, *steps), strict=True):
                total += p.log_likelihood(s, away)
            return jnp.where(jnp.all(jnp.abs(z - z_c) <= reach), total, -jnp.inf) if confined else total

        return log_density

    def remainder(theta, x_prev, x, y, u):
        v, total = place(coordinates.to_vector(theta)), jnp.zeros(())
        for p, term in zip(steps, terms.steps, strict=True):
            exact = term.log_prob(v, x_prev, x, y, u) - term.log_prob(c, x_prev, x, y, u)
            total += p.log_likelihood(p.phi(x_prev, x, y, u), v - c) - exact
        return total

    name = f"{'taylor' if gaussian else 'taylor_log_density'} of order {order}{' in theta itself' if straight else ''}"
    statistic = from_log_target(model, init, update, log_target, sampler, name)
    return statistic._replace(remainder=remainder, box=(lambda S: (z_c - reach, z_c + reach)) if confined else None)


@lru_cache(maxsize=256)
def _is_straight_in_theta_alone(model: StateSpaceModel) -> bool:
    """Whether the means are linear in theta itself, and not in z."""
    return not _is_straight(*_in_z(model)[:2]) and _is_straight(*_in_theta_itself(model)[:2])


def _is_straight(terms: Terms, c: Float[Array, " V"]) -> bool:
    x_prev, x, _, u = terms.example
    for term in (*terms.initial, *terms.steps):
        found = gaussian_term(term, c, terms.example)
        if found is None or not is_affine(found.mean, c, x_prev, x, u):
            return False
        if not (found.known_noise or noise_is_of_theta_alone(found, c, terms.example)):
            return False
    return True


def _in_z(model: StateSpaceModel, z_c: Any = None) -> tuple[Terms, Any, Callable]:
    """The path's terms as functions of z, the centre, and the map from z, which is the identity."""
    return path_terms(model), model.parameters.centre if z_c is None else z_c, lambda z: z


def _in_theta_itself(model: StateSpaceModel, z_c: Any = None) -> tuple[Terms, Any, Callable]:
    """The path's terms as functions of theta's flat vector, the centre, and the map from z to this vector."""
    numbers, terms = numbers_in_a_row(model.parameters), path_terms(model, natural=True)

    def in_a_row(term: Term) -> Term:
        return term._replace(
            distribution=lambda v, *args: term.distribution(numbers.leaves(v), *args),
            log_prob=lambda v, *args: term.log_prob(numbers.leaves(v), *args),
        )

    initial, steps = (tuple(map(in_a_row, group)) for group in (terms.initial, terms.steps))
    return Terms(initial, steps, terms.example), numbers.c if z_c is None else numbers.at(z_c), numbers.at


def _vector(model, centre):
    try:
        return model.parameters.to_vector(as_theta(model, centre))
    except (TypeError, ValueError) as error:
        raise ValueError(f"centre: expected a theta with the prior's structure, got {centre!r}. {error}") from error


def _add(s, phi):
    return jax.tree.map(lambda total, new: total if is_zero(new) else total + new, s, phi)


class _Kept(NamedTuple):
    """Which coefficients of a polynomial are summed, and how they are stored: one number each, or one array of many.

    The constant is left out, because it says nothing about theta and would be the largest number in the sum. So are
    coefficients that vanish for all data.
    """

    size: int
    indices: tuple[int, ...]

    @property
    def zero(self) -> Any:
        num = len(self.indices)
        return tuple(jnp.zeros(()) for _ in range(num)) if num <= _SEPARATE else jnp.zeros(num)

    def pack(self, polynomial: Sequence[Any]) -> Any:
        kept = tuple(polynomial[i] for i in self.indices)
        return kept if len(kept) <= _SEPARATE else jnp.stack(kept)

    def evaluate(self, s: Any, dz: Float[Array, " P"], degree: int) -> Float[Array, ""]:
        if dz.shape[0] > 1:
            return jnp.asarray(s) @ monomials(dz, degree)[np.array(self.indices)]
        polynomial: list[Any] = [np.zeros(())] * self.size
        for i, coefficient in zip(self.indices, s, strict=True):
            polynomial[i] = coefficient
        return evaluate(polynomial, dz, degree)


def _kept(expand: Callable[..., list[Any]], example: tuple) -> _Kept:
    vanish: list[bool] = []

    def look(*args):
        vanish[:] = [is_zero(h) for h in expand(*args)]

    jax.eval_shape(look, *example)
    return _Kept(len(vanish), tuple(i for i, zero in enumerate(vanish) if i and not zero))


def _residuals(gaussian: GaussianTerm, c, order, example):
    """`residuals(...)`: value - mean as a polynomial in dz, its coefficients vectors, and the scale to divide by."""
    x_prev, x, _, u = example
    name = f"mean of the {gaussian.term.name}"
    expand = taylor_expansion(gaussian.mean, c, order, x_prev, x, u, what=name)

    def residuals(x_prev, x, y, u):
        scale = gaussian.scale_tril(c, x_prev, x, u)
        rows = expand(x_prev, x, u)
        moving = [i for i, H in enumerate(rows) if i == 0 or not is_zero(H)]
        value, *kept, scale = whiten(gaussian, gaussian.term.value(x, y), scale, *(rows[i] for i in moving))
        polynomial = [-H for H in rows]
        for i, H in zip(moving, kept, strict=True):
            polynomial[i] = value - H if i == 0 else -H
        return polynomial, scale

    return residuals


def _squared_residuals(gaussian: GaussianTerm, c, order, example) -> _Piece:
    """Known noise: one polynomial of degree 2M, the theorem's."""
    residuals, p = _residuals(gaussian, c, order, example), c.shape[0]

    def squares(x_prev, x, y, u):
        r, scale = residuals(x_prev, x, y, u)
        white = [h if is_zero(h) else solve_lower(scale, h) for h in r]
        return [-0.5 * h.sum(axis=-1) for h in multiply(white, white, p, order)]

    return _of_polynomial(squares, 2 * order, example)


def _of_polynomial(polynomial: Callable[..., list[Any]], degree: int, example, bounded: bool = True) -> _Piece:
    """The piece whose log-likelihood is a sum of polynomials in dz."""
    kept = _kept(polynomial, example)

    def phi(x_prev, x, y, u):
        return (kept.pack(polynomial(x_prev, x, y, u)),)

    return _Piece((kept.zero,), phi, lambda s, dz: kept.evaluate(s[0], dz, degree), bounded)


def _scaled_residuals(gaussian: GaussianTerm, c, order, example) -> _Piece:
    r"""Noise scale part of theta: :math:`-n \log|L(\theta)| - \frac12 \sum_t \|L(\theta)^{-1} r_t(\theta)\|^2`.

    The statistic is the sum of r r^T, as polynomials, and the number n of values seen (of each component). Missing
    components of a joint observation would need a count per pattern: those terms are expanded as log-densities.
    """
    x_prev, x, _, u = example
    residuals, p, d = _residuals(gaussian, c, order, example), c.shape[0], gaussian.dim
    rows, columns = (np.arange(d), np.arange(d)) if gaussian.diagonal else np.tril_indices(d)

    def phi(x_prev, x, y, u):
        r, _ = residuals(x_prev, x, y, u)
        value = jnp.ravel(gaussian.term.value(x, y))
        seen = ~is_silent(gaussian, value, gaussian.scale_tril(c, x_prev, x, u))
        left, right = [h[rows] for h in r], [h[columns] for h in r]
        return jnp.stack(multiply(left, right, p, order)), jnp.where(seen, 1.0, 0.0)

    def log_likelihood(s, dz):
        return at(s, dz) - at(s, jnp.zeros_like(dz))

    def at(s, dz):
        products, counts = s
        scale = gaussian.scale_tril(c + dz, x_prev, x, u)
        scale = noisy_part(scale, gaussian.diagonal)  # the rest has counts and products of zero
        squares = evaluate(products, dz, 2 * order)
        logs = jnp.log(jnp.diag(scale))
        if gaussian.diagonal:
            return -jnp.sum(counts * logs) - 0.5 * jnp.sum(squares / jnp.diag(scale) ** 2)
        matrix = jnp.zeros((d, d)).at[rows, columns].set(squares)
        matrix = matrix + matrix.T - jnp.diag(jnp.diag(matrix))
        white = solve_lower(scale, solve_lower(scale, matrix).T)
        return -jnp.sum(counts * logs) - 0.5 * jnp.trace(white)

    zero = (jnp.zeros((num_coefficients(p, 2 * order), len(rows))), jnp.zeros(d))
    return _Piece(zero, phi, log_likelihood)


def _log_density(term: Term, c, order, example) -> _Piece:
    """For any distribution: the log-density itself, expanded to degree M."""
    expand = taylor_expansion(term.log_prob, c, order, *example, what=f"log-density of the {term.name}")
    return _of_polynomial(expand, order, example, bounded=False)
