r"""Theta taken apart: coefficients exactly, noise scales as they are, given nodes of the few parameters that are left.

Erol et al. (2013), section 3: if a mean is not separable in one parameter only, only that one has to be approximated.
Many a mean is linear in its coefficients :math:`\beta` given one or two other parameters :math:`\eta`, the nodal ones:

.. math:: v_t \sim N(H_t(\eta)\, \beta + h_t(\eta),\; s(\theta)^2)

Given :math:`\eta`, the path is a regression. Its sufficient statistic is the sum of the products of its rows
:math:`(H_t, v_t - h_t)`, which noise scales divide later. Each particle keeps these sums at the nodes of a box of
:math:`\eta`, and reads them between nodes by piecewise cubics. The box follows the posterior of :math:`\eta`.

Theta is drawn in two parts. A sampler moves :math:`\eta` and the scales by their density with the coefficients
integrated out, under any prior. Then the coefficients are drawn from their exact conditional, a Gaussian. Terms of the
path that share no nodal parameter have boxes of their own, so that their costs add up. If nothing is left over, there
are no nodes, and the statistic is exact.

Sums of products are kept in the precision in use. If the level of a series is hundreds of times its noise, subtract it
first, or use float64.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.checks import check_whole_number
from epf_jax.core.choice import where
from epf_jax.core.gaussian import cholesky
from epf_jax.core.random import normal
from epf_jax.models.flat_theta import numbers_in_a_row
from epf_jax.models.parameters import theta_inside
from epf_jax.models.path_terms import require_noise
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.weights import Population
from epf_jax.samplers import Sampler, default_walk, each_particle, exact_draw, prior_population
from epf_jax.statistics.coefficients import put
from epf_jax.statistics.even_nodes import Grid, cut, moments_at, nodes_of, over, read_between, reread
from epf_jax.statistics.nodal_box import is_due, to_unit
from epf_jax.statistics.regressions import (
    NOTHING,
    Coefficients,
    Piece,
    coefficients_of,
    conditional,
    log_likelihood,
    pieces_of,
)
from epf_jax.statistics.statistic import Statistic, from_log_target
from epf_jax.statistics.taking_apart import grids_of, nodal_places, why_not_decomposed

_FIRST_CUT = 10  # observations before a box is cut


class DecomposedStatistic(NamedTuple):
    """What a particle keeps.

    Attributes:
        sums: each term's sums; those of a term with nodal parameters at every node of its grid.
        boxes: the ends in z of each grid's box, which all particles share.
    """

    sums: tuple[Float[Array, "..."], ...]
    boxes: tuple[tuple[Float[Array, " q"], Float[Array, " q"]], ...]


def decomposed(
    model: StateSpaceModel,
    nodal: Sequence[str] | None = None,
    *,
    num_nodes: int | None = None,
    sampler: Sampler | None = None,
) -> Statistic:
    """The statistic that integrates coefficients exactly, given nodes of the few parameters that are left.

    Terms with theta must be Gaussian, with means linear in theta given the nodal parameters. Their noise must be known,
    or depend on theta alone, or on nodal parameters and the state. Coefficients with a Gaussian prior are integrated
    out; others and noise scales are walked, under any prior. Densities must be continuous in the nodal parameters.

    Args:
        model: the model.
        nodal: the names of the nodal parameters; found by tracing the model, if you leave them out.
        num_nodes: nodes along each of them; 20 for one, 16 x 16 for two by default.
        sampler: how the parameters that are not integrated out are drawn; steps of `random_walk()` by default.
    """
    found = None if nodal is None else tuple(nodal)
    problem = why_not_decomposed(model, found)
    if problem:
        raise ValueError(f"decomposed: {problem} Use epf.chebyshev(model) or epf.assumed_density(model).")
    require_noise(model, "decomposed")
    places = nodal_places(model, found)
    assert places is not None
    initial, steps = pieces_of(model, places)
    if num_nodes is not None:
        check_whole_number("num_nodes", num_nodes, least=4, hint="The default is 20 for one, 16 for each of two.")
    grids = grids_of(model.parameters, (*initial, *steps), num_nodes)
    return _decomposed(model, (initial, steps), grids, coefficients_of(model, (*initial, *steps)), sampler)


def _decomposed(
    model: StateSpaceModel,
    groups: tuple[tuple[Piece, ...], tuple[Piece, ...]],
    grids: list[Grid],
    coefficients: Coefficients,
    sampler: Sampler | None,
) -> Statistic:
    coordinates, (initial, steps) = model.parameters, groups
    pieces, numbers, centre = (*initial, *steps), numbers_in_a_row(coordinates), coordinates.centre
    grid_of = [next((g for g, grid in enumerate(grids) if k in grid.pieces), None) for k in range(len(pieces))]

    def with_nodal(z, grid, z_node):
        return put(z, grid.own, list(z_node))

    def terms(k, boxes, *step):
        """What a step adds to the k-th term's sums, at all nodes of its grid."""
        if grid_of[k] is None:
            return pieces[k].terms(numbers.c, *step)
        grid = grids[grid_of[k]]

        def at_node(z_node):
            return pieces[k].terms(numbers.at(with_nodal(centre, grid, z_node)), *step)

        return over(grid)(at_node)(nodes_of(boxes[grid_of[k]], grid))

    def init(x_0=None):
        boxes = tuple((coordinates.box[0][grid.own], coordinates.box[1][grid.own]) for grid in grids)
        shapes = [() if g is None else grids[g].counts for g in grid_of]
        sums = [jnp.zeros((*shape, p.size)) for shape, p in zip(shapes, pieces, strict=True)]
        for k in range(len(initial) if x_0 is not None else 0):
            sums[k] += terms(k, boxes, x_0, x_0, None, None)
        return DecomposedStatistic(tuple(sums), jax.tree.map(jnp.asarray, boxes))

    def update(key, S, theta, x_prev, x, y, u):
        num = len(initial)
        new = [s + terms(num + k, S.boxes, x_prev, x, y, u) for k, s in enumerate(S.sums[num:])]
        return S._replace(sums=(*S.sums[:num], *new))

    def between(S, z):
        """The sums at z, read between nodes, and whether z is inside of all boxes."""
        sums, inside = list(S.sums), jnp.array(True)
        for grid, (low, high) in zip(grids, S.boxes, strict=True):
            s = to_unit(z[grid.own], low, high)
            for k in grid.pieces:
                sums[k] = read_between(sums[k], s, grid.counts)
            inside &= jnp.all(jnp.abs(s) <= 1.0)
        return sums, inside

    def log_target(S):
        def log_density(z):
            sums, inside = between(S, z)
            t = numbers.at(z)
            return where(inside, coordinates.log_prior(z) + log_likelihood(pieces, numbers, sums, t), -jnp.inf)

        return log_density

    def log_rest(S):
        """The density of what is not integrated out."""

        def log_density(z_rest):
            z = put(centre, coefficients.rest, list(z_rest))
            sums, inside = between(S, z)
            log_p = coordinates.log_prior(z) + conditional(pieces, coefficients, numbers, sums, numbers.at(z))[0]
            return where(inside & jnp.isfinite(log_p), log_p, -jnp.inf)

        return log_density

    def draw_coefficients(noise, S, z):
        sums, _ = between(S, z)
        _, draw = conditional(pieces, coefficients, numbers, sums, numbers.at(z))
        return put(z, coefficients.own, list(numbers.c[coefficients.places] + draw(noise)))

    walk = default_walk(len(coefficients.rest)) if sampler is None else sampler

    def sample_all(key, S, theta, population=None):
        key_walk, key_draw = (key, key) if len(coefficients.rest) == 0 else jax.random.split(key)
        z = jax.vmap(lambda theta, S: jnp.clip(coordinates.to_vector(theta), *box(S)))(theta, S)
        info = exact_draw(z.dtype)
        if len(coefficients.rest):
            spread = _of_coordinates(prior_population(coordinates) if population is None else population, coefficients)
            moved, info = each_particle(walk, key_walk, z[:, coefficients.rest], S, log_rest, spread)
            z = jax.vmap(lambda z, moved: put(z, coefficients.rest, list(moved)))(z, moved)
        if len(coefficients.own):
            noise = normal(key_draw, (len(z), len(coefficients.own)), z.dtype)
            z = jax.vmap(draw_coefficients)(noise, S, z)
        return jax.vmap(partial(theta_inside, coordinates))(z, theta), info

    def sample(key, S, theta, population=None):
        S, theta = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (S, theta))
        drawn, info = sample_all(key, S, theta, population)
        return jax.tree.map(lambda leaf: leaf[0], drawn), jax.tree.map(lambda leaf: jnp.ravel(leaf)[0], info)

    def marginal(g, S, z):
        """The log-density at the nodes of a grid, all other numbers being as they are at z."""
        grid, (elsewhere, _) = grids[g], between(S, z)

        def at_node(own, z_node):
            sums = [own[grid.pieces.index(k)] if k in grid.pieces else s for k, s in enumerate(elsewhere)]
            z_there = with_nodal(z, grid, z_node)
            log_p = coordinates.log_prior(with_nodal(centre, grid, z_node))
            return log_p + conditional(pieces, coefficients, numbers, sums, numbers.at(z_there))[0]

        return over(grid)(at_node)([S.sums[k] for k in grid.pieces], nodes_of(S.boxes[g], grid))

    def follow(S, theta, log_weights):
        """The boxes cut to the posterior of their nodal parameters, and the sums at their new nodes."""
        z = jax.vmap(coordinates.to_vector)(theta)
        for g, grid in enumerate(grids):
            values = jax.vmap(partial(marginal, g), in_axes=(_BY_PARTICLE, 0))(S, z)
            mean, sd = moments_at(values, log_weights, nodes_of(S.boxes[g], grid))
            new, rows = cut(S.boxes[g], mean, sd, grid.counts)
            sums = tuple(reread(s, rows) if k in grid.pieces else s for k, s in enumerate(S.sums))
            S = DecomposedStatistic(sums, (*S.boxes[:g], new, *S.boxes[g + 1 :]))
        return S

    def update_all(key, S, theta, x_prev, x, y, u, log_weights, t):
        once = S._replace(boxes=jax.tree.map(lambda end: end[0], S.boxes))
        added = jax.vmap(lambda S, x_prev, x: update(None, S, None, x_prev, x, y, u).sums, (_BY_PARTICLE, 0, 0))
        once = once._replace(sums=added(once, x_prev, x))
        once = jax.lax.cond(is_due(t) & (t >= _FIRST_CUT), lambda S: follow(S, theta, log_weights), lambda S: S, once)
        boxes = jax.tree.map(lambda end, old: jnp.broadcast_to(end, old.shape), once.boxes, S.boxes)
        return DecomposedStatistic(once.sums, boxes)

    def box(S):
        low, high = (jnp.full_like(centre, end) for end in (-jnp.inf, jnp.inf))
        for grid, (of_low, of_high) in zip(grids, S.boxes, strict=True):
            low, high = put(low, grid.own, list(of_low)), put(high, grid.own, list(of_high))
        return low, high

    name = _in_words(model, grids, coefficients)
    statistic = from_log_target(model, init, update, log_target, None, name)
    statistic = statistic._replace(sample=sample, sample_all=sample_all)
    statistic = statistic._replace(drawn_by=f"{walk.name} and exact draws" if len(coefficients.rest) else None)
    return statistic._replace(update_all=update_all, box=box) if grids else statistic


_axes: Any = (0, None)
_BY_PARTICLE = DecomposedStatistic(*_axes)  # for `vmap`: all particles share their boxes


def _in_words(model: StateSpaceModel, grids: list[Grid], coefficients: Coefficients) -> str:
    names = np.array(model.parameters.names)
    nodal = [f"{', '.join(names[grid.own])} on {' x '.join(map(str, grid.counts))} nodes" for grid in grids]
    integrated = f"{', '.join(names[coefficients.own]) or 'nothing'} integrated out"
    of_grids = np.concatenate([NOTHING, *(grid.own for grid in grids)])
    walked = [str(name) for name in names[np.setdiff1d(coefficients.rest, of_grids)]]
    others = [f"{', '.join(walked)} walked"] if walked else []
    return f"decomposed ({'; '.join([*nodal, integrated, *others])})"


def _of_coordinates(population: Population, coefficients: Coefficients) -> Population:
    """The population of the coordinates that are not integrated out."""
    rows = population.scale_tril[coefficients.rest]
    return Population(population.mean[coefficients.rest], cholesky(rows @ rows.T))
