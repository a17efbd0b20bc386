"""Claims about `conjugate_blocks`: exact densities, exact draws, and filters against Kalman, quadrature and enumeration."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax import exact
from epf_jax.statistics import statistic_of_path

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


def hidden_chain(prior=None):
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


@cache
def path_of(name, precision):
    """A model, a path of 12 steps with a missing observation, its statistic, and what the statistic is of the path."""
    model = MODELS[name]()
    theta = model.parameters.to_theta(model.parameters.centre + 0.3 * model.parameters.scale)
    x, y = epf.simulate(KEY, model, theta, 12)
    y = y.at[3].set(jnp.nan)
    statistic = epf.conjugate_blocks(model)
    S = jax.jit(lambda x, y: statistic_of_path(statistic, x, y))(x, y)
    return model, x, y, statistic, jax.tree.map(lambda leaf: leaf[-1], S)


@pytest.mark.parametrize("name", MODELS)
def test_the_sums_give_the_exact_gibbs_density_of_a_path_with_a_gap(name, x64):
    model, x, y, statistic, S = path_of(name, "float64")
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


def chains(model, statistic, S, num, num_sweeps):
    def chain(key, theta):
        keys = jax.random.split(key, num_sweeps)
        return jax.lax.scan(lambda theta, key: (statistic.sample(key, S, theta)[0], None), theta, keys)[0]

    start = model.parameters.sample(jax.random.key(5), num)
    return jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(6), num), start)


GRIDS = {
    "regression": {
        "phi": np.linspace(-1.2, 1.8, 61),
        "offset": np.linspace(-3.0, 3.0, 61),
        "v": np.exp(np.linspace(np.log(0.1), np.log(12.0), 61)),
    },
    "stochastic_volatility": {
        "level": np.linspace(-4.5, 4.5, 61),
        "persistence": np.linspace(0.2, 1.0, 61),
        "variance": np.exp(np.linspace(np.log(0.003), np.log(3.0), 61)),
    },
}


@pytest.mark.parametrize("name", GRIDS)
def test_gibbs_sweeps_draw_theta_from_the_exact_density_of_a_known_path(name):
    # 4000 chains of 40 sweeps, started at the prior. Standard error of a mean of 4000 draws: sd / 63; of the sd of a
    # skewed one (kurtosis up to 10 or so): sd sqrt(9 / 4) / 63 = sd / 42. Four of each are allowed.
    model, x, y, statistic, S = path_of(name, "float32")
    truth = exact.known_path(model, x, GRIDS[name], y, batch_size=4096)
    theta = chains(model, statistic, S, 4000, 40)
    for parameter, drawn in theta.items():
        mean, sd = truth.mean[parameter][-1], truth.sd[parameter][-1]
        assert abs(float(drawn.mean()) - mean) < 4 * sd / 63, parameter
        assert abs(float(drawn.std()) - sd) < 4 * sd / 42, parameter


def test_a_transition_matrix_alone_is_drawn_from_its_dirichlet_posterior():
    # Row r given the path is Dirichlet(alpha + counts). 4000 independent draws: standard error of a mean sd / 63.
    model, x, y, statistic, S = path_of("hidden_chain", "float32")
    counts = np.zeros((2, 2))
    np.add.at(counts, (np.asarray(x[:-1]), np.asarray(x[1:])), 1)
    posterior = np.array([[4.0, 1.0], [2.0, 3.0]]) + counts
    total = posterior.sum(axis=1, keepdims=True)
    mean, sd = posterior / total, np.sqrt(posterior * (total - posterior) / total**2 / (total + 1))
    drawn = chains(model, statistic, S, 4000, 2)["matrix"]
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 4 * sd / 63)
    assert np.all(np.abs(drawn.std(axis=0) - sd) < 4 * sd / 63)


def test_a_full_covariance_is_drawn_from_its_inverse_wishart_posterior():
    # With A held at a value, 4000 draws; the inverse-Wishart mean is (scale + scatter) / (nu + n - d - 1), d = 2. The
    # standard error is that of the draws themselves, and four are allowed.
    model, x, y, statistic, S = path_of("full_covariance", "float32")
    theta = jax.tree.map(lambda leaf: leaf[0], model.parameters.sample(jax.random.key(1), 1))

    def draw(key):
        # The sweep draws A first; in its place the prior is narrowed to nothing by a path of no other information.
        return statistic.sample(key, S, theta)[0]

    drawn = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(2), 4000))
    # Given each drawn A the conditional mean is known, and the average over draws of (draw - conditional mean) is zero.
    residual = np.asarray(x[1:])[None] - np.einsum("nij,tj->nti", np.asarray(drawn["A"]), np.asarray(x[:-1]))
    scatter = np.einsum("nti,ntj->nij", residual, residual)
    conditional = (np.array([[2.0, 0.5], [0.5, 1.0]]) + scatter) / (5.0 + 12 - 2 - 1)
    excess = np.asarray(drawn["covariance"]) - conditional
    assert np.all(np.abs(excess.mean(axis=0)) < 4 * excess.std(axis=0) / np.sqrt(4000))


def refused(transition=None, observation=None, **prior):
    changes = {"prior": {"phi": dist.Normal(0.3, 0.4), "v": dist.InverseGamma(3.0, 2.0)} | prior}
    changes["initial"] = lambda theta: dist.Normal(0.0, 1.0)
    changes["transition"] = transition or (lambda theta, x, u: dist.Normal(theta["phi"] * x, jnp.sqrt(theta["v"])))
    changes["observation"] = observation or (lambda theta, x, u: dist.Normal(x, 1.0))
    return regression(**changes)


@pytest.mark.parametrize(
    ("message", "model"),
    [
        ("prior of 'v' is a LogNormal.*InverseGamma", lambda: refused(v=dist.LogNormal(0.0, 1.0))),
        (
            "mean of the transition is not linear in theta's 'phi'",
            lambda: refused(lambda theta, x, u: dist.Normal(jnp.sin(theta["phi"] * x), jnp.sqrt(theta["v"]))),
        ),
        (
            "standard deviation: dist.Normal takes its square root",
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
            "neither Gaussian nor categorical",
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
