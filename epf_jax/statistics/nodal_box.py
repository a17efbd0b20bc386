"""The box that nodal statistics share: its Chebyshev nodes, and how it follows the posterior."""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.adaptive_grid import TAMED, product, seen, spread
from epf_jax.core.choice import where
from epf_jax.core.interpolation import compress, expand, lagrange, points

_COARSE = 16.0  # a flattening from which on what is read between nodes may be far off
_LEAST_SHARE = 0.25  # a new box is made narrower than a flattened density by as much at most
_ALIKE = 1.2  # how much wider than one flattened density all of them together may be, and say the same
_LOOKS = {1: 4, 2: 1, 3: 1}  # cuts at an observation while paths are remembered: few, if theta is one number
_DUE = np.unique(np.ceil(10.0 ** (np.arange(1, 93) / 10) - 1e-6)).astype(np.int32) - 1  # steps, ten of a decade


class Placed(NamedTuple):
    """A new box, placed by densities at the nodes of an old one.

    Attributes:
        middle, half: its centre, and the half of its width, in the old box's coordinates.
        flattening: the root of the densities that was as wide as the old nodes can show.
        misread: whether the old nodes were too far apart for what is read between them.
    """

    middle: Float[Array, " P"]
    half: Float[Array, " P"]
    flattening: Float[Array, ""]
    misread: Array


def placing(counts: tuple[int, ...], reach: float) -> Callable[..., Placed]:
    """`place(log_p, log_weights, lowest, highest)`, the box of `reach` posterior sds that densities at nodes call for.

    `log_p` are the particles' densities at all nodes, (N, K). The box stays between `lowest` and `highest`, which are
    in the old one's coordinates.

    The posterior's location and scale come from the particles' densities on the nodes, not from their draws of theta:
    if one path survives a step, its density has the right width, but its draws have none.
    """
    at = nodes_of(counts).reshape(-1, len(counts))
    cell, log_volumes = np.pi / (np.array(counts) - 1), _log_volumes(counts)

    def place(log_p, log_weights, lowest, highest):
        weights = jnp.exp(log_weights)
        own = seen(weights @ log_p, at, cell, log_volumes)  # as wide as one path's, wherever each is
        mean, together = spread(weights @ jax.nn.softmax(log_p / own.flattening + log_volumes, axis=1), at)
        variance, own_variance = (jnp.sum(scale**2, axis=1) for scale in (together, own.scale_tril))
        # Without what the flattening added, but no less than a share: along a flat axis it added nothing.
        flat = _LEAST_SHARE**2 * variance
        sd = jnp.sqrt(jnp.maximum(variance - own_variance * (1.0 - 1.0 / own.flattening), flat))
        # A posterior that presses against the edge may lie beyond it: the box moves on, as wide as it is.
        side = where(jnp.abs(mean) + jnp.sqrt(variance) > 1.0, 1.0, reach * sd)
        low, high = jnp.maximum(mean - side, lowest), jnp.minimum(mean + side, highest)
        # Paths that disagree share their errors out: the posterior is wider than what any one of them says.
        misread = (own.flattening >= _COARSE) & jnp.any(variance < _ALIKE**2 * own_variance)
        return Placed(0.5 * (low + high), 0.5 * (high - low), own.flattening, misread)

    return place


def following(
    counts: tuple[int, ...],
    reach: float,
    log_prior: Callable,
    widest: tuple[Array, Array],
    evaluate: Callable,
    remembered_steps: int,
) -> Callable[..., Any]:
    """`follow(S, log_weights, t) -> S`, the box cut to `reach` posterior sds, and the densities at its new nodes.

    S holds the box of all particles once.

    The nodes of a vague prior's box are too far apart to show the posterior after the first observations. So its box is
    cut step by step, and meanwhile read with a larger scale of compression, because a small one would make the top a
    spike that no polynomial through such nodes can follow. Coarse nodes may still be wrong: if the level of a series is
    far from all nodes, its noise seems large. While paths are remembered, densities at new nodes are evaluated instead
    of interpolated, and the box may move and grow again.

    Args:
        counts: nodes along each axis.
        reach: the reach in posterior standard deviations.
        log_prior: the log-prior of z.
        widest: the first box, which theta never leaves.
        evaluate: `evaluate(opening, middle, half, t)`, the density of a path of at most t steps at the nodes of a box.
        remembered_steps: how many steps of its path a particle remembers.
    """
    at, place = nodes_of(counts).reshape(-1, len(counts)), placing(counts, reach)

    def follow(S, log_weights, t):
        # By t for all particles and runs alike, so that `vmap` over runs keeps it a branch.
        may_remember = S.opening is not None and t <= remembered_steps
        remembers = S.opening is not None and S.opening.num_steps[0] <= remembered_steps

        def cut(S):
            middle, half = S.middle, S.half
            log_p = S.values.reshape(-1, len(at)) + jax.vmap(log_prior)(middle + half * at)
            ends = (where(remembers, (end - middle) / half, s) for end, s in zip(widest, (-1, 1), strict=True))
            placed = place(log_p, log_weights, *ends)
            read = _tamed_at_new_nodes(S.values, placed)
            box = middle + half * placed.middle, half * placed.half

            def evaluated():
                values = jax.checkpoint(jax.vmap(lambda path: evaluate(path, *box, t)))(S.opening)
                return where(remembers, values, read), placed.misread & ~remembers

            found = read, placed.misread
            values, misread = found if S.opening is None else jax.lax.cond(may_remember, evaluated, lambda: found)
            flattening = jnp.maximum(placed.flattening * jnp.max(placed.half) ** 2, 1.0)
            return type(S)(values, *box, flattening, S.num_misread + misread, S.opening)

        def cut_while_remembered(S, k):
            return jax.lax.cond((k == 0) | (may_remember & remembers), cut, lambda S: S, S), None

        def look():
            looks = 1 if S.opening is None else _LOOKS[len(counts)]
            return cut(S) if looks == 1 else jax.lax.scan(cut_while_remembered, S, np.arange(looks))[0]

        return jax.lax.cond(is_due(t), look, lambda: S)

    return follow


def _log_volumes(counts: tuple[int, ...]) -> np.ndarray:
    """What each node stands for: Chebyshev points are equally spaced in the angle, ds = sin(angle) d(angle)."""
    along = [np.maximum(np.sin(np.pi * np.arange(n) / (n - 1)), 0.25 / n) for n in counts]
    return np.log(reduce(np.multiply.outer, along)).ravel().astype(jax.dtypes.canonicalize_dtype(float))


def at_new_nodes(values: Float[Array, "N ..."], counts: tuple[int, ...], placed: Placed) -> Float[Array, "N ..."]:
    """All particles' values at the nodes of a new box, from those at the nodes of the old one: the axes after N."""
    for i, n in enumerate(counts):
        inside = jnp.clip(placed.middle[i] + placed.half[i] * _points(n), -1.0, 1.0)
        rows = jax.vmap(partial(lagrange, n=n))(inside)
        values = jnp.moveaxis(jnp.tensordot(rows, values, axes=(1, i + 1)), 0, i + 1)
    return values


def _tamed_at_new_nodes(values: Float[Array, "N ..."], placed: Placed) -> Float[Array, "N ..."]:
    """The same of log-densities, which may be steep."""
    top, scale = jnp.max(values, axis=tuple(range(1, values.ndim)), keepdims=True), TAMED * placed.flattening
    return expand(at_new_nodes(compress(values, top, scale), values.shape[1:], placed), top, scale)


def at_all(function: Callable, counts: tuple[int, ...]) -> Callable:
    """A function of one node as a function of all nodes of a grid.

    It goes over one axis of the grid after the other: reshaped, XLA would write the whole grid down.
    """
    for _ in counts:
        function = jax.vmap(function)
    return function


def nodes_of(counts: tuple[int, ...]) -> np.ndarray:
    """All nodes in the box's own coordinates, shape (n_1, .., n_P, P)."""
    return product(*map(_points, counts))


def _points(n: int) -> np.ndarray:
    return points(n).astype(jax.dtypes.canonicalize_dtype(float))


def is_due(t):
    """True about ten times per decade of t > 0. It depends on t alone, so that it stays a branch under `vmap`."""
    return (t == _DUE).any()
