"""Claims about single statistics: the paper's theorem, noise scales in theta, Chebyshev boxes."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import epf_jax as epf
from epf_jax import exact
from epf_jax.models.parameters import parameters, theta_inside
from epf_jax.particles.weights import Population
from epf_jax.statistics import statistic_of_path
from epf_jax.statistics.nodal_box import following
from epf_jax.statistics.opening import without_opening

KEY = jax.random.key(0)


def absorb(statistic, x, y, inputs=None):
    def body(S, row):
        u, x_prev, x, y = row
        return statistic.update(KEY, S, None, x_prev, x, y, u), None

    u = jnp.arange(1, len(x)) if inputs is None else inputs
    return jax.jit(lambda x, y: jax.lax.scan(body, statistic.init(x[0]), (u, x[:-1], x[1:], y))[0])(x, y)


LARGE = 2**25  # the next whole number is told from it only where numbers have no fractions


def exact_ratio(model, theta, reference, x, y, inputs=None):
    """log p(theta) + log p(path | theta) - log p(path | reference)."""
    z = model.parameters.to_vector(theta)
    log_prior = model.parameters.log_prior(z) - model.parameters.log_jacobian(z)
    likelihood = partial(exact.path_log_likelihood, model, x=x, y=y, inputs=inputs)
    return log_prior + likelihood(theta)[-1] - likelihood(reference)[-1]


def test_taylor_coefficients_are_those_of_the_papers_theorem_sign_included(x64):
    model = epf.models.sinusoid()
    x, y = epf.simulate(KEY, model, {"theta": 0.7}, 20)
    (_, ((coefficients,),)) = absorb(epf.taylor(model, order=7), x, y)
    x_prev, x_next = np.asarray(x[:-1]), np.asarray(x[1:])
    H = np.zeros((8, len(x_prev)))  # sin(theta x) = x theta - x^3 theta^3 / 3! + ...
    for i, sign in ((1, 1.0), (3, -1.0), (5, 1.0), (7, -1.0)):
        H[i] = sign * x_prev**i / float(np.prod(np.arange(1, i + 1)))
    J = np.stack([np.convolve(H[:, t], H[:, t]) for t in range(len(x_prev))], axis=1)
    eta = -0.5 * J.sum(axis=1)
    eta[:8] += (x_next * H).sum(axis=1)
    kept = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14]  # the others vanish whatever the path is
    np.testing.assert_allclose(coefficients, eta[kept], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(np.delete(eta[1:], np.array(kept) - 1), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 3])
def test_a_noise_scale_in_theta_is_exact_when_the_mean_is_free_of_theta(order, x64):
    model = epf.models.local_level()
    truth = {"level_noise": 0.5, "observation_noise": 1.0}
    x, y = epf.simulate(KEY, model, truth, 30)
    y = y.at[4].set(jnp.nan)
    statistic = epf.taylor(model, order=order)
    S = absorb(statistic, x, y)
    reference = model.parameters.to_theta(model.parameters.centre)
    theta = {"level_noise": jnp.asarray(0.8), "observation_noise": jnp.asarray(0.6)}
    np.testing.assert_allclose(statistic.log_density(S, theta), exact_ratio(model, theta, reference, x, y), atol=1e-9)


def autoregression(mean=lambda theta, x: theta["c"] + theta["phi"] * x):
    """An AR(1) in noise, of which nothing is known."""
    return epf.StateSpaceModel(
        prior={
            "c": dist.Normal(0.0, 1.0),
            "phi": dist.Uniform(-1.0, 1.0),
            "q": dist.HalfNormal(1.0),
            "r": dist.LogNormal(0.0, 1.0),
        },
        initial=lambda theta: dist.Normal(theta["c"], 1.0),
        transition=lambda theta, x, u: dist.Normal(mean(theta, x), theta["q"]),
        observation=lambda theta, x, u: dist.Normal(x, theta["r"]),
    )


def test_taylor_is_exact_for_linear_means_whatever_thetas_bounds(x64):
    model = autoregression()
    x, y = epf.simulate(KEY, model, {"c": 0.3, "phi": 0.8, "q": 0.5, "r": 0.7}, 30)
    y = y.at[4].set(jnp.nan)
    statistic = epf.taylor(model, order=1)
    assert "in theta itself" in statistic.name
    S, reference = absorb(statistic, x, y), model.parameters.to_theta(model.parameters.centre)
    thetas = {"c": [0.3, -1.0, 2.0], "phi": [0.8, -0.95, 0.1], "q": [0.5, 2.0, 0.05], "r": [0.7, 0.2, 3.0]}

    @jax.jit
    @jax.vmap
    def both(theta):
        left_out = statistic.remainder(theta, x[3], x[4], y[3], 4)
        return statistic.log_density(S, theta), exact_ratio(model, theta, reference, x, y), left_out

    found, expected, left_out = both({name: jnp.array(values) for name, values in thetas.items()})
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(left_out, 0.0, atol=1e-10 * np.abs(expected).max())


def joint_noise():
    """A vector autoregression whose shocks are correlated, and of whose state one component is seen in noise."""

    def shocks(theta):
        scales = jnp.stack([theta["q"], 2.0 * theta["q"]])
        return scales[:, None] * jnp.stack(
            [jnp.array([1.0, 0.0]), jnp.stack([theta["r"], jnp.sqrt(1 - theta["r"] ** 2)])]
        )

    return epf.StateSpaceModel(
        prior={
            "A": dist.Normal(0.0, 0.5).expand([2, 2]).to_event(2),
            "w": dist.Dirichlet(jnp.ones(2)),
            "q": dist.HalfNormal(1.0),
            "r": dist.Uniform(-1.0, 1.0),
        },
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.MultivariateNormal(theta["A"] @ x, scale_tril=shocks(theta)),
        observation=lambda theta, x, u: dist.Normal(theta["w"] @ x, 0.3),
    )


def volatility():
    """Stochastic volatility under priors with no conjugate form, started from where it would be at rest."""
    return epf.StateSpaceModel(
        prior={"mu": dist.Normal(-1.0, 1.0), "phi": dist.Uniform(0.0, 1.0), "sigma": dist.HalfNormal(0.5)},
        initial=lambda theta: dist.Normal(theta["mu"], theta["sigma"] / jnp.sqrt(1 - theta["phi"] ** 2)),
        transition=lambda theta, x, u: dist.Normal(theta["mu"] + theta["phi"] * (x - theta["mu"]), theta["sigma"]),
        observation=lambda theta, x, u: dist.Normal(0.0, jnp.exp(x / 2)),
    )


def reverting_speed():
    """A speed and its mean, a state that remembers the one before, seen by two instruments with a gain and an offset."""

    def transition(theta, x, u):
        speed = jnp.exp(-theta["kappa"])
        level = theta["level"] + speed * (x[0] - theta["level"]) + 0.1 * speed**2 * x[1]
        return dist.Normal(jnp.stack([level, x[0]]), jnp.stack([theta["q"], 0.0])).to_event(1)

    return epf.StateSpaceModel(
        prior={
            "kappa": dist.LogNormal(-1.0, 0.5),
            "level": dist.Normal(0.0, 1.0),
            "q": dist.HalfNormal(1.0),
            "gain": dist.Normal(1.0, 0.5).expand([2]).to_event(1),
        },
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(theta["gain"] * (x[0] - theta["level"]), 0.5).to_event(1),
    )


def joint_noise_and_products(square=True):
    """Shocks with a correlation, and means in which coefficients of the state are products."""
    model = joint_noise()

    def transition(theta, x, u):
        by = theta["A"] @ theta["A"] if square else theta["A"]
        mean = theta["w"] + by @ (x - theta["w"]) if square else theta["q"] + by @ (x - theta["mu"])
        return dist.MultivariateNormal(mean, scale_tril=model.transition(theta, x, u).scale_tril)

    prior = model.prior if square else model.prior | {"mu": dist.Normal(0.0, 1.0).expand([2]).to_event(1)}
    return dataclasses.replace(model, prior=prior, transition=transition)


def gains():
    """Inputs, real and whole, of which a product of parameters multiplies one; a start not linear in theta."""
    return epf.StateSpaceModel(
        prior={"gain": dist.Normal(1.0, 0.5), "effect": dist.Normal(0.0, 1.0), "phi": dist.Uniform(-1.0, 1.0)},
        initial=lambda theta: dist.Normal(theta["effect"] / (1 - theta["phi"]), jnp.exp(theta["effect"])),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x + u["day"], 1.0),
        observation=lambda theta, x, u: dist.Normal(theta["gain"] * (x + theta["effect"] * u["dose"]), 0.5),
        row={"day": jnp.array(1), "dose": jnp.array(0.5), "unread": jnp.zeros(30)},
    )


def inputs_of(model, num_steps):
    """Inputs of other kinds of numbers than the model was looked at with, where it does not say otherwise."""
    if not isinstance(model.row, dict):
        return jnp.linspace(0.0, 1.0, num_steps)
    days = jnp.arange(num_steps) % 7
    return {"day": days, "dose": days % 3, "unread": jnp.zeros((num_steps, 30), int)}


@pytest.mark.parametrize(
    "build",
    [
        volatility,
        gains,
        pytest.param(autoregression, marks=pytest.mark.slow),
        pytest.param(reverting_speed, marks=pytest.mark.slow),
        pytest.param(joint_noise, marks=pytest.mark.slow),
        pytest.param(joint_noise_and_products, marks=pytest.mark.slow),
    ],
)
def test_factors_of_linear_means_say_what_the_path_does(x64, build):
    model = build()
    thetas, u = model.parameters.sample(KEY, 4), inputs_of(model, 30)
    x, y = epf.simulate(KEY, model, jax.tree.map(lambda leaf: leaf[0], thetas), 30, inputs=u)
    y = y.at[4].set(jnp.nan)
    y = y.at[7, 0].set(jnp.nan) if y.ndim == 2 else y
    statistic = epf.linear_means(model)
    S, reference = absorb(statistic, x, y, u), model.parameters.to_theta(model.parameters.centre)
    found, expected = jax.jit(
        jax.vmap(lambda theta: (statistic.log_density(S, theta), exact_ratio(model, theta, reference, x, y, u)))
    )(thetas)
    # Both to within a number that is the same for all theta.
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-9)


def where_it_starts():
    """Mean reversion whose start knows its speed, by its mean and by its noise."""
    return dataclasses.replace(
        volatility(),
        initial=lambda theta: dist.Normal(theta["phi"], theta["sigma"] / jnp.sqrt(1 - theta["phi"] ** 2)),
        observation=lambda theta, x, u: dist.Normal(theta["mu"] * theta["phi"], 0.5),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        where_it_starts,
        autoregression,
        volatility,
        reverting_speed,
        partial(joint_noise_and_products, square=False),
        gains,
    ],
)
def test_gaussian_proposals_leave_the_density_of_linear_means_as_it_is(build):
    # theta from its prior and a path given theta are as likely as that path and another theta drawn given it (Geweke
    # 2004): no moment of theta may change by more than chance. Of 200 numbers in all, one in 700 times is beyond 4.5 sd.
    model, num, num_steps = build(), 20_000, 8
    statistic, u = epf.linear_means(model), inputs_of(model, num_steps)
    assert "Gaussian proposals" in statistic.drawn_by

    @jax.jit
    @jax.vmap
    def drawn(key, theta):
        x, y = epf.simulate(key, model, theta, num_steps, inputs=u)
        return absorb(statistic, x, y, u)

    theta = before = model.parameters.sample(KEY, num)
    S = drawn(jax.random.split(KEY, num), theta)
    spread = Population(model.parameters.centre, jnp.diag(0.4 * model.parameters.scale))
    move = jax.jit(lambda key, theta: statistic.sample_all(key, S, theta, spread))
    for key in jax.random.split(KEY, 3):
        theta = move(key, theta)[0]
    z, old = (np.asarray(jax.vmap(model.parameters.to_vector)(t), float) for t in (theta, before))
    each = [(a, b) for a in range(z.shape[1]) for b in range(a + 1)]
    change = np.stack([*(z - old).T, *(z[:, a] * z[:, b] - old[:, a] * old[:, b] for a, b in each)])
    t = np.mean(change, axis=1) / np.std(change, axis=1) * num**0.5
    assert np.all(np.std(z - old, axis=0) > 0.1 * np.std(old, axis=0))  # they moved
    np.testing.assert_array_less(np.abs(t), 4.5)


@pytest.mark.parametrize(
    ("form", "level", "num_steps", "error"),
    [("c", 1e3, 200, 0.2), pytest.param("mu", 1e4, 5000, 2.0, marks=pytest.mark.slow)],
)
def test_linear_means_hold_data_far_from_the_prior_in_float32(form, level, num_steps, error):
    # A level of 1000 noise scales: sums of squares in float32 would be off by 1e6 * 200 * 6e-8 = 12 in log-density. At
    # 10000, after 5000 steps, numbers of a factor are off by 1e-6 of theirs, a mean by .01, a sixth of its sd of .07,
    # at three sd half a unit of log-density; were the column of ones behind the state's, nine units.
    means = {
        "c": lambda theta, x: theta["c"] + theta["phi"] * x,
        "mu": lambda theta, x: theta["mu"] + theta["phi"] * (x - theta["mu"]),
    }
    model = epf.StateSpaceModel(
        prior={form: dist.Normal(0.0, level), "phi": dist.Uniform(-1.0, 1.0), "q": dist.HalfNormal(5.0)},
        initial=lambda theta: dist.Normal(level, 1.0),
        transition=lambda theta, x, u: dist.Normal(means[form](theta, x), theta["q"]),
        observation=lambda theta, x, u: dist.Normal(x, 0.01),
    )
    thetas = {
        "c": {"c": [200.0, 190.05, 231.1], "phi": [0.8, 0.81, 0.769], "q": [1.0, 1.1, 0.9]},
        "mu": {"mu": [1e4, 1e4 + 0.08, 1e4 - 0.07], "phi": [0.8, 0.81, 0.795], "q": [1.0, 1.01, 0.99]},
    }[form]
    x, y = epf.simulate(KEY, model, {name: values[0] for name, values in thetas.items()}, num_steps)
    thetas = {name: jnp.array(values) for name, values in thetas.items()}
    statistic = epf.linear_means(model)
    found = jax.jit(jax.vmap(partial(statistic.log_density, absorb(statistic, x, y))))(thetas)
    path = np.asarray(x, np.float64)
    each = [{name: float(values[i]) for name, values in thetas.items()} for i in range(3)]
    expected = np.array([exact_log_density(theta, path, means[form], theta[form] / level) for theta in each])
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prior", "truth"),
    [(dist.LogNormal(0.0, 0.5), 6.0), (dist.Cauchy(0.0, 1.0), 50.0), (dist.Uniform(0.0, 0.5), 0.8)],
)
def test_coefficients_move_though_their_prior_is_not_like_a_gaussian(prior, truth):
    # Far out in its tail, or pressed to its bound. Particles share their path, which theta does not enter: means are
    # known to 1 / sqrt(300) sd = 0.06, and chains take a few steps to forget.
    model = epf.StateSpaceModel(
        prior={"b": prior, "s": dist.LogNormal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x, 1.0),
        observation=lambda theta, x, u: dist.Normal(theta["b"] * u, theta["s"]),
        row=jnp.array(1.0),
    )
    u = np.random.default_rng(0).normal(size=100)
    y = truth * u + np.random.default_rng(1).normal(size=100)
    filter_ = epf.extended_parameter_filter(model, 300)
    assert "linear_means" in repr(filter_)
    results = epf.run(KEY, filter_, y, inputs=u, levels=())
    b, s = np.meshgrid(np.linspace(max(truth - 1.0, 0.3), truth + 1.0, 2001), np.linspace(0.5, 2.0, 101), indexing="ij")
    log_p = np.asarray(jnp.where(prior.support(b), prior.log_prob(jnp.minimum(b, 0.5 if truth < 1 else b)), -jnp.inf))
    log_p = log_p + np.asarray(dist.LogNormal(0.0, 1.0).log_prob(s)) - 100 * np.log(s)
    log_p = log_p - 0.5 * (np.sum(y**2) - 2 * b * np.sum(u * y) + b**2 * np.sum(u**2)) / s**2
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    for name, values in (("b", b), ("s", s)):
        mean = np.sum(p * values)
        sd = np.sqrt(np.sum(p * (values - mean) ** 2))
        assert abs(float(results.theta.mean[name][-1]) - mean) < 5 * 0.06 * sd
        assert 0.75 < float(results.theta.sd[name][-1]) / sd < 1.33


def exact_log_density(theta, x, mean, standardised):
    sd = theta["q"]
    log_prior = -0.5 * standardised**2 - 0.5 * (sd / 5.0) ** 2
    return log_prior - np.sum(0.5 * ((x[1:] - mean(theta, x[:-1])) / sd) ** 2 + np.log(sd))


@pytest.mark.slow
def test_noise_that_vanishes_at_the_priors_centre_is_noise():
    model = epf.StateSpaceModel(
        prior={"w": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(x, jnp.abs(theta["w"])).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x, 0.1).to_event(1),
    )
    x = np.cumsum(np.random.default_rng(0).normal(size=(21, 2)), axis=0)
    statistic = epf.linear_means(model)
    S = absorb(statistic, jnp.asarray(x), jnp.asarray(x[1:]))
    at_half, at_one = (float(statistic.log_density(S, {"w": jnp.asarray(w)})) for w in (0.5, 1.0))
    squares = np.sum(np.diff(x, axis=0) ** 2)
    # 40 residuals: the log-densities are of size 100, rounded to 1e-5 in float32
    exact = -0.5 * squares * (1 / 0.25 - 1) - 40 * np.log(0.5) - 0.5 * (0.25 - 1)
    np.testing.assert_allclose(at_half - at_one, exact, atol=1e-3)


@pytest.mark.slow
def test_a_noise_too_small_for_its_numbers_has_no_density():
    model = epf.StateSpaceModel(
        prior={"h": dist.Normal(0.0, 50.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x, jnp.exp(theta["h"])),
        observation=lambda theta, x, u: dist.Normal(x, 0.1),
    )
    statistic = epf.linear_means(model)
    S = absorb(statistic, jnp.array([0.0, 1.0, 0.5]), jnp.array([1.0, 0.5]))
    log_target = jax.jit(statistic.log_target(S))  # numpyro refuses a scale of zero that it can see
    assert np.isfinite(log_target(jnp.zeros(1)))
    assert float(log_target(jnp.array([-800.0]))) == -np.inf


def test_theta_is_not_rounded_onto_its_bound():
    coordinates = parameters({"a": dist.Uniform(0.0, 0.5), "b": dist.Normal(0.0, 1.0)})
    before = {"a": jnp.asarray(0.2), "b": jnp.asarray(1.0)}
    for z, inside in (([-3.0, 0.0], True), ([-95.0, 0.0], False), ([0.5, 0.0], True)):
        theta = jax.jit(partial(theta_inside, coordinates))(jnp.array(z, jnp.float32), before)
        assert np.isfinite(coordinates.to_vector(theta)).all()
        assert (theta["a"] != before["a"]) == inside


def test_linear_means_say_what_they_are_not_for():
    model = autoregression(lambda theta, x: theta["c"] * jnp.sin(theta["phi"] * x))
    nor = (
        r"^linear_means: the mean of the transition is not linear in theta, nor linear in the state and the inputs with"
    )
    with pytest.raises(ValueError, match=nor):
        epf.linear_means(model)
    with_time = dataclasses.replace(
        autoregression(), transition=lambda theta, x, u: dist.Normal(theta["c"] * theta["phi"] * u, theta["q"])
    )
    with pytest.raises(ValueError, match=nor):  # of whole numbers, the time index, nothing is known to be linear
        epf.linear_means(with_time)
    epf.linear_means(dataclasses.replace(with_time, row=0.0))


@pytest.mark.slow
def test_linear_means_say_which_noise_and_which_laws_they_are_not_for():
    model = autoregression(lambda theta, x: theta["c"] * jnp.sin(theta["phi"] * x))
    joint = dataclasses.replace(
        joint_noise(),
        observation=lambda theta, x, u: dist.MultivariateNormal(theta["q"] * theta["r"] * x, 0.3 * jnp.eye(2)),
    )
    with pytest.raises(ValueError, match=r"mean of the observation .* with noise of its own for each component"):
        epf.linear_means(joint)
    counts = dataclasses.replace(model, observation=lambda theta, x, u: dist.Poisson(jnp.exp(theta["r"] + x)))
    with pytest.raises(ValueError, match=r"^linear_means: .*not Gaussian"):
        epf.linear_means(dataclasses.replace(counts, transition=autoregression().transition))
    mixed = dataclasses.replace(
        autoregression(), observation=lambda theta, x, u: dist.Normal(x, theta["r"] * (1 + x**2))
    )
    with pytest.raises(ValueError, match=r"^linear_means: the noise of the observation depends on theta together with"):
        epf.linear_means(mixed)


def chosen(model):
    return repr(epf.extended_parameter_filter(model, 10))


@pytest.mark.slow
def test_products_of_parameters_and_a_volatility_get_linear_means():
    assert "linear_means" in chosen(autoregression(lambda theta, x: theta["c"] * theta["phi"] * x))
    assert "linear_means" in chosen(volatility())


def test_four_parameters_get_exact_statistics_or_an_assumed_density():
    assert "linear_means" in chosen(autoregression())
    assert "decomposed" in chosen(autoregression(lambda theta, x: theta["c"] * jnp.sin(theta["phi"] * x)))
    counts = autoregression()
    counts = dataclasses.replace(counts, observation=lambda theta, x, u: dist.Poisson(jnp.exp(theta["r"] + x)))
    assert "assumed_density" in chosen(counts)


@pytest.mark.slow
def test_four_parameters_in_noise_have_the_exact_posterior():
    # Grids of points at most one and a half conditional standard deviations apart, of which the oracle tells nothing.
    model = autoregression()
    truth = {"c": 0.3, "phi": 0.8, "q": 0.5, "r": 0.5}
    _, y = epf.simulate(jax.random.key(1), model, truth, 100)
    axes = {
        "c": np.linspace(-0.5, 1.6, 33),
        "phi": np.linspace(0.0, 0.99, 27),
        "q": np.linspace(0.1, 1.1, 13),
        "r": np.linspace(0.05, 1.0, 13),
    }
    with jax.enable_x64(True):
        found = exact.kalman(autoregression(), jnp.asarray(np.asarray(y), float), axes, batch_size=2000)
    filter_ = epf.extended_parameter_filter(model, 4000)
    results = epf.replicate(jax.random.split(KEY, 6), filter_, y, levels=())
    for name in truth:
        mean, sd = float(found.mean[name][-1]), float(found.sd[name][-1])
        z = (np.asarray(results.theta.mean[name][:, -1]) - mean) / sd
        assert abs(np.median(z)) < 0.4, name
        assert abs(np.median(results.theta.sd[name][:, -1]) / sd - 1) < 0.25, name


def correlated(noise_in_theta):
    """A vector state with full noise covariance, scaled by theta or not, and a coefficient in the mean."""
    base = jnp.array([[1.0, 0.4], [0.4, 0.5]])

    def transition(theta, x, u):
        scale = theta["scale"] if noise_in_theta else 1.0
        return dist.MultivariateNormal(jnp.stack([theta["a"] * x[0] + x[1], 0.5 * x[1]]), base * scale**2)

    prior = {"a": dist.Normal(0.3, 0.3)} | ({"scale": dist.LogNormal(0.0, 0.5)} if noise_in_theta else {})
    return epf.StateSpaceModel(
        prior=prior,
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], 0.5),
    )


@pytest.mark.slow
@pytest.mark.parametrize("noise_in_theta", [False, True])
def test_a_full_noise_covariance_is_exact_whether_known_or_scaled_by_theta(noise_in_theta, x64):
    model = correlated(noise_in_theta)
    truth = {"a": 0.5} | ({"scale": 1.2} if noise_in_theta else {})
    x, y = epf.simulate(KEY, model, truth, 15)
    statistic = epf.taylor(model, order=1)
    S = absorb(statistic, x, y)
    reference = model.parameters.to_theta(model.parameters.centre)
    theta = jax.tree.map(jnp.asarray, {"a": 0.1} | ({"scale": 0.7} if noise_in_theta else {}))
    np.testing.assert_allclose(statistic.log_density(S, theta), exact_ratio(model, theta, reference, x, y), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("centre", [None, {"gamma": 1.0, "c": 3.0}])
def test_taylor_in_two_parameters_converges_near_any_centre(centre, x64):
    model = epf.models.star()
    x, y = epf.simulate(KEY, model, {"gamma": 1.0, "c": 3.0}, 10)
    middle = model.parameters.to_theta(model.parameters.centre) if centre is None else centre
    middle = jax.tree.map(jnp.asarray, middle)
    theta = jax.tree.map(lambda leaf: leaf + 0.05, middle)
    errors = []
    for order in (1, 3, 5):
        statistic = epf.taylor(model, order=order, centre=centre)
        S = absorb(statistic, x, y)
        errors.append(abs(float(statistic.log_density(S, theta) - exact_ratio(model, theta, middle, x, y))))
    # gamma (x - c) moves by about 0.05 |x - c| < 0.5 against a radius of convergence of pi: two orders gain (.5/pi)^2
    assert errors[2] < 0.1 * errors[1] < 0.01 * errors[0]


@pytest.mark.slow
def test_taylor_of_the_log_density_works_where_the_noise_is_not_gaussian(x64):
    model = epf.models.cauchy_ar1()
    x, y = epf.simulate(KEY, model, {"a": 0.3}, 8)
    statistic = epf.taylor_log_density(model, order=8, centre={"a": 0.3})
    S = absorb(statistic, x, y)
    centre, theta = {"a": jnp.asarray(0.3)}, {"a": jnp.asarray(0.302)}
    # v = x_t - a x_{t-1} moves by .002 |x| (|x| < 60 here): log(1 + v^2) has radius of convergence >= 1 about real v
    np.testing.assert_allclose(statistic.log_density(S, theta), exact_ratio(model, theta, centre, x, y), atol=1e-7)
    assert statistic.log_density(S, {"a": jnp.asarray(9.0)}) == -jnp.inf  # confined to its box


@pytest.mark.slow
@pytest.mark.parametrize("shrink", [None, 6.0])
def test_chebyshev_reads_the_exact_density_between_its_nodes(shrink, x64):
    model = epf.models.sinusoid()
    x, y = epf.simulate(KEY, model, {"theta": 0.7}, 50)
    statistic = epf.chebyshev(model, 24, shrink=shrink)
    S = absorb(statistic, x, y)
    grid = jnp.linspace(0.2, 0.9, 29)
    reference = {"theta": jnp.asarray(0.0)}
    read = jax.vmap(lambda t: statistic.log_density(S, {"theta": t}))(grid)
    known = jax.vmap(lambda t: exact_ratio(model, {"theta": t}, reference, x, y))(grid)
    np.testing.assert_allclose(read - read[0], known - known[0], atol=1e-3)


@pytest.mark.slow
def test_a_box_shrinks_with_the_densities_and_keeps_what_is_inside(x64):
    model = epf.models.sinusoid()
    x, y = epf.simulate(KEY, model, {"theta": 0.7}, 400)
    statistic = epf.chebyshev(model, 24)
    one = absorb(statistic, x, y)._replace(opening=None)
    S = one._replace(values=jnp.stack([one.values] * 3))
    weights = jnp.log(jnp.ones(3) / 3)
    follow = following((24,), 6.0, model.parameters.log_prior, model.parameters.box, None, 0)
    cut = follow(S, weights, jnp.asarray(99))  # 10 log10 reaches 20 at t = 100: a rung lies in (99, 100]
    width = cut.high - cut.low
    # three identical paths: the draws could have any spread, the density's sd is about .05, six of them make .6
    assert np.all(width < 0.8 * (S.high - S.low))
    assert np.all(width > 8 * 0.04)
    small = cut._replace(values=cut.values[1])
    top = float(model.parameters.to_vector({"theta": 0.65})[0])
    for theta in (top - 0.1, top, top + 0.1):
        before, after = (statistic.log_density(s, {"theta": jnp.asarray(theta)}) for s in (one, small))
        np.testing.assert_allclose(after, before, atol=1e-2)
    outside = {"theta": small.low[0] - 0.01}
    assert statistic.log_density(small, outside) == -jnp.inf
    same = follow(S, weights, jnp.asarray(102))  # not due
    np.testing.assert_array_equal(same.values, S.values)


def followed(statistic, x, y, inputs=None):
    """The statistic of a path whose box follows it, as the only particle of a filter."""
    u = jnp.arange(1, len(x)) if inputs is None else inputs

    def step(S, row):
        x_prev, x, y, u, t = row
        return statistic.update_all(None, S, None, x_prev[None], x[None], y, u, jnp.zeros(1), t), None

    S = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], statistic.init(x[0]))
    S = jax.lax.scan(step, S, (x[:-1], x[1:], y, u, jnp.arange(1, len(x))))[0]
    return jax.tree.map(lambda leaf: leaf[0], S)


def level_and_noise(transition=lambda theta, x, u: dist.Normal(theta["a"] + 0.6 * x, theta["s"])):
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 100.0), "s": dist.LogNormal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(theta["a"], 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, 0.3),
    )


@pytest.mark.slow
def test_nodes_are_evaluated_along_the_path_while_all_of_it_is_remembered(x64):
    model = level_and_noise()
    truth = {"a": jnp.asarray(1.0), "s": jnp.asarray(1.0)}
    x, y = epf.simulate(KEY, model, truth, 22)
    S = followed(epf.chebyshev(model, 8), x, y)
    half = 0.5 * (S.high - S.low)
    assert half[0] < 20  # of 500, where nodes were 50 and more apart: read there, the values would be off by far more
    nodes = ((0, 0), (3, 4), (7, 2))
    at_nodes = []
    for i, j in nodes:
        z = 0.5 * (S.low + S.high) + half * jnp.cos(jnp.pi * jnp.array([i, j]) / 7)
        at_nodes.append(exact.path_log_likelihood(model, model.parameters.to_theta(z), x=x, y=y)[-1])
    # Sums of 23 terms in float64, in another order, and what all nodes have in common left out.
    kept = np.array([S.values[node] for node in nodes])
    np.testing.assert_allclose(kept - kept[0], np.array(at_nodes) - at_nodes[0], rtol=1e-9)


@pytest.mark.slow
def test_inputs_that_cannot_be_remembered_leave_nodes_to_be_read():
    model = level_and_noise(lambda theta, x, u: dist.Normal(theta["a"] * (u - LARGE) / 2 + 0.6 * x, theta["s"]))
    inputs = jnp.full(22, LARGE + 1)
    x, y = epf.simulate(KEY, model, {"a": 2.0, "s": 1.0}, 22, inputs=inputs)
    statistic = epf.chebyshev(model, 8)
    S, read = (followed(s, x, y, inputs) for s in (statistic, without_opening(statistic)))
    np.testing.assert_array_equal(S.values, read.values)
    np.testing.assert_array_equal(S.low, read.low)
    told = epf.StateSpaceModel(model.prior, model.initial, model.transition, model.observation, row=inputs[0])
    remembered = followed(epf.chebyshev(told, 8), x, y, inputs)
    assert (remembered.high - remembered.low)[0] < (S.high - S.low)[0]  # what is read is narrowed nearly as fast


@pytest.mark.slow
@pytest.mark.parametrize("vague", [10.0, 1000.0])
def test_what_is_read_between_coarse_nodes_does_for_gaussian_noise(vague):
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, vague)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] + 0.6 * x, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.3),
    )
    x, y = epf.simulate(KEY, model, {"a": 1.0}, 80)
    statistic = without_opening(epf.chebyshev(model))
    S = followed(statistic, x, y)
    residuals = x[1:] - 0.6 * x[:-1]
    sd = (80 + vague**-2) ** -0.5  # the Gaussian posterior given the path
    mean = float(jnp.sum(residuals)) * sd**2
    grid = jnp.linspace(mean - 6 * sd, mean + 6 * sd, 121)
    p = jax.nn.softmax(jax.vmap(lambda a: statistic.log_density(S, {"a": a}))(grid))
    read = float(p @ grid)
    # With a prior sd of 1000 the middle nodes are 7000 sds apart at first and 33 at the end; in float32 .007 was seen.
    assert abs(read - mean) < 0.03 * sd
    assert abs(float(jnp.sqrt(p @ (grid - read) ** 2)) / sd - 1) < 0.02


def count_model(observation):
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
        observation=observation,
    )


@pytest.mark.slow
@pytest.mark.parametrize("vague", [1.0, 100.0, 10000.0])
def test_heavy_tailed_noise_under_a_vague_prior_has_its_posterior(vague):
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, vague)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.0, 1.0),
        observation=lambda theta, x, u: dist.StudentT(4.0, theta["a"], 1.0),
    )
    y = 3.0 + np.random.default_rng(1).standard_t(4, size=30)
    statistic = epf.chebyshev(model)
    S = followed(statistic, jnp.zeros(31), jnp.asarray(y, jnp.float32))
    assert S.opening.x is None  # of which no density of theta reads anything
    grid = np.linspace(y.mean() - 2.0, y.mean() + 2.0, 401)
    exact = scipy.stats.t(4).logpdf(y - grid[:, None]).sum(axis=1) + scipy.stats.norm(0.0, vague).logpdf(grid)
    read = jax.jit(jax.vmap(lambda a: statistic.log_density(S, {"a": a})))(jnp.asarray(grid, jnp.float32))
    (mean, sd), (found, spread) = (_moments_on(grid, np.asarray(log_p, float)) for log_p in (exact, read))
    # 20 nodes over six posterior sds to either side read the logarithm of heavy tails to some thousandths.
    assert abs(found - mean) < 0.02 * sd
    assert abs(spread / sd - 1) < 0.02


def _moments_on(grid, log_p):
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    return p @ grid, np.sqrt(p @ (grid - p @ grid) ** 2)


@pytest.mark.slow
def test_where_inputs_cannot_be_remembered_the_box_is_cut_once_at_a_time():
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 100.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.0, 1.0),
        observation=lambda theta, x, u: dist.StudentT(4.0, theta["a"] + (u - LARGE) / 24, 1.0),
    )  # which has seen no inputs: of what kind u is nobody knows
    inputs, x = LARGE + 1 + 2 * jnp.arange(12), jnp.zeros(13)
    y = 3.0 + (1 + 2 * jnp.arange(12)) / 24
    statistic = epf.chebyshev(model)
    S, read = (followed(s, x, y, inputs) for s in (statistic, without_opening(statistic)))
    np.testing.assert_array_equal(S.values, read.values)
    np.testing.assert_array_equal(S.low, read.low)


def test_a_parameter_that_enters_no_density_leaves_nothing_to_remember():
    pieces = epf.models.ar1()
    known = epf.StateSpaceModel(
        prior={"a": dist.LogNormal(0.0, 1.0)},
        initial=pieces.initial,
        transition=lambda theta, x, u: dist.Normal(0.8 * x, 1.0),
        observation=pieces.observation,
    )
    assert epf.chebyshev(known).init(jnp.zeros(())).opening is None


def test_separable_takes_noise_that_some_states_do_not_have():
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.LogNormal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x, jnp.sqrt(x)),  # no number below zero
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
    )
    statistic = epf.separable(model, lambda x, u: x[None], lambda theta: theta["a"][None])
    S = statistic.update(None, statistic.init(), None, jnp.asarray(4.0), jnp.asarray(2.0), None, 1)
    np.testing.assert_allclose([S[0].S_1[0], S[0].S_2[0, 0]], [2.0, 4.0], rtol=1e-6)  # 4 * 2 and 4 * 4, over 4


class Counted:
    """A distribution of three counts that is none of numpyro's, and uses the count as an index."""

    def __init__(self, logits):
        self.logits = logits

    def sample(self, key, sample_shape=()):
        return jax.random.categorical(key, self.logits, shape=sample_shape)

    def log_prob(self, value):
        return jax.nn.log_softmax(self.logits)[value]


@pytest.mark.slow
def test_what_cannot_be_remembered_is_not():
    counts = epf.chebyshev(count_model(lambda theta, x, u: dist.Poisson(jnp.exp(theta["b"] + x))), 8)
    assert counts.init(jnp.zeros(())).opening.y.shape == (25,)  # 64 nodes have room for 32 rows of x and y
    assert counts.init(jnp.zeros(())).opening.u is None  # which nothing reads
    indexed = epf.chebyshev(count_model(lambda theta, x, u: Counted(jnp.stack([x, theta["b"], 0.0 * x]))), 8)
    assert indexed.init(jnp.zeros(())).opening is None
    regression = epf.chebyshev(count_model(lambda theta, x, u: dist.Normal(theta["b"] + x * u, 1.0)), 8)
    begun = regression.init(jnp.zeros(()))

    def after(u):
        return regression.update(None, begun, {"b": 0.0}, jnp.zeros(()), jnp.zeros(()), jnp.zeros(()), u).opening

    for number in (3, 0.25, np.int8(3), np.int16(-300)):  # without an example it may be the time, or any other number
        assert after(jnp.asarray(number)).num_steps == 1
        assert after(jnp.asarray(number)).u[0] == number
    large = after(jnp.asarray(1_700_000_001))  # which is another among numbers with fractions, and not kept
    assert large.num_steps == len(large.u) + 1
    table = epf.chebyshev(count_model(lambda theta, x, u: dist.Normal(theta["b"] + x * jnp.arange(9.0)[u], 1.0)), 8)
    assert table.init(jnp.zeros(())).opening.u.dtype == jnp.int32
    wide = epf.chebyshev(count_model(lambda theta, x, u: dist.Normal(jnp.full(70, theta["b"] + x), 1.0)), 8)
    assert wide.init(jnp.zeros(())).opening is None


@pytest.mark.slow
def test_rows_without_a_step_leave_gradients_finite():
    statistic = epf.chebyshev(count_model(lambda theta, x, u: dist.LogNormal(theta["b"] + x, 1.0)), 8)

    def reads(x):
        S = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], statistic.init(x[0]))
        for t in range(3):
            path = x[t][None], x[t + 1][None], jnp.exp(x[t]), jnp.asarray(t)
            S = statistic.update_all(None, S, None, *path, jnp.zeros(1), jnp.asarray(7 if t == 2 else 0))
        return jnp.sum(S.values)

    assert np.all(np.isfinite(jax.jit(jax.grad(reads))(jnp.array([0.1, 0.5, -0.3, 0.8]))))


def test_observations_are_not_remembered_where_only_the_transition_counts():
    model = count_model(lambda theta, x, u: dist.Normal(x, 1.0))
    x = jnp.array([0.1, 0.5, -0.3])
    S = statistic_of_path(epf.chebyshev(model, 8), x, None)
    np.testing.assert_array_equal(S.opening.x[-1, :3], x)


def test_storviks_recursion_is_a_kalman_filter_in_parameter_space(x64):
    model = epf.models.ar1(prior_sd=0.5)
    x, y = epf.simulate(KEY, model, {"phi": 0.8}, 25)
    S = absorb(epf.conjugate(model), x, y)
    m, P = 0.0, 0.25  # identity transition, no noise, observation matrix x_{t-1}, noise variance 1
    for x_prev, x_next in zip(np.asarray(x[:-1]), np.asarray(x[1:]), strict=True):
        gain = P * x_prev / (x_prev * P * x_prev + 1.0)
        m, P = m + gain * (x_next - x_prev * m), (1 - gain * x_prev) * P
    np.testing.assert_allclose([S.m[0], S.C[0, 0]], [m, P], rtol=1e-10)


@pytest.mark.parametrize(
    "build",
    [
        partial(epf.taylor, order=1),
        pytest.param(epf.conjugate, marks=pytest.mark.slow),
        pytest.param(lambda model: epf.chebyshev(model, 6, shrink=None), marks=pytest.mark.slow),
    ],
    ids=["taylor", "conjugate", "chebyshev"],
)
def test_an_initial_state_that_depends_on_theta_counts(build, x64):
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(theta["a"], 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )
    x, statistic = np.array([1.2, -0.4, 0.9, 0.3]), build(model)

    @jax.jit
    @jax.vmap
    def both(a):
        S, theta, reference = absorb(statistic, x, x[1:]), {"a": a}, {"a": 0.0 * a}
        return statistic.log_density(S, theta), exact_ratio(model, theta, reference, x, x[1:])

    found, expected = both(np.array([0.4, 0.0]))
    np.testing.assert_allclose(found[0] - found[1], expected[0] - expected[1], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("family", [lambda loc: dist.Cauchy(loc, 0.7), lambda loc: dist.StudentT(4.0, loc, 0.7)])
def test_scale_mixture_leaves_the_exact_gibbs_density_invariant(family, x64):
    # 2000 chains of 40 sweeps: lambdas given theta, then theta given lambdas, on one known path of heavy-tailed steps.
    # Standard error of a mean of 2000 independent draws: sd / 45; of an sd: sd / 63. Four of each are allowed.
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: family(theta["a"] * x),
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
    )
    x, y = epf.simulate(jax.random.key(0), model, {"a": 0.6}, 20)
    truth = exact.known_path(model, x, {"a": np.linspace(-2.0, 2.0, 801)})
    statistic = epf.scale_mixture(model)

    def sweep(theta, key):
        key_path, key_theta = jax.random.split(key)

        def absorb(S, row):
            key, x_prev, x, y = row
            return statistic.update(key, S, theta, x_prev, x, y, 1), None

        rows = (jax.random.split(key_path, 20), x[:-1], x[1:], y)
        S = jax.lax.scan(absorb, statistic.init(x[0]), rows)[0]
        return statistic.sample(key_theta, S, theta)[0], None

    def chain(key, theta):
        return jax.lax.scan(sweep, theta, jax.random.split(key, 40))[0]

    thetas = model.parameters.sample(jax.random.key(1), 2000)
    drawn = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(2), 2000), thetas)["a"]
    mean, sd = truth.mean["a"][-1], truth.sd["a"][-1]
    assert abs(float(drawn.mean()) - mean) < 4 * sd / 45
    assert abs(float(drawn.std()) - sd) < 4 * sd / 63


def heavy_tailed(transition, observation):
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.3, 0.4)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=transition,
        observation=observation,
    )


@pytest.mark.slow
def test_scale_mixture_learns_from_heavy_tails_with_gaps():
    # Twelve filters of 4000 particles: their average is compared with the exact mean in its own standard errors, from
    # the spread of the twelve; four are allowed. A filter's sd is compared by the median of the twelve.
    model = heavy_tailed(
        lambda theta, x, u: dist.Cauchy(theta["a"] * x, 0.5),
        lambda theta, x, u: dist.StudentT(4.0, x + theta["a"], 0.5),
    )
    _, y = epf.simulate(jax.random.key(1), model, {"a": 0.5}, 30)
    y = y.at[7].set(jnp.nan)
    grid = {"a": np.linspace(-1.2, 1.8, 61)}
    reach = float(jnp.nanmax(jnp.abs(y))) + 30.0
    truth = exact.quadrature(model, y, grid, np.linspace(-reach, reach, int(8 * reach)))
    filter_ = epf.extended_parameter_filter(model, 4000, statistic=epf.scale_mixture(model))
    results = epf.replicate(jax.random.split(jax.random.key(2), 12), filter_, y, levels=())
    mean, sd = truth.mean["a"][-1], truth.sd["a"][-1]
    means, sds = np.asarray(results.theta.mean["a"][:, -1]), np.asarray(results.theta.sd["a"][:, -1])
    standard_error = means.std(ddof=1) / np.sqrt(12)
    assert standard_error < 0.15 * sd
    assert abs(means.mean() - mean) < 4 * standard_error
    assert 0.8 < np.median(sds) / sd < 1.25


@pytest.mark.slow
def test_a_precision_that_rounds_to_zero_leaves_the_statistic_whole(monkeypatch):
    model = epf.models.cauchy_ar1()
    statistic = epf.scale_mixture(model)
    monkeypatch.setattr(jax.random, "exponential", lambda key, shape, dtype: jnp.zeros(shape, dtype))
    S = statistic.update(jax.random.key(0), statistic.init(), {"a": jnp.asarray(0.5)}, 3e4, -2e4, 0.0, 1)
    assert np.all(np.isfinite(S.m))
    np.testing.assert_allclose(S.C, statistic.init().C, rtol=1e-3)  # such a step says nothing of theta


@pytest.mark.parametrize(
    ("transition", "message"),
    [
        (lambda theta, x, u: dist.StudentT(3.0 + theta["a"] ** 2, theta["a"] * x, 1.0), "degrees of freedom"),
        (lambda theta, x, u: dist.Cauchy(jnp.sin(theta["a"] * x), 1.0), "not linear"),
        (lambda theta, x, u: dist.Cauchy(x, jnp.exp(theta["a"])), "noise"),
        (lambda theta, x, u: dist.Laplace(theta["a"] * x, 1.0), "not Gaussian"),
    ],
)
def test_scale_mixture_refuses_what_it_cannot_do_and_says_why(transition, message):
    model = heavy_tailed(transition, lambda theta, x, u: dist.Normal(x, 1.0))
    with pytest.raises(ValueError, match=rf"scale_mixture: .*{message}.*epf\.chebyshev"):
        epf.scale_mixture(model)


@pytest.mark.parametrize(("prior_sd", "noise"), [(100.0, 0.01), pytest.param(1e6, 0.1, marks=pytest.mark.slow)])
def test_conjugate_holds_a_vague_prior_beside_precise_data_in_float32(prior_sd, noise):
    """Intercept and trend. A covariance of 1e4 and 1e-4, in one matrix of seven digits, would lose the smaller."""
    U = np.stack([np.ones(30), np.arange(1.0, 31.0)], axis=1)
    y = (U @ [2.0, -1.0] + noise * np.random.default_rng(0).normal(size=30)).astype(np.float32)
    model = epf.StateSpaceModel(
        prior={"b": dist.Normal(0.0, prior_sd).expand([2]).to_event(1)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.0, 1.0),
        observation=lambda theta, x, u: dist.Normal(theta["b"] @ u, noise),
        row=U[0],
    )
    statistic, x = epf.conjugate(model), jnp.zeros(())

    @jax.jit
    def after(y, U):
        def step(S, row):
            return statistic.update(jax.random.key(0), S, None, x, x, *row), None

        return jax.lax.scan(step, statistic.init(), (y, U))[0]

    S = after(y, U.astype(np.float32))
    C = np.linalg.inv(U.T @ U / noise**2 + np.eye(2) / prior_sd**2)
    mean, sd = C @ U.T @ y.astype(float) / noise**2, np.sqrt(np.diag(C))
    # Thirty roundings of numbers up to 30, by 6e-8 of them each: 1e-5 at the most where they add up like noise, against
    # a standard deviation of 2e-4 at the least.
    np.testing.assert_allclose((S.m - mean) / sd, 0.0, atol=0.05)
    np.testing.assert_allclose(np.sqrt(np.diag(S.C)) / sd, 1.0, atol=0.01)
