"""Filters that read whole paths again, and Liu and West's: identities that hold for every draw."""

import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from scipy.stats import kstest, norm

import epf_jax as epf

pytestmark = pytest.mark.usefixtures("x64")
Y = [*tiny.Y, 0.3, -1.1, 0.9]


def told(path):
    """What the reader at .4 leaves in theta's place."""
    return (tiny.log_path((0.4,), path, Y) - tiny.log_path((0.0,), path, Y)) / 50


def test_resample_move_reads_the_density_along_each_particles_path():
    options = {"sampler": tiny.reader((0.4,)), "proposal": epf.bootstrap(), "resample": epf.when_ess_below(0.9)}
    filter_ = epf.resample_move_filter(tiny.model(), 7, max_steps=6, rate=None, **options)
    states, infos = tiny.steps(filter_, Y)
    for state, path in zip(states[1:], tiny.lineages(states, infos)[1:], strict=True):
        np.testing.assert_allclose(state.theta["a"], told(path), atol=1e-9)
    assert any(info.resampled for info in infos)


def test_the_practical_filter_counts_what_left_its_window_once():
    lag, model = 2, tiny.model()
    statistic = epf.taylor(model, 1, sampler=tiny.reader((0.4,)))
    filter_ = epf.practical_filter(model, 4, lag, num_sweeps=1, num_path_particles=2, statistic=statistic)
    states, infos = tiny.steps(filter_, Y)
    windows = [np.asarray(state.S.x) for state in states]
    for t in range(1, len(states)):
        left = [windows[s][:, :1] for s in range(lag, t)]
        path = np.concatenate([*left, windows[t][:, max(lag - t, 0) :]], axis=1)
        assert path.shape == (4, t + 1)
        np.testing.assert_allclose(states[t].theta["a"], told(path), atol=1e-9)
        np.testing.assert_array_equal(states[t].x, path[:, -1])
        a, x = np.asarray(states[t - 1].theta["a"]), np.asarray(states[t - 1].x)
        w = norm(a * x + 0.6 * np.cos(t) + 0.2 * t, np.hypot(tiny.NOISE, tiny.SENSOR)).logpdf(Y[t - 1])
        np.testing.assert_allclose(infos[t - 1].log_increment, np.log(np.mean(np.exp(w))), atol=1e-9)


def test_liu_and_west_shrink_theta_and_divide_their_look_ahead_out():
    n, rho = 3000, 0.8
    filter_ = epf.liu_west_filter(
        tiny.model(), n, rho, auxiliary=True, kernel=lambda z, log_weights: jnp.full((1, 1), 0.3)
    )
    states, infos = tiny.steps(filter_, Y[:3])
    for t, (before, state, info) in enumerate(zip(states, states[1:], infos, strict=False), start=1):
        log_weights = np.asarray(before.log_weights)
        a, x_prev, x, new = (np.asarray(p) for p in (before.theta["a"], before.x, state.x, state.theta["a"]))
        m = rho * a + (1 - rho) * np.exp(log_weights) @ a
        g = norm(m * x_prev + 0.6 * np.cos(t) + 0.2 * t, tiny.SENSOR).logpdf(Y[t - 1])
        noise = (new - m[info.ancestors]) / (0.3 * np.sqrt(1 - rho**2))
        assert kstest(noise, "norm").statistic < 2.23 / np.sqrt(n)  # a chance of 1e-4
        w = norm(x + 0.2 * t, tiny.SENSOR).logpdf(Y[t - 1]) - g[info.ancestors]
        _, first = tiny.normalised(log_weights + g)
        left, second = tiny.normalised(w - np.log(n))
        np.testing.assert_allclose(state.log_weights, left, atol=1e-9)
        np.testing.assert_allclose(info.log_increment, first + second, atol=1e-9)


def test_kernels_have_the_weighted_spread_of_the_population():
    z = np.array([[0.1, 2.0], [1.3, 0.4], [-0.7, 1.0], [0.2, -1.1]])
    w = np.array([0.1, 0.4, 0.3, 0.2])
    covariance = (w[:, None] * (z - w @ z)).T @ (z - w @ z)
    full = np.asarray(epf.covariance_kernel(jnp.asarray(z), jnp.log(w)))
    np.testing.assert_allclose(full @ full.T, covariance, atol=1e-12)
    each = epf.coordinate_kernel(jnp.asarray(z), jnp.log(w))
    np.testing.assert_allclose(each, np.diag(np.sqrt(np.diag(covariance))), atol=1e-12)
