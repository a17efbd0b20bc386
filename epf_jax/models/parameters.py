r"""theta as the user sees it <-> one flat unconstrained vector z.

A prior is a distribution, or a pytree (usually a dict) of distributions. numpyro's `biject_to(support)` maps the real
line onto the support of each leaf: positive scales become logarithms, correlations logits, real parameters stay as they
are. The circle of an angle is cut where its prior is smallest, so that an angle may exceed pi. Filters and samplers
move z in R^P; models are always called with theta.

The density of z is :math:`p(z) = p(\theta(z))\,|\partial\theta/\partial z|`.
"""

import contextlib
import math
import numbers
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, PRNGKeyArray

from epf_jax.core.checks import brief
from epf_jax.core.choice import where
from epf_jax.core.densities import draw, log_of_normal
from epf_jax.core.gammas import with_own_gammas
from epf_jax.core.gaussian import base_distribution
from epf_jax.core.naming import component_names, named_leaves
from epf_jax.core.no_gradient import guarded
from epf_jax.core.platforms import on_cpu

Theta = Any
"""A pytree with the prior's structure."""

_REACH = 5.0  # scales to either side of the centre: all but 6e-7 of a Gaussian
_SPREAD = (0.159, 0.5, 0.841)  # one standard deviation to either side of a Gaussian's median
# Towards a bound of theta the density of z falls as an exponential, more slowly than a Gaussian's: two quantiles of
# either tail tell how fast, and so where all but this share of it ends.
_TAIL, _LEFT_OUT = (0.005, 0.05), 2e-4
_PROBE_DRAWS = 4001  # prior draws behind the centre and scale of leaves whose moments are not known in closed form
_MOST_LOST = 0.01  # share of their coordinates that may be NaN


class Parameters(NamedTuple):
    """The coordinates of theta: how to go between the user's pytree and a flat unconstrained vector.

    Attributes:
        dim: P, the number of unconstrained coordinates.
        names: one name per coordinate, for messages and plots.
        sample: `sample(key, num)` gives `num` draws from the prior, stacked along a leading axis.
        to_vector: theta -> z.
        to_theta: z -> theta.
        log_prior: log p(z), Jacobian included.
        log_jacobian: log |d theta / d z| at z.
        centre: a central z of the prior: its mean on real supports, its median elsewhere.
        scale: the prior's standard deviation (or half the 68% range) along each coordinate of z.
        box: the lowest and the highest z to consider before there are data: five scales to either side of the centre,
            and further if the prior has bounds with mass near them.
        is_real: whether z is theta itself, merely flattened.
        own: for each number of theta's flat vector, the coordinate of z that moves this number and no other; -1 if
            there is none, as in a simplex, and for angles.
    """

    dim: int
    names: tuple[str, ...]
    sample: Callable[[PRNGKeyArray, int], Theta]
    to_vector: Callable[[Theta], Float[Array, " P"]]
    to_theta: Callable[[Float[Array, " P"]], Theta]
    log_prior: Callable[[Float[Array, " P"]], Float[Array, ""]]
    log_jacobian: Callable[[Float[Array, " P"]], Float[Array, ""]]
    centre: Float[Array, " P"]
    scale: Float[Array, " P"]
    box: tuple[Float[Array, " P"], Float[Array, " P"]]
    is_real: bool
    own: Int[np.ndarray, " V"]


class _Leaf(NamedTuple):
    """One distribution of the prior, with its place in z."""

    name: str
    prior: Any
    transform: Any
    shape: tuple[int, ...]  # of theta's leaf
    unconstrained_shape: tuple[int, ...]
    size: int


def _plain(theta: Any) -> Any:
    """Theta with arrays of one number as plain numbers, for messages."""
    single = lambda v: isinstance(v, np.ndarray | jax.Array) and not isinstance(v, jax.core.Tracer) and v.size == 1  # noqa: E731
    return jax.tree.map(lambda v: v.item() if single(v) else v, theta)


def is_distribution(d: Any) -> bool:
    """True for anything with numpyro's `sample(key)` and `log_prob(value)`; a class is not yet a distribution."""
    return not isinstance(d, type) and callable(getattr(d, "sample", None)) and callable(getattr(d, "log_prob", None))


def parameters(prior: Any) -> Parameters:
    """The coordinates of theta under `prior`, a distribution or a pytree of distributions."""
    treedef: Any
    try:
        paths, treedef = jax.tree_util.tree_flatten_with_path(prior, is_leaf=lambda d: d is None or is_distribution(d))
    except ValueError as error:  # JAX sorts the keys of a dict
        raise ValueError("prior: its names cannot be put in order. Make each of them a text.") from error
    leaves = [_leaf(path, d) for path, d in paths]
    _check_names(treedef.unflatten(range(len(leaves))), [leaf.shape for leaf in leaves])
    offsets = [sum(leaf.size for leaf in leaves[:i]) for i in range(len(leaves) + 1)]
    dim = offsets[-1]

    def split(z):
        xp: Any = np if isinstance(z, np.ndarray) else jnp
        parts = xp.split(z, offsets[1:-1]) if leaves else []
        return [part.reshape(leaf.unconstrained_shape) for part, leaf in zip(parts, leaves, strict=True)]

    def to_theta(z):
        # A model may index its theta by traced numbers, which an array of NumPy's, as the centre is, does not take.
        parts = [jnp.asarray(part) for part in split(z)]
        return treedef.unflatten([leaf.transform(part) for leaf, part in zip(leaves, parts, strict=True)])

    def to_vector(theta):
        try:
            values = treedef.flatten_up_to(theta)
        except (ValueError, TypeError) as error:
            shapes = treedef.unflatten([leaf.shape for leaf in leaves])
            raise ValueError(
                f"theta: expected the prior's structure, with shapes {shapes}, got {brief(_plain(theta))}. Give one "
                "value for each parameter."
            ) from error
        parts = [jnp.ravel(_inverse(leaf, jnp.asarray(v, float))) for leaf, v in zip(leaves, values, strict=True)]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    def log_jacobian(z):
        total = jnp.zeros(())
        for leaf, part in zip(leaves, split(z), strict=True):
            total += jnp.sum(leaf.transform.log_abs_det_jacobian(part, leaf.transform(part)))
        return total

    def log_prior(z):
        total = jnp.zeros(())
        for leaf, part in zip(leaves, split(z), strict=True):
            total += _log_density_of_z(leaf, part)
        return total

    def sample(key, num):
        keys = jax.random.split(key, max(len(leaves), 1))
        draws = [_inside(leaf.transform, _draws(leaf, k, num)) for leaf, k in zip(leaves, keys, strict=False)]
        return treedef.unflatten(draws)

    centre, scale, *box = _extent(leaves)
    return Parameters(
        dim=dim,
        names=tuple(name for leaf in leaves for name in _coordinate_names(leaf)),
        sample=sample,
        to_vector=to_vector,
        to_theta=to_theta,
        log_prior=log_prior,
        log_jacobian=log_jacobian,
        centre=centre,
        scale=scale,
        box=tuple(box),
        is_real=all(_is_identity(leaf.transform) for leaf in leaves),
        own=np.concatenate([np.zeros(0, int), *map(_own_coordinates, leaves, offsets[:-1])]),
    )


def _check_names(places: Any, shapes: list[tuple[int, ...]]) -> None:
    """Refuse parameters that reports and tables would call alike."""
    names = [name for given, i in named_leaves(places, "theta") for name in component_names(given, shapes[i])]
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ValueError(
            f"prior: two parameters would both be called {twice[0]!r} in reports and tables. Rename one of them."
        )


def _leaf(path, d) -> _Leaf:
    name = "".join(_path_entry(entry) for entry in path).lstrip(".") or "theta"
    if not is_distribution(d):
        raise TypeError(
            f"prior: expected a distribution, or a dict of distributions, but the entry {name!r} is "
            f"{type(d).__name__}: {d!r}. Wrap it in a numpyro distribution, for example "
            f"{{{name!r}: dist.Normal(0.0, 1.0)}}; for a known constant, use the number inside the model's functions."
        )
    support = getattr(d, "support", dist.constraints.real)
    if getattr(support, "is_discrete", False):
        raise TypeError(
            f"prior: the parameter {name!r} is discrete ({type(d).__name__}); filters here learn continuous "
            "parameters. Move a discrete unknown into the state, or run one filter per value and compare log_evidence."
        )
    try:
        draw = jax.eval_shape(lambda: d.sample(jax.random.key(0)))
    except NotImplementedError as error:
        raise TypeError(
            f"prior: the parameter {name!r} cannot be drawn ({type(d).__name__} has no sample), and filters start from "
            "draws of the prior. Take a proper distribution, however wide."
        ) from error
    transform = dist.biject_to(support)
    unconstrained_shape = tuple(transform.inverse_shape(draw.shape))
    size = 1
    for n in unconstrained_shape:
        size *= n
    if isinstance(getattr(support, "base_constraint", support), type(dist.constraints.circular)):
        transform = _Turned(transform, getattr(base_distribution(d), "loc", 0.0))
    return _Leaf(name, d, transform, tuple(draw.shape), unconstrained_shape, size)


class _Turned:
    """Maps the line onto the circle, cut opposite to the prior's location.

    Angles then lie between location - pi and location + pi, so that their mean and quantiles make sense.
    """

    def __init__(self, transform: Any, by: Any):
        self._transform, self._by = transform, by

    def __call__(self, z):
        return self._transform(z) + self._by

    def inv(self, theta):
        return self._transform.inv(_between_pi(theta - self._by))

    def told(self, theta):
        """An angle, such as a draw of the prior, moved into the range of this map."""
        return self._by + _between_pi(theta - self._by)

    def log_abs_det_jacobian(self, z, theta):
        return self._transform.log_abs_det_jacobian(z, self._transform(z))


def _log_density_of_z(leaf: _Leaf, z):
    """That of the prior in unconstrained coordinates; a prior of angles knows those between -pi and pi alone."""
    if type(leaf.prior) in (dist.Normal, dist.LogNormal):  # whose logarithm is Normal, and is z
        return jnp.sum(log_of_normal(z - leaf.prior.loc, leaf.prior.scale))
    value = leaf.transform(z)
    log_jacobian = jnp.sum(leaf.transform.log_abs_det_jacobian(z, value))
    value = _between_pi(value) if isinstance(leaf.transform, _Turned) else value
    return log_jacobian + jnp.sum(leaf.prior.log_prob(value))


def _between_pi(angle):
    return jnp.remainder(angle + jnp.pi, 2 * jnp.pi) - jnp.pi


def _check_moments(name: str, centre, scale) -> None:
    if not (_all_finite(centre, scale) and (isinstance(scale, jax.core.Tracer) or np.all(scale > 0))):
        raise ValueError(
            f"prior: the parameter {name!r} has no finite centre and positive spread in unconstrained coordinates "
            f"(centre {centre}, spread {scale}). Its draws underflow or overflow, or do not vary: take a less vague "
            "prior, such as dist.LogNormal(0.0, 1.0), or put a known constant into the model's functions."
        )


def _path_entry(entry) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return f".{getattr(entry, attribute)}"
    return f".{entry}"


def _own_coordinates(leaf: _Leaf, offset: int) -> Int[np.ndarray, " n"]:
    base = getattr(leaf.transform, "base_transform", leaf.transform)
    by_component = _is_identity(leaf.transform) or getattr(getattr(base, "domain", None), "event_dim", None) == 0
    if not by_component or leaf.shape != leaf.unconstrained_shape:
        return np.full(math.prod(leaf.shape), -1)
    return offset + np.arange(leaf.size)


def _coordinate_names(leaf: _Leaf) -> list[str]:
    return [leaf.name] if leaf.unconstrained_shape == () else [f"{leaf.name}[{i}]" for i in range(leaf.size)]


def _is_identity(transform) -> bool:
    base = getattr(transform, "base_transform", transform)
    return isinstance(base, dist.transforms.IdentityTransform)


def _inverse(leaf: _Leaf, value):
    if value.shape != leaf.shape:
        raise ValueError(
            f"theta: the parameter {leaf.name!r} should have shape {leaf.shape}, as its prior has, "
            f"but came with shape {value.shape}."
        )
    return leaf.transform.inv(value)


def _draws(leaf: _Leaf, key, num):
    d = leaf.prior
    if isinstance(d, dist.Distribution):
        draws = jnp.asarray(draw(key, guarded(d), (num,)), float)
        return leaf.transform.told(draws) if isinstance(leaf.transform, _Turned) else draws
    return jnp.asarray(jax.vmap(partial(with_own_gammas, d.sample))(jax.random.split(key, num)), float)


def _inside(transform: Any, draws: Array) -> Array:
    """The draws; those rounded onto the edge of the support are moved a little inside, because z must be finite."""
    if _is_identity(transform):
        return draws
    there, back = jax.vmap(transform.inv), jax.vmap(transform)
    z = there(jax.lax.stop_gradient(draws))  # what is moved depends on nothing any more
    at_edge = jnp.isinf(z)
    positive = isinstance(getattr(transform, "base_transform", transform), dist.transforms.ExpTransform)
    moved = back(where(at_edge, jnp.clip(z, *((-80.0, 80.0) if positive else (-15.0, 15.0))), z))
    still = jnp.isinf(there(moved))  # numbers far from zero are further apart
    moved = where(_over(still, moved), back(jnp.clip(z, -5.0, 5.0)), moved)
    return where(_over(at_edge, draws), moved, draws)


def _over(flags: Array, draws: Array) -> Array:
    """Flags of coordinates as flags of a draw's components: one for each, or one for all if the numbers differ."""
    if flags.shape == draws.shape:
        return flags
    return jnp.any(flags, axis=tuple(range(1, flags.ndim))).reshape(-1, *[1] * (draws.ndim - 1))


def _extent(leaves: list[_Leaf]) -> list[Any]:
    """Centre, scale, and the box's ends; NumPy arrays if known, so that building a filter compiles nothing."""
    extents = _extents(leaves)
    for leaf, (middle, spread, *_) in zip(leaves, extents, strict=True):
        _check_moments(leaf.name, middle, spread)
    return [_joined([extent[i] for extent in extents]) for i in range(4)]


def _extents(leaves: list[_Leaf]) -> list[tuple[Any, Any, Any, Any]]:
    """Centre, scale and ends of each leaf along its coordinates of z; NumPy arrays if their numbers are known."""
    found = evaluated(lambda: [_known_location_and_scale(leaf) for leaf in leaves])
    return [
        (*pair, pair[0] - _REACH * pair[1], pair[0] + _REACH * pair[1]) if _all_finite(*pair) else _drawn_extent(leaf)
        for leaf, pair in zip(leaves, found, strict=True)
    ]


def theta_inside(coordinates: Parameters, z: Float[Array, " P"], otherwise: Theta) -> Theta:
    """Theta at z, or `otherwise` if theta would be rounded onto a bound, which no finite z maps to."""
    theta = coordinates.to_theta(z)
    if coordinates.is_real:
        return theta
    # Numbers below the smallest normal one are written down as zero, which is a bound of many.
    stored = jax.tree.map(lambda a: where(jnp.abs(a) < jnp.finfo(a.dtype).tiny, 0.0, a), theta)
    inside = jnp.all(jnp.isfinite(coordinates.to_vector(stored)))
    return jax.tree.map(lambda new, old: where(inside, new, old), theta, otherwise)


def evaluated(function: Callable, *arguments: Any) -> Any:
    """The function's result, by one small program instead of one for every operation."""
    with on_cpu():
        found = jax.jit(function)(*arguments)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(found)):
        with jax.ensure_compile_time_eval():  # inside somebody's jit; the numbers may be known
            found = function(*arguments)
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf), found)


def _all_finite(*numbers: Any) -> bool:
    """Whether all known numbers are finite."""
    return all(isinstance(each, jax.core.Tracer) or bool(np.all(np.isfinite(each))) for each in numbers)


def _joined(parts: list[Any]) -> Any:
    if not parts:
        return np.zeros(0, jnp.result_type(float))
    return (jnp if any(isinstance(part, jax.core.Tracer) for part in parts) else np).concatenate(parts)


def _known_location_and_scale(leaf: _Leaf) -> tuple[Any, Any]:
    """Mean and standard deviation of a leaf on the real line; NaN without a closed form."""
    mean = sd = jnp.asarray(jnp.nan)
    if _is_identity(leaf.transform):
        with contextlib.suppress(NotImplementedError, AttributeError):
            mean, sd = leaf.prior.mean, jnp.sqrt(leaf.prior.variance)
    shape = leaf.shape if _is_identity(leaf.transform) else leaf.unconstrained_shape
    mean, sd = (jnp.broadcast_to(jnp.asarray(m, float), shape).ravel() for m in (mean, sd))
    return mean, sd


def _drawn_extent(leaf: _Leaf) -> tuple[Any, Any, Any, Any]:
    """From draws of a leaf's coordinates of z: the median, half the width of the middle two thirds, and the ends."""
    # A program of their own for the draws: in one with the way back, log(exp(z)) would not lose what theta does.
    draws = evaluated(lambda: _draws(leaf, jax.random.key(0), _PROBE_DRAWS))

    z = evaluated(jax.vmap(leaf.transform.inv), jnp.asarray(draws)).reshape(_PROBE_DRAWS, leaf.size)
    levels = np.array([*_SPREAD, *_TAIL, *(1.0 - level for level in _TAIL)])
    if isinstance(z, jax.core.Tracer):
        at = list(jnp.quantile(z, levels, axis=0))
    else:
        # A few draws that rounding took out of the support, singular matrices say, say nothing.
        quantile = np.nanquantile if 0 < np.mean(np.isnan(z)) < _MOST_LOST else np.quantile
        with np.errstate(invalid="ignore"):  # infinite draws in plenty leave NaN, which is refused
            at = list(quantile(z, levels, axis=0).astype(z.dtype))
    xp = jnp if isinstance(z, jax.core.Tracer) else np
    (low, middle, high), lower, upper = at[:3], at[3:5], at[5:]
    scale = (high - low) / 2
    reach = _REACH * scale
    if _is_identity(leaf.transform):  # no bound: a tail that is heavier may be one that no box can hold
        return middle, scale, middle - reach, middle + reach
    further = math.log(_TAIL[0] / _LEFT_OUT) / math.log(_TAIL[1] / _TAIL[0])
    with np.errstate(invalid="ignore"):  # a tail whose draws underflow tells nothing
        below, above = (tail[0] + further * (tail[0] - tail[1]) for tail in (lower, upper))
    below, above = xp.where(xp.isfinite(below), below, middle), xp.where(xp.isfinite(above), above, middle)
    return middle, scale, xp.minimum(middle - reach, below), xp.maximum(middle + reach, above)


def node_counts(
    who: str, num_nodes: Any, coordinates: Parameters, default: dict[int, int], least: int = 2
) -> tuple[int, ...]:
    """The number of nodes along each unconstrained coordinate: the user's, or the default for that many coordinates."""
    p = coordinates.dim
    if p > max(default):
        raise ValueError(
            f"{who}: the grid has as many dimensions as there are parameters, and the prior has {p} "
            f"({', '.join(coordinates.names)}); three is the most. Use epf.smc2_filter, or "
            "epf.extended_parameter_filter(model, N)."
        )
    given = default[p] if num_nodes is None else num_nodes
    counts = tuple(given) if isinstance(given, (tuple, list)) else (given,) * p
    if len(counts) != p or not all(isinstance(n, numbers.Integral) and int(n) >= least for n in counts):
        raise ValueError(
            f"num_nodes: expected a whole number of at least {least}, or one for each of the {p} parameters "
            f"({', '.join(coordinates.names)}), got {num_nodes!r}."
        )
    return counts
