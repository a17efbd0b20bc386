"""SMC^2 against Kalman: evidence, theta and state, with inner filters that double in size on the way."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax import exact
from epf_jax.filters.inner_sizes import in_sizes, rerun_each, start_each
from epf_jax.filters.memory import empty_memory
from epf_jax.particles.proposals import why_not_fully_adapted

T, N, RUNS = 40, 64, 48
GRID = np.linspace(-1.2, 1.6, 281)


@cache
def model():
    return epf.models.ar1()


@cache
def case():
    _, y = epf.simulate(jax.random.key(3), model(), {"phi": 0.7}, T)
    return model(), y, exact.kalman(model(), y, {"phi": GRID})


@cache
def doubling_filter():
    """The first rejuvenation doubles the inner filters, whatever its acceptance: all parts are at work."""
    return epf.smc2_filter(model(), N, max_steps=T, num_inner=8, max_inner=16, min_acceptance=1.0)


@cache
def runs():
    _, y, _ = case()
    found = [epf.run(jax.random.key(seed), doubling_filter(), y, levels=()) for seed in range(RUNS)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *found)


def within_standard_errors(values, expected, num=4.0, slack=0.0):
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return abs(np.mean(values) - expected) < num * error + slack


def exact_state_moments(y, phi, posterior):
    """Mean and sd of x_T: the scalar Kalman filter written out on the grid of phi, mixed by its posterior."""
    m, P = np.zeros_like(phi), np.ones_like(phi)
    for value in np.asarray(y, float):
        m, P = phi * m, phi**2 * P + 1.0
        gain = P / (P + 0.25)
        m, P = m + gain * (value - m), (1 - gain) * P
    w = posterior / posterior.sum()
    mean = w @ m
    return mean, np.sqrt(w @ (P + (m - mean) ** 2))


def test_inner_filters_of_every_size_begin_with_the_initial_law():
    sizes = (64, 128)
    inner = in_sizes(model(), sizes, epf.quasi_random(epf.fully_adapted(model())))
    theta = {"phi": jnp.array([0.5, 0.7])}
    for level, size in enumerate(sizes):
        filters = jax.jit(lambda key, level=level: start_each(key, inner, level, theta))(jax.random.key(0))
        weights = np.exp(filters.log_weights)
        assert np.sum(weights > 0, axis=1).tolist() == [size, size]
        mean = np.sum(weights * filters.x, axis=1)
        sd = np.sqrt(np.sum(weights * filters.x**2, axis=1) - mean**2)
        # N(0, 1) at evenly spread points, one of which, of a weight of at most 1/64, may lie six units out.
        assert np.all(np.abs(mean) < 6 / 64)
        assert np.all(np.abs(sd**2 - 1) < 36 / 64)


@pytest.mark.slow
def test_rerun_filters_are_unbiased_for_as_many_steps_as_asked_for():
    model, y, _ = case()
    inner = in_sizes(model, (8, 16), epf.fully_adapted(model))
    memory = empty_memory(model, T)._replace(y=y, u=jnp.arange(1, T + 1))
    theta = {"phi": jnp.full(400, 0.6)}

    @jax.jit
    def rerun(key, level, theta, memory, num_steps):
        start = start_each(key, inner, level, theta), jnp.zeros(400)
        return rerun_each(jax.random.fold_in(key, 1), inner, level, theta, memory, num_steps, start)

    exactly = np.asarray(exact.kalman_log_evidence(model, {"phi": 0.6}, y))
    spreads = []
    for level in (0, 1):
        found, log_evidence = rerun(jax.random.key(level), jnp.asarray(level), theta, memory, jnp.asarray(25))
        log_ratio = np.asarray(log_evidence) - exactly[24]
        assert within_standard_errors(np.exp(log_ratio), 1.0)
        assert np.isfinite(found.log_weights).sum(axis=1).tolist() == [8 * 2**level] * 400
        spreads.append(np.var(log_ratio))
    assert 1.5 < spreads[0] / spreads[1] < 3.0  # twice the particles, half the variance, known to 10% from 400 each


@pytest.mark.slow
def test_the_evidence_is_kalmans_though_inner_filters_are_exchanged():
    # Rejuvenation and the exchange are adaptive, so that the mean of exp(estimate - exact) is 1 up to a bias of order
    # 1/N = .016 of what adaptation does, much below 4 standard errors of 48 runs.
    ratio = np.exp(runs().log_evidence - case()[2].log_evidence)
    for t in (5, 20, T - 1):
        assert within_standard_errors(ratio[:, t], 1.0)
    assert np.std(np.log(ratio[:, -1])) < 0.5


@pytest.mark.slow
def test_theta_has_the_exact_posterior():
    truth = case()[2]
    mean, sd = truth.mean["phi"][-1], truth.sd["phi"][-1]
    z = (runs().theta.mean["phi"][:, -1] - mean) / sd
    # 64 weighted particles of ESS 32 to 64 have means within 1/sqrt(32) = .18 sd, more where copies are not yet moved.
    assert np.sqrt(np.mean(z**2)) < 0.3
    assert within_standard_errors(z, 0.0)
    # A sample's sd falls short of the exact one by 1/(2 ESS), at most .016.
    assert within_standard_errors(runs().theta.sd["phi"][:, -1] / sd, 1.0, slack=0.016)


@pytest.mark.slow
def test_the_states_are_drawn_from_the_mixture_of_the_inner_filters():
    _, y, truth = case()
    mean, sd = exact_state_moments(y, GRID, np.exp(truth.log_density[-1] - truth.log_density[-1].max()))
    # One state for each of 64 thetas: a mean's error is sd / 8, and over 48 runs sd / 55.
    assert within_standard_errors(runs().x.mean[:, -1], mean)
    assert np.std(runs().x.mean[:, -1]) < 0.25 * sd
    assert within_standard_errors(runs().x.sd[:, -1], sd, slack=0.016 * sd)


@pytest.mark.slow
def test_theta_moves_where_the_ess_was_low_and_nowhere_else():
    found = runs()
    np.testing.assert_array_equal(found.resampled, found.ess < 0.5 * N)
    np.testing.assert_array_equal(found.acceptance > 0, found.resampled)
    assert found.resampled.sum(axis=1).min() >= 1
    assert found.resampled.sum(axis=1).max() <= 10  # once the posterior has settled, moves are rare


@pytest.mark.slow
def test_inner_filters_double_at_low_acceptance_and_stop_at_the_largest():
    found = runs()
    np.testing.assert_array_equal(found.final.S.level, np.minimum(found.resampled.sum(axis=1), 1))
    used = np.isfinite(found.final.S.filters.log_weights).sum(axis=-1)
    np.testing.assert_array_equal(used, np.broadcast_to(8 * 2 ** found.final.S.level[:, None], used.shape))


@pytest.mark.slow
def test_the_memory_holds_the_series():
    np.testing.assert_array_equal(runs().final.S.memory.y[0], case()[1])
    np.testing.assert_array_equal(runs().final.S.memory.u[0], np.arange(1, T + 1))


def test_a_series_longer_than_the_memory_is_refused():
    message = r"^y: 42 observations after 0 .* the 40 that .*max_steps=42"
    with pytest.raises(ValueError, match=message):
        epf.run(jax.random.key(0), doubling_filter(), jnp.zeros(T + 2))
    with pytest.raises(ValueError, match=message):
        epf.replicate(jax.random.split(jax.random.key(0), 2), doubling_filter(), jnp.zeros(T + 2))
    start = jax.eval_shape(doubling_filter().init, jax.random.key(0))
    final = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), start)._replace(t=jnp.asarray(T))
    with pytest.raises(ValueError, match=r"^y: 1 observations after 40"):
        epf.run(jax.random.key(0), doubling_filter(), jnp.zeros(1), state=final)


def test_the_inner_proposal_is_the_best_that_the_model_allows():
    assert "proposal fully adapted" in repr(doubling_filter())
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.StudentT(4.0, theta["a"] * x, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )
    assert why_not_fully_adapted(model)
    assert "proposal defensive" in repr(epf.smc2_filter(model, 8, max_steps=4, num_inner=4))


def reads_inputs():
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x + u, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )


@pytest.mark.parametrize("build", [epf.smc2_filter, epf.resample_move_filter])
def test_inputs_that_the_memory_cannot_hold_are_refused(build):
    filter_ = build(reads_inputs(), 8, max_steps=4)
    with pytest.raises(ValueError, match=r"^inputs: .*int32.*came as .*float32.*for_inputs\(inputs\[0\]\)"):
        epf.run(jax.random.key(0), filter_, jnp.zeros(3), inputs=jnp.ones(3))


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("^max_steps: expected a positive whole number, got 0. It is how many", {"max_steps": 0}),
        ("^max_steps: expected one of max_steps and window, got 10 and 5. Give", {"window": 5}),
        ("^num_particles: a window of 1 parameters needs at least 12, got 8", {"max_steps": None, "window": 5}),
        ("^num_inner: expected a positive whole number, got 2.5", {"num_inner": 2.5}),
        ("^max_inner: expected a whole number of at least 64, got 32", {"max_inner": 32}),
        ("^num_moves: expected a positive whole number, got 0", {"num_moves": 0}),
        ("^min_acceptance: expected an acceptance rate from 0 to 1, got 15", {"min_acceptance": 15}),
        ("^resample: transport_resampling moves particles", {"resample": epf.transport_resampling()}),
    ],
)
def test_wrong_arguments_are_refused_by_name(message, arguments):
    with pytest.raises((ValueError, TypeError), match=message):
        epf.smc2_filter(model(), 8, **({"max_steps": 10} | arguments))


def test_a_model_with_nothing_to_learn_is_refused():
    known = epf.StateSpaceModel(
        prior={},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )
    with pytest.raises(ValueError, match=r"^smc2_filter: the model's prior is empty.*epf.bootstrap_filter"):
        epf.smc2_filter(known, 8, max_steps=10)


@pytest.mark.slow
def test_a_step_beyond_the_memory_is_reported_and_moves_nothing():
    model, y, _ = case()
    resample = epf.when_ess_below(1.0)  # every step
    filter_ = epf.smc2_filter(model, 16, max_steps=3, num_inner=8, max_inner=8, resample=resample)
    state = filter_.init(jax.random.key(0))
    reports = []
    for t in range(5):
        before = np.sort(np.asarray(state.theta["phi"]))
        state, info = filter_.step(jax.random.key(t + 1), state, y[t])
        reports.append((bool(info.overflowed), float(info.acceptance) > 0))
    assert reports == [(False, True)] * 3 + [(True, False)] * 2
    assert set(np.asarray(state.theta["phi"])) <= set(before)
    assert np.isfinite(state.log_evidence)


@pytest.mark.slow
def test_runs_of_a_batch_that_differ_in_size_and_moves_are_those_run_alone():
    _, y, _ = case()
    keys = jnp.stack([jax.random.key(seed) for seed in range(4)])
    batch = epf.replicate(keys, doubling_filter(), y, levels=())
    # 40 steps, each off by a few eps = 1.2e-7 of numbers of size ~60; a decision could flip, and did not for these keys.
    np.testing.assert_allclose(batch.log_evidence, runs().log_evidence[:4], rtol=1e-4)
    np.testing.assert_array_equal(batch.resampled, runs().resampled[:4])


@pytest.mark.slow
def test_inputs_are_remembered_and_used_when_the_past_is_run_again():
    model = reads_inputs(jnp.zeros(()))
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=T) * 2.0)
    _, y = epf.simulate(jax.random.key(1), model, {"a": 0.6}, T, inputs=inputs)
    truth = exact.kalman(model, y, {"a": GRID}, inputs=inputs)
    filter_ = epf.smc2_filter(model, N, max_steps=T, num_inner=8, max_inner=8)
    found = [epf.run(jax.random.key(seed), filter_, y, inputs=inputs, levels=()) for seed in range(16)]
    z = [(float(r.theta.mean["a"][-1]) - truth.mean["a"][-1]) / truth.sd["a"][-1] for r in found]
    assert within_standard_errors(z, 0.0)
    assert np.sqrt(np.mean(np.square(z))) < 0.3
    assert within_standard_errors([np.exp(float(r.log_evidence[-1]) - truth.log_evidence[-1]) for r in found], 1.0)


@pytest.mark.slow
def test_the_sinusoids_posterior_is_that_of_quadrature():
    model = epf.models.sinusoid()
    filter_ = epf.smc2_filter(model, 200, max_steps=100, num_inner=16, max_inner=32)
    for seed in range(3):
        _, y = epf.simulate(jax.random.key(seed), model, {"theta": 0.7}, 100)
        truth = exact.quadrature(model, y, {"theta": np.linspace(-0.8, 1.4, 111)}, exact.nodes_around(y, 0.8, 25))
        found = epf.run(jax.random.key(100 + seed), filter_, y, levels=())
        z = (float(found.theta.mean["theta"][-1]) - truth.mean["theta"][-1]) / truth.sd["theta"][-1]
        assert abs(z) < 0.4  # 4 standard errors of an ESS of 100
        assert abs(float(found.theta.sd["theta"][-1]) / truth.sd["theta"][-1] - 1) < 0.3  # 4 / sqrt(2 * 100)
        assert abs(float(found.log_evidence[-1]) - truth.log_evidence[-1]) < 1.0  # 4 times the sd of .25 seen


# ------------------------------------------------------------------------------------------------- Kalman's inside


def monthly():
    """A level and a season of twelve months, eleven of which the state keeps; scales unknown."""

    def transition(theta, x, u):
        level, months = x[:1], x[1:]
        mean = jnp.concatenate([level, -jnp.sum(months, keepdims=True), months[:-1]])
        scale = jnp.concatenate([theta["level"][None], theta["season"][None], jnp.zeros(10)])
        return dist.Normal(mean, scale).to_event(1)

    return epf.StateSpaceModel(
        prior={name: dist.LogNormal(-1.0, 0.5) for name in ("level", "season", "sensor", "start")},
        initial=lambda theta: dist.Normal(jnp.zeros(12), theta["start"]).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0] + x[1], theta["sensor"]),
    )


@pytest.mark.slow
def test_every_thetas_likelihood_is_kalmans_where_theta_never_moves():
    model = monthly()
    truth = {"level": 0.3, "season": 0.1, "sensor": 0.5, "start": 1.0}
    y = epf.simulate(jax.random.key(0), model, truth, 15)[1].at[4].set(jnp.nan)
    never = epf.when_ess_below(0.0)
    filter_ = epf.smc2_filter(model, 8, max_steps=15, inner=epf.kalman(model), resample=never)
    results = epf.run(jax.random.key(1), filter_, y, levels=())
    by_kalman = jax.jit(jax.vmap(lambda theta: exact.kalman_log_evidence(model, theta, y)[-1]))(results.final.theta)
    # 15 terms of size 1 in float32, rounded some tens of times each: 1e-7 * 15 * 30 = 5e-5.
    np.testing.assert_allclose(results.final.S.log_evidence, by_kalman, atol=2e-4)
    mean_of_all = jax.scipy.special.logsumexp(by_kalman) - np.log(8)
    np.testing.assert_allclose(results.log_evidence[-1], mean_of_all, atol=2e-4)
    weights = jax.nn.softmax(by_kalman)
    np.testing.assert_allclose(results.theta.mean["level"][-1], weights @ results.final.theta["level"], rtol=1e-3)


@pytest.mark.slow
def test_a_vague_start_leaves_kalmans_likelihood_its_digits():
    def trend(start):
        return epf.StateSpaceModel(
            prior={"noise": dist.LogNormal(0.0, 0.5)},
            initial=lambda theta: dist.Normal(jnp.zeros(2), start).to_event(1),
            transition=lambda theta, x, u: dist.Normal(jnp.stack([x[0] + x[1], x[1]]), 0.3).to_event(1),
            observation=lambda theta, x, u: dist.Normal(x[0], theta["noise"]),
        )

    y = np.array([3.0, 4.1, 5.2, 5.9, 7.1, 8.3])
    found = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            law = epf.kalman(trend(1000.0))
            states, total = law.start(None, {"noise": jnp.asarray(1.0)}), 0.0
            for t, value in enumerate(y):
                states, info = law.step(None, states, jnp.asarray(value), t)
                total += float(info.log_increment)
            found.append(total)
    # Six terms of size 10, rounded to 1e-6 each some tens of times in float32.
    assert abs(found[0] - found[1]) < 1e-3


@pytest.mark.slow
def test_with_kalmans_inside_posterior_and_evidence_are_exact():
    model, y, truth = case()
    filter_ = epf.smc2_filter(model, 1000, max_steps=T, inner=epf.kalman(model))
    results = epf.run(jax.random.key(0), filter_, y, levels=())
    mean, sd = truth.mean["phi"][-1], truth.sd["phi"][-1]
    # 1000 particles of ESS 500 and more: standard errors of 1/sqrt(500) = .045 sd, .032 of the sd, four of each.
    assert abs(float(results.theta.mean["phi"][-1]) - mean) < 4 * 0.045 * sd
    assert abs(float(results.theta.sd["phi"][-1]) / sd - 1) < 4 * 0.032
    # Each of the few (at most 10) resampled stretches has weights of relative variance about 1: sqrt(10 / 1000) = .1.
    assert abs(float(results.log_evidence[-1]) - truth.log_evidence[-1]) < 4 * 0.1
    x_mean, x_sd = exact_state_moments(y, GRID, np.exp(truth.log_density[-1] - truth.log_density[-1].max()))
    assert abs(float(results.x.mean[-1]) - x_mean) < 4 * 0.045 * x_sd


def test_kalmans_filter_is_refused_where_it_is_not_exact():
    with pytest.raises(ValueError, match=r"kalman: the mean of the transition is not linear in x.*epf.sigma_points"):
        epf.kalman(epf.models.sinusoid())
    with pytest.raises(ValueError, match=r"kalman: the transition is Cauchy, not Gaussian"):
        epf.kalman(epf.models.cauchy_ar1())
    model = epf.models.ar1()
    with pytest.raises(ValueError, match="num_inner: it is about particles, and `inner` has none"):
        epf.smc2_filter(model, 10, max_steps=5, num_inner=64, inner=epf.kalman(model))
    with pytest.raises(ValueError, match="inner: it was built for another model"):
        epf.smc2_filter(model, 10, max_steps=5, inner=epf.kalman(epf.models.ar1()))
    with pytest.raises(TypeError, match=r"got KnownTheta. It runs inside of one: epf.smc2_filter"):
        epf.run(jax.random.key(0), epf.kalman(model), jnp.zeros(3))
