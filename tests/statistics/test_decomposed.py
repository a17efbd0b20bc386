"""Theta taken apart: coefficients integrated out, given nodes of what is not linear."""

import itertools
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from conformance import MODELS, TRUTHS

import epf_jax as epf
from epf_jax import exact
from epf_jax.filters.extended_parameter import default_statistic
from epf_jax.models.flat_theta import numbers_in_a_row
from epf_jax.models.partly_linear import sine_and_line
from epf_jax.running.causes import misread
from epf_jax.statistics import statistic_of_path
from epf_jax.statistics.nodal_box import nodes_of, placing
from epf_jax.statistics.regressions import coefficients_of, conditional, pieces_of
from epf_jax.statistics.taking_apart import nodal_places

TRUTH = {"a": 0.3, "b": 0.4, "s": 0.8, "theta": 0.7}
T = 40


@cache
def _sine(precision):
    return sine_and_line()


def sine():
    """A line and a sine, one object for each precision."""
    return _sine(str(jnp.result_type(float)))


def two_grids():
    """A sine in the transition, and another one, of other parameters, in the observation."""
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0), "f": dist.Normal(0.5, 0.2), "g": dist.Normal(0.5, 0.2), "h": dist.Normal()},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x + jnp.sin(theta["f"] * x), 1.0),
        observation=lambda theta, x, u: dist.Normal(x + theta["h"] * jnp.cos(theta["g"] * x), 0.5),
    )


@cache
def known_path(precision):
    """A path, its statistic, and the statistic."""
    statistic = epf.decomposed(sine())
    x = epf.simulate(jax.random.key(1), sine(), TRUTH, T)[0]
    update = jax.jit(lambda S, x_prev, x: statistic.update(None, S, None, x_prev, x, jnp.zeros(()), 1))
    S = statistic.init(x[0])
    for x_prev, x_t in itertools.pairwise(x):
        S = update(S, x_prev, x_t)
    return x, S, statistic


def exact_log_density(x, theta):
    coordinates = sine().parameters
    z = coordinates.to_vector(theta)
    log_prior = coordinates.log_prior(z) - coordinates.log_jacobian(z)
    return log_prior + exact.path_log_likelihood(sine(), theta, x)[-1]


def test_the_density_at_nodes_is_that_of_the_path(x64):
    x, S, statistic = known_path("float64")
    middle, half = S.boxes[0]
    nodes = (middle + half * nodes_of((20,)))[6:15:2, 0]
    k = np.arange(len(nodes))
    thetas = {"a": 0.5 * k, "b": 0.1 * k, "s": 0.5 + 0.2 * k, "theta": nodes}
    off = jax.jit(jax.vmap(lambda theta: statistic.log_density(S, theta) - exact_log_density(x, theta)))(thetas)
    np.testing.assert_allclose(off, off[0], atol=1e-8)


def test_draws_have_the_moments_of_the_exact_density_of_a_known_path(x64):
    # 500 chains of 30 steps of four proposals each. Standard error of a mean: sd / 22, of an sd: sd / 31; four of each.
    x, S, statistic = known_path("float64")
    start = jax.tree.map(lambda number: jnp.full(500, number), TRUTH)
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (500, *leaf.shape)), S)

    def turn(theta, key):
        return statistic.sample_all(key, many, theta)[0], None

    found = jax.jit(lambda theta, keys: jax.lax.scan(turn, theta, keys)[0])(
        start, jax.random.split(jax.random.key(5), 60)
    )
    mean, sd = moments_of(np.asarray(x))
    for k, name in enumerate(("theta", "a", "b")):
        assert abs(float(found[name].mean()) - mean[k]) < 4 * sd[k] / 22
        assert abs(float(found[name].std()) - sd[k]) < 4 * sd[k] / 31


def moments_of(x):
    """Posterior mean and sd of theta, a and b given a path, by regressions on a grid of theta and s, in NumPy."""
    features, value = np.stack([np.ones(T), x[:-1]], axis=1), x[1:]
    logs, means, squares = [], [], []
    for theta in np.linspace(-2.0, 2.0, 201):
        left = value - np.sin(theta * x[:-1])
        for s in np.exp(np.linspace(-1.2, 0.8, 81)):
            precision = features.T @ features / s**2 + np.diag([1.0, 4.0])
            b = features.T @ left / s**2
            m, C = np.linalg.solve(precision, b), np.linalg.inv(precision)
            prior = -0.5 * (theta / 0.5) ** 2 - 0.5 * (np.log(s) / 0.5) ** 2
            logs.append(prior - T * np.log(s) - 0.5 * (left @ left / s**2 - b @ m) + 0.5 * np.linalg.slogdet(C)[1])
            means.append([theta, *m])
            squares.append([theta**2, *(m**2 + np.diag(C))])
    w = np.exp(np.array(logs) - np.max(logs))
    w /= w.sum()
    mean = w @ np.array(means)
    return mean, np.sqrt(w @ np.array(squares) - mean**2)


def test_draws_are_those_of_conjugate_when_all_is_linear(x64):
    model = MODELS["dict"]()
    x, y = epf.simulate(jax.random.key(0), model, TRUTHS["dict"], T)

    def drawn(statistic):
        def last(x, y):
            S = jax.tree.map(lambda rows: rows[-1], statistic_of_path(statistic, x, y))
            return statistic.sample(jax.random.key(4), S, TRUTHS["dict"])[0]

        return jax.tree.leaves(jax.jit(last)(x, y))

    one, other = (drawn(build(model)) for build in (epf.conjugate, epf.decomposed))
    np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.mark.slow
def test_a_filter_is_that_of_conjugate_when_all_is_linear():
    model = MODELS["dict"]()
    y = epf.simulate(jax.random.key(0), model, TRUTHS["dict"], 20)[1]
    runs = [
        epf.run(jax.random.key(1), epf.extended_parameter_filter(model, 50, statistic=statistic), y)
        for statistic in (epf.conjugate(model), epf.decomposed(model))
    ]
    for a, b in zip(*(jax.tree.leaves(run.final.theta) for run in runs), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)  # rounding, in float32
    np.testing.assert_allclose(runs[0].log_evidence, runs[1].log_evidence, atol=1e-4)


def test_a_filter_says_how_theta_was_taken_apart():
    said = repr(epf.extended_parameter_filter(sine(), 10))
    assert "decomposed (theta on 20 nodes; a, b integrated out; s walked)" in said


def test_noise_alone_is_walked():
    assert epf.decomposed(MODELS["noise"]()).name == "decomposed (nothing integrated out; noise walked)"


def test_structure_given_by_hand_is_the_one_that_is_found():
    assert epf.decomposed(sine(), ["theta"]).name == epf.decomposed(sine()).name


def test_terms_that_share_no_nodal_parameter_have_grids_of_their_own():
    S = epf.decomposed(two_grids()).init(jnp.zeros(()))
    assert [sums.shape[:-1] for sums in S.sums] == [(20,), (20,)]


@pytest.mark.slow
def test_the_box_follows_the_posterior():
    y = epf.simulate(jax.random.key(1), sine(), TRUTH, 100)[1]
    results = epf.run(jax.random.key(2), epf.extended_parameter_filter(sine(), 50), y)
    middle, half = (float(part[0, 0]) for part in results.final.S.boxes[0])
    assert half < 0.6 * 2.5
    assert np.all(np.abs(np.asarray(results.final.theta["theta"]) - middle) < half)


def test_models_that_cannot_be_taken_apart_are_told_why():
    with pytest.raises(ValueError, match="all parameters would be nodal"):
        epf.decomposed(epf.models.sinusoid())
    with pytest.raises(ValueError, match="are not parameters of the model"):
        epf.decomposed(sine(), ["frequency"])
    assert "chebyshev" in default_statistic(epf.models.sinusoid()).name


@pytest.mark.parametrize(("sd", "told"), [(0.1, False), (0.01, True)])
def test_a_box_placed_by_nodes_too_far_apart_counts_as_misread(sd, told):
    log_p = -0.5 * jnp.square((nodes_of((20,))[:, 0] - 0.2) / sd)
    placed = placing((20,), 5.0)(log_p[None], jnp.zeros(1), -1.0, 1.0)
    assert bool(placed.misread) == told
    np.testing.assert_allclose(placed.middle, 0.2, atol=0.1)
    assert placed.half < 1.0


@pytest.mark.parametrize("num", [0, 2])
def test_misread_boxes_of_decomposed_are_found(num):
    S = epf.decomposed(sine()).init()._replace(num_misread=np.full(10, float(num)))
    found = [*misread(SimpleNamespace(final=SimpleNamespace(S=S)))]
    assert [each.kind for each in found] == ["box"] * (num > 0)


def test_sums_that_leave_a_negative_square_are_not_believed(x64):
    _, S, _ = known_path("float64")
    model, (pieces, coefficients) = sine(), taken_apart(sine())
    numbers, sums = numbers_in_a_row(model.parameters), [s[10] for s in S.sums]
    t = numbers.at(model.parameters.centre)
    assert np.isfinite(conditional(pieces, coefficients, numbers, sums, t)[0])
    products = sums[-1].at[5].set(0.0)  # of the values with themselves
    assert conditional(pieces, coefficients, numbers, [*sums[:-1], products], t)[0] == -np.inf


def taken_apart(model):
    pieces = sum(pieces_of(model, nodal_places(model, None)), ())
    return pieces, coefficients_of(model, pieces)
