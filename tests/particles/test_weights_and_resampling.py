"""Weights, their moments and quantiles, and every resampling scheme: unbiased, and blind to weights of zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import RESAMPLERS

import epf_jax as epf
from epf_jax.particles.quantiles import by_counting, by_halving, quantiles
from epf_jax.particles.resampling import _inverse_cdf, check_resampler, running_sum, select
from epf_jax.particles.weights import ess, mean_and_sd, population, reweight, uniform_log_weights

W = np.array([0.02, 0.31, 0.0, 0.13, 0.07, 0.0, 0.26, 0.21])
with np.errstate(divide="ignore"):
    LOG_W = np.log(W)
INF, NAN = np.inf, np.nan


# -------------------------------------------------------------------------------------------------------------- weights


def test_the_effective_sample_size_is_the_inverse_sum_of_squares(x64):
    np.testing.assert_allclose(ess(jnp.asarray(LOG_W)), 1 / np.sum(W**2), rtol=1e-12)
    np.testing.assert_allclose(ess(jnp.asarray(LOG_W) - 1000.0), 1 / np.sum(W**2), rtol=1e-9)  # not normalised
    np.testing.assert_allclose(ess(uniform_log_weights(50)), 50.0, rtol=1e-12)
    np.testing.assert_allclose(ess(jnp.array([-INF, 0.0, -INF])), 1.0, rtol=1e-12)


def test_reweighting_adds_the_log_of_the_mean_factor_to_the_evidence(x64):
    factors = np.array([0.5, 2.0, 3.0, 0.0, 1.0, 7.0, 0.25, 1.5])
    with np.errstate(divide="ignore"):
        weighing = reweight(jnp.asarray(LOG_W), jnp.log(jnp.asarray(factors)))
    np.testing.assert_allclose(jnp.exp(weighing.log_weights), W * factors / np.sum(W * factors), rtol=1e-12)
    np.testing.assert_allclose(weighing.log_increment, np.log(np.sum(W * factors)), rtol=1e-12)
    assert int(weighing.num_bad) == 0
    assert not weighing.collapsed


def test_bad_factors_count_as_zero_and_are_counted(x64):
    weighing = reweight(uniform_log_weights(5), jnp.array([0.0, NAN, INF, -INF, 1.0]))
    assert int(weighing.num_bad) == 2  # NaN and +inf; -inf is an honest zero
    np.testing.assert_allclose(jnp.exp(weighing.log_weights), np.array([1, 0, 0, 0, np.e]) / (1 + np.e), rtol=1e-12)
    np.testing.assert_allclose(weighing.log_increment, np.log((1 + np.e) / 5), rtol=1e-12)


def test_weights_that_all_vanish_leave_the_old_ones_and_no_evidence(x64):
    for factors, num_bad in ((jnp.full(8, -INF), 0), (jnp.full(8, NAN), 8), (jnp.full(8, INF), 8)):
        weighing = reweight(jnp.asarray(LOG_W), factors)
        np.testing.assert_allclose(jnp.exp(weighing.log_weights), W, rtol=1e-12)
        assert weighing.log_increment == -INF
        assert weighing.collapsed
        assert int(weighing.num_bad) == num_bad


def test_weighted_means_and_standard_deviations_are_those_of_numpy(x64):
    values = np.random.default_rng(0).normal(size=(8, 3))
    mean, sd = mean_and_sd(jnp.asarray(values), jnp.asarray(LOG_W) + 5.0)
    expected = np.average(values, axis=0, weights=W)
    np.testing.assert_allclose(mean, expected, rtol=1e-12)
    np.testing.assert_allclose(sd, np.sqrt(np.average((values - expected) ** 2, axis=0, weights=W)), rtol=1e-12)
    mean, sd = mean_and_sd(jnp.arange(8), jnp.asarray(LOG_W))  # counts, too
    np.testing.assert_allclose(mean, np.average(np.arange(8), weights=W), rtol=1e-12)


def test_the_population_is_the_weighted_mean_and_covariance_with_a_floor(x64):
    z = np.random.default_rng(1).normal(size=(8, 2))
    found = population(jnp.asarray(z), jnp.asarray(LOG_W), jnp.array([0.1, 0.2]))
    covariance = np.cov(z.T, aweights=W, ddof=0) + np.diag([0.01, 0.04])
    np.testing.assert_allclose(found.mean, W @ z, rtol=1e-12)
    np.testing.assert_allclose(found.scale_tril @ found.scale_tril.T, covariance, rtol=1e-10)
    collapsed = population(jnp.ones((8, 2)), jnp.asarray(LOG_W), jnp.array([0.1, 0.2]))
    np.testing.assert_allclose(collapsed.scale_tril, np.diag([0.1, 0.2]), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_weighted_quantiles_are_those_of_the_sorted_particles(precision):
    rng = np.random.default_rng(2)
    values, weights = rng.normal(size=(200, 2)), rng.exponential(size=200)
    weights[[3, 50]] = 0.0
    levels = np.array([0.013, 0.25, 0.5, 0.777, 0.99])
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)
    found = quantiles(jnp.asarray(values), jnp.asarray(log_weights), jnp.asarray(levels))
    assert found.shape == (2, 5)
    for j in range(2):
        order = np.argsort(values[:, j])
        cumulative = np.cumsum(weights[order]) / np.sum(weights)
        expected = values[order, j][np.searchsorted(cumulative, levels)]
        # 24 halvings of the range, about 6, leave 4e-7; float32 adds its own 1e-7 of values up to 3.
        np.testing.assert_allclose(found[j], expected, atol=1e-6)


@pytest.mark.parametrize("way", [by_halving, by_counting])
def test_both_ways_to_a_quantile_give_the_value_that_reaches_the_level(way, precision):
    rng = np.random.default_rng(3)
    values = np.where(rng.random(500) < 0.5, np.round(rng.normal(size=500)), rng.normal(size=500))  # half of them ties
    weights = rng.exponential(size=500)
    weights[np.argsort(values)[[0, 1, -1]]] = 0.0  # the extremes do not count
    values[[7, 8]], weights[[7, 8]] = (np.inf, -np.inf), 0.0
    weights /= weights.sum()
    levels = np.array([0.9, 0.013, 0.5, 0.5, 0.5001, 0.25, 0.999])  # in no order, two alike, two next to each other
    found = jax.jit(way)(*map(jnp.asarray, (values[None], weights, levels)))[0]
    order = np.argsort(values)
    expected = values[order][np.searchsorted(np.cumsum(weights[order]), levels)]
    # 2^-24 of the range, about 6, are 4e-7; float32 adds its own 1e-7 of values up to 3.
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("way", [by_halving, by_counting])
def test_a_far_value_without_weight_takes_no_precision_from_others(way):
    values = np.random.default_rng(5).normal(size=500).astype(np.float32)
    weights = np.full(500, 1 / 498)
    weights[[0, 1]] = 1e-13, 1e-12  # less than a rounding of all the others together
    values[[0, 1]] = 2.0**31, -(2.0**31)  # a count that overflowed, of a theta that the data rule out
    found = jax.jit(way)(*map(jnp.asarray, (values[None], weights, np.array([0.05, 0.401, 0.95]))))[0]
    expected = np.quantile(values[2:], [0.05, 0.401, 0.95], method="inverted_cdf")
    np.testing.assert_allclose(found, expected, atol=1e-6)  # as above


@pytest.mark.parametrize("way", [by_halving, by_counting])
def test_quantiles_of_equal_values_are_that_value(way):
    found = way(jnp.full((1, 4), 3.7), jnp.full(4, 0.25), jnp.array([0.1, 0.9]))
    np.testing.assert_array_equal(found, np.float32(3.7))


@pytest.mark.parametrize("num", [400, 2400, 10_000])  # by halving, and by counting
def test_a_level_that_equal_weights_meet_is_met(num, precision):
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    values = np.random.default_rng(0).permutation(num).astype(float)
    found = jax.jit(quantiles)(jnp.asarray(values), uniform_log_weights(num), jnp.asarray(levels))
    # The k-th smallest is k - 1; 2^-24 of the range, and float32's rounding of ten thousand, are below a hundredth.
    np.testing.assert_allclose(found, np.round(num * levels) - 1, atol=0.01)


def test_quantiles_of_many_particles_are_counted_and_are_those_of_halving():
    rng = np.random.default_rng(4)
    values, log_weights = rng.normal(size=(3000, 2)).astype(np.float32), rng.normal(size=3000).astype(np.float32)
    levels = jnp.array([0.05, 0.5, 0.95])
    found = jax.jit(quantiles)(jnp.asarray(values), jnp.asarray(log_weights), levels)
    w = jax.nn.softmax(jnp.asarray(log_weights))
    for j in range(2):  # ranges of about 7: 2^-24 of that, and float32's rounding of a value of 3
        np.testing.assert_allclose(found[j], jax.jit(by_halving)(values[:, j][None], w, levels)[0], atol=1e-6)


@pytest.mark.parametrize("dim", [3, 6, 7, 20])
def test_the_scale_of_few_points_in_many_dimensions_is_finite_and_theirs(dim):
    z = np.random.default_rng(dim).normal(size=(4, dim)).astype(np.float32)
    z[:, 1] = 2.0  # which all share
    found = population(jnp.asarray(z), uniform_log_weights(4), jnp.zeros(dim))
    covariance = np.cov(z.T, bias=True)
    # A variance may be larger by ten units in the last place for each dimension, 10 * 20 * 1.2e-7 = 2.4e-5 of it.
    scale_tril = np.asarray(found.scale_tril)
    np.testing.assert_allclose(scale_tril @ scale_tril.T, covariance, rtol=3e-5, atol=3e-6)


def test_quantiles_of_one_heavy_particle_are_that_particle():
    found = quantiles(jnp.array([3.0, -1.0, 7.0]), jnp.array([-INF, 0.0, -INF]), jnp.array([0.01, 0.5, 0.99]))
    np.testing.assert_allclose(found, -1.0, atol=1e-6)  # 24 halvings of a range of 8


# ----------------------------------------------------------------------------------------------------------- resampling


def copies(resample, log_weights, num_keys, seed=0):
    """How often each particle was chosen, one row per key."""
    n = len(log_weights)

    @jax.jit
    def count(keys):
        ancestors = jax.vmap(lambda key: resample(key, jnp.asarray(log_weights)))(keys)
        return jnp.sum(ancestors[:, :, None] == jnp.arange(n), axis=1)

    return np.asarray(count(jax.random.split(jax.random.key(seed), num_keys)))


@pytest.mark.parametrize("name", RESAMPLERS)
def test_resampling_is_unbiased(name):
    num_keys, n = 4000, len(W)
    counts = copies(RESAMPLERS[name], LOG_W, num_keys)
    assert np.all(counts.sum(axis=1) == n)
    # No scheme here varies more than the multinomial one, whose counts have variance n w (1 - w): the mean over 4000
    # keys then has a standard error of at most sqrt(n w (1 - w) / 4000), 0.021 for the heaviest particle.
    error = np.sqrt(n * W * (1 - W) / num_keys)
    assert np.all(np.abs(counts.mean(axis=0) - n * W) <= 4 * error)
    # And against its own spread, which for the others is smaller.
    own = counts.std(axis=0) / np.sqrt(num_keys)
    assert np.all(np.abs(counts.mean(axis=0) - n * W) <= 4 * own + 1e-6)


def zero_patterns(n):
    some = np.random.default_rng(3).exponential(size=n)
    first, last, ends = some.copy(), some.copy(), some.copy()
    first[0] = last[-1] = ends[0] = ends[-1] = 0.0
    half = np.where(np.arange(n) % 2, some, 0.0)
    alone = [np.where(np.arange(n) == i, 1.0, 0.0) for i in (0, n // 2, n - 1)]
    return np.stack([first, last, ends, half, *alone])


@pytest.mark.slow
@pytest.mark.parametrize("name", RESAMPLERS)
def test_particles_of_zero_weight_are_never_chosen(name):
    n = 997  # enough for a cumulative sum in float32 to miss its total
    patterns = zero_patterns(n)
    with np.errstate(divide="ignore"):
        log_weights = np.log(patterns)
    keys = jax.random.split(jax.random.key(1), 40)
    resample = jax.jit(jax.vmap(jax.vmap(RESAMPLERS[name], (None, 0)), (0, None)))
    ancestors = np.asarray(resample(keys, jnp.asarray(log_weights)))  # keys, patterns, n
    assert ancestors.min() >= 0
    assert ancestors.max() < n
    for i, pattern in enumerate(patterns):
        assert np.all(pattern[ancestors[:, i]] > 0)


@pytest.mark.parametrize("num", [1, 7, 8, 9, 20])
def test_a_running_sum_is_that_of_numpy_whatever_its_length(num):
    x = np.arange(1, num + 1, dtype=np.int32)
    np.testing.assert_array_equal(running_sum(jnp.asarray(x)), np.cumsum(x))


def test_positions_on_edges_find_particles_of_positive_weight():
    # Weights 0, 1/4, 0, 1/2, 1/4, 0 are exact in float32. Positions in (0, 1] belong to the particle that reaches them.
    log_weights = jnp.log(jnp.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0]))
    positions = jnp.array([1e-30, 0.25, 0.2500001, 0.75, 0.7500001, 1.0])
    np.testing.assert_array_equal(_inverse_cdf(log_weights, positions), [1, 1, 3, 3, 4, 4])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["systematic", "residual", "stratified"])
def test_copies_stay_close_to_their_expectation(name):
    # Systematic: floor or ceil of N w. Residual: at least the floor. Stratified: less than two away.
    weights = np.random.default_rng(4).dirichlet(np.ones(20))
    counts, expected = copies(RESAMPLERS[name], np.log(weights), 500), 20 * weights
    slack = 1e-4  # a cumulative sum in float32 is off by some 20 * 6e-8
    if name == "systematic":
        assert np.all(counts >= np.floor(expected - slack))
        assert np.all(counts <= np.ceil(expected + slack))
    elif name == "residual":
        assert np.all(counts >= np.floor(expected - slack))
    else:
        assert np.all(np.abs(counts - expected) < 2 + slack)


@pytest.mark.parametrize("name", ["systematic", "residual", "stratified"])
def test_equal_weights_keep_every_particle(name):
    # 41 * (1 / 41) falls short of 1 in float32.
    ancestors = jax.jit(RESAMPLERS[name])(jax.random.key(0), uniform_log_weights(41))
    np.testing.assert_array_equal(np.sort(ancestors), np.arange(41))


def test_weights_need_not_be_normalised():
    log_weights = jnp.log(jnp.array([0.5, 0.25, 0.0, 0.25]))
    for resample in map(jax.jit, RESAMPLERS.values()):
        for key in jax.random.split(jax.random.key(5), 5):
            np.testing.assert_array_equal(resample(key, log_weights), resample(key, log_weights - 64.0))


def test_resampling_only_below_a_threshold_reports_what_it_did():
    key, log_weights = jax.random.key(0), jnp.asarray(LOG_W)
    share = float(ess(log_weights)) / len(W)  # 0.53
    always, never = epf.when_ess_below(share + 0.01), epf.when_ess_below(share - 0.01, epf.multinomial)
    jitted, never, systematic = map(jax.jit, (always, never, epf.systematic))
    ancestors, resampled = jitted(key, log_weights)
    assert resampled
    np.testing.assert_array_equal(ancestors, systematic(key, log_weights))
    ancestors, resampled = never(key, log_weights)
    assert not resampled
    np.testing.assert_array_equal(ancestors, np.arange(len(W)))
    ancestors, resampled = jax.jit(jax.vmap(always, (None, 0)))(key, jnp.stack([log_weights, jnp.zeros(len(W))]))
    np.testing.assert_array_equal(resampled, [True, False])
    np.testing.assert_array_equal(ancestors[0], systematic(key, log_weights))
    np.testing.assert_array_equal(ancestors[1], np.arange(len(W)))


def test_small_weights_keep_their_share_among_millions():
    # Cut off to whole numbers of 2^-30, weights of 2^22 particles (2^8 units on average) lost 1e-3 of their share to the
    # large ones. Systematic resampling errs by less than one copy each: sum w (m/N - w) / sum w^2 has a standard error
    # of about .4 / sqrt(2 N) = 1.4e-4.
    w = np.random.default_rng(0).exponential(size=2**22)
    w /= w.sum()
    ancestors = jax.jit(epf.systematic)(jax.random.key(1), jnp.log(jnp.asarray(w, jnp.float32)))
    copies = np.bincount(ancestors, minlength=len(w))
    assert abs(np.sum(copies / len(w) * w) / np.sum(w * w) - 1.0) < 5e-4


def test_more_particles_than_float32_tells_apart_are_warned_of():
    with pytest.warns(RuntimeWarning, match="num_particles: resampling in float32 distinguishes 16777216 positions"):
        check_resampler(epf.systematic, 2**25)


@pytest.mark.slow
def test_selection_resets_weights_only_where_it_resampled():
    key, log_weights = jax.random.key(0), jnp.asarray(LOG_W)
    particles = {"x": jnp.arange(8.0), "theta": jnp.arange(16.0).reshape(8, 2)}
    weighing = reweight(uniform_log_weights(8), log_weights)
    log_weights = weighing.log_weights
    done = select(key, epf.systematic, weighing, particles)
    assert done.resampled
    np.testing.assert_array_equal(done.particles["x"], done.ancestors)
    np.testing.assert_array_equal(done.particles["theta"], np.arange(16.0).reshape(8, 2)[done.ancestors])
    np.testing.assert_allclose(done.log_weights, -np.log(8.0), rtol=1e-6)
    np.testing.assert_allclose(done.ess, 1 / np.sum(W**2), rtol=1e-5)
    for kept in (
        select(key, epf.when_ess_below(0.1), weighing, particles),
        select(key, epf.systematic, weighing._replace(collapsed=jnp.array(True)), particles),
    ):
        assert not kept.resampled
        np.testing.assert_array_equal(kept.particles["x"], np.arange(8.0))
        np.testing.assert_array_equal(kept.log_weights, log_weights)


def test_moments_of_nothing_are_nothing():
    for found in mean_and_sd(jnp.zeros((5, 0)), uniform_log_weights(5)):
        assert found.shape == (0,)


@pytest.mark.parametrize("columns", [1, 3, 40])
def test_moments_of_many_particles_do_not_drift(columns):
    num = 100_000
    values = (100.0 + 0.01 * np.random.default_rng(0).normal(size=(num, columns))).astype(np.float32)
    mean, sd = jax.jit(mean_and_sd)(jnp.asarray(values), uniform_log_weights(num).astype(jnp.float32))
    exact = values.astype(float)
    # Numbers of float32 near 100 are 7.6e-6 apart; a sum of so many in one part is off by a thousand times that.
    np.testing.assert_allclose(mean, exact.mean(axis=0), atol=4 * 7.6e-6)
    np.testing.assert_allclose(sd, exact.std(axis=0), rtol=1e-3)
