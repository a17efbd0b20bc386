r"""What a filter of many thetas runs at each of them: a filter of the state alone, by particles or by a Gaussian law.

Without particles the law of x_t given y_1:t is one Gaussian :math:`N(m, P)`. Kalman's filter keeps it for a transition
:math:`x_t \sim N(A x_{t-1} + a, Q)`. Sigma points do for any :math:`x_t \sim N(f, Q)`, f and Q functions of
:math:`x_{t-1}` (Ito and Xiong 2000, *Gaussian filters for nonlinear filtering problems*), read at the nodes :math:`x_i`
of Gauss and Hermite's quadrature under the law, with weights :math:`w_i`:

    1. predict    m = A m + a,           P = A P A^T + Q                                             by Kalman,
                  m = sum w_i f(x_i),    P = sum w_i (Q(x_i) + (f(x_i) - m)(f(x_i) - m)^T)           by sigma points
    2. condition  N(m, P) on y_t = H x_t + c + noise; the evidence is the density of y_t

For linear models the two are the same, and exact. For others sigma points err by how far the law of x_t before y_t is
from Gaussian, which no number of points mends.
"""

import itertools
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from epf_jax.core.checks import check_whole_number
from epf_jax.core.choice import where
from epf_jax.core.gaussian import cholesky, condition, linear_parts, moments
from epf_jax.core.random import uniform
from epf_jax.core.triangular import scale_of_sum
from epf_jax.filters.bootstrap import bootstrap_filter
from epf_jax.filters.filter import start_at
from epf_jax.filters.state import StepInfo
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel, check_is_model
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.particles.proposals import Proposal, why_not_gaussian_filter, why_not_kalman
from epf_jax.particles.resampling import Resampler, resampler_name

_MOST_ALONG, _MOST_POINTS = 64, 1024  # along one component, and of all


class KnownTheta(NamedTuple):
    """A filter of the state for one given theta, to be vmapped over many.

    Attributes:
        start: `start(key, theta) -> states`, before any observation.
        step: `step(key, states, y, u) -> states, info`; `info.ess` and `info.num_bad_weights` are shares,
            1 at the most.
        between: `between(theta, some, shares)`, the states under a theta between those of some filters, a row for each,
            of which it has these shares.
        pick: `pick(key, all_states, which)`, a state from each of the filters named, of which there is a row for each.
        description: in words.
        model: the model that it was built for.
        num_particles: of each filter; 0 where it has none.
    """

    start: Callable[[PRNGKeyArray, Theta], Any]
    step: Callable[..., tuple[Any, StepInfo]]
    between: Callable[[Theta, Any, Float[Array, " k"]], Any]
    pick: Callable[[PRNGKeyArray, Any, Int[Array | np.ndarray, " G"]], Float[Array, "G *x"]]
    description: str
    model: StateSpaceModel
    num_particles: int = 0

    def __repr__(self) -> str:
        return f"<a filter of the state {self.description}>"


def check_inner(inner: Any, model: StateSpaceModel, **of_particles: Any) -> None:
    """Refuse what is no inner filter of this model, or comes with options of particles."""
    if not isinstance(inner, KnownTheta):
        raise TypeError(
            f"inner: expected epf.kalman(model) or epf.sigma_points(model), got {inner!r}."
            + (" Call it with the model." if callable(inner) else " For particles, give their number: num_inner.")
        )
    if inner.model is not model:
        raise ValueError("inner: it was built for another model. Build both with the same object, `model`.")
    for name, value in of_particles.items():
        if value is not None:
            raise ValueError(f"{name}: it is about particles, and `inner` has none. Leave out one of the two.")


def particles(model: StateSpaceModel, num_particles: int, proposal: Proposal, resample: Resampler) -> KnownTheta:
    """So many particles."""
    filter_ = bootstrap_filter(model, num_particles, proposal=proposal, resample=resample)

    def for_each(theta):
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_particles, *jnp.shape(leaf))), theta)

    def start(key, theta):
        return start_at(key, model, for_each(theta), num_particles, lambda x_0: (), proposal.draw)

    def step(key, states, y, u):
        states, info = filter_.step(key, states, y, u)
        shares = {name: getattr(info, name) / num_particles for name in ("ess", "num_bad_weights")}
        return states, info._replace(**shares)

    def between(theta, some, shares):
        at = jnp.argmax(shares)  # particles have no average
        nearest = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, at, keepdims=False), some)
        return nearest._replace(theta=for_each(theta))

    def pick(key, states, which):
        # Before the first step the weights are constants, which XLA would add up for seconds while it compiles.
        log_weights = jax.lax.optimization_barrier(jax.lax.stop_gradient(states.log_weights))
        below = jnp.cumsum(jnp.exp(log_weights), axis=1)
        below = below / below[:, -1:]
        level = (_levels(len(which), 1)[:, 0].astype(below.dtype) + uniform(key)) % 1.0
        chosen = jnp.sum(below[which] < level[:, None], axis=1)
        return states.x.at[which, chosen].get(mode="clip", wrap_negative_indices=False)

    description = (
        f"with {num_particles} particles each, proposal {proposal.name}, resampling {resampler_name(resample)}"
    )
    return KnownTheta(start, step, between, pick, description, model, num_particles)


class Gaussian(NamedTuple):
    """The law of x_t given y_1:t, its components as one vector, under theta."""

    theta: Theta
    mean: Float[Array, " d"]
    scale_tril: Float[Array, "d d"]


@waits_for_inputs
def sigma_points(model: StateSpaceModel, num_points: int = 3) -> KnownTheta:
    """No particles but a Gaussian law of the state, for `epf.node_filter(model, inner=epf.sigma_points(model))`.

    `epf.smc2_filter` takes it, too, for models of any number of parameters.
    Kalman's filter, and exact, for linear Gaussian models; faster than particles, and nearer than a few of them,
    wherever the law of x_t before y_t is nearly Gaussian. How near that is, more points do not tell: compare
    once with many particles, `epf.node_filter(model, 512)`, and a few keys.

    Args:
        model: one that `epf.fully_adapted` fits (a transition that is Gaussian, its mean and its noise any functions of
            x_{t-1}, and an observation that is Gaussian with a mean linear in x), whose initial state is Gaussian, too.
        num_points: points along each component of the state; three are exact for polynomials of the fifth degree.

    The states that the filter reports are quantiles of the nodes' laws, the same ones at every step: no key is needed.
    """
    check_is_model(model)
    check_whole_number("num_points", num_points, least=2, hint="Three are usual.")
    if num_points > _MOST_ALONG:
        raise ValueError(f"num_points: {num_points} are more than the {_MOST_ALONG} that serve. Three are usual.")
    problem = why_not_gaussian_filter(model)
    if problem:
        raise ValueError(
            f"sigma_points: {problem} It needs a Gaussian initial state, a Gaussian transition and an observation that "
            "is Gaussian with a mean linear in x. Use particles: epf.node_filter(model, 32)."
        )
    x_shape, x_dtype = model.shapes.x.shape, model.shapes.x.dtype
    dim = math.prod(x_shape)
    if num_points**dim > _MOST_POINTS:
        raise ValueError(
            f"sigma_points: {num_points} points along each of {dim} components are {num_points**dim}, more than "
            f"{_MOST_POINTS}. Use epf.kalman(model), where the transition is linear, or particles: "
            "epf.node_filter(model, 32)."
        )
    at, w = _hermite(num_points, dim)

    def predict(law, u):
        def ahead(s):
            x = (law.mean + law.scale_tril @ s).reshape(x_shape).astype(x_dtype)
            return moments(model.transition(law.theta, x, u))

        return _matched(w, *jax.vmap(ahead)(at))

    return _by_laws(model, predict, f"with {num_points} sigma points a component each")


@waits_for_inputs
def kalman(model: StateSpaceModel) -> KnownTheta:
    """Kalman's filter of the state, for `epf.smc2_filter(model, 1000, max_steps=T, inner=epf.kalman(model))`.

    Exact for models that are linear and Gaussian in x, with states of any dimension; theta may enter in any way.
    `epf.node_filter` takes it, too, with one to three parameters.

    Args:
        model: one whose initial state, transition and observation are Gaussian, means linear in x and noise free of x.
    """
    check_is_model(model)
    problem = why_not_kalman(model)
    if problem:
        raise ValueError(
            f"kalman: {problem} It needs a Gaussian initial state, and a transition and an observation that are "
            "Gaussian with means linear in x and noise free of x. "
            + ("Use particles" if why_not_gaussian_filter(model) else "Use epf.sigma_points(model), or particles")
            + ": num_inner=64."
        )
    x_shape, x_dtype = model.shapes.x.shape, model.shapes.x.dtype

    def predict(law, u):
        A, a, scale = linear_parts(lambda x: model.transition(law.theta, x, u), x_shape, x_dtype)
        return A @ law.mean + a, scale_of_sum(A @ law.scale_tril, scale)

    return _by_laws(model, predict, "by Kalman's")


def _by_laws(model: StateSpaceModel, predict: Callable, description: str) -> KnownTheta:
    """The filter of a Gaussian law of the state, which `predict(law, u)` takes one step ahead."""
    x_shape, x_dtype = model.shapes.x.shape, model.shapes.x.dtype
    dim = math.prod(x_shape)

    def start(key, theta):
        return Gaussian(theta, *as_floats(moments(model.initial(theta))))

    def as_floats(parts):
        return (jnp.asarray(part, float) for part in parts)

    def step(key, law, y, u):
        blind = predict(law, u)
        observed = linear_parts(lambda x: model.observation(law.theta, x, u), x_shape, x_dtype)
        *seen, log_density = condition(*blind, *observed, jnp.ravel(y))
        collapsed = ~jnp.isfinite(log_density)
        parts = (where(collapsed, b, s) for b, s in zip(blind, seen, strict=True))
        return Gaussian(law.theta, *as_floats(parts)), _reported(collapsed, log_density)

    def between(theta, some, shares):
        return Gaussian(theta, shares @ some.mean, jnp.tensordot(shares, some.scale_tril, axes=1))

    def pick(key, laws, which):
        normal = np.vectorize(NormalDist().inv_cdf)(_levels(len(which), dim)).astype(laws.mean.dtype)
        mean, scale_tril = (part.at[which].get(mode="clip", wrap_negative_indices=False) for part in laws[1:])
        x = mean + jnp.sum(scale_tril * normal[:, None, :], axis=-1)
        return x.reshape(len(which), *x_shape).astype(x_dtype)

    return KnownTheta(start, step, between, pick, description, model)


def _hermite(num: int, dim: int) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Nodes and weights of Gauss and Hermite's quadrature under the standard Gaussian of so many dimensions."""
    at, weights = np.polynomial.hermite_e.hermegauss(num)
    grid, shares = (
        np.stack(np.meshgrid(*[part] * dim, indexing="ij"), axis=-1).reshape(-1, dim) for part in (at, weights)
    )
    shares = np.prod(shares, axis=1)
    return jnp.asarray(grid, float), jnp.asarray(shares / shares.sum(), float)


def _matched(w, means, scales):
    """Mean and lower-triangular scale of a mixture of Gaussians."""
    mean = w @ means
    apart = means - mean
    covariance = jnp.einsum("n,nij,nkj->ik", w, scales, scales) + jnp.einsum("n,ni,nk->ik", w, apart, apart)
    return mean, cholesky(covariance)


def _reported(collapsed, log_density):
    none = jnp.zeros((), int)
    return StepInfo(
        ess=jnp.ones(()),
        resampled=jnp.array(False),
        ancestors=none,
        acceptance=jnp.ones(()),
        num_bad_weights=where(jnp.isnan(log_density), 1.0, 0.0),
        num_bad_densities=none,
        collapsed=collapsed,
        log_increment=where(collapsed, -jnp.inf, log_density),
        overflowed=jnp.array(False),
    )


def _levels(num: int, dim: int) -> Float[np.ndarray, "G d"]:
    """Levels that fill (0, 1) evenly, in an order that has nothing to do with that of a lattice of theta."""
    primes: list[int] = []
    candidates = itertools.count(2)
    while len(primes) < dim:
        number = next(candidates)
        primes += [number] * all(number % prime for prime in primes)
    steps = np.sqrt(np.array(primes, float))
    return (np.arange(num)[:, None] + 0.5) * steps % 1.0
