"""Proposals by Laplace's method: exact where the model is linear, near the mode elsewhere, and never wrong weights."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import epf_jax as epf
from epf_jax import exact

THETA = {"phi": 0.8}


def counts(scale=0.5, rate=50.0):
    return epf.StateSpaceModel(
        prior={"phi": dist.Uniform(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, scale),
        observation=lambda theta, x, u: dist.Poisson(rate * jnp.exp(x)),
    )


def student(scale=0.3):
    return epf.StateSpaceModel(
        prior={"phi": dist.Uniform(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, 0.5),
        observation=lambda theta, x, u: dist.StudentT(4.0, x, scale),
    )


def linear(kind):
    """A scalar AR(1), or two components: correlated, or with one noise, of one of them or of both."""
    scale_tril = {
        "pair": [[0.5, 0.0], [0.3, 0.4]],
        "lag": [[0.5, 0.0], [0.0, 0.0]],
        "push": [[0.2, 0.0], [0.4, 0.0]],
        "second": [[0.0, 0.0], [0.4, 0.0]],
    }.get(kind)

    def transition(theta, x, u):
        if kind == "scalar":
            return dist.Normal(theta["phi"] * x, 0.5)
        return dist.MultivariateNormal(jnp.stack([theta["phi"] * x[0], x[0]]), scale_tril=jnp.array(scale_tril))

    return epf.StateSpaceModel(
        prior={"phi": dist.Uniform(0.0, 1.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(() if kind == "scalar" else 2), 1.0).to_event(
            int(kind != "scalar")
        ),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x if kind == "scalar" else x[0] - x[1], 0.1),
    )


@pytest.mark.parametrize(
    "kind", ["pair", *(pytest.param(k, marks=pytest.mark.slow) for k in ("scalar", "lag", "push", "second"))]
)
def test_of_a_linear_model_it_draws_what_the_fully_adapted_proposal_does(kind, x64):
    model = linear(kind)

    @jax.jit  # numpyro checks numbers outside of it, and a lag has no noise
    def moments(x_prev, y):
        found, wanted = (
            proposal.distribution(model, THETA, x_prev, y, 1)
            for proposal in (epf.laplace(model, 1), epf.fully_adapted(model))
        )
        precision = found.precision_tril @ found.precision_tril.T
        mean = jnp.ravel(found.mean) + found.scale_tril @ found.mode
        covariance = found.scale_tril @ jnp.linalg.inv(precision) @ found.scale_tril.T
        of_wanted = wanted.variance if kind == "scalar" else wanted.covariance_matrix
        return mean, jnp.ravel(wanted.mean), jnp.ravel(covariance), jnp.ravel(of_wanted)

    mean, wanted_mean, covariance, wanted_covariance = moments(
        jnp.asarray(0.7 if kind == "scalar" else [0.7, -0.2]), jnp.asarray(1.3)
    )
    # One step of Newton's is exact: what is left is rounding, 2^-52 times a condition number of some tens.
    np.testing.assert_allclose(mean, wanted_mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(covariance, wanted_covariance, atol=1e-12)


@pytest.mark.parametrize(
    "kind", ["pair", *(pytest.param(k, marks=pytest.mark.slow) for k in ("lag", "push", "second"))]
)
def test_the_mean_weight_is_the_evidence_of_one_observation(kind, x64):
    model, num = linear(kind), 4000
    proposal, x_prev, y = epf.laplace(model), jnp.array([0.7, -0.2]), jnp.asarray(1.3)

    @jax.jit
    def log_weights(key):
        thetas, states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num, *jnp.shape(leaf))), (THETA, x_prev))
        x = proposal.draw(key, lambda theta, x: proposal.distribution(model, theta, x, y, 1), num, thetas, states)
        return jax.vmap(lambda x: proposal.log_weight(model, THETA, x_prev, x, y, 1))(x)

    found = np.asarray(log_weights(jax.random.key(0)))
    truth = float(jax.jit(lambda: epf.fully_adapted(model).look_ahead(model, THETA, x_prev, y, 1))())
    # A tenth of the draws are blind, and weigh next to nothing or a tenth more: sd / mean is about a third, and four
    # standard errors are 4 / 3 / sqrt(4000) = 0.02.
    assert abs(np.log(np.mean(np.exp(found))) - truth) < 0.03


@pytest.mark.parametrize(
    ("build", "x_prev", "y"),
    [
        (counts, -6.0, 400.0),  # expected: a count of 0.4
        pytest.param(counts, 3.0, 0.0, marks=pytest.mark.slow),
        pytest.param(counts, 0.0, 50.0, marks=pytest.mark.slow),
        pytest.param(student, 0.0, 1.0, marks=pytest.mark.slow),
        pytest.param(
            student, 0.0, 30.0, marks=pytest.mark.slow
        ),  # sixty standard deviations out: two modes, of which it takes one
        pytest.param(partial(student, 0.01), 0.0, 1.0, marks=pytest.mark.slow),
    ],
)
def test_a_mode_is_found_from_far_away(build, x_prev, y, x64):
    model = build()
    near_mode = jax.jit(lambda x_prev, y: epf.laplace(model, 12).distribution(model, THETA, x_prev, y, 1))
    found = near_mode(jnp.asarray(x_prev), jnp.asarray(y))

    def log_density(e):
        x = found.mean + found.scale_tril[0, 0] * e
        return model.observation(THETA, x, 1).log_prob(y) - 0.5 * e**2

    # In units of the transition's noise; at a mode the slope changes by the precision for each, so 1e-6 of the latter
    # is a place a millionth of the width away.
    assert abs(float(jax.grad(log_density)(found.mode[0]))) < 1e-6 * float(found.precision_tril[0, 0]) ** 2


def test_what_is_missing_leaves_the_transition(x64):
    model = counts()
    nothing = jax.jit(lambda y: epf.laplace(model).distribution(model, THETA, jnp.asarray(0.5), y, 1))(jnp.nan)
    assert (float(nothing.mode[0]), float(nothing.precision_tril[0, 0])) == (0.0, 1.0)


@pytest.mark.slow
def test_what_is_missing_in_part_says_nothing(x64):
    pair = epf.StateSpaceModel(
        prior={"phi": dist.Uniform(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, 0.5),
        observation=lambda theta, x, u: dist.Poisson(jnp.exp(jnp.stack([x, 2 * x]))),
    )
    alone = counts(rate=1.0)
    found, wanted = (
        jax.jit(lambda y, model=model: epf.laplace(model).distribution(model, THETA, jnp.asarray(0.5), y, 1))(
            jnp.asarray(y)
        )
        for model, y in ((pair, [3.0, jnp.nan]), (alone, 3.0))
    )
    np.testing.assert_allclose(found.mode, wanted.mode, rtol=1e-12)
    np.testing.assert_allclose(found.precision_tril, wanted.precision_tril, rtol=1e-12)


@pytest.mark.slow
def test_draws_have_the_density_that_weighs_them(x64):
    model = student()
    proposal = epf.laplace(model, defensive=0.2)
    x_prev, y = jnp.asarray(0.0), jnp.asarray(1.5)
    x = jnp.linspace(-4.0, 4.0, 4001)
    log_q = jax.jit(jax.vmap(lambda x: proposal.distribution(model, THETA, x_prev, y, 1).log_prob(x)))
    density = jnp.exp(log_q(x))
    cdf = jnp.cumsum(density) * (x[1] - x[0])
    np.testing.assert_allclose(cdf[-1], 1.0, atol=1e-9)  # the trapezoidal rule on a mixture of two Gaussians

    @jax.jit
    def draw(key):
        thetas = jax.tree.map(lambda leaf: jnp.full(20_000, leaf), THETA)
        given_y = lambda theta, x: proposal.distribution(model, theta, x, y, 1)  # noqa: E731
        return proposal.draw(key, given_y, 20_000, thetas, jnp.zeros(20_000))

    draws = draw(jax.random.key(0))
    # Kolmogorov-Smirnov at 20000 draws: below 1.95 / sqrt(20000) = 0.0138 with probability 0.999; the sum for a cdf is
    # off by half a step of it, 0.002 at most.
    assert stats.kstest(np.asarray(draws), lambda at: np.interp(at, x, cdf)).statistic < 0.0158
    at = jnp.asarray(1.1)
    whole = model.transition(THETA, x_prev, 1).log_prob(at) + model.observation(THETA, at, 1).log_prob(y)
    weight = jax.jit(lambda: proposal.log_weight(model, THETA, x_prev, at, y, 1))()
    assert float(weight) == pytest.approx(float(whole - log_q(at[None])[0]), abs=1e-12)


@pytest.mark.slow
def test_evidence_of_counts_is_exact_and_varies_less_than_by_bootstrap():
    model, num = counts(), 30
    _, y = epf.simulate(jax.random.key(0), model, THETA, num)
    y = y.astype(float).at[10].set(jnp.nan)
    truth = float(exact.quadrature_log_evidence(model, THETA, y, np.linspace(-4.0, 4.0, 251))[-1])
    keys = jax.random.split(jax.random.key(1), 16)
    found = {}
    for name, proposal in (("laplace", epf.laplace(model)), ("bootstrap", epf.bootstrap())):
        filter_ = epf.bootstrap_filter(model, 500, theta=THETA, proposal=proposal)
        found[name] = np.asarray(epf.replicate(keys, filter_, y, levels=()).log_evidence[:, -1], float)
    # Four standard errors of sixteen keys, and the bias of a logarithm, half its variance.
    error = 4 * found["laplace"].std() / 4 + found["laplace"].var() / 2
    assert abs(found["laplace"].mean() - truth) < error < 0.2
    assert found["laplace"].std() < 0.5 * found["bootstrap"].std()


@pytest.mark.slow
def test_paths_behind_precise_student_noise_do_not_coalesce_at_once():
    """Keys' posterior means differ by a third of what they do by the bootstrap proposal (32 keys of another run)."""
    model = student()
    _, y = epf.simulate(jax.random.key(2), model, THETA, 100)
    keys = jax.random.split(jax.random.key(3), 32)  # a spread of 32 is known to an eighth, a ratio of two to a fifth
    apart = {}
    for name, proposal in (("laplace", epf.laplace(model)), ("bootstrap", epf.bootstrap())):
        results = epf.replicate(keys, epf.extended_parameter_filter(model, 300, proposal=proposal), y, levels=())
        apart[name] = float(jnp.std(results.theta.mean["phi"][:, -1]) / jnp.mean(results.theta.sd["phi"][:, -1]))
    assert apart["laplace"] < 0.7 * apart["bootstrap"]


@pytest.mark.slow
def test_it_is_differentiable_and_takes_its_place_in_other_filters():
    model = counts()
    _, y = epf.simulate(jax.random.key(0), model, THETA, 5)
    y = y.astype(float)
    proposal = epf.laplace(model, 2)

    def log_evidence(phi):
        filter_ = epf.bootstrap_filter(
            model, 20, theta={"phi": phi}, proposal=proposal, resample=epf.stop_gradient_resampling()
        )
        return epf.run(jax.random.key(1), filter_, y, levels=()).log_evidence[-1]

    assert np.isfinite(jax.grad(log_evidence)(0.7))
    found = epf.run(jax.random.key(1), epf.node_filter(model, 8, num_nodes=5, proposal=proposal), y, levels=())
    assert np.isfinite(found.log_evidence[-1])


def test_what_it_cannot_do_is_refused():
    heavy = epf.StateSpaceModel(
        prior={"phi": dist.Uniform(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.StudentT(3.0, theta["phi"] * x, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
    )
    with pytest.raises(ValueError, match="transition is StudentT, not Gaussian"):
        epf.laplace(heavy)
    with pytest.raises(
        ValueError, match=r"made for another model, Laplace, .* the transition is StudentT, not Gaussian"
    ):
        epf.bootstrap_filter(heavy, 10, theta=THETA, proposal=epf.laplace(counts()))
    with pytest.raises(ValueError, match="defensive: expected a share above 0 and below 1"):
        epf.laplace(counts(), defensive=0.0)
    with pytest.raises(ValueError, match="num_steps"):
        epf.laplace(counts(), 0)
    with pytest.raises(ValueError, match="quasi_random: _NearMode is not a numpyro distribution"):
        epf.bootstrap_filter(
            counts(), 10, theta=THETA, proposal=epf.quasi_random(epf.laplace(counts())), resample=epf.in_order()
        )
