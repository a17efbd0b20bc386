"""`learn` gives the exact posterior with an honest error, whatever the model, and ends in words where it cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax.learning import routes
from epf_jax.running import exploration, likelihoods
from epf_jax.running.clock import Clock

KEY = jax.random.key(0)
Normal = dist.Normal


def walk_seen(prior, observation, step=lambda theta: 1.0):
    return epf.StateSpaceModel(
        prior=prior,
        initial=lambda theta: Normal(0.0, 1.0),
        transition=lambda theta, x, u: Normal(x, step(theta)),
        observation=observation,
    )


SCALES = {"q": dist.LogNormal(0.0, 1.0), "r": dist.LogNormal(0.0, 1.0)}
LEVEL = walk_seen(SCALES, lambda theta, x, u: Normal(x, theta["r"]), lambda theta: theta["q"])
_, Y = epf.simulate(jax.random.key(3), LEVEL, {"q": 0.7, "r": 1.0}, 40)
Y = np.asarray(Y)


@pytest.fixture(scope="module")
def learned():
    return epf.learn(KEY, LEVEL, Y)


@pytest.fixture(scope="module")
def exact():
    """Moments of q and r and the evidence on a fine grid, where every theta has Kalman's exact likelihood."""
    axes = {name: np.exp(np.linspace(-4.5, 2.2, 90)) for name in SCALES}
    return epf.exact.kalman(LEVEL, Y, axes)


def test_means_are_as_near_to_the_exact_ones_as_their_errors_say(learned, exact):
    assert learned.trusted
    for name in SCALES:
        mean, sd = float(exact.mean[name][-1]), float(exact.sd[name][-1])
        z = abs(float(learned.theta.mean[name]) - mean) / sd
        assert z < 4 * float(learned.error[name])  # four standard errors
        assert abs(float(learned.theta.sd[name]) / sd - 1) < 4 * float(learned.sd_error[name])


def test_the_table_shows_every_parameter_the_evidence_and_the_verdict(learned):
    text = repr(learned)
    assert "mean" in text.splitlines()[0]
    for word in ("q  ", "r  ", "log-evidence", "Trusted", "Kalman"):
        assert word in text


def test_particle_likelihoods_give_the_posterior_of_quadrature():
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(1), model, {"theta": 0.7}, 30)
    learned = epf.learn(KEY, model, y)
    nodes = epf.exact.nodes_around(y, half_width=0.8, num_nodes=25)
    exact = epf.exact.quadrature(model, y, {"theta": jnp.linspace(-1.2, 1.4, 105)}, nodes)
    z = abs(float(learned.theta.mean["theta"]) - float(exact.mean["theta"][-1])) / float(exact.sd["theta"][-1])
    assert learned.trusted
    assert z < 4 * float(learned.error["theta"])
    assert abs(learned.log_evidence - float(exact.log_evidence[-1])) < 4 * learned.log_evidence_error
    assert learned.draws.x.shape[0] == len(learned.draws.log_weights)


def test_an_update_is_the_answer_for_the_whole_series(learned):
    begun = epf.learn(KEY, LEVEL, Y[:25])
    updated = begun.update(jax.random.key(5), Y[25:])
    assert abs(updated.log_evidence - learned.log_evidence) < 4 * np.hypot(
        updated.log_evidence_error, learned.log_evidence_error
    )
    assert len(updated.y) == len(Y)


def test_other_series_and_more_draws_compile_nothing(learned):
    with jax.log_compiles(False):
        inner = routes.inner_of(LEVEL, routes.routes_of(LEVEL)[0], 0)
        program = likelihoods._program(inner)
        before = program._cache_size()
        epf.learn(jax.random.key(7), LEVEL, Y[:33] + 1.0)
    assert before == program._cache_size() == 1


def test_hopelessly_noisy_likelihoods_end_the_exploration_soon():
    looks = []

    def evaluate(rng, z, num_steps):
        looks.append(num_steps)
        return likelihoods.Evaluated(z, z, np.zeros(len(z)), rng.normal(0.0, 1e4, len(z)), np.zeros(len(z)))

    noisy = likelihoods.Likelihoods(evaluate, 256, 64, "of chance")
    found = exploration.explore(np.random.default_rng(0), LEVEL, noisy, 500, Clock(60.0))
    assert found.noise > exploration.MOST_NOISE
    assert found.power < 1.0
    assert len(looks) < 30


def test_a_panel_is_learned_series_by_series_with_one_program(learned):
    panel = epf.panel({"a": Y, "bee": Y[:33]})
    program = likelihoods._program(routes.inner_of(LEVEL, routes.routes_of(LEVEL)[0], 0))
    before = program._cache_size()
    both = epf.learn(KEY, LEVEL, panel)
    assert program._cache_size() == before
    assert abs(both["a"].log_evidence - learned.log_evidence) < 4 * np.hypot(
        both["a"].log_evidence_error, learned.log_evidence_error
    )
    assert len(both["bee"].y) == 33
    assert [line.split()[:2] for line in repr(both).splitlines()[1:]] == [[s, p] for s in both for p in SCALES]
    assert list(both.to_pandas().index) == [(series, name) for series in ("a", "bee") for name in SCALES]


def test_a_series_without_a_value_leaves_the_prior():
    with pytest.warns(RuntimeWarning, match="every value is missing"):
        learned = epf.learn(KEY, LEVEL, np.full(20, np.nan))
    assert abs(learned.log_evidence) < 4 * learned.log_evidence_error
    median = learned.theta.quantiles["q"][2]
    assert abs(np.log(median)) < 0.2  # of LogNormal(0, 1): about four standard errors at 800 draws


def test_what_is_not_identified_keeps_its_prior():
    prior = {"a": Normal(0.0, 1.0), "b": Normal(0.0, 1.0)}
    model = walk_seen(prior, lambda theta, x, u: Normal(x + theta["a"] + theta["b"], 1.0))
    learned = epf.learn(KEY, model, Y)
    weights = np.exp(learned.draws.log_weights)
    apart = np.asarray(learned.draws.theta["a"] - learned.draws.theta["b"])
    assert learned.trusted
    assert abs(weights @ apart) < 4 * 0.06 * np.sqrt(2.0)  # four of the errors that are good enough
    assert abs(weights @ apart**2 / 2.0 - 1.0) < 4 * 2 * 0.06


def test_fewer_observations_than_parameters_are_enough():
    learned = epf.learn(KEY, LEVEL, Y[:1])
    axes = {name: np.exp(np.linspace(-4.5, 4.5, 90)) for name in SCALES}
    exact = epf.exact.kalman(LEVEL, Y[:1], axes)
    assert learned.trusted
    for name in SCALES:
        z = abs(float(learned.theta.mean[name]) - float(exact.mean[name][-1])) / float(exact.sd[name][-1])
        assert z < 4 * float(learned.error[name])


def test_a_constant_series_does_not_collapse_the_fit():
    learned = epf.learn(KEY, LEVEL, np.ones(20))
    # Both scales go to zero as far as the prior lets them: log q is near -n/2, n the 19 steps that say so.
    assert float(learned.theta.mean["q"]) < 1e-2
    assert float(learned.theta.sd["q"]) > 0.1 * float(learned.theta.mean["q"])


@pytest.mark.slow
def test_two_modes_are_found_and_told():
    model = walk_seen({"a": Normal(0.0, 3.0)}, lambda theta, x, u: Normal(0.3 * theta["a"] ** 2, 1.0))
    learned = epf.learn(KEY, model, 1.2 + np.random.default_rng(0).standard_normal(40))
    assert "2 modes" in repr(learned)
    below = np.exp(learned.draws.log_weights) @ (np.asarray(learned.draws.theta["a"]) < 0)
    assert 0.35 < below < 0.65  # one half, by symmetry


def test_an_outlier_costs_steps_and_not_the_answer():
    y = np.where(np.arange(len(Y)) == 20, 200.0, Y)
    learned = epf.learn(KEY, LEVEL, y)
    assert learned.trusted
    assert float(learned.theta.mean["r"]) > 20.0


@pytest.mark.slow
def test_inputs_come_with_the_series_and_need_no_example():
    model = epf.StateSpaceModel(
        prior={"b": Normal(0.0, 1.0)},
        initial=lambda theta: Normal(0.0, 1.0),
        transition=lambda theta, x, u: Normal(0.5 * x, 0.3),
        observation=lambda theta, x, u: Normal(x + theta["b"] * u["z"], 0.2),
    )
    z = np.random.default_rng(0).standard_normal(30)
    learned = epf.learn(KEY, model, 0.8 * z, inputs={"z": z})
    assert abs(float(learned.theta.mean["b"]) - 0.8) < 0.1
    assert learned.forecast(KEY, 2, inputs={"z": np.zeros(2)}).y.mean.shape == (2,)


@pytest.mark.parametrize("is_when", [lambda looks: len(looks) > 1, lambda looks: looks.count(True) > 1])
def test_ctrl_c_returns_how_far_it_came(monkeypatch, is_when):
    looks, look = [], exploration._look  # of each, whether it was the first of a start

    def interrupted(rng, model, likelihood, before, *given):
        looks.append(before is None)
        if is_when(looks):
            raise KeyboardInterrupt
        return look(rng, model, likelihood, before, *given)

    monkeypatch.setattr(exploration, "_look", interrupted)
    learned = epf.learn(KEY, LEVEL, Y)
    assert not learned.trusted
    assert "Stopped early" in repr(learned)
    assert np.isinf(learned.error["q"])


def test_no_time_is_told_and_loses_nothing():
    learned = epf.learn(KEY, LEVEL, Y, seconds=1e-6)
    assert np.isfinite(learned.theta.mean["q"])
    assert learned.trusted or "not good enough" in repr(learned)


def test_an_answer_goes_on_from_a_file_as_it_would_have(learned, tmp_path):
    path = tmp_path / "answer.epf"
    epf.save(path, learned)
    loaded = epf.load(path, LEVEL)
    assert repr(loaded) == repr(learned)
    np.testing.assert_allclose(loaded.forecast(KEY, 3).y.mean, learned.forecast(KEY, 3).y.mean, rtol=1e-4)
    np.testing.assert_allclose(loaded.explored.mixture.centres, learned.explored.mixture.centres, rtol=1e-4)
    assert loaded.learn_on is learned.learn_on
    with pytest.raises(epf.CheckpointError, match="another filter"):
        epf.load(path, epf.models.ar1())
    with pytest.raises(TypeError, match=r"^filter_: an answer of epf\.learn"):
        epf.save(path, learned, learned.filter_)


@pytest.mark.slow
def test_what_goes_on_from_an_answer(learned):
    assert learned.forecast(KEY, 3).y.mean.shape == (3,)
    assert learned.smooth(KEY, num_paths=8).x.mean.shape == (40,)
    assert list(learned.to_pandas().index) == ["q", "r"]
    assert learned.to_arviz().posterior["q"].shape[0] == 1
    figure = learned.plot(truth={"q": 0.7, "r": 1.0})
    assert len(figure.axes) == 2


@pytest.mark.slow
def test_a_stream_is_judged_by_the_certificate(learned):
    model = epf.models.ar1()
    _, y = epf.simulate(jax.random.key(1), model, {"phi": 0.8}, 30)
    online = epf.learn(KEY, model, y, streaming=True)
    certified = epf.learn(KEY, model, y)
    distance = abs(float(online.theta.mean["phi"]) - float(certified.theta.mean["phi"]))
    assert distance < 4 * float(online.error["phi"]) * float(certified.theta.sd["phi"])
    state, _ = online.filter_.step(KEY, online.state, 0.1)
    assert int(state.t) == 31
    assert online.filter_.max_steps is None  # it remembers no series


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seconds": -1}, ValueError, r"^seconds: expected a number above zero, got -1\. Give"),
        ({"y": []}, ValueError, "^y: "),
        ({"model": Y}, TypeError, "^model: expected an epf.StateSpaceModel"),
        ({"streaming": 1}, TypeError, "^streaming: "),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments, error, message):
    given = {"model": LEVEL, "y": Y, **arguments}
    with pytest.raises(error, match=message):
        epf.learn(KEY, given.pop("model"), given.pop("y"), **given)


def test_heavy_tails_in_gaussian_noise_get_the_defensive_proposal():
    assert routes.default_proposal(epf.models.cauchy_ar1()).name == "defensive"
    assert routes.default_proposal(epf.models.sinusoid()).name == "fully adapted"
    assert [route.exact for route in routes.routes_of(LEVEL)] == [True]


def test_states_that_are_whole_numbers_have_a_route():
    regimes = epf.StateSpaceModel(
        prior={"stay": dist.Beta(8.0, 2.0)},
        initial=lambda theta: dist.Bernoulli(0.5),
        transition=lambda theta, x, u: dist.Bernoulli(jnp.where(x > 0, theta["stay"], 1.0 - theta["stay"])),
        observation=lambda theta, x, u: Normal(3.0 * x, 1.0),
    )
    assert [route.exact for route in routes.routes_of(regimes)] == [False]
    assert routes.default_proposal(regimes).name == "bootstrap"


@pytest.mark.parametrize(("dim", "num_routes"), [(2, 2), (4, 1)])
def test_laplace_is_a_route_where_the_state_has_few_components(dim, num_routes):
    model = epf.StateSpaceModel(
        prior={"q": dist.LogNormal(0.0, 1.0)},
        initial=lambda theta: Normal(jnp.zeros(dim), 1.0).to_event(1),
        transition=lambda theta, x, u: Normal(x, theta["q"]).to_event(1),
        observation=lambda theta, x, u: dist.Poisson(jnp.exp(x[0])),
    )
    assert len(routes.routes_of(model)) == num_routes
