r"""Chebyshev statistics: the running log-density of the path at the nodes of a box, read back by interpolation.

Each particle keeps :math:`S^j_t = \sum_{s \le t} \log p(x_s, y_s \mid x_{s-1}, \theta_j) - \log p(x_s, y_s \mid
x_{s-1}, \theta_{ref})` at Chebyshev points :math:`\theta_j` (Trefethen 2013, chapters 2-5). Between the nodes the sum
is read by barycentric interpolation, the polynomial through the nodes: near-best on the whole box, where a Taylor
polynomial is best at a point and may turn upwards away from it. Outside the box the density is zero. No derivatives
are taken, so any transition and any observation will do.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.checks import check_positive
from epf_jax.interpolation import between, compress, expand, lagrange, node_counts, points
from epf_jax.model import StateSpaceModel
from epf_jax.parameters import Parameters, Theta
from epf_jax.samplers import Sampler
from epf_jax.statistics.base import Statistic, check_model_learns, from_log_target
from epf_jax.terms import path_terms

DEFAULT_NODES = {1: 20, 2: 24, 3: 12}
BOX_HALF_WIDTH = 5.0  # in prior standard deviations: leaves out 6e-7 of a Gaussian prior
_IMPOSSIBLE = 1e4  # log-density ratio that stands for a zero density


class NodalStatistic(NamedTuple):
    """The path's log-density at the nodes of a box, relative to the reference theta, and the box's ends in z.

    All particles share one box; it travels with each, so that the statistic of one particle stands alone.
    """

    values: Float[Array, "..."]
    low: Float[Array, " P"]
    high: Float[Array, " P"]


def chebyshev(
    model: StateSpaceModel,
    num_nodes: int | tuple[int, ...] | None = None,
    *,
    box: tuple[Theta, Theta] | None = None,
    shrink: float | None = 6.0,
    sampler: Sampler | None = None,
) -> Statistic:
    """The nodal statistic on a tensor grid of Chebyshev points, for one to three parameters.

    Args:
        model: the model.
        num_nodes: nodes per unconstrained coordinate (one number, or one each); 20 for one parameter, 24 x 24 for
            two, 12 x 12 x 12 for three by default.
        box: the lowest and the highest theta, each with the prior's structure; five prior standard deviations to
            either side of the prior's centre by default, in unconstrained coordinates.
        shrink: as the posterior narrows, the box follows: at times in geometric progression it is cut to this many
            posterior standard deviations to either side of the posterior mean, and never grows again. None
            keeps the box. A box wider than need be spends its nodes where theta cannot be, and steep log-densities
            there spoil the interpolation everywhere. Shrinking boxes are read through a logarithm that tames such
            log-densities (`interpolation.compress`); a fixed box is read by the plain polynomial through its nodes.
        sampler: how theta is drawn; one step of `random_walk()` by default.
    """
    check_model_learns(model, "chebyshev")
    coordinates, terms = model.parameters, path_terms(model)
    counts = node_counts("chebyshev", num_nodes, coordinates, DEFAULT_NODES)
    low_0, high_0 = _box(box, coordinates)
    if shrink is not None:
        check_positive("shrink", shrink, "a positive number of standard deviations, or None to keep the box")
    reference = coordinates.centre
    squeeze, stretch = (compress, expand) if shrink is not None else (lambda v, top: v, lambda v, top: v)

    def log_ratios(group, low, high, x_prev, x, y, u):
        """The terms' log-density at every node, relative to the reference."""

        def log_prob(z):
            return sum((term.log_prob(z, x_prev, x, y, u) for term in group), jnp.zeros(()))

        at_all = log_prob
        for _ in counts:  # over one axis of the grid after the other: reshaped, XLA would write the whole grid down
            at_all = jax.vmap(at_all)
        at_nodes, at_reference = at_all(_nodes(low, high, counts)), log_prob(reference)
        # A node of zero density is worth a large finite penalty: infinities would spoil the sum at every other node.
        ratios = at_nodes - jnp.where(jnp.isfinite(at_reference), at_reference, 0.0)
        return jnp.nan_to_num(ratios, nan=-_IMPOSSIBLE, neginf=-_IMPOSSIBLE, posinf=_IMPOSSIBLE)

    def init(x_0=None):
        if x_0 is None or not terms.initial:
            return NodalStatistic(jnp.zeros(counts), low_0, high_0)
        return NodalStatistic(log_ratios(terms.initial, low_0, high_0, x_0, x_0, None, None), low_0, high_0)

    def update(key, S, theta, x_prev, x, y, u):
        return S._replace(values=S.values + log_ratios(terms.steps, S.low, S.high, x_prev, x, y, u))

    def log_target(S):
        top = jnp.max(S.values)
        squeezed = squeeze(S.values, top)

        def log_density(z):
            s = _to_unit(z, S.low, S.high)
            inside = jnp.all(jnp.abs(s) <= 1.0)
            return jnp.where(inside, coordinates.log_prior(z) + stretch(between(squeezed, s), top), -jnp.inf)

        return log_density

    name = f"chebyshev on {' x '.join(map(str, counts))} nodes"
    statistic = from_log_target(model, init, update, log_target, sampler, name)
    statistic = statistic._replace(box=lambda S: (S.low, S.high))
    return statistic if shrink is None else statistic._replace(adapt=_shrinking(counts, shrink, coordinates.log_prior))


def _shrinking(counts: tuple[int, ...], reach: float, log_prior: Callable) -> Callable[..., NodalStatistic]:
    """Cut the box to `reach` posterior standard deviations, and read every particle's density at the new nodes.

    The posterior's location and scale come from the particles' densities on the nodes, not from their draws of theta: a
    step that leaves one path alive leaves one density, of honest width, but draws of no width at all. One cut halves
    the box at most, and never goes below three spacings of its nodes, which is what they can resolve.
    """

    def adapt(S, log_weights, t):
        def cut(S):
            low, high = S.low[0], S.high[0]  # the same for all particles
            mean, sd = _posterior_moments(S.values, log_weights, low, high, counts, log_prior)
            spacing = jnp.pi / (jnp.asarray(counts) - 1) * 0.5 * (high - low)
            spread = jnp.maximum(jnp.maximum(reach * sd, 3 * spacing), 0.25 * (high - low))
            new_low, new_high = jnp.maximum(low, mean - spread), jnp.minimum(high, mean + spread)
            top = jnp.max(S.values, axis=tuple(range(1, len(counts) + 1)), keepdims=True)
            values = compress(S.values, top)
            for i, axis in enumerate(_axes(new_low, new_high, counts)):
                rows = jax.vmap(lambda s, n=counts[i]: lagrange(s, n))(_to_unit(axis, low[i], high[i]))
                values = jnp.moveaxis(jnp.tensordot(rows, values, axes=(1, i + 1)), 0, i + 1)
            ends = (jnp.broadcast_to(new, S.low.shape) for new in (new_low, new_high))
            return NodalStatistic(expand(values, top), *ends)

        return jax.lax.cond(_is_due(t), cut, lambda S: S, S)

    return adapt


def _posterior_moments(values, log_weights, low, high, counts, log_prior):
    """Mean and sd of theta under the weighted mixture of the particles' densities, by quadrature on the nodes."""
    nodes = _nodes(low, high, counts).reshape(-1, len(counts))
    cells = jnp.ones(())
    for n in counts:  # Chebyshev points are equally spaced in the angle: dz = sin(angle) d(angle)
        cells = cells[..., None] * jnp.maximum(jnp.sin(jnp.pi * jnp.arange(n) / (n - 1)), 0.25 / n)
    log_p = values.reshape(values.shape[0], -1) + jax.vmap(log_prior)(nodes) + jnp.log(cells).ravel()
    mixture = jnp.exp(log_weights) @ jax.nn.softmax(log_p, axis=1)
    mean = mixture @ nodes
    return mean, jnp.sqrt(mixture @ (nodes - mean) ** 2)


def _is_due(t):
    """True at about ten times per decade of t from t = 20 on; a function of t alone, so `vmap` keeps it a branch."""
    rung = jnp.floor(10 * jnp.log10(jnp.stack([t, t + 1]).astype(float)))
    return (t >= 20) & (rung[1] > rung[0])


def _to_unit(z, low, high):
    """Z in the box's own coordinates, -1 to 1."""
    return (z - 0.5 * (low + high)) / (0.5 * (high - low))


def _nodes(low, high, counts):
    """All nodes of the box, shape (n_1, .., n_P, P)."""
    return jnp.stack(jnp.meshgrid(*_axes(low, high, counts), indexing="ij"), axis=-1)


def _axes(low, high, counts):
    """The Chebyshev points of each coordinate."""
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    return [middle[i] + half[i] * jnp.asarray(points(n), low.dtype) for i, n in enumerate(counts)]


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
        raise ValueError(
            f"box: every end must be finite and strictly inside the support, and every lower end below its upper end, "
            f"got {box}."
        )
    draws = np.asarray(jax.vmap(coordinates.to_vector)(coordinates.sample(jax.random.key(0), 10_000)))
    share = np.mean(np.all((draws >= np.asarray(low)) & (draws <= np.asarray(high)), axis=1))
    if share < 0.01:
        raise ValueError(
            f"box: it holds {share:.1%} of the prior's mass, and theta cannot leave it. Widen the box {box} so that it "
            f"covers the prior, whose centre is {coordinates.to_theta(coordinates.centre)}, or change the prior."
        )
    return low, high
