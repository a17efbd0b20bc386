"""Importance weights, mixtures and the certificate's numbers, against what is known in closed form."""

import numpy as np
import pytest
from scipy import stats

from epf_jax.core import importance, student_mixtures
from epf_jax.running.certificate import _is_covered

RNG = np.random.default_rng(0)


def one(centre, scale):
    dim = len(centre)
    return student_mixtures.Mixture(np.ones(1), np.asarray([centre], float), np.asarray([np.eye(dim) * scale]))


def test_the_density_of_one_component_is_students():
    z = RNG.standard_normal((20, 3))
    expected = stats.multivariate_t([1.0, 0.0, 0.0], 4.0 * np.eye(3), df=student_mixtures.DEGREES).logpdf(z)
    np.testing.assert_allclose(student_mixtures.log_density(one([1.0, 0.0, 0.0], 2.0), z), expected, rtol=1e-10)


def test_weights_of_draws_from_a_mixture_estimate_one():
    mixture = student_mixtures.pooled([one([0.0, 0.0], 1.0), one([3.0, 1.0], 0.5)], [0.7, 0.3])
    z = student_mixtures.draw(RNG, student_mixtures.widened(mixture, 1.5), 20_000)
    wider = student_mixtures.log_density(student_mixtures.widened(mixture, 1.5), z)
    log_mean, error = importance.log_mean(student_mixtures.log_density(mixture, z) - wider)
    assert abs(log_mean) < 4 * error < 0.1


def test_a_fit_finds_two_modes_and_their_shares():
    z = np.concatenate([RNG.normal(-4.0, 0.5, (1500, 1)), RNG.normal(4.0, 1.0, (500, 1))])
    found = student_mixtures.fit(z, np.full(2000, 1 / 2000))
    assert student_mixtures.modes_apart(found) == 2
    assert abs(found.shares[found.centres[:, 0] < 0].sum() - 0.75) < 0.02


def test_a_fit_of_gaussian_draws_is_one_component():
    z = RNG.standard_normal((1000, 2))
    found = student_mixtures.fit(z, np.full(1000, 1e-3))
    assert len(found.shares) == 1
    np.testing.assert_allclose(found.trils[0] @ found.trils[0].T, np.cov(z.T), atol=0.02)


def test_moments_and_their_errors_are_those_of_repeated_samples():
    """Of 400 repetitions, errors in units of their estimates have unit variance (standard error .07)."""
    scores = []
    for _ in range(400):
        z = RNG.standard_normal((500, 1)) * 1.5
        weights = importance.normalised(stats.norm.logpdf(z[:, 0]) - stats.norm.logpdf(z[:, 0], scale=1.5))
        found = importance.moments(z, weights)
        scores.append((found.mean[0] / (found.error[0] * found.sd[0]), (found.sd[0] - 1) / found.sd_error[0]))
    np.testing.assert_allclose(np.std(scores, axis=0), 1.0, atol=0.28)


@pytest.mark.parametrize("shape", [0.2, 0.9])
def test_the_shape_of_a_pareto_tail_is_found(shape):
    weights = stats.genpareto(shape).rvs(50_000, random_state=1)
    assert abs(importance.tail_shape(weights / weights.sum()) - shape) < 0.12


def test_a_power_leaves_enough_draws_and_none_is_not_a_number():
    log_likelihood = np.concatenate([-0.5 * (30 * RNG.standard_normal(400)) ** 2, [-np.inf] * 100])
    power, weights = importance.temperature(np.zeros(500), log_likelihood, 60.0)
    assert 0 < power < 1
    assert importance.size_of(weights) >= 60.0
    assert importance.temperature(np.zeros(500), 0 * log_likelihood[:400].repeat(2)[:500], 60.0)[0] == 1.0


def test_weights_flattened_where_no_power_will_do():
    base = np.zeros(100)
    base[0] = 500.0
    _, weights = importance.temperature(base, np.zeros(100), 30.0)
    assert importance.size_of(weights) == pytest.approx(30.0, rel=0.01)


def test_a_collapsed_fit_is_not_covered():
    z = RNG.standard_normal((2000, 2))
    posterior = importance.normalised(-0.5 * np.sum((z / 0.6) ** 2, axis=1) + 0.5 * np.sum(z**2, axis=1))
    flat = importance.normalised(0.5 * np.sum(z**2, axis=1) * 0.3)  # a target far wider than the draws
    assert _is_covered(z, posterior)
    assert not _is_covered(z, flat)


def test_one_draw_that_weighs_all_is_known_to_one_sd():
    found = importance.moments(RNG.standard_normal((50, 1)), importance.normalised(np.arange(50) * -100.0))
    np.testing.assert_allclose(found.error, 1.0)
    np.testing.assert_allclose(found.sd_error, 1.0)
