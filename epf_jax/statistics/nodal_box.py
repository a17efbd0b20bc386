"""The box of a nodal statistic: its Chebyshev nodes, and how it follows the posterior."""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epf_jax.core.adaptive_grid import TAMED, product, seen, spread
from epf_jax.core.choice import where
from epf_jax.core.interpolation import compress, expand, lagrange, points

_COARSE = 16.0  # a flattening from which on what is read between nodes may be far off
_LEAST_SHARE = 0.25  # a new box is made narrower than a flattened density by as much at most
_ALIKE = 1.2  # how much wider than one flattened density all of them together may be, and say the same
_DUE = np.unique(np.ceil(10.0 ** (np.arange(1, 93) / 10) - 1e-6)).astype(np.int32) - 1  # steps, ten of a decade


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

    The posterior's location and scale come from the particles' densities on the nodes, not from their draws of theta:
    if one path survives a step, its density has the right width, but its draws have none.

    Args:
        counts: nodes along each axis.
        reach: the reach in posterior standard deviations.
        log_prior: the log-prior of z.
        widest: the first box, which theta never leaves.
        evaluate: `evaluate(opening, middle, half, t)`, the density of a path of at most t steps at the nodes of a box.
        remembered_steps: how many steps of its path a particle remembers.
    """
    at = nodes_of(counts).reshape(-1, len(counts))
    cell, log_volumes = np.pi / (np.array(counts) - 1), _log_volumes(counts)

    def follow(S, log_weights, t):
        # By t for all particles and runs alike, so that `vmap` over runs keeps it a branch.
        may_remember = S.opening is not None and t <= remembered_steps
        remembers = S.opening is not None and S.opening.num_steps[0] <= remembered_steps

        def cut():
            middle, half, weights = S.middle, S.half, jnp.exp(log_weights)
            log_p = S.values.reshape(-1, len(at)) + jax.vmap(log_prior)(middle + half * at)
            own = seen(weights @ log_p, at, cell, log_volumes)  # as wide as one path's, wherever each is
            mean, together = spread(weights @ jax.nn.softmax(log_p / own.flattening + log_volumes, axis=1), at)
            variance, own_variance = (jnp.sum(scale**2, axis=1) for scale in (together, own.scale_tril))
            # Without what the flattening added, but no less than a share: along a flat axis it added nothing.
            flat = _LEAST_SHARE**2 * variance
            sd = jnp.sqrt(jnp.maximum(variance - own_variance * (1.0 - 1.0 / own.flattening), flat))
            # A posterior that presses against the edge may lie beyond it: the box moves on, as wide as it is.
            presses = jnp.abs(mean) + jnp.sqrt(variance) > 1.0
            side = where(presses, 1.0, reach * sd)
            lowest, highest = (
                where(remembers, (end - middle) / half, s) for end, s in zip(widest, (-1, 1), strict=True)
            )
            low, high = jnp.maximum(mean - side, lowest), jnp.minimum(mean + side, highest)
            new_middle, new_half = 0.5 * (low + high), 0.5 * (high - low)  # in the old box
            read = _read_between(S.values, TAMED * own.flattening, new_middle, new_half)
            # Paths that disagree share their errors out: the posterior is wider than what any one of them says.
            misread = (own.flattening >= _COARSE) & jnp.any(variance < _ALIKE**2 * own_variance)
            box = middle + half * new_middle, half * new_half

            def evaluated():
                values = jax.checkpoint(jax.vmap(lambda path: evaluate(path, *box, t)))(S.opening)
                return where(remembers, values, read), misread & ~remembers

            found = read, misread
            values, misread = found if S.opening is None else jax.lax.cond(may_remember, evaluated, lambda: found)
            flattening = jnp.maximum(own.flattening * jnp.max(new_half) ** 2, 1.0)
            return type(S)(values, *box, flattening, S.num_misread + misread, S.opening)

        return jax.lax.cond(is_due(t), cut, lambda: S)

    return follow


def _log_volumes(counts: tuple[int, ...]) -> np.ndarray:
    """What each node stands for: Chebyshev points are equally spaced in the angle, ds = sin(angle) d(angle)."""
    along = [np.maximum(np.sin(np.pi * np.arange(n) / (n - 1)), 0.25 / n) for n in counts]
    return np.log(reduce(np.multiply.outer, along)).ravel().astype(jax.dtypes.canonicalize_dtype(float))


def _read_between(values, scale, middle, half):
    """The values at the nodes of a new box inside the old one, of whose coordinates these are, between its nodes."""
    counts = values.shape[1:]
    top = jnp.max(values, axis=tuple(range(1, values.ndim)), keepdims=True)
    values = compress(values, top, scale)
    for i, n in enumerate(counts):
        inside = jnp.clip(middle[i] + half[i] * _points(n), -1.0, 1.0)
        rows = jax.vmap(partial(lagrange, n=n))(inside)
        values = jnp.moveaxis(jnp.tensordot(rows, values, axes=(1, i + 1)), 0, i + 1)
    return expand(values, top, scale)


def nodes_of(counts: tuple[int, ...]) -> np.ndarray:
    """All nodes in the box's own coordinates, shape (n_1, .., n_P, P)."""
    return product(*map(_points, counts))


def _points(n: int) -> np.ndarray:
    return points(n).astype(jax.dtypes.canonicalize_dtype(float))


def is_due(t):
    """True about ten times per decade of t > 0. It depends on t alone, so that it stays a branch under `vmap`."""
    return (t == _DUE).any()


def to_unit(z, low, high):
    """Z in the box's own coordinates, -1 to 1."""
    return (z - 0.5 * (low + high)) / (0.5 * (high - low))


def box_inside(box, mean, spread, counts):
    """The part of the box within `spread` of the mean: at least half of it, and three spacings of Chebyshev nodes."""
    low, high = box
    spacing = (np.pi / 2 / (np.array(counts) - 1)).astype(low.dtype) * (high - low)
    spread = jnp.maximum(jnp.maximum(spread, 3 * spacing), 0.25 * (high - low))
    return jnp.maximum(low, mean - spread), jnp.minimum(high, mean + spread)
