r"""Liu and West's filter: theta in the state, moved by a shrinkage kernel (Liu and West 2001).

Every step replaces theta by a draw from a kernel with the population's own mean and variance:

.. math:: m^i = \rho\,\theta^i + (1-\rho)\,\bar\theta, \qquad \theta' \sim N(m^i,\; (1-\rho^2)\,V) .

Algorithm, for t = 1..T:

    1. [auxiliary]  weigh by p(y_t | mu^i, m^i), mu^i a likely value of x_t given x_{t-1} and m^i, and resample
    2. move         theta ~ kernel
    3. draw         x_t ~ p(x_t | x_{t-1}, theta)
    4. weigh        by p(y_t | x_t, theta), less the auxiliary weight
    5. [otherwise]  resample

Liu and West's own kernel has the full covariance V, and their filter has the auxiliary weights. Erol et al. (2013)
compared the EPF with another version, which perturbs each coordinate by its own standard deviation inside a plain SIR
filter: `kernel=epf.coordinate_kernel, resample=epf.multinomial`. Both stick for ever once V is zero. The kernel acts in
unconstrained coordinates.
"""

import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epf_jax.core.checks import check_signature
from epf_jax.core.choice import where
from epf_jax.core.densities import observed_log_prob, sample_each
from epf_jax.core.gaussian import base_distribution
from epf_jax.core.random import normal
from epf_jax.filters.filter import Filter, build_filter, builds_filter, check_filter_arguments, start, step_info
from epf_jax.filters.state import FilterState
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.resampling import Resampler, resampler_name, select, systematic
from epf_jax.particles.weights import mean_and_sd, population, reweight
from epf_jax.samplers import exact_draw, no_draw

Kernel = Callable[[Float[Array, "N P"], Float[Array, " N"]], Float[Array, "P P"]]


def covariance_kernel(z: Float[Array, "N P"], log_weights: Float[Array, " N"]) -> Float[Array, "P P"]:
    """Liu and West's kernel: the Cholesky factor of the population's weighted covariance."""
    return population(z, log_weights, jnp.zeros(z.shape[1])).scale_tril


def coordinate_kernel(z: Float[Array, "N P"], log_weights: Float[Array, " N"]) -> Float[Array, "P P"]:
    """The paper's perturbation: each coordinate's own standard deviation, std(theta_{t-1}) N(0, 1)."""
    return jnp.diag(mean_and_sd(z, log_weights)[1])


@builds_filter
def liu_west_filter(
    model: StateSpaceModel,
    num_particles: int,
    rho: float = 0.9,
    *,
    kernel: Kernel = covariance_kernel,
    auxiliary: bool = False,
    resample: Resampler = systematic,
) -> Filter:
    """Liu and West's filter, or with `kernel=epf.coordinate_kernel` the perturbation of Erol et al. (2013).

    Args:
        model: the state-space model.
        num_particles: N.
        rho: shrinkage towards the mean; Liu and West's a = (3 delta - 1) / (2 delta). 1 never moves theta.
        kernel: the scale of the perturbation from the population: `epf.covariance_kernel` (Liu and West) or
            `epf.coordinate_kernel` (Erol et al. 2013).
        auxiliary: whether particles are first resampled by a look-ahead weight, as in Liu and West (2001). The weight
            treats x_t as a point. If observations are precise compared with the transition's noise, as in SIN, that is
            badly wrong (`benchmarks/results/accuracy_sinusoid.json`), so it is off by default.
        resample: the resampling scheme.
    """
    check_filter_arguments(model, num_particles, resample)
    if not isinstance(rho, numbers.Real) or not 0.0 < rho <= 1.0:
        raise ValueError(f"rho: expected a shrinkage above 0 and at most 1, got {rho!r}. Liu and West's is 0.95 or so.")
    check_signature("kernel", kernel, ("z", "log_weights"), returns="a matrix, such as epf.coordinate_kernel")
    coordinates, N = model.parameters, num_particles
    if coordinates.dim == 0:
        raise ValueError("liu_west_filter: the model's prior is empty, so there is no theta to learn.")

    def init(key):
        return start(key, model, N, lambda x_0: ())

    def step(key, state, y, u):
        key_resample, key_theta, key_state = jax.random.split(key, 3)
        x_prev, log_weights = state.x, state.log_weights
        z = jax.vmap(coordinates.to_vector)(state.theta)
        scale_tril = kernel(z, log_weights)
        m = rho * z + (1 - rho) * (jnp.exp(log_weights) @ z)
        weighings, g = [], jnp.zeros(N)

        if auxiliary:
            g = jax.vmap(lambda m, x: _look_ahead(model, coordinates.to_theta(m), x, y, u))(m, x_prev)
            first = reweight(log_weights, g)
            # A look-ahead that rules out every particle is only a bad guess: it is passed over, nothing has collapsed.
            g = where(first.collapsed | ~jnp.isfinite(g), 0.0, g)
            weighings.append(first._replace(log_increment=where(first.collapsed, 0.0, first.log_increment)))
            selection = select(key_resample, resample, weighings[-1], (x_prev, m, g), place=(x_prev, m))
            (x_prev, m, g), log_weights = selection.particles, selection.log_weights

        z = m + jnp.sqrt(1 - rho**2) * normal(key_theta, m.shape) @ scale_tril.T
        theta = jax.vmap(coordinates.to_theta)(z)
        x = sample_each(key_state, lambda theta, x: model.transition(theta, x, u), N, theta, x_prev)
        x = x.astype(x_prev.dtype)
        w = jax.vmap(lambda theta, x: observed_log_prob(model.observation(theta, x, u), y))(theta, x)
        weighings.append(reweight(log_weights, w - g))
        log_weights = weighings[-1].log_weights

        if not auxiliary:
            selection = select(key_resample, resample, weighings[-1], (x, theta))
            (x, theta), log_weights = selection.particles, selection.log_weights

        drawn = exact_draw(x.dtype) if rho < 1 else no_draw()
        info = step_info(selection, *weighings, drawn=drawn)._replace(collapsed=weighings[-1].collapsed)
        return FilterState(x, theta, (), log_weights, state.log_evidence + info.log_increment, state.t + 1), info

    description = (
        f"Liu-West filter: {N} particles, rho = {rho}, {getattr(kernel, '__name__', 'kernel of your own')}, "
        f"{'auxiliary weights, ' if auxiliary else ''}resampling {resampler_name(resample)}"
    )
    return build_filter(model, N, init, step, description, resample)


def _look_ahead(model: StateSpaceModel, theta: Any, x_prev: Array, y: Array, u: Any) -> Float[Array, ""]:
    """Log p(y_t | mu, theta) at a likely value mu of x_t: the transition's mean, or its location if it has none."""
    transition = model.transition(theta, x_prev, u)
    location, mean = getattr(base_distribution(transition), "loc", None), _mean(transition)
    if mean is None and location is None:
        kind = type(transition).__name__
        raise ValueError(f"auxiliary: the transition, a {kind}, has neither mean nor loc to look ahead by.")
    mu: Any = location if mean is None else mean if location is None else where(jnp.isfinite(mean), mean, location)
    mu = jnp.broadcast_to(mu, jnp.shape(x_prev)).astype(x_prev.dtype)
    return observed_log_prob(model.observation(theta, mu, u), y)


def _mean(d: Any) -> Array | None:
    """The distribution's mean, or None if it is not known."""
    try:
        return d.mean
    except (AttributeError, NotImplementedError):  # a stand-in, or a numpyro family without one
        return None
