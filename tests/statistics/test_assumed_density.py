"""Claims about `assumed_density`: its quadrature, its covariance over thousands of steps, what a mixture adds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax import exact
from epf_jax.statistics import statistic_of_path
from epf_jax.statistics.assumed_density import degree_five_rule

KEY = jax.random.key(0)


def path_statistics(statistic, x, y):
    """The statistic after every step of a known path."""
    return jax.jit(lambda x, y: statistic_of_path(statistic, x, y))(x, y)


@pytest.mark.parametrize("dim", [4, 5, 8])
def test_the_degree_five_rule_has_every_moment_up_to_the_fifth(dim):
    nodes, weights = degree_five_rule(dim)
    assert np.all(weights > 0)
    for degree in range(6):
        for powers in itertools.combinations_with_replacement(range(dim), degree):
            counts = np.bincount(powers, minlength=dim)
            # E of a product of independent normals: zero for an odd power, (c - 1)!! for an even one; 3!! is 3.
            expected = 0.0 if np.any(counts % 2) else 3.0 ** np.sum(counts == 4)
            assert abs(weights @ np.prod(nodes**counts, axis=1) - expected) < 1e-9


def many_coefficients(num_states=3):
    """A vector autoregression with two unknown coefficients for each state."""
    n = num_states
    return epf.StateSpaceModel(
        prior=dist.Normal(jnp.zeros(2 * n), 0.5).to_event(1),
        initial=lambda theta: dist.Normal(jnp.zeros(n), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(theta[:n] * x + theta[n:] * jnp.roll(x, 1), 1.0).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x, 0.5).to_event(1),
    )


CASES = {
    "one": (epf.models.ar1, {"phi": 0.7}),
    "six": (many_coefficients, jnp.array([0.5, 0.2, 0.3, 0.4, -0.2, 0.1])),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_linear_posterior_stays_positive_definite_for_3000_steps(name):
    # The rule is exact for terms that say little, which late ones do; what the first few terms of the six-parameter
    # model cost (0.3 sd at t = 3, measured) is forgotten as 1 / t.
    build, truth = CASES[name]
    model = build()
    x, y = epf.simulate(KEY, model, truth, 3000)
    assumed = path_statistics(epf.assumed_density(model), x, y)
    exactly = path_statistics(epf.conjugate(model), x, y)
    assert np.all(np.diagonal(assumed.L[:, 0], axis1=1, axis2=2) > 0)
    sd = np.sqrt(np.diag(exactly.C[-1]))
    covariance = np.asarray(assumed.L[-1, 0] @ assumed.L[-1, 0].T)
    assert np.all(np.abs(assumed.m[-1, 0] - exactly.m[-1]) < 0.05 * sd)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), sd, rtol=0.02)


@pytest.mark.slow
def test_a_mixture_keeps_two_peaks_that_one_gaussian_cannot():
    # Only |a| can be known from the path, which is 0.8: the exact density has next to nothing about zero.
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] ** 2 * x, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
    )
    x, y = epf.simulate(KEY, model, {"a": 0.8}, 100)
    truth = exact.known_path(model, x, {"a": np.linspace(-2.0, 2.0, 401)})
    axis, step = jnp.asarray(truth.axes["a"]), 0.01

    def mass_about_zero(num_components):
        statistic = epf.assumed_density(model, num_components=num_components)
        S = jax.tree.map(lambda leaf: leaf[-1], path_statistics(statistic, x, y))
        log_density = jax.vmap(lambda a: statistic.log_density(S, {"a": a}))(axis)
        density = jax.nn.softmax(log_density)
        return float(jnp.sum(jnp.where(jnp.abs(axis) < 0.3, density, 0.0))), float(density @ axis)

    assert step * np.sum(np.exp(truth.log_density[-1])[np.abs(truth.axes["a"]) < 0.3]) < 1e-3
    mixture, mean = mass_about_zero(4)
    assert mixture < 0.01
    assert abs(mean) < 0.05  # both peaks, in equal parts
    assert mass_about_zero(1)[0] > 0.1


def test_a_step_impossible_everywhere_leaves_the_statistic_as_it_was():
    model = epf.StateSpaceModel(
        prior={"rate": dist.LogNormal(0.0, 0.5)},
        initial=lambda theta: dist.Gamma(2.0, 1.0),
        transition=lambda theta, x, u: dist.Gamma(2.0, theta["rate"]),
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
    )
    statistic = epf.assumed_density(model)
    S = jax.jit(statistic.init)(jnp.asarray(1.0))
    after = jax.jit(statistic.update)(KEY, S, None, jnp.asarray(1.0), jnp.asarray(jnp.nan), jnp.asarray(1.0), 1)
    for leaf, before in zip(after, S, strict=True):
        np.testing.assert_allclose(leaf, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("noise", [pytest.param(1.0, marks=pytest.mark.slow), 0.1])
@pytest.mark.parametrize("dim", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_first_observations_that_say_much_are_taken_in_by_powers(dim, noise):
    """Each number seen once, behind noise of a tenth or a hundredth of its prior's width; the posterior is Gaussian."""
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(jnp.zeros(dim), 10.0).to_event(1)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x, 1.0),
        observation=lambda theta, x, u: dist.Normal(theta["a"][u % dim], noise),
    )
    statistic, y = epf.assumed_density(model), np.linspace(-13.0, 17.0, dim)
    begun = jax.tree.map(lambda leaf: leaf[None], jax.jit(statistic.init)(0.0))

    def learned(since):
        """The statistic after as many observations, of which the first is number `since` of the series."""
        step = jax.jit(lambda S, y, u, t: statistic.update_all(None, S, None, zero, zero, y, u, zero, t))
        S, zero = begun, jnp.zeros(1)
        for u, value in enumerate(y):
            S = step(S, value, u, since + u)
        return jax.tree.map(lambda leaf: leaf[0], S)

    sd = 1 / np.sqrt(1 / 10.0**2 + 1 / noise**2)
    mean, S = y * (sd / noise) ** 2, learned(1)
    assert np.all(np.abs(S.m[0] - mean) < 0.6 * sd)
    assert np.all(np.abs(np.linalg.norm(S.L[0], axis=1) / sd - 1) < 0.6)
    assert np.any(np.abs(learned(4 * dim + 1).m[0] - mean) > 3 * sd)  # at once, what the nearest nodes say


@pytest.mark.slow
def test_the_assumed_density_follows_the_exact_posterior_of_sin():
    # Six filters of 1000 particles; their mean z-score has standard error rms / sqrt(6), and a Gaussian theta is no
    # theorem here: 0.3 exact sds are allowed.
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(1), model, {"theta": 0.7}, 200)
    truth = exact.quadrature(model, y, {"theta": np.linspace(-1.2, 1.4, 105)}, exact.nodes_around(y, 0.8, 25))
    filter_ = epf.extended_parameter_filter(model, 1000, statistic=epf.assumed_density(model))
    results = epf.replicate(jax.random.split(jax.random.key(2), 6), filter_, y, levels=())
    z = (np.asarray(results.theta.mean["theta"][:, -1]) - truth.mean["theta"][-1]) / truth.sd["theta"][-1]
    assert abs(z.mean()) < 0.3
    assert 0.7 < np.median(results.theta.sd["theta"][:, -1]) / truth.sd["theta"][-1] < 1.4


@pytest.mark.parametrize(
    ("message", "build"),
    [
        (
            "^num_components: expected a positive whole number, got 0",
            lambda m: epf.assumed_density(m, num_components=0),
        ),
        ("^num_nodes: expected a whole number of at least 3, got 2", lambda m: epf.assumed_density(m, num_nodes=2)),
        (
            "^num_nodes: expected None for the model's 6 parameters.*got 5",
            lambda m: epf.assumed_density(many_coefficients(), num_nodes=5),
        ),
    ],
)
def test_wrong_arguments_are_refused_by_name(message, build):
    with pytest.raises(ValueError, match=message):
        build(epf.models.ar1())
