"""The node filter: exact posteriors without degeneracy, nodes that follow the posterior, and resampling in order."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from conformance import dict_theta, noise_theta

import epf_jax as epf
from epf_jax import exact
from epf_jax.core.gaussian import solve_lower
from epf_jax.core.interpolation import piecewise_cubic
from epf_jax.filters.between_nodes import LOWEST, between_nodes, roughness
from epf_jax.filters.node_filter import _cut_back
from epf_jax.running.causes import causes

KEY = jax.random.key(1)


@cache
def autoregression():
    """A model with two parameters whose posterior is known, its data, and the filter's results."""
    model = dict_theta()
    _, y = epf.simulate(jax.random.key(0), model, {"phi": 0.7, "offset": 0.5}, 200)
    coarse = exact.kalman(model, y, {"phi": jnp.linspace(-1.5, 1.5, 61), "offset": jnp.linspace(-3.0, 3.0, 61)})
    posterior = exact.kalman(model, y, exact.axes_around(coarse))
    filter_ = epf.node_filter(model, 40)
    return model, y, posterior, epf.run(KEY, filter_, y)


def test_two_parameters_get_their_exact_posterior_and_evidence():
    _, _, posterior, results = autoregression()
    for name in ("phi", "offset"):
        # The log-likelihood of 200 steps by 40 particles has an sd of about sqrt(200 / 40) * .2 = .45 that all nodes
        # share for the most part: a tenth of it, where nodes differ by one posterior sd, moves the mean by .1 sd.
        z = (results.theta.mean[name][-1] - posterior.mean[name][-1]) / posterior.sd[name][-1]
        assert abs(z) < 0.3
        assert 0.8 < results.theta.sd[name][-1] / posterior.sd[name][-1] < 1.2
        found, wanted = results.theta.quantiles[name][-1], posterior.quantiles((0.05, 0.25, 0.5, 0.75, 0.95))[name][-1]
        np.testing.assert_allclose(found, wanted, atol=0.4 * posterior.sd[name][-1])
    assert abs(float(results.log_evidence[-1]) - posterior.log_evidence[-1]) < 1.5  # three sd of .45


@pytest.mark.slow
def test_the_nodes_follow_the_posterior_along_its_own_axes():
    model, _, posterior, results = autoregression()
    nodes = results.final.S
    sd = np.array([posterior.sd[name][-1] for name in ("offset", "phi")])  # as the flat vector has them
    width = np.sqrt(np.sum(np.asarray(nodes.axes) ** 2, axis=1))
    # Five sd to either side when last re-placed, and the box has at most twice its volume since: 10 sd at the most.
    assert np.all(width > 3.0 * sd)
    assert np.all(width < 15.0 * sd)
    assert tuple(model.parameters.names) == ("offset", "phi")


@pytest.mark.slow
def test_evidence_is_unmoved_by_where_the_nodes_are():
    model, y, _, _ = autoregression()
    near, far = (
        epf.run(KEY, epf.node_filter(model, 40, reach=reach), y[:40], levels=()).log_evidence[-1]
        for reach in (4.0, 1e3)  # the second never finds a smaller box
    )
    assert abs(float(near - far)) < 0.5  # two runs of 40 steps and 40 particles: sd of each about sqrt(40 / 40) * .2


@pytest.mark.slow
def test_states_are_those_of_the_kalman_filter():
    model, y, _, results = autoregression()
    theta = {name: float(results.theta.mean[name][-1]) for name in ("phi", "offset")}
    known = epf.run(KEY, epf.bootstrap_filter(model, 4000, theta=theta), y, levels=())
    # sd of x given y is about .45; 610 points, of which about 60 count: .06, and theta's own spread beside it
    assert abs(float(results.x.mean[-1] - known.x.mean[-1])) < 0.2
    assert 0.7 < float(results.x.sd[-1] / known.x.sd[-1]) < 1.4


@pytest.mark.slow
def test_resampling_in_order_makes_differences_of_log_evidences_precise():
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, 50)

    def difference(resample):
        def log_evidence(theta, key):
            filter_ = epf.bootstrap_filter(model, 50, theta={"theta": theta}, resample=resample)
            return epf.run(key, filter_, y, levels=()).log_evidence[-1]

        keys = jax.random.split(KEY, 30)
        pairs = jax.jit(jax.vmap(lambda key: log_evidence(0.72, key) - log_evidence(0.7, key)))(keys)
        return float(jnp.std(pairs))

    # sds of 30 draws are within 13% of the truth; a third was seen
    assert difference(epf.in_order()) < 0.6 * difference(epf.systematic)


@pytest.mark.slow
def test_an_observation_that_nodes_rule_out_moves_theta_away():
    model = epf.StateSpaceModel(
        prior={"top": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.5 * x, 1.0),
        observation=lambda theta, x, u: dist.Uniform(theta["top"] - 2.0, theta["top"] + 2.0),
    )
    with pytest.warns(UserWarning, match="where the observation's values end depends on theta"):
        filter_ = epf.node_filter(model, 16)
    results = epf.run(KEY, filter_, jnp.array([0.0, 2.5, 3.0]))
    assert not bool(results.collapsed.any())
    # N(0, 1) cut off below 1 and above 2, exactly: mean 1.383, sd .270. Fifteen nodes over ten prior sd are .71 apart,
    # so that the cut is known to half of that; a peak beside it, which cubics would make, has an sd of a hundredth.
    assert 1.0 < float(results.theta.mean["top"][-1]) < 1.6
    assert 0.05 < float(results.theta.sd["top"][-1]) < 0.5
    assert abs(float(results.log_evidence[-1]) + 6.15) < 1.0


def test_wrong_arguments_are_refused_by_name():
    model, four = (
        dict_theta(),
        epf.StateSpaceModel(
            prior=dist.Normal(jnp.zeros(4), 1.0).to_event(1),
            initial=lambda theta: dist.Normal(0.0, 1.0),
            transition=lambda theta, x, u: dist.Normal(theta.sum() * x, 1.0),
            observation=lambda theta, x, u: dist.Normal(x, 1.0),
        ),
    )
    with pytest.raises(ValueError, match="node_filter: the grid has as many dimensions as there are parameters"):
        epf.node_filter(four)
    with pytest.raises(ValueError, match="num_inner: expected a positive whole number"):
        epf.node_filter(model, 0)
    with pytest.raises(ValueError, match="num_nodes: expected a whole number"):
        epf.node_filter(model, num_nodes=(3, 4, 5))
    with pytest.raises(ValueError, match="reach: expected a positive number"):
        epf.node_filter(model, reach=-1.0)
    with pytest.raises(ValueError, match="node_filter: the model's prior is empty"):
        epf.node_filter(
            epf.StateSpaceModel({}, four.initial, lambda theta, x, u: dist.Normal(x, 1.0), four.observation)
        )
    with pytest.raises(ValueError, match="particle learning needs a proposal with a look-ahead weight"):
        epf.particle_learning_filter(model, 10, proposal=epf.bootstrap())


def read_at(s, values):
    first, shares = piecewise_cubic(s, len(values))
    return jnp.sum(shares * values[first[:, None] + jnp.arange(4)], axis=1)


def test_a_cubic_is_read_exactly_inside_and_goes_straight_on_outside(x64):
    def cubic(s):
        return 1.0 + s - 2.0 * s**2 + 3.0 * s**3

    nodes = jnp.linspace(-1.0, 1.0, 7)
    read = jax.jit(lambda s: read_at(s, cubic(nodes)))
    inside = jnp.linspace(-1.0, 1.0, 101)
    np.testing.assert_allclose(read(inside), cubic(inside), atol=1e-12)
    slope = (cubic(nodes[-1]) - cubic(nodes[-2])) / (nodes[-1] - nodes[-2])
    np.testing.assert_allclose(read(jnp.array([1.2]))[0], cubic(1.0) + 0.2 * slope, atol=1e-12)


@pytest.mark.parametrize(("num_nodes", "error"), [(9, 0.06), (11, 0.03), (15, 0.01)])
def test_a_gaussian_is_read_between_the_nodes_of_the_box_that_it_gets(num_nodes, error):
    s = jnp.linspace(-1.0, 1.0, 2001)
    read_at = jax.jit(between_nodes((num_nodes,), 10, 5.0).read_at)
    for middle in (0.0, 0.05, 0.11):  # of the box, in half-widths: on a node, and between two of them
        at_nodes, wanted = (-0.5 * (5.0 * (place - middle)) ** 2 for place in (jnp.linspace(-1.0, 1.0, num_nodes), s))
        # Compressed, -z^2/2 has a fourth derivative of 12 / 25, and cubics err by 3/128 of it times the cells' h^4:
        # .027, .011 and .0029 at the most for 9, 11 and 15 nodes on 10 standard deviations; twice and more is allowed.
        found = read_at(at_nodes, s[:, None])
        assert abs(float(jax.nn.logsumexp(found) - jax.nn.logsumexp(wanted))) < error


def test_nothing_rises_beyond_the_nodes_and_peaks_by_cliffs_are_low():
    between = between_nodes((8, 8), 10, 5.0)
    read_at = jax.jit(between.read_at)
    along = between.nodes[:, 0]
    cliff = jnp.where(along < 0.0, -0.5 * (along + 0.5) ** 2, -2000.0 * along)
    rising = 5.0 * along
    outside = jnp.array([[1.2, 0.0], [1.25, 1.25]])
    np.testing.assert_allclose(read_at(rising, outside), 5.0, atol=1e-4)
    assert float(jnp.max(read_at(cliff, between.at))) < 0.251  # as far above the nodes around as anything may be


def test_a_box_is_cut_back_to_the_room_that_there_is():
    old_centre, old_axes = jnp.array([1.0, -1.0]), jnp.array([[2.0, 0.0], [0.5, 1.0]])
    limit, cut_back = jnp.array([1.1, 1.1]), jax.jit(_cut_back)
    corners = jnp.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    for centre, axes, cut in (
        (old_centre, 0.1 * old_axes, False),
        (old_centre + jnp.array([1.8, 0.6]), jnp.array([[1.0, 0.0], [0.2, 0.7]]), True),
    ):
        new_centre, new_axes, fits = cut_back(old_centre, old_axes, centre, axes, limit)
        reached = jax.vmap(lambda s: solve_lower(old_axes, new_centre + new_axes @ s - old_centre))(corners)  # noqa: B023
        assert bool(fits)
        assert float(jnp.max(jnp.abs(reached))) < 1.1 + 1e-5
        assert bool(jnp.allclose(new_axes, axes)) != cut
    assert not bool(cut_back(old_centre, old_axes, old_centre + 10.0, old_axes, limit)[2])


@pytest.mark.slow
def test_an_observation_that_narrows_the_posterior_much_is_looked_at_again(x64):
    # theta is all but seen: the prior's sd is 1, the first observation's noise .005, a cell .71.
    model = epf.StateSpaceModel(
        prior={"theta": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["theta"], 0.003),
        observation=lambda theta, x, u: dist.Normal(x, 0.004),
    )
    y = jnp.array([0.3456, 0.3471])
    sd = (1.0 + 2 / 0.005**2) ** -0.5  # of theta, whose likelihood is Gaussian
    mean = float(jnp.sum(y)) / 0.005**2 * sd**2
    exact = dist.MultivariateNormal(jnp.zeros(2), jnp.ones((2, 2)) + 0.005**2 * jnp.eye(2)).log_prob(y)
    coarse, fine = (epf.run(KEY, epf.node_filter(model, 8, num_looks=looks), y) for looks in (1, 4))
    # Four looks refine the grid by 14 / 3 each time: cells of .71, .15, .033 and .007 prior standard deviations, the last
    # two posterior ones. A cubic through nodes so far apart errs by a few per cent of the sd.
    assert abs(float(fine.theta.mean["theta"][-1]) - mean) < 0.2 * sd
    assert abs(float(fine.theta.sd["theta"][-1]) / sd - 1) < 0.1
    assert abs(float(fine.log_evidence[-1] - exact)) < 0.2
    assert abs(float(coarse.log_evidence[-1] - exact)) > 1.0


def test_guesses_beyond_the_box_made_from_guesses_stay_finite():
    between = between_nodes((6,), 16, 5.0)
    read_at = jax.jit(between.read_at)
    log_likelihood = jnp.where(jnp.arange(6) == 0, 0.0, -1e3 * jnp.arange(6.0))  # steeper and steeper to the right
    for _ in range(20):  # boxes that each reach a cell further out
        log_likelihood = read_at(log_likelihood, between.nodes * (1.0 + between.cell))
    assert np.all(np.isfinite(log_likelihood))
    assert float(jnp.min(log_likelihood)) >= -20 * LOWEST * (1 + 1e-5)  # the top itself may fall with each box


def against_kalman(model, y, axes, filter_):
    """Errors of the mean in posterior sd, of the sd as a ratio, and of the log-evidence, against the exact posterior."""
    coarse = exact.kalman(model, y, axes)
    posterior = exact.kalman(model, y, exact.axes_around(coarse))
    results = epf.run(KEY, filter_, y, levels=())
    (name,) = axes
    z = float((results.theta.mean[name][-1] - posterior.mean[name][-1]) / posterior.sd[name][-1])
    ratio = float(results.theta.sd[name][-1] / posterior.sd[name][-1])
    return z, ratio, float(results.log_evidence[-1] - posterior.log_evidence[-1])


@pytest.mark.slow
@pytest.mark.parametrize("outlier", [20.0, 40.0])
def test_an_outlier_that_drags_the_posterior_out_of_the_box_is_forgotten(outlier):
    model = epf.models.ar1()
    _, y = epf.simulate(jax.random.key(0), model, {"phi": 0.7}, 100)
    axes = {"phi": jnp.linspace(-4.0, 4.0, 1601)}
    z, ratio, error = against_kalman(model, y.at[15].set(outlier), axes, epf.node_filter(model, 32))
    # At the outlier the posterior lies beyond the box, and comes back at the next observation. What was read of it by
    # nodes that were then ten posterior sd apart stays in log L: some tenths of a sd, and one or two in the evidence.
    assert abs(z) < 0.4
    assert 0.8 < ratio < 1.2
    assert abs(error) < 2.5


@pytest.mark.slow
def test_seven_nodes_are_enough_for_one_parameter():
    model = epf.models.ar1()
    _, y = epf.simulate(jax.random.key(0), model, {"phi": 0.7}, 30)
    axes = {"phi": jnp.linspace(-1.5, 1.5, 601)}
    z, ratio, error = against_kalman(model, y, axes, epf.node_filter(model, 32, num_nodes=7))
    # Nodes a posterior sd apart: cubics err by a few hundredths of a log, and the evidence of 30 steps by 32 particles
    # has an sd of about sqrt(30 / 32) * .2.
    assert abs(z) < 0.2
    assert 0.9 < ratio < 1.1
    assert abs(error) < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.1, 0.03])
def test_a_posterior_narrow_along_a_diagonal_is_looked_at_again(noise):
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] + theta["b"], 0.6 * noise),
        observation=lambda theta, x, u: dist.Normal(x, 0.8 * noise),
    )
    y = 0.9 + noise * np.random.default_rng(0).normal(size=20)
    results = epf.run(KEY, epf.node_filter(model, 32), jnp.asarray(y, float), levels=())
    # a + b ~ N(0, 2) is observed twenty times; a is half of the sum, and its half-difference N(0, 1/2) stays as it was.
    precision = 0.5 + 20 / noise**2
    total = y.sum() / noise**2 / precision
    evidence = -0.5 * (20 * np.log(2 * np.pi * noise**2) + np.log(2 * precision))
    evidence += -0.5 * (np.sum(y**2) / noise**2 - total**2 * precision)
    sd = np.sqrt((1 / precision + 2.0) / 4)
    # Exact but for the reading: no state matters beyond its own step, and the nodes share their random numbers.
    assert abs(float(results.theta.mean["a"][-1]) - total / 2) < 0.02 * sd
    assert float(results.theta.sd["a"][-1]) == pytest.approx(sd, rel=0.02)
    assert float(results.log_evidence[-1]) == pytest.approx(evidence, abs=0.1)


def test_points_that_are_too_few_to_show_a_posterior_are_refused():
    with pytest.raises(ValueError, match="num_points: expected at least 16 for each of the"):
        epf.node_filter(epf.models.ar1(), 8, num_points=5)


# ------------------------------------------------------------------------------------------------ sigma points


@pytest.mark.slow
def test_with_sigma_points_a_linear_model_gets_its_exact_answer():
    model, y, posterior, _ = autoregression()
    results = epf.run(KEY, epf.node_filter(model, inner=epf.sigma_points(model)), y)
    for name in ("phi", "offset"):
        # Each node's likelihood is Kalman's own: what is left is read between nodes, some hundredths (the league).
        z = (results.theta.mean[name][-1] - posterior.mean[name][-1]) / posterior.sd[name][-1]
        assert abs(z) < 0.05
        assert 0.97 < results.theta.sd[name][-1] / posterior.sd[name][-1] < 1.03
    assert abs(float(results.log_evidence[-1]) - posterior.log_evidence[-1]) < 0.1
    theta = {name: float(results.theta.mean[name][-1]) for name in ("phi", "offset")}
    known = epf.run(KEY, epf.bootstrap_filter(model, 4000, theta=theta), y, levels=())
    assert abs(float(results.x.mean[-1] - known.x.mean[-1])) < 0.05  # theta's own spread, 610 points, 4000 particles
    assert 0.95 < float(results.x.sd[-1] / known.x.sd[-1]) < 1.15  # wider by theta's own spread


def test_a_linear_gaussian_model_gets_kalmans_filter_unless_asked():
    model = dict_theta()
    assert "by Kalman's" in epf.node_filter(model).description
    for asked in ({"num_inner": 8}, {"proposal": epf.bootstrap()}, {"inner": epf.sigma_points(model)}):
        assert "by Kalman's" not in epf.node_filter(model, **asked).description
    assert "with 32 particles" in epf.node_filter(epf.models.sinusoid()).description  # sigma points would fit it, too


@cache
def cycle():
    """A rotating state of two dimensions, of which one is seen."""

    def transition(theta, x, u):
        c, s = jnp.cos(theta["angle"]), jnp.sin(theta["angle"])
        return dist.Normal(0.9 * jnp.stack([c * x[0] - s * x[1], s * x[0] + c * x[1]]), 0.5).to_event(1)

    return epf.StateSpaceModel(
        prior={"angle": dist.Normal(0.5, 0.2)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], 0.3),
    )


@pytest.mark.slow
def test_sigma_points_in_two_dimensions_are_kalmans_and_skip_missing():
    model = cycle()
    _, y = epf.simulate(jax.random.key(0), model, {"angle": 0.6}, 60)
    y = y.at[20:25].set(jnp.nan)
    posterior = exact.kalman(model, y, {"angle": jnp.linspace(-0.5, 1.5, 401)})
    # Enough nodes that what is read between them errs by thousandths: a law that is not Kalman's errs by tenths.
    results = epf.run(KEY, epf.node_filter(model, inner=epf.sigma_points(model, 2), num_nodes=31), y)
    z = (results.theta.mean["angle"] - posterior.mean["angle"]) / posterior.sd["angle"]
    assert np.abs(z[10:]).max() < 0.01
    assert abs(float(results.log_evidence[-1]) - posterior.log_evidence[-1]) < 0.02
    assert results.x.mean.shape == (60, 2)


@pytest.mark.slow
def test_sigma_points_are_near_exact_where_the_state_is_seen_well():
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, 100)
    truth = exact.quadrature(model, y, {"theta": np.linspace(-0.8, 1.4, 101)}, exact.nodes_around(y, 0.8, 41))
    results = epf.run(KEY, epf.node_filter(model, inner=epf.sigma_points(model)), y)
    z = (results.theta.mean["theta"][-1] - truth.mean["theta"][-1]) / truth.sd["theta"][-1]
    assert abs(float(z)) < 0.05
    assert abs(float(results.log_evidence[-1]) - truth.log_evidence[-1]) < 0.1


def test_an_observation_out_of_range_is_missing_to_sigma_points():
    model = epf.models.sinusoid()
    filter_ = epf.node_filter(model, inner=epf.sigma_points(model), num_points=32)
    state = filter_.init(KEY)
    for y in (0.3, -0.2):
        state, _ = filter_.step(KEY, state, y)
    after, info = filter_.step(KEY, state, 3e38)  # its square is no float32
    missing, _ = filter_.step(KEY, state, jnp.nan)
    assert bool(info.collapsed)
    assert float(after.log_evidence) == -jnp.inf
    np.testing.assert_allclose(after.S.filters.mean, missing.S.filters.mean, rtol=1e-5)
    np.testing.assert_allclose(after.theta["theta"], missing.theta["theta"], rtol=1e-5)


@pytest.mark.slow
def test_a_posterior_at_the_edge_of_the_nodes_box_is_diagnosed():
    model = epf.models.ar1(prior_sd=0.05)
    _, y = epf.simulate(jax.random.key(0), model, {"phi": 0.9}, 60)  # 18 prior standard deviations away
    run = epf.run(KEY, epf.node_filter(model, 8), y, diagnostics=True)
    assert "box" in [finding.kind for finding in causes(run)]
    model = epf.models.ar1()
    run = epf.run(KEY, epf.node_filter(model, 8), y, diagnostics=True)
    assert not {"box", "nodes"} & {finding.kind for finding in causes(run)}
    assert 0.0 < run.diagnostics.roughness[-1] < 0.1
    noisy = run._replace(diagnostics=run.diagnostics._replace(roughness=jnp.full(60, 0.5)))
    assert "nodes" in [finding.kind for finding in causes(noisy)]


@pytest.mark.parametrize("counts", [(15,), (21, 21), (4, 15)])
def test_fourth_differences_tell_noise_and_nothing_of_a_cubic(counts):
    s = np.stack(np.meshgrid(*(np.linspace(-5.0, 5.0, n) for n in counts), indexing="ij"), axis=-1)
    smooth = jnp.asarray(np.sum(-0.5 * s**2 + 0.01 * s**3, axis=-1).ravel())
    flat, told = jnp.zeros(smooth.shape), jax.jit(partial(roughness, counts))
    assert told(smooth, flat) < 1e-4  # float32: roundings of 30 times 6e-8, times 8
    noise = np.random.default_rng(0).normal(size=(200, *smooth.shape)).astype(np.float32)
    found = jax.jit(jax.vmap(lambda e: roughness(counts, smooth + 0.1 * e, flat)))(noise)
    # the rms over 200 draws of what a dozen differences, all but a few of them dependent, say of 0.1
    assert 0.08 < float(np.sqrt(np.mean(found**2))) < 0.2  # of two axes the rougher one counts
    assert told(30.0 * smooth, flat) == 0.0  # a posterior of less than one cell: nothing is seen of it
    assert told(np.where(smooth < -8.0, -np.inf, smooth), flat) < 1e-4  # what is impossible is not noise


@pytest.mark.slow
def test_nodes_too_noisy_for_a_chaotic_model_are_diagnosed():
    """Ricker's map with counts: with 32 particles a node, keys put the posterior a standard deviation apart."""
    model = epf.StateSpaceModel(
        prior={"r": dist.Normal(3.0, 1.0), "scale": dist.LogNormal(2.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x + theta["r"] - jnp.exp(x), 0.3),
        observation=lambda theta, x, u: dist.Poisson(theta["scale"] * jnp.exp(x)),
    )
    _, y = epf.simulate(jax.random.key(5), model, {"r": 3.0, "scale": 8.0}, 150)
    run = epf.run(KEY, epf.node_filter(model, 32), y, diagnostics=True, levels=())
    assert "nodes" in [finding.kind for finding in causes(run)]


def test_what_is_linear_in_a_cell_is_read_exactly_up_to_the_edge(x64):
    between = between_nodes((5, 4), 32, 5.0)
    s = jax.random.uniform(KEY, (50, 2), minval=-1.0, maxval=1.0).at[0].set(jnp.array([-1.0, 1.0]))
    corners = jax.jit(between.corners)
    nodes, shares = corners(s)
    np.testing.assert_allclose(jnp.einsum("mk,mkp->mp", shares, between.nodes[nodes]), s, atol=1e-12)
    outside = corners(jnp.array([[1.3, -2.0]]))
    np.testing.assert_allclose(outside.shares @ between.nodes[outside.nodes[0]], [[1.0, -1.0]], atol=1e-12)


@pytest.mark.slow
def test_sigma_points_start_from_a_narrower_precision(x64):
    model = epf.models.ar1()
    narrow = epf.StateSpaceModel(
        model.prior,
        lambda theta: dist.Normal(jnp.float32(0.0), jnp.float32(1.0)),
        model.transition,
        model.observation,
    )
    results = epf.run(KEY, epf.node_filter(narrow, inner=epf.sigma_points(narrow)), jnp.zeros(3))
    assert np.isfinite(results.log_evidence).all()


@pytest.mark.slow
def test_the_gradient_with_sigma_points_is_kalmans(x64):
    def build(hyper):
        return epf.models.ar1(noise=hyper["noise"], observation_noise=hyper["sensor"])

    hyper = {"noise": 1.0, "sensor": 0.5}
    _, y = epf.simulate(jax.random.key(0), build(hyper), {"phi": 0.6}, 30)

    def by_nodes(hyper):
        model = build(hyper)
        return epf.run(KEY, epf.node_filter(model, inner=epf.sigma_points(model)), y, levels=()).log_evidence[-1]

    def by_kalman(hyper):
        grid = jnp.linspace(-2.0, 2.0, 401)
        return jnp.asarray(exact.kalman(build(hyper), y, {"phi": grid}).log_evidence[-1])

    step = 1e-4
    for name, slope in jax.jit(jax.grad(by_nodes))(hyper).items():
        up, down = ({**hyper, name: hyper[name] + by} for by in (step, -step))
        wanted = (by_kalman(up) - by_kalman(down)) / (2 * step)
        np.testing.assert_allclose(slope, wanted, rtol=0.01, atol=0.01)  # what is read between nodes, as above


def test_sigma_points_that_cannot_serve_are_refused_with_an_alternative():
    model = epf.models.sinusoid()
    with pytest.raises(ValueError, match=r"sigma_points: the transition is Cauchy.*epf.node_filter\(model, 32\)"):
        epf.sigma_points(epf.models.cauchy_ar1())
    with pytest.raises(ValueError, match="sigma_points: the initial state is Uniform, not Gaussian"):
        epf.sigma_points(
            epf.StateSpaceModel(model.prior, lambda theta: dist.Uniform(0, 1), model.transition, model.observation)
        )
    with pytest.raises(ValueError, match="num_points: expected a whole number of at least 2, got 1"):
        epf.sigma_points(model, 1)
    with pytest.raises(ValueError, match="sigma_points: 40 points along each of 2 components are 1600, more than 1024"):
        epf.sigma_points(cycle(), 40)
    with pytest.raises(
        TypeError, match=r"inner: expected epf.kalman\(model\) or epf.sigma_points\(model\), got 32. For"
    ):
        epf.node_filter(model, inner=32)
    with pytest.raises(TypeError, match=r"inner: expected .* epf.sigma_points\(model\).* Call it with the model"):
        epf.node_filter(model, inner=epf.sigma_points)
    with pytest.raises(ValueError, match="inner: it was built for another model"):
        epf.node_filter(model, inner=epf.sigma_points(epf.models.sinusoid()))
    with pytest.raises(ValueError, match="proposal: it is about particles, and `inner` has none"):
        epf.node_filter(model, inner=epf.sigma_points(model), proposal=epf.bootstrap())
    with pytest.raises(TypeError, match=r"num_inner: expected a number of particles, got <a filter.*inner="):
        epf.node_filter(model, epf.sigma_points(model))
    with pytest.raises(ValueError, match="num_points: 400 are more than the 64 that serve"):
        epf.sigma_points(model, 400)
    with pytest.raises(ValueError, match="num_inner: it is about particles"):
        epf.node_filter(model, 8, inner=epf.sigma_points(model))


@pytest.mark.parametrize(("num_nodes", "shown"), [(7, False), pytest.param(41, True, marks=pytest.mark.slow)])
def test_evidence_that_the_nodes_cannot_tell_is_not_shown(num_nodes, shown):
    model = dataclasses.replace(noise_theta(), prior={"noise": dist.LogNormal(0.0, 2.0)})
    y = epf.simulate(jax.random.key(0), model, {"noise": 1.5}, 20)[1]
    exactly = exact.kalman(model, y, {"noise": np.exp(np.linspace(-9.0, 7.0, 1001))}).log_evidence[-1]
    results = epf.run(KEY, epf.node_filter(model, num_nodes=num_nodes), y, levels=())
    assert (abs(float(results.log_evidence[-1]) - exactly) < 0.1) == shown
    assert ("log-evidence not shown, because between the nodes" in repr(results)) == (not shown)
