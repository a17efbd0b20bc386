r"""Sequential quasi-Monte Carlo (Gerber and Chopin 2015): ordered particles, and draws spread evenly over them.

A step of a particle filter is an integral over the ancestor's place and over the noise. Independent draws leave gaps
and clusters in that product space. Two wrappers fill it evenly:

- `in_order` resamples the particles in the order of their states, so that row i of N is at the share i/N of the cloud.
  States of several dimensions are ordered along Hilbert's curve, which keeps neighbours together.
- `quasi_random` draws the noise of row i at the point :math:`i\,\alpha + V \pmod 1`, a Kronecker sequence with one
  random shift V a step. Together with i/N these points are a lattice, and each of them is uniform by itself: the
  evidence stays unbiased.

With both, the log-evidence of N particles varies as little as that of many times N independent ones. In filters that
learn theta with their particles, theta stays random, and there is little to gain. Use them where theta is known to the
particles; `node_filter` does so by default.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, PRNGKeyArray

from epf_jax.core.checks import brief
from epf_jax.core.choice import where
from epf_jax.core.dependence import abstractly
from epf_jax.core.random import normal_at
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.particles.proposals import Proposal, check_proposal
from epf_jax.particles.resampling import (
    Resampler,
    Selection,
    check_resampler,
    layers,
    resampler_name,
    select,
    systematic,
    when_ess_below,
)
from epf_jax.particles.weights import Weighing, mean_and_sd

_BITS = 30  # of a place on Hilbert's curve, shared by the dimensions
_FEW = 64  # rows that are put in order by comparing all pairs
MOST_DIMENSIONS = 6  # beyond, five bits a dimension are too few to order by


@dataclasses.dataclass(frozen=True)
class in_order:  # noqa: N801  used as a function
    """Resample with `scheme` in the order of the states, along Hilbert's curve if they have several dimensions.

    Runs with the same random numbers and slightly different parameters then keep nearly the same particles, so that
    differences of their log-evidences are far more precise than each (Malik and Pitt 2011).
    """

    scheme: Resampler = systematic

    def select(self, key: PRNGKeyArray, weighing: Weighing, particles: Any, place: Any) -> Selection:
        """What the scheme selects of the sorted particles."""
        order = order_of(jax.tree.leaves(place)[0], weighing.log_weights)
        log_weights, weights = weighing.log_weights[order], weighing.weights[order]
        particles, place = jax.tree.map(lambda leaf: leaf[order], (particles, place))
        chosen = select(key, self.scheme, weighing._replace(log_weights=log_weights, weights=weights), particles, place)
        return chosen._replace(ancestors=order[chosen.ancestors])

    def check(self, num_particles: int) -> None:
        """Refuse a scheme that is none."""
        check_resampler(self.scheme, num_particles)

    @property
    def name(self) -> str:
        """For descriptions."""
        return f"{resampler_name(self.scheme)} in order"


def order_of(x: Float[Array, "N *x"], log_weights: Float[Array, " N"]) -> Int[Array, " N"]:
    """The order of the rows of x, along Hilbert's curve if they have several dimensions."""
    x = jax.lax.stop_gradient(x).reshape(x.shape[0], -1)
    if x.shape[1] > MOST_DIMENSIONS:
        raise ValueError(f"in_order: expected states of at most {MOST_DIMENSIONS} dimensions, got {x.shape[1]}.")
    if x.shape[1] == 1:
        return _order_of_few(x[:, 0]) if len(x) <= _FEW else jnp.argsort(x[:, 0])
    return jnp.argsort(along_hilberts_curve(_to_unit_cube(x, log_weights)))


def _order_of_few(place: Float[Array, " N"]) -> Int[Array, " N"]:
    """`jnp.argsort` by counting how many come before each, which is faster than XLA's sort for many short rows."""
    row, place = jnp.arange(len(place)), where(jnp.isnan(place), jnp.inf, place)
    earlier = (place < place[:, None]) | ((place == place[:, None]) & (row < row[:, None]))
    rank = jnp.sum(earlier, axis=1)
    return jnp.sum(where(rank == row[:, None], row, 0), axis=1)


@waits_for_inputs
def quasi_random(proposal: Proposal) -> Proposal:
    """The same proposal with draws spread evenly over the particles, which `in_order` resampling keeps in order.

    The noise of row i is the i-th point of a lattice. It is spread evenly over the cloud only if the rows are in the
    order of their states. The distributions of x_0 and x_t must be Gaussian, or have an inverse distribution function
    (`icdf`) for each component.
    """
    if not isinstance(proposal, Proposal):
        raise TypeError(f"proposal: expected epf.bootstrap() or another proposal, got {brief(proposal)}.")
    if is_quasi_random(proposal):
        return proposal
    return proposal._replace(draw=sample_evenly, name=f"quasi-random {proposal.name}")


def is_quasi_random(proposal: Proposal) -> bool:
    """Whether the proposal's draws are spread evenly."""
    return proposal.draw is sample_evenly


def keeps_order(resample: Resampler) -> bool:
    """Whether every step leaves the particles in order, whether or not it resamples."""
    for layer in layers(resample):
        if isinstance(layer, in_order):
            return True
        if isinstance(layer, when_ess_below):
            return False
    return False


def check_kept_in_order(proposal: Proposal, resample: Resampler) -> None:
    """Raise for evenly spread draws over particles that are not in order."""
    if is_quasi_random(proposal) and not keeps_order(resample):
        raise ValueError(
            f"resample: {proposal.name} draws are spread over particles in the order of their states, which "
            f"{resampler_name(resample)} does not keep. Use epf.in_order(), or epf.in_order(epf.when_ess_below(0.5))."
        )


def quasi_random_where_possible(proposal: Proposal, model: StateSpaceModel) -> Proposal:
    """`quasi_random(proposal)` if the model's states can be ordered and drawn so, otherwise `proposal`."""
    try:
        if math.prod(model.shapes.x.shape) <= MOST_DIMENSIONS:
            check_proposal(quasi_random(proposal), model)
            return quasi_random(proposal)
    except NotInvertibleError:
        pass
    return proposal


class NotInvertibleError(ValueError):
    """A distribution has no inverse distribution function, so its draws cannot be spread evenly."""


def sample_evenly(key: PRNGKeyArray, distribution: Callable, num: int, *batched: Any) -> Array:
    """One draw per particle, like `densities.sample_each`, at the points of one shifted Kronecker sequence."""
    one = abstractly(distribution, *jax.tree.map(lambda leaf: leaf[0], batched))
    if not isinstance(one, dist.Distribution):
        raise NotInvertibleError(f"quasi_random: {type(one).__name__} is not a numpyro distribution.")
    shape = (*one.batch_shape, *one.event_shape)
    u = kronecker(key, num, math.prod(shape)).reshape(num, *shape)
    return jax.vmap(lambda u, row: quantile(distribution(*row), u))(u, batched)


def quantile(d: Any, u: Array) -> Array:
    """The draw from d that independent uniform numbers u give, one for each component."""
    if isinstance(d, (dist.Independent, dist.ExpandedDistribution)):
        return quantile(d.base_dist, u)
    if isinstance(d, dist.MultivariateNormal):
        return d.loc + jnp.einsum("...ij,...j->...i", d.scale_tril, normal_at(2.0 * u - 1.0))
    if type(d) is dist.Normal:
        return d.loc + d.scale * normal_at(2.0 * u - 1.0)
    try:
        if not d.event_dim and not d.support.is_discrete:
            return d.icdf(u)
    except (NotImplementedError, AttributeError, ImportError):  # a Gamma's takes tensorflow_probability
        pass
    raise NotInvertibleError(
        f"quasi_random: no inverse distribution function is known of {type(d).__name__}, which states are drawn from. "
        "Use the proposal without quasi_random."
    )


def kronecker(key: PRNGKeyArray, num: int, dim: int) -> Float[Array, "num dim"]:
    r"""Points :math:`i\,\alpha + V \pmod 1`, with the generalised golden ratios as alpha; never 0 or 1.

    Computed in whole numbers modulo 2^32, so that large i lose no digits.
    """
    steps = np.round(2.0**32 * _golden_ratios(dim)).astype(np.uint32)
    words = jnp.arange(num, dtype=jnp.uint32)[:, None] * steps + jax.random.bits(key, (dim,), jnp.uint32)
    digits = min(jnp.finfo(jnp.result_type(float)).nmant, 32)  # as many as leave room for one half more
    return ((words >> (32 - digits)).astype(float) + 0.5) * 2.0**-digits


@cache
def lattice(num: int, dim: int) -> np.ndarray:
    """`num` points that fill the unit cube evenly, so that each coordinate by itself is an even grid.

    The points i g / num for i = 0, 1, ..., modulo 1. g is chosen so that the longest wave that the points do not
    distinguish from a constant (Sloan and Joe 1994, chapter 3) is short. They then integrate a smooth function that
    vanishes at the cube's sides as well as a grid of as many points.
    """
    found = max(_generators(num, dim), key=lambda generator: _shortest_dual(num, generator))
    return (np.arange(num)[:, None] * found % num + 0.5) / num


_MOST_PRODUCTS = 5_000_000  # that the search for a lattice takes


def _generators(num: int, dim: int) -> list[np.ndarray]:
    """Vectors (1, a, a^2, ...) modulo num; in two dimensions only with a / num near the golden ratio."""
    coprime = np.array([a for a in range(1, num + 1) if math.gcd(a, num) == 1])
    most = min(max(_MOST_PRODUCTS // len(_waves(num, dim)), 8), 256)
    if dim == 2:
        chosen = coprime[np.argsort(np.abs(coprime - num * _golden_ratios(1)[0]))[:most]]
    else:
        chosen = coprime[np.unique(np.linspace(0, len(coprime) - 1, most).astype(int))]
    return [np.array([pow(int(a), k, num) for k in range(dim)]) for a in chosen]


@cache
def _waves(num: int, dim: int) -> np.ndarray:
    """Wave numbers as long as the shortest dual vector of any lattice of so many points can be, shortest first."""
    longest = math.ceil(math.sqrt(2.0) * num ** (1.0 / dim))
    each = np.meshgrid(*[np.arange(-longest, longest + 1)] * dim, indexing="ij")
    waves = np.stack(each, axis=-1).reshape(-1, dim)
    waves = waves[len(waves) // 2 + 1 :]  # of h and -h one, and not 0
    return waves[np.argsort(np.sum(waves**2, axis=1), kind="stable")]


def _shortest_dual(num: int, generator: np.ndarray) -> float:
    """The length of the shortest wave number h with h . g = 0 modulo num, which every point has in the same phase."""
    waves = _waves(num, len(generator))
    return float(np.linalg.norm(waves[np.argmax(waves @ generator % num == 0)]))


def _golden_ratios(dim: int) -> np.ndarray:
    """The generalised golden ratios, powers of 1/x with x^(dim + 1) = x + 1."""
    x = 2.0
    for _ in range(60):
        x = (1.0 + x) ** (1.0 / (dim + 1))
    return x ** -np.arange(1.0, dim + 1.0)


def along_hilberts_curve(u: Float[Array, "N d"]) -> Int[Array, " N"]:
    """The place of every point along Hilbert's curve through the unit cube (Skilling 2004)."""
    dim = u.shape[1]
    bits = _BITS // dim
    x = [jnp.clip((u[:, k] * 2**bits).astype(jnp.uint32), 0, 2**bits - 1) for k in range(dim)]
    for bit in reversed(range(1, bits)):  # undo the turns of the curve, from the largest cube to the smallest
        low = jnp.uint32((1 << bit) - 1)
        for k in range(dim):
            flip = (x[k] >> bit) & 1 == 1
            swap = where(flip, 0, (x[0] ^ x[k]) & low)
            x[0] = where(flip, x[0] ^ low, x[0] ^ swap)
            x[k] = x[k] ^ swap if k else x[k]
    for k in range(1, dim):  # Gray code
        x[k] = x[k] ^ x[k - 1]
    parity = jnp.zeros_like(x[0])
    for bit in reversed(range(1, bits)):
        parity = where((x[-1] >> bit) & 1 == 1, parity ^ jnp.uint32((1 << bit) - 1), parity)
    place = jnp.zeros_like(x[0])
    for bit in reversed(range(bits)):
        for k in range(dim):
            place = (place << 1) | (((x[k] ^ parity) >> bit) & 1)
    return place.astype(jnp.int32)


def _to_unit_cube(x: Float[Array, "N d"], log_weights: Float[Array, " N"]) -> Float[Array, "N d"]:
    """Map every component to (0, 1) by a logistic curve with the cloud's location and width."""
    mean, sd = mean_and_sd(x, log_weights)
    return jax.nn.sigmoid((x - mean) / where(sd > 0, sd, 1.0))
