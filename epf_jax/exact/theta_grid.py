"""Exact posteriors on a grid of theta.

Every oracle gives log p(data up to t | theta) for one theta. `posterior` evaluates it on a grid, adds the prior, and
integrates by the trapezoidal rule, which is spectrally accurate for a density that vanishes at the grid's ends. It
always computes in double precision and returns NumPy arrays.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.checks import frames_to_user
from epf_jax.core.naming import named_leaves
from epf_jax.models.parameters import Theta, is_distribution
from epf_jax.models.state_space import StateSpaceModel, check_is_model

_AT_ITS_END = 0.05  # of its highest, a density at the end of a grid that holds too little of it
_BEYOND = 0.01  # of a posterior, that a grid may leave out without a word
_FEWEST = 2.2  # points that a posterior rests on: 1.6 of its standard deviations apart, errs by 1%
Axes = Any
"""A pytree with the prior's structure: for each (scalar) parameter, the increasing values of its grid."""


class GridPosterior(NamedTuple):
    """p(theta | data) on a tensor grid, after every observation.

    Attributes:
        axes: the values of each parameter, a pytree with the prior's structure.
        log_density: normalised, shape (T, n_1, .., n_P).
        log_evidence: log p(y_1:t) with theta integrated out, shape (T,).
    """

    axes: Axes
    log_density: Float[np.ndarray, "T ..."]
    log_evidence: Float[np.ndarray, " T"]

    @property
    def mean(self) -> Theta:
        """Posterior means, a pytree of arrays of length T."""
        return jax.tree.map(lambda axis, density: _moments(axis, density)[0], self.axes, self.marginal())

    @property
    def sd(self) -> Theta:
        """Posterior standard deviations."""
        return jax.tree.map(lambda axis, density: _moments(axis, density)[1], self.axes, self.marginal())

    def marginal(self) -> Theta:
        """Marginal densities, a pytree of arrays (T, n)."""
        axes, structure = jax.tree.flatten(self.axes)
        density = np.exp(self.log_density)
        parts = []
        for i in range(len(axes)):
            weighted, others = density, [j for j in range(len(axes)) if j != i]
            for j in others:
                weighted = weighted * _along(_trapezoid(axes[j]), j, len(axes))
            parts.append(np.sum(weighted, axis=tuple(j + 1 for j in others)))
        return jax.tree.unflatten(structure, parts)

    def points(self) -> tuple[Theta, Float[np.ndarray, " G"]]:
        """The points of the grid in a list, and the weight of each in the last posterior; weights sum to one."""
        axes, structure = jax.tree.flatten(self.axes)
        points = [each.ravel() for each in np.meshgrid(*axes, indexing="ij")]
        weights = np.ravel(np.exp(self.log_density[-1]) * _cells(axes)[0])
        return jax.tree.unflatten(structure, points), weights / np.sum(weights)

    def quantiles(self, levels: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)) -> Theta:
        """Posterior quantiles, a pytree of arrays (T, Q), by linear interpolation of the distribution function."""

        def of(axis, density):
            steps = 0.5 * (density[:, 1:] + density[:, :-1]) * np.diff(axis)
            cdf = np.concatenate([np.zeros((len(density), 1)), np.cumsum(steps, axis=1)], axis=1)
            return np.stack([np.interp(levels, row / row[-1], axis) for row in cdf])

        return jax.tree.map(of, self.axes, self.marginal())


def _moments(axis: np.ndarray, density: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w = density * _trapezoid(axis)
    w = w / np.sum(w, axis=1, keepdims=True)
    mean = w @ axis
    return mean, np.sqrt(np.sum(w * (axis - mean[:, None]) ** 2, axis=1))


def posterior(
    model: StateSpaceModel,
    axes: Axes,
    log_likelihood: Callable[..., Float[Array, " T"]],
    *data: Any,
    batch_size: int = 32,
) -> GridPosterior:
    """The posterior on a grid, from `log_likelihood(theta, *data)`, the log-likelihood of y_1..y_t for every t.

    Args:
        model: for its prior.
        axes: the grid, a pytree with the prior's structure whose leaves are increasing values.
        log_likelihood: (theta, *data) -> T cumulative log-likelihoods. The same function with other data of the same
            shapes is not compiled again.
        data: arrays that it needs.
        batch_size: grid points evaluated at once.
    """
    leaves, structure = _check_axes(model, axes)
    points = np.stack([g.ravel() for g in np.meshgrid(*leaves, indexing="ij")], axis=-1)
    with jax.enable_x64(True):
        evaluated = _log_joint(model, log_likelihood, min(batch_size, len(points)), points, data)
        log_joint = np.asarray(evaluated).T.reshape(-1, *(len(leaf) for leaf in leaves))
    log_joint = np.where(np.isnan(log_joint), -np.inf, log_joint)  # a point at the support's edge has no density
    cells = _cells(leaves)
    highest = np.max(log_joint, axis=tuple(range(1, log_joint.ndim)), keepdims=True)
    if not np.all(np.isfinite(highest)):
        raise ValueError(
            f"axes: after observation {int(np.argmax(~np.isfinite(highest).ravel())) + 1} no point of the grid has any "
            "density. Move the grid to where the posterior is, or give the state nodes that cover it."
        )
    total = np.sum(np.exp(log_joint - highest) * cells, axis=tuple(range(1, log_joint.ndim)), keepdims=True)
    log_evidence = highest + np.log(total)
    found = GridPosterior(jax.tree.unflatten(structure, leaves), log_joint - log_evidence, log_evidence.ravel())
    _warn_of_ends(model, found)
    _warn_of_spacing(found)
    return found


def _warn_of_ends(model: StateSpaceModel, found: GridPosterior) -> None:
    """Warn of axes at whose ends the last posterior has not vanished although the prior goes on."""
    priors = jax.tree.leaves(model.prior, is_leaf=is_distribution)
    last = found._replace(log_density=found.log_density[-1:])
    axes, marginals = named_leaves(found.axes, "theta"), jax.tree.leaves(last.marginal())
    for (name, axis), (marginal,), prior in zip(axes, marginals, priors, strict=True):
        for end, room in ((0, axis[0] - _bound(prior, "lower")), (-1, _bound(prior, "upper") - axis[-1])):
            beyond = marginal[end] * min(room, np.ptp(axis))  # of the posterior, if its density stayed as it is
            if marginal[end] > _AT_ITS_END * np.max(marginal) and beyond > _BEYOND:
                warnings.warn(
                    f"axes: the posterior of {name} goes on where its grid ends, at {axis[end]:.4g}: its density there "
                    f"is {marginal[end] / np.max(marginal):.0%} of the highest on the grid. Give that axis values "
                    "further out.",
                    RuntimeWarning,
                    stacklevel=frames_to_user(),
                )


def _warn_of_spacing(found: GridPosterior) -> None:
    """Warn of axes on which the last posterior, given the other parameters, rests on too few points."""
    axes = named_leaves(found.axes, "theta")
    weights = np.exp(found.log_density[-1]) * _cells([axis for _, axis in axes])[0]
    for i, (name, _) in enumerate(axes):
        line = np.sum(weights, axis=i)
        num = np.sum(line**3 / np.maximum(np.sum(weights**2, axis=i), np.finfo(float).tiny)) / np.sum(line)
        if num < _FEWEST:
            warnings.warn(
                f"axes: the grid of {name} is too coarse: the posterior rests on {num:.2g} of its points. Give it "
                "values at most half a posterior standard deviation apart, as exact.axes_around(...) of a grid that "
                "is fine enough to find the place.",
                RuntimeWarning,
                stacklevel=frames_to_user(),
            )


def _bound(prior: Any, side: str) -> float:
    """Where a prior's support ends, on the lower or the upper side."""
    bound = getattr(prior.support, f"{side}_bound", None)
    return float(np.asarray(bound)) if bound is not None else -np.inf if side == "lower" else np.inf


def log_joint_at(
    model: StateSpaceModel, log_likelihood: Callable[..., Float[Array, " T"]], theta: Theta, *data: Any
) -> Float[np.ndarray, " T"]:
    """Log p(theta) + log p(y_1:t | theta) at one theta, for every t, in double precision."""
    with jax.enable_x64(True):
        point = np.asarray(jax.tree.leaves(theta), float)
        return np.asarray(_log_joint(model, log_likelihood, 1, point[None], data))[0]


@lru_cache(maxsize=256)
def likelihood_of(log_evidence: Callable, model: StateSpaceModel) -> Callable:
    """`(theta, *data, inputs) -> log_evidence(model, theta, *data, inputs=inputs)`, one object and so compiled once."""
    return lambda theta, *data: log_evidence(model, theta, *data[:-1], inputs=data[-1])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _log_joint(model, log_likelihood, batch_size, points, data):
    """Log p(theta) + log p(data up to t | theta) at every point, for every t."""
    structure: Any
    priors, structure = jax.tree.flatten(model.prior, is_leaf=is_distribution)

    def at(point):
        log_prior = sum(jnp.sum(d.log_prob(value)) for d, value in zip(priors, point, strict=True))
        return log_prior + log_likelihood(structure.unflatten(list(point)), *data)

    return jax.lax.map(at, points, batch_size=batch_size)


def axes_around(found: GridPosterior, half_width: float = 6.0, num: int = 25) -> Axes:
    """A finer grid: `num` points over `half_width` posterior standard deviations about the final posterior mean."""
    return jax.tree.map(
        lambda mean, sd: np.linspace(mean[-1] - half_width * sd[-1], mean[-1] + half_width * sd[-1], num),
        found.mean,
        found.sd,
    )


def grid_moments(axis: Float[np.ndarray, " n"], log_density: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Mean and sd of a log-density on a grid, up to a constant; NaN counts as zero density."""
    density = np.nan_to_num(np.exp(log_density - np.nanmax(log_density)))
    mean, sd = _moments(np.asarray(axis, float), density[None])
    return float(mean[0]), float(sd[0])


def kl(log_p: Float[np.ndarray, " n"], log_q: Float[np.ndarray, " n"], grid: Float[np.ndarray, " n"]) -> float:
    """KL(p, q) on the interval that `grid` spans, both densities normalised there first.

    The result depends on the interval: a log-polynomial whose leading order is odd or has the wrong sign is a density
    only on an interval.
    """
    cells = _trapezoid(np.asarray(grid, float))

    def normalised(log_density):
        log_density = np.asarray(log_density, float)
        log_density = log_density - np.max(log_density)
        return log_density - np.log(np.sum(np.exp(log_density) * cells))

    log_p, log_q = normalised(log_p), normalised(log_q)
    p = np.exp(log_p) * cells
    return float(np.sum(np.where(p > 0, p * (log_p - log_q), 0.0)))


def _check_axes(model, axes):
    check_is_model(model)
    structure: Any = jax.tree.structure(model.shapes.theta)
    try:
        leaves = [np.asarray(leaf, float) for leaf in structure.flatten_up_to(axes)]
    except (TypeError, ValueError) as error:
        raise ValueError(
            "axes: expected one grid per parameter, with the prior's structure "
            f"{jax.tree.map(lambda _: '[...]', model.shapes.theta)}, got {axes!r}."
        ) from error
    if any(leaf.shape != () for leaf in jax.tree.leaves(model.shapes.theta)):
        raise ValueError("axes: grids are for scalar parameters; give each component of a vector its own prior entry.")
    for leaf in leaves:
        if leaf.ndim != 1 or len(leaf) < 2 or not np.all(np.diff(leaf) > 0):
            raise ValueError(
                f"axes: each grid must be a vector of two or more increasing values, got {leaf}. Use jnp.linspace."
            )
    return leaves, structure


def _trapezoid(axis: np.ndarray) -> np.ndarray:
    steps = np.diff(axis)
    return 0.5 * (np.pad(steps, (0, 1)) + np.pad(steps, (1, 0)))


def _cells(axes: list[np.ndarray]) -> np.ndarray:
    """The weight of each point of the grid, shape (1, n_1, .., n_P)."""
    cells: np.ndarray = np.ones(())
    for i, axis in enumerate(axes):
        cells = cells * _along(_trapezoid(axis), i, len(axes))
    return cells


def _along(vector: np.ndarray, i: int, num_axes: int) -> np.ndarray:
    """A vector along axis i + 1 of an array (T, n_1, .., n_P)."""
    return vector.reshape((1,) * (i + 1) + (-1,) + (1,) * (num_axes - i - 1))
