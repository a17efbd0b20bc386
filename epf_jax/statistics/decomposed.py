r"""Theta taken apart: coefficients exactly, noise scales as they are, given nodes of the few parameters that are left.

Erol et al. (2013), section 3: if a mean is not separable in one parameter only, only that one has to be approximated.
Many a mean is linear in its coefficients :math:`\beta` given one or two other parameters :math:`\eta`, the nodal ones:

.. math:: v_t \sim N(H_t(\eta)\, \beta + h_t(\eta),\; s(\theta)^2)

Given :math:`\eta`, the path is a regression. Its sufficient statistic is the sum of the products of its rows
:math:`(H_t, v_t - h_t)`, which noise scales divide later. Each particle keeps these sums at the nodes of a box of
:math:`\eta`, and reads them between nodes as `chebyshev` does. The box follows the posterior of :math:`\eta`.

Theta is drawn in two parts. A sampler moves :math:`\eta` and the scales by their density with the coefficients
integrated out, under any prior. Sums at a node serve for all scales, so that scales need no nodes. Then the
coefficients are drawn from their exact conditional, a Gaussian. Terms of the path that share no nodal parameter have
boxes of their own, so that their costs add up. If nothing is left over, there are no nodes, and the statistic is exact.

Sums of products are kept in the precision in use. If the level of a series is hundreds of times its noise, subtract it
first, or use float64.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.adaptive_grid import possible
from epf_jax.core.checks import check_whole_number
from epf_jax.core.choice import where
from epf_jax.core.gaussian import cholesky
from epf_jax.core.interpolation import between
from epf_jax.core.random import normal
from epf_jax.models.flat_theta import Numbers, numbers_in_a_row
from epf_jax.models.parameters import Parameters, theta_inside
from epf_jax.models.path_terms import require_noise
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.particles.weights import Population
from epf_jax.samplers import Sampler, default_walk, each_particle, exact_draw, prior_population
from epf_jax.statistics.coefficients import put
from epf_jax.statistics.nodal_box import at_all, at_new_nodes, is_due, nodes_of, placing
from epf_jax.statistics.regressions import (
    NOTHING,
    Coefficients,
    Piece,
    coefficients_of,
    conditional,
    none_integrated,
    pieces_of,
)
from epf_jax.statistics.statistic import Statistic, from_log_target
from epf_jax.statistics.taking_apart import Grid, grids_of, nodal_places, why_not_decomposed

_FIRST_CUT = 10  # observations before a box is cut: the noise that particles walk is the prior's at first
_REACH = 5.0  # of a box, in posterior standard deviations to either side of the mean


class Box(NamedTuple):
    """A grid's box in z, which all particles share."""

    middle: Float[Array, " q"]
    half: Float[Array, " q"]


class DecomposedStatistic(NamedTuple):
    """What a particle keeps.

    Attributes:
        sums: each term's sums; those of a term with nodal parameters at every node of its grid.
        boxes: each grid's box.
        num_misread: how often a box was cut although its nodes were too far apart for interpolation.
    """

    sums: tuple[Float[Array, "..."], ...]
    boxes: tuple[Box, ...]
    num_misread: Float[Array, ""]


_axes: Any = (0, None, None)
_BY_PARTICLE = DecomposedStatistic(*_axes)  # for `vmap`: what all particles have in common, they have once


class Parts(NamedTuple):
    """A model taken apart.

    Attributes:
        coordinates, numbers: theta's.
        pieces: each term's share.
        num_initial: how many of them are of the initial state; they come first.
        grids: those of the nodal parameters.
        coefficients: what is integrated out.
    """

    coordinates: Parameters
    numbers: Numbers
    pieces: tuple[Piece, ...]
    num_initial: int
    grids: tuple[Grid, ...]
    coefficients: Coefficients

    def added(self, k: int, boxes: tuple[Box, ...], *step: Any) -> Float[Array, "..."]:
        """What a step adds to the k-th term's sums, at all nodes of its grid."""
        terms, numbers = self.pieces[k].terms, self.numbers
        for grid, box in zip(self.grids, boxes, strict=True):
            if k in grid.pieces:

                def at_node(z_node, own=grid.own):
                    return terms(numbers.at(put(self.coordinates.centre, own, list(z_node))), *step)

                return at_all(at_node, grid.counts)(box.middle + box.half * nodes_of(grid.counts))
        return terms(numbers.c, *step)

    def read(self, S: DecomposedStatistic, z: Float[Array, " P"]) -> tuple[list[Array], Array]:
        """The sums at z, and whether z is inside of all boxes."""
        sums, inside = list(S.sums), jnp.array(True)
        for grid, box in zip(self.grids, S.boxes, strict=True):
            s = (z[grid.own] - box.middle) / box.half
            for k in grid.pieces:
                sums[k] = between(sums[k], jnp.clip(s, -1.0, 1.0))
            inside &= jnp.all(jnp.abs(s) <= 1.0)
        return sums, inside

    def given(self, sums: Sequence[Array], z: Float[Array, " P"], coefficients: Coefficients) -> tuple[Array, Callable]:
        """The log-likelihood at z with the coefficients integrated out, and what draws them, less their prior mean."""
        return conditional(self.pieces, coefficients, self.numbers, sums, self.numbers.at(z))

    def log_density(self, S: DecomposedStatistic, coefficients: Coefficients) -> Callable[[Array], Array]:
        """That of what is not integrated out."""

        def log_density(z_rest):
            z = put(self.coordinates.centre, coefficients.rest, list(z_rest))
            sums, inside = self.read(S, z)
            log_p = self.coordinates.log_prior(z) + self.given(sums, z, coefficients)[0]
            return where(inside & jnp.isfinite(log_p), log_p, -jnp.inf)

        return log_density

    def box(self, S: DecomposedStatistic) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
        """The ends of what theta is confined to."""
        low, high = (jnp.full_like(self.coordinates.centre, end) for end in (-jnp.inf, jnp.inf))
        for grid, (middle, half) in zip(self.grids, S.boxes, strict=True):
            low, high = put(low, grid.own, list(middle - half)), put(high, grid.own, list(middle + half))
        return low, high


@waits_for_inputs
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
    if num_nodes is not None:
        check_whole_number("num_nodes", num_nodes, least=4, hint="The default is 20 for one, 16 for each of two.")
    parts = _taken_apart(model, None if nodal is None else tuple(nodal), num_nodes)
    rest = parts.coefficients.rest
    walk = default_walk(len(rest)) if sampler is None else sampler
    init, update = _recursion(parts)
    log_target = partial(parts.log_density, coefficients=none_integrated(parts.coordinates.dim))
    sample, sample_all = _draws(parts, walk)
    statistic = from_log_target(model, init, update, log_target, None, _in_words(parts))._replace(
        sample=sample, sample_all=sample_all, drawn_by=f"{walk.name} and exact draws" if len(rest) else None
    )
    return statistic._replace(update_all=_following(parts, update), box=parts.box) if parts.grids else statistic


def _taken_apart(model: StateSpaceModel, nodal: tuple[str, ...] | None, num_nodes: int | None) -> Parts:
    problem = why_not_decomposed(model, nodal)
    if problem:
        raise ValueError(f"decomposed: {problem} Use epf.chebyshev(model) or epf.assumed_density(model).")
    require_noise(model, "decomposed")
    places, coordinates = nodal_places(model, nodal), model.parameters
    assert places is not None
    initial, steps = pieces_of(model, places)
    pieces = (*initial, *steps)
    grids, coefficients = grids_of(coordinates, pieces, num_nodes), coefficients_of(model, pieces)
    return Parts(coordinates, numbers_in_a_row(coordinates), pieces, len(initial), grids, coefficients)


def _recursion(parts: Parts) -> tuple[Callable, Callable]:
    """`init` and `update`."""
    low, high = parts.coordinates.box
    num = parts.num_initial

    def init(x_0=None):
        boxes = tuple(Box(0.5 * (low + high)[g.own], 0.5 * (high - low)[g.own]) for g in parts.grids)
        counts = [next((g.counts for g in parts.grids if k in g.pieces), ()) for k in range(len(parts.pieces))]
        sums = [jnp.zeros((*c, piece.size)) for c, piece in zip(counts, parts.pieces, strict=True)]
        for k in range(num if x_0 is not None else 0):
            sums[k] += parts.added(k, boxes, x_0, x_0, None, None)
        return DecomposedStatistic(tuple(sums), jax.tree.map(jnp.asarray, boxes), jnp.zeros(()))

    def update(key, S, theta, x_prev, x, y, u):
        new = [s + parts.added(num + k, S.boxes, x_prev, x, y, u) for k, s in enumerate(S.sums[num:])]
        return S._replace(sums=(*S.sums[:num], *new))

    return init, update


def _draws(parts: Parts, walk: Sampler) -> tuple[Callable, Callable]:
    """`sample` and `sample_all`: a step of the walk for what is not integrated out, then the coefficients, exactly."""
    coordinates, coefficients = parts.coordinates, parts.coefficients

    def draw_coefficients(noise, S, z):
        _, draw = parts.given(parts.read(S, z)[0], z, coefficients)
        return put(z, coefficients.own, list(parts.numbers.c[coefficients.places] + draw(noise)))

    def sample_all(key, S, theta, population=None):
        key_walk, key_draw = (key, key) if len(coefficients.rest) == 0 else jax.random.split(key)
        z = jax.vmap(lambda theta, S: jnp.clip(coordinates.to_vector(theta), *parts.box(S)))(theta, S)
        info = exact_draw(z.dtype)
        if len(coefficients.rest):
            spread = _of_rest(prior_population(coordinates) if population is None else population, coefficients)
            log_rest = partial(parts.log_density, coefficients=coefficients)
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

    return sample, sample_all


def _following(parts: Parts, update: Callable) -> Callable:
    """`update_all`, that cuts the boxes to the posterior of their nodal parameters now and then."""
    coordinates = parts.coordinates
    placings = [placing(grid.counts, _REACH) for grid in parts.grids]

    def marginal(grid, box, S, z):
        """The log-density at the nodes of a grid, all other numbers being as they are at z."""
        elsewhere, _ = parts.read(S, z)

        def at_node(own, z_node):
            sums = [own[grid.pieces.index(k)] if k in grid.pieces else s for k, s in enumerate(elsewhere)]
            z_there = put(z, grid.own, list(z_node))
            return coordinates.log_prior(z_there) + parts.given(sums, z_there, parts.coefficients)[0]

        nodes = box.middle + box.half * nodes_of(grid.counts)
        return possible(at_all(at_node, grid.counts)([S.sums[k] for k in grid.pieces], nodes)).ravel()

    def follow(S, theta, log_weights):
        z = jax.vmap(coordinates.to_vector)(theta)
        for g, (grid, place) in enumerate(zip(parts.grids, placings, strict=True)):
            box = S.boxes[g]
            log_p = jax.vmap(partial(marginal, grid, box), in_axes=(_BY_PARTICLE, 0))(S, z)
            placed = place(log_p, log_weights, -1.0, 1.0)
            new = Box(box.middle + box.half * placed.middle, box.half * placed.half)
            sums = tuple(at_new_nodes(s, grid.counts, placed) if k in grid.pieces else s for k, s in enumerate(S.sums))
            boxes = (*S.boxes[:g], new, *S.boxes[g + 1 :])
            S = DecomposedStatistic(sums, boxes, S.num_misread + placed.misread)
        return S

    def update_all(key, S, theta, x_prev, x, y, u, log_weights, t):
        once = S._replace(boxes=jax.tree.map(lambda end: end[0], S.boxes), num_misread=S.num_misread[0])
        added = jax.vmap(lambda S, x_prev, x: update(None, S, None, x_prev, x, y, u).sums, (_BY_PARTICLE, 0, 0))
        once = once._replace(sums=added(once, x_prev, x))
        once = jax.lax.cond(is_due(t) & (t >= _FIRST_CUT), lambda S: follow(S, theta, log_weights), lambda S: S, once)
        return jax.tree.map(lambda new, old: jnp.broadcast_to(new, old.shape), once, S)

    return update_all


def _in_words(parts: Parts) -> str:
    names, coefficients = np.array(parts.coordinates.names), parts.coefficients
    nodal = [f"{', '.join(names[grid.own])} on {' x '.join(map(str, grid.counts))} nodes" for grid in parts.grids]
    integrated = f"{', '.join(names[coefficients.own]) or 'nothing'} integrated out"
    of_grids = np.concatenate([NOTHING, *(grid.own for grid in parts.grids)])
    walked = [str(name) for name in names[np.setdiff1d(coefficients.rest, of_grids)]]
    others = [f"{', '.join(walked)} walked"] if walked else []
    return f"decomposed ({'; '.join([*nodal, integrated, *others])})"


def _of_rest(population: Population, coefficients: Coefficients) -> Population:
    """The population of the coordinates that are not integrated out."""
    rows = population.scale_tril[coefficients.rest]
    return Population(population.mean[coefficients.rest], cholesky(rows @ rows.T))
