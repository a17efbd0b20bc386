"""Filters of models that read inputs: their parts are chosen at the first row, wherever it is given."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from conformance import FILTERS

import epf_jax as epf
from epf_jax.filters.groups import in_groups
from epf_jax.models.waiting import built_for
from epf_jax.running.sweep_series import sweep_series

KEY = jax.random.key(0)
U = {"heat": np.linspace(-1.0, 1.0, 6, dtype=np.float32), "gain": np.full(6, 0.5, np.float32)}
ROW = {name: values[0] for name, values in U.items()}
Y = np.array([0.1, -0.4, 0.3, 0.8, 0.2, 1.1], np.float32)


def heated(noise=1.0):
    """Linear and Gaussian in x and theta, for which every filter is made; its inputs are a dict."""
    return epf.StateSpaceModel(
        prior={"phi": dist.Normal(0.0, 0.5), "offset": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x + u["heat"], noise),
        observation=lambda theta, x, u: dist.Normal(x * u["gain"] + theta["offset"], 0.5),
    )


BLIND = heated()
SEEN = heated().for_inputs(ROW)
WAITING, BUILT = (epf.storvik_filter(model, 16) for model in (BLIND, SEEN))


@pytest.mark.parametrize("name", [name for name in FILTERS if name != "bootstrap_known_theta"])
def test_a_filter_that_waits_chooses_what_it_would_have_chosen(name):
    waiting = FILTERS[name](BLIND, 8)
    assert "waits for the first row of inputs" in repr(waiting)
    assert repr(built_for(waiting, U)) == repr(FILTERS[name](SEEN, 8))
    assert built_for(waiting, U) is built_for(waiting, ROW, 0)  # compiled once


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(a), jax.tree.leaves(b))


def test_a_filter_that_waits_gives_the_same_numbers():
    known = epf.run(KEY, BUILT, Y, inputs=U)
    found = epf.run(KEY, WAITING, Y, inputs=U)
    equal(found, known)
    key_init, key_steps = jax.random.split(KEY)
    state = WAITING.init(key_init)
    assert repr(state) == "<FilterState of a filter that waits for the first row of inputs>"
    first = jax.random.fold_in(key_steps, 1)
    equal(WAITING.step(first, state, Y[0], ROW), BUILT.step(first, BUILT.init(key_init), Y[0], ROW))
    gone_on = epf.run(KEY, WAITING, Y, inputs=U, state=WAITING.init(key_init))
    equal(gone_on.final, known.final)


@pytest.mark.slow
def test_a_batch_of_filters_that_wait_gives_the_same_numbers():
    keys = jax.random.split(KEY, 2)
    known = epf.replicate(keys, BUILT, Y, inputs=U)
    equal(epf.replicate(keys, WAITING, Y, inputs=U), known)
    both = {name: np.stack([values, values]) for name, values in U.items()}
    per_series = epf.replicate(keys, WAITING, np.stack([Y, Y]), inputs=both, inputs_per_series=True)
    equal(per_series.log_evidence, known.log_evidence)
    of_hyper = epf.replicate(keys, _of_noise, Y, hyper=jnp.ones(2), inputs=U)
    np.testing.assert_allclose(of_hyper.log_evidence, known.log_evidence, rtol=1e-5)


def _of_noise(noise):
    model = heated(noise)
    return epf.storvik_filter(model, 16, statistic=epf.conjugate(model))


def test_inputs_that_are_traced_are_asked_for_beforehand():
    waiting = epf.storvik_filter(heated(), 16)
    with pytest.raises(ValueError, match=r"^inputs: they are traced.*model\.for_inputs\(inputs\[0\]\), outside of jit"):
        jax.eval_shape(lambda u: epf.run(KEY, waiting, Y, inputs=u), U)


def test_a_filter_that_waits_says_so_of_its_parts():
    statistic = epf.taylor(BLIND, order=2)
    assert repr(statistic) == "<taylor(model, order=2), which waits for the first row of inputs>"
    with pytest.raises(AttributeError, match=r"waits for.*has no 'init' yet.*model\.for_inputs\(inputs\[0\]\)"):
        _ = statistic.init
    other = epf.extended_parameter_filter(BLIND, 8, statistic=epf.taylor(heated(), order=2))
    with pytest.raises(ValueError, match=r"^statistic: it was built for another model"):
        epf.run(KEY, other, Y, inputs=U)
    with pytest.raises(KeyError, match=r"'gain'(?s:.*)If the model reads inputs, give them"):
        epf.run(KEY, WAITING, Y, inputs={"heat": U["heat"]})
    with pytest.raises((TypeError, IndexError), match=r"(?s:.*)If the model reads inputs, give them"):
        epf.run(KEY, WAITING, Y)


def test_a_forecast_goes_on_from_a_filter_that_waits():
    final = epf.run(KEY, WAITING, Y, inputs=U).final
    equal(epf.forecast(KEY, WAITING, final, 6, inputs=U), epf.forecast(KEY, BUILT, final, 6, inputs=U))


@pytest.mark.slow
def test_groups_of_a_filter_that_waits_wait_too():
    waiting, built = (in_groups(filter_, 2) for filter_ in (WAITING, BUILT))
    equal(epf.run(KEY, waiting, Y, inputs=U).final, epf.run(KEY, built, Y, inputs=U).final)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The chains disagree")  # twenty draws
@pytest.mark.parametrize("chain", [epf.pmmh, epf.particle_gibbs])
def test_chains_choose_their_parts_when_they_see_the_inputs(chain):
    options = {"inputs": U, "num_draws": 20, "num_warmup": 10, "num_chains": 2, "num_particles": 8}
    given = {"proposal": epf.fully_adapted(BLIND)}
    found, known = chain(KEY, BLIND, Y, **options, **given), chain(KEY, SEEN, Y, **options)
    equal(found.theta.mean, known.theta.mean)


@pytest.mark.slow
def test_smoothing_and_fitting_choose_their_parts_when_they_see_the_inputs():
    final = epf.run(KEY, WAITING, Y, inputs=U).final
    equal(epf.smooth(KEY, WAITING, final, Y, inputs=U).x, epf.smooth(KEY, BUILT, final, Y, inputs=U).x)
    options = {"inputs": U, "num_steps": 3, "num_particles": 8, "optimizer": optax.sgd(0.01)}
    fitted = epf.fit(heated, 1.0, Y, **options)
    known = epf.fit(lambda noise: heated(noise).for_inputs(ROW), 1.0, Y, **options)
    equal(fitted.log_evidence, known.log_evidence)


@pytest.mark.slow
def test_learning_and_sweeping_choose_their_parts_when_they_see_the_inputs(tmp_path):
    learned = epf.learn(KEY, BLIND, Y, inputs=U)
    known = epf.learn(KEY, SEEN, Y, inputs=U)
    assert learned.method == known.method
    equal(learned.theta.mean, known.theta.mean)
    series = epf.panel({"a": {"y": Y, **U}}, "y", inputs=list(U))
    assert len(sweep_series({"heated": BLIND}, series, folder=tmp_path).parameters) == 2


def test_whole_numbers_in_a_dict_are_no_time_index():
    model = epf.StateSpaceModel(
        prior={"shift": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.5 * x + theta["shift"] * u["regime"], 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )
    rows = {"regime": np.array([0, 1, 1, 0, 1, 0], np.int32)}
    known = epf.run(KEY, epf.storvik_filter(model.for_inputs({"regime": np.int32(0)}), 16), Y, inputs=rows)
    equal(epf.run(KEY, epf.storvik_filter(model, 16), Y, inputs=rows), known)


def test_the_score_has_a_derivative_in_inputs_that_are_one_number():
    model = epf.StateSpaceModel(
        prior={"phi": dist.Normal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x + u, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )
    filter_ = epf.storvik_filter(model, 16)
    slope = jax.grad(lambda rows: epf.run(KEY, filter_, Y, inputs=rows, levels=()).log_evidence[-1])(jnp.zeros(6))
    assert np.all(np.isfinite(slope))
    assert np.any(slope != 0.0)


def test_an_answer_of_a_model_with_inputs_is_loaded_by_the_model_itself(tmp_path):
    learned = epf.learn(KEY, BLIND, Y, inputs=U, seconds=5.0)
    epf.save(tmp_path / "answer.epf", learned)
    assert repr(epf.load(tmp_path / "answer.epf", heated())) == repr(learned)


def test_a_filter_that_waits_cannot_save_what_it_does_not_know(tmp_path):
    state = epf.run(KEY, WAITING, Y, inputs=U).final
    with pytest.raises(ValueError, match=r"for_inputs"):
        epf.save(tmp_path / "state.epf", state, WAITING)
