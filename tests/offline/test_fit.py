"""epf.fit: hyper-parameters by gradient ascent of the log-evidence."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

mpl.use("Agg")

import epf_jax as epf
from epf_jax import exact

KEY = jax.random.key(0)
POSITIVE = dist.constraints.positive
START = {"noise": 2.5}


def walk(hyper):
    """A linear-Gaussian AR(1) whose noise is the hyper-parameter; nothing is left for the filter to learn."""
    return epf.StateSpaceModel(
        prior={},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.8 * x, hyper["noise"]),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )


def renamed(hyper):
    return {"noise": hyper["nose"]}


@cache
def series():
    return epf.simulate(KEY, walk({"noise": 1.0}), {}, 60)[1]


def fitted_walk(**changes):
    options = {"num_particles": 50, "num_steps": 30, "patience": 10, "support": POSITIVE} | changes
    return epf.fit(walk, START, series(), **options)


@cache
def walk_fit():
    return fitted_walk(num_particles=500, num_steps=120, patience=40, optimizer=optax.adam(0.1, b2=0.9))


@pytest.mark.slow
def test_the_estimate_is_kalmans_maximum_on_a_linear_model():
    y, grid = np.asarray(series()), np.linspace(0.6, 1.8, 241)
    with jax.enable_x64(True):
        at = jax.jit(jax.vmap(lambda noise: exact.kalman_log_evidence(walk({"noise": noise}), {}, y.astype(float))[-1]))
        log_evidence = np.asarray(at(jnp.asarray(grid)))
    best = grid[np.argmax(log_evidence)]
    found = walk_fit()
    # The steps spread by 5% about the maximum; the mean of 40 of them, correlated over about ten, by 5% / sqrt(4) = 2.4%.
    # The data themselves leave it open by 13%: half a log-evidence is lost there.
    assert abs(float(found.hyper["noise"]) / best - 1.0) < 0.06
    # The last run is that of the estimate: its log-evidence is the maximum, with the filter's own sd of 0.5.
    assert abs(float(found.results.log_evidence[-1]) - log_evidence.max()) < 1.5


@pytest.mark.slow
def test_the_ascent_climbs_and_tells_where_it_was():
    found = walk_fit()
    assert found.trace["noise"].shape == found.log_evidence.shape
    assert found.trace["noise"][0] == pytest.approx(START["noise"])
    assert found.log_evidence[-20:].mean() > found.log_evidence[0] + 5.0
    assert found.num_lost == 0


@pytest.mark.slow
def test_a_support_keeps_scales_positive_however_long_the_steps():
    found = fitted_walk(optimizer=optax.sgd(0.3), num_steps=6, batch=2)
    assert np.ptp(np.log(found.trace["noise"])) > 2.0
    assert np.all(found.trace["noise"] > 0.0)
    assert found.hyper["noise"] > 0.0
    assert not found.stopped_early


@pytest.mark.slow
def test_it_stops_when_the_log_evidence_no_longer_rises():
    found = fitted_walk(optimizer=optax.sgd(0.0), num_steps=200)
    assert found.stopped_early
    # Flat from the start: it stops at the first test, or at one of the next if chance made the second half higher.
    assert 20 <= len(found.log_evidence) < 40


@pytest.mark.slow
@pytest.mark.parametrize(("num_steps", "number"), [pytest.param(30, 10, marks=pytest.mark.slow), (4, 4)])
def test_steps_without_a_finite_gradient_end_in_an_error_that_names_causes(num_steps, number):
    def broken(hyper):
        return walk({"noise": hyper["noise"] + jnp.sqrt(hyper["noise"] - START["noise"])})  # its slope is infinite

    with pytest.raises(ValueError, match=rf"not finite at {number} steps in a row \(from step 0 on\).*support"):
        epf.fit(broken, START, series(), num_particles=10, num_steps=num_steps)


WRONG = [
    (TypeError, r"^model_of: expected a function model_of\(hyper\)", {"model_of": 3}),
    (TypeError, r"^model_of: it will be called as", {"model_of": lambda: None}),
    (TypeError, r"^model_of: .*expected an epf.StateSpaceModel, got str", {"model_of": lambda hyper: "walk"}),
    (ValueError, r"^hyper: it is empty", {"hyper": {}}),
    (TypeError, r"^hyper: expected numbers", {"hyper": {"noise": "loud"}}),
    (ValueError, r"^hyper: expected finite numbers inside the support", {"hyper": {"noise": -1.0}}),
    (ValueError, r"^support: expected one of numpyro's constraints", {"support": {"sensor": POSITIVE}}),
    (ValueError, r"^support: expected one of numpyro's constraints", {"support": [POSITIVE, POSITIVE]}),
    (ValueError, r"^support: expected one of numpyro's constraints", {"support": {"noise": "positive"}}),
    (TypeError, r"^key: expected a key", {"key": 0}),
    (TypeError, r"^filter_of: expected a function filter_of\(model\)", {"filter_of": 100}),
    (TypeError, r"^filter_of: .*expected a filter", {"filter_of": lambda model: model}),
    (TypeError, r"^optimizer: expected an optimizer of optax", {"optimizer": optax.adam}),
    (
        KeyError,
        r"'nose'(?s:.*)This came from model_of\(hyper\), where hyper has noise",
        {"model_of": lambda hyper: walk(renamed(hyper))},
    ),
    (ValueError, r"^num_particles: expected a positive whole number", {"num_particles": 0}),
    (ValueError, r"^num_steps: expected a positive whole number", {"num_steps": 0}),
    (ValueError, r"^patience: expected a positive whole number", {"patience": 2.5}),
    (ValueError, r"^batch: expected a positive whole number", {"batch": -1}),
    (
        ValueError,
        r"^y: expected shape .* got shape \(2, 2\)",
        {"y": epf.from_table({"a": [1.0, 2.0], "b": [3.0, 4.0]})},
    ),
]


@cache
def short_fit():
    """A fit of four steps, of which one hyper-parameter is kept and one is read by nothing; and what it told."""

    def model_of(hyper):
        return dataclasses.replace(walk(hyper), observation=lambda theta, x, u: dist.Normal(x, hyper["sensor"]))

    start, y = START | {"sensor": 0.5, "idle": 1.0}, np.sin(np.arange(12.0))
    labels = dict.fromkeys(start, "go") | {"sensor": "stop"}
    optimizer = optax.multi_transform({"go": optax.adam(0.05), "stop": optax.set_to_zero()}, labels)
    with pytest.warns(RuntimeWarning) as told:
        found = epf.fit(model_of, start, y, optimizer=optimizer, num_particles=10, num_steps=4, support=POSITIVE)
    return found, [str(warning.message) for warning in told if issubclass(warning.category, RuntimeWarning)]


def test_a_hyper_parameter_that_nothing_reads_is_told_of():
    found, ours = short_fit()
    assert [message.split()[:4] for message in ours] == [["idle", "of", "hyper", "changes"]]
    assert found.hyper["sensor"] == pytest.approx(0.5)


def test_a_parameter_that_theta_was_asked_for_is_thetas():
    def model_of(hyper):
        transition = lambda theta, x, u: dist.Normal(theta["phii"] * x, hyper["noise"])  # noqa: E731
        return dataclasses.replace(walk(hyper), prior={"phi": dist.Normal(0.0, 0.5)}, transition=transition)

    with pytest.raises(KeyError, match=r"'phii'(?s:.*)This came from transition, .* of shapes {'phi': \(\)}"):
        epf.fit(model_of, START, np.zeros(12), num_particles=10, num_steps=2)


@pytest.mark.parametrize(("error", "message", "changes"), WRONG, ids=lambda value: None)
def test_wrong_arguments_are_refused_by_name(error, message, changes):
    given = {"model_of": walk, "hyper": START, "y": np.zeros(12), "support": POSITIVE} | changes
    with pytest.raises(error, match=message):
        epf.fit(given.pop("model_of"), given.pop("hyper"), given.pop("y"), **given)


def test_the_plot_has_a_panel_for_evidence_and_every_hyper_parameter():
    found, _ = short_fit()
    figure = found.plot(truth={"noise": 1.0, "sensor": 0.5, "idle": 1.0})
    assert [ax.get_ylabel() for ax in figure.axes] == ["log-evidence", "idle", "noise", "sensor"]
    assert figure.axes[-1].get_xlabel() == "steps of the optimizer"
    labels = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert labels == ["estimate: mean of the last steps", "value that made the data"]
    mpl.pyplot.close(figure)
    with pytest.raises(ValueError, match=r"^truth: expected the structure of hyper"):
        found.plot(truth={"sensor": 1.0})
