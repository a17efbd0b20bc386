"""PMMH and particle Gibbs against exact posteriors; R-hat and ESS against chains whose answer is known."""

from functools import cache

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import numpyro.distributions as dist
import pytest
from conformance import MODELS, TRUTHS

mpl.use("Agg")

import epf_jax as epf
from epf_jax import exact
from epf_jax.core.random import stream
from epf_jax.offline.chains import chains_of
from epf_jax.offline.mixing import rhat_and_ess
from epf_jax.offline.particle_gibbs import PathState, _first_paths, gibbs_kernel, path_density_draw, theta_given_path
from epf_jax.particles.weights import Population
from epf_jax.running.run import DEFAULT_LEVELS

KEY = jax.random.key(0)
AR1, SIN = epf.models.ar1(), epf.models.sinusoid()
LENGTHS = {"num_draws": 1500, "num_warmup": 500}


@cache
def series(name):
    model, theta = {"ar1": (AR1, {"phi": 0.7}), "sin": (SIN, {"theta": 0.7})}[name]
    return epf.simulate(KEY, model, theta, 50)[1]


@cache
def exact_posterior(name):
    y = series(name)
    if name == "ar1":
        return exact.kalman(AR1, y, {"phi": np.linspace(-1.0, 2.0, 401)})
    return exact.quadrature(SIN, y, {"theta": np.linspace(-1.0, 1.5, 201)}, exact.nodes_around(y, 0.8, 25))


@cache
def pmmh_ar1():
    return epf.pmmh(jax.random.key(1), AR1, series("ar1"), num_particles=20, **LENGTHS)


@cache
def gibbs_ar1():
    return epf.particle_gibbs(jax.random.key(1), AR1, series("ar1"), num_particles=8, num_draws=800, num_warmup=100)


@cache
def gibbs_sin():
    return epf.particle_gibbs(jax.random.key(1), SIN, series("sin"), num_particles=8, num_draws=800, num_warmup=200)


def assert_posterior(chains, wanted):
    for name, ess in chains.ess.items():
        z = (chains.theta.mean[name][-1] - wanted.mean[name][-1]) / wanted.sd[name][-1]
        ratio = chains.theta.sd[name][-1] / wanted.sd[name][-1]
        # The mean of so many effective draws errs by 1 / sqrt(ESS) sd, their sd by 1 / sqrt(2 ESS); four of either (the
        # squares mix more slowly than the draws do, so twice that for the sd).
        assert abs(z) < 4.0 / np.sqrt(ess)
        assert abs(ratio - 1) < 8.0 / np.sqrt(2 * ess)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chains", "name"), [(pmmh_ar1, "ar1"), (gibbs_ar1, "ar1"), pytest.param(gibbs_sin, "sin", marks=pytest.mark.slow)]
)
def test_chains_have_the_exact_posterior(chains, name):
    assert_posterior(chains(), exact_posterior(name))


@pytest.mark.slow
def test_the_likelihoods_are_those_of_the_draws():
    chains = pmmh_ar1()
    phi, estimates = (np.ravel(part)[::300] for part in (chains.draws["phi"], chains.log_likelihood))
    wanted = jax.jit(jax.vmap(lambda phi: exact.kalman_log_evidence(AR1, {"phi": phi}, series("ar1"))[-1]))(phi)
    # With 20 fully adapted particles and T = 50 the estimates' own standard deviation is 0.3 (measured).
    np.testing.assert_allclose(estimates, wanted, atol=1.5)


@pytest.mark.slow
def test_gibbs_chains_choose_how_theta_is_drawn():
    assert "theta by the conjugate statistic" in gibbs_ar1().description
    np.testing.assert_array_equal(gibbs_ar1().acceptance, 1.0)
    assert theta_given_path(epf.models.cauchy_ar1(), None, None)[1] == "the scale_mixture statistic"
    assert theta_given_path(SIN, None, None)[1] == "slice_sampler on the path's density"
    assert theta_given_path(AR1, None, epf.random_walk())[1] == "random_walk on the path's density"


@pytest.mark.slow
@pytest.mark.parametrize("method", [epf.pmmh, epf.particle_gibbs])
def test_two_positive_parameters_agree_with_kalman(method):
    model = epf.models.local_level()
    _, y = epf.simulate(KEY, model, {"level_noise": 0.5, "observation_noise": 1.0}, 60)
    axes = {"level_noise": np.linspace(0.02, 2.5, 120), "observation_noise": np.linspace(0.3, 2.5, 110)}
    chains = method(jax.random.key(1), model, y, num_draws=3000)
    assert_posterior(chains, exact.kalman(model, y, axes))


@pytest.mark.slow
@pytest.mark.parametrize("option", ["scale_mixture", "random_walk"])
def test_heavy_tails_agree_with_quadrature(option):
    model = epf.models.cauchy_ar1(observation_noise=1.0, prior_sd=0.5)
    _, y = epf.simulate(KEY, model, {"a": 0.7}, 40)
    wanted = exact.quadrature(model, y, {"a": np.linspace(-1, 2, 201)}, exact.nodes_around(y, 7.0, 71))
    options = {} if option == "scale_mixture" else {"sampler": epf.random_walk(num_steps=10)}
    guide = epf.guided(lambda theta, x, y, u: dist.StudentT(2.0, 0.5 * (theta["a"] * x + y), 1.0))
    chains = epf.particle_gibbs(jax.random.key(1), model, y, proposal=guide, num_draws=2000, **options)
    assert option in chains.description
    assert_posterior(chains, wanted)


@pytest.mark.slow
def test_pmmh_takes_any_filter_of_the_library():
    def filter_of(known):
        return epf.bootstrap_filter(known, 100, resample=epf.when_ess_below(0.5, epf.stratified))

    chains = epf.pmmh(jax.random.key(1), AR1, series("ar1"), filter_of=filter_of, num_draws=3000)
    assert "proposal bootstrap, resampling stratified when the ESS is below 0.5 N" in chains.description
    assert_posterior(chains, exact_posterior("ar1"))


@pytest.mark.slow
def test_gibbs_steps_leave_the_joint_distribution_as_it_is():
    """Geweke (2004): theta, x and y drawn together, then theta and x redrawn given y: nothing changes."""
    num, T = 20_000, 4
    model = epf.StateSpaceModel(
        prior={"phi": dist.Normal(0.3, 0.5), "noise": dist.LogNormal(0.0, 0.3)},
        initial=lambda theta: dist.Normal(theta["phi"], 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, theta["noise"]),
        observation=lambda theta, x, u: dist.Normal(x, 0.8),
    )
    coordinates = model.parameters
    key_theta, key_data, key_step = jax.random.split(stream(KEY), 3)
    theta = coordinates.sample(key_theta, num)
    draw = jax.vmap(lambda key, theta: epf.simulate(key, model, theta, T))
    x, y = jax.jit(draw)(jax.random.split(key_data, num), theta)
    kernel = gibbs_kernel(model, path_density_draw(model, epf.random_walk(num_steps=3)), epf.bootstrap(), 3)
    prior = Population(coordinates.centre, jnp.diag(coordinates.scale))
    before = PathState(jax.vmap(coordinates.to_vector)(theta), x)
    step = jax.vmap(lambda key, state, y: kernel(key, state, prior, (y, jnp.arange(1, T + 1)))[0])
    after = jax.jit(step)(jax.random.split(key_step, num), before, y)
    assert np.mean(after.x != before.x) > 0.3

    def moments(state):
        parts = jnp.concatenate([state.z, state.x[:, ::2], y[:, ::2]], axis=1)
        products = parts[:, :, None] * parts[:, None, :]
        return np.asarray(jnp.concatenate([parts, products.reshape(num, -1)], axis=1), float)

    change = moments(after) - moments(before)
    error = np.std(change, axis=0) / np.sqrt(num)
    # 56 moments, most of them twice: 4.5 standard errors leave one failure in several thousand runs. Those of y alone
    # do not change.
    assert np.all(np.abs(np.mean(change, axis=0)) <= 4.5 * error)


# ----------------------------------------------------------------------------------------------------------- diagnostics


def made(draws, log_likelihood=None, acceptance=0.4, collapsed=0.0):
    """Chains of draws of one or more parameters a, with x_T zero."""
    shape = draws.shape[:2]
    likelihoods = np.zeros(shape) if log_likelihood is None else log_likelihood
    rest = {"num_steps": 10, "levels": (0.5,), "description": "test"}
    shares = (np.full(shape, acceptance), np.full(shape, collapsed))
    return chains_of({"a": draws}, np.zeros(shape), likelihoods, *shares, **rest)


def autoregressions(rho, num_draws=4000, num_chains=4):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(num_draws, num_chains)) * np.sqrt(1 - rho**2)
    x, rows = rng.normal(size=num_chains), []
    for e in noise:
        x = rho * x + e
        rows.append(x)
    return np.array(rows).T


def test_ess_of_an_autoregression_is_the_known_one():
    rhat, ess = rhat_and_ess(autoregressions(0.8))
    # 16000 (1 - rho) / (1 + rho) = 1778; the estimate's own error is some 10% here
    assert 1778 / 1.3 < ess < 1778 * 1.3
    assert rhat < 1.01


def test_rhat_sees_chains_that_differ_in_place_or_in_spread():
    draws = autoregressions(0.5)
    assert rhat_and_ess(draws + 0.5 * np.arange(4)[:, None])[0] > 1.1
    assert rhat_and_ess(draws * (1 + np.arange(4)[:, None]))[0] > 1.1
    heavy = np.tan(np.pi * np.random.default_rng(1).uniform(-0.5, 0.5, (4, 1000)))  # no variance, and none needed
    assert rhat_and_ess(heavy)[0] < 1.01


@pytest.mark.parametrize(
    ("draws", "acceptance", "message"),
    [
        (autoregressions(0.5) + np.arange(4)[:, None], 0.4, r"^The chains disagree: R-hat is 1\..*more num_draws"),
        (autoregressions(0.97, 1000)[:, :1000], 0.4, r"^The 4 x 1000 draws are worth|^The chains disagree"),
        (np.broadcast_to(np.arange(4.0)[:, None], (4, 100)), 0.0, r"R-hat is .*more num_particles.*down to 0\.0%"),
    ],
    ids=["apart", "slow", "stuck"],
)
def test_bad_chains_are_reported_with_remedies(draws, acceptance, message):
    with pytest.warns(RuntimeWarning, match=message):
        chains = made(draws, acceptance=acceptance)
    assert [(found.kind, found.where) for found in chains.diagnose()] == [("mixing", "a")]


@pytest.mark.filterwarnings("error")
def test_entries_that_nobody_learns_are_no_disagreement():
    draws = np.stack([autoregressions(0.0), np.ones((4, 4000))], axis=-1)  # the second is 1 in every draw
    chains = made(draws)
    assert chains.diagnose() == ()
    assert chains.ess["a"][0] > 4000


def test_chains_that_never_left_their_start_are_told_of():
    draws = autoregressions(0.5)
    likelihood = np.where(np.arange(4)[:, None] == 2, -np.inf, np.zeros(draws.shape))
    with pytest.warns(RuntimeWarning, match="draws that no particle could explain"):
        chains = made(draws, likelihood)
    assert [(found.kind, found.where) for found in chains.diagnose()] == [("zero weights", "chain 2")]


# ------------------------------------------------------------------------------------------------------ how they are used


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The chains disagree", "ignore:The 8 x 20 draws")
def test_chains_that_begin_on_a_path_that_explodes_are_not_lost():
    model = epf.StateSpaceModel(  # a logistic map: a path that leaves [0, 1] goes to minus infinity
        prior={"r": dist.Normal(3.9, 0.3)},
        initial=lambda theta: dist.Normal(0.5, 0.1),
        transition=lambda theta, x, u: dist.Normal(theta["r"] * x * (1 - x), 0.01),
        observation=lambda theta, x, u: dist.Normal(x, 0.05),
    )
    _, y = epf.simulate(jax.random.key(3), model, {"r": 3.6}, 100)
    chains = epf.particle_gibbs(KEY, model, y, num_particles=10, num_draws=20, num_warmup=10, num_chains=8)
    assert np.isfinite(y).all()
    assert np.isfinite(chains.draws["r"]).all()


@cache
def chains_ar1():
    """Four chains of draws, as PMMH hands them over after 50 observations of an AR(1)."""
    draws = 0.7 + 0.1 * autoregressions(0.5, 1500)
    shares = (np.full(draws.shape, 0.4), np.zeros(draws.shape))
    said = {"num_steps": 50, "levels": DEFAULT_LEVELS, "description": "PMMH"}
    return chains_of({"phi": draws}, draws - 0.7, np.zeros(draws.shape), *shares, **said)


def test_chains_have_the_last_posterior_in_one_row():
    chains = chains_ar1()
    printed = repr(chains)
    assert printed.startswith("<PMMH")
    assert "4 chains x 1500 draws" in printed
    assert f"{np.mean(chains.draws['phi']):.4g}" in printed
    assert chains.draws["phi"].shape == chains.log_likelihood.shape == (4, 1500)
    assert chains.acceptance.shape == chains.num_collapsed.shape == (4,)
    # float32 sums of 6000 numbers of order one, in some order: 1e-5 is a hundred roundings
    np.testing.assert_allclose(chains.theta.mean["phi"], [np.mean(chains.draws["phi"])], rtol=1e-5)
    np.testing.assert_allclose(chains.theta.sd["phi"], [np.std(chains.draws["phi"])], rtol=1e-4)
    assert chains.theta.quantiles["phi"].shape == (1, 5)
    between = np.quantile(chains.draws["phi"], np.asarray(chains.levels)[:, None] + [-1e-3, 1e-3])
    found, rounding = chains.theta.quantiles["phi"][0], 2**-22  # of numbers below one, twice
    assert np.all((between[:, 0] - rounding <= found) & (found <= between[:, 1] + rounding))
    assert chains.to_pandas(states=True)[["t", "parameter"]].values.tolist() == [[50, "phi"], [50, "x"]]
    assert chains.diagnose() == ()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The chains disagree", "ignore:The 2 x 20 draws")
@pytest.mark.parametrize("method", [epf.pmmh, pytest.param(epf.particle_gibbs, marks=pytest.mark.slow)])
def test_the_last_state_is_drawn_with_its_theta(method):
    """Of a state that is theta but for a thousandth, a state of another draw would be seen at once."""
    model = epf.StateSpaceModel(
        prior={"theta": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(theta["theta"], 1e-3),
        transition=lambda theta, x, u: dist.Normal(theta["theta"], 1e-3),
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
    )
    sizes = {"num_particles": 5, "num_draws": 20, "num_warmup": 10, "num_chains": 2}
    chains = method(KEY, model, epf.from_table({"y": [0.3, -0.2]}, "y"), **sizes)
    theta, x = (np.asarray(part) for part in (chains.final.theta["theta"], chains.final.x))
    assert np.ptp(theta) > 0.1
    np.testing.assert_allclose(x, theta, atol=0.006)  # six standard deviations
    np.testing.assert_array_equal(theta, chains.draws["theta"].ravel())
    if method is epf.pmmh:  # what else is done with such results: once is enough
        assert np.all(np.isfinite(epf.forecast(KEY, model, chains.final, 2).y.mean))
        jax.jit(lambda results: chains.theta.mean)(chains)
        with pytest.raises(ValueError, match=r"^state: these are the draws of Markov chains"):
            epf.run(KEY, epf.liu_west_filter(model, 40), jnp.zeros(2), state=chains.final)
        with pytest.raises(ValueError, match=r"^state: these are the draws of Markov chains"):
            epf.liu_west_filter(model, 40).step(KEY, chains.final, 0.0)
        with pytest.raises(TypeError, match=r"^state: expected .* got Chains\. Give chains\.final"):
            epf.forecast(KEY, model, chains, 2)
        with pytest.raises(
            TypeError, match=r"^chains: expected what epf\.pmmh or epf\.particle_gibbs gave back, got dict"
        ):
            epf.plots.plot_chains(chains.draws)


def test_chains_are_drawn_beside_the_exact_density():
    exactly = exact.kalman(AR1, np.zeros(9), {"phi": np.linspace(-3.0, 3.0, 101)})
    figure = chains_ar1().plot(exact=exactly, truth={"phi": 0.7})
    trace, density = figure.axes
    assert trace.get_ylabel() == "phi"
    assert len(trace.lines) == 5  # four chains, and the truth
    assert [text.get_text() for text in density.get_legend().get_texts()] == ["exact"]
    with pytest.raises(ValueError, match=r"^truth: expected the prior's structure"):
        chains_ar1().plot(truth={"psi": 0.7})
    with pytest.raises(TypeError, match=r"^results: expected what epf\.run .* got Chains\. .* chains\.plot\(\)"):
        epf.plots.plot_theta(chains_ar1())
    assert len(epf.plots.plot_pairs(chains_ar1()).axes) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The chains disagree", "ignore:The 2 x 10 draws")
@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("method", [epf.pmmh, epf.particle_gibbs])
def test_chains_take_every_kind_of_theta_in_both_precisions(method, model_name, precision):
    model = MODELS[model_name]()
    _, y = epf.simulate(KEY, model, TRUTHS[model_name], 6)
    y = y.at[1].set(jnp.nan)
    chains = method(KEY, model, y, num_particles=5, num_draws=10, num_warmup=5, num_chains=2)
    assert jax.tree.structure(chains.theta.mean) == jax.tree.structure(model.shapes.theta)
    drawn = jax.tree.leaves((chains.draws, chains.log_likelihood, chains.theta, chains.x))
    assert all(leaf.dtype == precision for leaf in drawn)
    assert all(np.all(np.isfinite(leaf)) for leaf in drawn)


@cache
def counts():
    return epf.StateSpaceModel(
        prior={"scale": dist.LogNormal(1.0, 0.3)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.5 * x, 0.5),
        observation=lambda theta, x, u: dist.Poisson(theta["scale"] * jnp.exp(x)),
    )


@pytest.mark.slow
def test_gibbs_chains_begin_with_paths_of_any_model():
    draw = _first_paths(counts(), epf.bootstrap(), 5)
    paths = draw(stream(KEY), jnp.zeros((2, 1)), jnp.zeros(3), jnp.arange(1, 4))
    assert paths.shape == (2, 4)
    assert np.all(np.isfinite(paths))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The chains disagree", "ignore:The 2 x 10 draws")
@pytest.mark.parametrize("method", [epf.pmmh, epf.particle_gibbs])
def test_chains_take_counts(method):
    model = counts()
    _, y = epf.simulate(KEY, model, {"scale": 3.0}, 6)
    chains = method(KEY, model, y, num_particles=5, num_draws=10, num_warmup=5, num_chains=2)
    assert np.all(np.isfinite(chains.theta.mean["scale"]))


@pytest.mark.slow
def test_observations_that_the_model_rules_out_are_reported():
    draws = autoregressions(0.5)
    with pytest.warns(RuntimeWarning, match=r"^Every particle had zero weight.*up to 100% of a chain's draws"):
        made(draws, draws, acceptance=1.0, collapsed=1.0)


@pytest.mark.slow
def test_a_progress_bar_changes_no_number(capsys):
    again = epf.particle_gibbs(
        jax.random.key(1), AR1, series("ar1"), num_particles=8, num_draws=800, num_warmup=100, progress=True
    )
    np.testing.assert_array_equal(again.draws["phi"], gibbs_ar1().draws["phi"])
    assert "sampling" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (r"^num_chains: expected a whole number of at least 2, got 1\. R-hat compares", {"num_chains": 1}),
        (r"^num_draws: expected a whole number of at least 4, got 0", {"num_draws": 0}),
        (r"^num_warmup: expected a positive whole number, got 0", {"num_warmup": 0}),
        (r"^y: expected shape \(T,\)", {"y": jnp.zeros((3, 2))}),
        (r"^y: the series is empty", {"y": jnp.zeros(0)}),
        (r"^inputs: expected one row per observation, 50 rows", {"inputs": jnp.zeros(3)}),
        (r"^levels: expected quantile levels strictly between", {"levels": (0.5, 1.0)}),
    ],
)
@pytest.mark.parametrize("method", [epf.pmmh, epf.particle_gibbs])
def test_wrong_arguments_are_refused_by_name(method, message, call):
    given = {"y": np.zeros(50)} | call
    with pytest.raises(ValueError, match=message):
        method(KEY, AR1, **given)


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (TypeError, r"^model: expected an epf\.StateSpaceModel", lambda y: epf.pmmh(KEY, None, y)),
        (TypeError, r"^key: expected a key", lambda y: epf.pmmh(0, AR1, y)),
        (TypeError, r"^progress: expected True or False", lambda y: epf.particle_gibbs(KEY, AR1, y, progress="no")),
        (ValueError, r"^num_particles: expected a positive", lambda y: epf.pmmh(KEY, AR1, y, num_particles=0)),
        (TypeError, r"^filter_of: expected a function", lambda y: epf.pmmh(KEY, AR1, y, filter_of=3)),
        (
            ValueError,
            "^proposal: filter_of builds a filter with a proposal of its own",
            lambda y: epf.pmmh(
                KEY, AR1, y, proposal=epf.bootstrap(), filter_of=lambda known: epf.bootstrap_filter(known, 10)
            ),
        ),
        (
            ValueError,
            r"^filter_of: it returned a filter of another model",
            lambda y: epf.pmmh(KEY, AR1, y, filter_of=lambda known: epf.bootstrap_filter(AR1, 10)),
        ),
        (
            ValueError,
            r"^num_particles: expected .* least 2",
            lambda y: epf.particle_gibbs(KEY, AR1, y, num_particles=1),
        ),
        (TypeError, r"^statistic: expected", lambda y: epf.particle_gibbs(KEY, AR1, y, statistic=epf.conjugate)),
        (
            ValueError,
            r"^statistic: the frozen statistic",
            lambda y: epf.particle_gibbs(KEY, AR1, y, statistic=epf.frozen(AR1)),
        ),
        (
            ValueError,
            r"^statistic: the box of chebyshev on 20 nodes follows a filter's particles",
            lambda y: epf.particle_gibbs(KEY, AR1, y, statistic=epf.chebyshev(AR1)),
        ),
        (TypeError, r"^sampler: expected", lambda y: epf.particle_gibbs(KEY, AR1, y, sampler="slice")),
        (TypeError, r"^proposal: expected", lambda y: epf.particle_gibbs(KEY, AR1, y, proposal=epf.bootstrap)),
    ],
)
def test_wrong_parts_are_refused_by_name(kind, message, call):
    with pytest.raises(kind, match=message):
        call(np.zeros(50))


def test_a_few_draws_are_never_worth_many():
    draws = np.random.default_rng(0).normal(size=(500, 2, 4))  # of as many parameters, two chains of four draws
    _, ess = rhat_and_ess(np.moveaxis(draws, 0, -1))
    assert np.all(ess <= 8 * np.log10(8) + 1e-9)
    by_turns = np.zeros((2, 400))
    noise = np.random.default_rng(0).normal(size=(2, 400))
    for t in range(1, 400):
        by_turns[:, t] = -0.97 * by_turns[:, t - 1] + noise[:, t]
    np.testing.assert_allclose(rhat_and_ess(by_turns)[1], 800 * np.log10(800))  # numpyro's is negative
