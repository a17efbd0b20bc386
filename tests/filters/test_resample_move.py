"""Resample-move: the genealogy is the particles' own, moves follow its paths exactly, and Kalman agrees."""

from functools import cache

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import epf_jax as epf
from epf_jax import exact
from epf_jax.filters.memory import Memory
from epf_jax.filters.resample_move import Genealogy, _path_log_density
from epf_jax.models.path_terms import path_terms

T, N, RUNS = 60, 256, 32
RATE = 20.0


@cache
def case():
    model = epf.models.ar1()
    _, y = epf.simulate(jax.random.key(3), model, {"phi": 0.7}, T)
    return model, y, exact.kalman(model, y, {"phi": np.linspace(-1.2, 1.6, 281)})


@cache
def the_filter():
    return epf.resample_move_filter(case()[0], N, max_steps=T, rate=RATE)


@cache
def runs():
    _, y, _ = case()
    found = [epf.run(jax.random.key(seed), the_filter(), y, levels=(), history=True) for seed in range(RUNS)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *found)


def within_standard_errors(values, expected, slack=0.0):
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return abs(np.mean(values) - expected) < 4.0 * error + slack


@pytest.mark.slow
def test_the_genealogy_is_the_history_of_the_run():
    S, history = runs().final.S, runs().history
    np.testing.assert_array_equal(S.x[0, 1:], history.x[0])
    np.testing.assert_array_equal(S.ancestors[0, 1:], history.ancestors[0])
    np.testing.assert_array_equal(S.memory.y[0], case()[1])


@pytest.mark.slow
def test_the_density_that_moves_look_at_is_that_of_the_particles_path(x64):
    model = epf.models.local_level()  # theta enters transition and observation
    rng = np.random.default_rng(0)
    x, ancestors = jnp.asarray(rng.normal(size=(10, 16))), jnp.asarray(rng.integers(0, 16, size=(10, 16)), jnp.int32)
    y = jnp.asarray(rng.normal(size=9)).at[3].set(jnp.nan)
    genealogy = Genealogy(x, ancestors, Memory(y, jnp.arange(1, 10)))
    row, path = 11, []
    for t in range(7, -1, -1):  # seven of nine steps have been taken
        path.append(x[t, row])
        row = ancestors[t, row]
    z = jnp.array([-0.3, 0.2])
    found = _path_log_density(path_terms(model), genealogy, jnp.asarray(11, jnp.int32), jnp.asarray(7), z)
    # The filter leaves out p(x_0), which theta does not enter.
    theta, path = model.parameters.to_theta(z), jnp.stack(path[::-1])
    expected = exact.path_log_likelihood(model, theta, path, y[:7])[-1] - model.initial(theta).log_prob(path[0])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.slow
def test_theta_has_the_exact_posterior_and_the_evidence_is_kalmans():
    truth = case()[2]
    mean, sd = truth.mean["phi"][-1], truth.sd["phi"][-1]
    z = (runs().theta.mean["phi"][:, -1] - mean) / sd
    # Of 256 paths, those of the last moves share a past: an effective 64 of them would give a mean within .125 sd.
    assert np.sqrt(np.mean(z**2)) < 0.25
    # The cloud is a finite sample at each of many resamplings: a bias of order 1/64 is its own, and allowed for.
    assert within_standard_errors(z, 0.0, slack=0.016)
    assert within_standard_errors(runs().theta.sd["phi"][:, -1] / sd, 1.0, slack=0.03)
    # Evidence is unbiased up to the tuning of the random walk to the population, which is of order 1/N.
    assert within_standard_errors(np.exp(runs().log_evidence[:, -1] - truth.log_evidence[-1]), 1.0)


@pytest.mark.slow
def test_moves_come_at_the_rate_over_t():
    moved = runs().acceptance > 0
    assert moved[:, : int(RATE)].all()
    p = np.minimum(1.0, RATE / np.arange(1, T + 1))
    # 32 runs: the number of moves is binomial at each step, of standard error sqrt(sum p (1 - p) / 32).
    assert abs(moved.sum(axis=1).mean() - p.sum()) < 4 * np.sqrt(np.sum(p * (1 - p)) / RUNS)


@pytest.mark.slow
def test_theta_changes_only_where_it_moves():
    history, moved = jax.tree.map(lambda leaf: leaf[0], runs().history), runs().acceptance[0] > 0
    t = int(np.flatnonzero(~moved)[0])
    np.testing.assert_array_equal(history.theta["phi"][t], history.theta["phi"][t - 1][history.ancestors[t]])
    later = int(np.flatnonzero(moved[t:])[0]) + t
    assert np.mean(history.theta["phi"][later] != history.theta["phi"][later - 1][history.ancestors[later]]) > 0.2


@pytest.mark.slow
def test_a_step_beyond_the_memory_is_reported_and_moves_nothing():
    _, y, _ = case()
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), runs().final)
    with pytest.raises(ValueError, match=r"^y: 2 observations after 60 .* the 60 that .*max_steps=62"):
        epf.run(jax.random.key(0), the_filter(), y[:2], state=state)
    for t in range(2):
        before = state.theta["phi"]
        state, info = the_filter().step(jax.random.key(t), state, y[t])
        assert bool(info.overflowed)
        np.testing.assert_array_equal(state.theta["phi"], before[info.ancestors])
    np.testing.assert_array_equal(state.S.memory.y, y)
    assert np.isnan(info.acceptance)  # none was tried
    assert np.isfinite(state.log_evidence)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("^max_steps: expected a positive whole number, got -1. It is how many", {"max_steps": -1}),
        ("^rate: expected a positive number of moves, or None to move at every step, got 0", {"rate": 0.0}),
        ("^num_moves: expected a positive whole number, got 0", {"num_moves": 0}),
        ("^num_moves: 2 random-walk steps .* Give one", {"num_moves": 2, "sampler": epf.random_walk()}),
        ("^sampler: expected", {"sampler": "mala"}),
        ("^resample: transport_resampling moves particles", {"resample": epf.transport_resampling()}),
    ],
)
def test_wrong_arguments_are_refused_by_name(message, arguments):
    with pytest.raises((ValueError, TypeError), match=message):
        epf.resample_move_filter(epf.models.ar1(), 8, **({"max_steps": 10} | arguments))


@pytest.mark.slow
def test_moves_by_a_gradient_along_the_path_have_the_exact_posterior():
    model, y, truth = case()
    sampler = epf.blackjax_sampler(blackjax.mala, step_size=0.7)
    filter_ = epf.resample_move_filter(model, N, max_steps=T, rate=RATE, sampler=sampler)
    assert "blackjax mala steps at rate 20 / t" in repr(filter_)
    found = epf.replicate(jax.random.split(jax.random.key(0), 16), filter_, y, levels=())
    z = (found.theta.mean["phi"][:, -1] - truth.mean["phi"][-1]) / truth.sd["phi"][-1]
    assert np.sqrt(np.mean(z**2)) < 0.25  # as above
    assert within_standard_errors(z, 0.0, slack=0.016)
    # An sd of 64 effective draws is within 1 / sqrt(128) of the exact one, the mean of 16 within a quarter of that.
    assert abs(float(found.theta.sd["phi"][:, -1].mean()) / truth.sd["phi"][-1] - 1) < 4 / np.sqrt(128) / 4
    # A walk of these steps, of variance 2 x .7, without slopes: 2 / pi atan(2 / 1.18) = .66 on a Gaussian; seen: .79.
    assert float(jnp.nanmean(found.acceptance)) > 0.72


@pytest.mark.slow
def test_runs_of_a_batch_that_move_at_different_times_are_those_run_alone(x64):
    model = epf.models.ar1()
    _, y = epf.simulate(jax.random.key(3), model, {"phi": 0.7}, T)
    filter_ = epf.resample_move_filter(model, N, max_steps=T, rate=RATE)
    keys = jnp.stack([jax.random.key(seed) for seed in range(4)])
    batch = epf.replicate(keys, filter_, y, levels=())
    alone = [epf.run(key, filter_, y, levels=()) for key in keys]
    # In float32 rounding flips a decision among the 60 x 256 now and then; here eps is 2e-16, of numbers of size ~90.
    np.testing.assert_allclose(batch.log_evidence, np.stack([one.log_evidence for one in alone]), rtol=1e-9)
    moved = np.stack([one.acceptance > 0 for one in alone])
    np.testing.assert_array_equal(batch.acceptance > 0, moved)
    assert len({tuple(row) for row in moved}) > 1  # at different times indeed


@pytest.mark.slow
def test_the_sinusoids_posterior_is_that_of_quadrature():
    model = epf.models.sinusoid()
    filter_ = epf.resample_move_filter(model, 1000, max_steps=200)
    for seed in range(3):
        _, y = epf.simulate(jax.random.key(seed), model, {"theta": 0.7}, 200)
        truth = exact.quadrature(model, y, {"theta": np.linspace(-0.8, 1.4, 111)}, exact.nodes_around(y, 0.8, 25))
        found = epf.run(jax.random.key(100 + seed), filter_, y, levels=())
        z = (float(found.theta.mean["theta"][-1]) - truth.mean["theta"][-1]) / truth.sd["theta"][-1]
        assert abs(z) < 0.4  # 4 times the z rms of .10 seen at T = 1000
        assert abs(float(found.theta.sd["theta"][-1]) / truth.sd["theta"][-1] - 1) < 0.3
        assert abs(float(found.log_evidence[-1]) - truth.log_evidence[-1]) < 0.5  # 4 times the sd of .12 seen
