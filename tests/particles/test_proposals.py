"""Proposals: the fully adapted one against brute force, and all against the Kalman evidence."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal
from tiny import error

import epf_jax as epf
from epf_jax import exact
from epf_jax.core.gaussian import moments
from epf_jax.particles.default_proposal import default_proposal


@pytest.mark.slow
def test_fully_adapted_densities_agree_with_numerical_integration(x64):
    model = epf.models.sinusoid(observation_noise=0.3)
    proposal = epf.fully_adapted(model)
    theta, x_prev, y = {"theta": 0.7}, jnp.asarray(1.1), jnp.asarray(0.4)
    grid = np.linspace(-6, 8, 4001)
    joint = np.exp(
        np.asarray(model.transition(theta, x_prev, 1).log_prob(grid))
        + np.asarray(jax.vmap(lambda x: model.observation(theta, x, 1).log_prob(y))(grid))
    )
    evidence = np.trapezoid(joint, grid)
    np.testing.assert_allclose(proposal.look_ahead(model, theta, x_prev, y, 1), np.log(evidence), rtol=1e-9)
    mean = np.trapezoid(grid * joint, grid) / evidence
    sd = np.sqrt(np.trapezoid((grid - mean) ** 2 * joint, grid) / evidence)
    found = proposal.distribution(model, theta, x_prev, y, 1)
    np.testing.assert_allclose([found.loc, found.scale], [mean, sd], rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("missing", [None, 0, 1, "all"])
def test_fully_adapted_vectors_follow_the_algebra_with_components_missing(missing, x64):
    Q, R = np.array([[1.0, 0.3], [0.3, 0.5]]), np.array([[0.4, 0.1], [0.1, 0.3]])
    H = np.array([[1.0, 0.5], [0.0, 2.0]])
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.MultivariateNormal(jnp.stack([jnp.sin(theta["a"] * x[0]), x[1]]), Q),
        observation=lambda theta, x, u: dist.MultivariateNormal(jnp.asarray(H) @ x + 1.0, R),
    )
    proposal = epf.fully_adapted(model)
    theta, x_prev, y = {"a": 0.5}, jnp.array([0.7, -0.2]), np.array([1.3, 0.4])
    f = np.array([np.sin(0.35), -0.2])
    seen = [i for i in range(2) if missing != "all" and i != missing]
    y_given = jnp.asarray([y[i] if i in seen else np.nan for i in range(2)])
    log_weight = proposal.look_ahead(model, theta, x_prev, y_given, 1)
    mean, scale = moments(proposal.distribution(model, theta, x_prev, y_given, 1))
    Hs, Rs = H[seen], R[np.ix_(seen, seen)]
    D = Hs @ Q @ Hs.T + Rs
    K = Q @ Hs.T @ np.linalg.inv(D) if seen else np.zeros((2, 0))
    innovation = y[seen] - Hs @ f - 1.0
    expected = multivariate_normal(np.zeros(len(seen)), D).logpdf(innovation) if seen else 0.0
    np.testing.assert_allclose(log_weight, expected, atol=1e-9)
    np.testing.assert_allclose(mean, f + K @ innovation, atol=1e-9)
    np.testing.assert_allclose(scale @ scale.T, Q - K @ Hs @ Q, atol=1e-9)


@pytest.mark.slow
def test_guided_by_the_transition_is_the_bootstrap_filter():
    model = epf.models.sinusoid(observation_noise=0.5)
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, 8)
    guided = epf.guided(lambda theta, x_prev, y, u: dist.Normal(jnp.sin(theta["theta"] * x_prev), 1.0))
    runs = [
        epf.run(jax.random.key(1), epf.bootstrap_filter(model, 100, theta={"theta": 0.7}, proposal=p), y, levels=())
        for p in (epf.bootstrap(), guided)
    ]
    np.testing.assert_allclose(runs[0].log_evidence, runs[1].log_evidence, rtol=1e-4)


@pytest.mark.slow
def test_every_proposal_gives_an_unbiased_evidence(x64):
    model = epf.models.ar1()
    _, y = epf.simulate(jax.random.key(2), model, {"phi": 0.8}, 8)
    log_evidence = float(exact.kalman_log_evidence(model, {"phi": 0.8}, y)[-1])
    halfway = epf.guided(lambda theta, x_prev, y, u: dist.Normal(0.4 * x_prev + 0.5 * y, 1.0))
    for proposal in (epf.bootstrap(), halfway, epf.fully_adapted(model)):
        filter_ = epf.bootstrap_filter(model, 50, theta={"phi": 0.8}, proposal=proposal)
        bias, standard_error, _ = error(filter_, y, log_evidence, num_runs=300)
        assert abs(bias) < 4 * standard_error


@pytest.mark.slow
def test_the_default_proposal_suits_the_model():
    nonlinear = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
        observation=lambda theta, x, u: dist.Poisson(jnp.exp(x)),
    )
    from epf_jax.particles.proposals import why_not_fully_adapted

    assert why_not_fully_adapted(epf.models.star()) == ""
    assert why_not_fully_adapted(epf.models.pendulum()) == ""
    assert "Poisson" in why_not_fully_adapted(nonlinear)
    assert "Cauchy" in why_not_fully_adapted(epf.models.cauchy_ar1())
    _, y = epf.simulate(jax.random.key(0), nonlinear, {"a": 0.5}, 6)
    assert jnp.issubdtype(y.dtype, jnp.integer)
    results = epf.run(jax.random.key(1), epf.extended_parameter_filter(nonlinear, 50), y, levels=())
    assert np.all(np.isfinite(results.log_evidence))


def near_y(theta, x_prev, y, u):
    return dist.Normal(0.5 * (theta["phi"] * x_prev + y), 0.7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda model, q: epf.smc2_filter(model, 50, max_steps=60, proposal=q, num_inner=20, max_inner=20),
        lambda model, q: epf.practical_filter(model, 50, 3, proposal=q),
    ],
)
def test_an_impossible_observation_recalled_as_missing_does_not_reach_q(build):
    model = epf.models.ar1()
    _, y = epf.simulate(jax.random.key(0), model, {"phi": 0.8}, 60)
    with pytest.warns(RuntimeWarning, match="zero weight at 1 step"):
        results = epf.run(jax.random.key(1), build(model, epf.guided(near_y)), y.at[5].set(1e25), levels=())
    assert np.isfinite(results.x.mean).all()
    moved = np.asarray(results.acceptance)[10:]
    assert np.nanmax(moved) > 0  # theta goes on moving
    assert len(np.unique(results.final.theta["phi"])) > 10


@pytest.mark.parametrize("shape", [pytest.param((2, 2), marks=pytest.mark.slow), (3,)])
def test_gaussians_side_by_side_are_not_taken_for_one(shape):
    """A batch of correlated vectors as a state, a prior or an observation: drawn, weighed, and left to the bootstrap."""
    rows = dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2))
    model = epf.StateSpaceModel(
        prior={"a": rows.expand(shape).to_event(len(shape))},
        initial=lambda theta: rows.expand(shape).to_event(len(shape)),
        transition=lambda theta, x, u: dist.MultivariateNormal(0.5 * x + theta["a"], jnp.eye(2)).to_event(len(shape)),
        observation=lambda theta, x, u: dist.MultivariateNormal(x, 0.25 * jnp.eye(2)).to_event(len(shape)),
    )
    assert default_proposal(model).blind
    results = epf.run(jax.random.key(1), epf.bootstrap_filter(model, 20), jnp.zeros((3, *shape, 2)), levels=())
    assert np.isfinite(results.log_evidence).all()


@pytest.mark.slow
def test_only_a_weight_that_is_known_to_add_nothing_is_left_out():
    model = epf.models.sinusoid(observation_noise=0.3)
    adapted = epf.fully_adapted(model)
    assert [p.even for p in (adapted, epf.bootstrap(), epf.score_gradient(adapted))] == [True, False, False]
    more = adapted._replace(log_weight=lambda model, theta, x_prev, x, y, u: jnp.log(2.0))
    y = jnp.array([0.3, -0.1, 0.5])

    def log_evidence(proposal):
        filter_ = epf.bootstrap_filter(model, 50, theta={"theta": 0.7}, proposal=proposal)
        return epf.run(jax.random.key(0), filter_, y, levels=()).log_evidence

    # Twice the weight of every draw, at each of three steps; the same draws.
    np.testing.assert_allclose(log_evidence(more) - log_evidence(adapted), np.log(2.0) * np.arange(1, 4), rtol=1e-5)


def test_a_fully_adapted_proposal_of_another_model_is_refused():
    def model_of(observation):
        return epf.StateSpaceModel(
            prior={"a": dist.Normal(0.0, 0.5)},
            initial=lambda theta: dist.Normal(0.0, 1.0),
            transition=lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
            observation=observation,
        )

    gaussian, finer = (model_of(lambda theta, x, u, sd=sd: dist.Normal(x, sd)) for sd in (0.5, 0.1))
    heavy = model_of(lambda theta, x, u: dist.StudentT(2.0, x, 0.5))
    epf.bootstrap_filter(finer, 10, proposal=epf.fully_adapted(gaussian))  # fits this one, too
    with pytest.raises(ValueError, match=r"^proposal: it was made for another model, fully adapted"):
        epf.bootstrap_filter(heavy, 10, proposal=epf.fully_adapted(gaussian))
