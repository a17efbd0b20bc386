"""Likelihoods of theta for the golds, written for this purpose alone: Kalman's filter, particles, quadrature.

Each is `log_likelihood(key, theta)`, of one theta; those that draw nothing ignore the key.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import epf_jax as epf
from benchmarks.breadth.entry import Case
from epf_jax.core.densities import observed_log_prob
from epf_jax.core.gaussian import linear_parts
from epf_jax.models.state_space import input_rows

LogLikelihood = Callable[[Any, Any], jax.Array]


def series_of(case: Case) -> tuple[jax.Array, Any]:
    """The observations and the rows of the inputs, or the time index."""
    y = jnp.asarray(case.y, float)
    return y, jax.tree.map(jnp.asarray, input_rows(case.inputs, len(y)))


def kalman(case: Case) -> LogLikelihood:
    """Exact, of a model that is linear and Gaussian in x, by covariances."""
    (y, rows), model = series_of(case), case.model
    y = y.reshape(len(y), -1)
    x_shape = model.shapes.x.shape

    def step(carry, row, theta):
        (m, P), (y_t, u) = carry, row
        A, a, L = linear_parts(lambda x: model.transition(theta, x, u), x_shape)
        m, P = A @ m + a, A @ P @ A.T + L @ L.T
        H, c, R = linear_parts(lambda x: model.observation(theta, x, u), x_shape)
        seen = ~jnp.isnan(y_t)
        H = jnp.where(seen[:, None], H, 0.0)  # what is missing is read as a number of its own, N(0, 1), that is 0
        noise = jnp.where(seen[:, None] & seen, R @ R.T, jnp.eye(len(y_t)))
        S = H @ P @ H.T + noise
        gap = jnp.where(seen, y_t - H @ m - c, 0.0)
        K = jnp.linalg.solve(S, H @ P).T
        half_log = 0.5 * jnp.linalg.slogdet(S)[1] + 0.5 * gap @ jnp.linalg.solve(S, gap)
        return (m + K @ gap, P - K @ S @ K.T), -half_log - 0.5 * jnp.log(2 * jnp.pi) * jnp.sum(seen)

    def log_likelihood(key, theta):
        _, m, L = linear_parts(lambda x: model.initial(theta), x_shape)
        return jnp.sum(jax.lax.scan(lambda carry, row: step(carry, row, theta), (m, L @ L.T), (y, rows))[1])

    return log_likelihood


def quadrature(case: Case) -> LogLikelihood:
    """By sums over the nodes of a state of one dimension."""
    (y, rows), nodes = series_of(case), jnp.asarray(case.entry.nodes(case.y), float)
    return lambda key, theta: epf.exact.quadrature_log_evidence(
        case.model, theta, y, nodes, inputs=None if case.inputs is None else rows
    )[-1]


def particles(case: Case, num: int) -> LogLikelihood:
    """Unbiased, by a filter of so many particles that resamples at every step."""
    (y, rows), model, near = series_of(case), case.model, case.entry.near
    x_type = model.shapes.x

    def from_transition(key, theta, x, y_t, u):
        return model.transition(theta, x, u).sample(key), 0.0

    def from_both(key, theta, x, y_t, u):
        """Half from the transition, half from what y says."""
        key_which, key_first, key_second = jax.random.split(key, 3)
        first, second = model.transition(theta, x, u), near(theta, y_t)
        found = jnp.where(jax.random.bernoulli(key_which), first.sample(key_first), second.sample(key_second))
        log_first = first.log_prob(found)
        return found, log_first - jnp.logaddexp(log_first, second.log_prob(found)) + jnp.log(2.0)

    move = from_transition if near is None else from_both

    def step(carry, row, theta):
        (x, log_evidence), (key, y_t, u) = carry, row
        key_move, key_resample = jax.random.split(key)

        def one(key, x):
            x, correction = move(key, theta, x, y_t, u)
            return x.astype(x_type.dtype), observed_log_prob(model.observation(theta, x, u), y_t) + correction

        x, log_weights = jax.vmap(one)(jax.random.split(key_move, num), x)
        log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)
        top = jnp.max(log_weights)
        weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0.0))
        total = jnp.sum(weights)
        ends = jnp.ceil(num * jnp.cumsum(weights) / jnp.where(total > 0, total, 1.0) - jax.random.uniform(key_resample))
        ancestors = jnp.cumsum(jnp.zeros(num + 1, int).at[jnp.clip(ends.astype(int), 0, num)].add(1))[:num]
        x = x[jnp.minimum(ancestors, num - 1)]
        return (x, log_evidence + jnp.where(jnp.isfinite(top), top, 0.0) + jnp.log(total / num)), None

    def log_likelihood(key, theta):
        key_first, key_steps = jax.random.split(key)
        x = jax.vmap(model.initial(theta).sample)(jax.random.split(key_first, num)).astype(x_type.dtype)
        series = (jax.random.split(key_steps, len(y)), y, rows)
        return jax.lax.scan(lambda carry, row: step(carry, row, theta), (x, jnp.zeros(())), series)[0][1]

    return log_likelihood
