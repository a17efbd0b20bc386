"""Claims about `conjugate_blocks`: exact densities, exact draws, filters against Kalman, quadrature, enumeration."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import gammaln
from scipy.stats import kstest, multivariate_normal, truncnorm

import epf_jax as epf
from epf_jax import exact
from epf_jax.statistics import statistic_of_path
from epf_jax.statistics.families import _truncated

KEY = jax.random.key(0)


def regression(**changes):
    """An AR(1) with unknown coefficient, offset and variance, a quarter of the variance being the observation's."""
    parts = {
        "prior": {"phi": dist.Normal(0.3, 0.4), "offset": dist.Normal(0.0, 1.0), "v": dist.InverseGamma(3.0, 2.0)},
        "initial": lambda theta: dist.Normal(theta["offset"], 1.0),
        "transition": lambda theta, x, u: dist.Normal(theta["phi"] * x + theta["offset"], jnp.sqrt(theta["v"])),
        "observation": lambda theta, x, u: dist.Normal(x, jnp.sqrt(theta["v"] / 4)),
    }
    return epf.StateSpaceModel(**(parts | changes))


def full_covariance():
    """Two states that move one another, with a full unknown covariance; each is seen in noise of its own."""

    def transition(theta, x, u):
        return dist.MultivariateNormal(theta["A"] @ x, theta["covariance"])

    return epf.StateSpaceModel(
        prior={
            "A": dist.Normal(jnp.zeros((2, 2)), 0.5).to_event(2),
            "covariance": dist.InverseWishart(5.0, jnp.array([[2.0, 0.5], [0.5, 1.0]])),
            "noise": dist.InverseGamma(jnp.array([3.0, 4.0]), 1.0).to_event(1),
        },
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, jnp.sqrt(theta["noise"])).to_event(1),
    )


def hidden_chain():
    """A hidden Markov chain: two regimes, whole numbers, with unknown transition matrix and unknown means."""
    matrix = dist.Dirichlet(jnp.array([[4.0, 1.0], [2.0, 3.0]]))
    return epf.StateSpaceModel(
        prior={"matrix": matrix, "mean": dist.Normal(jnp.array([-1.0, 1.0]), 0.5).to_event(1)},
        initial=lambda theta: dist.Categorical(probs=jnp.array([0.5, 0.5])),
        transition=lambda theta, x, u: dist.Categorical(probs=theta["matrix"][x]),
        observation=lambda theta, x, u: dist.Normal(theta["mean"][x], 0.7),
    )


MODELS = {
    "regression": regression,
    "full_covariance": full_covariance,
    "hidden_chain": hidden_chain,
    "local_level_variances": epf.models.local_level_variances,
    "stochastic_volatility": epf.models.stochastic_volatility,
    "switching_ar1": epf.models.switching_ar1,
}


def quick(*names):
    """Every name; those that are not listed only in slow runs."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


@cache
def path_of(name):
    """A model, a path of 12 steps with a missing observation, its statistic, and the path's; in float64 throughout."""
    model = MODELS[name]()
    theta = model.parameters.to_theta(model.parameters.centre + 0.3 * model.parameters.scale)
    x, y = epf.simulate(KEY, model, theta, 12)
    y = y.at[3].set(jnp.nan)
    statistic = epf.conjugate_blocks(model)
    S = jax.jit(lambda x, y: statistic_of_path(statistic, x, y))(x, y)
    return model, x, y, statistic, jax.tree.map(lambda leaf: leaf[-1], S)


@pytest.mark.slow
@pytest.mark.parametrize("name", quick("regression", "switching_ar1"))
def test_the_sums_give_the_exact_gibbs_density_of_a_path_with_a_gap(name, x64):
    model, x, y, statistic, S = path_of(name)
    coordinates = model.parameters
    reference = coordinates.to_theta(coordinates.centre)

    @jax.jit
    @jax.vmap
    def both(theta):
        z = coordinates.to_vector(theta)
        likelihoods = [exact.path_log_likelihood(model, at, x, y)[-1] for at in (theta, reference)]
        log_prior = coordinates.log_prior(z) - coordinates.log_jacobian(z)
        return statistic.log_density(S, theta), log_prior + likelihoods[0] - likelihoods[1]

    np.testing.assert_allclose(*both(coordinates.sample(jax.random.key(2), 6)), rtol=1e-9, atol=1e-9)


def chains(name, num, num_sweeps):
    """The ends of Gibbs chains on the known path, started at the prior."""
    model, _, _, statistic, S = path_of(name)

    def chain(key, theta):
        keys = jax.random.split(key, num_sweeps)
        return jax.lax.scan(lambda theta, key: (statistic.sample(key, S, theta)[0], None), theta, keys)[0]

    start = model.parameters.sample(jax.random.key(5), num)
    return jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(6), num), start)


GRIDS = {
    "regression": {
        "phi": np.linspace(-1.2, 1.8, 31),
        "offset": np.linspace(-3.0, 3.0, 31),
        "v": np.exp(np.linspace(np.log(0.1), np.log(12.0), 31)),
    },
    "stochastic_volatility": {
        "level": np.linspace(-4.5, 4.5, 61),
        "persistence": np.linspace(0.2, 1.0, 61),
        "variance": np.exp(np.linspace(np.log(0.003), np.log(3.0), 61)),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", pytest.param("stochastic_volatility", marks=pytest.mark.slow)])
def test_gibbs_sweeps_draw_theta_from_the_exact_density_of_a_known_path(name, x64):
    # 4000 chains of 40 sweeps. Standard error of a mean of 4000 draws: sd / 63; of the sd of a skewed density, of
    # kurtosis 10 or so: sd sqrt(9 / 4) / 63 = sd / 42. Four of each are allowed.
    model, x, y, _, _ = path_of(name)
    truth = exact.known_path(model, x, GRIDS[name], y, batch_size=4096)
    for parameter, drawn in chains(name, 4000, 40).items():
        mean, sd = truth.mean[parameter][-1], truth.sd[parameter][-1]
        assert abs(float(drawn.mean()) - mean) < 4 * sd / 63, parameter
        assert abs(float(drawn.std()) - sd) < 4 * sd / 42, parameter


@pytest.mark.slow
def test_a_transition_matrix_is_drawn_from_its_dirichlet_posterior(x64):
    # Row r given the regimes is Dirichlet(alpha + counts). 4000 independent draws: standard error of a mean sd / 63, of
    # an sd less than that again. Four are allowed.
    model, x, _, _, _ = path_of("switching_ar1")
    regimes = np.asarray(x[:, 0], int)
    posterior = np.array(model.prior["matrix"].concentration)
    np.add.at(posterior, (regimes[:-1], regimes[1:]), 1)
    total = posterior.sum(axis=1, keepdims=True)
    mean, sd = posterior / total, np.sqrt(posterior * (total - posterior) / total**2 / (total + 1))
    drawn = chains("switching_ar1", 4000, 1)["matrix"]
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 4 * sd / 63)
    assert np.all(np.abs(drawn.std(axis=0) - sd) < 4 * sd / 63)


@pytest.mark.slow
def test_a_full_covariance_is_drawn_from_its_inverse_wishart_posterior(x64):
    # A sweep draws A, then the covariance given it, whose mean is then (scale + scatter) / (nu + n - d - 1), d = 2. The
    # draws less their own conditional means average to zero, within four standard errors.
    model, x, _, _, _ = path_of("full_covariance")
    drawn = chains("full_covariance", 4000, 1)
    residual = np.asarray(x[1:])[None] - np.einsum("nij,tj->nti", np.asarray(drawn["A"]), np.asarray(x[:-1]))
    prior = model.prior["covariance"]
    scatter = np.asarray(prior.scale_matrix) + np.einsum("nti,ntj->nij", residual, residual)
    excess = np.asarray(drawn["covariance"]) - scatter / (float(prior.concentration) + 12 - 2 - 1)
    assert np.all(np.abs(excess.mean(axis=0)) < 4 * excess.std(axis=0) / np.sqrt(4000))


def judge(results, mean, sd, largest_error):
    """Runs' posterior means, averaged, against the exact one in their own standard errors; sds by their median."""
    means, sds = (np.asarray(leaf, float) for leaf in (results[0], results[1]))
    standard_error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    assert np.all(standard_error < largest_error * sd)
    assert np.all(np.abs(means.mean(axis=0) - mean) < 4 * standard_error + 0.02 * sd)  # the grid's own error
    assert np.all(np.abs(np.median(sds, axis=0) / sd - 1) < 0.15)


@pytest.mark.slow
def test_the_default_is_conjugate_where_it_fits_and_linear_means_elsewhere():
    level = epf.models.local_level_variances()
    assert "statistic conjugate_blocks" in repr(epf.extended_parameter_filter(level, 10))
    squared = epf.StateSpaceModel(  # a standard deviation where the prior is one of variances
        level.prior,
        level.initial,
        lambda theta, x, u: dist.Normal(x, theta["level_variance"]),
        level.observation,
    )
    assert "statistic linear_means" in repr(epf.extended_parameter_filter(squared, 10))


@pytest.mark.slow
def test_storviks_filter_knows_a_local_level_with_two_unknown_variances():
    # Eight filters against the Kalman filter's evidence on a grid of both variances.
    model = epf.models.local_level_variances()
    _, y = epf.simulate(jax.random.key(1), model, {"level_variance": 0.25, "observation_variance": 1.0}, 50)
    y = y.at[20].set(jnp.nan)
    grid = {name: np.exp(np.linspace(np.log(0.01), np.log(6.0), 41)) for name in model.prior}
    truth = exact.kalman(model, y, grid, batch_size=2048)
    filter_ = epf.storvik_filter(model, 500)
    assert "conjugate_blocks" in repr(filter_)
    results = epf.replicate(jax.random.split(jax.random.key(2), 8), filter_, y, levels=())
    for name in model.prior:
        final = results.theta.mean[name][:, -1], results.theta.sd[name][:, -1]
        judge(final, truth.mean[name][-1], truth.sd[name][-1], 0.15)
    errors = np.asarray(results.log_evidence[:, -1]) - truth.log_evidence[-1]
    assert abs(errors.mean()) < 4 * errors.std(ddof=1) / np.sqrt(8) + 0.5 * errors.var()  # log Z is biased by var / 2


@pytest.mark.slow
def test_storviks_filter_learns_stochastic_volatility():
    # Six filters against quadrature over the state on a grid of all three parameters.
    model = epf.models.stochastic_volatility()
    _, y = epf.simulate(KEY, model, {"level": 0.0, "persistence": 0.95, "variance": 0.05}, 50)
    grid = {
        "level": np.linspace(-3.0, 3.0, 15),
        "persistence": np.linspace(0.35, 0.9995, 16),
        "variance": np.exp(np.linspace(np.log(0.005), np.log(1.5), 13)),
    }
    truth = exact.quadrature(model, y, grid, np.linspace(-6.0, 6.0, 140))
    results = epf.replicate(jax.random.split(jax.random.key(2), 6), epf.storvik_filter(model, 4000), y, levels=())
    for name in model.prior:
        final = results.theta.mean[name][:, -1], results.theta.sd[name][:, -1]
        judge(final, truth.mean[name][-1], truth.sd[name][-1], 0.1)


@pytest.mark.slow
def test_storvik_learns_a_hidden_chain_as_enumerating_paths_does():
    # Over the 2^9 paths of regimes: p(path, y) has a closed form (Dirichlet-multinomial rows, Gaussian means), and so
    # has the posterior mean of every parameter given the path.
    model = hidden_chain()
    truth = {"matrix": jnp.array([[0.8, 0.2], [0.4, 0.6]]), "mean": jnp.array([-1.2, 1.1])}
    _, y = epf.simulate(jax.random.key(3), model, truth, 8)
    alpha, prior_mean, v_0, v = np.array([[4.0, 1.0], [2.0, 3.0]]), np.array([-1.0, 1.0]), 0.25, 0.49
    log_joints, matrices, means = [], [], []
    for path in itertools.product((0, 1), repeat=9):
        path = np.array(path)
        counts = np.zeros((2, 2))
        np.add.at(counts, (path[:-1], path[1:]), 1)
        log_joint = np.sum(gammaln(alpha + counts) - gammaln(alpha))
        log_joint -= np.sum(gammaln((alpha + counts).sum(1)) - gammaln(alpha.sum(1)))
        found = np.zeros(2)
        for r in (0, 1):
            seen = np.asarray(y, float)[path[1:] == r]
            covariance = v * np.eye(len(seen)) + v_0
            if len(seen):
                log_joint += multivariate_normal(np.full(len(seen), prior_mean[r]), covariance).logpdf(seen)
            found[r] = (prior_mean[r] / v_0 + seen.sum() / v) / (1 / v_0 + len(seen) / v)
        log_joints.append(log_joint)
        matrices.append((alpha + counts) / (alpha + counts).sum(1, keepdims=True))
        means.append(found)
    weights = np.exp(np.array(log_joints) - np.max(log_joints))
    weights /= weights.sum()
    filter_ = epf.storvik_filter(model, 2000)
    results = epf.replicate(jax.random.split(jax.random.key(2), 16), filter_, y, levels=())
    for name, paths in (("matrix", matrices), ("mean", means)):
        drawn = np.asarray(results.theta.mean[name][:, -1], float)
        standard_error = drawn.std(axis=0, ddof=1) / 4
        assert np.all(standard_error < 0.01)
        assert np.all(np.abs(drawn.mean(axis=0) - np.tensordot(weights, np.stack(paths), 1)) < 4 * standard_error)


@pytest.mark.slow
def test_a_variance_that_no_simulated_step_had_is_summed_all_the_same(x64):
    model = epf.StateSpaceModel(
        prior={"v": dist.InverseGamma(jnp.array([3.0, 3.0]), 2.0).to_event(1)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.5 * x, jnp.sqrt(theta["v"][jnp.where(u > 1000, 1, 0)])),
        observation=lambda theta, x, u: dist.Normal(x, 0.1),
    )
    statistic, u = epf.conjugate_blocks(model), np.arange(995, 1011)
    x = jnp.asarray(np.random.default_rng(0).normal(size=17))
    S = jax.tree.map(lambda leaf: leaf[-1], statistic_of_path(statistic, x, x[1:], inputs=jnp.asarray(u)))

    def log_density(v):
        scale = np.sqrt(np.asarray(v)[np.where(u > 1000, 1, 0)])
        prior = np.sum(dist.InverseGamma(3.0, 2.0).log_prob(jnp.asarray(v)))
        return prior + np.sum(dist.Normal(0.5 * x[:-1], scale).log_prob(x[1:]))

    at = [{"v": jnp.array(v)} for v in ([0.5, 4.0], [1.5, 0.3])]
    found = [statistic.log_density(S, theta) for theta in at]
    # float64 sums of 16 terms of order ten
    np.testing.assert_allclose(found[0] - found[1], log_density(at[0]["v"]) - log_density(at[1]["v"]), rtol=1e-9)


@pytest.mark.slow
def test_a_mean_linear_at_one_time_step_only_is_not_taken_for_linear():
    model = regression(
        prior={"phi": dist.Normal(0.3, 0.4), "offset": dist.Normal(0.0, 1.0), "v": dist.InverseGamma(3.0, 2.0)},
        transition=lambda theta, x, u: dist.Normal(theta["phi"] ** u * x, jnp.sqrt(theta["v"])),
        row=1.0,
    )
    with pytest.raises(ValueError, match="does not seem to be linear in theta's 'phi'"):
        epf.conjugate_blocks(model)


@pytest.mark.parametrize(
    ("low", "high", "mean", "sd"),
    [
        (-1.0, 1.0, 1.02, 0.003),
        (0.0, None, -0.2, 0.01),
        (None, 0.0, 3.0, 0.1),
        (-1.0, 1.0, 0.3, 0.2),
        (-1.0, 1.0, 0.0, 50.0),
    ],
)
def test_draws_between_bounds_are_right_however_far_the_gaussian_lies(low, high, mean, sd, precision):
    prior = dist.TruncatedNormal(0.0, 1.0, low=low, high=high)
    draw = jax.jit(jax.vmap(lambda u: _truncated(u, prior, jnp.asarray(mean), jnp.asarray(sd))))
    found = np.asarray(draw(jax.random.uniform(KEY, 4000, minval=1e-30)), float)
    a, b = (-np.inf if low is None else low, np.inf if high is None else high)
    # Kolmogorov-Smirnov: sqrt(N) times the distance exceeds 1.95 with probability 0.001.
    law = truncnorm((a - mean) / sd, (b - mean) / sd, mean, sd)
    assert kstest(found, law.cdf).statistic < 1.95 / 4000**0.5
    assert np.all((found > a) & (found < b))


@pytest.mark.parametrize(
    ("low", "high", "mean", "sd"), [(-8.0, 8.0, 0.0, 1.0), (0.0, None, 3.0, 0.5), (None, 0.0, -3.0, 0.5)]
)
def test_draws_well_inside_the_bounds_have_both_tails(low, high, mean, sd, x64):
    prior = dist.TruncatedNormal(0.0, 1.0, low=low, high=high)
    u = np.concatenate([np.geomspace(1e-6, 0.5, 50), 1 - np.geomspace(1e-6, 0.5, 50)])
    found = jax.jit(jax.vmap(lambda u: _truncated(u, prior, jnp.asarray(mean), jnp.asarray(sd))))(u)
    a, b = (-np.inf if low is None else low, np.inf if high is None else high)
    law = truncnorm((a - mean) / sd, (b - mean) / sd, mean, sd)
    # The draw counts from the nearer bound, so that quantiles may be in the mirrored order.
    expected = law.ppf(u if found[-1] > found[0] else 1 - u)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)  # SciPy's own error far out


def refused(transition=None, observation=None, **prior):
    changes = {"prior": {"phi": dist.Normal(0.3, 0.4), "v": dist.InverseGamma(3.0, 2.0)} | prior}
    changes["initial"] = lambda theta: dist.Normal(0.0, 1.0)
    changes["transition"] = transition or (lambda theta, x, u: dist.Normal(theta["phi"] * x, jnp.sqrt(theta["v"])))
    changes["observation"] = observation or (lambda theta, x, u: dist.Normal(x, 1.0))
    return regression(**changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "model"),
    [
        ("prior of 'v' is a LogNormal.*InverseGamma", lambda: refused(v=dist.LogNormal(0.0, 1.0))),
        (
            "mean of the transition does not seem to be linear in theta's 'phi'",
            lambda: refused(lambda theta, x, u: dist.Normal(jnp.sin(theta["phi"] * x), jnp.sqrt(theta["v"]))),
        ),
        (
            "one variance of theta for each component. dist.Normal takes the square root",
            lambda: refused(lambda theta, x, u: dist.Normal(theta["phi"] * x, theta["v"])),
        ),
        (
            "not proportional to one variance",
            lambda: refused(lambda theta, x, u: dist.Normal(theta["phi"] * x, jnp.sqrt(theta["v"] + 1.0))),
        ),
        (
            "noise of the transition depends on theta's 'phi'",
            lambda: refused(lambda theta, x, u: dist.Normal(x, jnp.exp(theta["phi"]) * jnp.sqrt(theta["v"]))),
        ),
        (
            "mean of the transition depends on theta's 'v'",
            lambda: refused(lambda theta, x, u: dist.Normal(theta["v"] * x, 1.0)),
        ),
        (
            "transition, which is not Gaussian, depends on theta's 'phi', whose prior is a Normal",
            lambda: refused(lambda theta, x, u: dist.Laplace(theta["phi"] * x, jnp.sqrt(theta["v"]))),
        ),
        (
            "not a row of theta's 'matrix'",
            lambda: epf.StateSpaceModel(
                prior={"matrix": dist.Dirichlet(jnp.ones((2, 2)))},
                initial=lambda theta: dist.Categorical(probs=jnp.array([0.5, 0.5])),
                transition=lambda theta, x, u: dist.Categorical(probs=0.5 * theta["matrix"][x] + 0.25),
                observation=lambda theta, x, u: dist.Normal(x, 1.0),
            ),
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_told_why(message, model):
    with pytest.raises(ValueError, match=rf"^conjugate_blocks: .*{message}.*Use epf\.chebyshev"):
        epf.conjugate_blocks(model())


RATE = dist.Gamma(jnp.array([2.0, 0.3]), jnp.array([1.0, 0.1])).to_event(1)
SHARE = dist.Beta(jnp.array([0.5, 3.0]), 2.0).to_event(1)
OBSERVED = {  # prior of r, the observation's distribution, an observation
    "counts": (RATE, lambda r, x, u: dist.Poisson(r * jnp.exp(x) * u).to_event(1), [3.0, 40.0]),
    "one of two counts": (RATE, lambda r, x, u: dist.Poisson(jnp.where(x > 0, r[0], r[1]) * u), 4.0),
    "waiting times": (RATE, lambda r, x, u: dist.Gamma(2.0 + x**2, r * u).to_event(1), [0.5, 7.0]),
    "successes": (SHARE, lambda r, x, u: dist.Binomial(20, r).to_event(1), [3.0, 20.0]),
    "failures": (SHARE, lambda r, x, u: dist.NegativeBinomialProbs(2.0 + u, r).to_event(1), [3.0, 0.0]),
    "scales": (dist.InverseGamma(3.0, 2.0), lambda r, x, u: dist.Laplace(x, r * u), -2.5),
    "shares": (dist.Dirichlet(jnp.array([0.5, 1.0, 2.0])), lambda r, x, u: dist.Multinomial(9, r), [4.0, 0.0, 5.0]),
    "inverse variances": (RATE, lambda r, x, u: dist.Normal(x, u / jnp.sqrt(r)).to_event(1), [0.3, -2.0]),
}


def observed(name):
    prior, observation, _ = OBSERVED[name]
    return epf.StateSpaceModel(
        prior={"r": prior},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.5 * x, 1.0),
        observation=lambda theta, x, u: observation(theta["r"], x, u),
        row=1.0,
    )


@pytest.mark.parametrize("name", [n if n == "counts" else pytest.param(n, marks=pytest.mark.slow) for n in OBSERVED])
def test_rates_and_probabilities_are_drawn_from_their_exact_density(name, x64):
    # Log-densities of up to 1e3 are rounded at 1e-13; a probability's ends, a thousandth from 0 and 1, cost three digits
    # of its coefficients: 1e-10, and 1e-8 are allowed.
    model, y = observed(name), jnp.asarray(OBSERVED[name][2])
    ys = jnp.stack([y, y, jnp.full_like(y, jnp.nan), y])
    x, inputs = jnp.array([0.1, 0.6, -0.4, 0.3, -1.2]), jnp.array([1.0, 0.5, 2.0, 1.5])
    statistic = epf.extended_parameter_filter(model, 10).statistic
    assert statistic.name == "conjugate_blocks"
    S = jax.jit(lambda ys: statistic_of_path(statistic, x, ys, inputs=inputs))(ys)
    S = jax.tree.map(lambda leaf: leaf[-1], S)

    def both(theta):
        steps = [(x[t + 1], ys[t], inputs[t]) for t in (0, 1, 3)]
        seen = [jnp.sum(model.observation(theta, x, u).log_prob(y)) for x, y, u in steps]
        return statistic.log_density(S, theta), sum(seen) + jnp.sum(model.prior["r"].log_prob(theta["r"]))

    thetas = model.parameters.sample(jax.random.key(2), 6)
    claimed, own = map(np.asarray, jax.jit(jax.vmap(both))(thetas))
    np.testing.assert_allclose(claimed - claimed[0], own - own[0], rtol=1e-8, atol=1e-8)

    # The draws' law is the density: the mean of p's score, d log p / d z, over draws of z is zero. Of 4000 draws each of
    # its components is within 4.5 of its own standard errors (seven in a million of a Gaussian are beyond).
    keys = jax.random.split(jax.random.key(3), 4000)
    theta = jax.tree.map(lambda leaf: leaf[0], thetas)

    def score(key):
        z = model.parameters.to_vector(statistic.sample(key, S, theta)[0])
        return jax.grad(statistic.log_target(S))(z)

    score = np.asarray(jax.jit(jax.vmap(score))(keys))
    assert np.all(np.abs(score.mean(axis=0)) < 4.5 * score.std(axis=0) / np.sqrt(4000))


@pytest.mark.parametrize(
    "observation",
    [
        lambda theta, x, u: dist.Poisson(theta["a"] + theta["b"]),
        *(
            pytest.param(observation, marks=pytest.mark.slow)
            for observation in (
                lambda theta, x, u: dist.Poisson(theta["a"] * theta["b"]),
                lambda theta, x, u: dist.Poisson(theta["a"] ** 2 + 0.0 * theta["b"]),
                lambda theta, x, u: dist.Poisson(theta["a"] + 0.1 + theta["b"] * 0.0),
                lambda theta, x, u: dist.Weibull(theta["a"], theta["b"]),
            )
        ),
    ],
)
def test_rates_in_which_a_density_is_not_linear_are_refused(observation):
    model = epf.StateSpaceModel(
        prior={"a": dist.Gamma(2.0, 1.0), "b": dist.Gamma(2.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.5 * x, 1.0),
        observation=observation,
    )
    with pytest.raises(ValueError, match=r"^conjugate_blocks: the observation is not what"):
        epf.conjugate_blocks(model)


@pytest.mark.slow
def test_a_rate_that_is_capped_late_is_told_of():
    model = epf.StateSpaceModel(
        prior={"r": dist.Gamma(2.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 0.1),
        transition=lambda theta, x, u: dist.Normal(x + 0.2, 0.01),
        observation=lambda theta, x, u: dist.Poisson(jnp.where(x > 4.0, jnp.minimum(theta["r"], 1.0), theta["r"])),
    )
    with pytest.warns(RuntimeWarning) as told:
        results = epf.run(jax.random.key(0), epf.storvik_filter(model, 20), jnp.ones(25), levels=())
    assert any("form changes with time or state" in str(warning.message) for warning in told)
    assert np.isfinite(results.theta.mean["r"][:15]).all()
    assert np.isnan(results.theta.mean["r"][-1])


@pytest.mark.slow
def test_a_regime_may_be_given_by_logits():
    matrix = jnp.log(jnp.array([[0.999, 0.001], [0.1, 0.9]]))
    model = epf.StateSpaceModel(
        prior={"v": dist.InverseGamma(3.0, 2.0)},
        initial=lambda theta: dist.Categorical(logits=matrix[0]),
        transition=lambda theta, x, u: dist.Categorical(logits=matrix[x]),
        observation=lambda theta, x, u: dist.Normal(x, jnp.sqrt(theta["v"])),
    )
    assert epf.extended_parameter_filter(model, 10).statistic.name == "conjugate_blocks"
    rare = epf.StateSpaceModel(
        model.prior,
        model.initial,
        model.transition,
        lambda theta, x, u: dist.Normal(0.0, jnp.where(x == 1, theta["v"], jnp.sqrt(theta["v"]))),
    )
    with pytest.raises(ValueError, match="not proportional to one variance"):  # though no simulated path comes to it
        epf.conjugate_blocks(rare)


def rarely_noisier(times):
    """Twice the variance where the model says so."""
    return epf.StateSpaceModel(
        prior={"v": dist.InverseGamma(3.0, 2.0), "k": dist.InverseGamma(3.0, 2.0)},
        initial=lambda theta: dist.Normal(0.0, 0.1),
        transition=lambda theta, x, u: dist.Normal(x + 0.2, 0.01),
        observation=lambda theta, x, u: dist.Normal(0.0, jnp.sqrt(theta["v"] * jnp.where(times(x, u), theta["k"], 1))),
    )


def test_a_window_of_time_in_which_the_form_is_another_is_found():
    with pytest.raises(ValueError, match="is not proportional to one variance of theta for each component"):
        epf.conjugate_blocks(rarely_noisier(lambda x, u: (u >= 60) & (u < 85)))


@pytest.mark.slow
def test_a_state_at_which_the_form_is_another_is_told_of():
    filter_ = epf.storvik_filter(rarely_noisier(lambda x, u: x > 4.0), 20)  # which six simulated steps never come to
    y = jnp.ones(25)
    with pytest.warns(RuntimeWarning) as told:
        results = epf.run(jax.random.key(0), filter_, y, levels=())
    assert any("form changes with time or state" in str(warning.message) for warning in told)
    found = np.isfinite(results.theta.mean["v"])
    assert found[:15].all()  # x is about 3 after 15 steps, 5 at the end
    assert not found[-1]
