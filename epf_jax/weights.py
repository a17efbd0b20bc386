"""Particle weights, in logs until the last line: normalisation, effective sample size, moments and quantiles."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from epf_jax.gaussian import cholesky


class Weighing(NamedTuple):
    """The outcome of multiplying weights by new factors.

    Attributes:
        log_weights: normalised; the old ones where every new weight is zero.
        weights: their exponentials.
        log_increment: log of the weighted mean of the factors, the evidence that they add.
        num_bad: how many factors were NaN or +inf, and were counted as zero.
        collapsed: whether every weight was zero.
        ess: effective sample size of the new weights.
    """

    log_weights: Float[Array, " N"]
    weights: Float[Array, " N"]
    log_increment: Float[Array, ""]
    num_bad: Int[Array, ""]
    collapsed: Bool[Array, ""]
    ess: Float[Array, ""]


def uniform_log_weights(num: int) -> Float[Array, " N"]:
    """log(1/N), N times."""
    return jnp.full(num, -math.log(num), float)


def reweight(log_weights: Float[Array, " N"], log_factors: Float[Array, " N"]) -> Weighing:
    """Multiply normalised weights by factors and normalise again.

    NaN and +inf factors count as zero, and are counted. When every weight is zero the old weights stand, so that the
    particles survive; the evidence of such a step is honestly zero (log_increment = -inf).
    """
    bad = jnp.isnan(log_factors) | (log_factors == jnp.inf)
    unnormalised = log_weights + jnp.where(bad, -jnp.inf, log_factors)
    highest = jnp.max(unnormalised)
    collapsed = highest == -jnp.inf
    shift = jax.lax.stop_gradient(jnp.where(collapsed, 0.0, highest))
    safe = jnp.where(collapsed, log_weights, unnormalised)
    w = jnp.exp(safe - shift)
    total = jnp.sum(w)
    log_sum = shift + jnp.log(total)
    return Weighing(
        log_weights=safe - log_sum,
        weights=w / total,
        log_increment=jnp.where(collapsed, -jnp.inf, log_sum),
        num_bad=count(bad),
        collapsed=collapsed,
        ess=total**2 / jnp.sum(w**2),
    )


def ess(log_weights: Float[Array, " N"]) -> Float[Array, ""]:
    """Effective sample size 1 / sum w^2 of normalised or unnormalised weights."""
    w = jnp.exp(log_weights - jax.lax.stop_gradient(jnp.max(log_weights)))
    return jnp.sum(w) ** 2 / jnp.sum(w**2)


def count(which: Bool[Array, " N"]) -> Int[Array, ""]:
    """How many are true, summed as floats: XLA's sum of whole numbers is several times slower on a CPU."""
    return jnp.sum(jnp.where(which, 1.0, 0.0)).astype(int)


def _weights(log_weights: Float[Array, " N"]) -> Float[Array, " N"]:
    """The weights themselves; what rounding of the normalised logarithms left of their sum is divided out."""
    w = jnp.exp(log_weights)
    return w / jnp.sum(w)


def mean_and_sd(values: Float[Array, "N *d"], log_weights: Float[Array, " N"]) -> tuple[Array, Array]:
    """Weighted mean and standard deviation over the particles."""
    w = _weights(log_weights)
    values = counted(values.astype(w.dtype), w)
    mean = weighted_sum(w, values)
    return mean, _sqrt(weighted_sum(w, jnp.square(values - mean)))


_MOST_WRITTEN_OUT = 32  # columns


def weighted_sum(w: Float[Array, " N"], values: Float[Array, "N *d"]) -> Float[Array, "*d"]:
    """The values' sum over the particles, by weight, column by column.

    XLA adds up a product of two vectors in many parts, but that of a vector and a matrix in one on a CPU, where a sum
    of a hundred thousand float32 loses three digits and more.
    """
    columns = values.reshape(values.shape[0], -1)
    num = columns.shape[1]
    if num > _MOST_WRITTEN_OUT:
        return jax.lax.map(lambda column: w @ column, columns.T).reshape(values.shape[1:])
    return jnp.stack([w @ columns[:, i] for i in range(num)]).reshape(values.shape[1:])


def quantiles(
    values: Float[Array, "N *d"], log_weights: Float[Array, " N"], levels: Float[Array, " Q"]
) -> Float[Array, "*d Q"]:
    """Weighted quantiles over the particles: the smallest value whose cumulative weight reaches each level."""
    if len(levels) == 0:
        return jnp.zeros((*values.shape[1:], 0), log_weights.dtype)
    w = _weights(log_weights)
    flat = values.astype(w.dtype).reshape(values.shape[0], -1)
    found = jax.vmap(_quantiles, in_axes=(1, None, None))(flat, w, levels)
    return found.reshape(*values.shape[1:], len(levels))


@jax.custom_jvp
def _quantiles(v: Float[Array, " N"], w: Float[Array, " N"], levels: Float[Array, " Q"]) -> Float[Array, " Q"]:
    """By bisection of the distribution function between the extreme values, to 2^-24 of their range.

    Each halving is one pass over the particles, and XLA's sort on a CPU is slow.
    """

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        reached = jnp.sum(jnp.where(v <= middle[:, None], w, 0.0), axis=1) >= levels
        return jnp.where(reached, low, middle), jnp.where(reached, middle, high)

    spread = jnp.zeros_like(levels)
    lowest, highest = jnp.min(jnp.where(w > 0, v, jnp.inf)), jnp.max(jnp.where(w > 0, v, -jnp.inf))
    _, high = jax.lax.fori_loop(0, 24, halve, (spread + lowest, spread + highest))
    return high


@_quantiles.defjvp
def _quantiles_jvp(primals, tangents):
    r"""The derivative of the q that solves F(q) = level: :math:`dq = -dF(q) / f(q)`.

    The density f, and the share of each particle's move in dF, are read through a Gaussian kernel (Silverman's width).
    """
    (v, w, levels), (dv, dw, _) = primals, tangents
    q = _quantiles(v, w, levels)
    v = counted(v, w)
    sd = _sqrt(w @ jnp.square(v - w @ v))
    width = jnp.where(sd > 0, 1.06 * sd * jnp.sum(w**2) ** 0.2, 1.0)
    kernel = w * jnp.exp(-0.5 * jnp.square((v - q[:, None]) / width)) / (width * math.sqrt(2 * math.pi))
    below = jnp.where(v <= q[:, None], 1.0, 0.0)
    density = jnp.sum(kernel, axis=1)
    return q, (kernel @ counted(dv, w) - below @ dw) / jnp.where(density > 0, density, 1.0)


class Population(NamedTuple):
    """Location and scale of the particles' theta in unconstrained coordinates, to which samplers are tuned."""

    mean: Float[Array, " P"]
    scale_tril: Float[Array, "P P"]


def population(z: Float[Array, "N P"], log_weights: Float[Array, " N"], floor: Float[Array, " P"]) -> Population:
    """Weighted mean and Cholesky factor of the covariance; `floor` is the least standard deviation allowed.

    Without a floor, a population that collapsed to one point would propose no move, and stay there for ever.
    """
    w = _weights(log_weights)
    z = counted(z, w)
    mean = weighted_sum(w, z)
    centred = z - mean
    # Sums of products, not a matrix product: with this many rows and so few columns XLA's is slow on a CPU.
    covariance = jnp.sum(w[:, None, None] * centred[:, :, None] * centred[:, None, :], axis=0) + jnp.diag(floor**2)
    return Population(mean, cholesky(covariance))


def where_rows(flags: Bool[Array, " N"], new: Float[Array, "N *d"], old: Float[Array, "N *d"]) -> Float[Array, "N *d"]:
    """The new rows where the flags are true, the old ones elsewhere."""
    return jnp.where(flags.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def counted(values: Float[Array, "N *d"], w: Float[Array, " N"]) -> Float[Array, "N *d"]:
    """Zeros where the weight is zero: such a particle may be infinite, and must not count."""
    return jnp.where((w > 0).reshape((-1,) + (1,) * (values.ndim - 1)), values, 0.0)


def _sqrt(variance):
    """Square root with a zero, not infinite, slope at 0."""
    positive = variance > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)
