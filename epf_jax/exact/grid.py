"""Exact posteriors on a grid of theta: the answer that a filter is judged by.

Every oracle gives log p(data up to t | theta) for one theta; `posterior` evaluates it on a grid, adds the prior, and
integrates by the trapezoidal rule, which is spectrally accurate for a density that vanishes at the grid's ends.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from epf_jax.model import StateSpaceModel
from epf_jax.parameters import Theta

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
    log_density: Float[Array, "T ..."]
    log_evidence: Float[Array, " T"]

    @property
    def mean(self) -> Theta:
        """Posterior means, a pytree of arrays of length T."""
        return self._moments()[0]

    @property
    def sd(self) -> Theta:
        """Posterior standard deviations."""
        return self._moments()[1]

    def marginal(self) -> Theta:
        """Marginal densities, a pytree of arrays (T, n)."""
        axes = jax.tree.leaves(self.axes)
        density = jnp.exp(self.log_density)
        parts = []
        for i in range(len(axes)):
            others = [j for j in range(len(axes)) if j != i]
            weighted = density
            for j in others:
                weighted = weighted * _along(_trapezoid(axes[j]), j, len(axes))
            parts.append(jnp.sum(weighted, axis=tuple(j + 1 for j in others)))
        return jax.tree.unflatten(jax.tree.structure(self.axes), parts)

    def quantiles(self, levels: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)) -> Theta:
        """Posterior quantiles, a pytree of arrays (T, Q), by linear interpolation of the distribution function."""

        def of(axis, density):
            steps = 0.5 * (density[:, 1:] + density[:, :-1]) * jnp.diff(axis)
            cdf = jnp.concatenate([jnp.zeros((len(density), 1)), jnp.cumsum(steps, axis=1)], axis=1)
            return jax.vmap(lambda row: jnp.interp(jnp.asarray(levels), row / row[-1], axis))(cdf)

        return jax.tree.map(of, self.axes, self.marginal())

    def _moments(self):
        def moments(axis, density):
            w = density * _trapezoid(axis)
            w = w / jnp.sum(w, axis=1, keepdims=True)
            mean = w @ axis
            return mean, jnp.sqrt(jnp.sum(w * (axis - mean[:, None]) ** 2, axis=1))

        pairs = jax.tree.map(moments, self.axes, self.marginal())
        return tuple(jax.tree.map(lambda p, i=i: p[i], pairs, is_leaf=lambda n: type(n) is tuple) for i in (0, 1))


def posterior(
    model: StateSpaceModel,
    axes: Axes,
    log_likelihood: Callable[[Theta], Float[Array, " T"]],
    *,
    batch_size: int = 32,
) -> GridPosterior:
    """The posterior on a grid, from `log_likelihood(theta)`, the log-likelihood of y_1..y_t for every t.

    Args:
        model: for its prior.
        axes: the grid, a pytree with the prior's structure whose leaves are increasing values.
        log_likelihood: theta -> T cumulative log-likelihoods.
        batch_size: grid points evaluated at once.
    """
    leaves, structure = _check_axes(model, axes)
    points = jnp.stack([g.ravel() for g in jnp.meshgrid(*leaves, indexing="ij")], axis=-1)
    coordinates = model.parameters

    @jax.jit
    def evaluate(points):
        def log_joint(point):
            theta = jax.tree.unflatten(structure, list(point))
            z = coordinates.to_vector(theta)
            return coordinates.log_prior(z) - coordinates.log_jacobian(z) + log_likelihood(theta)

        return jax.lax.map(log_joint, points, batch_size=min(batch_size, len(points)))

    log_joint = evaluate(points).T.reshape(-1, *(len(leaf) for leaf in leaves))
    log_cells = sum(_along(jnp.log(_trapezoid(leaf)), i, len(leaves)) for i, leaf in enumerate(leaves))
    log_evidence = logsumexp(log_joint + log_cells, axis=tuple(range(1, log_joint.ndim)))
    shape = (-1,) + (1,) * len(leaves)
    return GridPosterior(jax.tree.unflatten(structure, leaves), log_joint - log_evidence.reshape(shape), log_evidence)


def kl(log_p: Float[Array, " n"], log_q: Float[Array, " n"], grid: Float[Array, " n"]) -> Float[Array, ""]:
    """KL(p, q) on the interval that `grid` spans, both densities normalised there first.

    The interval is part of the number: a log-polynomial of odd or wrong-signed leading order is only a density on one.
    """
    log_cells = jnp.log(_trapezoid(grid))
    log_p = log_p - logsumexp(log_p + log_cells)
    log_q = log_q - logsumexp(log_q + log_cells)
    p = jnp.exp(log_p + log_cells)
    return jnp.sum(jnp.where(p > 0, p * (log_p - log_q), 0.0))


def _check_axes(model, axes):
    structure: Any = jax.tree.structure(model.shapes.theta)
    if jax.tree.structure(axes) != structure:
        raise ValueError(f"axes: expected one grid per parameter, structured as {structure}, got {axes!r}.")
    if any(leaf.shape != () for leaf in jax.tree.leaves(model.shapes.theta)):
        raise ValueError("axes: grids are for scalar parameters; give each component of a vector its own prior entry.")
    leaves = [jnp.asarray(leaf, float) for leaf in jax.tree.leaves(axes)]
    for leaf in leaves:
        if leaf.ndim != 1 or len(leaf) < 2 or not np.all(np.diff(leaf) > 0):
            raise ValueError(f"axes: each grid must be a vector of increasing values, got {leaf}.")
    return leaves, structure


def _trapezoid(axis: Float[Array, " n"]) -> Float[Array, " n"]:
    steps = jnp.diff(axis)
    return 0.5 * (jnp.pad(steps, (0, 1)) + jnp.pad(steps, (1, 0)))


def _along(vector, i, num_axes):
    """A vector along axis i + 1 of an array (T, n_1, .., n_P)."""
    return vector.reshape((1,) * (i + 1) + (-1,) + (1,) * (num_axes - i - 1))
