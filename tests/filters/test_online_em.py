"""Online EM: its estimates against the exact maximum of the likelihood, its smoothing against all pairs."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from conformance import dict_theta

import epf_jax as epf
from epf_jax import exact
from epf_jax.running.causes import causes
from epf_jax.running.run import warn_of_no_estimate

KEY, T = jax.random.key(1), 1000


@cache
def data():
    """A linear model, its data, and the exact maximum of the likelihood (the posterior's mean under a flat prior)."""
    model = epf.models.ar1(observation_noise=1.0)
    _, y = epf.simulate(jax.random.key(0), model, {"phi": 0.7}, T)
    grid = jnp.linspace(0.4, 0.95, 111)
    with jax.enable_x64(True):
        m64 = epf.models.ar1(observation_noise=1.0)
        values = jax.vmap(lambda phi: exact.kalman_log_evidence(m64, {"phi": phi}, jnp.asarray(np.asarray(y)))[-1])(
            jnp.asarray(np.asarray(grid))
        )
    curvature = -np.gradient(np.gradient(values, np.asarray(grid)), np.asarray(grid))[np.argmax(values)]
    return model, y, float(grid[np.argmax(values)]), float(curvature**-0.5)


@cache
def estimate(num_backward):
    model, y, *_ = data()
    filter_ = epf.online_em(model, 100, statistic=epf.taylor(model, 1), num_backward=num_backward)
    return epf.run(KEY, filter_, y, levels=())


@pytest.mark.slow
def test_the_estimate_comes_to_the_exact_maximum_of_the_likelihood():
    _, _, best, sd = data()
    found = estimate(2)
    # Averaged over the second half (Polyak): the estimate forgets with gamma_t = t^-.6, its lag and its noise together
    # are of the order of the maximum's own sd.
    assert abs(float(found.theta.mean["phi"][T // 2 :].mean()) - best) < 1.5 * sd
    assert float(found.theta.sd["phi"].max()) < 1e-6  # one value; rounding of its mean over the particles


@pytest.mark.parametrize(
    ("prior", "noise"),
    [
        (dist.Gamma(2.0, 1.0), dist.Normal),  # of which the start is sixteen times the maximum
        pytest.param(dist.InverseGamma(2.0, 1.0), dist.Laplace, marks=pytest.mark.slow),
        pytest.param(dist.HalfNormal(1.0), dist.Normal, marks=pytest.mark.slow),
        pytest.param(dist.HalfCauchy(1.0), dist.Laplace, marks=pytest.mark.slow),  # read between nodes
    ],
)
def test_a_scale_far_from_the_start_is_found(prior, noise):
    # The state does nothing, and steps of 1/t average all that was seen: the estimate is the maximum itself. The last
    # observation moves it by about 1/200, which Newton's steps square: 2.5e-5. Between nodes, 2e-3 are allowed.
    y = 0.1 * jax.random.normal(jax.random.key(3), (200,))
    model = epf.StateSpaceModel(
        prior={"s": prior},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.0, 1.0),
        observation=lambda theta, x, u: noise(0.0, theta["s"]),
    )
    filter_ = epf.online_em(model, 4, step_size=lambda t: 1 / t)
    best = np.sqrt(np.mean(y**2)) if noise is dist.Normal else np.mean(np.abs(y))
    np.testing.assert_allclose(epf.run(KEY, filter_, y, levels=()).theta.mean["s"][-1], best, rtol=2e-3)


@pytest.mark.slow
def test_a_few_backward_draws_do_what_all_pairs_do():
    _, _, _, sd = data()
    some, every = (estimate(num).theta.mean["phi"][T // 2 :].mean() for num in (2, None))
    assert abs(float(some - every)) < 0.5 * sd  # the same filter, the same key: only the smoothing differs


@pytest.mark.slow
def test_models_without_a_statistic_of_their_own_are_served_by_chebyshev():
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, T)
    found = epf.run(KEY, epf.online_em(model, 100), y, levels=())
    posterior = exact.quadrature(
        model, y, {"theta": jnp.linspace(0.3, 1.1, 81)}, exact.nodes_around(y, half_width=0.8, num_nodes=25)
    )
    # The prior N(0, .2) pulls the posterior's mean by (sd / .2)^2 of the distance to 0: .7 * (.02 / .2)^2 = .007
    off = float(found.theta.mean["theta"][T // 2 :].mean()) - float(posterior.mean["theta"][-1])
    assert abs(off) < 2.0 * float(posterior.sd["theta"][-1])


@pytest.mark.slow
def test_two_parameters_are_learned_together():
    model = dict_theta()
    _, y = epf.simulate(jax.random.key(0), model, {"phi": 0.7, "offset": 0.5}, T)
    found = epf.run(KEY, epf.online_em(model, 100, statistic=epf.taylor(model, 1)), y, levels=())
    for name, truth, sd in (("phi", 0.7, 0.03), ("offset", 0.5, 0.1)):  # sds of the maximum at T = 1000, roughly
        assert abs(float(found.theta.mean[name][T // 2 :].mean()) - truth) < 4.0 * sd


@pytest.mark.slow
def test_an_observation_that_no_particle_explains_is_as_if_missing():
    model = epf.StateSpaceModel(
        prior={"level": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 0.1),
        transition=lambda theta, x, u: dist.Normal(0.5 * x, 0.1),
        observation=lambda theta, x, u: dist.Normal(x + theta["level"], 0.3),
    )
    _, y = epf.simulate(jax.random.key(0), model, {"level": 0.8}, 200)
    filter_ = epf.online_em(model, 50, statistic=epf.taylor(model, 1))
    missing = epf.run(KEY, filter_, y.at[100].set(jnp.nan), levels=())
    with pytest.warns(RuntimeWarning, match="zero weight at 1 step"):
        impossible = epf.run(KEY, filter_, y.at[100].set(1e25), levels=())
    # The particles were kept instead of moved at one step of 200: of the order of a hundredth of the noise
    np.testing.assert_allclose(impossible.theta.mean["level"], missing.theta.mean["level"], atol=0.02)


def test_a_series_too_short_for_an_estimate_is_told_of():
    filter_ = epf.online_em(epf.models.ar1(), 8, wait=5)
    for short in (
        lambda: epf.run(KEY, filter_, jnp.ones(3), levels=()),
        lambda: epf.replicate(jax.random.split(KEY, 2), filter_, jnp.ones(3), levels=()),
    ):
        with pytest.warns(RuntimeWarning, match=r"^y: this filter gathers 5 observations .* and has seen 3"):
            jax.eval_shape(short)  # traced, and not compiled
    warn_of_no_estimate(filter_, 2, before=3)  # warnings are errors here: these are five, as many as it gathers


def test_wrong_arguments_are_refused_by_name():
    model = dict_theta()
    positive = epf.StateSpaceModel(
        {"scale": dist.LogNormal(0.0, 1.0)},
        lambda theta: dist.Normal(0.0, 1.0),
        lambda theta, x, u: dist.Normal(x, theta["scale"]),
        lambda theta, x, u: dist.Normal(x, 1.0),
    )
    with pytest.raises(ValueError, match=r"theta: scale lies outside the support"):
        epf.online_em(positive, 10, theta={"scale": -1.0})
    with pytest.raises(ValueError, match=r"^centre: .*scale lies outside the support"):
        epf.taylor(positive, 2, centre={"scale": -1.0})
    with pytest.raises(ValueError, match=r"statistic: conjugate is not a sum over the path.*Use epf.conjugate_blocks"):
        epf.online_em(model, 10, statistic=epf.conjugate(model))
    with pytest.raises(ValueError, match="is not a sum over the path"):
        epf.online_em(model, 10, statistic=epf.chebyshev(model))
    with pytest.raises(TypeError, match="statistic: expected a Statistic"):
        epf.online_em(model, 10, statistic="taylor")
    with pytest.raises(ValueError, match="num_backward: expected a positive whole number"):
        epf.online_em(model, 10, num_backward=0)
    with pytest.raises(ValueError, match="online_em: the model's prior is empty"):
        epf.online_em(
            epf.StateSpaceModel(
                {},
                lambda theta: dist.Normal(0.0, 1.0),
                lambda theta, x, u: dist.Normal(x, 1.0),
                lambda theta, x, u: dist.Normal(x, 1.0),
            ),
            10,
        )


def test_a_start_outside_of_what_the_statistic_covers_is_refused():
    model = epf.models.ar1(prior_sd=0.1)
    with pytest.raises(ValueError, match=r"^theta: the start lies outside of what the statistic covers"):
        epf.online_em(model, 20, theta={"phi": 0.9})


@pytest.mark.slow
def test_an_estimate_at_the_end_of_the_box_is_told():
    """Data of phi = 0.9 under a prior whose five standard deviations end at 0.25."""
    model = epf.models.ar1(prior_sd=0.05)
    _, y = epf.simulate(jax.random.key(0), model, {"phi": 0.9}, 100)
    results = epf.run(jax.random.key(1), epf.online_em(model, 50), y, diagnostics=True)
    assert abs(float(results.theta.mean["phi"][-1]) - 0.25) < 0.01
    assert "box" in {finding.kind for finding in causes(results)}


def test_what_is_no_share_and_what_names_no_ancestors_is_refused():
    model = epf.models.ar1()
    with pytest.raises(ValueError, match=r"^step_size: expected a share of the newest step"):
        epf.online_em(model, 20, step_size=lambda t: 2.0 * t)
    with pytest.raises(TypeError, match=r"^resample: transport_resampling moves particles"):
        epf.online_em(model, 20, resample=epf.transport_resampling())


@pytest.mark.slow
def test_a_form_that_the_exact_sums_have_not_is_told():
    model = epf.StateSpaceModel(
        prior={"r": dist.Gamma(2.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 0.1),
        transition=lambda theta, x, u: dist.Normal(x + 0.2, 0.01),
        observation=lambda theta, x, u: dist.Poisson(jnp.where(x > 4.0, jnp.minimum(theta["r"], 1.0), theta["r"])),
    )
    filter_ = epf.online_em(model, 4, wait=2)
    fine = epf.run(KEY, filter_, jnp.full(12, 3.0), levels=())
    assert list(causes(fine)) == []  # among them no word of a theta that is never redrawn
    with pytest.warns(RuntimeWarning) as told:
        results = epf.run(KEY, filter_, jnp.full(12, 3.0), state=fine.final, levels=())
    assert any("form changes with time or state" in str(warning.message) for warning in told)
    assert np.isnan(results.theta.mean["r"][-1])
