"""Filters as parts of a differentiable program: which gradients are right, which are biased, and that none is NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from conformance import FILTERS, MODELS, TRUTHS, one_model_each

import epf_jax as epf
from epf_jax.particles.quantiles import quantiles
from epf_jax.particles.resampling import select
from epf_jax.particles.weights import reweight, uniform_log_weights

KEY, N = jax.random.key(1), 32
LOG_W = jnp.array([0.0, -1.0, -3.0, -jnp.inf, 0.5, -0.2, -8.0, 0.1])
WEIGHING = reweight(uniform_log_weights(8), LOG_W)
X = jnp.arange(8.0)


def ar1(hyper):
    hyper = {"phi": 0.8, "q": 1.0, "r": 0.7, **hyper}
    return epf.StateSpaceModel(
        {},
        lambda theta: dist.Normal(0.0, 1.0),
        lambda theta, x, u: dist.Normal(hyper["phi"] * x, hyper["q"]),
        lambda theta, x, u: dist.Normal(x, hyper["r"]),
    )


def log_evidence(hyper, resample, y, num=N, **options):
    filter_ = epf.bootstrap_filter(ar1(hyper), num, resample=resample)
    return epf.run(KEY, filter_, y, levels=(), **options).log_evidence[-1]


@pytest.mark.parametrize(
    "scheme",
    [pytest.param(epf.systematic, marks=pytest.mark.slow), epf.when_ess_below(0.5)],
    ids=["every step", "now and then"],
)
def test_stop_gradients_change_no_number(scheme):
    y = jnp.array([0.3, -1.0, 2.0, 0.1, 0.8])
    plain, wrapped = (
        epf.run(KEY, epf.bootstrap_filter(ar1({}), N, resample=r), y, levels=(0.5,))
        for r in (scheme, epf.stop_gradient_resampling(scheme))
    )
    jax.tree.map(np.testing.assert_array_equal, plain, wrapped)


@pytest.mark.slow
def test_a_gradient_needs_no_jit():
    def log_evidence(q):
        return epf.run(KEY, epf.bootstrap_filter(ar1({"q": q}), N), jnp.zeros(3), levels=()).log_evidence[-1]

    assert np.isfinite(jax.grad(log_evidence)(1.0))


@pytest.mark.slow
def test_states_without_a_derivative_have_the_exact_gradient_by_score(x64):
    y = jnp.array([0.2, 1.4, 0.9, -0.3, 1.1, 0.8])

    def regimes(hyper):  # x is 0 or 1, and stays with probability 0.8 at hyper = 0
        return epf.StateSpaceModel(
            {},
            lambda theta: dist.Bernoulli(0.5),
            lambda theta, x, u: dist.Bernoulli(logits=(2.0 * x - 1.0) * (1.386 + hyper)),
            lambda theta, x, u: dist.Normal(x * (1.0 + hyper), 0.7),
        )

    def by_sums(hyper):  # over both regimes at every step
        stay = jax.nn.sigmoid(1.386 + hyper)
        p, total = jnp.full(2, 0.5), 0.0
        for value in y:
            p = (stay * p + (1 - stay) * p[::-1]) * jnp.exp(
                dist.Normal(jnp.arange(2) * (1 + hyper), 0.7).log_prob(value)
            )
            p, total = p / p.sum(), total + jnp.log(p.sum())
        return total

    def log_evidence(hyper, key):
        proposal, resample = epf.score_gradient(epf.bootstrap()), epf.stop_gradient_resampling()
        filter_ = epf.bootstrap_filter(regimes(hyper), 40, proposal=proposal, resample=resample)
        return epf.run(key, filter_, y, levels=()).log_evidence[-1]

    num = 2000
    keys = jax.random.split(KEY, num)
    value, slope = jax.jit(lambda keys: jax.lax.map(lambda k: jax.value_and_grad(log_evidence)(0.0, k), keys))(keys)
    ratio = np.exp(np.asarray(value) - float(by_sums(0.0)))  # of the evidence to the exact one: its mean is 1
    wanted = float(jax.grad(by_sums)(0.0))
    error = np.std(ratio * (np.asarray(slope) - wanted)) / np.sqrt(num)
    assert abs(np.mean(ratio * (np.asarray(slope) - wanted))) < 3.0 * error
    assert abs(ratio.mean() - 1.0) < 3.0 * ratio.std() / np.sqrt(num)
    assert error < 0.1 * abs(wanted)


@pytest.mark.slow
def test_states_with_a_regime_have_a_score_gradient_too():
    """Both regimes are alike here, so that Kalman's evidence of the rest of the state has the exact gradient."""
    y = jnp.array([0.3, -0.8, 1.1, 0.4, -0.2])

    def with_regime(noise):
        rest = lambda mean: epf.switching(jnp.array([0.7, 0.3]), lambda k: dist.Normal(mean, noise))  # noqa: E731
        return epf.StateSpaceModel(
            {}, lambda th: rest(0.0), lambda th, x, u: rest(0.5 * x[1]), lambda th, x, u: dist.Normal(x[1], 1.0)
        )

    def without(noise):
        step = lambda mean: dist.Normal(mean, noise)  # noqa: E731
        return epf.StateSpaceModel(
            {}, lambda th: step(0.0), lambda th, x, u: step(0.5 * x), lambda th, x, u: dist.Normal(x, 1.0)
        )

    def log_evidence(noise, key):
        proposal, resample = epf.score_gradient(epf.bootstrap()), epf.stop_gradient_resampling()
        filter_ = epf.bootstrap_filter(with_regime(noise), 40, proposal=proposal, resample=resample)
        return epf.run(key, filter_, y, levels=()).log_evidence[-1]

    exactly = lambda noise: epf.exact.kalman_log_evidence(without(noise), {}, y)[-1]  # noqa: E731
    num = 2000
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(log_evidence), in_axes=(None, 0)))(
        1.0, jax.random.split(KEY, num)
    )
    ratio, wanted = np.exp(np.asarray(value) - float(exactly(1.0))), float(jax.grad(exactly)(1.0))
    off = ratio * (np.asarray(slope) - wanted)
    assert abs(off.mean()) < 3.0 * off.std() / np.sqrt(num)
    assert off.std() / np.sqrt(num) < 0.1


MESH = jax.make_mesh((1,), ("particles",))


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1.0, 0.5])
def test_a_memory_fades_in_what_all_particles_share_too(memory):
    filter_ = epf.extended_parameter_filter(
        epf.models.sinusoid(), 8, resample=epf.stop_gradient_resampling(memory=memory)
    )
    state = filter_.init(KEY)._replace(t=21)  # at the 22nd observation the box stays

    def middle(shift):
        moved = state._replace(S=state.S._replace(middle=state.S.middle + shift))
        return filter_.step(KEY, moved, jnp.array(0.3), jnp.array(22))[0].S.middle

    np.testing.assert_array_equal(jax.jvp(middle, (0.0,), (1.0,))[1], np.full((8, 1), memory))


@pytest.mark.parametrize(
    "scheme",
    [
        epf.systematic,
        epf.soft_resampling(),
        *(pytest.param(s, marks=pytest.mark.slow) for s in (epf.islands(MESH, 0.0), epf.when_ess_below(0.99))),
    ],
    ids=["systematic", "soft", "islands", "now and then"],
)
def test_stop_gradients_are_unbiased_around_any_scheme(scheme):
    base = jnp.asarray(np.random.default_rng(0).normal(size=8))

    def estimate(a, key):
        weighing = reweight(uniform_log_weights(8), a * base)
        chosen = select(key, epf.stop_gradient_resampling(scheme), weighing, X * (1 + a))
        return jnp.exp(weighing.log_increment + chosen.log_increment) * jnp.exp(chosen.log_weights) @ chosen.particles

    wanted = float(jax.grad(lambda a: jnp.mean(jnp.exp(a * base) * X * (1 + a)))(1.0))
    slopes = jax.jit(lambda keys: jax.lax.map(lambda key: jax.grad(estimate)(1.0, key), keys))(
        jax.random.split(KEY, 4000)
    )
    assert abs(float(slopes.mean()) - wanted) < 3.5 * float(slopes.std()) / np.sqrt(4000)  # p < 5e-4 each, seed fixed


@pytest.mark.slow
def test_an_island_without_weight_has_finite_gradients():
    def mean(a):
        weighing = reweight(uniform_log_weights(8), jnp.where(X < 2, -jnp.inf, a * X / 8))
        chosen = select(KEY, epf.islands(MESH, 0.0), weighing, X)
        return jnp.exp(chosen.log_weights) @ chosen.particles + chosen.log_increment

    assert np.isfinite(jax.grad(mean)(1.0))


@pytest.mark.slow
def test_soft_resampling_that_draws_no_particle_of_weight_keeps_them_all():
    weighing = reweight(uniform_log_weights(8), jnp.where(X == 3, 0.0, -jnp.inf))
    drawn = jax.vmap(lambda key: select(key, epf.soft_resampling(0.1, epf.multinomial), weighing, X))(
        jax.random.split(KEY, 100)
    )
    assert not np.any(np.isnan(drawn.log_weights))
    assert 0 < int(drawn.resampled.sum()) < 100  # a share of (1 - .2125)^8 = .15 draws none


def with_hyper(model, hyper):
    """The model with its prior and its noise scaled by hyper-parameters."""

    def scaled(d, by):
        if isinstance(d, dist.MultivariateNormal):
            return dist.MultivariateNormal(d.loc, scale_tril=d.scale_tril * by)
        if isinstance(d, dist.Independent):
            return dist.Normal(d.base_dist.loc, d.base_dist.scale * by).to_event(1)
        return dist.Normal(d.loc, d.scale * by)

    return epf.StateSpaceModel(
        jax.tree.map(lambda d: scaled(d, hyper["prior"]), model.prior, is_leaf=lambda d: hasattr(d, "log_prob")),
        lambda theta: scaled(model.initial(theta), hyper["noise"]),
        lambda theta, x, u: scaled(model.transition(theta, x, u), hyper["noise"]),
        lambda theta, x, u: scaled(model.observation(theta, x, u), hyper["sensor"]),
    )


WITH_GRADIENT = [name for name in FILTERS if not name.startswith("smc2")]


@pytest.mark.slow
def test_a_gradient_through_smc2_is_refused_at_once():
    _, y = epf.simulate(jax.random.key(0), epf.models.ar1(), {"phi": 0.7}, 3)

    def evidence(noise):
        filter_ = epf.smc2_filter(epf.models.ar1(observation_noise=noise), 8, max_steps=3, num_inner=4)
        return epf.run(KEY, filter_, y, levels=()).log_evidence[-1]

    with pytest.raises(TypeError, match="through smc2_filter, which has none"):
        jax.grad(evidence)(0.5)


@pytest.mark.parametrize(("name", "model_name"), one_model_each(WITH_GRADIENT, quick_names=["bootstrap_known_theta"]))
def test_no_gradient_of_any_result_is_nan_with_missing_data(name, model_name):
    _, y = epf.simulate(jax.random.key(0), MODELS[model_name](), TRUTHS[model_name], 6)
    y = y.at[1].set(jnp.nan)
    y = y if y.ndim == 1 else y.at[3, 0].set(jnp.nan)

    def all_results(hyper):
        results = epf.run(KEY, FILTERS[name](with_hyper(MODELS[model_name](), hyper), N), y, levels=(0.1, 0.9))
        parts = {"theta": results.theta, "x": results.x, "evidence": results.log_evidence, "ess": results.ess}
        return {part: sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), 0.0) for part, tree in parts.items()}

    found = jax.jit(jax.jacrev(all_results))({"prior": 1.0, "noise": 1.0, "sensor": 1.0})
    assert np.all(np.isfinite(jax.tree.leaves(found)))
    assert found["evidence"]["noise"] != 0.0
    assert found["evidence"]["sensor"] != 0.0


@pytest.mark.slow
def test_a_step_of_zero_weights_leaves_finite_gradients():
    y = jnp.array([0.3, 1e25, 0.2])

    def last_mean(sensor):
        filter_ = epf.bootstrap_filter(ar1({"r": sensor}), N, resample=epf.stop_gradient_resampling())
        return epf.run(KEY, filter_, y, levels=()).x.mean[-1]

    with pytest.warns(RuntimeWarning, match="zero weight"):
        last_mean(0.7)
    assert np.isfinite(jax.jit(jax.grad(last_mean))(0.7))


@pytest.mark.slow
def test_quantiles_move_with_the_location_and_the_scale_of_the_particles():
    normal = jnp.asarray(np.random.default_rng(0).normal(size=4000))
    levels = jnp.array([0.1, 0.5, 0.9])

    def of(location, scale):
        return quantiles(location + scale * normal, uniform_log_weights(4000), levels)

    d_location, d_scale = jax.jacfwd(of, argnums=(0, 1))(0.0, 1.0)
    np.testing.assert_allclose(d_location, 1.0, rtol=1e-5)
    # The kernel averages z over a width h = 1.06 * 4000^-.2 = .2 about the quantile, and so shifts it by
    # h^2 phi'/phi = -h^2 z: 4% of z.
    np.testing.assert_allclose(d_scale, [-1.2816, 0.0, 1.2816], atol=0.1)


def test_quantiles_move_with_the_weights_of_the_particles():
    # Weights tilted by exp(a v) turn N(0, 1) into N(a, 1): every quantile moves by one.
    normal = jnp.asarray(np.random.default_rng(0).normal(size=40_000))
    tilted = jax.jit(jax.jacfwd(lambda a: quantiles(normal, a * normal, jnp.array([0.1, 0.5, 0.9]))))(0.0)
    # At the 10% quantile cov(1[v < q], v) / density = .175 / .175; the covariance's standard error is .53 / 200 = .0027,
    # so the quotient's .015; four of them.
    np.testing.assert_allclose(tilted, 1.0, atol=0.06)


@pytest.mark.slow
def test_rematerialising_changes_neither_results_nor_gradients():
    y = jnp.array([0.3, -1.0, 2.0, 0.1, 0.8])
    hyper, resample = {"q": 1.0}, epf.stop_gradient_resampling()
    plain = jax.value_and_grad(log_evidence)(hyper, resample, y)
    again = jax.value_and_grad(log_evidence)(hyper, resample, y, remat_every=2)  # two segments and a rest
    np.testing.assert_array_equal(again[0], plain[0])
    np.testing.assert_allclose(again[1]["q"], plain[1]["q"], rtol=1e-5)


@pytest.mark.slow
def test_a_gradient_through_ten_thousand_steps_fits_two_gibibytes():
    model = epf.models.sinusoid

    def evidence(noise, y):
        built = model(noise=noise)
        filter_ = epf.extended_parameter_filter(built, 1000, statistic=epf.taylor(built, 3))
        return epf.run(KEY, filter_, y, levels=(), remat_every=100).log_evidence[-1]

    program = jax.jit(jax.value_and_grad(evidence)).lower(1.0, jnp.zeros(10_000)).compile()
    assert program.memory_analysis().temp_size_in_bytes < 2**31


def test_soft_resampling_weighs_what_it_draws_so_that_means_stay():
    draw = jax.jit(jax.vmap(lambda key: select(key, epf.soft_resampling(0.5), WEIGHING, X)))
    drawn = draw(jax.random.split(KEY, 4000))
    means = jnp.sum(jnp.exp(drawn.log_weights + drawn.log_increment[:, None]) * drawn.particles, axis=1)
    wanted = float(jnp.sum(jnp.exp(WEIGHING.log_weights) * X))
    assert abs(float(means.mean()) - wanted) < 4 * float(means.std()) / np.sqrt(4000)
    np.testing.assert_allclose(jnp.sum(jnp.exp(drawn.log_weights), axis=1), 1.0, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("y", [0.0, pytest.param(1.5, marks=pytest.mark.slow)])
def test_transport_keeps_the_mean_and_leaves_equal_weights(y):
    x = jnp.asarray(np.random.default_rng(0).normal(size=100))
    weighing = reweight(uniform_log_weights(100), -0.5 * ((y - x) / 0.1) ** 2)  # SIN's ratio of noises
    moved = select(KEY, epf.transport_resampling(), weighing, (x, {"theta": x[:, None]}))
    mean = float(weighing.weights @ x)
    sd = float(jnp.sqrt(weighing.weights @ (x - mean) ** 2))
    # Sinkhorn's last half-step makes the new weights equal; the old ones it meets to 1e-3, ott's threshold.
    assert abs(float(moved.particles[0].mean()) - mean) < 1e-3 * sd + 1e-5
    assert float(moved.particles[0].std()) < sd  # blurred, never spread out
    np.testing.assert_allclose(moved.particles[1]["theta"][:, 0], moved.particles[0], rtol=1e-6)
    np.testing.assert_allclose(moved.log_weights, -np.log(100), rtol=1e-6)


@pytest.mark.slow
def test_transport_leaves_out_an_infinite_particle_of_no_weight():
    moved = select(KEY, epf.transport_resampling(), WEIGHING, X.at[3].set(jnp.inf))
    assert np.all(np.isfinite(moved.particles))


def test_transport_takes_statistics_that_would_remember_a_path_without_it():
    model = epf.models.star()
    filter_ = epf.extended_parameter_filter(model, 8, resample=epf.transport_resampling())
    state = jax.eval_shape(filter_.init, KEY)
    assert state.S.opening is None
    assert jax.eval_shape(filter_.step, KEY, state, jnp.ones(()), jnp.asarray(1))[0] == state


@pytest.mark.parametrize(
    "resample",
    [
        epf.soft_resampling(),
        epf.stop_gradient_resampling(),
        pytest.param(epf.transport_resampling(), marks=pytest.mark.slow),
    ],
)
def test_a_cloud_without_weight_is_kept_as_it_is(resample):
    kept = select(KEY, resample, WEIGHING._replace(collapsed=jnp.array(True)), X)
    np.testing.assert_array_equal(kept.particles, X)
    assert not kept.resampled


def test_a_gradient_through_draws_that_have_none_is_refused():
    def evidence(rate):
        model = epf.StateSpaceModel(
            {},
            lambda theta: dist.Poisson(3.0),
            lambda theta, x, u: dist.Poisson(rate + 0.5 * x),
            lambda theta, x, u: dist.Normal(x, 1.0),
        )
        return epf.run(KEY, epf.bootstrap_filter(model, 16), jnp.array([3.0, 4.0]), levels=()).log_evidence[-1]

    with pytest.raises(TypeError, match="through draws from a Poisson, which have none"):
        jax.grad(evidence)(1.0)


def test_a_gradient_with_respect_to_a_mixture_prior_is_refused():
    def evidence(share):
        parts = dist.Normal(jnp.array([0.0, 1.0]), 0.1)
        prior = {"phi": dist.MixtureSameFamily(dist.Categorical(probs=jnp.array([share, 1.0 - share])), parts)}
        model = epf.StateSpaceModel(
            prior,
            lambda theta: dist.Normal(0.0, 1.0),
            lambda theta, x, u: dist.Normal(theta["phi"] * x, 1.0),
            lambda theta, x, u: dist.Normal(x, 1.0),
        )
        return epf.run(KEY, epf.bootstrap_filter(model, 16), jnp.array([3.0, 4.0]), levels=()).log_evidence[-1]

    with pytest.raises(TypeError, match="through draws from a MixtureSameFamily, which have none"):
        jax.grad(evidence)(0.3)


def test_wrong_choices_are_refused_by_name():
    with pytest.raises(TypeError, match="transport_resampling moves particles and chooses no ancestors"):
        epf.bootstrap_filter(ar1({}), N, resample=epf.stop_gradient_resampling(epf.transport_resampling()))
    with pytest.raises(ValueError, match=r"alpha: expected the share .* got 1.0"):
        epf.soft_resampling(1.0)
    with pytest.raises(ValueError, match=r"memory: expected the share .* got 0.0"):
        epf.stop_gradient_resampling(memory=0.0)
    with pytest.raises(TypeError, match=r"proposal: expected epf.bootstrap\(\) or another proposal"):
        epf.score_gradient(epf.bootstrap)
    with pytest.raises(ValueError, match="epsilon: expected a positive amount of blur"):
        epf.transport_resampling(0.0)
    with pytest.raises(TypeError, match="soft_resampling draws its ancestors by a plain scheme"):
        epf.bootstrap_filter(ar1({}), N, resample=epf.soft_resampling(0.5, epf.when_ess_below(0.5)))
    with pytest.raises(TypeError, match="resample: expected a function"):
        epf.bootstrap_filter(ar1({}), N, resample=epf.stop_gradient_resampling("systematic"))
    with pytest.raises(TypeError, match="resample: expected a function"):
        epf.bootstrap_filter(ar1({}), N, resample=epf.stop_gradient_resampling)
    with pytest.raises(TypeError, match="transport_resampling moves particles"):
        select(KEY, epf.transport_resampling(), WEIGHING, jnp.arange(8))
    with pytest.raises(ValueError, match="remat_every: expected a positive whole number"):
        log_evidence({}, epf.systematic, jnp.zeros(3), remat_every=0)
