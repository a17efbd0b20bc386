"""Cases in which a filter could go wrong without an error: each did once, or nearly."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import epf_jax as epf
from epf_jax import exact
from epf_jax.core.densities import log_prob
from epf_jax.filters import liu_west
from epf_jax.particles.proposals import why_not_fully_adapted
from epf_jax.particles.quantiles import quantiles
from epf_jax.particles.weights import mean_and_sd, population
from epf_jax.statistics import from_log_target, why_not_conjugate

EVEN = scipy.stats.norm.ppf((np.arange(100) + 0.5) / 100)[np.random.default_rng(0).permutation(100)]


def model_of(transition, observation, prior=None):
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 0.5)} if prior is None else prior,
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=transition,
        observation=observation,
    )


def moments_on(theta, log_p):
    """Mean and standard deviation of theta, from its log-density on points that are equally spaced in some z."""
    w = np.exp(log_p - log_p.max()) / np.exp(log_p - log_p.max()).sum()
    mean = w @ theta
    return mean, np.sqrt(w @ (theta - mean) ** 2)


def linear(theta, x, u):
    return dist.Normal(theta["a"] * x, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("vague", [10.0, 100.0])
def test_a_vague_prior_with_a_wide_box_is_learned_from(vague):
    # The nodes of the first box lie 7 apart (or 70), the posterior's standard deviation is .3 at the end.
    model = model_of(
        lambda theta, x, u: dist.Normal(theta["a"] + theta["b"] * x, 1.0),
        lambda theta, x, u: dist.Normal(x, 0.3),
        prior={"a": dist.Normal(0.0, vague), "b": dist.Uniform(-1.0, 1.0)},
    )
    _, y = epf.simulate(jax.random.key(0), model, {"a": 1.0, "b": 0.6}, 80)
    truth = exact.kalman(model, y, {"a": np.linspace(-1.0, 4.0, 81), "b": np.linspace(-0.9, 0.99, 80)})
    statistic = epf.chebyshev(model, sampler=epf.random_walk(num_steps=4))
    filter_ = epf.extended_parameter_filter(model, 300, statistic=statistic)
    found = epf.replicate(jax.random.split(jax.random.key(1), 4), filter_, y, levels=())
    for name in "ab":
        z = (found.theta.mean[name][:, -1] - truth.mean[name][-1]) / truth.sd[name][-1]
        # Four keys agree to .05; with the paths' noise and what interpolation leaves, .2 was seen (8 before it was mended).
        assert np.abs(z).max() < 0.5
        assert np.abs(found.theta.sd[name][:, -1] / truth.sd[name][-1] - 1).max() < 0.25


@pytest.mark.slow
def test_one_outlier_does_not_shrink_the_box_to_a_point():
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, 150)
    y = y.at[24].set(4.0)  # leaves a few particles alive at t = 25, when the box is due
    truth = exact.quadrature(model, y, {"theta": np.linspace(-0.8, 1.4, 61)}, exact.nodes_around(y, 0.8, 25))
    filter_ = epf.extended_parameter_filter(model, 1000, statistic=epf.chebyshev(model), proposal=epf.bootstrap())
    results = epf.run(jax.random.key(1), filter_, y, levels=())
    mean, sd = truth.mean["theta"][-1], truth.sd["theta"][-1]
    assert abs(float(results.theta.mean["theta"][-1]) - mean) < 1.5 * sd
    assert float(results.theta.sd["theta"][-1]) > 0.5 * sd


def test_steps_in_theta_or_x_are_not_taken_for_linear():
    threshold = model_of(
        lambda th, x, u: dist.Normal(jnp.where(x > th["a"], 0.1, 0.9) * x, 1.0), lambda th, x, u: dist.Normal(x, 1.0)
    )
    assert "not linear in theta" in why_not_conjugate(threshold)
    for mean in (jnp.round, jnp.sign, lambda x: jnp.where(x > 0, 1.0, -1.0)):
        model = model_of(linear, lambda th, x, u, mean=mean: dist.Normal(mean(x), 0.1))
        assert "not linear in x" in why_not_fully_adapted(model)
    assert why_not_conjugate(epf.models.ar1()) == ""
    # Wherever the step is, and however small in the units of the data.
    change_point = model_of(lambda th, x, u: dist.Normal(0.5 * x + jnp.where(u > th["a"], 2.0, 0.0), 1.0), gaussian)
    assert "not linear in theta" in why_not_conjugate(change_point)
    for mean in (lambda x: jnp.where(x < -5.0, 1.0, 0.0), lambda x: jnp.where(x > 0, 1e-5, 0.0)):
        model = model_of(linear, lambda th, x, u, mean=mean: dist.Normal(mean(x), 1e-6))
        assert "not linear in x" in why_not_fully_adapted(model)
    chosen = lambda th, x, u: dist.Normal(jnp.where((x > 0) & (u > 3), th["a"], 2 * th["a"]) * x, 1.0)  # noqa: E731
    assert why_not_conjugate(model_of(chosen, gaussian)) == ""  # what is chosen by x and u is linear all the same


def gaussian(th, x, u):
    return dist.Normal(x, 1.0)


@pytest.mark.slow
def test_rows_without_noise_that_theta_does_not_enter_say_nothing_of_it():
    """An AR(2) with its companion row, which only copies."""
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 0.5), "b": dist.Normal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(
            jnp.stack([theta["a"] * x[0] + theta["b"] * x[1], x[0]]), jnp.ones_like(x).at[1].set(0.0)
        ).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x[0], 0.3),
    )
    _, y = epf.simulate(jax.random.key(0), model, {"a": 0.5, "b": 0.3}, 40)
    results = epf.run(jax.random.key(1), epf.storvik_filter(model, 1000), y, levels=())
    wanted = exact.kalman(model, y, {name: np.linspace(-0.6, 1.4, 41) for name in ("a", "b")})
    for name in ("a", "b"):
        # 1000 particles whose paths have some hundred ancestors: errors of about a tenth of a posterior sd
        z = (results.theta.mean[name][-1] - wanted.mean[name][-1]) / wanted.sd[name][-1]
        assert abs(float(z)) < 0.4
    assert abs(float(results.log_evidence[-1] - wanted.log_evidence[-1])) < 0.5


def lagged(form):
    """An AR(2) of unknown variance, whose second component is the first's last value."""

    def transition(theta, x, u):
        mean, scale = jnp.stack([theta["phi"] @ x, x[0]]), jnp.stack([jnp.sqrt(theta["v"]), jnp.zeros(())])
        if form == "joint":
            return dist.MultivariateNormal(mean, scale_tril=jnp.diag(scale))
        return dist.Normal(mean, scale).to_event(1)

    return epf.StateSpaceModel(
        prior={"phi": dist.Normal(jnp.zeros(2), 0.5).to_event(1), "v": dist.InverseGamma(3.0, 2.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], 0.3),
    )


STATISTICS_OF_LAGS = {
    "taylor": lambda model: epf.taylor(model, order=2),
    "chebyshev": lambda model: epf.chebyshev(
        model, 9, box=({"phi": -jnp.ones(2), "v": 0.5}, {"phi": jnp.ones(2), "v": 2.0})
    ),
    "conjugate_blocks": epf.conjugate_blocks,
}


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        ("independent", "conjugate_blocks"),
        pytest.param("joint", "taylor", marks=pytest.mark.slow),
        pytest.param("independent", "taylor", marks=pytest.mark.slow),
        pytest.param("independent", "chebyshev", marks=pytest.mark.slow),
    ],
)
def test_lags_in_the_state_leave_every_statistic_what_the_noise_says(form, kept, x64):
    model = lagged(form)
    statistic, coordinates = STATISTICS_OF_LAGS[kept](model), model.parameters
    series = np.random.default_rng(0).normal(size=8)
    path = np.stack([series[1:], series[:-1]], axis=1)
    thetas = [{"phi": jnp.array([0.3, -0.2]), "v": 0.8}, {"phi": jnp.array([0.1, 0.4]), "v": 1.2}]

    def log_densities(path):
        theta = thetas[0]
        S = statistic.init(path[0])
        for before, after in itertools.pairwise(path):
            S = statistic.update(jax.random.key(0), S, theta, before, after, jnp.asarray(jnp.nan), 1)
        return jnp.stack([statistic.log_target(S)(coordinates.to_vector(theta)) for theta in thetas])

    def exactly(theta):
        prior = coordinates.log_prior(coordinates.to_vector(theta))
        return prior + sum(
            scipy.stats.norm(theta["phi"] @ before, theta["v"] ** 0.5).logpdf(after[0])
            for before, after in itertools.pairwise(path)
        )

    found, wanted = jax.jit(log_densities)(jnp.asarray(path)), [exactly(theta) for theta in thetas]
    # Sums and squares are exact; 9 nodes an axis read a log-density that falls by some units to about a thousandth.
    np.testing.assert_allclose(found[1] - found[0], wanted[1] - wanted[0], atol=5e-3 if kept == "chebyshev" else 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("prior", "level"), [(dist.LogNormal(0.0, 3.0), 30.0), (dist.HalfCauchy(1.0), 8.0)])
def test_a_vague_prior_of_one_positive_parameter_leaves_its_posterior(prior, level):
    """A level of data whose states are noise: a posterior by the trapezoidal rule on 20001 points of its logarithm."""
    model = epf.StateSpaceModel(
        prior={"level": prior},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.0, 1.0),
        observation=lambda theta, x, u: dist.Normal(theta["level"] + x, 0.5),
    )
    y = level + np.sqrt(1.25) * np.random.default_rng(0).normal(size=15)
    log_level = np.linspace(-3.0, 6.0, 20001)
    theta = np.exp(log_level)
    log_p = (
        scipy.stats.norm(theta[:, None], np.sqrt(1.25)).logpdf(y).sum(axis=1)
        + np.asarray(prior.log_prob(theta))
        + log_level
    )
    mean, sd = moments_on(theta, log_p)
    results = epf.replicate(jax.random.split(jax.random.key(0), 4), epf.extended_parameter_filter(model, 1000), y)
    found = results.theta.mean["level"][:, -1]
    # Keys differ by about a fifth of a posterior sd, so that the mean of four has a standard error of a tenth.
    assert abs(float(jnp.mean(found)) - mean) < 0.4 * sd
    assert abs(float(jnp.mean(results.theta.sd["level"][:, -1])) / sd - 1.0) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prior", "from_log_distance", "observation", "y"),
    [
        (dist.TruncatedNormal(0.0, 1.0, high=1.0), lambda z: 1.0 - np.exp(z), lambda a: (a, 1.0 + 0.0 * a), 1.3 + EVEN),
        (dist.HalfNormal(1.0), np.exp, lambda a: (0.0 * a, a), 0.003 * EVEN),
    ],
    ids=["above the bound", "of small scale"],
)
def test_data_that_press_a_parameter_to_its_bound_find_it_in_the_first_box(prior, from_log_distance, observation, y):
    """The posterior by the trapezoidal rule on 20001 points of the logarithm of the distance from the bound."""
    walk = lambda theta, x, u: dist.Normal(x, 1.0)  # noqa: E731
    model = model_of(walk, lambda theta, x, u: dist.Normal(*observation(theta["a"])), prior={"a": prior})
    z = np.linspace(-14.0, 3.0, 20001)
    a = from_log_distance(z)
    loc, scale = observation(a[:, None])
    log_p = scipy.stats.norm(loc, scale).logpdf(y).sum(axis=1)
    mean, sd = moments_on(a, log_p + np.asarray(prior.log_prob(a)) + z)
    results = epf.replicate(jax.random.split(jax.random.key(0), 4), epf.extended_parameter_filter(model, 500), y)
    # The paths say nothing: each key's 500 draws of theta give its mean to .045 sd and its sd to 3% and, as they are
    # moved by one step of a walk at each observation, to some three times that; four keys to half of it.
    assert abs(float(jnp.mean(results.theta.mean["a"][:, -1])) - mean) < 0.2 * sd
    assert abs(float(jnp.mean(results.theta.sd["a"][:, -1])) / sd - 1.0) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_precise_data_under_a_vague_prior_find_theta(noise):
    """y = exp(a) + noise, whose mean's logarithm is normal to a part in thousands: nothing else is to be known of a.

    Of 500 draws of N(0, 3) the nearest is 4 to 190 posterior standard deviations off, and its copies are all that is
    left; at the prior's centre log-densities are -1e5 to -4e6, of which float32 keeps no fractions.
    """
    model = model_of(
        lambda theta, x, u: dist.Normal(0.5 * x, 1.0),
        lambda theta, x, u: dist.Normal(jnp.exp(theta["a"]), noise),
        prior={"a": dist.Normal(0.0, 3.0)},
    )
    y = np.exp(5.0) + noise * EVEN[:40]
    mean, sd = np.log(y.mean()), noise / np.sqrt(40) / np.exp(5.0)
    results = epf.replicate(jax.random.split(jax.random.key(0), 3), epf.extended_parameter_filter(model, 500), y)
    # As above; and a is told to float32's digits, 2.4e-7 of 5, a fifth of the smaller sd: three keys share that error.
    assert float(jnp.max(jnp.abs(results.theta.mean["a"][:, -1] - mean))) < 0.5 * sd
    assert float(jnp.max(jnp.abs(results.theta.sd["a"][:, -1] / sd - 1.0))) < 0.3


@pytest.mark.slow
def test_inputs_that_are_numbers_need_no_example():
    """Counts regressed on an input far from zero: the posterior on a grid, in coordinates in which it is round."""
    model = model_of(
        lambda theta, x, u: dist.Normal(0.5 * x, 1.0),
        lambda theta, x, u: dist.Poisson(jnp.exp(theta["a"] + theta["b"] * u)),
        prior={"a": dist.Normal(0.0, 5.0), "b": dist.Normal(0.0, 0.5)},  # rates of float32
    )
    u = np.random.default_rng(4).uniform(20.0, 40.0, 60).astype(np.float32)
    y = np.random.default_rng(5).poisson(np.exp(0.5 + 0.05 * u)).astype(float)
    middle, b = np.linspace(1.5, 2.5, 401)[:, None], np.linspace(-0.02, 0.12, 401)  # of a + 30 b, and of b
    a = middle - 30.0 * b
    rates = a[..., None] + b[:, None] * u
    log_p = (y * rates - np.exp(rates)).sum(axis=-1) - 0.5 * ((a / 5.0) ** 2 + (b / 0.5) ** 2)
    results = epf.run(jax.random.key(1), epf.extended_parameter_filter(model, 1000), y, inputs=u)
    for name, values in (("a", a), ("b", np.broadcast_to(b, a.shape))):
        mean, sd = moments_on(values.ravel(), log_p.ravel())
        # 1000 draws, thinned by resampling: a tenth of an sd and of itself, three times allowed.
        assert abs(float(results.theta.mean[name][-1]) - mean) < 0.3 * sd
        assert abs(float(results.theta.sd[name][-1]) / sd - 1.0) < 0.3


def test_a_state_that_does_not_hold_its_lags_is_impossible():
    theta = {"phi": jnp.array([0.5, 0.2]), "v": jnp.ones(())}
    for model in (lagged("independent"), lagged("joint")):

        @jax.jit
        def density(x, model=model):
            return log_prob(model.transition(theta, jnp.array([0.3, -0.1]) + 0 * x, 1), x)

        np.testing.assert_allclose(density(jnp.array([0.7, 0.3])), scipy.stats.norm(0.13).logpdf(0.7), rtol=1e-5)
        assert float(density(jnp.array([0.7, 0.31]))) == -jnp.inf


def test_noise_in_common_counts_where_a_component_has_none_of_its_own():
    """x_1 is its mean, and x_2 has both noises: a variance of two."""

    @jax.jit
    def density(scale_tril):
        return log_prob(dist.MultivariateNormal(jnp.zeros(2), scale_tril=scale_tril), jnp.array([0.0, 1.0]))

    found = density(jnp.array([[0.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(found, scipy.stats.norm(0.0, np.sqrt(2.0)).logpdf(1.0), rtol=1e-5)


def test_a_noise_that_vanishes_at_some_states_alone_is_no_obstacle():
    """A volatility in its own square root, which is zero below zero."""
    model = epf.StateSpaceModel(
        prior={"k": dist.LogNormal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(jnp.array([0.0, 0.04]), 0.01).to_event(1),
        transition=lambda theta, x, u: dist.Normal(
            jnp.stack([x[0], x[1] + theta["k"] * (0.04 - x[1])]), 0.3 * jnp.sqrt(jnp.maximum(x[1], 0.0)) * jnp.ones(2)
        ).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x[0], 0.1),
    )
    for statistic in (epf.chebyshev, epf.assumed_density, lambda model: epf.taylor(model, order=2)):
        assert statistic(model).moves  # and is not refused


def test_components_without_noise_may_not_hold_theta():
    model = epf.StateSpaceModel(
        prior={"a": dist.LogNormal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(
            jnp.stack([0.5 * x[0], x[1] + theta["a"] * x[0]]), jnp.ones_like(x).at[1].set(0.0)
        ).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x[1], 0.3),
    )
    with pytest.raises(ValueError, match="component without noise whose mean depends on theta"):
        epf.extended_parameter_filter(model, 100)


@pytest.mark.slow
def test_a_transition_with_bounded_support_leaves_theta_learnable():
    model = model_of(
        lambda th, x, u: dist.Uniform(th["a"] * x - 1, th["a"] * x + 1), lambda th, x, u: dist.Normal(x, 0.5)
    )
    _, y = epf.simulate(jax.random.key(0), model, {"a": 0.5}, 30)
    with pytest.warns(UserWarning, match="where the transition's values end depends on theta"):
        filter_ = epf.extended_parameter_filter(model, 200)
    results = epf.run(jax.random.key(1), filter_, y, levels=())
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(results.final.S))
    assert float(results.acceptance.mean()) > 0.05


@pytest.mark.slow
def test_an_impossible_count_is_survived():
    model = model_of(linear, lambda th, x, u: dist.Binomial(10, logits=x + th["a"]))
    filter_ = epf.extended_parameter_filter(model, 100)
    state, step = filter_.init(jax.random.key(1)), jax.jit(lambda key, state, y: filter_.step(key, state, y))
    for t, y in enumerate([5, 4, 30, 5, 5, 5]):  # which `run` would refuse at once
        state, info = step(jax.random.key(t), state, y)
        assert bool(info.collapsed) == (y == 30)
        assert float(info.acceptance) > 0.1
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state.S))


def test_discrete_observations_may_be_missing():
    model = model_of(linear, lambda th, x, u: dist.Categorical(logits=jnp.stack([x, 0 * x])))
    results = epf.run(jax.random.key(1), epf.bootstrap_filter(model, 50), jnp.array([0.0, jnp.nan, 1.0]), levels=())
    np.testing.assert_allclose(results.log_evidence[1], results.log_evidence[0], atol=1e-6)
    assert np.all(np.isfinite(results.log_evidence))


@pytest.mark.slow
def test_infinite_particles_of_zero_weight_do_not_count():
    values = jnp.array([1.0, 3.0, jnp.inf, jnp.nan])
    log_weights = jnp.array([jnp.log(0.5), jnp.log(0.5), -jnp.inf, -jnp.inf])
    mean, sd = mean_and_sd(values, log_weights)
    assert (float(mean), float(sd)) == (2.0, 1.0)
    np.testing.assert_allclose(quantiles(values, log_weights, jnp.array([0.25, 0.75])), [1.0, 3.0], atol=1e-6)
    assert np.all(np.isfinite(population(values[:, None], log_weights, jnp.zeros(1)).scale_tril))


@pytest.mark.slow
def test_taylor_of_a_heavy_tailed_model_stays_near_its_prior():
    model = epf.models.cauchy_ar1()
    _, y = epf.simulate(jax.random.key(0), model, {"a": 0.7}, 40)
    results = epf.run(jax.random.key(1), epf.extended_parameter_filter(model, 100, statistic=epf.taylor(model, 7)), y)
    assert np.max(np.abs(results.final.theta["a"])) <= 6 * 0.2


@pytest.mark.parametrize(
    ("transition", "mu"),
    [
        (lambda th, x, u: dist.LogNormal(1.0, 1.0), np.exp(1.5)),  # its loc is the logarithm's
        (lambda th, x, u: dist.Cauchy(2.0, 1.0), 2.0),  # which has no mean
        (lambda th, x, u: dist.Gamma(3.0, 2.0), 1.5),
    ],
)
def test_auxiliary_weights_look_at_the_mean_or_the_location(transition, mu):
    model = model_of(transition, lambda th, x, u: dist.Normal(x, 1.0))
    found = liu_west._look_ahead(model, model.parameters.to_theta(model.parameters.centre), jnp.zeros(()), 0.5, 1)
    assert float(found) == pytest.approx(float(dist.Normal(mu, 1.0).log_prob(0.5)), rel=1e-5)


@pytest.mark.slow
def test_auxiliary_weights_that_rule_everything_out_are_passed_over():
    model = model_of(linear, lambda th, x, u: dist.Uniform(x - 0.5, x + 0.5))
    y = jnp.array([0.1, 2.8, 0.2])
    results = epf.run(jax.random.key(1), epf.liu_west_filter(model, 2000, auxiliary=True), y, levels=())
    assert np.all(np.isfinite(results.log_evidence))
    assert int(results.num_bad_weights.sum()) == 0


@pytest.mark.slow
def test_oracles_survive_an_outlier_and_the_edge_of_a_support():
    model = epf.models.sinusoid()
    y = np.array([0.0, 50.0, 0.0])
    found = exact.quadrature(model, y, {"theta": np.linspace(-2, 2, 41)}, exact.nodes_around(y, 0.8, 25))
    assert np.all(np.isfinite(found.mean["theta"]))
    level = epf.models.local_level()
    axes = {"level_noise": np.linspace(0.0, 2.0, 11), "observation_noise": np.linspace(0.1, 2.0, 11)}
    assert np.all(np.isfinite(exact.kalman(level, np.zeros(3), axes).mean["level_noise"]))


@pytest.mark.slow
def test_models_and_filters_may_be_built_inside_jit_and_grad():
    y = jnp.array([0.1, -0.3, 0.5])

    def evidence(noise):
        filter_ = epf.extended_parameter_filter(epf.models.sinusoid(noise=noise), 20)
        return epf.run(jax.random.key(0), filter_, y, levels=()).log_evidence[-1]

    value, slope = jax.jit(jax.value_and_grad(evidence))(1.0)
    assert np.isfinite(value)
    assert np.isfinite(slope)
    assert slope != 0


def test_a_prior_too_vague_to_be_represented_is_refused():
    with pytest.raises(ValueError, match=r"prior: the parameter 'a'"):
        model_of(linear, lambda th, x, u: dist.Normal(x, 1.0), prior={"a": dist.Gamma(0.01, 0.01)})


def test_a_sampler_for_the_frozen_statistic_is_refused():
    model = epf.models.ar1()
    with pytest.raises(ValueError, match="sampler: the frozen statistic"):
        epf.extended_parameter_filter(model, 10, statistic=epf.frozen(model), sampler=epf.random_walk())


@pytest.mark.slow
def test_theta_spreads_again_after_an_outlier_that_one_particle_survives():
    # The survivor's copies share one theta. Steps tuned to that population would have no length.
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, 60)
    y = y.at[58].set(4.4)
    for sampler in (epf.random_walk(), epf.grid_sampler()):
        filter_ = epf.extended_parameter_filter(
            model, 200, statistic=epf.taylor(model, 3), sampler=sampler, proposal=epf.bootstrap()
        )
        results = epf.run(jax.random.key(1), filter_, y, levels=())
        sd = results.theta.sd["theta"]
        assert results.ess[58] < 2
        assert sd[59] > 0.5 * sd[57]


@pytest.mark.slow
def test_a_nan_density_of_theta_is_counted_and_told():
    model = epf.StateSpaceModel(
        prior=dist.Normal(0.0, 1.0),
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(jnp.where(theta > 0.5, jnp.nan, theta) * x, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )
    statistic = from_log_target(
        model,
        lambda x_0=None: (),
        lambda key, S, theta, x_prev, x, y, u: S,
        lambda S: lambda z: jnp.where(z[0] > 0.5, jnp.nan, -0.5 * z[0] ** 2),
    )
    filter_ = epf.extended_parameter_filter(model, 64, statistic=statistic, proposal=epf.bootstrap())
    with pytest.warns(RuntimeWarning) as told:  # of the weights of such thetas, too
        results = epf.run(jax.random.key(0), filter_, jnp.ones(4), levels=())
    assert any(re.search(r"density of theta was NaN at \d+ of the places", str(each.message)) for each in told)
    assert int(results.num_bad_densities.sum()) > 0
    assert np.all(np.isfinite(results.theta.mean))


def test_a_step_gives_no_weight_to_what_lies_outside_the_support():
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
        observation=lambda theta, x, u: dist.Uniform(x - 1.0, x + 1.0),  # numpyro masks it
    )
    filter_ = epf.bootstrap_filter(model, 8)
    _, info = filter_.step(jax.random.key(0), filter_.init(jax.random.key(0)), 50.0)
    assert bool(info.collapsed)
