"""Draws spread evenly over particles in order: unbiased, far less scattered, and refused where they cannot be made."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax import exact
from epf_jax.particles import quasi_random as quasi

KEY = jax.random.key(1)


def log_evidences(filter_, y, num):
    keys = jax.random.split(KEY, num)
    return np.asarray(epf.replicate(keys, filter_, y, levels=()).log_evidence[:, -1])


def test_points_are_spread_evenly_and_keep_off_the_ends():
    u = np.asarray(quasi.kronecker(KEY, 1000, 2))
    assert u.shape == (1000, 2)
    assert np.all((u > 0.0) & (u < 1.0))
    for (
        axis
    ) in u.T:  # three-distance theorem: no gap is wider than some 2.6 / N for the golden ratio; 4 in two dimensions
        assert np.max(np.diff(np.sort(axis))) < 5.0 / 1000
    pairs = np.histogram2d(*u.T, bins=10)[0]
    assert np.all(np.abs(pairs - 10.0) <= 5.0)  # independent draws would have cells of 1 and of 20


@pytest.mark.parametrize(("num", "dim"), [(610, 2), (2048, 3), (64, 4), (1, 2)])
def test_a_lattice_is_an_even_grid_in_every_coordinate(num, dim):
    points = quasi.lattice(num, dim)
    assert points.shape == (num, dim)
    for axis in points.T:
        np.testing.assert_allclose(np.sort(axis), (np.arange(num) + 0.5) / num, rtol=1e-12)


@pytest.mark.parametrize(("num", "dim"), [(100, 2), (250, 2), (610, 2), (1000, 2), (2048, 3)])
def test_a_lattice_integrates_what_vanishes_at_the_sides_as_a_grid_does(num, dim):
    spacing = num ** (-1.0 / dim)  # of a grid
    sd = 0.75 * spacing
    centre = np.array([0.53, 0.49, 0.51])[:dim]
    x = quasi.lattice(num, dim)
    weights = np.exp(-0.5 * np.sum(((x - centre) / sd) ** 2, axis=1))
    # A wave of wave number h is taken for a constant with an error of 2 exp(-2 (pi h sd)^2): for a grid, 3e-5. Here the
    # shortest is at least .9 / spacing: 2e-4, for each of up to six directions; beyond the sides there is 1e-8.
    np.testing.assert_allclose(weights.mean() / (2 * np.pi * sd**2) ** (dim / 2), 1.0, atol=6 * 2e-4)
    np.testing.assert_allclose(weights @ x / weights.sum(), centre, atol=0.02 * sd)


@pytest.mark.parametrize("num", [1, 2, 7, 64, 65])
def test_few_rows_are_put_in_the_order_that_a_sort_gives(num):
    x = np.random.default_rng(0).normal(size=num).astype(np.float32)
    x[num // 2 :: 3] = x[0]  # ties keep their order
    x[num // 3 :: 5] = np.nan  # what is no number comes last
    found = jax.jit(quasi.order_of)(x, np.zeros(num, np.float32))
    np.testing.assert_array_equal(found, np.argsort(x, kind="stable"))


def test_the_largest_random_word_is_still_below_one(monkeypatch):
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.full(shape, 0xFFFFFFFF, dtype))
    u = quasi.kronecker(KEY, 4, 1)
    assert float(jnp.max(u)) < 1.0
    assert float(jnp.min(u)) > 0.0


@pytest.mark.slow
def test_the_scatter_falls_faster_than_that_of_independent_draws():
    model, theta = epf.models.ar1(), {"phi": 0.7}
    y = jnp.array([0.5])
    few, many = (np.std(log_evidences(_spread(model, theta, num), y, 200)) for num in (64, 1024))
    assert many < few / 8  # independent draws: a quarter; each known to 5%; a twentieth was seen


def _spread(model, theta, num):
    proposal, resample = epf.quasi_random(epf.bootstrap()), epf.in_order()
    return epf.bootstrap_filter(model, num, theta=theta, proposal=proposal, resample=resample)


@pytest.mark.parametrize(("dim", "bits"), [(2, 4), (3, 3)])
def test_hilberts_curve_visits_every_cell_once_and_steps_to_a_neighbour(monkeypatch, dim, bits):
    monkeypatch.setattr(quasi, "_BITS", bits * dim)
    cells = np.stack(np.meshgrid(*[np.arange(2**bits)] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    place = np.asarray(jax.jit(lambda x: quasi.along_hilberts_curve(x))((cells + 0.5) / 2**bits))
    assert sorted(place) == list(range(len(cells)))
    assert np.all(np.abs(np.diff(cells[np.argsort(place)], axis=0)).sum(axis=1) == 1)


@pytest.mark.slow
@pytest.mark.parametrize("adapted", [False, True])
def test_the_evidence_is_kalmans_with_a_fraction_of_the_scatter(adapted):
    model = epf.models.ar1()
    theta = {"phi": 0.7}
    _, y = epf.simulate(jax.random.key(0), model, theta, 30)
    wanted = float(exact.kalman_log_evidence(model, theta, y)[-1])
    proposal = epf.fully_adapted(model) if adapted else epf.bootstrap()
    plain, spread = (
        log_evidences(epf.bootstrap_filter(model, 64, theta=theta, proposal=p, resample=r), y, 400) - wanted
        for p, r in ((proposal, epf.systematic), (epf.quasi_random(proposal), epf.in_order()))
    )
    ratio = np.exp(spread)
    assert abs(np.mean(ratio) - 1.0) < 4.0 * np.std(ratio) / np.sqrt(len(ratio))  # 4 standard errors
    assert np.std(spread) < 0.6 * np.std(plain)  # each known to 1 / sqrt(800) = 4%; 0.3 and 0.4 were seen


@pytest.mark.slow
def test_states_of_two_dimensions_are_spread_along_hilberts_curve():
    turn = jnp.array([[0.8, -0.4], [0.4, 0.8]])
    model = epf.StateSpaceModel(
        prior={},
        initial=lambda theta: dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
        transition=lambda theta, x, u: dist.Normal(turn @ x, 0.5).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x[0], 0.5),
    )
    _, y = epf.simulate(jax.random.key(0), model, {}, 30)
    wanted = float(exact.kalman_log_evidence(model, {}, y)[-1])
    plain, spread = (
        log_evidences(epf.bootstrap_filter(model, 128, proposal=p, resample=r), y, 400) - wanted
        for p, r in ((epf.bootstrap(), epf.systematic), (epf.quasi_random(epf.bootstrap()), epf.in_order()))
    )
    ratio = np.exp(spread)
    assert abs(np.mean(ratio) - 1.0) < 4.0 * np.std(ratio) / np.sqrt(len(ratio))
    assert np.std(spread) < 0.8 * np.std(plain)


def test_what_cannot_be_spread_is_refused():
    counts = epf.StateSpaceModel(
        prior={"rate": dist.Normal(2.0, 1.0)},
        initial=lambda theta: dist.Gamma(2.0, 1.0),
        transition=lambda theta, x, u: dist.Mixture(
            dist.Categorical(jnp.array([0.5, 0.5])), dist.Normal(jnp.array([0.0, theta["rate"]]), 1.0)
        ),
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
    )
    with pytest.raises(ValueError, match="quasi_random: no inverse distribution function is known of Gamma"):
        epf.bootstrap_filter(counts, 10, proposal=epf.quasi_random(epf.bootstrap()))
    with pytest.raises(TypeError, match=r"proposal: expected epf\.bootstrap"):
        epf.quasi_random(epf.bootstrap)
    assert "quasi-random" not in epf.node_filter(counts, 10).description
    wide = epf.StateSpaceModel(
        prior={},
        initial=lambda theta: dist.Normal(jnp.zeros(7), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(x, 1.0).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x[0], 1.0),
    )
    with pytest.raises(ValueError, match="in_order: expected states of at most 6 dimensions, got 7"):
        epf.run(KEY, epf.bootstrap_filter(wide, 10, resample=epf.in_order()), jnp.zeros(3))
    model = epf.models.ar1()
    with pytest.raises(ValueError, match="in the order of their states, which systematic does not keep"):
        epf.bootstrap_filter(model, 10, proposal=epf.quasi_random(epf.bootstrap()))
    counted = epf.StateSpaceModel(
        prior={},
        initial=lambda theta: dist.DiscreteUniform(0, 9),
        transition=lambda theta, x, u: dist.DiscreteUniform(0, 9),
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
    )
    with pytest.raises(ValueError, match="known of DiscreteUniform"):
        epf.bootstrap_filter(counted, 10, proposal=epf.quasi_random(epf.bootstrap()), resample=epf.in_order())
    for method in (
        lambda proposal: epf.particle_gibbs(KEY, model, jnp.zeros(3), num_draws=4, proposal=proposal),
        lambda proposal: epf.run(KEY, epf.practical_filter(model, 4, proposal=proposal), jnp.zeros(3)),
    ):
        with pytest.raises(ValueError, match="redrawing a path needs independent draws"):
            method(epf.quasi_random(epf.bootstrap()))
