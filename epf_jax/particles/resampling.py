"""Resampling schemes, and the step that applies one to a cloud of particles.

A resampler is a function `(key, log_weights) -> ancestors`: N indices from 0 to N - 1, particle i of the next
generation being a copy of particle `ancestors[i]`. Every scheme here is unbiased: the expected number of copies of i is
N w_i.
`when_ess_below` wraps a scheme and also reports whether it resampled: `(ancestors, resampled)`.

Some schemes do more than choose ancestors: they leave unequal weights, move particles, or fetch them from other
devices. Such a scheme is an object with a method `select(key, weighing, particles, place) -> Selection`; see
`gradients.py` and `devices.py`.

Multinomial, stratified and systematic resampling invert the weights' distribution function at N positions in (0, 1].
They differ in how the positions are drawn (Douc, Cappe and Moulines 2005). With one position in each of N strata, the
inverse takes O(N), without a search.
"""

import dataclasses
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from epf_jax.core.choice import where
from epf_jax.core.platforms import by_platform
from epf_jax.core.random import uniform
from epf_jax.particles.weights import Weighing, ess, uniform_log_weights

_POSITIONS = 2**24  # that float32 tells apart
Ancestors = Int[Array, " N"]
Resampler = Any
"""A function `(key, log_weights) -> ancestors`, or an object with a method `select`."""


def multinomial(key: PRNGKeyArray, log_weights: Float[Array, " N"]) -> Ancestors:
    """Ancestors drawn independently, as in Erol et al. (2013). Sorted, by exponential spacings."""
    return independent_ancestors(key, log_weights, log_weights.shape[0])


def independent_ancestors(key: PRNGKeyArray, log_weights: Float[Array, " N"], num: int) -> Int[Array, " num"]:
    """`num` ancestors drawn independently by weight, sorted."""
    spacings = jnp.cumsum(jax.random.exponential(key, (num + 1,)))
    return _inverse_cdf(log_weights, spacings[:-1] / spacings[-1])


def spread_ancestors(key: PRNGKeyArray, log_weights: Float[Array, " N"], num: int) -> Int[Array, " num"]:
    """`num` ancestors drawn by weight, one in each of `num` strata, sorted."""
    return _inverse_cdf(log_weights, (jnp.arange(num) + uniform(key, (num,))) / num)


def stratified(key: PRNGKeyArray, log_weights: Float[Array, " N"]) -> Ancestors:
    """One independent position in each of N strata (Kitagawa 1996)."""
    return _stratified(key, jax.nn.softmax(log_weights))


def systematic(key: PRNGKeyArray, log_weights: Float[Array, " N"]) -> Ancestors:
    """One position shared by all N strata (Carpenter, Clifford and Fearnhead 1999)."""
    return _systematic(key, jax.nn.softmax(log_weights))


def residual(key: PRNGKeyArray, log_weights: Float[Array, " N"]) -> Ancestors:
    """floor(N w_i) copies of each particle, the rest multinomial by the remaining weights (Liu and Chen 1998)."""
    n = log_weights.shape[0]
    expected = n * jax.nn.softmax(log_weights)
    # A whole N w_i that rounding leaves just short of itself (41 * (1 / 41) < 1) still earns all its copies.
    copies = jnp.floor(expected * (1 + 8 * jnp.finfo(expected.dtype).eps))
    certain = jnp.repeat(jnp.arange(n, dtype=jnp.int32), copies.astype(int), total_repeat_length=n)
    left_over = jnp.maximum(expected - copies, 0.0)
    rest = _inverse_cdf(jnp.log(left_over), 1.0 - uniform(key, (n,)))
    return where(jnp.arange(n) < jnp.sum(copies), certain, rest)


@dataclasses.dataclass(frozen=True)  # unlike a NamedTuple, it can be passed to jax.jit as a function
class when_ess_below:  # noqa: N801  used as a function: when_ess_below(0.5, systematic)
    """Resample with `scheme` only when the effective sample size is below `fraction` of N.

    It returns `(ancestors, resampled)`. Without resampling every particle is its own ancestor.
    `fraction` 0 never resamples, 1 resamples at every step whose weights are not all equal.
    """

    fraction: float
    scheme: Resampler = systematic

    def __post_init__(self):
        if not is_share(self.fraction):
            raise ValueError(
                "when_ess_below: fraction is a share of the number of particles, expected 0 to 1, got "
                f"{self.fraction!r}."
            )

    def __call__(self, key: PRNGKeyArray, log_weights: Float[Array, " N"]) -> tuple[Ancestors, Bool[Array, ""]]:
        """Ancestors, and whether the scheme resampled."""
        n = log_weights.shape[0]
        resampled = ess(log_weights) < self.fraction * n
        ancestors = jax.lax.cond(resampled, self.scheme, lambda *_: jnp.arange(n, dtype=jnp.int32), key, log_weights)
        return ancestors, resampled

    def select(self, key: PRNGKeyArray, weighing: Weighing, particles: Any, place: Any) -> "Selection":
        """Particles selected by the scheme if the ESS is low, otherwise unchanged."""
        n = weighing.log_weights.shape[0]
        low = weighing.ess < self.fraction * n
        if not hasattr(self.scheme, "select"):
            # Only the indices are computed under `cond`: a gather of the particles inside it would copy them all.
            drawn = partial(_ancestors, key, self.scheme, weighing)
            ancestors = jax.lax.cond(low, drawn, lambda: jnp.arange(n, dtype=jnp.int32))
            return _gather(weighing, ancestors, low, particles)
        chosen = partial(self.scheme.select, key, weighing, particles, place)
        return jax.lax.cond(low, chosen, partial(keep, weighing, particles))

    def check(self, num_particles: int) -> None:
        """Refuse a scheme that is none."""
        check_resampler(self.scheme, num_particles)

    @property
    def name(self) -> str:
        """For descriptions."""
        return f"{resampler_name(self.scheme)} when the ESS is below {self.fraction:g} N"


class Selection(NamedTuple):
    """Particles after a resampling step.

    Attributes:
        particles: the pytree of particles, rows gathered.
        log_weights: uniform if resampled, otherwise unchanged.
        ancestors: the row that each particle came from.
        resampled: whether the scheme resampled.
        ess: effective sample size before resampling.
        log_increment: log of the total weight of the selected particles, which is part of the evidence; zero for
            schemes that leave equal weights.
    """

    particles: Any
    log_weights: Float[Array, " N"]
    ancestors: Ancestors
    resampled: Bool[Array, ""]
    ess: Float[Array, ""]
    log_increment: Float[Array, ""]


def select(key: PRNGKeyArray, resample: Resampler, weighing: Weighing, particles: Any, place: Any = None) -> Selection:
    """Resample a weighed cloud of particles; a collapsed cloud (every weight zero) is kept unchanged.

    Args:
        key: a random key.
        resample: the scheme.
        weighing: the particles' weights.
        particles: a pytree of arrays with a row for each particle.
        place: the arrays that say where a particle is, for schemes that move particles; by default all.
    """
    if hasattr(resample, "select"):
        return resample.select(key, weighing, particles, particles if place is None else place)
    drawn = _ancestors(key, resample, weighing)
    ancestors, resampled = drawn if isinstance(drawn, tuple) else (drawn, True)
    return _gather(weighing, ancestors, resampled, particles)


def keep(weighing: Weighing, particles: Any) -> Selection:
    """The particles and weights, unchanged."""
    log_weights = weighing.log_weights
    everyone = jnp.arange(log_weights.shape[0], dtype=jnp.int32)
    return Selection(particles, log_weights, everyone, jnp.array(False), weighing.ess, jnp.zeros_like(weighing.ess))


def replaced(weighing: Weighing, particles: Any, chosen: Any, log_weights: Array, ancestors: Ancestors) -> Selection:
    """The chosen particles with their weights, or everything unchanged if every weight is zero."""
    none = jnp.zeros_like(weighing.ess)
    return unless(
        weighing.collapsed,
        Selection(chosen, log_weights, ancestors, jnp.array(True), weighing.ess, none),
        keep(weighing, particles),
    )


def unless(condition: Any, chosen: Selection, kept: Selection) -> Selection:
    """`chosen`, or `kept` where the condition holds."""
    return jax.tree.map(lambda new, old: where(condition, old, new), chosen, kept)


def _ancestors(key: PRNGKeyArray, resample: Resampler, weighing: Weighing) -> Any:
    """The scheme's ancestors; schemes of this module skip the normalisation of normalised weights."""
    for scheme, given_weights in ((systematic, _systematic), (stratified, _stratified)):
        if resample is scheme:
            return given_weights(key, weighing.weights)
    return resample(key, weighing.log_weights)


def _gather(weighing: Weighing, ancestors: Ancestors, resampled: Any, particles: Any) -> Selection:
    log_weights = weighing.log_weights
    n = log_weights.shape[0]
    resampled = ~weighing.collapsed if resampled is True else resampled & ~weighing.collapsed
    ancestors = where(resampled, ancestors, jnp.arange(n, dtype=jnp.int32))

    def rows(leaf):  # as leaf[ancestors], but without a look at every index for whether it counts from the end
        return leaf.at[ancestors].get(mode="clip", wrap_negative_indices=False)

    return Selection(
        particles=jax.tree.map(rows, particles),
        log_weights=where(resampled, uniform_log_weights(n), log_weights),
        ancestors=ancestors,
        resampled=resampled,
        ess=weighing.ess,
        log_increment=jnp.zeros_like(weighing.ess),
    )


def resampler_name(resample: Resampler) -> str:
    """The name of a resampler, for descriptions."""
    return getattr(resample, "name", getattr(resample, "__name__", "of your own"))


def layers(resample: Resampler) -> Iterator[Resampler]:
    """The resampler, the scheme inside it, the scheme inside that, ..."""
    while resample is not None:
        yield resample
        resample = getattr(resample, "scheme", None)


def check_resampler(resample: Any, num_particles: int) -> None:
    """Raise if it is not a resampler, before anything is traced."""
    expected = (
        "resample: expected a function (key, log_weights) -> ancestors such as epf.systematic, or "
        f"epf.when_ess_below(0.5, epf.systematic), got {resample!r}"
    )
    selects = hasattr(resample, "select") and not isinstance(resample, type)
    if isinstance(resample, type) or not (selects or callable(resample)):
        call = f" Call it: resample=epf.{resample.__name__}(...)." if hasattr(resample, "select") else ""
        raise TypeError(f"{expected}.{call}")
    if hasattr(resample, "check"):
        resample.check(num_particles)
    if selects:
        return
    warn_of_coarse_positions(num_particles)
    if resample in (multinomial, stratified, systematic, residual):
        return
    try:
        drawn = jax.eval_shape(lambda key: resample(key, uniform_log_weights(num_particles)), jax.random.key(0))
    except Exception as error:
        raise TypeError(f"{expected}, which failed with {type(error).__name__}: {error}") from error
    ancestors = drawn[0] if isinstance(drawn, tuple) else drawn
    if ancestors.shape != (num_particles,) or not jnp.issubdtype(ancestors.dtype, jnp.integer):
        raise TypeError(
            f"{expected}, which returns {ancestors.dtype} of shape {ancestors.shape}. Return one index for each of the "
            f"{num_particles} particles."
        )


def warn_of_coarse_positions(num_particles: int) -> None:
    """Warn if single precision cannot distinguish that many positions."""
    if num_particles > _POSITIONS and jnp.result_type(float) == jnp.float32:
        warnings.warn(
            f"num_particles: resampling in float32 distinguishes {_POSITIONS} positions, fewer than {num_particles} "
            'particles, so offspring come in clumps. Use jax.config.update("jax_enable_x64", True), or '
            "epf.islands(mesh, exchange_below=0) with fewer on each device.",
            RuntimeWarning,
            stacklevel=4,
        )


def is_share(fraction: Any) -> bool:
    """Whether it is a number from 0 to 1."""
    try:
        return bool(0.0 <= fraction <= 1.0)
    except TypeError:
        return False


def _stratified(key: PRNGKeyArray, w: Float[Array, " N"]) -> Ancestors:
    return _one_per_stratum(w, uniform(key, w.shape, w.dtype))


def _systematic(key: PRNGKeyArray, w: Float[Array, " N"]) -> Ancestors:
    return _one_per_stratum(w, uniform(key, (), w.dtype))


def _one_per_stratum(w: Float[Array, " N"], u: Float[Array, "*N"]) -> Ancestors:
    """The ancestors of positions (j + 1 - u_j) / N, j = 0..N-1, u one number or one each in [0, 1).

    Computed in O(N): particles up to i have m_i = floor(N c_i + u) offspring, where c_i is the cumulative weight. So
    the ancestor of offspring j is the number of particles with m_i <= j, by a histogram of m and its running sum.
    Weights are summed as whole numbers, 2^30 in all, because a running sum of a million small floats drifts. A weight
    below 2^-31 of the total counts as zero.
    """
    counts = running_sum(whole_weights(w))
    return ancestors_of_counts(offspring_up_to(counts, counts[-1], w.shape[0], u))


def whole_weights(w: Float[Array, " N"]) -> Int[Array, " N"]:
    """Normalised weights as whole numbers, 2^30 (in double precision 2^61) in all."""
    whole, bits = (jnp.int64, 61) if w.dtype == jnp.float64 else (jnp.int32, 30)
    # Rounded to nearest: cut off, small weights would lose a larger share than large ones. Half the range is left free:
    # rounding of the total must not make the last sums overflow.
    return (w * 2.0**bits + 0.5).astype(whole)


def offspring_up_to(counts: Int[Array, " N"], total: Int[Array, ""], n: int, u: Float[Array, "*N"]) -> Int[Array, " N"]:
    """How many of n offspring the particles up to each one have, from running sums of whole weights."""
    dtype = u.dtype
    reached = counts.astype(dtype) / total.astype(dtype) * n
    stratum = jnp.floor(reached)
    shift = u if u.ndim == 0 else u[jnp.minimum(stratum.astype(jnp.int32), n - 1)]
    return jnp.minimum(stratum + jnp.floor(reached - stratum + shift), n).astype(jnp.int32)


# `kernels.evaluation` knows the next two by their names, and has ways of its own for a filter that fits one block.


@jax.jit
def ancestors_of_counts(counts: Int[Array, " N"]) -> Ancestors:
    """The ancestor of each offspring j: the number of particles with counts <= j (offspring up to that particle).

    By a histogram of the counts and its running sum; on a GPU by bisection, in one kernel.
    """
    n = counts.shape[0]

    def by_histogram(counts):
        histogram = jnp.zeros(n, jnp.int32).at[counts].add(1, mode="drop", wrap_negative_indices=False)
        return running_sum(histogram)

    ancestors = by_platform(counts, default=by_histogram, gpu="ancestors_by_bisection")
    return jnp.minimum(ancestors, n - 1)


_UNROLL = 8  # additions in a turn of the loop


@jax.jit
def running_sum(x: Array) -> Array:
    """Cumulative sum of whole numbers.

    On a CPU this is one loop over the elements, which is faster than XLA's parallel scan. The array is padded to whole
    turns of the loop, because a second loop for the rest would take longer. On a GPU it is a kernel for each block.
    """

    def one_by_one(x):
        zero = jnp.zeros((), x.dtype)
        whole_turns = jax.lax.pad(x, zero, [(0, -len(x) % _UNROLL, 0)])
        return jax.lax.scan(lambda total, x: (total + x,) * 2, zero, whole_turns, unroll=_UNROLL)[1][: len(x)]

    return by_platform(x, cpu=one_by_one, default=jnp.cumsum, gpu="running_sum_by_blocks")


def _inverse_cdf(log_weights: Float[Array, " N"], positions: Float[Array, " num"]) -> Int[Array, " num"]:
    """The first particle whose cumulative weight reaches each position in (0, 1].

    Positions are scaled by the last cumulative weight and compared from the left, so that rounding can never select a
    particle of zero weight.
    """
    cumulative = jnp.cumsum(jnp.exp(log_weights - jnp.max(log_weights)))
    ancestors = jnp.searchsorted(cumulative, positions * cumulative[-1], side="left")
    return jnp.minimum(ancestors, log_weights.shape[0] - 1).astype(jnp.int32)
