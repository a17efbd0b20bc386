r"""Chebyshev statistics: the running log-density of the path at the nodes of a box, interpolated between them.

Each particle keeps :math:`S^j_t = \sum_{s \le t} \log p(x_s, y_s \mid x_{s-1}, \theta_j) - \max_i \log p(x_s, y_s \mid
x_{s-1}, \theta_i)` at Chebyshev points :math:`\theta_j` (Trefethen 2013, chapters 2-5). Between the nodes the sum
is interpolated by the polynomial through the nodes, in barycentric form. It is near-best on the whole box, while a
Taylor polynomial is best at a point and may turn upwards away from it. Outside the box the density is zero. No
derivatives are needed, so any transition and any observation can be used.

The box begins as wide as the prior and follows the posterior. The nodes of a vague prior are too far apart for what the
first observations say. So a particle keeps the opening of its path: while that is the whole path, densities at new
nodes are evaluated along it; later they are interpolated from the old nodes.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.adaptive_grid import TAMED, possible
from epf_jax.core.checks import check_positive
from epf_jax.core.choice import where
from epf_jax.core.interpolation import between, compress, expand
from epf_jax.models.parameters import Parameters, Theta, node_counts
from epf_jax.models.path_terms import Terms, path_terms, require_noise, warn_of_moving_bounds
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.samplers import Sampler, random_walk
from epf_jax.statistics.nodal_box import at_all, following, nodes_of
from epf_jax.statistics.opening import Opening, opener
from epf_jax.statistics.statistic import Statistic, check_model_learns, from_log_target, with_sampler

DEFAULT_NODES = {1: 20, 2: 24, 3: 12}
_REMEMBERED_STEPS = {1: 6, 2: 25, 3: 25}  # with one parameter, a few observations say where its nodes belong
_LEAST = -1e15  # what a step may take from a node at most: sums of it, and what is read between them, do not overflow


class NodalStatistic(NamedTuple):
    """The path's log-density at the nodes of a box, relative to the node where it is largest.

    All particles share one box and one `flattening`, but each has its own copy.

    Attributes:
        values: the log-density at the nodes, zero at the best node, so that long series lose no digits; in a fixed box,
            the sum of such log-densities of each step.
        middle, half: the box's centre in z, and the half of its width.
        flattening: the root of the density that was as wide as the nodes can show when the box was last due; 1 where
            they show the density itself.
        num_misread: how often a box was cut although its nodes were too far apart for interpolation.
        opening: the path's first steps, or None if they are not kept.
    """

    values: Float[Array, "..."]
    middle: Float[Array, " P"]
    half: Float[Array, " P"]
    flattening: Float[Array, ""]
    num_misread: Float[Array, ""]
    opening: Opening | None = None

    @property
    def low(self) -> Float[Array, " P"]:
        """The box's lower ends in z."""
        return self.middle - self.half

    @property
    def high(self) -> Float[Array, " P"]:
        """The box's upper ends in z."""
        return self.middle + self.half


_axes: Any = (0, None, None, None, None, 0)
_BY_PARTICLE = NodalStatistic(*_axes)  # for `vmap`: what all particles of a filter have in common, they have once


@waits_for_inputs
def chebyshev(
    model: StateSpaceModel,
    num_nodes: int | tuple[int, ...] | None = None,
    *,
    box: tuple[Theta, Theta] | None = None,
    shrink: float | None = 6.0,
    sampler: Sampler | None = None,
) -> Statistic:
    """The nodal statistic on a tensor grid of Chebyshev points, for one to three parameters.

    Densities must be continuous in theta: no change points, and no bounds of observations that depend on theta.

    Args:
        model: the model.
        num_nodes: nodes per unconstrained coordinate (one number, or one each); 20 for one parameter, 24 x 24 for
            two, 12 x 12 x 12 for three by default.
        box: the lowest and the highest theta, each with the prior's structure; by default five prior standard
            deviations to either side of the prior's centre, and more near bounds.
        shrink: the box follows the posterior as it narrows. At times in geometric progression it is cut to this many
            posterior standard deviations to either side of the posterior mean, and never grows again. Only while
            particles remember their whole paths is it placed anew, and may move and grow: for 6 observations with one
            parameter, 25 with more, or fewer if a step of the path is many numbers. None keeps the box. A box that is
            too wide wastes its nodes, and steep log-densities spoil the interpolation everywhere. Shrinking boxes are
            interpolated through a logarithm that tames such log-densities (`interpolation.compress`), a fixed box by
            the plain polynomial through its nodes.
        sampler: how theta is drawn; one step of `random_walk()` by default.
    """
    check_model_learns(model, "chebyshev")
    coordinates, terms = model.parameters, path_terms(model)
    require_noise(model, "chebyshev")
    warn_of_moving_bounds(model, "chebyshev")
    counts = node_counts("chebyshev", num_nodes, coordinates, DEFAULT_NODES)
    first_box = _box(box, coordinates)
    if shrink is not None:
        check_positive("shrink", shrink, "a positive number of standard deviations, or None to keep the box")
    openings = None
    if shrink is not None:
        most_steps, any_number = _REMEMBERED_STEPS[len(counts)], model.row is None
        openings = opener(terms, coordinates.centre, math.prod(counts), most_steps, any_number=any_number)
    return _nodal(model, terms, counts, first_box, shrink, sampler, openings)


def _nodal(
    model: StateSpaceModel,
    terms: Terms,
    counts: tuple[int, ...],
    first_box: tuple[Array, Array],
    shrink: float | None,
    sampler: Sampler | None,
    openings: Any,
) -> Statistic:
    """The statistic of particles that keep their openings, unless `openings` is None."""
    coordinates, at = model.parameters, nodes_of(counts)
    box_0 = 0.5 * (first_box[0] + first_box[1]), 0.5 * (first_box[1] - first_box[0])
    squeeze, stretch = (compress, expand) if shrink is not None else (lambda v, top, scale: v,) * 2

    def log_ratios(group, middle, half, x_prev, x, y, u):
        """The terms' log-density at every node, relative to the node where it is largest."""

        def log_prob(z):
            return sum((term.log_prob(z, x_prev, x, y, u) for term in group), jnp.zeros(()))

        # Relative to another theta, the prior's centre say, sums would lose their digits where that is far off.
        return jnp.maximum(_from_top(possible(at_all(log_prob, counts)(middle + half * at))), _LEAST)

    def at_start(middle, half, x_0):
        return log_ratios(terms.initial, middle, half, x_0, x_0, None, None) if terms.initial else jnp.zeros(counts)

    def init(x_0=None):
        values = jnp.zeros(counts) if x_0 is None else at_start(*box_0, x_0)
        opening = None if openings is None or x_0 is None else openings.begin(x_0)
        return NodalStatistic(values, *box_0, jnp.ones((), box_0[0].dtype), jnp.zeros(()), opening)

    def update(key, S, theta, x_prev, x, y, u):
        middle, half = box_0 if shrink is None else (S.middle, S.half)
        values = S.values + log_ratios(terms.steps, middle, half, x_prev, x, y, u)
        values = values if shrink is None else _from_top(values)  # a fixed box's are sums, as online EM wants them
        opening = None if S.opening is None else openings.extend(S.opening, x, y, u)
        return S._replace(values=values, opening=opening)

    def evaluate(opening, middle, half, t):
        """The log-density of a path of at most t steps, all kept, at the nodes of another box."""
        of_start, of_step = partial(at_start, middle, half), partial(log_ratios, terms.steps, middle, half)
        return openings.total(opening, of_start, of_step, so_far=t)

    def log_target(S):
        top, scale = jnp.max(S.values), TAMED * S.flattening
        squeezed = squeeze(S.values, top, scale)

        def log_density(z):
            s = (z - S.middle) / S.half
            inside = jnp.all(jnp.abs(s) <= 1.0)
            return where(inside, coordinates.log_prior(z) + stretch(between(squeezed, s), top, scale), -jnp.inf)

        return log_density

    def update_all(key, S, theta, x_prev, x, y, u, log_weights, t):
        parts: Any = (S.values, *(part[0] for part in S[1:5]), S.opening)
        once = NodalStatistic(*parts)
        for_all = jax.vmap(lambda S, x_prev, x: update(None, S, None, x_prev, x, y, u), in_axes=(_BY_PARTICLE, 0, 0))
        new = for_all(once, x_prev, x)
        new = follow(once._replace(values=new.values, opening=new.opening), log_weights, t)
        shared = (jnp.broadcast_to(part, old.shape) for part, old in zip(new[1:5], S[1:5], strict=True))
        parts = (new.values, *shared, new.opening)
        return NodalStatistic(*parts)

    name = f"chebyshev on {' x '.join(map(str, counts))} nodes"
    statistic = from_log_target(model, init, update, log_target, sampler, name)
    statistic = statistic._replace(box=lambda S: (S.low, S.high))
    if shrink is None:
        return statistic
    length = 0 if openings is None else openings.length
    follow = following(counts, shrink, coordinates.log_prior, first_box, evaluate, length)
    return with_sampler(statistic._replace(update_all=update_all), model, random_walk() if sampler is None else sampler)


def _from_top(values: Array) -> Array:
    """Log-densities relative to the largest."""
    return values - jax.lax.stop_gradient(jnp.max(values))


def _box(box: Any, coordinates: Parameters) -> tuple[Array, Array]:
    if box is None:
        return coordinates.box
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
            f"box: it holds only {share:.1%} of the prior's mass, and theta cannot leave it. Widen the box {box} to "
            f"cover the prior, whose centre is {coordinates.to_theta(coordinates.centre)}, or change the prior."
        )
    return low, high
