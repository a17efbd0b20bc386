"""Filters of theta with filters of the state inside: against Kalman's recursion, at each theta and on the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import tiny

import epf_jax as epf
from epf_jax.filters.groups import in_groups


def assert_posterior(state, t, num_worth):
    """Weighted means of `tiny.features` within 4.5 errors of so many independent draws."""
    evidence, means = tiny.exact(length=t)
    found = np.asarray(tiny.features(jax.tree.leaves(state.theta)[0], state.x))
    w = np.exp(np.asarray(state.log_weights))
    means, sd = means / evidence[-1], np.sqrt(w @ (found.T - found @ w) ** 2)
    assert np.all(np.abs(found @ w - means) <= 4.5 * sd / np.sqrt(num_worth) + 1e-5), f"t = {t}"
    np.testing.assert_allclose(state.log_evidence, np.log(evidence[-1]), atol=4.5 / np.sqrt(num_worth))


def test_ibis_weighs_by_likelihoods_and_moves_to_the_posterior(x64):
    # Every step resamples and moves. What an observation adds is then the mean of p(y_t | y_1:t-1, theta), by a filter
    # of that theta alone; and 4000 thetas, moved often, are worth some 2000 draws of the posterior.
    model, n = tiny.model(), 4000
    filter_ = epf.smc2_filter(model, n, max_steps=3, inner=epf.kalman(model), num_moves=4, resample=epf.multinomial)
    states, infos = tiny.steps(filter_, tiny.Y)
    for t, (before, info) in enumerate(zip(states, infos, strict=False), start=1):
        logs, *_ = tiny.kalman(np.asarray(before.theta["a"]), tiny.NOISE)
        likelihood = np.diff(logs, axis=0, prepend=0.0)[t - 1]
        _, increment = tiny.normalised(np.asarray(before.log_weights) + likelihood)
        np.testing.assert_allclose(info.log_increment, increment, atol=1e-6)
        assert_posterior(states[t], t, n / 2)


def test_an_exchange_of_inner_filters_leaves_the_posterior_as_it_is():
    # One particle each, then two: without the weights Z_new / Z_old the states would be off by a fifth of their sd.
    n = 20_000
    filter_ = epf.smc2_filter(
        tiny.model(),
        n,
        max_steps=2,
        num_inner=1,
        max_inner=2,
        num_moves=1,
        min_acceptance=1.0,
        proposal=epf.bootstrap(),
        resample=epf.multinomial,
    )
    states, _ = tiny.steps(filter_, tiny.Y[:2])
    for t, state in enumerate(states[1:], start=1):
        assert_posterior(state, t, n / 6)


LONG = 1.5 * np.sin(np.arange(40)) + 0.2 * np.arange(1, 41)


def posterior_of(y):
    """Log-evidence, mean and sd of a after each observation, by the trapezoidal rule."""
    a = np.linspace(-1.5, 2.5, 2001)
    logs, *_ = tiny.kalman(a, tiny.NOISE, y)
    joint = np.exp(logs - 0.5 * ((a - tiny.PRIOR[0]) / tiny.PRIOR[1]) ** 2)
    evidence = joint.sum(axis=1) * (a[1] - a[0]) / np.sqrt(2 * np.pi) / tiny.PRIOR[1]
    p = joint / joint.sum(axis=1, keepdims=True)
    mean = p @ a
    return np.log(evidence), mean, np.sqrt(p @ a**2 - mean**2)


def test_a_window_forgets_nothing_and_its_groups_tell_the_error():
    # 1600 thetas, most of which have moved: three standard errors of some 400 draws are .15, of their sd .11.
    window = epf.smc2_filter(tiny.model(), 400, window=8, inner=epf.kalman(tiny.model()))
    results = epf.run(tiny.KEY, in_groups(window, 4), jnp.asarray(LONG), levels=())
    log_evidence, mean, sd = posterior_of(LONG)
    z = (np.asarray(results.theta.mean["a"]) - mean) / sd
    assert np.max(np.abs(z)) < 0.15
    np.testing.assert_allclose(results.theta.sd["a"], sd, rtol=0.11)
    np.testing.assert_allclose(results.log_evidence, log_evidence, atol=0.3)
    assert np.sqrt(np.mean(z**2)) < 2.0 * np.sqrt(np.mean(np.asarray(results.error) ** 2)) < 0.2
    assert int(results.final.S.anchor.t[0]) == 40


def test_evidence_and_posterior_of_nodes_are_exact_wherever_the_nodes_move(x64):
    model, y = tiny.model(), LONG
    results = epf.run(
        tiny.KEY,
        epf.node_filter(model, inner=epf.kalman(model), num_nodes=31, num_points=1024),
        jnp.asarray(y),
        levels=(),
    )
    log_evidence, mean, sd = posterior_of(y)
    np.testing.assert_allclose(results.log_evidence, log_evidence, atol=1e-3)
    assert np.max(np.abs(np.asarray(results.theta.mean["a"]) - mean) / sd) < 0.02
    np.testing.assert_allclose(results.theta.sd["a"], sd, rtol=0.02)
    assert results.final.S.axes[0, 0] < 0.6 * 5 * tiny.PRIOR[1]  # and they have moved
