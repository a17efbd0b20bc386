"""Chains have the exact posterior however few their particles are, and do not adapt once they are warm."""

import numpy as np
import pytest
import tiny

import epf_jax as epf

quiet = pytest.mark.filterwarnings("ignore:The chains disagree", "ignore:The .* draws")


def assert_posterior(results, num_chains):
    """The chains are independent: the mean of each is one number, and these have a standard error."""
    evidence, means = tiny.exact()
    a = np.asarray(results.draws["a"], float)
    assert a.shape[0] == num_chains
    tiny.assert_unbiased(np.stack([a.mean(axis=1), (a**2).mean(axis=1)], axis=1), means[1:3] / evidence[-1])


@quiet
def test_pmmh_has_the_exact_posterior_with_three_particles():
    results = epf.pmmh(
        tiny.KEY,
        tiny.model(),
        tiny.Y,
        num_particles=3,
        num_chains=200,
        num_warmup=200,
        num_draws=400,
        proposal=epf.bootstrap(),
        levels=(),
    )
    assert_posterior(results, 200)
    evidence, means = tiny.exact()
    x = means[3:5] / evidence[-1]
    # x_T of the same 80000 draws, of which some five in a row are alike and which share 200 chains
    np.testing.assert_allclose(results.x.mean[-1], x[0], atol=0.03)
    np.testing.assert_allclose(results.x.sd[-1], np.sqrt(x[1] - x[0] ** 2), rtol=0.03)


@quiet
def test_particle_gibbs_has_the_exact_posterior_with_two_particles():
    results = epf.particle_gibbs(
        tiny.KEY,
        tiny.model(),
        tiny.Y,
        num_particles=2,
        num_chains=200,
        num_warmup=50,
        num_draws=200,
        sampler=epf.slice_sampler(1.0),
        proposal=epf.bootstrap(),
        levels=(),
    )
    assert_posterior(results, 200)


@quiet
def test_chains_are_told_of_the_same_population_from_the_warmup_on():
    # Theta goes where the population's sd says; were that still learned from theta, it would move.
    sampler = tiny.of_population(lambda population: population.sd + population.mean)
    results = epf.particle_gibbs(
        tiny.KEY, tiny.model(), tiny.Y, num_particles=2, num_chains=2, num_warmup=5, num_draws=6, sampler=sampler
    )
    a = np.asarray(results.draws["a"])
    np.testing.assert_array_equal(a, np.full_like(a, a[0, 0]))
