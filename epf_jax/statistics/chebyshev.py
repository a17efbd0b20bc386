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
_FIRST_CUT = 20  # observations before a box whose nodes resolve the posterior shrinks
_LEAST_SCALE = 10.0  # of `interpolation.compress`, for densities that the nodes resolve
_NEIGHBOURS = 6  # nodes along an axis about the top that are to be told apart well: three spacings to either side


class NodalStatistic(NamedTuple):
    """The path's log-density at the nodes of a box, relative to the reference theta, the box's ends in z, and a scale.

    All particles share one box and one scale of `interpolation.compress`; they travel with each, so that the statistic
    of one particle stands alone.
    """

    values: Float[Array, "..."]
    low: Float[Array, " P"]
    high: Float[Array, " P"]
    scale: Float[Array, ""]


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
    squeeze, stretch = (compress, expand) if shrink is not None else (lambda v, top, scale: v,) * 2

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
        empty = NodalStatistic(jnp.zeros(counts), low_0, high_0, jnp.asarray(_LEAST_SCALE, low_0.dtype))
        if x_0 is None or not terms.initial:
            return empty
        return empty._replace(values=log_ratios(terms.initial, low_0, high_0, x_0, x_0, None, None))

    def update(key, S, theta, x_prev, x, y, u):
        return S._replace(values=S.values + log_ratios(terms.steps, S.low, S.high, x_prev, x, y, u))

    def log_target(S):
        top = jnp.max(S.values)
        squeezed = squeeze(S.values, top, S.scale)

        def log_density(z):
            s = _to_unit(z, S.low, S.high)
            inside = jnp.all(jnp.abs(s) <= 1.0)
            return jnp.where(inside, coordinates.log_prior(z) + stretch(between(squeezed, s), top, S.scale), -jnp.inf)

        return log_density

    name = f"chebyshev on {' x '.join(map(str, counts))} nodes"
    statistic = from_log_target(model, init, update, log_target, sampler, name)
    statistic = statistic._replace(box=lambda S: (S.low, S.high))
    return statistic if shrink is None else statistic._replace(adapt=_shrinking(counts, shrink, coordinates.log_prior))


def _shrinking(counts: tuple[int, ...], reach: float, log_prior: Callable) -> Callable[..., NodalStatistic]:
    """Cut the box to `reach` posterior standard deviations, and read every particle's density at the new nodes.

    A vague prior's box has nodes far apart beside the posterior that the first observations leave. The scale of the
    reading follows from the first of them on, since one too small would make its top a spike that no polynomial through
    such nodes can follow; and the box is cut at once.

    The posterior's location and scale come from the particles' densities on the nodes, not from their draws of theta: a
    step that leaves one path alive leaves one density, of honest width, but draws of no width at all. One cut halves
    the box at most, and never goes below three spacings of its nodes, which is what they can resolve.
    """

    def adapt(S, log_weights, t):
        def cut(S):
            low, high, scale = S.low[0], S.high[0], S.scale[0]  # the same for all particles
            # A density too narrow for the nodes is flattened until they resolve it: its moments on a few of them would
            # be those of a slice, beside the top and too narrow in the other coordinates.
            flat = S.values * (_LEAST_SCALE / scale)
            mean, sd = _posterior_moments(flat, log_weights, low, high, counts, log_prior)
            spacing = jnp.pi / (jnp.asarray(counts) - 1) * 0.5 * (high - low)
            spread = jnp.maximum(jnp.maximum(reach * sd, 3 * spacing), 0.25 * (high - low))
            new_low, new_high = jnp.maximum(low, mean - spread), jnp.minimum(high, mean + spread)
            top = jnp.max(S.values, axis=tuple(range(1, len(counts) + 1)), keepdims=True)
            values = compress(S.values, top, scale)
            for i, axis in enumerate(_axes(new_low, new_high, counts)):
                rows = jax.vmap(lambda s, n=counts[i]: lagrange(s, n))(_to_unit(axis, low[i], high[i]))
                values = jnp.moveaxis(jnp.tensordot(rows, values, axes=(1, i + 1)), 0, i + 1)
            low, high = (jnp.broadcast_to(new, S.low.shape) for new in (new_low, new_high))
            return S._replace(values=expand(values, top, scale), low=low, high=high)

        def scaled(S):
            return S._replace(scale=jnp.broadcast_to(_scale_of(S.values, log_weights), S.scale.shape))

        def follow(S):
            S = scaled(S)
            unresolved = S.scale[0] > _LEAST_SCALE
            return jax.lax.cond((t >= _FIRST_CUT) | unresolved, lambda S: scaled(cut(S)), lambda S: S, S)

        return jax.lax.cond(_is_due(t), follow, lambda S: S, S)

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


def _scale_of(values, log_weights):
    """How far below the top log-densities lie a few nodes from it, along the axis where they fall most steeply."""
    axes = tuple(range(1, values.ndim))
    below = jnp.tensordot(jnp.exp(log_weights), jnp.max(values, axis=axes, keepdims=True) - values, axes=1)
    scale = jnp.asarray(_LEAST_SCALE, values.dtype)
    for i in range(below.ndim):
        along = jnp.sort(jnp.min(below, axis=tuple(j for j in range(below.ndim) if j != i)))
        scale = jnp.maximum(scale, along[min(_NEIGHBOURS, along.shape[0] - 1)])
    return scale


def _is_due(t):
    """True at about ten times per decade of t; a function of t alone, so `vmap` keeps it a branch."""
    rung = jnp.floor(10 * jnp.log10(jnp.stack([t, t + 1]).astype(float)))
    return rung[1] > rung[0]


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
