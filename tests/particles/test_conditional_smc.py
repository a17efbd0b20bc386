"""Conditional SMC with ancestor sampling: a sweep leaves the smoothing distribution as it is, and forgets its start."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import epf_jax as epf
from epf_jax.core.random import stream
from epf_jax.particles.conditional_smc import redraw_path

T, PHI, SENSOR = 3, 0.8, 0.5
MODEL = epf.models.ar1(observation_noise=SENSOR)
Y = np.array([0.9, -0.4, 1.7])
THETA = {"phi": jnp.asarray(PHI)}
BEGINS = jnp.arange(T + 1) == 0


def pulled(theta, x_prev, y, u):
    """A proposal that looks at y, clumsily."""
    return dist.Normal(0.5 * theta["phi"] * x_prev + 0.5 * y, 1.2)


PROPOSALS = {"bootstrap": epf.bootstrap(), "fully_adapted": epf.fully_adapted(MODEL), "guided": epf.guided(pulled)}


@cache
def smoothing_moments():
    """Mean and covariance of x_0..x_T given y_1..y_T, by dense Gaussian algebra."""
    A = np.array([[PHI ** (i - j) if j <= i else 0.0 for j in range(T + 1)] for i in range(T + 1)])
    prior, H = A @ A.T, np.eye(T + 1)[1:]
    gain = prior @ H.T @ np.linalg.inv(H @ prior @ H.T + SENSOR**2 * np.eye(T))
    return gain @ Y, prior - gain @ H @ prior


@cache
def sweeps(name, num_sweeps):
    """`f(keys, paths)`: each path after so many sweeps with three particles."""
    y, u = jnp.concatenate([jnp.zeros(1), jnp.asarray(Y)]), jnp.arange(T + 1)

    def many(key, x):
        def one(x, key):
            return redraw_path(key, MODEL, PROPOSALS[name], 3, THETA, x[0], x, y, u, BEGINS).x, None

        return jax.lax.scan(one, x, jax.random.split(key, num_sweeps))[0]

    return jax.jit(jax.vmap(many))


def assert_smoothed(paths):
    """Four means and ten covariances within 4.5 standard errors: one in ten thousand fails where all is right."""
    mean, covariance = smoothing_moments()
    n, variances = len(paths), np.diag(covariance)
    np.testing.assert_array_less(np.abs(np.mean(paths, 0) - mean), 4.5 * np.sqrt(variances / n))
    errors = np.sqrt((np.outer(variances, variances) + covariance**2) / n)
    np.testing.assert_array_less(np.abs(np.cov(paths.T) - covariance), 4.5 * errors)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bootstrap", "fully_adapted", pytest.param("guided", marks=pytest.mark.slow)])
def test_a_sweep_leaves_the_smoothing_distribution_as_it_is(name):
    mean, covariance = smoothing_moments()
    n = 40_000
    paths = mean + np.random.default_rng(0).normal(size=(n, T + 1)) @ np.linalg.cholesky(covariance).T
    keys = jax.random.split(stream(jax.random.key(1)), n)
    swept = np.asarray(sweeps(name, 1)(keys, jnp.asarray(paths, jnp.float32)), float)
    assert np.all(np.mean(swept != paths.astype(np.float32), axis=0) > 0.2)  # and it moves
    assert_smoothed(swept)


@pytest.mark.slow
def test_sweeps_forget_where_they_started():
    # A sweep leaves a state alone with probability 0.8 at most (above): 0.8^60 = 2e-6.
    keys = jax.random.split(stream(jax.random.key(2)), 10_000)
    assert_smoothed(np.asarray(sweeps("fully_adapted", 60)(keys, jnp.full((10_000, T + 1), 9.0)), float))


# Two hidden states, so that every path can be counted.
STAY = np.array([[0.7, 0.3], [0.2, 0.8]])
HIDDEN = epf.StateSpaceModel(
    prior={},
    initial=lambda theta: dist.Bernoulli(0.4),
    transition=lambda theta, x, u: dist.Bernoulli(jnp.where(x == 1, STAY[1, 1], STAY[0, 1])),
    observation=lambda theta, x, u: dist.Normal(jnp.asarray(x, float), 0.6),
)


@pytest.mark.parametrize("begins", [True, False], ids=["whole path", "state before it known"])
def test_every_path_of_two_hidden_states_is_visited_as_it_should_be(begins):
    y = np.array([0.4, 0.6, 0.2])
    paths = np.array(list(itertools.product((0, 1), repeat=4)))
    # The first state is x_0 where the path begins, and otherwise x_1, whose observation is 0.9, after x_0 = 1.
    first = np.array([0.6, 0.4]) if begins else STAY[1] * norm(np.array([0.0, 1.0]), 0.6).pdf(0.9)
    weights = first[paths[:, 0]] * np.prod(STAY[paths[:, :-1], paths[:, 1:]], axis=1)
    weights = weights * np.prod(norm(paths[:, 1:], 0.6).pdf(y), axis=1)
    p = weights / weights.sum()

    def one(key, x):
        flags = jnp.array([begins, False, False, False])
        rows = (jnp.concatenate([jnp.full(1, 0.9), jnp.asarray(y)]), jnp.arange(4), flags)
        return redraw_path(key, HIDDEN, epf.bootstrap(), 3, {}, jnp.ones_like(x[0]), x, *rows).x

    n = 40_000
    start = paths[np.random.default_rng(0).choice(16, n, p=p)]
    keys = jax.random.split(stream(jax.random.key(3)), n)
    swept = np.asarray(jax.jit(jax.vmap(one))(keys, jnp.asarray(start, jnp.int32)))
    assert np.mean(np.any(swept != start, axis=1)) > 0.3
    found = np.bincount(swept @ np.array([8, 4, 2, 1]), minlength=16) / n
    np.testing.assert_array_less(np.abs(found - p), 4.5 * np.sqrt(p * (1 - p) / n))  # sixteen shares
