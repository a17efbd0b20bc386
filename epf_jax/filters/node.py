r"""The node filter: one small particle filter at each node of a grid of theta, the likelihood read between them.

For one to three parameters the likelihood L_t(theta) = p(y_1:t | theta) is a smooth function on a box. A filter with
theta known estimates it at every node; the posterior at any theta is the prior times the likelihood, whose logarithm is
read between the nodes by cubics. No theta is ever moved or resampled, and no path has to remember more than its last
state, so that neither theta nor paths degenerate. All nodes share their random numbers, and resample in the order of
the states (Malik and Pitt 2011), so that the estimates err alike and their differences, which the posterior is made of,
hardly.

Algorithm, for t = 1..T, with nodes :math:`z_k = c + A s_k`, :math:`s_k` an even grid:

    1. step      every node's filter, with the same key; its evidence increment adds to log L(z_k)
    2. read      log L between the nodes, at G points spread evenly over the box; weigh these by prior and likelihood.
                 Where the posterior is narrower than can be read, go back and step again on a finer grid around it
    3. re-place  when the posterior has become narrow, new nodes reach so many standard deviations to either side of its
                 mean, along its own axes; when it has come to the box's edge, the box grows by a cell. New nodes
                 inherit log L by interpolation, and the nearest node's particles
    4. report    the G points as particles, each with a state of the nearest node

A new box reaches at most one cell beyond the old one, where log L goes on straight from the edge, and never up: what
lies there is a guess. So an observation that drags the posterior out of the box for a while, as an outlier does, costs
little, since the nodes remember log L where it comes back to; a posterior that leaves the box for good by many standard
deviations is followed late, and the evidence of such steps is too low. The first box reaches five prior standard
deviations to either side: data that contradict the prior by more are such a case. The cost of a step does not depend on
t. (A polynomial through Chebyshev points, exact where log L is one, errs all over a box with steep sides.)
"""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.checks import check_positive, check_whole_number
from epf_jax.filters.base import (
    PARTICLES,
    Filter,
    FilterState,
    StepInfo,
    build_filter,
    check_filter_arguments,
    start_at,
)
from epf_jax.filters.bootstrap import bootstrap_filter
from epf_jax.gaussian import cholesky, solve_lower
from epf_jax.interpolation import compress, expand, node_counts, piecewise_cubic
from epf_jax.model import StateSpaceModel, check_is_model
from epf_jax.parameters import Theta
from epf_jax.proposals import Proposal, check_proposal, default_proposal
from epf_jax.quasi import MOST_DIMENSIONS, in_order, keeps_order, lattice, quasi_random_where_possible
from epf_jax.resampling import Resampler, resampler_name, systematic
from epf_jax.statistics.base import check_model_learns
from epf_jax.weights import ess

DEFAULT_NODES = {1: 15, 2: 21, 3: 11}
NUM_POINTS = {1: 128, 2: 610, 3: 2048}
LEAST_POINTS = 16  # for each parameter: with fewer, hardly one lies where the posterior is
PRIOR_REACH = 5.0  # in prior standard deviations: leaves out 6e-7 of a Gaussian prior
_SMALLER = 0.5  # a new box has at most this share of the old one's volume, unless the old one no longer serves
_ABOVE = 0.25  # what is read may be above the nodes around by so much; a Gaussian is by 1/8 at one node a sd
_SCALE = 25.0  # how far below the top `interpolation.compress` sets in: cubics between cliffs would overshoot
_EDGE = 0.01  # the posterior's mass in the outer half of the outer cells that calls for a box further out
_AGAINST_THE_PRIOR = 0.05  # the same mass that calls for a box beyond the first, the prior's
_BEYOND = 0.5  # the same mass that says that the posterior lies beyond the box
_SEEING = 8.0  # points by which it is told where a narrow posterior lies
_LEAST_REACH = 3.5  # posterior standard deviations from the mean to the box's edge, however few the nodes are
_NARROW = 0.5  # posterior standard deviations in cells below which it can hardly be read between the nodes
_LOWEST = 1e6  # below the top: guesses of new nodes made from guesses of old ones would in time overflow
_IMPOSSIBLE = 1e4  # what an observation of zero density costs a node; infinities would spoil the cubics around


class Nodes(NamedTuple):
    """The statistic S of the node filter.

    Attributes:
        centre: c, the middle of the box in unconstrained coordinates z.
        axes: A, lower triangular: the box is z = c + A s with every s from -1 to 1.
        log_likelihood: log L at the K nodes, relative to the highest.
        log_mass: log of the integral of prior and likelihood over the box, relative to the same.
        filters: the states of the nodes' filters, a row for each node.
    """

    centre: Float[Array, " P"]
    axes: Float[Array, "P P"]
    log_likelihood: Float[Array, " K"]
    log_mass: Float[Array, ""]
    filters: FilterState


def node_filter(
    model: StateSpaceModel,
    num_inner: int = 32,
    *,
    num_nodes: int | tuple[int, ...] | None = None,
    num_points: int | None = None,
    reach: float = 5.0,
    num_looks: int = 3,
    proposal: Proposal | None = None,
    resample: Resampler | None = None,
) -> Filter:
    """A small filter at every node of theta, and the likelihood between them; one to three parameters.

    Args:
        model: the state-space model.
        num_inner: particles at each node.
        num_nodes: nodes per unconstrained coordinate (one number, or one each); 15 for one parameter, 21 x 21 for two,
            11 x 11 x 11 for three by default. What the first observations say is read between nodes of the prior's
            box, ten of its standard deviations wide, and remembered so: take more where the prior is wide, and the
            likelihood not one smooth hill on it.
        num_points: G, at how many points of a lattice the posterior is read; 128, 610 and 2048 for one, two and three
            parameters by default. The filter's `num_particles`.
        reach: how many posterior standard deviations a new box extends to either side of the posterior mean; fewer,
            where fewer than eleven nodes would be further than one apart.
        num_looks: how often an observation may be taken: one that narrows the posterior to less than can be read
            between the nodes is taken again, on a finer grid around it. Three do for an observation that says thirty
            times as much as all before it. In a batch (`epf.replicate`) every look costs as much as a step.
        proposal: how the nodes' filters draw x_t; by default `epf.fully_adapted(model)` where the model allows it, and
            otherwise `epf.bootstrap()`, with draws spread evenly (`epf.quasi_random`) where they can be.
        resample: how they resample; by default systematically in the order of the states (`epf.in_order`), where they
            have at most six dimensions, and `epf.systematic` elsewhere.

    `StepInfo.ess` is G times the share of the nodes' particles that is effective, averaged over the posterior.
    """
    check_whole_number("num_inner", num_inner, hint="Some dozens are usual.")
    check_positive("reach", reach, "a positive number of posterior standard deviations")
    check_whole_number("num_looks", num_looks, hint="Three are usual.")
    check_is_model(model)
    if resample is None:
        resample = in_order(systematic) if math.prod(model.shapes.x.shape) <= MOST_DIMENSIONS else systematic
    check_filter_arguments(model, num_inner, resample)
    check_model_learns(model, "node_filter")
    coordinates = model.parameters
    counts = node_counts("node_filter", num_nodes, coordinates, DEFAULT_NODES, least=4)
    if proposal is None:
        proposal = default_proposal(model)
        proposal = quasi_random_where_possible(proposal, model) if keeps_order(resample) else proposal
    check_proposal(proposal, model)
    inner = bootstrap_filter(model, num_inner, proposal=proposal, resample=resample)
    num_points = NUM_POINTS[len(counts)] if num_points is None else num_points
    check_whole_number("num_points", num_points, hint="Some hundreds for every parameter are usual.")
    if num_points < LEAST_POINTS * len(counts):
        raise ValueError(
            f"num_points: expected {LEAST_POINTS} at the least for each parameter, of which there are {len(counts)}, "
            f"got {num_points}: they are to show the posterior. Leave it out for {NUM_POINTS[len(counts)]}."
        )
    between = _reading(counts, num_points, reach)

    def init(key):
        key_inner, key_report = jax.random.split(key)
        # The prior enters by its density at the nodes: they would only add noise, if they moved with it in a gradient.
        centre, axes = jax.lax.stop_gradient((coordinates.centre, jnp.diag(PRIOR_REACH * coordinates.scale)))

        def start_node(z):
            theta = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_inner, *leaf.shape)), coordinates.to_theta(z))
            return start_at(key_inner, model, theta, num_inner, lambda x_0: (), proposal.draw)

        filters = jax.vmap(start_node)(centre + between.nodes @ axes.T)
        S = Nodes(centre, axes, jnp.zeros(math.prod(counts)), jnp.zeros(()), filters)
        log_weights, log_mass = _weigh_by(coordinates, between, S, jnp.zeros(num_points))
        S = S._replace(log_mass=log_mass)
        theta, x = _report(key_report, coordinates, between, S)
        return FilterState(x, theta, S, log_weights, jnp.zeros(()), jnp.zeros((), int))

    def step(key, state, y, u):
        key_inner, key_report = jax.random.split(key)

        def take(S):
            return _take(coordinates, between, lambda filter_: inner.step(key_inner, filter_, y, u), S)

        S, log_weights, log_mass, info = _look_closer(coordinates, between, take, num_looks - 1, state.S)

        collapsed = jnp.all(info.collapsed)
        log_increment = jnp.where(collapsed, -jnp.inf, log_mass - state.S.log_mass)
        at_nodes = jax.nn.softmax(S.log_likelihood + jax.vmap(coordinates.log_prior)(_at_nodes(S, between)))
        info = StepInfo(
            ess=num_points * (at_nodes @ info.ess) / num_inner,
            resampled=jnp.any(info.resampled),
            ancestors=jnp.arange(num_points, dtype=jnp.int32),
            acceptance=jnp.ones(()),
            num_bad_weights=jnp.sum(info.num_bad_weights),
            num_bad_densities=jnp.zeros((), int),
            collapsed=collapsed,
            log_increment=log_increment,
            overflowed=jnp.array(False),
        )

        S, log_weights = _replace(coordinates, between, S, log_weights)
        theta, x = _report(key_report, coordinates, between, S)
        return FilterState(x, theta, S, log_weights, state.log_evidence + log_increment, state.t + 1), info

    description = (
        f"node filter: {' x '.join(map(str, counts))} nodes of theta with {num_inner} particles each, proposal "
        f"{proposal.name}, resampling {resampler_name(resample)}"
    )
    return build_filter(model, num_points, init, step, description, resample, by_particle=PARTICLES._replace(S=False))


class _Taken(NamedTuple):
    """A step of all nodes' filters: the nodes after it, the points' weights, the box's log-mass, the filters' info."""

    S: Nodes
    log_weights: Float[Array, " G"]
    log_mass: Float[Array, ""]
    info: StepInfo


def _take(coordinates, between, step, S):
    """One step of every node's filter, and what is read between them."""
    filters, info = jax.vmap(step)(S.filters)
    collapsed = jnp.all(info.collapsed)
    lowest = jnp.min(jnp.where(info.collapsed, jnp.inf, info.log_increment))
    increments = jnp.where(info.collapsed, lowest - _IMPOSSIBLE, info.log_increment)
    log_likelihood = S.log_likelihood + jnp.where(collapsed, 0.0, increments)
    highest = jnp.max(log_likelihood)
    S = S._replace(log_likelihood=log_likelihood - highest, filters=filters)
    log_weights, log_mass = _weigh(coordinates, between, S)
    return _Taken(S._replace(log_mass=log_mass), log_weights, highest + log_mass, info)


def _look_closer(coordinates, between, take, num_more, S):
    """A step, and up to so many times the same on a finer grid, while the posterior is too narrow to be read."""

    def again(_, known):
        before, taken = known
        seen = _flattened(taken.log_weights)

        def finer():
            closer = _moved(coordinates, between, before, *_closer(between, before, seen))
            return closer, take(closer)

        # At the box's edge all that is seen of the posterior is its near side: the box has to grow first.
        sensible = _is_narrow(between, taken.log_weights) & (_mass_at_edge(between, seen) < _BEYOND)
        return jax.lax.cond(sensible, finer, lambda: known)

    taken = take(S)
    narrow = _is_narrow(between, taken.log_weights)
    return jax.lax.cond(narrow, lambda: jax.lax.fori_loop(0, num_more, again, (S, taken))[1], lambda: taken)


def _flattened(log_weights):
    """Weights of a posterior that is wider, so that some points count, where but one or two may see it."""
    log_weights = jax.lax.stop_gradient(log_weights)
    wider = jax.nn.log_softmax(log_weights / 4.0 ** jnp.arange(8.0)[:, None], axis=1)
    return wider[jnp.argmax((jax.vmap(ess)(wider) >= _SEEING).at[-1].set(True))]


class _Around(NamedTuple):
    """The nodes around G places, and the share of each in what is read there."""

    nodes: Int[Array, "G 4^P"]
    shares: Float[Array, "G 4^P"]

    def read(self, squeezed: Float[Array, " K"]) -> Float[Array, " G"]:
        """By cubics, but nowhere far above all nodes around, as a cubic would be beside a cliff."""
        values = squeezed[self.nodes]
        return jnp.minimum(jnp.sum(self.shares * values, axis=1), jnp.max(values, axis=1) + _ABOVE)


class _Between(NamedTuple):
    """Reading between the nodes, in the box's own coordinates s.

    Attributes:
        nodes: s at the K nodes.
        at: s at the G points, a lattice.
        level: at which level of its node's states each point takes one.
        around: the nodes that have a share in what is read at every point, and their shares.
        nearest: the node nearest to every point.
        around_each: `around_each(s)`, the same at other places.
        nearest_to: `nearest_to(s)`, the node nearest to one s.
        cell: how far apart the nodes are along every coordinate.
        reach: how many posterior standard deviations a new box extends along every coordinate.
    """

    nodes: Float[Array, "K P"]
    at: Float[Array, "G P"]
    level: Float[Array, " G"]
    around: "_Around"
    nearest: Int[Array, " G"]
    around_each: Callable[[Any], "_Around"]
    nearest_to: Callable[[Any], Any]
    cell: Float[Array, " P"]
    reach: Float[Array, " P"]


def _reading(counts: tuple[int, ...], num_points: int, reach: float) -> _Between:
    """Reading between so many nodes, at so many points, on boxes that reach so far."""
    dim = len(counts)
    grid = [jnp.linspace(-1.0, 1.0, n) for n in counts]
    nodes = jnp.stack(jnp.meshgrid(*grid, indexing="ij"), axis=-1).reshape(-1, dim)
    at = jnp.asarray(2.0 * lattice(num_points, dim) - 1.0, float)
    level = jnp.asarray(np.arange(num_points) * math.sqrt(2.0) % 1.0, float)

    def around(s):
        first, shares = zip(*(piecewise_cubic(s[i], n) for i, n in enumerate(counts)), strict=True)
        where = jnp.meshgrid(*(f + jnp.arange(4) for f in first), indexing="ij")
        product = reduce(lambda a, b: a[..., None] * b, shares)
        return _Around(jnp.ravel_multi_index(where, counts, mode="clip").ravel(), product.ravel())

    def nearest_to(s):
        where = [jnp.argmin(jnp.abs(s[i] - axis)) for i, axis in enumerate(grid)]
        return jnp.ravel_multi_index(where, counts, mode="clip")

    cell = jnp.asarray([2.0 / (n - 1) for n in counts], float)
    # With few nodes a box is smaller, or they would be further than a standard deviation apart.
    reaches = jnp.asarray([min(reach, max((n - 1) / 2, _LEAST_REACH)) for n in counts], float)
    around_each, nearest = jax.vmap(around), jax.vmap(nearest_to)(at)
    return _Between(nodes, at, level, around_each(at), nearest, around_each, nearest_to, cell, reaches)


def _at_nodes(S, between):
    return S.centre + between.nodes @ S.axes.T


def _weigh(coordinates, between, S):
    """Normalised weights of the G points, and the log of the box's mass, which they add up to."""
    top = jnp.max(S.log_likelihood)
    values = between.around.read(_squeezed(S.log_likelihood, top))
    return _weigh_by(coordinates, between, S, expand(values, top, _SCALE))


def _squeezed(log_likelihood, top):
    """What cubics are laid through, in a branch of its own: XLA would fuse it into the reading, 4^P times a point."""
    flat = jnp.all(log_likelihood == top)
    return jax.lax.cond(flat, lambda: log_likelihood - top, lambda: compress(log_likelihood, top, _SCALE))


def _weigh_by(coordinates, between, S, log_likelihood):
    """The same, with log L at the points."""
    z = S.centre + between.at @ S.axes.T
    log_p = log_likelihood + jax.vmap(coordinates.log_prior)(z)
    total = jax.nn.logsumexp(log_p)
    log_cell = jnp.sum(jnp.log(jnp.diag(S.axes))) - math.log(len(between.at))  # but for a constant
    return log_p - total, total + log_cell


def _read_outside(between, log_likelihood, s):
    """Log L at each s, inside the box or outside, where it goes on straight from the edge, never up or for ever."""
    top = jnp.max(log_likelihood)
    squeezed = _squeezed(log_likelihood, top)
    inside, straight_on = (between.around_each(at).read(squeezed) for at in (jnp.clip(s, -1.0, 1.0), s))
    values = jnp.maximum(jnp.minimum(inside, straight_on), compress(top - _LOWEST, top, _SCALE))
    return expand(values, top, _SCALE)


def _replace(coordinates, between, S, log_weights):
    """Nodes on the posterior's own axes, where it has become narrow or reaches the edge; their points' weights."""
    # Where the nodes are carries no gradient: what is read between them depends on it by its error alone.
    mean, scale_tril = _spread(between, log_weights)
    centre, axes = jax.lax.stop_gradient((S.centre, S.axes))
    mean, axes = centre + axes @ mean, axes @ scale_tril * between.reach
    mean, axes, fits = _cut_back(S.centre, S.axes, mean, axes, 1.0 + between.cell)
    volume = jnp.prod(jnp.diag(axes) / jnp.diag(S.axes))
    # A posterior that has come to the edge looks narrow there: the box grows by a cell to all sides, and never shrinks.
    # The first box, where the prior ends, is left where the data speak against the prior.
    grown = S.axes * (1.0 + between.cell)
    reached = jnp.abs(S.centre - coordinates.centre) + jnp.sum(jnp.abs(grown), axis=1)
    edge = _mass_at_edge(between, log_weights)
    inside = jnp.all(reached <= PRIOR_REACH * coordinates.scale)
    at_edge = (edge > _AGAINST_THE_PRIOR) | (inside & (edge > _EDGE))
    mean, axes = jnp.where(at_edge, S.centre, mean), jnp.where(at_edge, grown, axes)

    def moved():
        new = _moved(coordinates, between, S, mean, axes)
        new_weights, log_mass = _weigh(coordinates, between, new)
        return new._replace(log_mass=log_mass), new_weights

    due = at_edge | (fits & ((volume < _SMALLER) | _is_narrow(between, log_weights)))
    return jax.lax.cond(due, moved, lambda: (S, log_weights))


def _moved(coordinates, between, S, centre, axes):
    """Nodes on another box: log L by interpolation, the particles by the nearest node's."""
    old = jax.vmap(lambda s: solve_lower(S.axes, centre + axes @ s - S.centre))(between.nodes)
    values = _read_outside(between, S.log_likelihood, old)
    filters = jax.tree.map(lambda leaf: leaf[jax.vmap(between.nearest_to)(old)], S.filters)
    new = Nodes(centre, axes, values, S.log_mass, filters)
    theta = jax.vmap(coordinates.to_theta)(_at_nodes(new, between))
    theta = jax.tree.map(lambda row, leaf: jnp.broadcast_to(row[:, None], leaf.shape), theta, filters.theta)
    return new._replace(filters=filters._replace(theta=theta))


def _mass_at_edge(between, log_weights):
    """The posterior's mass in the outer half of the outer cells."""
    return jnp.exp(log_weights) @ jnp.any(jnp.abs(between.at) > 1.0 - between.cell / 2, axis=1)


def _spread(between, log_weights):
    """Mean and lower-triangular scale of the posterior in the box's own coordinates s."""
    w = jax.lax.stop_gradient(jnp.exp(log_weights))
    mean = w @ between.at
    return mean, cholesky((w[:, None] * (between.at - mean)).T @ (between.at - mean))


def _is_narrow(between, log_weights):
    """Whether the posterior is too narrow in some direction to be read, and would be wider on a box of its own."""
    scale_tril = _spread(between, log_weights)[1]
    return jnp.any(jnp.diag(scale_tril) < _NARROW * jnp.minimum(between.cell, 1.0 / between.reach))


def _closer(between, S, log_weights):
    """A box around the posterior, of one cell and a half to either side at the least: it is known no better."""
    mean, scale_tril = _spread(between, log_weights)
    least = jnp.maximum(1.5 * between.cell - between.reach * jnp.diag(scale_tril), 0.0)
    sides = scale_tril * between.reach + jnp.diag(least)
    sides = sides / jnp.maximum(jnp.max(jnp.abs(sides), axis=0), 1.0)  # none longer than those of the box that is there
    return S.centre + S.axes @ mean, S.axes @ sides


def _cut_back(old_centre, old_axes, centre, axes, limit):
    """The new box cut back to `limit` times the old one, side by side, and whether there is such a box.

    In coordinates of the old box, from -1 to 1, the new one's axes are lower triangular, too: its k-th side is the
    first that moves the k-th coordinate, and is cut back to the room that the sides before it have left.
    """
    at, B = solve_lower(old_axes, centre - old_centre), solve_lower(old_axes, axes)
    low, high = at, at  # how far the sides so far reach in each coordinate
    reached = []
    for k in range(len(centre)):
        up, down = (jnp.minimum(room / B[k, k], 1.0) for room in (limit[k] - high[k], limit[k] + low[k]))
        ends = jnp.stack([-down * B[:, k], up * B[:, k]])
        low, high = low + jnp.min(ends, axis=0), high + jnp.max(ends, axis=0)
        reached.append((up, down))
    up, down = jnp.array(reached).T
    return centre + axes @ ((up - down) / 2), axes * ((up + down) / 2), jnp.all((up > 0) & (down > 0))


def _report(key, coordinates, between, S) -> tuple[Theta, Array]:
    """Theta at the G points, and at each a state drawn from the nearest node's particles."""
    theta = jax.vmap(coordinates.to_theta)(S.centre + between.at @ S.axes.T)
    below = jnp.cumsum(jnp.exp(S.filters.log_weights), axis=1)
    below = below / below[:, -1:]
    level = (between.level + jax.random.uniform(key)) % 1.0
    chosen = jnp.sum(below[between.nearest] < level[:, None], axis=1)
    return theta, S.filters.x[between.nearest, jnp.minimum(chosen, below.shape[1] - 1)]
