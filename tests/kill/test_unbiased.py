"""Filters are unbiased: the mean of Z f over thousands of keys is p(y) E[f | y], however few their particles are.

So it is for every filter that is a particle filter of (theta, x) with moves that leave theta's law given the path as it
is (Del Moral 2004, theorem 7.4.2). One compiled call a filter, all keys in one batch; exact answers by NumPy (`tiny`).
"""

import numpyro.distributions as dist
import pytest
import tiny

import epf_jax as epf

WALK = epf.random_walk(0.5, num_steps=2)


def pulled(theta, x_prev, y, u):
    return dist.Normal(0.5 * (theta["a"] * x_prev + tiny.push(u)) + 0.4 * y, 0.9)


FILTERS = {
    "sir": lambda: epf.bootstrap_filter(tiny.model(), 12, resample=epf.when_ess_below(0.5, epf.residual)),
    "guided": lambda: epf.bootstrap_filter(tiny.model(), 12, proposal=epf.guided(pulled), resample=epf.stratified),
    "storvik": lambda: epf.storvik_filter(tiny.model(), 8),
    "epf": lambda: epf.extended_parameter_filter(
        tiny.model(),
        8,
        statistic=epf.taylor(tiny.model(), 2, sampler=WALK),
        proposal=epf.bootstrap(),
        resample=epf.multinomial,
    ),
    "nodal": lambda: epf.extended_parameter_filter(
        tiny.model(), 8, statistic=epf.chebyshev(tiny.model(), 16, shrink=None), sampler=epf.slice_sampler(1.0)
    ),
    "auxiliary": lambda: epf.liu_west_filter(tiny.model(), 12, rho=1.0, auxiliary=True),
    "resample_move": lambda: epf.resample_move_filter(tiny.model(), 8, max_steps=3, rate=None, sampler=WALK),
}


@pytest.mark.parametrize("name", FILTERS)
def test_evidence_and_posterior_are_unbiased_with_a_few_particles(name):
    evidence, means = tiny.unnormalised(FILTERS[name](), tiny.Y, 6000)
    expected, expected_means = tiny.exact()
    tiny.assert_unbiased(evidence, expected)
    tiny.assert_unbiased(means, expected_means)


def test_an_unknown_noise_scale_is_learned_without_bias_by_default():
    # `linear_means` and its own sampler, tuned to the population: biased by the order of 1/N, here below 1/500.
    filter_ = epf.extended_parameter_filter(tiny.model("scale"), 60)
    assert "linear" in filter_.description
    evidence, means = tiny.unnormalised(filter_, tiny.Y, 1500)
    expected, expected_means = tiny.exact("scale")
    tiny.assert_unbiased(evidence, expected)
    tiny.assert_unbiased(means, expected_means)
