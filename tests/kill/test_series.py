"""Where a series begins and ends: panels, forecasts, and going on from a state."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import tiny

import epf_jax as epf


def test_a_panel_is_padded_at_its_end_and_read_where_each_series_ends():
    panel = epf.panel([tiny.Y[:2], tiny.Y, tiny.Y[:1]])
    np.testing.assert_array_equal(np.isnan(panel.y), [[0, 0, 1], [0, 0, 0], [0, 1, 1]])
    np.testing.assert_array_equal(panel.y[0, :2], tiny.Y[:2])
    np.testing.assert_array_equal(panel.last(np.arange(9).reshape(3, 3)), [1, 5, 6])


def test_time_goes_on_counting_from_the_state_and_inputs_take_its_place():
    # The state is the time itself: a step too early or too late shows in every number.
    clock = epf.StateSpaceModel(
        prior={},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(1.0 * u, 1e-3),
        observation=lambda theta, x, u: dist.Normal(x + 10.0 * u, 1e-3),
    )
    filter_ = epf.bootstrap_filter(clock, 20)
    state = epf.run(tiny.KEY, filter_, jnp.full(2, jnp.nan).at[0].set(11.0), levels=()).final
    ahead = epf.forecast(tiny.KEY, filter_, state, 2, levels=())
    assert ahead.t.tolist() == [3, 4]
    np.testing.assert_allclose(ahead.x.mean, [3, 4], atol=0.01)
    np.testing.assert_allclose(ahead.y.mean, [33, 44], atol=0.01)
    given = epf.forecast(tiny.KEY, filter_, state, 2, inputs=jnp.array([5.0, -1.0]), levels=())
    np.testing.assert_allclose(given.x.mean, [5, -1], atol=0.01)
    on = epf.run(tiny.KEY, filter_, jnp.array([33.0]), state=state, levels=())
    np.testing.assert_allclose(on.x.mean, [3], atol=0.01)


def test_a_forecast_moves_every_particle_on_with_its_own_theta():
    # One step of x = a x + ..., its noise averaged out over copies: the mean over particles is exact but for that.
    n = 40_000
    state = epf.storvik_filter(tiny.model(), 2).init(tiny.KEY)
    each = jnp.arange(n) % 2
    w = jnp.where(each == 0, 0.2, 0.8) * 2 / n
    two = state._replace(
        x=jnp.where(each == 0, -1.0, 2.0), theta={"a": jnp.where(each == 0, 0.9, -0.4)}, log_weights=jnp.log(w), S=()
    )
    ahead = epf.forecast(tiny.KEY, tiny.model(), two, 2, levels=())
    push = [0.6 * np.cos(1), 0.6 * np.cos(2)]
    one = np.array([-0.9, -0.8]) + push[0]
    both = np.array([0.9, -0.4]) * one + push[1]
    shares = np.array([0.2, 0.8])
    np.testing.assert_allclose(ahead.x.mean, [shares @ one, shares @ both], atol=4.5 * 1.1 / np.sqrt(n / 1.4))
    np.testing.assert_allclose(
        ahead.y.mean, np.asarray(ahead.x.mean) + np.array([0.2, 0.4]), atol=4.5 * 0.6 / np.sqrt(n / 1.4)
    )
    variance = tiny.NOISE**2 + shares @ (one - shares @ one) ** 2
    np.testing.assert_allclose(ahead.x.sd[0], np.sqrt(variance), rtol=4.5 / np.sqrt(n))
