"""Densities with missing components, and draws of many distributions at once."""

import copy
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions.batch_util import promote_batch_shape

from epf_jax.core.choice import where
from epf_jax.core.gammas import with_own_gammas
from epf_jax.core.gaussian import (
    base_distribution,
    is_gaussian,
    masked_normal_log_prob,
    moments,
    noisy_part,
    normal_log_prob,
    without_noise,
)
from epf_jax.core.no_gradient import guarded
from epf_jax.core.random import normal, threefry


def log_prob(d: Any, value: Array) -> Float[Array, ""]:
    """Log density of one value, summed over the components of a distribution with a batch shape.

    For a Gaussian vector it is the density of the components that have noise, if the others (such as the lags of an
    AR(p)) equal their means up to rounding; otherwise zero.
    """
    base = base_distribution(d)
    if type(base) is dist.Normal and jnp.size(value) > 1:
        fixed = jnp.broadcast_to(base.scale == 0, jnp.shape(value))
        components = dist.Normal(base.loc, where(fixed, 1.0, base.scale)).log_prob(value)
        return jnp.sum(where(fixed, _log_is(value, base.loc), components))
    if _is_one_mvn(base) and is_gaussian(d):
        fixed = without_noise(base.scale_tril)
        at_means = where(fixed, _log_is(value, base.loc) + 0.5 * jnp.log(2 * jnp.pi), 0.0)
        residual = where(fixed, 0.0, value - base.loc)
        return normal_log_prob(residual, noisy_part(base.scale_tril)) + jnp.sum(at_means)
    if type(base) is dist.Normal and d is base:
        return log_of_normal(value - d.loc, d.scale)
    return _summed(d.log_prob(value))


def log_of_normal(residual: Array, scale: Any) -> Float[Array, "..."]:
    """Numpyro's, in half the equations."""
    xp: Any = jnp if isinstance(scale, jax.core.Tracer) else np
    return -0.5 * jnp.square(residual / scale) - (xp.log(scale) + 0.5 * math.log(2.0 * math.pi))


def _summed(log_probs: Array) -> Float[Array, ""]:
    return log_probs if jnp.ndim(log_probs) == 0 else jnp.sum(log_probs)


def _log_is(value: Array, mean: Array) -> Array:
    """Zero where the value equals the mean to half of the digits, otherwise -inf."""
    eps = jnp.finfo(jnp.result_type(value, mean)).eps
    size = jnp.abs(value) + jnp.abs(mean)
    rounding = jnp.sqrt(eps) * size + 8 * eps * jnp.max(size)  # what is next to zero may be a difference of larger ones
    return where(jnp.abs(value - mean) <= rounding, 0.0, -jnp.inf)


def observed_log_prob(d: Any, y: Array) -> Float[Array, ""]:
    """Log density of the observed components of y; NaN components are marginalised exactly.

    If components are independent, missing ones are dropped. A MultivariateNormal uses the marginal of the rest. Other
    joint distributions can only be missing as a whole: see `can_be_partly_missing`.
    """
    if not jnp.issubdtype(jnp.result_type(y), jnp.floating):
        return log_prob(d, y)
    missing = jnp.isnan(y)
    if _is_one_mvn(d):
        mean, scale_tril = moments(d)
        return masked_normal_log_prob(y, mean, scale_tril)
    components = components_of(d)
    if type(components) is dist.Normal and components.batch_shape == jnp.shape(y):
        residual = where(missing, 0.0, y) - components.loc
        return _summed(where(missing, 0.0, log_of_normal(residual, components.scale)))
    filled = where(missing, _feasible(components, y), y)
    if is_discrete(components):
        filled = filled.astype(int)
    log_probs = components.log_prob(filled)
    if jnp.shape(log_probs) == jnp.shape(y):
        return jnp.sum(where(missing, 0.0, log_probs))
    return where(jnp.all(missing), 0.0, where(jnp.any(missing), jnp.nan, jnp.sum(log_probs)))


def can_be_partly_missing(d: Any, y: jax.ShapeDtypeStruct) -> bool:
    """Whether some components of y may be NaN while others are observed."""
    if y.shape == () or _is_one_mvn(d):
        return True
    value = jnp.zeros(y.shape, y.dtype)
    return jax.eval_shape(components_of(d).log_prob, value).shape == y.shape


def marginal_cdf(d: Any, y: Array) -> tuple[Array, Array] | None:
    """P(Y < y) and P(Y <= y) for each component, or None if the distribution has no such function.

    The two differ only for counts. NaN components get an arbitrary number.
    """
    if _is_one_mvn(d):
        mean, scale_tril = moments(d)
        d = dist.Normal(mean, jnp.sqrt(jnp.sum(scale_tril**2, axis=-1)))
    components = components_of(d)
    y = jnp.asarray(y, jnp.promote_types(jnp.result_type(y), jnp.result_type(float)))
    filled = where(jnp.isnan(y), _feasible(components, y), y)
    try:
        upto = components.cdf(filled)
    except (AttributeError, NotImplementedError):  # a stand-in, or a numpyro family without one
        return None
    if jnp.shape(upto) != jnp.shape(y):
        return None
    if not is_discrete(components):
        return upto, upto
    return upto - jnp.exp(components.log_prob(filled.astype(int))), upto


def _is_one_mvn(d: Any) -> bool:
    return isinstance(d, dist.MultivariateNormal) and d.batch_shape == ()


def is_discrete(d: Any) -> bool:
    """Whether its values are whole numbers."""
    return bool(getattr(getattr(components_of(d), "support", None), "is_discrete", False))


def is_count(d: Any) -> bool:
    """Whether each component is a whole number with a lower bound."""
    support = getattr(components_of(d), "support", None)
    return is_discrete(d) and getattr(support, "event_dim", 0) == 0 and hasattr(support, "lower_bound")


def support_of_each(d: Any) -> Any:
    """The support of every component, if it does not depend on theta, x and u; otherwise None.

    None also for real numbers, and for joint supports: shares that sum to one do so only to rounding.
    """
    support: Any = getattr(components_of(d), "support", None)
    anywhere = support is None or isinstance(support, type(dist.constraints.real))
    if anywhere or support.event_dim > 0:
        return None
    return None if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(support)) else support


def counted(d: Any, k: Array) -> Array:
    """The k-th possible value of each component of a count, or the last."""
    support = components_of(d).support
    number = support.lower_bound + k
    return jnp.broadcast_to(jnp.minimum(number, getattr(support, "upper_bound", number)), d.batch_shape + d.event_shape)


def components_of(d: Any) -> Any:
    """The distribution of the components, if they are independent."""
    while isinstance(d, dist.Independent):
        d = d.base_dist
    return d


def _feasible(d, y):
    """A value inside the support that replaces a missing y, so that no NaN enters the density or its gradient."""
    support = getattr(d, "support", None)
    return support.feasible_like(y) if support is not None else jnp.zeros_like(y)


def sample_each(key: PRNGKeyArray, distribution: Callable, num: int, *batched: Any) -> Array:
    """One draw per particle from `distribution(*row)` for each of the `num` rows of the batched arguments.

    One batched draw for all particles where numpyro can promote the distribution's batch shape; a key per particle
    for the rest, such as stand-ins that are not numpyro's. (On a CPU, 1000 draws at once take half to a ninth of the
    time of as many keys for LogNormal, StudentT, Beta, Poisson and Categorical.) A draw that has no gradient with
    respect to the distribution's numbers (a count, a mixture's component) refuses to be differentiated.
    """
    many, shape = _of_rows(distribution, *batched) if jax.tree.leaves(batched) else (None, ())

    def one(key):
        return distribution(*jax.tree.map(lambda a: a[0], batched)).sample(key)

    if many is not None:
        try:
            many = _promoted(many)
            fit, drawn = _fitting(key, many.sample)
        except (ValueError, TypeError, AttributeError, NotImplementedError):  # numpyro cannot promote this family
            pass
        else:
            whole = drawn.shape == many.batch_shape + many.event_shape == (num, *shape) and _is_promoted_whole(many)
            if whole and (not _parts(many) or drawn.dtype == _fitting(key, one)[1].dtype):
                return draw(fit, guarded(many))
    key, _ = _fitting(key, one)
    keys = jax.random.split(key, num)
    return jax.vmap(lambda key, row: with_own_gammas(guarded(distribution(*row)).sample, key))(keys, batched)


def _promoted(d: dist.Distribution) -> dist.Distribution:
    """The distribution, and its parts, with the batch shape of its parameters, which have a row for each particle.

    Numpyro does not promote the parts: the Normal of a LogNormal would draw once for all.
    """
    many = copy.copy(promote_batch_shape(d))
    for name, part in _parts(many).items():
        vars(many)[name] = _promoted(part)
    return many


def _parts(d: dist.Distribution) -> dict[str, dist.Distribution]:
    """The distributions that it is made of, by name."""
    return {name: part for name, part in vars(d).items() if isinstance(part, dist.Distribution)}


def _is_promoted_whole(d: dist.Distribution) -> bool:
    """Whether its parts have a row for each particle, too."""
    shape = d.batch_shape
    return all(part.batch_shape[: len(shape)] == shape and _is_promoted_whole(part) for part in _parts(d).values())


def draw(key: PRNGKeyArray, d: dist.Distribution, shape: tuple[int, ...] = ()) -> Array:
    """Draws; of a Normal or MultivariateNormal, by this library's own normals, of others by its gamma draws."""
    if isinstance(d, dist.Independent):
        return draw(key, d.base_dist, shape)
    if type(d) is dist.Normal:
        return d.loc + d.scale * normal(key, shape + d.batch_shape)
    if type(d) is dist.MultivariateNormal:
        noise = normal(key, shape + d.batch_shape + d.event_shape)
        return d.loc + jnp.squeeze(d.scale_tril @ noise[..., None], axis=-1)
    return with_own_gammas(lambda key: d.sample(key, shape), key)


def _fitting(key: PRNGKeyArray, sample: Callable) -> tuple[PRNGKeyArray, jax.ShapeDtypeStruct]:
    """A key that `sample(key)` takes, and the shape of its draw: jax's Poisson needs jax's own generator."""
    try:
        return key, jax.eval_shape(sample, key)
    except NotImplementedError:
        return threefry(key), jax.eval_shape(sample, threefry(key))


def _of_rows(distribution: Callable, *batched: Any) -> tuple[Any | None, tuple[int, ...]]:
    """The distributions of all rows as one numpyro distribution, or None; and the shape of a row's draw.

    Their parameters leave vmap in the order of their names. Numpyro's own order is that of a set of strings, which
    differs between processes, so that a cache of compiled programs would miss.
    """
    rebuild: list[Callable] = []
    shapes: list[tuple[int, ...]] = []

    def numbers(*row):
        d = distribution(*row)
        if not isinstance(d, dist.Distribution):
            return None
        tree: Any
        leaves, tree = jax.tree.flatten(d)
        names = _names(d)
        # A family may flatten itself in a way of its own, whose order is then the same everywhere.
        order = sorted(range(len(leaves)), key=names.__getitem__) if len(names) == len(leaves) else range(len(leaves))
        rebuild.append(lambda found: tree.unflatten([found[order.index(i)] for i in range(len(leaves))]))
        shapes.append(d.shape())
        return [_strongly_typed(leaves[i]) for i in order]

    found = jax.vmap(numbers)(*batched)
    return (None, ()) if found is None else (rebuild[-1](found), shapes[-1])


def _strongly_typed(number: Any) -> Array:
    return jnp.asarray(number, jnp.result_type(number))


def _names(d: dist.Distribution) -> list[tuple[str, ...]]:
    """A name for each leaf of a distribution, in numpyro's order, if it is flattened as numpyro's are."""
    fields = zip(type(d).gather_pytree_data_fields(), d.tree_flatten()[0], strict=False)
    return [
        (field, *rest)
        for field, value in fields
        for rest in (_names(value) if isinstance(value, dist.Distribution) else [()] * len(jax.tree.leaves(value)))
    ]
