"""Forecasts: the law of the steps to come, given the particles, is known exactly for a linear model."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import tiny

import epf_jax as epf

MODEL = epf.models.ar1()  # x_t = phi x_{t-1} + N(0, 1), y_t = x_t + N(0, 0.5^2)
NUM, STEPS = 4000, 8
FILTER = epf.bootstrap_filter(MODEL, NUM)
Y = tiny.autoregression(12)


@pytest.fixture(scope="module")
def state():
    final = epf.run(jax.random.key(1), FILTER, Y, levels=()).final
    uneven = jnp.log(jax.random.uniform(jax.random.key(2), (NUM,), minval=0.2, maxval=1.0))
    return final._replace(log_weights=uneven - jax.scipy.special.logsumexp(uneven))


@pytest.fixture(scope="module")
def ahead(state):
    return epf.forecast(jax.random.key(3), FILTER, state, STEPS)


def test_mean_and_sd_are_those_of_the_mixture_of_the_particles_own_futures(state, ahead):
    w, phi, x = (np.asarray(a, float) for a in (jnp.exp(state.log_weights), state.theta["phi"], state.x))
    for h in range(1, STEPS + 1):
        # given its phi and x, a particle's x_{t+h} is N(phi^h x, (1 - phi^2h) / (1 - phi^2))
        centre = phi**h * x
        variance = np.sum(np.stack([phi ** (2 * k) for k in range(h)]), axis=0)
        mean = w @ centre
        sd = np.sqrt(w @ (variance + (centre - mean) ** 2))
        # standard errors with 4000 particles of uneven weight (worth about 0.9 of them): sd / 60 and sd / 85; five each
        np.testing.assert_allclose(ahead.x.mean[h - 1], mean, atol=5 * sd / 60)
        np.testing.assert_allclose(ahead.x.sd[h - 1], sd, rtol=5 / 85)
        np.testing.assert_allclose(ahead.y.mean[h - 1], mean, atol=5 * np.hypot(sd, 0.5) / 60)
        np.testing.assert_allclose(ahead.y.sd[h - 1], np.hypot(sd, 0.5), rtol=5 / 85)


def test_quantiles_hold_the_share_that_they_say(state, ahead):
    w, phi, x = (np.asarray(a, float) for a in (jnp.exp(state.log_weights), state.theta["phi"], state.x))
    below = dist.Normal(phi * x, np.hypot(1.0, 0.5)).cdf(np.asarray(ahead.y.quantiles[0])[:, None]) @ w
    # the standard error of a share near one half is at most 0.5 / 60; five of them
    np.testing.assert_allclose(below, ahead.levels, atol=5 * 0.5 / 60)


@pytest.mark.slow
def test_time_goes_on_counting_from_the_state_and_inputs_take_its_place():
    follows = epf.StateSpaceModel(
        prior={},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(1.0 * u, 1e-3),
        observation=lambda theta, x, u: dist.Normal(x, 1e-3),
    )
    filter_ = epf.bootstrap_filter(follows, 50)
    state = filter_.init(jax.random.key(0))._replace(t=jnp.asarray(7))
    by_time = epf.forecast(jax.random.key(1), filter_, state, 3)
    assert by_time.t.tolist() == [8, 9, 10]
    np.testing.assert_allclose(by_time.y.mean, [8, 9, 10], atol=0.01)
    given = epf.forecast(jax.random.key(1), filter_, state, 3, inputs=jnp.array([5.0, -1.0, 2.0]))
    np.testing.assert_allclose(given.x.mean, [5, -1, 2], atol=0.01)


def test_the_model_serves_as_well_as_its_filter(state, ahead):
    by_model = epf.forecast(jax.random.key(3), MODEL, state, STEPS)
    chex.assert_trees_all_equal(ahead, by_model)


def test_the_table_has_a_row_for_every_step_of_y_and_of_x(ahead):
    table = ahead.to_pandas()
    assert list(table.columns) == ["t", "variable", "mean", "sd", "5%", "25%", "50%", "75%", "95%"]
    assert table["variable"].tolist() == ["y"] * STEPS + ["x"] * STEPS
    assert table["t"].tolist() == 2 * ahead.t.tolist()
    np.testing.assert_array_equal(table["mean"], np.concatenate([ahead.y.mean, ahead.x.mean]))
    np.testing.assert_array_equal(table["95%"], np.concatenate([ahead.y.quantiles[:, -1], ahead.x.quantiles[:, -1]]))


def test_the_table_has_the_names_of_the_columns_that_were_filtered(ahead):
    of = {"day": [1, 2, 3], "sold": [0.1, 0.2, 0.3]}
    table = ahead.to_pandas(epf.from_table(of, time="day"))
    assert table["variable"].tolist() == ["sold"] * STEPS + ["x"] * STEPS
    named_as_the_state = epf.from_table({"day": of["day"], "x": of["sold"]}, time="day")
    assert ahead.to_pandas(named_as_the_state)["variable"].tolist() == ["y"] * STEPS + ["x"] * STEPS


@pytest.mark.slow
def test_levels_are_the_callers(state):
    one = epf.forecast(jax.random.key(3), FILTER, state, STEPS, levels=(0.1,))
    assert one.y.quantiles.shape == (STEPS, 1)


@pytest.mark.parametrize(
    ("message", "error", "call"),
    [
        (r"^num_steps: expected a positive whole number, got 0", ValueError, lambda s: epf.forecast(KEY, FILTER, s, 0)),
        (r"^state: expected the FilterState", TypeError, lambda s: epf.forecast(KEY, FILTER, Y, 3)),
        (
            r"^filter_: expected the filter .* got int. The arguments are those of epf.forecast\(key, filter, state",
            TypeError,
            lambda s: epf.forecast(KEY, 3, s, 3),
        ),
        (
            r"^state: expected particles with the model's theta.*Give the filter that made the state: epf.forecast",
            ValueError,
            lambda s: epf.forecast(KEY, MODEL, s._replace(theta={}), 3),
        ),
        (
            r"^state: expected particles with the model's x, of shapes \(\), got \(2,\)",
            ValueError,
            lambda s: epf.forecast(KEY, MODEL, s._replace(x=jnp.zeros((NUM, 2))), 3),
        ),
        (
            r"^inputs: expected one row per observation, 3 rows",
            ValueError,
            lambda s: epf.forecast(KEY, FILTER, s, 3, inputs=jnp.zeros(2)),
        ),
        (r"^levels: expected quantile levels", ValueError, lambda s: epf.forecast(KEY, FILTER, s, 3, levels=(2.0,))),
    ],
)
def test_what_cannot_be_forecast_is_refused_by_name(state, message, error, call):
    with pytest.raises(error, match=message):
        call(state)


@pytest.mark.slow
def test_quantiles_of_counts_are_whole():
    model = dataclasses.replace(MODEL, observation=lambda theta, x, u: dist.Poisson(5.0 * jnp.exp(theta["phi"] + x)))
    found = epf.forecast(KEY, model, epf.bootstrap_filter(model, 200).init(KEY), 3).y
    np.testing.assert_array_equal(found.quantiles, np.round(found.quantiles))
    assert np.all(np.round(found.mean) != found.mean)


def test_a_forecast_that_is_lost_is_told_of_with_its_first_step():
    model = dataclasses.replace(
        MODEL, transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, jnp.sqrt(u)), row=1.0
    )
    state = epf.bootstrap_filter(model, 8).init(KEY)
    with pytest.warns(RuntimeWarning, match=r"NaN or infinite at t = 2, the first of 2 such steps.*negative time step"):
        epf.forecast(KEY, model, state, 3, inputs=jnp.array([1.0, -1.0, 1.0]))


KEY = jax.random.key(0)
