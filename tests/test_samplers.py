"""Samplers leave their target invariant, and never move to where it is not defined."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import SAMPLERS
from scipy.stats import gamma

from epf_jax.samplers import SampleInfo, together
from epf_jax.samplers.random_walk import accepted
from epf_jax.weights import Population

N = 20_000


def log_gamma_of_exponential(z):
    """A skewed target: z = log of a Gamma(3, 1) variable, density proportional to exp(3 z - e^z)."""
    return 3 * z[0] - jnp.exp(z[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_one_application_leaves_a_skewed_target_as_it_was(name):
    step = SAMPLERS[name]().step
    exact = np.log(gamma(3.0).ppf((np.arange(N) + 0.5) / N))
    start = jnp.asarray(np.random.default_rng(0).permutation(exact), jnp.float32)[:, None]
    population = Population(jnp.array([exact.mean()], jnp.float32), jnp.array([[exact.std()]], jnp.float32))
    keys = jax.random.split(jax.random.key(1), N)
    moved, info = jax.jit(jax.vmap(lambda k, z: step(k, z, log_gamma_of_exponential, population)))(keys, start)
    moved = np.asarray(moved[:, 0], float)
    assert 0.2 < float(info.acceptance.mean()) <= 1.0
    assert np.mean(moved != np.asarray(start[:, 0])) > 0.2
    # N independent draws: mean within 4 sd / sqrt(N), and each decile's share within 4 sqrt(.1 * .9 / N)
    assert abs(moved.mean() - exact.mean()) < 4 * exact.std() / np.sqrt(N)
    deciles = np.log(gamma(3.0).ppf(np.arange(0.1, 1.0, 0.1)))
    shares = np.histogram(moved, np.concatenate([[-np.inf], deciles, [np.inf]]))[0] / N
    assert np.max(np.abs(shares - 0.1)) < 4 * np.sqrt(0.1 * 0.9 / N)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SAMPLERS if n != "grid_sampler"])
def test_a_correlated_target_in_two_dimensions_stays_as_it_was(name):
    covariance = jnp.array([[1.0, 0.8], [0.8, 2.0]])
    L = jnp.linalg.cholesky(covariance)
    precision = jnp.linalg.inv(covariance)
    step = SAMPLERS[name]().step
    start = jax.random.normal(jax.random.key(2), (N, 2)) @ L.T
    keys = jax.random.split(jax.random.key(3), N)
    moved, _ = jax.jit(
        jax.vmap(lambda k, z: step(k, z, lambda z: -0.5 * z @ precision @ z, Population(jnp.zeros(2), L)))
    )(keys, start)
    # entry (i, j) of a sample covariance has standard error sqrt((c_ii c_jj + c_ij^2) / N) <= sqrt(8 / N)
    np.testing.assert_allclose(np.cov(np.asarray(moved).T), covariance, atol=4 * np.sqrt(8 / N))


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_places_where_the_density_is_nan_or_zero_are_never_moved_to(name):
    def half_line(z):
        return jnp.where(z[0] > 1.0, jnp.nan, jnp.where(z[0] < -1.0, -jnp.inf, -0.5 * z[0] ** 2))

    step = SAMPLERS[name]().step
    keys = jax.random.split(jax.random.key(4), 500)
    population = Population(jnp.zeros(1), jnp.eye(1))
    moved, _ = jax.jit(jax.vmap(lambda k: step(k, jnp.array([0.9]), half_line, population)))(keys)
    assert np.all(np.abs(moved) <= 1.0)
    assert len(np.unique(moved)) > 10


def test_reports_of_many_draws_become_one_whatever_their_shapes():
    for acceptance, num_bad in ((np.full(4, 0.5), np.array([1, 0, 2, 0])), (np.full((4, 3), 0.5), 3), (0.5, 3)):
        found = together(SampleInfo(acceptance, num_bad))
        assert (float(found.acceptance), int(found.num_bad)) == (0.5, 3)


@pytest.mark.parametrize(
    ("before", "after", "uniform", "moves", "bad"),
    [
        (0.0, 1.0, 0.999, True, False),
        (0.0, 0.0, 0.0, True, False),
        (0.0, -1.0, 0.7, True, False),  # exp(-1) = 0.37 against a uniform of 0.3
        (0.0, -1.0, 0.5, False, False),
        (0.0, -np.inf, 0.0, False, False),
        (0.0, -np.inf, 0.999, False, False),
        (-np.inf, -5.0, 0.0, True, False),
        (-np.inf, -np.inf, 0.5, False, False),
        (np.nan, -5.0, 0.0, True, False),
        (0.0, np.nan, 0.999, False, True),
    ],
)
def test_metropolis_rule_at_its_edges(before, after, uniform, moves, bad):
    found = accepted(jnp.asarray(uniform), jnp.asarray(before), jnp.asarray(after))
    assert tuple(map(bool, found)) == (moves, bad)
