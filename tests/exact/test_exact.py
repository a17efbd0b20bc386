"""The oracles, against closed forms: whoever judges must be right first."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal, norm

import epf_jax as epf
from epf_jax import exact


def dense_log_density(phi, y, noise=1.0, observation_noise=0.5):
    """log N(y; 0, Sigma) of an AR(1) seen in noise, its joint covariance written out; NaN rows are left out."""
    T = len(y)
    variances = [1.0]
    for _ in range(T):
        variances.append(phi**2 * variances[-1] + noise**2)
    covariance = np.array(
        [[phi ** abs(s - t) * variances[min(s, t)] for t in range(1, T + 1)] for s in range(1, T + 1)]
    )
    covariance += observation_noise**2 * np.eye(T)
    seen = ~np.isnan(y)
    return multivariate_normal(np.zeros(seen.sum()), covariance[np.ix_(seen, seen)]).logpdf(y[seen])


def test_kalman_evidence_is_the_dense_gaussian_density(x64):
    y = np.array([0.3, -1.2, np.nan, 0.8, 2.0])
    found = exact.kalman_log_evidence(epf.models.ar1(), {"phi": 0.7}, y)
    np.testing.assert_allclose(found[-1], dense_log_density(0.7, y), rtol=1e-10)


@pytest.mark.slow
def test_quadrature_agrees_with_kalman_on_a_linear_model(x64):
    model = epf.models.ar1()
    _, y = epf.simulate(jax.random.key(0), model, {"phi": 0.8}, 30)
    kalman = exact.kalman_log_evidence(model, {"phi": 0.8}, y)
    moving = exact.quadrature_log_evidence(model, {"phi": 0.8}, y, exact.nodes_around(y, 4.0, 41))
    np.testing.assert_allclose(moving, kalman, atol=1e-8)
    missing = y.at[7].set(jnp.nan)
    fixed = exact.quadrature_log_evidence(model, {"phi": 0.8}, missing, jnp.linspace(-12, 12, 161))
    np.testing.assert_allclose(fixed, exact.kalman_log_evidence(model, {"phi": 0.8}, missing), atol=1e-8)


def test_kalman_takes_vector_states_and_inputs(x64):
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(jnp.stack([theta["a"] * x[0] + u, 0.5 * x[1]]), 1.0).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x[0], 0.5),
    )
    scalar = epf.models.ar1()
    y, u = np.array([0.3, -1.0, 0.4]), np.array([0.5, 0.2, -0.3])
    # the second state is unseen; the input moves the first by a known path m
    m = np.array([u[0], 0.6 * u[0] + u[1], 0.36 * u[0] + 0.6 * u[1] + u[2]])
    found = exact.kalman_log_evidence(model, {"a": 0.6}, y, inputs=u)
    np.testing.assert_allclose(found, exact.kalman_log_evidence(scalar, {"phi": 0.6}, y - m), rtol=1e-9)


def test_grid_posteriors_have_the_moments_of_a_conjugate_one():
    model = epf.models.ar1(prior_sd=0.5)
    x, y = epf.simulate(jax.random.key(1), model, {"phi": 0.6}, 40)
    x = np.asarray(x, float)
    precision = 1 / 0.25 + np.sum(x[:-1] ** 2)
    mean, sd = np.sum(x[:-1] * x[1:]) / precision, precision**-0.5
    found = exact.known_path(model, x, {"phi": np.linspace(mean - 8 * sd, mean + 8 * sd, 81)})
    np.testing.assert_allclose([found.mean["phi"][-1], found.sd["phi"][-1]], [mean, sd], rtol=1e-6)
    levels = (0.05, 0.5, 0.95)
    # steps h = sd / 5: the trapezoidal rule errs by h^2 |f'| / 12 f, linear interpolation by h^2 |f'| / 8 f; at the 5%
    # quantile |f'| / f = 1.64 / sd, together .04 (1/12 + 1/8) 1.64 sd = .0137 sd
    np.testing.assert_allclose(found.quantiles(levels)["phi"][-1], norm(mean, sd).ppf(levels), atol=0.014 * sd)
    assert found.log_density.dtype == np.float64
    del y


def test_a_posterior_that_goes_on_beyond_its_axis_is_told_of():
    model = epf.models.ar1()
    x = np.asarray(epf.simulate(jax.random.key(1), model, {"phi": 0.8}, 40)[0])
    with pytest.warns(RuntimeWarning, match=r"^axes: the posterior of phi goes on where its grid ends, at 0\.6"):
        exact.known_path(model, x, {"phi": np.linspace(-1.0, 0.6, 41)})


@pytest.mark.parametrize(
    "oracle", ["known_path", *(pytest.param(o, marks=pytest.mark.slow) for o in ("kalman", "quadrature"))]
)
def test_a_grid_too_coarse_for_its_posterior_is_told_of_by_every_oracle(oracle):
    """An AR(1) of 200 steps knows phi to .06: points .3 apart put the sd at 4e-6, and the evidence 2 nats off."""
    model = epf.models.ar1()
    x, y = epf.simulate(jax.random.key(0), model, {"phi": 0.7}, 200)

    def found(num):
        axes = {"phi": np.linspace(-1.0, 1.4, num)}
        if oracle == "known_path":
            return exact.known_path(model, x, axes)
        return getattr(exact, oracle)(model, y, axes, *([np.linspace(-9.0, 9.0, 61)] if oracle == "quadrature" else []))

    with pytest.warns(RuntimeWarning, match=r"^axes: the grid of phi is too coarse"):
        found(9)
    assert 0.04 < found(49).sd["phi"][-1] < 0.07  # warnings are errors here


def test_a_grid_across_a_ridge_is_told_of_where_each_marginal_is_smooth():
    ridge = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] + theta["b"], 0.05),
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
    )
    axis = np.linspace(-4.0, 4.0, 33)
    with pytest.warns(RuntimeWarning, match=r"^axes: the grid of [ab] is too coarse") as told:
        exact.known_path(ridge, np.array([0.0, 1.0]), {"a": axis, "b": axis})
    assert len(told) == 2


def test_an_axis_that_ends_with_the_prior_or_beside_its_end_is_no_news():
    model = dataclasses.replace(epf.models.ar1(), prior={"phi": dist.Uniform(-0.9, 0.6)})
    x = np.asarray(epf.simulate(jax.random.key(1), model, {"phi": 0.55}, 40)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact.known_path(model, x, {"phi": np.linspace(-0.9, 0.6, 41)})
        exact.known_path(
            model, x, {"phi": np.linspace(-0.899, 0.599, 2001)}
        )  # of which a step is less than what is left


@pytest.mark.slow
def test_nodes_that_are_not_equally_spaced_are_refused():
    model = epf.models.ar1()
    with pytest.raises(ValueError, match=r"^nodes: expected equally spaced increasing states"):
        exact.quadrature(model, jnp.zeros(3), {"phi": jnp.linspace(0.0, 1.0, 5)}, jnp.sinh(jnp.linspace(-2.0, 2.0, 9)))


@pytest.mark.slow
def test_tables_and_whole_numbers_are_data_and_moments_too():
    pandas = pytest.importorskip("pandas")
    model = epf.StateSpaceModel(
        prior={"phi": dist.Normal(0.0, 0.5)},
        initial=lambda theta: dist.MultivariateNormal(jnp.zeros(2, int), jnp.eye(2)),
        transition=lambda theta, x, u: dist.MultivariateNormal(theta["phi"] * x + u["z"], jnp.eye(2)),
        observation=lambda theta, x, u: dist.Normal(x, 0.5).to_event(1),
        row={"z": 0.0},
    )
    y, z, axes = np.random.default_rng(0).normal(size=(5, 2)), np.arange(5.0), {"phi": jnp.linspace(-3.0, 1.0, 81)}
    plain = exact.kalman(model, jnp.asarray(y), axes, inputs={"z": jnp.asarray(z)})
    tables = exact.kalman(model, pandas.DataFrame(y), axes, inputs=pandas.DataFrame({"z": z}))
    np.testing.assert_allclose(tables.log_evidence, plain.log_evidence, rtol=1e-6)


def test_two_parameter_grids_integrate_each_other_out():
    model = epf.models.local_level()
    _, y = epf.simulate(jax.random.key(2), model, {"level_noise": 0.5, "observation_noise": 1.0}, 20)
    axes = {"level_noise": np.linspace(0.02, 3.0, 90), "observation_noise": np.linspace(0.1, 3.5, 80)}
    found = exact.kalman(model, y, axes)
    for name, density in found.marginal().items():
        np.testing.assert_allclose(np.trapezoid(density[-1], axes[name]), 1.0, rtol=1e-6)
    finer = exact.axes_around(found, half_width=4.0, num=30)
    assert finer["level_noise"].shape == (30,)
    assert finer["level_noise"][0] == pytest.approx(found.mean["level_noise"][-1] - 4 * found.sd["level_noise"][-1])


def test_kl_of_two_gaussians_is_the_closed_form():
    grid = np.linspace(-12, 12, 2001)
    found = exact.kl(norm(0, 1).logpdf(grid), norm(0.5, 2).logpdf(grid), grid)
    # the interval leaves out 5e-9 of the wider density
    np.testing.assert_allclose(found, np.log(2) + (1 + 0.25) / 8 - 0.5, rtol=1e-7)


def test_taylor_kl_of_the_papers_example_falls_with_the_order():
    # S(x) = -x^2 + 5 sin^2 x, and sin^2 x = sum_k (-1)^{k+1} 2^{2k-1} x^{2k} / (2k)!; on [-6, 6] the proper orders 4, 8,
    # 12 give 0.77, 7e-3 and 2e-5 (NUMERICS); each is checked to a factor of 1.5.
    x = np.linspace(-6, 6, 4001)
    S = -(x**2) + 5 * np.sin(x) ** 2

    def taylor(order):
        total = -(x**2)
        for k in range(1, order // 2 + 1):
            total = total + 5 * (-1) ** (k + 1) * 2.0 ** (2 * k - 1) * x ** (2 * k) / float(
                np.prod(np.arange(1.0, 2 * k + 1))
            )
        return total

    for order, expected in ((4, 0.77), (8, 7e-3), (12, 2e-5)):
        assert expected / 1.5 < exact.kl(S, taylor(order), x) < expected * 1.5


def test_known_path_counts_observations_when_given():
    model = epf.models.local_level()
    theta = {"level_noise": jnp.asarray(0.5), "observation_noise": jnp.asarray(1.0)}
    x, y = epf.simulate(jax.random.key(3), model, theta, 6)
    extra = exact.path_log_likelihood(model, theta, x, y) - exact.path_log_likelihood(model, theta, x)
    np.testing.assert_allclose(extra, np.cumsum(norm(np.asarray(x[1:]), 1.0).logpdf(np.asarray(y))), rtol=1e-4)


def regimes(observation=lambda theta, x, u: dist.Normal(2.0 * x - 1.0, 1.0)):
    def transition(theta, x, u):
        stay = theta["stay"]
        return dist.Categorical(jnp.stack([jnp.where(x == 0, stay, 1 - stay), jnp.where(x == 0, 1 - stay, stay)]))

    return epf.StateSpaceModel(
        prior={"stay": dist.Beta(2.0, 2.0)},
        initial=lambda theta: dist.Categorical(jnp.array([0.5, 0.5])),
        transition=transition,
        observation=observation,
    )


def test_quadrature_over_the_regimes_is_the_forward_algorithm():
    y, stay = np.array([0.3, -1.0, np.nan, 0.7]), 0.8
    found = exact.quadrature_log_evidence(regimes(), {"stay": jnp.asarray(stay)}, y, jnp.arange(2))
    p, total, expected = np.array([0.5, 0.5]), 0.0, []
    for value in y:
        p = np.array([[stay, 1 - stay], [1 - stay, stay]]).T @ p
        p = p if np.isnan(value) else p * norm([-1.0, 1.0]).pdf(value)
        total, p = total + np.log(p.sum()), p / p.sum()
        expected.append(total)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # float32: sums of a few terms of order one


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("^nodes: the model's states are whole numbers, and some", lambda axes: ([0.3], axes, [0.0, 0.5, 1.0])),
        ("^nodes: the model's states are whole.*none may be left out", lambda axes: ([0.3], axes, np.array([0, 2]))),
        ("^y: 1 infinite value", lambda axes: ([np.inf], axes, np.arange(2))),
    ],
)
def test_quadrature_refuses_states_and_observations_that_cannot_be(message, call):
    with pytest.raises(ValueError, match=message):
        exact.quadrature(regimes(), *call({"stay": np.linspace(0.01, 0.99, 9)}))


def test_oracles_refuse_fractions_of_counts_as_run_does():
    model = regimes(lambda theta, x, u: dist.Poisson(1.0 + x))
    axes = {"stay": np.linspace(0.01, 0.99, 9)}
    with pytest.raises(ValueError, match=r"^y: the model observes whole numbers, and 2\.9"):
        exact.quadrature(model, [2.9, 3.0], axes, np.arange(2))
    with pytest.raises(ValueError, match=r"^y: the model observes whole numbers, and -0\.5"):
        exact.known_path(model, [0, 1, 1], axes, [-0.5, 3.0])
    floats, whole = (exact.known_path(model, path, axes, [2.0, 3.0]) for path in ([0.0, 1.0, 1.0], [0, 1, 1]))
    np.testing.assert_array_equal(floats.log_evidence, whole.log_evidence)


def test_quadrature_refuses_nodes_that_do_not_hold_the_initial_state():
    y = np.array([9.0, 5.0, 2.0, 1.0])
    pieces = epf.models.ar1()
    away = lambda theta: dist.Normal(20.0, 1.0)  # noqa: E731
    model = epf.StateSpaceModel(pieces.prior, away, pieces.transition, pieces.observation)
    axes = {"phi": np.linspace(0.0, 1.0, 41)}
    with pytest.raises(
        ValueError, match=r"^nodes: from observation 1 on .* wider ones: exact.nodes_around\(..., initial="
    ):
        exact.quadrature(model, y, axes, exact.nodes_around(y, 4.0, 25))
    exact.quadrature(model, y, axes, exact.nodes_around(y, 4.0, 25, initial=(13.0, 27.0)))


@pytest.mark.slow
def test_quadrature_refuses_nodes_that_are_too_far_apart():
    model = epf.StateSpaceModel(
        prior={"s": dist.LogNormal(-1.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 2.0),
        transition=lambda theta, x, u: dist.Normal(x, theta["s"]),
        observation=lambda theta, x, u: dist.Normal(x, 0.3),
    )
    _, y = epf.simulate(jax.random.key(4), model, {"s": 0.3}, 30)
    axes = {"s": np.linspace(0.02, 1.5, 40)}
    with pytest.raises(ValueError, match=r"^nodes: .* log-likelihood of s = .*otherwise, by .*Take more"):
        exact.quadrature(model, y, axes, np.linspace(-10.0, 10.0, 25))  # .83 apart
    found = exact.quadrature(model, y, axes, np.linspace(-10.0, 10.0, 201))  # warnings are errors here
    assert abs(found.log_evidence[-1] - exact.kalman(model, y, axes).log_evidence[-1]) < 0.02  # told of above that


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:axes:RuntimeWarning")  # an outlier asks for a q beyond them, too
def test_quadrature_refuses_nodes_that_the_state_leaves():
    model = epf.StateSpaceModel(
        prior={"q": dist.HalfNormal(1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x, theta["q"]),
        observation=lambda theta, x, u: dist.StudentT(3.0, x, 0.5),
    )
    y, axes = np.array([0.1, -0.2, 8.0, 0.1]), {"q": np.linspace(0.1, 1.5, 10)}
    with pytest.raises(ValueError, match=r"^nodes: from observation 3 on .*for outliers"):
        exact.quadrature(model, y, axes, exact.nodes_around(y, 4.0, 80))
    with pytest.warns(RuntimeWarning, match=r"^nodes: from observation 3 on"):
        exact.quadrature(model, [1.0, 2.0, 3.0], axes, np.linspace(-3.0, 3.0, 61))
    exact.quadrature(model, y, axes, np.linspace(-8.0, 12.0, 201))


@pytest.mark.slow
def test_quadrature_has_no_mass_where_states_cannot_be():
    rate = 2.0
    model = epf.StateSpaceModel(
        prior={"b": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Exponential(rate),
        transition=lambda theta, x, u: dist.Exponential(rate + 0 * jnp.sqrt(x)),  # no number below zero
        observation=lambda theta, x, u: dist.Normal(theta["b"], 1.0),
    )
    nodes = np.linspace(0.0, 10.0, 1001) + 0.005  # the middles of cells: the density jumps at zero
    found = exact.quadrature(model, np.array([0.4, 1.0]), {"b": np.linspace(-4.0, 4.0, 101)}, nodes)
    np.testing.assert_allclose(found.mean["b"][-1], 1.4 / 3, atol=1e-6)  # conjugate: the state says nothing of b
