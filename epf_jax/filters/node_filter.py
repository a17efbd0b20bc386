r"""The node filter: a small filter of the state at each node of a grid of theta, with the likelihood interpolated.

For one to three parameters the likelihood L_t(theta) = p(y_1:t | theta) is a smooth function on a box. A filter with
known theta estimates it at every node. The posterior at any theta is the prior times the likelihood, whose logarithm is
interpolated between the nodes by cubics (`between_nodes`). Theta is never moved or resampled, and paths need only their
last state, so that neither degenerates. The nodes' filters (`known_theta`) have some particles each, or sigma points.
Particles share their random numbers between nodes, and are resampled in the order of the states (Malik and Pitt 2011).
So the estimates have similar errors, and their differences, which determine the posterior, are precise.

Algorithm, for t = 1..T, with nodes :math:`z_k = c + A s_k`, :math:`s_k` an even grid:

    1. step      every node's filter, with the same key; its evidence increment adds to log L(z_k)
    2. read      log L between the nodes, at G points spread evenly over the box; weigh these by prior and likelihood.
                 Where the posterior is narrower than can be read, go back and step again on a finer grid around it
    3. re-place  when the posterior has become narrow, new nodes reach so many standard deviations to either side of its
                 mean, along its own axes; when it has come to the box's edge, the box grows by a cell. New nodes
                 inherit log L by interpolation, and the states of the nodes around
    4. report    the G points as particles, each with a state of the nearest node

A new box reaches at most one cell beyond the old one, where log L is a guess: it goes on linearly from the edge, and
never upwards. So an outlier that drags the posterior out of the box for a while costs little, because the nodes
remember log L where the posterior comes back. A posterior that leaves the box for good by many standard deviations is
followed late, and the evidence of such steps is too low. The first box reaches five prior standard deviations to either
side, and further near bounds. The cost of a step does not depend on t. (A polynomial through Chebyshev points would be
wrong all over a box with steep sides.)
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.adaptive_grid import is_narrow, possible, seen, spread
from epf_jax.core.checks import check_positive, check_whole_number
from epf_jax.core.choice import where
from epf_jax.core.gaussian import diagonal, diagonal_matrix, solve_lower
from epf_jax.filters.between_nodes import between_nodes, roughness
from epf_jax.filters.filter import Filter, build_filter, builds_filter, check_filter_arguments
from epf_jax.filters.known_theta import KnownTheta, check_inner, kalman, particles
from epf_jax.filters.state import PARTICLES, FilterState, StepInfo
from epf_jax.models.parameters import node_counts
from epf_jax.models.path_terms import warn_of_moving_bounds
from epf_jax.models.state_space import StateSpaceModel, check_is_model, warn_of_slips
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.proposals import Proposal, check_proposal, why_not_kalman
from epf_jax.particles.quasi_random import MOST_DIMENSIONS, in_order, keeps_order, quasi_random_where_possible
from epf_jax.particles.resampling import Resampler, systematic
from epf_jax.statistics.statistic import check_model_learns

DEFAULT_NODES = {1: 15, 2: 21, 3: 11}
NODES_OF_LAWS = {1: 21, 2: 21, 3: 19}  # without particles, what is read between nodes is all that errs
DEFAULT_INNER = 32
NUM_POINTS = {1: 128, 2: 610, 3: 2048}
LEAST_POINTS = 16  # for each parameter: with fewer, hardly one lies where the posterior is
_SMALLER = 0.5  # a new box has at most this share of the old one's volume, unless the old one no longer serves
_EDGE = 0.01  # the posterior's mass in the outer half of the outer cells that calls for a box further out
_AGAINST_THE_PRIOR = 0.05  # the same mass that calls for a box beyond the first, the prior's
_OUTER = 0.95  # where the outer twentieth of the box begins, for diagnoses
_OF_HALF = 0.5  # of what half as many nodes change in the evidence
_BEYOND = 0.5  # the same mass that says that the posterior lies beyond the box


class Nodes(NamedTuple):
    """The statistic S of the node filter.

    Attributes:
        centre: c, the middle of the box in unconstrained coordinates z.
        axes: A, lower triangular: the box is z = c + A s with every s from -1 to 1.
        log_likelihood: log L at the K nodes, relative to the highest.
        log_mass: log of the integral of prior and likelihood over the box, relative to the same.
        coarser: by how much it is higher from half as many nodes along every coordinate.
        drift: the sum, over steps, of the differences of their evidence from that from half as many nodes.
        apart: the sum of their squares.
        filters: the states of the nodes' filters, a row for each node.
    """

    centre: Float[Array, " P"]
    axes: Float[Array, "P P"]
    log_likelihood: Float[Array, " K"]
    log_mass: Float[Array, ""]
    coarser: Float[Array, ""]
    drift: Float[Array, ""]
    apart: Float[Array, ""]
    filters: Any

    @property
    def log_evidence_error(self) -> Float[Array, ""]:
        """How far the evidence may be off for want of nodes."""
        return _OF_HALF * jnp.maximum(jnp.abs(self.drift), jnp.sqrt(self.apart))


@builds_filter
def node_filter(
    model: StateSpaceModel,
    num_inner: int | None = None,
    *,
    inner: KnownTheta | None = None,
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
        num_inner: particles at each node; by default none, but Kalman's filter, if the model is linear and Gaussian in
            x, and otherwise 32.
        inner: `epf.kalman(model)` or `epf.sigma_points(model)`, for no particles but a Gaussian law of the state at
            each node. Sigma points are never the default: beyond linear models they have an error that every key
            shares, and nothing tells of it.
        num_nodes: nodes per unconstrained coordinate (one number, or one each). By default 15 for one parameter,
            21 x 21 for two, 11 x 11 x 11 for three; without particles 21, 21 x 21 and 19 x 19 x 19. The
            first observations are interpolated between nodes of the prior's box, which is ten of its standard
            deviations wide: take more nodes if the prior is wide and the likelihood is not one smooth hill. Take more,
            too, along a parameter that the data determine much better at some values of another parameter than at
            others (such as the level of a volatility that hardly reverts).
        num_points: G, the number of lattice points at which the posterior is read; 128, 610 and 2048 for one, two and
            three parameters by default. This is the filter's `num_particles`.
        reach: how many posterior standard deviations a new box extends to either side of the posterior mean; fewer, if
            nodes would otherwise be more than one standard deviation apart.
        num_looks: how often an observation may be taken: if it narrows the posterior too much for the nodes, it is
            taken again on a finer grid around it. Three are enough for an observation that says thirty
            times as much as all before it. In a batch (`epf.replicate`) every look costs as much as a step.
        proposal: how the nodes' particles are drawn; by default `epf.fully_adapted(model)` if the model allows it,
            otherwise `epf.bootstrap()`, with evenly spread draws (`epf.quasi_random`) if possible.
        resample: how they are resampled; by default systematically in the order of the states (`epf.in_order`) if they
            have at most six dimensions, otherwise `epf.systematic`.

    `StepInfo.ess` is G times the effective share of the nodes' particles, averaged over the posterior.
    """
    check_is_model(model)
    check_positive("reach", reach, "a positive number of posterior standard deviations")
    check_whole_number("num_looks", num_looks, hint="Three are usual.")
    check_model_learns(model, "node_filter")
    warn_of_moving_bounds(model, "node_filter")
    coordinates = model.parameters
    if inner is None and num_inner is proposal is resample is None and not why_not_kalman(model):
        inner = kalman(model)
    default_nodes = DEFAULT_NODES if inner is None else NODES_OF_LAWS
    counts = node_counts("node_filter", num_nodes, coordinates, default_nodes, least=4)
    num_points = _checked_points(num_points, len(counts))
    if inner is None:
        inner, resample = _inner_particles(model, num_inner, proposal, resample)
    else:
        check_inner(inner, model, num_inner=num_inner, proposal=proposal, resample=resample)
        warn_of_slips(model)
        resample = systematic  # there is nothing to resample
    between = between_nodes(counts, num_points, reach)

    def init(key):
        key_inner, key_report = jax.random.split(key)
        # The prior enters by its density at the nodes: they would only add noise, if they moved with it in a gradient.
        low, high = jax.lax.stop_gradient(coordinates.box)
        centre, axes = 0.5 * (low + high), diagonal_matrix(0.5 * (high - low))
        filters = jax.vmap(lambda z: inner.start(key_inner, coordinates.to_theta(z)))(centre + between.nodes @ axes.T)
        zero = jnp.zeros(())
        S = Nodes(centre, axes, jnp.zeros(math.prod(counts)), zero, zero, zero, zero, filters)
        log_weights, log_mass = _weigh_by(coordinates, between, S, jnp.zeros(num_points))
        S = S._replace(log_mass=log_mass)
        return report(key_report, S, log_weights, jnp.zeros(()), jnp.zeros((), int))

    def step(key, state, y, u):
        key_inner, key_report = jax.random.split(key)

        def take(S):
            return _take(coordinates, between, lambda filter_: inner.step(key_inner, filter_, y, u), S)

        taken = _look_closer(coordinates, between, inner, take, num_looks - 1, state.S)
        S, log_weights, info = taken.S, taken.log_weights, taken.info
        collapsed = jnp.all(info.collapsed)
        log_increment = where(collapsed, -jnp.inf, taken.log_mass - state.S.log_mass)
        change = where(collapsed, 0.0, S.coarser - state.S.coarser)
        taken = taken._replace(S=S._replace(drift=state.S.drift + change, apart=state.S.apart + change**2))

        def on_average(shares):
            return num_points * (jnp.exp(log_weights) @ shares[between.nearest])

        info = StepInfo(
            ess=on_average(info.ess),
            resampled=jnp.any(info.resampled),
            ancestors=jnp.arange(num_points, dtype=jnp.int32),
            acceptance=jnp.ones(()),
            num_bad_weights=jnp.ceil(on_average(info.num_bad_weights)).astype(int),
            num_bad_densities=jnp.zeros((), int),
            collapsed=collapsed,
            log_increment=log_increment,
            overflowed=jnp.array(False),
        )
        S, log_weights = _replace(coordinates, between, inner, taken)
        return report(key_report, S, log_weights, state.log_evidence + log_increment, state.t + 1), info

    def report(key, S, log_weights, log_evidence, t):
        theta = jax.vmap(coordinates.to_theta)(S.centre + between.at @ S.axes.T)
        x = inner.pick(key, S.filters, between.nearest)
        return FilterState(x, theta, S, log_weights, log_evidence, t)

    description = f"node filter: {' x '.join(map(str, counts))} nodes of theta {inner.description}"
    by_particle = PARTICLES._replace(S=False)
    health = _health(coordinates, between, counts)
    return build_filter(model, num_points, init, step, description, resample, by_particle=by_particle, **health)


def _health(coordinates, between, counts) -> dict[str, Any]:
    """For diagnosis: the posterior's share at the box's edge, and the noise between the nodes."""

    def edge(state):
        return jnp.exp(state.log_weights) @ (jnp.abs(between.at) > _OUTER)

    def rough(state):
        S = state.S
        return roughness(counts, S.log_likelihood, jax.vmap(coordinates.log_prior)(S.centre + between.nodes @ S.axes.T))

    return {"edge": edge, "roughness": rough}


def _checked_points(num_points: int | None, dim: int) -> int:
    """The number of points at which the posterior is read; raises if they are too few."""
    num_points = NUM_POINTS[dim] if num_points is None else num_points
    check_whole_number("num_points", num_points, hint="Some hundreds for every parameter are usual.")
    if num_points < LEAST_POINTS * dim:
        raise ValueError(
            f"num_points: expected at least {LEAST_POINTS} for each of the {dim} parameters, got {num_points}. Leave "
            f"it out for {NUM_POINTS[dim]}."
        )
    return num_points


def _inner_particles(model, num_inner, proposal, resample) -> tuple[KnownTheta, Resampler]:
    """The nodes' filters by particles, and how these are resampled."""
    num_inner = DEFAULT_INNER if num_inner is None else num_inner
    if isinstance(num_inner, KnownTheta):
        raise TypeError(f"num_inner: expected a number of particles, got {num_inner!r}. Give it by name: inner=...")
    check_whole_number("num_inner", num_inner, hint="Some dozens are usual.")
    if resample is None:
        resample = in_order(systematic) if math.prod(model.shapes.x.shape) <= MOST_DIMENSIONS else systematic
    check_filter_arguments(model, num_inner, resample, learns=False)  # its particles' own filter tells of slips
    if proposal is None:
        proposal = default_proposal(model)
        proposal = quasi_random_where_possible(proposal, model) if keeps_order(resample) else proposal
    check_proposal(proposal, model)
    return particles(model, num_inner, proposal, resample), resample


class _Taken(NamedTuple):
    """A step of all nodes' filters.

    Attributes:
        S: the nodes after it.
        log_weights: the points' weights.
        mean, scale_tril: the posterior's in the box's own coordinates s.
        log_mass: of the box, relative to the likelihood of the step before.
        info: what the filters report.
    """

    S: Nodes
    log_weights: Float[Array, " G"]
    mean: Float[Array, " P"]
    scale_tril: Float[Array, "P P"]
    log_mass: Float[Array, ""]
    info: StepInfo


def _take(coordinates, between, step, S):
    """One step of every node's filter, and the interpolated posterior."""
    filters, info = jax.vmap(step)(S.filters)
    collapsed = jnp.all(info.collapsed)
    log_likelihood = S.log_likelihood + where(collapsed, 0.0, possible(info.log_increment))
    highest = jnp.max(log_likelihood)
    S = S._replace(log_likelihood=log_likelihood - highest, filters=filters)
    S, log_weights = _weigh(coordinates, between, S)
    mean, scale_tril = spread(jnp.exp(log_weights), between.at)
    return _Taken(S, log_weights, mean, scale_tril, highest + S.log_mass, info)


def _look_closer(coordinates, between, inner, take, num_more, S):
    """A step, repeated on finer grids while the posterior is too narrow for the nodes, `num_looks` times at most."""
    if num_more == 0:
        return take(S)

    def look(k, known):
        before, taken = known
        shown = seen(taken.log_weights, between.at, 0.5 * between.least, 0.0)  # points are closer than nodes

        def finer():
            return _moved(coordinates, between, inner, before, *_closer(between, before, shown))

        def taken_of_it():
            closer = jax.lax.cond(k == 0, lambda: before, finer)
            return closer, take(closer)

        # At the box's edge all that is seen of the posterior is its near side: the box has to grow first.
        sensible = is_narrow(taken.scale_tril, between.least) & (_mass_at_edge(between, shown.weights) < _BEYOND)
        return jax.lax.cond((k == 0) | sensible, taken_of_it, lambda: known)

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(take, S))
    return jax.lax.fori_loop(0, 1 + num_more, look, (S, nothing))[1]


def _weigh(coordinates, between, S):
    """The nodes with the mass of their box, and normalised weights of the G points."""
    log_likelihood = between.read(S.log_likelihood)
    log_weights, log_mass = _weigh_by(coordinates, between, S, log_likelihood)
    coarser = jax.nn.logsumexp(log_weights + between.read_coarsely(S.log_likelihood) - log_likelihood)
    return S._replace(log_mass=log_mass, coarser=coarser), log_weights


def _weigh_by(coordinates, between, S, log_likelihood):
    """For given log L at the points: their normalised weights, and the log of the box's mass."""
    z = S.centre + between.at @ S.axes.T
    log_p = log_likelihood + jax.vmap(coordinates.log_prior)(z)
    total = jax.nn.logsumexp(log_p)
    log_cell = jnp.sum(jnp.log(diagonal(S.axes))) - math.log(len(between.at))  # but for a constant
    return log_p - total, total + log_cell


def _replace(coordinates, between, inner, taken):
    """Nodes on the posterior's own axes if it has become narrow or reaches the edge; the weights of their points."""
    S, log_weights = taken.S, taken.log_weights
    edge = _mass_at_edge(between, jnp.exp(log_weights))
    smaller = jnp.prod(diagonal(taken.scale_tril) * between.reach) < _SMALLER
    narrow = smaller | is_narrow(taken.scale_tril, between.least)

    def looked_at():
        mean, axes, at_edge, fits = _new_box(coordinates, between, taken, edge)
        new = _moved(coordinates, between, inner, S, mean, axes)
        new, new_weights = _weigh(coordinates, between, new)
        moves = at_edge | (fits & narrow)
        kept = lambda new, old: where(moves, new, old)  # noqa: E731
        return jax.tree.map(kept, (new, new_weights), (S, log_weights))

    return jax.lax.cond(narrow | (edge > _EDGE), looked_at, lambda: (S, log_weights))


def _new_box(coordinates, between, taken, edge):
    """Centre and axes of a box around the posterior, whether it was made because of the edge, and whether it exists."""
    # Where the nodes are carries no gradient: what is read between them depends on it by its error alone.
    centre, axes = jax.lax.stop_gradient((taken.S.centre, taken.S.axes))
    mean, narrower = centre + axes @ taken.mean, axes @ taken.scale_tril * between.reach
    mean, narrower, fits = _cut_back(centre, axes, mean, narrower, 1.0 + between.cell)
    # A posterior that has come to the edge looks narrow there: the box grows by a cell to all sides, and never shrinks.
    # The first box, where the prior ends, is left where the data speak against the prior.
    grown = axes * (1.0 + between.cell)
    spread, (low, high) = jnp.sum(jnp.abs(grown), axis=1), coordinates.box
    inside = jnp.all((centre - spread >= low) & (centre + spread <= high))
    at_edge = (edge > _AGAINST_THE_PRIOR) | (inside & (edge > _EDGE))
    return where(at_edge, centre, mean), where(at_edge, grown, narrower), at_edge, fits


def _moved(coordinates, between, inner, S, centre, axes):
    """Nodes on another box: log L and the states are interpolated from the nodes around."""
    old = jax.vmap(lambda s: solve_lower(S.axes, centre + axes @ s - S.centre))(between.nodes)
    values = between.read_at(S.log_likelihood, old)
    nodes, shares = between.corners(old)
    theta = jax.vmap(coordinates.to_theta)(centre + between.nodes @ axes.T)
    around = jax.tree.map(lambda leaf: leaf.at[nodes].get(mode="clip", wrap_negative_indices=False), S.filters)
    filters = jax.vmap(inner.between)(theta, around, shares)
    return S._replace(centre=centre, axes=axes, log_likelihood=values, filters=filters)


def _mass_at_edge(between, weights):
    """The posterior's mass in the outer half of the outer cells."""
    return weights @ np.any(np.abs(between.at) > 1.0 - between.cell / 2, axis=1)


def _closer(between, S, shown):
    """A box around a flattened posterior."""
    narrower = jnp.maximum(shown.flattening**-0.5, 0.5)
    sides = narrower * between.reach * shown.scale_tril
    sides = sides / jnp.maximum(jnp.max(jnp.abs(sides), axis=0), 1.0)  # none longer than those of the box that is there
    return S.centre + S.axes @ shown.mean, S.axes @ sides


def _cut_back(old_centre, old_axes, centre, axes, limit):
    """The new box cut back to `limit` times the old one, side by side, and whether there is such a box.

    In the old box's coordinates, from -1 to 1, the new axes are lower triangular, too: the k-th side is the first that
    moves the k-th coordinate, and is cut back to the room that the sides before it have left.
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
