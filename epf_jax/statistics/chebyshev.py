r"""Chebyshev statistics: the running log-density of the path at the nodes of a box, read back by interpolation.

Each particle keeps :math:`S^j_t = \sum_{s \le t} \log p(x_s, y_s \mid x_{s-1}, \theta_j) - \log p(x_s, y_s \mid
x_{s-1}, \theta_{ref})` at Chebyshev points :math:`\theta_j` (Trefethen 2013, chapters 2-5). Between the nodes the sum
is read by barycentric interpolation, the polynomial through the nodes: near-best on the whole box, where a Taylor
polynomial is best at a point and may turn upwards away from it. Outside the box the density is zero. No derivatives
are taken, so any transition and any observation will do.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.model import StateSpaceModel
from epf_jax.parameters import Parameters, Theta
from epf_jax.samplers import Sampler
from epf_jax.statistics.base import Statistic, check_model_learns, from_log_target
from epf_jax.terms import path_terms

DEFAULT_NODES = {1: 20, 2: 24, 3: 12}
BOX_HALF_WIDTH = 5.0  # in prior standard deviations: leaves out 6e-7 of a Gaussian prior


def chebyshev(
    model: StateSpaceModel,
    num_nodes: int | tuple[int, ...] | None = None,
    *,
    box: tuple[Theta, Theta] | None = None,
    sampler: Sampler | None = None,
) -> Statistic:
    """The nodal statistic on a tensor grid of Chebyshev points, for one to three parameters.

    Args:
        model: the model.
        num_nodes: nodes per unconstrained coordinate (one number, or one each); 20 for one parameter, 24 x 24 for
            two, 12 x 12 x 12 for three by default.
        box: the lowest and the highest theta, each with the prior's structure; five prior standard deviations to
            either side of the prior's centre by default, in unconstrained coordinates.
        sampler: how theta is drawn; one step of `random_walk()` by default.
    """
    check_model_learns(model, "chebyshev")
    coordinates, terms = model.parameters, path_terms(model)
    counts = _node_counts(num_nodes, coordinates)
    low, high = _box(box, coordinates)
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    axes = [middle[i] + half[i] * jnp.asarray(_points(n)) for i, n in enumerate(counts)]
    nodes = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1)  # (n_1, .., n_P, P)
    reference = coordinates.centre
    at_nodes = jax.vmap
    for _ in counts[1:]:
        at_nodes = _nest(at_nodes)

    def log_ratios(group, x_prev, x, y, u):
        """The terms' log-density at every node, relative to the reference."""

        def log_prob(z):
            return sum((term.log_prob(z, x_prev, x, y, u) for term in group), jnp.zeros(()))

        return at_nodes(log_prob)(nodes) - log_prob(reference)

    def init(x_0=None):
        if x_0 is None or not terms.initial:
            return jnp.zeros(counts)
        return log_ratios(terms.initial, x_0, x_0, None, None)

    def update(key, S, theta, x_prev, x, y, u):
        return S + log_ratios(terms.steps, x_prev, x, y, u)

    def log_target(S, z):
        scaled = (z - middle) / half
        value = S
        for i, n in enumerate(counts):
            value = jnp.tensordot(_lagrange(scaled[i], n), value, axes=1)
        return jnp.where(jnp.all(jnp.abs(scaled) <= 1.0), coordinates.log_prior(z) + value, -jnp.inf)

    return from_log_target(model, init, update, log_target, sampler)


def _nest(mapped):
    return lambda function: jax.vmap(mapped(function))


@cache
def _points(n: int) -> np.ndarray:
    """Chebyshev points of the second kind on [-1, 1], ends included."""
    return np.cos(np.pi * np.arange(n) / (n - 1))


def _lagrange(s: Float[Array, ""], n: int) -> Float[Array, " n"]:
    """Values at s of the n Lagrange polynomials of the Chebyshev points, by the barycentric formula."""
    weights = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    weights[[0, -1]] *= 0.5
    distance = s - jnp.asarray(_points(n))
    hit = distance == 0
    shares = jnp.asarray(weights) / jnp.where(hit, 1.0, distance)
    shares = jnp.where(jnp.any(hit), hit.astype(shares.dtype), shares)
    return shares / jnp.sum(shares)


def _node_counts(num_nodes: Any, coordinates: Parameters) -> tuple[int, ...]:
    p = coordinates.dim
    if p > 3:
        raise ValueError(
            f"chebyshev: the grid has as many dimensions as there are parameters, and the prior has {p} "
            f"({', '.join(coordinates.names)}); three is the most. Use epf.taylor(model, order=...)."
        )
    given = DEFAULT_NODES[p] if num_nodes is None else num_nodes
    counts = tuple(given) if isinstance(given, (tuple, list)) else (given,) * p
    if len(counts) != p or not all(isinstance(n, int) and n >= 2 for n in counts):
        raise ValueError(
            f"num_nodes: expected a whole number of at least 2, or one for each of the {p} parameters "
            f"({', '.join(coordinates.names)}), got {num_nodes!r}."
        )
    return counts


def _box(box: Any, coordinates: Parameters) -> tuple[Array, Array]:
    if box is None:
        reach = BOX_HALF_WIDTH * coordinates.scale
        return coordinates.centre - reach, coordinates.centre + reach
    try:
        low, high = (coordinates.to_vector(end) for end in box)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"box: expected (lowest theta, highest theta), each with the prior's structure, got {box!r}. {error}"
        ) from error
    if any(isinstance(value, jax.core.Tracer) for value in (low, high, coordinates.centre)):
        return low, high
    ordered = np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)
    if not ordered:
        raise ValueError(f"box: every lower end must be finite, inside the support, and below its upper end, got {box}.")
    draws = np.asarray(jax.vmap(coordinates.to_vector)(coordinates.sample(jax.random.key(0), 10_000)))
    share = np.mean(np.all((draws >= np.asarray(low)) & (draws <= np.asarray(high)), axis=1))
    if share < 0.01:
        raise ValueError(
            f"box: it holds {share:.1%} of the prior's mass, and theta cannot leave it. Widen the box {box} so that it "
            f"covers the prior, whose centre is {coordinates.to_theta(coordinates.centre)}, or change the prior."
        )
    return low, high
