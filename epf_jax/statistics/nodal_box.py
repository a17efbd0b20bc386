"""The box of a nodal statistic: its Chebyshev nodes, and the rules by which it follows the posterior."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epf_jax.core.choice import where
from epf_jax.core.interpolation import compress, expand, lagrange, points

_FIRST_CUT = 20  # observations before a box shrinks whose nodes resolve the posterior and have to be read
RESOLVED = 10.0  # how far a log-density may fall among the nodes about its top
_FINE = 2.5  # the same, where nodes are a standard deviation apart or less
_NEIGHBOURS = 6  # how many nodes along an axis these are: three spacings to either side; at most a third of all
_COARSE = 3 * RESOLVED  # a fall among them beyond which what is read between them may be far off
_ALIKE = 1.2  # how much wider than one flattened density all of them together may be, and say the same
_READING_SCALE = {1: 10.0, 2: 10.0, 3: 100.0}  # of `interpolation.compress`, where nodes resolve the posterior
_FLATTENED_REACH = 4.0  # that of a new box in standard deviations of a density that was flattened: 6 would cut nothing
_LOOKS = {1: 4, 2: 1, 3: 1}  # cuts at one observation while paths are remembered: each may halve the box
_DUE = np.unique(np.ceil(10.0 ** (np.arange(1, 93) / 10) - 1e-6)).astype(np.int32) - 1  # steps, ten of a decade
_OFF_CENTRE = 0.6  # share of the way to the box's edge where a posterior mean says that the box should move on


def following(
    counts: tuple[int, ...],
    reach: float,
    log_prior: Callable,
    widest: tuple[Array, Array],
    evaluate: Callable,
    remembered_steps: int,
) -> Callable[..., Any]:
    """`follow(S, log_weights, t) -> S`, the box cut to `reach` posterior sds, and the densities at its new nodes.

    The nodes of a vague prior's box are too far apart to resolve the posterior after the first observations. They are
    interpolated with a larger compression scale from the first observation on, because a small one would make the top a
    spike that no polynomial through such nodes can follow. And the box is cut at once. Coarse nodes may still be wrong:
    if the level of a series is far from all nodes, its noise seems large. While paths are remembered, densities at new
    nodes are evaluated instead of interpolated, and the box may move and grow again.

    The posterior's location and scale come from the particles' densities on the nodes, not from their draws of theta:
    if one path survives a step, its density has the right width, but its draws have none.

    Args:
        counts: nodes along each axis.
        reach: the reach in posterior standard deviations.
        log_prior: the log-prior of z.
        widest: the first box, which theta never leaves.
        evaluate: `evaluate(opening, low, high, t)`, the density of one path of at most t steps at the nodes of a box.
        remembered_steps: how many steps of its path a particle remembers.
    """
    last = max((t for t in range(1, remembered_steps + 1) if is_due(t)), default=0)  # while paths are remembered

    def follow(S, log_weights, t):
        # By t for all particles and runs alike, so that `vmap` over runs keeps it a branch.
        may_remember = S.opening is not None and t <= remembered_steps
        remembers = S.opening is not None and S.opening.num_steps[0] <= remembered_steps

        def with_fall(S):
            return S._replace(fall=jnp.broadcast_to(_fall_of(S.values, log_weights), S.fall.shape))

        def cut(S):
            box, fall = (S.low[0], S.high[0]), S.fall[0]  # the same for all particles
            # A density too narrow for the nodes is flattened until they resolve it: its moments on a few of them would
            # be those of a slice, beside the top and too narrow in the other coordinates.
            flattened = S.values * (RESOLVED / jnp.maximum(fall, RESOLVED))
            mean, sd = posterior_moments(flattened, log_weights, box, counts, log_prior)
            inside = box_inside(box, mean, reach * sd, counts)
            # Paths that disagree share their errors out: the posterior is wider than what any one of them says.
            misread = (fall > _COARSE) & jnp.any(sd < _sd_alike(box, counts))
            read = _read_between(S.values, reading_scale(fall, counts), box, inside, counts), inside, misread

            def evaluated():
                new = _box_moved(box, mean, where(fall > RESOLVED, _FLATTENED_REACH, reach) * sd, widest)
                values = jax.checkpoint(jax.vmap(lambda path: evaluate(path, *new, t)))(S.opening)
                return jax.tree.map(partial(where, remembers), (values, new, False), read)

            values, new, misread = read if S.opening is None else jax.lax.cond(may_remember, evaluated, lambda: read)
            low, high = (jnp.broadcast_to(end, S.low.shape) for end in new)
            return with_fall(S._replace(values=values, low=low, high=high, num_misread=S.num_misread + misread))

        def look(S):
            """One cut; while paths are remembered, as many as needed to resolve the density."""
            if S.opening is None or _LOOKS[len(counts)] == 1:
                return cut(S)

            def where_wanted(S, k):
                return jax.lax.cond((k == 0) | (remembers & (S.fall[0] > _FINE)), cut, lambda S: S, S)

            def once_more(S, k):
                return jax.lax.cond((k == 0) | may_remember, where_wanted, lambda S, k: S, S, k), None

            return jax.lax.scan(once_more, S, jnp.arange(_LOOKS[len(counts)]))[0]

        def look_about(S):
            S = with_fall(S)
            pays = len(counts) > 1 or (S.fall[0] > _FINE) | (t == last)  # with one parameter, nodes abound
            due = (t >= _FIRST_CUT) | (S.fall[0] > RESOLVED) | (may_remember & remembers & pays)
            return jax.lax.cond(due, look, lambda S: S, S)

        return jax.lax.cond(is_due(t), look_about, lambda S: S, S)

    return follow


def box_inside(box, mean, spread, counts):
    """The part of the box within `spread` of the mean: at least half of it, and three spacings of its nodes."""
    low, high = box
    spread = jnp.maximum(jnp.maximum(spread, 3 * _spacing(box, counts)), 0.25 * (high - low))
    return jnp.maximum(low, mean - spread), jnp.minimum(high, mean + spread)


def _spacing(box, counts):
    """The distance between nodes in the middle of the box."""
    low, high = box
    return (np.pi / 2 / (np.array(counts) - 1)).astype(low.dtype) * (high - low)


def _sd_alike(box, counts):
    """The largest standard deviation of the flattened mixture of all densities, if all densities agree.

    One Gaussian that falls by `RESOLVED` between the nodes near its top is a little narrower. If its top lies between
    two nodes that are further apart, the result is half their spacing.
    """
    to_either_side = np.array([_num_neighbours(n) / 2 for n in counts])
    return np.maximum(_ALIKE * to_either_side / np.sqrt(2 * RESOLVED), 0.6) * _spacing(box, counts)


def _box_moved(box, mean, spread, widest):
    """A box about the mean, at least half as wide, or as wide if the mean lies near its edge; within the widest."""
    low, high = box
    off_centre = jnp.abs(mean - 0.5 * (low + high)) > _OFF_CENTRE * 0.5 * (high - low)
    spread = jnp.maximum(spread, where(off_centre, 0.5, 0.25) * (high - low))
    return jnp.maximum(widest[0], mean - spread), jnp.minimum(widest[1], mean + spread)


def _read_between(values, scale, box, new_box, counts):
    """The values at the nodes of a new box inside the old one, interpolated from the old nodes."""
    top = jnp.max(values, axis=tuple(range(1, len(counts) + 1)), keepdims=True)
    values = compress(values, top, scale)
    for i, axis in enumerate(axes(new_box, counts)):
        rows = jax.vmap(lambda s, n=counts[i]: lagrange(s, n))(to_unit(axis, box[0][i], box[1][i]))
        values = jnp.moveaxis(jnp.tensordot(rows, values, axes=(1, i + 1)), 0, i + 1)
    return expand(values, top, scale)


def reading_scale(fall, counts):
    """The scale of `interpolation.compress`: larger if nodes do not resolve the density, or are few."""
    return jnp.maximum(fall, _READING_SCALE[len(counts)])


def posterior_moments(values, log_weights, box, counts, log_prior):
    """Mean and sd of theta under the weighted mixture of the particles' densities, by quadrature on the nodes."""
    z = nodes(box, counts).reshape(-1, len(counts))
    cells = np.ones(())
    for n in counts:  # Chebyshev points are equally spaced in the angle: dz = sin(angle) d(angle)
        cells = cells[..., None] * np.maximum(np.sin(np.pi * np.arange(n) / (n - 1)), 0.25 / n)
    log_cells = np.log(cells).ravel().astype(values.dtype)
    log_p = values.reshape(values.shape[0], -1) + jax.vmap(log_prior)(z) + log_cells
    mixture = jnp.exp(log_weights) @ jax.nn.softmax(log_p, axis=1)
    mean = mixture @ z
    return mean, jnp.sqrt(mixture @ (z - mean) ** 2)


def _fall_of(values, log_weights):
    """How far the log-density falls within a few nodes of its top, along the steepest axis."""
    all_nodes = tuple(range(1, values.ndim))
    below = jnp.tensordot(jnp.exp(log_weights), jnp.max(values, axis=all_nodes, keepdims=True) - values, axes=1)
    fall = jnp.zeros((), values.dtype)
    for i, n in enumerate(below.shape):
        others = tuple(j for j in range(below.ndim) if j != i)
        along = jnp.sort(jnp.min(below, axis=others) if others else below)
        fall = jnp.maximum(fall, along[_num_neighbours(n)])
    return fall


def _num_neighbours(num_nodes: int) -> int:
    return min(_NEIGHBOURS, num_nodes // 3)


def is_due(t):
    """True about ten times per decade of t > 0. It depends on t alone, so that it stays a branch under `vmap`."""
    return (t == _DUE).any()


def to_unit(z, low, high):
    """Z in the box's own coordinates, -1 to 1."""
    return (z - 0.5 * (low + high)) / (0.5 * (high - low))


def nodes(box, counts):
    """All nodes of the box, shape (n_1, .., n_P, P)."""
    return jnp.stack(jnp.meshgrid(*axes(box, counts), indexing="ij"), axis=-1)


def axes(box, counts):
    """The Chebyshev points of each coordinate."""
    low, high = box
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    ends = zip(jnp.unstack(middle), jnp.unstack(half), counts, strict=True)
    return [centre + width * points(n).astype(low.dtype) for centre, width, n in ends]
