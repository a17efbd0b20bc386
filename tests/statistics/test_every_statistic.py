"""Every statistic, against the exact Gibbs density of a known path."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import EXACT_WHEN_LINEAR, MODELS, SAMPLERS, STATISTICS, TRUTHS, one_model_each

import epf_jax as epf
from epf_jax import exact

T = 12
LEARN = [name for name in STATISTICS if name != "frozen"]


@cache
def simulated(model_name, precision):
    return epf.simulate(jax.random.key(0), MODELS[model_name](), TRUTHS[model_name], T)


def path_and_statistic(name, model_name, missing=False):
    model = MODELS[model_name]()
    x, y = simulated(model_name, str(jnp.result_type(float)))
    if missing:
        y = y.at[3].set(jnp.nan)
    statistic = STATISTICS[name](model)
    return model, x, y, statistic, absorb(statistic, x, y, TRUTHS[model_name])


def absorb(statistic, x, y, theta):
    def body(S, row):
        t, x_prev, x, y = row
        return statistic.update(jax.random.fold_in(jax.random.key(1), t), S, theta, x_prev, x, y, t + 1), None

    return jax.jit(lambda x, y: jax.lax.scan(body, statistic.init(x[0]), (jnp.arange(T), x[:-1], x[1:], y))[0])(x, y)


def exact_log_density(model, theta, x, y):
    z, centre = model.parameters.to_vector(theta), model.parameters.centre
    log_prior = model.parameters.log_prior(z) - model.parameters.log_jacobian(z)
    reference = model.parameters.to_theta(centre)
    ratio = exact.path_log_likelihood(model, theta, x, y) - exact.path_log_likelihood(model, reference, x, y)
    return log_prior + ratio[-1]


@pytest.mark.parametrize(("name", "model_name"), one_model_each(EXACT_WHEN_LINEAR))
@pytest.mark.parametrize("missing", [pytest.param(False, marks=pytest.mark.slow), True])
def test_linear_models_get_the_exact_gibbs_density(name, model_name, missing, x64):
    model, x, y, statistic, S = path_and_statistic(name, model_name, missing)
    thetas = model.parameters.sample(jax.random.key(2), 6)

    @jax.jit
    @jax.vmap
    def both(theta):
        return statistic.log_density(S, theta), exact_log_density(model, theta, x, y)

    found, expected = both(thetas)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("name", "model_name"), one_model_each(LEARN, quick_names=("chebyshev", "linear_means")))
@pytest.mark.parametrize("precision", ["float32", pytest.param("float64", marks=pytest.mark.slow)], indirect=True)
def test_statistics_work_under_jit_and_vmap_in_both_precisions(name, model_name, precision):
    model, _, _, statistic, S = path_and_statistic(name, model_name)
    theta = model.parameters.sample(jax.random.key(3), 4)
    keys = jax.random.split(jax.random.key(4), 4)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), S)
    drawn, info = jax.jit(jax.vmap(statistic.sample))(keys, many, theta)
    densities = jax.jit(jax.vmap(statistic.log_density))(many, drawn)
    assert jax.tree.structure(drawn) == jax.tree.structure(theta)
    assert densities.shape == info.acceptance.shape == (4,)
    assert densities.dtype == precision
    assert np.all(np.isfinite(densities))
    floats = [leaf for leaf in jax.tree.leaves((S, drawn)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert all(leaf.dtype == precision for leaf in floats)


ALIKE = ("separable", "taylor_log_density", "chebyshev_fixed_box", "assumed_density_mixture")  # draw as others do


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in ALIKE else n for n in LEARN])
def test_every_statistic_draws_theta_from_its_density(name, x64):
    # 4000 chains of 60 steps, started at the prior; conjugate gives the exact mean and sd.
    # Standard error of a mean of 4000 independent draws: sd / 63; of an sd: sd / 90. Four of each are allowed.
    model, x, y, statistic, S = path_and_statistic(name, "scalar")
    gaussian = absorb(epf.conjugate(model), x, y, 0.7)
    mean, sd = float(gaussian.m[0]), float(jnp.sqrt(gaussian.C[0, 0]))

    def chain(key, theta):
        return jax.lax.scan(
            lambda theta, key: (statistic.sample(key, S, theta)[0], None), theta, jax.random.split(key, 60)
        )[0]

    theta = jax.jit(jax.vmap(chain))(
        jax.random.split(jax.random.key(5), 4000), model.parameters.sample(jax.random.key(6), 4000)
    )
    assert abs(float(theta.mean()) - mean) < 4 * sd / 63
    assert abs(float(theta.std()) - sd) < 4 * sd / 90


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler_name",
    [
        "random_walk",
        *(pytest.param(n, marks=pytest.mark.slow) for n in SAMPLERS if n not in ("random_walk", "grid_sampler")),
    ],
)
def test_taylor_and_conjugate_make_the_same_draws_with_a_shared_sampler(sampler_name, x64):
    model = MODELS["dict"]()
    _, y = epf.simulate(jax.random.key(0), model, TRUTHS["dict"], 20)
    sampler = SAMPLERS[sampler_name]()
    filters = [
        epf.extended_parameter_filter(model, 50, statistic=statistic, sampler=sampler, proposal=epf.bootstrap())
        for statistic in (epf.conjugate(model), epf.taylor(model, order=2))
    ]
    runs = [epf.run(jax.random.key(1), f, y) for f in filters]
    for other in runs[1:]:
        for a, b in zip(jax.tree.leaves(runs[0].final.theta), jax.tree.leaves(other.final.theta), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9)
        np.testing.assert_allclose(runs[0].log_evidence, other.log_evidence, atol=1e-8)
