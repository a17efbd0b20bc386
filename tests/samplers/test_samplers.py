"""Samplers leave their target invariant, and never move to where it is not defined."""

from functools import partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import MODELS, SAMPLERS
from scipy.stats import gamma

import epf_jax as epf
from epf_jax.particles.weights import Population
from epf_jax.samplers import SampleInfo, together
from epf_jax.samplers.random_walk import accepted

N = 60_000


def log_gamma_of_exponential(z):
    """A skewed target: z = log of a Gamma(3, 1) variable, density proportional to exp(3 z - e^z)."""
    return 3 * z[0] - jnp.exp(z[0])


QUICK = ["random_walk", "random_walk_four_steps", "slice_sampler", "blackjax_mala"]
EDGES = [name if name == "slice_sampler" else pytest.param(name, marks=pytest.mark.slow) for name in SAMPLERS]
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SAMPLERS]


@pytest.mark.parametrize("name", EACH)
def test_one_application_leaves_a_skewed_target_as_it_was(name):
    step = SAMPLERS[name]().step
    exact = np.log(gamma(3.0).ppf((np.arange(N) + 0.5) / N))
    start = jnp.asarray(np.random.default_rng(0).permutation(exact), jnp.float32)[:, None]
    population = Population(jnp.array([exact.mean()], jnp.float32), jnp.array([[exact.std()]], jnp.float32))
    keys = jax.random.split(jax.random.key(1), N)
    moved, info = jax.jit(jax.vmap(lambda k, z: step(k, z, log_gamma_of_exponential, population)))(keys, start)
    moved = np.asarray(moved[:, 0], float)
    assert 0.2 < float(info.acceptance.mean()) <= 1.0
    assert np.mean(moved != np.asarray(start[:, 0])) > 0.2
    # N independent draws: mean within 4 sd / sqrt(N), and each decile's share within 4 sqrt(.1 * .9 / N)
    assert abs(moved.mean() - exact.mean()) < 4 * exact.std() / np.sqrt(N)
    deciles = np.log(gamma(3.0).ppf(np.arange(0.1, 1.0, 0.1)))
    shares = np.histogram(moved, np.concatenate([[-np.inf], deciles, [np.inf]]))[0] / N
    assert np.max(np.abs(shares - 0.1)) < 4 * np.sqrt(0.1 * 0.9 / N)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SAMPLERS if n != "grid_sampler"])
def test_a_correlated_target_in_two_dimensions_stays_as_it_was(name):
    covariance = jnp.array([[1.0, 0.8], [0.8, 2.0]])
    L = jnp.linalg.cholesky(covariance)
    precision = jnp.linalg.inv(covariance)
    step = SAMPLERS[name]().step
    start = jax.random.normal(jax.random.key(2), (N, 2)) @ L.T
    keys = jax.random.split(jax.random.key(3), N)
    moved, _ = jax.jit(
        jax.vmap(lambda k, z: step(k, z, lambda z: -0.5 * z @ precision @ z, Population(jnp.zeros(2), L)))
    )(keys, start)
    # entry (i, j) of a sample covariance has standard error sqrt((c_ii c_jj + c_ij^2) / N) <= sqrt(8 / N)
    np.testing.assert_allclose(np.cov(np.asarray(moved).T), covariance, atol=4 * np.sqrt(8 / N))


@pytest.mark.parametrize("name", EDGES)
def test_places_where_the_density_is_nan_or_zero_are_never_moved_to(name):
    def half_line(z):
        return jnp.where(z[0] > 1.0, jnp.nan, jnp.where(z[0] < -1.0, -jnp.inf, -0.5 * z[0] ** 2))

    step = SAMPLERS[name]().step
    keys = jax.random.split(jax.random.key(4), 500)
    population = Population(jnp.zeros(1), jnp.eye(1))
    moved, _ = jax.jit(jax.vmap(lambda k: step(k, jnp.array([0.9]), half_line, population)))(keys)
    assert np.all(np.abs(moved) <= 1.0)
    assert len(np.unique(moved)) > 10


def test_reports_of_many_draws_become_one_whatever_their_shapes():
    for acceptance, num_bad in ((np.full(4, 0.5), np.array([1, 0, 2, 0])), (np.full((4, 3), 0.5), 3), (0.5, 3)):
        found = together(SampleInfo(acceptance, num_bad))
        assert (float(found.acceptance), int(found.num_bad)) == (0.5, 3)


@pytest.mark.parametrize(
    ("before", "after", "uniform", "moves", "bad"),
    [
        (0.0, 1.0, 0.999, True, False),
        (0.0, 0.0, 0.0, True, False),
        (0.0, -1.0, 0.7, True, False),  # exp(-1) = 0.37 against a uniform of 0.3
        (0.0, -1.0, 0.61, False, False),  # against .39, less than exp(-.9)
        (0.0, -1.0, 0.5, False, False),
        (0.0, -np.inf, 0.0, False, False),
        (0.0, -np.inf, 0.999, False, False),
        (-np.inf, -5.0, 0.0, True, False),
        (-np.inf, -np.inf, 0.5, False, False),
        (np.nan, -5.0, 0.0, True, False),
        (0.0, np.nan, 0.999, False, True),
    ],
)
def test_metropolis_rule_at_its_edges(before, after, uniform, moves, bad):
    found = accepted(jnp.asarray(uniform), jnp.asarray(before), jnp.asarray(after))
    assert tuple(map(bool, found)) == (moves, bad)


@pytest.mark.parametrize("name", EDGES)
def test_a_particle_where_the_density_is_zero_finds_its_way_back_or_stays(name):
    def support(z):
        return jnp.where(jnp.abs(z[0]) < 1.0, -0.5 * z[0] ** 2, -jnp.inf)

    step = SAMPLERS[name]().step
    population = Population(jnp.zeros(1), jnp.eye(1))
    keys = jax.random.split(jax.random.key(5), 500)
    moved, info = jax.jit(jax.vmap(lambda key: step(key, jnp.array([1.5]), support, population)))(keys)
    inside = np.abs(moved[:, 0]) < 1.0
    np.testing.assert_array_equal(moved[~inside, 0], 1.5)
    assert np.all(np.isfinite(info.acceptance))
    # The gradient is 0 there. A walk of sd s comes to (-1, 1) with probability Phi(2.5 / s) - Phi(.5 / s): .27 for 2.38,
    # .32 for MALA's sqrt(1.4); a fixed one of .3 in one step out of 22. 500 tries: four standard errors are .09.
    shares = {"random_walk": 0.27, "blackjax_mala": 0.32, "random_walk_fixed_step": 0.05}
    if name in shares:
        assert abs(inside.mean() - shares[name]) < 0.09


# ------------------------------------------------------------------------------------------------- kernels of blackjax


def standard(z):
    return -0.5 * z @ z


def test_a_refused_step_of_blackjax_leaves_theta_to_the_bit():
    step = epf.blackjax_sampler(blackjax.mala, step_size=0.7).step
    theta, scale = jnp.array([0.1, -0.3]), jnp.array([[1e-3, 0.0], [2e-3, 0.7]])
    key = jax.random.key(0)
    nowhere_else = lambda z: jnp.where(jnp.all(jnp.abs(z - theta) < 1e-6), 0.0, -jnp.inf)  # noqa: E731
    moved, info = step(key, theta, nowhere_else, Population(jnp.array([0.37, 1.0]), scale))
    np.testing.assert_array_equal(moved, theta)
    assert float(info.acceptance) == 0.0


def test_coordinates_that_go_together_to_the_last_digit_are_no_trouble():
    # Rounding leaves a pivot of zero in the factor of a covariance with correlation one.
    step = epf.blackjax_sampler(blackjax.mala, step_size=0.7).step
    population = Population(jnp.array([0.2, 0.4]), jnp.array([[1.0, 0.0], [2.0, 0.0]]))
    keys = jax.random.split(jax.random.key(6), 500)
    on_it, off_it = population.mean + jnp.array([0.5, 1.0]), population.mean + jnp.array([0.5, 1.01])
    move = jax.jit(jax.vmap(lambda key, start: step(key, start, standard, population), (0, None)))
    for start in (on_it, off_it):
        moved, info = move(keys, start)
        assert np.all(np.isfinite(moved))
        assert float(jnp.mean(info.acceptance)) > 0.1  # .2 here, where the target is rounder than the population
        assert not np.any(info.num_bad)


@pytest.mark.slow
def test_steps_of_blackjax_are_in_standard_deviations_of_the_population():
    step, keys = epf.blackjax_sampler(blackjax.mala, step_size=0.7).step, jax.random.split(jax.random.key(1), 200)

    def acceptance(scale):
        wide = Population(jnp.zeros(2), scale * jnp.eye(2))
        start = scale * jnp.ones(2)
        return jax.vmap(lambda key: step(key, start, lambda z: standard(z / scale), wide)[1].acceptance)(keys)

    # 1e-3 and 1e3 are no powers of two: the same numbers up to rounding, eps of 6e-8 in exponents of size 10
    np.testing.assert_allclose(acceptance(1e-3), acceptance(1e3), atol=1e-5)


OWN_METRIC = {"inverse_mass_matrix": jnp.array([0.5, 2.0])}


@pytest.mark.parametrize(
    ("kernel", "parameters"),
    [
        (blackjax.hmc, {"step_size": 0.9, "num_integration_steps": 2}),
        pytest.param(blackjax.hmc, {"step_size": 0.9, "num_integration_steps": 2} | OWN_METRIC, marks=pytest.mark.slow),
        pytest.param(blackjax.barker, {"step_size": 1.5}, marks=pytest.mark.slow),
        pytest.param(blackjax.normal_random_walk, {"sigma": jnp.array([1.0, 2.0])}, marks=pytest.mark.slow),
    ],
    ids=["hmc", "hmc with a metric", "barker", "random walk"],
)
def test_blackjax_tells_its_acceptance_and_gets_a_metric_if_it_wants_one(kernel, parameters):
    key, theta = jax.random.key(2), jnp.array([0.3, 0.2])
    metric = {"inverse_mass_matrix": jnp.ones(2)} if kernel is blackjax.hmc else {}
    algorithm = kernel(standard, **(metric | parameters))
    their_key = jax.random.split(jax.random.split(key)[1], 1)[0]
    after, info = jax.jit(lambda key, z: algorithm.step(key, algorithm.init(z)))(their_key, theta)
    step = epf.blackjax_sampler(kernel, **parameters).step
    found, told = jax.jit(lambda key, z: step(key, z, standard, Population(jnp.zeros(2), jnp.eye(2))))(key, theta)
    np.testing.assert_allclose(found, after.position, rtol=1e-6)
    np.testing.assert_allclose(told.acceptance, info.acceptance_rate, rtol=1e-6)


def test_a_kernel_of_ones_own_and_one_that_tells_no_acceptance():
    def elliptical(log_density):  # the population's Gaussian taken out of the density, as the prior that this one wants
        return blackjax.elliptical_slice(lambda w: log_density(w) - standard(w), mean=jnp.zeros(1), cov=jnp.eye(1))

    sampler = epf.blackjax_sampler(elliptical)
    assert sampler.name == "blackjax elliptical"
    assert epf.blackjax_sampler(partial(blackjax.mhmc, step_size=0.5), num_integration_steps=2).name == "blackjax mhmc"
    population = Population(jnp.array([2.0]), 0.5 * jnp.eye(1))
    target = lambda z: -0.5 * jnp.sum((z - 2.0) ** 2) / 0.2  # noqa: E731
    start = 2.0 + np.sqrt(0.2) * jax.random.normal(jax.random.key(3), (4000, 1))
    keys = jax.random.split(jax.random.key(4), 4000)
    moved, info = jax.jit(jax.vmap(lambda key, z: sampler.step(key, z, target, population)))(keys, start)
    assert float(info.acceptance.mean()) == 1.0  # a slice always moves
    # 4000 draws: the mean within 4 sd / sqrt(4000), the variance within 4 sqrt(2 / 4000) of itself
    assert abs(float(moved.mean()) - 2.0) < 4 * np.sqrt(0.2 / 4000)
    assert abs(float(moved.var()) / 0.2 - 1) < 4 * np.sqrt(2 / 4000)


def test_nan_where_a_step_of_blackjax_begins_is_counted():
    step = epf.blackjax_sampler(blackjax.normal_random_walk, sigma=1.0).step
    assert int(step(jax.random.key(0), jnp.zeros(1), lambda z: jnp.log(z[0] - 1.0))[1].num_bad) == 1
    assert int(step(jax.random.key(0), jnp.zeros(1), standard)[1].num_bad) == 0


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, r"^kernel: .*got the text 'nuts'\. Write it as epf", lambda: epf.blackjax_sampler("nuts")),
        (TypeError, r"^kernel: .*such as blackjax\.hmc, got 3", lambda: epf.blackjax_sampler(3)),
        (
            TypeError,
            r"^kernel: .*got one that has its own\. Leave out the call",
            lambda: epf.blackjax_sampler(blackjax.mala(standard, 0.7)),
        ),
        (
            ValueError,
            r"^kernel: blackjax\.mclmc cannot .*accepts every move",
            lambda: epf.blackjax_sampler(blackjax.mclmc),
        ),
        (
            ValueError,
            r"^kernel: blackjax\.mclmc cannot .*accepts every move",
            lambda: epf.blackjax_sampler(partial(partial(blackjax.mclmc, L=1.0), step_size=0.1)),
        ),
        (ValueError, r"^kernel: blackjax\.sgld cannot .*no Markov chain", lambda: epf.blackjax_sampler(blackjax.sgld)),
        (ValueError, r"^kernel: blackjax\.pathfinder cannot", lambda: epf.blackjax_sampler(blackjax.pathfinder)),
        (
            ValueError,
            r"^kernel: blackjax\.elliptical_slice cannot .*Gaussian prior times",
            lambda: epf.blackjax_sampler(blackjax.elliptical_slice, mean=jnp.zeros(1), cov=jnp.eye(1)),
        ),
        (
            TypeError,
            r"^blackjax_sampler: hmc needs step_size, num_integration_steps\. Its parameters are step_size, inverse_mass",
            lambda: epf.blackjax_sampler(blackjax.hmc),
        ),
        (
            TypeError,
            r"^blackjax_sampler: mala does not take stepsize\. Its parameters are step_size\.",
            lambda: epf.blackjax_sampler(blackjax.mala, stepsize=0.7),
        ),
        (
            ValueError,
            r"^sigma: expected positive",
            lambda: epf.blackjax_sampler(blackjax.normal_random_walk, sigma=np.nan),
        ),
        (ValueError, r"^step_size: .*got '0.5'", lambda: epf.blackjax_sampler(blackjax.mala, step_size="0.5")),
        (
            ValueError,
            r"^num_integration_steps: expected a positive whole number, got 0",
            lambda: epf.blackjax_sampler(blackjax.hmc, step_size=0.5, num_integration_steps=0),
        ),
        (
            TypeError,
            r"^blackjax_sampler: irmh needs proposal_logdensity_fn",
            lambda: epf.blackjax_sampler(blackjax.irmh, proposal_distribution=jax.random.normal),
        ),
        (
            ValueError,
            r"^blackjax_sampler: adjusted_mclmc has nowhere to turn with one parameter",
            lambda: epf.extended_parameter_filter(
                MODELS["scalar"](),
                8,
                sampler=epf.blackjax_sampler(blackjax.adjusted_mclmc, step_size=0.5, num_integration_steps=2),
            ),
        ),
        (
            ValueError,
            r"^num_steps: expected a positive",
            lambda: epf.blackjax_sampler(blackjax.mala, step_size=1.0, num_steps=0),
        ),
        (
            TypeError,
            r"^sampler: expected .* Wrap it: epf\.blackjax_sampler",
            lambda: epf.extended_parameter_filter(MODELS["scalar"](), 8, sampler=blackjax.nuts),
        ),
    ],
)
def test_what_blackjax_cannot_do_here_is_refused_by_name(error, message, call):
    with pytest.raises(error, match=message):
        call()
