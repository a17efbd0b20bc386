r"""Assumed densities: a Gaussian, or a mixture, over theta in every particle, matched to the moments of each new term.

The assumed parameter filter of Erol, Wu, Li and Russell (2017) keeps :math:`q_t(z) = N(z; m, LL^T)` over the
unconstrained parameters. A term :math:`\ell(z)` of the path's likelihood, a transition or an observation, turns it into
:math:`q_t(z)\,\ell(z)`, which is replaced by the Gaussian with the same mean and covariance (assumed-density filtering;
Opper 1998). The moments are sums over fixed nodes :math:`\xi_j` with weights :math:`w_j`:

.. math:: p_j \propto w_j\,\ell(m + L\xi_j), \quad \mu = \sum_j p_j\,\xi_j, \quad
          V = \sum_j p_j (\xi_j - \mu)(\xi_j - \mu)^T,
          \qquad m \leftarrow m + L\mu, \quad L \leftarrow L\,\mathrm{chol}(V) .

Particles keep L instead of the covariance, which is then positive definite in any precision. All weights are positive:
Gauss-Hermite on a tensor grid for up to three parameters, and for more the degree-five rule of Stroud (1971). Both
integrate fourth moments exactly; otherwise a covariance that is matched thousands of times would drift.

In a mixture each component is matched separately, and its weight is multiplied by its own :math:`\sum_j w_j\,\ell_j`.

No sums of the path are kept, so theta may enter in any way. At every step the statistic loses what a Gaussian cannot
represent.

The first observations may say much more than the prior. Their density is then a spike between the nodes of the prior,
and the matched Gaussian would lie beside it, and be too narrow. So they are absorbed by powers,
:math:`\ell = \ell^{\beta_1} \ell^{\beta_2} \cdots`, each so small that its logarithms at the nodes differ little, with
new nodes after each.
"""

from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from epf_jax.core.checks import check_whole_number
from epf_jax.core.choice import where
from epf_jax.core.gaussian import cholesky, normal_log_prob
from epf_jax.core.random import normal
from epf_jax.models.path_terms import path_terms, require_noise, warn_of_moving_bounds
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.samplers import exact_draw
from epf_jax.statistics.statistic import Statistic, check_model_learns

DEFAULT_NODES = {1: 15, 2: 9, 3: 7}
_LEAST_SHRINKAGE = 0.1  # of a standard deviation by one term: nodes do not resolve a sharper one
_NUM_FIRST = 4  # times as many observations as there are parameters are taken in by powers
_NUM_POWERS = 20  # at most, of one term: what is left is taken in at once, after them
_SD_OF_A_POWER = 0.8  # of its logarithms at the nodes


class MixtureStatistic(NamedTuple):
    """theta | path in unconstrained coordinates: K weighted Gaussians N(m, L L^T)."""

    log_weights: Float[Array, " K"]
    m: Float[Array, "K P"]
    L: Float[Array, "K P P"]


@waits_for_inputs
def assumed_density(model: StateSpaceModel, *, num_components: int = 1, num_nodes: int | None = None) -> Statistic:
    """The Gaussian (or mixture) over theta that each particle carries, matched to the moments of every new term.

    Args:
        model: the model; theta may enter in any way.
        num_components: the number of Gaussians, each matched separately; more follow skewed or multimodal densities.
        num_nodes: Gauss-Hermite nodes per coordinate; 15 for one parameter, 9 x 9 for two, 7 x 7 x 7 for three by
            default. With more parameters the nodes are always those of the degree-five rule.
    """
    check_model_learns(model, "assumed_density")
    check_whole_number("num_components", num_components)
    require_noise(model, "assumed_density")
    warn_of_moving_bounds(model, "assumed_density")
    coordinates = model.parameters
    reference = coordinates.centre
    init, update, update_all = _recursion(model, num_components, _nodes(coordinates.dim, num_nodes))

    def log_target(S):
        constant = coordinates.log_prior(reference) - _log_mixture(S, reference)
        return lambda z: constant + _log_mixture(S, z)

    def log_density(S, theta):
        z = coordinates.to_vector(theta)
        return log_target(S)(z) - coordinates.log_jacobian(z)

    def sample(key, S, theta, population=None):
        key_component, key_z = jax.random.split(key)
        k = jax.random.categorical(key_component, S.log_weights) if num_components > 1 else 0
        noise = normal(key_z, (coordinates.dim,), S.m.dtype)
        return coordinates.to_theta(S.m[k] + S.L[k] @ noise), exact_draw(S.m.dtype)

    name = "assumed_density" + (f" of {num_components} components" if num_components > 1 else "")
    return Statistic(init, update, log_density, sample, log_target, update_all, name=name, model=model)


class Rule(NamedTuple):
    """Nodes and log-weights that integrate against N(0, I)."""

    nodes: Float[Array, "M P"]
    log_w: Float[Array, " M"]


def _recursion(model: StateSpaceModel, num_components: int, rule: Rule) -> tuple[Callable, Callable, Callable]:
    """`init`, `update` and `update_all`."""
    coordinates, terms = model.parameters, path_terms(model)
    reference, scale_0 = coordinates.centre, jnp.diag(coordinates.scale)
    num_first = _NUM_FIRST * coordinates.dim

    def prior_correction(z):
        return coordinates.log_prior(z) - normal_log_prob(z - reference, scale_0)

    def init(x_0=None):
        log_weights, means, spread = _split(num_components, coordinates.dim)
        L = jnp.broadcast_to(scale_0 @ spread, (num_components, *spread.shape))
        S = MixtureStatistic(log_weights, reference + means @ scale_0, L)
        S = _absorb(rule, S, prior_correction)  # the prior's own moments, where it is not Gaussian in z
        for term in terms.initial if x_0 is not None else ():
            S = _absorb(rule, S, lambda z, term=term: term.log_prob(z, x_0, x_0, None, None), first=True)
        return S

    def update(key, S, theta, x_prev, x, y, u, *, first=False):
        for term in terms.steps:
            S = _absorb(rule, S, lambda z, term=term: term.log_prob(z, x_prev, x, y, u), first=first)
        return S

    def update_all(key, S, theta, x_prev, x, y, u, log_weights, t):
        """The first observations, of which one may say more than all that is known before it, by powers."""

        def for_all(update):
            return lambda: jax.vmap(lambda *path: update(None, path[0], None, *path[1:], y, u))(S, x_prev, x)

        # By t for all particles and runs alike, so that `vmap` over runs keeps it a branch.
        return jax.lax.cond(t <= num_first, for_all(partial(update, first=True)), for_all(update))

    return init, update, update_all


def _absorb(rule: Rule, S: MixtureStatistic, log_likelihood: Callable, *, first: bool = False) -> MixtureStatistic:
    """The mixture after one factor, component by component."""

    def at_nodes(m, L):
        log_l = jax.vmap(log_likelihood)(m + rule.nodes @ L.T)
        return where(jnp.isnan(log_l), -jnp.inf, log_l)

    def absorbed(m, L):
        return _by_powers(rule, at_nodes, m, L) if first else _match(rule, at_nodes(m, L), m, L)

    m, L, totals = jax.vmap(absorbed)(S.m, S.L)
    log_weights = S.log_weights + totals
    return MixtureStatistic(log_weights - logsumexp(log_weights), m, L)


def _match(rule: Rule, log_l: Float[Array, " M"], m: Float[Array, " P"], L: Float[Array, "P P"]) -> tuple:
    """The Gaussian with the moments of N(m, L L^T) times a factor, given by its logarithms at the nodes."""
    log_p = rule.log_w + log_l
    total = logsumexp(log_p)
    seen = jnp.isfinite(total)  # a term that is impossible at every node says nothing that could be kept
    p = jnp.exp(where(seen, log_p - total, rule.log_w))
    mu = p @ rule.nodes
    away = rule.nodes - mu
    return m + L @ mu, L @ _at_least(cholesky((p[:, None] * away).T @ away)), where(seen, total, 0.0)


def _by_powers(rule: Rule, at_nodes: Callable, m: Float[Array, " P"], L: Float[Array, "P P"]) -> tuple:
    """The same by powers of the factor, with new nodes after each."""

    def one(carry, is_last):
        m, L, left, total = carry
        log_l = at_nodes(m, L)
        power = where(is_last, left, _power(rule.log_w, jax.lax.stop_gradient(log_l), left))
        m, L, gained = _match(rule, where(power > 0, power * log_l, 0.0), m, L)
        return (m, L, left - power, total + gained), None

    start = (m, L, jnp.ones((), m.dtype), jnp.zeros((), m.dtype))
    (m, L, _, total), _ = jax.lax.scan(one, start, jnp.arange(_NUM_POWERS + 1) == _NUM_POWERS)
    return m, L, total


def _log_mixture(S: MixtureStatistic, z: Float[Array, " P"]) -> Float[Array, ""]:
    return logsumexp(S.log_weights + jax.vmap(lambda m, L: normal_log_prob(z - m, L))(S.m, S.L))


def _power(log_w: Float[Array, " M"], log_l: Float[Array, " M"], left: Float[Array, ""]) -> Float[Array, ""]:
    """A power of a factor, at most the remaining one, whose logarithms at the nodes differ little."""
    seen = jnp.isfinite(log_l)
    w = where(seen, jnp.exp(log_w), 0.0)
    w = w / jnp.maximum(jnp.sum(w), jnp.finfo(w.dtype).tiny)
    away = where(seen, log_l - jnp.max(where(seen, log_l, -jnp.inf)), 0.0)
    sd = jnp.sqrt(w @ (away - w @ away) ** 2)
    return jnp.minimum(left, _SD_OF_A_POWER / jnp.maximum(sd, _SD_OF_A_POWER))


def _at_least(L: Float[Array, "P P"]) -> Float[Array, "P P"]:
    """The factor with a diagonal of at least `_LEAST_SHRINKAGE`, so that no term removes all spread of a coordinate."""
    diagonal = jnp.diag(L)
    return L + jnp.diag(jnp.maximum(diagonal, _LEAST_SHRINKAGE) - diagonal)


def _nodes(dim: int, num_nodes: int | None) -> Rule:
    if dim not in DEFAULT_NODES:
        if num_nodes is not None:
            raise ValueError(
                f"num_nodes: expected None for the model's {dim} parameters, whose nodes are those of the degree-five "
                f"rule, got {num_nodes!r}. Gauss-Hermite grids are for one to three parameters."
            )
        nodes, weights = degree_five_rule(dim)
    else:
        num = DEFAULT_NODES[dim] if num_nodes is None else num_nodes
        check_whole_number("num_nodes", num, least=3, hint="Three integrate fourth moments; fewer do not.")
        axis, w = np.polynomial.hermite_e.hermegauss(num)
        grid = np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), axis=-1)
        weights = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * dim, indexing="ij"), axis=-1), axis=-1).ravel()
        nodes = grid.reshape(-1, dim)
    return Rule(jnp.asarray(nodes, float), jnp.asarray(np.log(weights), float))


def degree_five_rule(dim: int) -> tuple[Float[np.ndarray, "M P"], Float[np.ndarray, " M"]]:
    r"""Nodes and positive weights that integrate polynomials of degree five against N(0, I), for three parameters up.

    Stroud (1971): :math:`\pm\sqrt{(n+2)/2}\,e_i`, each of weight :math:`4/(n+2)^2`, and the corners
    :math:`\sqrt{(n+2)/(n-2)}\,(\pm1, .., \pm1)`, together of weight :math:`((n-2)/(n+2))^2`. A subset of the
    :math:`2^n` corners is enough if any five signs are independent: an orthogonal array of strength five.
    """
    n, codes, tied = dim, list[int](), set[int]()
    while len(codes) < n:  # the sign of coordinate i in run r is the parity of r & columns[i]: four must not cancel
        codes.append(next(c for c in range(2**n) if c not in tied))
        pairs = {a ^ b for a in codes for b in codes}
        tied = {a ^ b for a in pairs for b in codes}
    columns = [2 * c + 1 for c in codes]  # a bit in common: every run comes with its mirror image, odd numbers cancel
    runs = np.arange(2 ** max(columns).bit_length())
    signs = np.stack([1.0 - 2.0 * (_bits(runs & column) % 2) for column in columns], axis=1)
    axes = np.sqrt((n + 2) / 2) * np.concatenate([np.eye(n), -np.eye(n)])
    nodes = np.concatenate([axes, np.sqrt((n + 2) / (n - 2)) * signs])
    share = ((n - 2) / (n + 2)) ** 2 / len(signs)
    return nodes, np.concatenate([np.full(2 * n, 4 / (n + 2) ** 2), np.full(len(signs), share)])


def _bits(numbers: np.ndarray) -> np.ndarray:
    return np.array([int(number).bit_count() for number in numbers])


def _split(num_components: int, dim: int) -> tuple[Float[Array, " K"], Float[Array, "K P"], Float[Array, "P P"]]:
    r"""N(0, I) as K Gaussians with its mean and covariance: log-weights, means, and the scale that all of them share.

    Half the variance (of the widest direction) lies between the means, half within the components. For one parameter
    the means are Gauss-Hermite nodes, and the mixture has 2K - 1 moments of the Gaussian. For more they are normal
    quantiles of evenly spread points, one coordinate equally spaced, the others by additive recurrence.
    """
    K, k = num_components, np.arange(num_components)
    if K == 1:
        return jnp.zeros(1), jnp.zeros((1, dim)), jnp.eye(dim)
    if dim == 1:
        axis, w = np.polynomial.hermite_e.hermegauss(K)
        means, weights = axis[:, None], w / w.sum()
    else:
        root = np.max(np.roots([1.0, *[0.0] * (dim - 2), -1.0, -1.0]).real)  # of r^dim = r + 1
        points = [(k + 0.5) / K] + [(0.5 + (k + 1) * root**-i) % 1.0 for i in range(1, dim)]
        means, weights = np.vectorize(NormalDist().inv_cdf)(np.stack(points, axis=1)), np.full(K, 1 / K)
    means = means - weights @ means
    means = means * np.sqrt(0.5 / np.linalg.eigvalsh((weights * means.T) @ means)[-1])
    rest = np.eye(dim) - (weights * means.T) @ means
    return jnp.asarray(np.log(weights), float), jnp.asarray(means, float), jnp.asarray(np.linalg.cholesky(rest), float)
