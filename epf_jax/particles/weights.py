"""Particle weights, kept in logs: normalisation, effective sample size, moments."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from epf_jax.core.choice import where
from epf_jax.core.gaussian import cholesky, diagonal_matrix, root


class Weighing(NamedTuple):
    """Weights after multiplication by new factors.

    Attributes:
        log_weights: normalised; the old ones if every new weight is zero.
        weights: their exponentials.
        log_increment: log of the weighted mean of the factors, the step's log-evidence.
        num_bad: how many factors were NaN or +inf, which count as zero.
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

    NaN and +inf factors count as zero; `num_bad` is their number. If every weight is zero, the old weights stay, so
    that the particles survive; the evidence of such a step is zero (log_increment = -inf).
    """
    good = log_factors < jnp.inf
    unnormalised = where(good, log_weights + log_factors, -jnp.inf)
    highest = jnp.max(unnormalised)
    collapsed = highest == -jnp.inf
    shift = jax.lax.stop_gradient(where(collapsed, 0.0, highest))
    safe = where(collapsed, log_weights, unnormalised)
    w = jnp.exp(safe - shift)
    total, squares, num_good = sums(w, _squared(w), good)
    log_sum = shift + jnp.log(total)
    return Weighing(
        log_weights=safe - log_sum,
        weights=w / total,
        log_increment=where(collapsed, -jnp.inf, log_sum),
        num_bad=(len(log_weights) - num_good).astype(int),
        collapsed=collapsed,
        ess=total**2 / squares,
    )


def ess(log_weights: Float[Array, " N"]) -> Float[Array, ""]:
    """Effective sample size 1 / sum w^2 of normalised or unnormalised weights."""
    w = jnp.exp(log_weights - jax.lax.stop_gradient(jnp.max(log_weights)))
    return jnp.sum(w) ** 2 / jnp.sum(_squared(w))


def _squared(w: Float[Array, " N"]) -> Float[Array, " N"]:
    """The squares of weights of at most 1.

    XLA would turn exp(a) exp(a) into exp(2a), a second exponential. The choice, which never takes its other branch,
    hides the product. (With `minimum` the largest weight, which is 1, would have half its slope.)
    """
    return w * where(w <= 1.0, w, 1.0)


def sums(*rows: Array) -> tuple[Float[Array, ""], ...]:
    """The sum of each row, all in one small program: XLA would compile and start two or three for every single sum.

    Truth values are counted in floats, because XLA's sum of whole numbers is several times slower on a CPU.
    """
    dtype = jnp.result_type(float, *rows)
    return tuple(jnp.unstack(row_sums(jnp.stack([row.astype(dtype) for row in rows]))))


def row_sums(rows: Float[Array, "*d N"]) -> Float[Array, "*d"]:
    """The sum of each row, in many parts.

    On a CPU XLA sums a vector, or several rows, in many parts. But it sums a matrix of one row, or a matrix product, in
    few parts, and a sum of a hundred thousand float32 then loses three digits or more.
    """
    *shape, num = rows.shape
    return jnp.sum(rows.reshape(num)).reshape(shape) if math.prod(shape) == 1 else jnp.sum(rows, axis=-1)


def normalised(log_weights: Float[Array, " N"]) -> Float[Array, " N"]:
    """The weights, divided by their sum, which differs from one by rounding of the logarithms."""
    w = jnp.exp(log_weights)
    return w / jnp.sum(w)


def mean_and_sd(values: Float[Array, "N *d"], log_weights: Float[Array, " N"]) -> tuple[Array, Array]:
    """Weighted mean and standard deviation over the particles."""
    moments = row_moments(as_rows(values), normalised(log_weights))
    mean, sd = (found.reshape(values.shape[1:]) for found in moments)
    return mean, sd


def as_rows(values: Float[Array, "N *d"]) -> Float[Array, "K N"]:
    """A row for each number of a particle, with one column for each particle."""
    return values[None] if values.ndim == 1 else values.reshape(values.shape[0], -1).T


def row_moments(rows: Float[Array, "K N"], w: Float[Array, " N"]) -> tuple[Array, Array]:
    """Weighted mean and standard deviation of each row."""
    rows = counted(rows.astype(w.dtype), w)
    mean = row_sums(w * rows)
    return mean, root(row_sums(w * jnp.square(rows - mean[:, None])))


class Population(NamedTuple):
    """Location and scale of the particles' theta in unconstrained coordinates, for samplers."""

    mean: Float[Array, " P"]
    scale_tril: Float[Array, "P P"]

    @property
    def sd(self) -> Float[Array, " P"]:
        """The standard deviation of each coordinate."""
        return jnp.sqrt(jnp.sum(self.scale_tril**2, axis=1))


def population(z: Float[Array, "N P"], log_weights: Float[Array, " N"], floor: Float[Array, " P"]) -> Population:
    """Weighted mean and Cholesky factor of the covariance; `floor` is the smallest standard deviation.

    Without a floor, a population that collapsed to one point would propose no moves, and stay there for ever.
    """
    w = normalised(log_weights)
    rows = counted(as_rows(z), w)
    mean = row_sums(w * rows)
    centred = rows - mean[:, None]
    # Sums of products, not a matrix product: of so few and so long rows XLA's is slow on a CPU.
    covariance = row_sums(w * centred[:, None] * centred) + diagonal_matrix(floor**2)
    return Population(mean, cholesky(covariance))


def where_rows(flags: Bool[Array, " N"], new: Float[Array, "N *d"], old: Float[Array, "N *d"]) -> Float[Array, "N *d"]:
    """The new rows where the flags are true, the old ones elsewhere."""
    return where(flags.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def counted(rows: Float[Array, "*d N"], w: Float[Array, " N"]) -> Float[Array, "*d N"]:
    """The values, with zeros where the weight is zero, because such particles may be infinite."""
    return where(w > 0, rows, 0.0)
