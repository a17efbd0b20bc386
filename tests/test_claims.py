"""What the benchmarks show at full size, asserted at a size that fits the test run.

z = (filter mean - exact mean) / exact sd, rms over a few data sets. The full tables (20 data sets, T = 1000) put z rms
near c / sqrt(N): bounds here are about three times what they measure, scaled to the number of particles used.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import RESAMPLERS
from tiny import error

import epf_jax as epf
from epf_jax import exact

NUM_SERIES, NUM_STEPS = 4, 200
THRESHOLDS = (0.0, 0.1, 0.5, 1.0)


def z_rms(model, truth, solve, filter_, num_series=NUM_SERIES, num_steps=NUM_STEPS):
    keys = jax.random.split(jax.random.key(11), num_series)
    y = jax.vmap(lambda key: epf.simulate(key, model, truth, num_steps)[1])(keys)
    results = epf.replicate(jax.random.split(jax.random.key(12), num_series), filter_, y, levels=())
    solved = [solve(model, series) for series in y]
    rms = {}
    for name in truth:
        mean, sd = (np.array([getattr(s, kind)[name][-1] for s in solved]) for kind in ("mean", "sd"))
        rms[name] = float(np.sqrt(np.mean(((np.asarray(results.theta.mean[name])[:, -1] - mean) / sd) ** 2)))
    return rms


def sinusoid_posterior(model, y):
    return exact.quadrature(model, y, {"theta": jnp.linspace(-0.6, 1.2, 61)}, exact.nodes_around(y, 0.8, 25))


@pytest.mark.slow
def test_literal_epf_follows_the_exact_posterior_of_sin():
    model = epf.models.sinusoid()
    literal = epf.extended_parameter_filter(
        model, 1000, statistic=epf.taylor(model, order=7), proposal=epf.bootstrap(), resample=epf.multinomial
    )
    # full size: 0.2 to 0.25
    assert z_rms(model, {"theta": 0.7}, sinusoid_posterior, literal)["theta"] < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("statistic", [epf.chebyshev, lambda m: epf.taylor(m, order=7)], ids=["chebyshev", "taylor"])
def test_fully_adapted_epf_is_closer_still(statistic):
    model = epf.models.sinusoid()
    adapted = epf.extended_parameter_filter(model, 500, statistic=statistic(model))
    # full size, N = 1000: 0.04
    assert z_rms(model, {"theta": 0.7}, sinusoid_posterior, adapted)["theta"] < 0.2


@pytest.mark.slow
def test_chebyshev_learns_both_parameters_of_star_by_default():
    model = epf.models.star()

    def solve(model, y):
        axes = {"gamma": jnp.linspace(-0.8, 2.6, 30), "c": jnp.linspace(-2.0, 6.5, 35)}
        return exact.quadrature(model, y, axes, exact.nodes_around(y, 0.8, 25))

    rms = z_rms(model, {"gamma": 1.0, "c": 3.0}, solve, epf.extended_parameter_filter(model, 200), num_series=2)
    # full size, N = 100: 0.11
    assert rms["gamma"] < 0.35
    assert rms["c"] < 0.35


@pytest.mark.slow
def test_storvik_agrees_with_the_kalman_evidence_on_a_grid():
    model = epf.models.ar1()
    rms = z_rms(
        model,
        {"phi": 0.8},
        lambda m, y: exact.kalman(m, y, {"phi": jnp.linspace(0.0, 1.2, 61)}),
        epf.storvik_filter(model, 1000),
    )
    # full size: 0.1
    assert rms["phi"] < 0.3


@pytest.mark.slow
def test_both_noise_scales_of_a_local_level_are_learned():
    model = epf.models.local_level()
    truth = {"level_noise": 0.5, "observation_noise": 1.0}

    def solve(model, y):
        axes = {"level_noise": jnp.linspace(0.1, 1.6, 50), "observation_noise": jnp.linspace(0.3, 2.0, 50)}
        return exact.kalman(model, y, axes)

    rms = z_rms(model, truth, solve, epf.extended_parameter_filter(model, 1000), num_series=3, num_steps=100)
    # Noise scales coalesce faster than coefficients; three data sets of T = 100 at N = 1000.
    assert rms["level_noise"] < 0.6
    assert rms["observation_noise"] < 0.6


@pytest.mark.slow
def test_a_vector_state_with_three_parameters_is_learned_by_default():
    model = epf.models.pendulum()
    truth = {"stiffness": 5.0, "damping": 0.4, "noise": 0.15}
    _, y = epf.simulate(jax.random.key(1), model, truth, 150)
    y = y.at[10, 1].set(jnp.nan).at[40].set(jnp.nan)
    results = epf.run(jax.random.key(2), epf.extended_parameter_filter(model, 100), y)
    prior_sd = {"stiffness": 4.0 * 0.53, "damping": 0.3 * 0.6, "noise": 0.2 * 0.6}  # of the log-normals, roughly
    for name, value in truth.items():
        mean, sd = float(results.theta.mean[name][-1]), float(results.theta.sd[name][-1])
        assert abs(mean - value) < 4 * sd
        assert 0 < sd < prior_sd[name]


@pytest.mark.slow
def test_sir_degenerates_to_a_few_values_of_theta():
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, 200)
    final = epf.run(jax.random.key(1), epf.bootstrap_filter(model, 1000), y, levels=()).final
    assert len(np.unique(final.theta["theta"])) <= 5
    final = epf.run(jax.random.key(1), epf.extended_parameter_filter(model, 1000), y, levels=()).final
    assert len(np.unique(final.theta["theta"])) > 500


@cache
def linear_data():
    model = epf.models.ar1(observation_noise=1.0)
    _, y = epf.simulate(jax.random.key(4), model, {"phi": 0.8}, 10)
    return model, y, float(exact.kalman_log_evidence(model, {"phi": 0.8}, y)[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "threshold"),
    [(s, t) for s in RESAMPLERS for t in THRESHOLDS],
)
def test_evidence_is_unbiased_whether_or_not_a_step_resamples(scheme, threshold):
    model, y, log_evidence = linear_data()
    resample = epf.when_ess_below(threshold, RESAMPLERS[scheme])
    filter_ = epf.bootstrap_filter(model, 64, theta={"phi": 0.8}, resample=resample)
    bias, standard_error, _ = error(filter_, y, log_evidence, num_runs=200)
    assert abs(bias) < 4 * standard_error
    assert standard_error < 0.15


@pytest.mark.slow
def test_storviks_evidence_integrates_theta_out():
    model, y, _ = linear_data()
    log_evidence = float(exact.kalman(model, y, {"phi": jnp.linspace(-3.0, 3.0, 301)}).log_evidence[-1])
    for proposal in (epf.bootstrap(), epf.fully_adapted(model)):
        filter_ = epf.storvik_filter(model, 64, proposal=proposal, resample=epf.when_ess_below(0.5))
        bias, standard_error, _ = error(filter_, y, log_evidence, num_runs=200)
        assert abs(bias) < 4 * standard_error


@pytest.mark.slow
def test_the_papers_perturbation_keeps_mean_and_sd_of_the_population():
    # With nothing observed, theta' = rho theta + (1 - rho) mean + sqrt(1 - rho^2) sd N(0, 1) has the same two moments.
    model = epf.models.sinusoid()
    N = 20_000
    for kernel in (epf.coordinate_kernel, epf.covariance_kernel):
        filter_ = epf.liu_west_filter(model, N, rho=0.9, kernel=kernel, resample=epf.when_ess_below(0.0))
        state = filter_.init(jax.random.key(0))
        moved, _ = filter_.step(jax.random.key(1), state, jnp.nan)
        before, after = np.asarray(state.theta["theta"]), np.asarray(moved.theta["theta"])
        noise_sd = np.sqrt(1 - 0.9**2) * before.std()
        assert abs(after.mean() - before.mean()) < 4 * noise_sd / np.sqrt(N)
        assert abs(after.std() / before.std() - 1) < 4 * noise_sd / before.std() * np.sqrt(2 / N)
        # each theta shrinks towards the mean by rho: the regression of after on before has slope rho
        slope = np.polyfit(before, after, 1)[0]
        assert abs(slope - 0.9) < 4 * noise_sd / (before.std() * np.sqrt(N))
