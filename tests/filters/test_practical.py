"""The practical filter against exact posteriors, and the window that it keeps."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax import exact
from epf_jax.running.causes import causes

AR1 = epf.models.ar1()
N, T, LAG = 500, 12, 15
AXES = {"phi": np.linspace(-2.0, 2.0, 401)}


@cache
def series():
    return epf.simulate(jax.random.key(0), AR1, {"phi": 0.7}, T)[1]


@cache
def long_window():
    return epf.practical_filter(AR1, N, LAG, num_sweeps=3)


@cache
def long_window_run():
    return epf.run(jax.random.key(1), long_window(), series())


@pytest.mark.slow
def test_a_window_that_holds_the_whole_series_gives_the_exact_posterior():
    found, wanted = long_window_run().theta, exact.kalman(AR1, series(), AXES)
    z = (np.asarray(found.mean["phi"]) - wanted.mean["phi"]) / wanted.sd["phi"]
    ratio = np.asarray(found.sd["phi"]) / wanted.sd["phi"]
    # N = 500 independent chains: means err by 1 / sqrt(500) = .045 sd, sds by 1 / sqrt(1000) = 3.2%; four of each, and as
    # much again for chains that three sweeps do not quite bring from the posterior of t - 1 to that of t.
    assert np.all(np.abs(z) < 0.36)
    assert np.all(np.abs(ratio - 1) < 0.26)


@pytest.mark.slow
def test_its_log_evidence_is_near_the_exact_one():
    # log p(y_t | y_1:t-1) is a mean over 500 chains of densities that vary by a factor of e^.5 or so: errors of
    # .5 / sqrt(500) = .022 a step, .08 after twelve; four of them.
    wanted = exact.kalman(AR1, series(), AXES).log_evidence
    np.testing.assert_allclose(long_window_run().log_evidence, wanted, atol=0.32)


@pytest.mark.slow
def test_the_window_holds_the_last_states_and_their_observations():
    final = long_window_run().final
    np.testing.assert_array_equal(final.S.x[:, -1], final.x)
    np.testing.assert_array_equal(final.S.observed[7, -T:], series())
    assert np.all(np.isnan(final.S.observed[:, :-T]))  # before t = 1 there are none
    np.testing.assert_array_equal(final.S.u[0, -T:], np.arange(1, T + 1))
    assert len(np.unique(final.S.x[:, -T])) == N  # the paths have not coalesced
    np.testing.assert_allclose(np.exp(final.log_weights), 1 / N, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ar1", "sinusoid"])
def test_a_short_window_keeps_near_the_exact_posterior(name):
    if name == "ar1":
        model, theta = AR1, {"phi": 0.7}
        _, y = epf.simulate(jax.random.key(0), model, theta, 100)
        wanted = exact.kalman(model, y, AXES)
    else:
        model, theta = epf.models.sinusoid(), {"theta": 0.7}
        _, y = epf.simulate(jax.random.key(0), model, theta, 100)
        wanted = exact.quadrature(model, y, {"theta": np.linspace(-1, 1.5, 201)}, exact.nodes_around(y, 0.8, 25))
    found = epf.run(jax.random.key(1), epf.practical_filter(model, 400, 10), y).theta
    (parameter,) = theta
    z = (found.mean[parameter][-1] - wanted.mean[parameter][-1]) / wanted.sd[parameter][-1]
    # Four Monte Carlo errors of 1 / sqrt(400) = .05 sd, and .2 sd for the window's own error.
    assert abs(z) < 0.4
    assert abs(found.sd[parameter][-1] / wanted.sd[parameter][-1] - 1) < 0.25


@pytest.mark.slow
def test_counts_inputs_and_missing_values_go_through_the_window():
    model = epf.StateSpaceModel(
        prior={"slope": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 0.3),
        transition=lambda theta, x, u: dist.Normal(0.5 * x + theta["slope"] * u["dose"], 0.3),
        observation=lambda theta, x, u: dist.Poisson(jnp.exp(x) * u["length"]),
        row={"dose": jnp.zeros(()), "length": jnp.ones(())},
    )
    inputs = {"dose": jnp.sin(jnp.arange(9.0)), "length": jnp.ones(9)}
    _, y = epf.simulate(jax.random.key(0), model, {"slope": 1.0}, 9, inputs=inputs)
    y = y.astype(float).at[4].set(jnp.nan)
    filter_ = epf.practical_filter(model, 16, 2, num_sweeps=1, num_path_particles=2, statistic=epf.chebyshev(model, 8))
    results = epf.run(jax.random.key(1), filter_, y, inputs=inputs, levels=())
    assert not any(np.any(np.isnan(leaf)) for leaf in jax.tree.leaves(results._replace(error=0)))
    np.testing.assert_array_equal(results.final.S.u["dose"][3], inputs["dose"][-2:])
    with pytest.raises(ValueError, match=r"^inputs: the filter keeps inputs like.*for_inputs\(inputs\[0\]\)"):
        filter_.step(jax.random.key(2), results.final, y[0], {"dose": 1.0, "length": 1.0, "more": 1.0})


@pytest.mark.slow
def test_theta_against_the_edge_of_its_box_is_diagnosed():
    narrow = epf.chebyshev(AR1, 8, box=({"phi": -0.2}, {"phi": 0.2}), shrink=None)
    filter_ = epf.practical_filter(AR1, 40, 2, num_sweeps=1, num_path_particles=2, statistic=narrow)
    results = epf.run(
        jax.random.key(1), filter_, epf.simulate(jax.random.key(0), AR1, {"phi": 0.9}, 60)[1], diagnostics=True
    )
    assert "box" in [finding.kind for finding in causes(results)]


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"^lag: expected a positive whole number, got 0\. Ten", {"lag": 0}),
        (r"^num_sweeps: expected a positive whole number, got 0", {"num_sweeps": 0}),
        (r"^num_path_particles: expected a whole number of at least 2, got 1", {"num_path_particles": 1}),
        (r"^statistic: the frozen statistic records nothing", {"statistic": epf.frozen(AR1)}),
    ],
)
def test_wrong_arguments_are_refused_by_name(message, options):
    with pytest.raises(ValueError, match=message):
        epf.practical_filter(AR1, 10, **options)
