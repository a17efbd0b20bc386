"""What a run records of its own health is right, every cause is provoked, and findings are graded by their effect."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax.apps.commands.method_names import filter_of
from epf_jax.core.findings import Finding
from epf_jax.models.observed import ObservedBatch
from epf_jax.particles.one_step_ahead import probability_integral_transform
from epf_jax.running.alarms import alarms
from epf_jax.running.causes import causes
from epf_jax.running.reference import Origin

KEY, T, N = jax.random.key(1), 120, 400


def ar1(observation=lambda theta, x, u: dist.Normal(x, 0.5)):
    return epf.StateSpaceModel(
        prior={"phi": dist.Normal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, 1.0),
        observation=observation,
    )


MODEL = ar1()
ROUNDING = 0.0 if jax.default_backend() == "cpu" else 1e-5  # a GPU's small filters are kernels, unless diagnosed
FILTER = epf.extended_parameter_filter(MODEL, N, statistic=epf.taylor(MODEL, 1), proposal=epf.bootstrap())
ADAPTED = epf.extended_parameter_filter(MODEL, N, statistic=epf.taylor(MODEL, 1))  # the proposal looks at the data
X, Y = epf.simulate(jax.random.key(0), MODEL, {"phi": 0.8}, T)


def looked_at(y, filter_=FILTER):
    """Every cause that a run recorded, by kind."""
    return {finding.kind: finding for finding in causes(epf.run(KEY, filter_, y, diagnostics=True))}


@pytest.fixture(scope="module")
def healthy():
    return epf.run(KEY, ADAPTED, Y, diagnostics=True)


# ----------------------------------------------------------------------------------------- what is recorded is right


def test_recording_diagnostics_changes_no_number_of_the_filter(healthy):
    plain = epf.run(KEY, ADAPTED, Y)
    assert plain.diagnostics is None
    chex.assert_trees_all_close(plain, healthy._replace(diagnostics=None), rtol=ROUNDING, atol=ROUNDING)
    key_init, key_steps = jax.random.split(KEY)
    state = ADAPTED.init(key_init)
    for t in range(3):
        state, _ = ADAPTED.step(jax.random.fold_in(key_steps, t + 1), state, Y[t])
    assert float(state.log_evidence) == pytest.approx(float(healthy.log_evidence[2]), rel=ROUNDING, abs=0)


@pytest.mark.slow
def test_a_progress_bar_changes_no_diagnostic(healthy, capsys):
    shown = epf.run(KEY, ADAPTED, Y, diagnostics=True, progress=True)
    for a, b in zip(jax.tree.leaves(healthy), jax.tree.leaves(shown), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_many_runs_record_as_one_does(x64):
    model = ar1()
    filter_ = epf.extended_parameter_filter(model, N, statistic=epf.taylor(model, 1))
    y = jnp.asarray(Y, float)
    many = epf.replicate(jnp.stack([KEY, jax.random.key(5)]), filter_, y, diagnostics=True)
    one = epf.run(KEY, filter_, y, diagnostics=True)
    # In float32 rounding flips a decision of a hundred steps now and then; here sums differ by some 1e-16.
    np.testing.assert_allclose(many.diagnostics.pit[0], one.diagnostics.pit, atol=1e-9)
    assert many.diagnostics.num_founders.shape == (2, T)


@pytest.mark.slow
def test_the_pit_is_that_of_the_exact_predictive_distribution():
    known = epf.bootstrap_filter(MODEL, 4000, theta={"phi": 0.8})
    found = epf.run(KEY, known, Y[:30], diagnostics=True, levels=(0.5,)).diagnostics
    mean, variance, exact = 0.0, 1.0, []
    for y in np.asarray(Y[:30], float):  # the Kalman filter
        mean, variance = 0.8 * mean, 0.64 * variance + 1.0
        exact.append((mean, np.sqrt(variance + 0.25)))
        gain = variance / (variance + 0.25)
        mean, variance = mean + gain * (y - mean), (1 - gain) * variance
    centre, sd = np.array(exact).T
    # the filter's mean errs by at most sd / 20 or so with 4000 particles of which a bootstrap filter leaves a tenth at
    # the worst observation; the normal density is at most 0.4, so the PIT errs by 0.02, and here by less than twice that
    np.testing.assert_allclose(found.pit, dist.Normal(centre, sd).cdf(np.asarray(Y[:30])), atol=0.04)
    np.testing.assert_allclose(found.y.mean, centre, atol=0.15)
    np.testing.assert_allclose(found.y.sd, sd, rtol=0.1)


class NoCdf:
    """A distribution that is not numpyro's: draws and densities, no distribution function."""

    def __init__(self, loc):
        self.normal = dist.Normal(loc, 0.5)

    def sample(self, key, sample_shape=()):
        return self.normal.sample(key, sample_shape)

    def log_prob(self, value):
        return self.normal.log_prob(value)


OBSERVATIONS = {
    "normal": (lambda x: dist.Normal(x, 0.5), 0.3),
    "no cdf": (NoCdf, 0.3),
    "vector": (lambda x: dist.Normal(jnp.stack([x, x]), jnp.array([0.5, 1.0])).to_event(1), [0.3, jnp.nan]),
    "joint": (lambda x: dist.MultivariateNormal(jnp.stack([x, x]), jnp.array([[0.25, 0.3], [0.3, 1.0]])), [0.3, 0.3]),
    "count": (lambda x: dist.Poisson(jnp.exp(x)), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_every_kind_of_observation_has_its_pit(name):
    observation, y = OBSERVATIONS[name]
    model = ar1(lambda theta, x, u: observation(x))
    x, log_weights = jnp.array([0.0, 1.0]).repeat(5000), jnp.log(jnp.array([0.25, 0.75]).repeat(5000) / 5000)
    keys = jax.random.split(jax.random.key(2), x.shape[0])
    drawn = jax.vmap(lambda key, x: observation(x).sample(key))(keys, x)
    theta = {"phi": jnp.zeros(x.shape[0])}
    found = probability_integral_transform(KEY, model, theta, x, drawn, log_weights, jnp.asarray(y), 1)

    def mixture(scale):
        return float(jnp.array([0.25, 0.75]) @ dist.Normal(jnp.array([0.0, 1.0]), scale).cdf(0.3))

    if name == "count":
        low, high = (
            float(jnp.array([0.25, 0.75]) @ dist.Poisson(jnp.exp(jnp.array([0.0, 1.0]))).cdf(k)) for k in (1, 2)
        )
        assert low < found < high
    elif name == "vector":
        np.testing.assert_allclose(found, [mixture(0.5), jnp.nan], atol=1e-4)
    elif name == "joint":
        np.testing.assert_allclose(found, [mixture(0.5), mixture(1.0)], atol=1e-4)  # float32 sums of 10000
    else:  # ranks among 10000 draws have standard error 0.005; a cdf has none
        np.testing.assert_allclose(found, mixture(0.5), atol=0.025 if name == "no cdf" else 1e-4)


@pytest.mark.slow
def test_founders_and_parents_are_those_of_the_ancestors_that_were_kept():
    results = epf.run(KEY, FILTER, Y[:40].at[20].set(30.0), diagnostics=True, history=True)
    recorded, ancestors = results.diagnostics, np.asarray(results.history.ancestors)
    assert np.any(recorded.num_founders == 1)  # the outlier at t = 21 leaves one path, and counting starts anew
    for t in range(40):
        assert recorded.num_parents[t] == len(np.unique(ancestors[t]))
        lineage = np.arange(N)
        for generation in range(t, int(recorded.founded[t]) - 1, -1):
            lineage = ancestors[generation][lineage]
        assert recorded.num_founders[t] == len(np.unique(lineage))


def test_the_remainder_is_what_the_expansion_has_too_much_of():
    model = epf.models.sinusoid()
    remainder = epf.taylor(model, 1, centre={"theta": 0.0}).remainder
    theta, x_prev, x = 0.4, 1.5, 0.2
    # sin(theta x) is theta x to first order about 0, and both are 0 there
    expected = -0.5 * (x - theta * x_prev) ** 2 + 0.5 * (x - np.sin(theta * x_prev)) ** 2
    found = remainder({"theta": theta}, *(jnp.asarray(v) for v in (x_prev, x, 0.1)), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    linear = epf.taylor(MODEL, 1).remainder({"phi": theta}, *(jnp.asarray(v) for v in (x_prev, x, 0.1)), 1)
    np.testing.assert_allclose(linear, 0.0, atol=1e-6)


@pytest.mark.slow
def test_a_small_remainder_that_moves_the_posterior_is_found():
    """The posterior of the polynomial lies 3.1 sds beside the exact one (a grid of 40001 points in float64)."""
    rng = np.random.default_rng(7)
    u = rng.uniform(-2.5, 2.5, 100)
    y = np.sin(1.2 * u) + 0.5 * rng.normal(size=100)
    curve = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.0, 1.0),
        observation=lambda theta, x, u: dist.Normal(jnp.sin(theta["a"] * u), 0.5),
    )
    statistic = epf.taylor(curve, 2, centre={"a": 2.0})
    results = epf.run(
        KEY, epf.extended_parameter_filter(curve, 1000, statistic=statistic), y, inputs=u, diagnostics=True
    )
    assert 2 * abs(np.sum(results.diagnostics.remainder[50:])) < 0.5
    assert 2.5 < 2 * np.sum(results.diagnostics.shift[50:]) < 4.5
    found = results.diagnose()
    assert found[0].grade == "wrong"
    assert 2.5 < found[0].effect < 3.7
    assert "expansion" in [each.kind for each in found]


# ------------------------------------------------------------------------------------------ diagnoses, and silence


def test_a_healthy_run_has_no_findings_and_says_how_well_that_is_known(healthy):
    assert healthy.diagnose() == ()
    assert re.match(
        r"Nothing found. By [\d,]+ fresh likelihoods, the answer is off by 0\.\d+ sd\.", repr(healthy.diagnose())
    )


def test_effects_are_graded_by_posterior_standard_deviations():
    grades = {effect: Finding("answer", "a", "", "", effect).grade for effect in (0.05, 0.3, 2.0, jnp.inf, jnp.nan)}
    assert list(grades.values()) == ["harmless", "look again", "wrong", "wrong", "look again"]


def test_an_answer_that_is_moved_is_found_by_how_much_it_is_moved(healthy):
    exact = healthy.origin.certificate(60.0).of_theta
    for by, grade in ((0.02, None), (0.6, "look again"), (-2.0, "wrong")):
        moved = jnp.full(T, exact.mean[0] + by * exact.sd[0])
        right = healthy.theta._replace(mean={"phi": moved}, sd={"phi": jnp.full(T, exact.sd[0])})
        found = healthy._replace(theta=right).diagnose()
        assert [each.grade for each in found][:1] == ([] if grade is None else [grade])
        assert all(each.effect == pytest.approx(abs(by), rel=1e-3) for each in found)


def test_causes_are_named_beside_an_effect_alone(healthy):
    stuck = healthy._replace(acceptance=jnp.zeros(T))
    assert [each.kind for each in causes(stuck)] == ["moves of theta"]
    assert stuck.diagnose() == ()
    wrong = stuck._replace(theta=stuck.theta._replace(mean={"phi": stuck.theta.mean["phi"] + 1.0}))
    assert {each.kind for each in wrong.diagnose()} == {"answer", "moves of theta"}


def test_groups_of_particles_tell_where_the_series_is_forgotten(healthy):
    forgotten = jax.tree.map(lambda leaf: leaf, healthy)
    assert forgotten.diagnose() == ()
    assert "a lower bound" in forgotten.diagnose().measured
    one = forgotten.diagnostics.lineage._replace(founders=jnp.arange(N) // (N // 2))
    particles = forgotten.final._replace(theta={"phi": jnp.sign(jnp.arange(N) - N / 2 + 0.5)}, log_weights=jnp.zeros(N))
    split = forgotten._replace(
        final=particles,
        diagnostics=forgotten.diagnostics._replace(lineage=one),
        theta=forgotten.theta._replace(mean={"phi": jnp.zeros(T)}, sd={"phi": jnp.ones(T)}),
    )
    # two founders, whose particles all are one sd to the left and to the right: (1/2)^2 + (1/2)^2 = 1/2
    assert split.diagnose()[0].effect == pytest.approx(np.sqrt(0.5))


def test_what_measured_nothing_says_so(healthy):
    found = jax.tree.map(lambda leaf: leaf, healthy._replace(diagnostics=None)).diagnose()
    assert found == ()
    assert "was not measured" in found.measured
    assert np.isnan(jax.tree.map(lambda leaf: leaf, healthy).log_evidence_error)


def test_one_of_many_runs_is_measured_beside_its_own_series(healthy):
    batch = ObservedBatch(jnp.stack([Y, Y + 1.0]), healthy.origin.series.inputs, True, False, T)
    many = jax.tree.map(lambda a: jnp.stack([a, a]), healthy)._replace(origin=Origin(MODEL, batch))
    one, other = many.one(0), many.one(-1)
    np.testing.assert_array_equal(one.origin.series.values, Y)
    np.testing.assert_array_equal(other.origin.series.values, Y + 1.0)
    assert one.diagnose().measured == healthy.diagnose().measured


def test_the_evidences_error_is_its_distance_from_fresh_likelihoods(healthy):
    assert healthy.log_evidence_error < 0.3  # 400 adapted particles, of which about .1 is the certificate's own
    off = healthy._replace(log_evidence=healthy.log_evidence + 3.0)
    assert off.log_evidence_error == pytest.approx(3.0, abs=0.3)


def test_run_warns_in_the_words_of_the_diagnosis():
    y = Y.at[9].set(1e6)  # of the length of the others, whose program is there
    with pytest.warns(RuntimeWarning) as caught:
        results = epf.run(KEY, ADAPTED, y)
    told = [f"{each.message} {each.advice}" for each in alarms(results)]
    assert [str(each.message) for each in caught] == told != []


@pytest.mark.slow
def test_an_outlier_collapses_the_weights_at_its_observation():
    found = looked_at(Y.at[60].set(9.0))
    assert found["weights"].where == "t = 61"
    assert "A few particles carried all the weight" in found["weights"].message
    assert "fully_adapted" in found["weights"].advice


@pytest.mark.slow
def test_an_impossible_observation_is_named():
    bounded = ar1(lambda theta, x, u: dist.Uniform(x - 3.0, x + 3.0))
    filter_ = epf.storvik_filter(bounded, N, proposal=epf.bootstrap())
    with pytest.warns(RuntimeWarning, match="zero weight"):
        found = [*alarms(epf.run(KEY, filter_, Y.at[jnp.array([30, 31])].set(100.0)))]
    assert [(finding.kind, finding.where) for finding in found] == [("zero weights", "2 steps (first at t = 31)")]
    assert [*alarms(epf.run(KEY, filter_, Y))] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (epf.random_walk(1e-4), "steps are too small to get anywhere"),
        pytest.param(epf.random_walk(50.0), "Theta hardly moves", marks=pytest.mark.slow),
    ],
)
def test_an_acceptance_rate_near_0_or_1_is_found(sampler, message):
    filter_ = epf.extended_parameter_filter(MODEL, N, statistic=epf.taylor(MODEL, 1), sampler=sampler)
    found = [*causes(epf.run(KEY, filter_, Y))]
    assert [finding.kind for finding in found] == ["moves of theta"]
    assert message in found[0].message
    assert found[0].where == "phi"


@pytest.mark.slow
def test_theta_that_never_moves_is_found_and_exact_draws_are_not(healthy):
    sir = causes(epf.run(KEY, epf.bootstrap_filter(MODEL, N), Y))
    assert "Theta was never redrawn" in [finding.message.split(":")[0] for finding in sir]
    assert [*causes(healthy._replace(acceptance=jnp.ones(T)))] == []  # as of exact draws


def test_a_density_that_is_nan_is_found(healthy):
    found = healthy._replace(num_bad_densities=healthy.num_bad_densities.at[4].set(3)).diagnose()
    assert [(each.kind, each.where, each.grade) for each in found] == [
        ("density of theta", "1 step (first at t = 5)", "harmless")
    ]


@pytest.mark.slow
def test_a_parameter_against_its_box_is_found_and_one_inside_it_is_not():
    box = epf.chebyshev(MODEL, 8, box=({"phi": -0.4}, {"phi": 0.4}), shrink=None)
    filter_ = epf.extended_parameter_filter(MODEL, N, statistic=box)
    assert looked_at(Y, filter_)["box"].where.startswith("phi, t = ")
    inside = epf.simulate(jax.random.key(0), MODEL, {"phi": 0.0}, T)[1]
    late = epf.run(KEY, filter_, jnp.concatenate([inside] * 3), diagnostics=True).diagnostics.edge[-T:]
    assert np.max(late) < 0.02  # 360 observations: an sd of 0.05, and the edge lies 7 of them away


@pytest.mark.slow
def test_boxes_are_told_of_only_where_they_were_misread():
    model = epf.StateSpaceModel(
        prior={"q": dist.LogNormal(-1.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x, theta["q"]),
        observation=lambda theta, x, u: dist.Normal(x, 0.8),
    )
    _, y = epf.simulate(jax.random.key(0), model, {"q": 0.4}, 100)
    filter_ = epf.extended_parameter_filter(model, 500, statistic=epf.chebyshev(model))
    results = epf.run(KEY, filter_, y, levels=())
    assert np.max(results.final.S.flattening) > 1  # of the paths, each of which knows more of q than all together
    assert "box" not in [each.kind for each in causes(results)]
    S = results.final.S
    misread = results.final._replace(S=S._replace(num_misread=S.num_misread + 1))
    assert "box" in [each.kind for each in causes(results._replace(final=misread))]


@pytest.mark.slow
def test_only_an_expansion_that_leaves_out_too_much_is_found():
    model = epf.models.sinusoid(prior_sd=1.0)
    filter_ = epf.extended_parameter_filter(model, N, statistic=epf.taylor(model, 1))
    far, near = (epf.simulate(jax.random.key(3), model, {"theta": theta}, T)[1] for theta in (1.2, 0.0))
    assert "chebyshev" in looked_at(far, filter_)["expansion"].advice
    assert "expansion" not in looked_at(near, filter_)


@pytest.mark.slow
def test_paths_that_are_one_since_lately_are_found():
    found = looked_at(Y.at[112].set(30.0))  # one particle explains the outlier best: all others end there
    generation = int(found["descent"].where.removeprefix("t = "))
    assert generation >= 112
    assert "one particle" in found["descent"].message


STEADY = epf.StateSpaceModel(
    prior={"level": dist.Normal(0.0, 0.1)},
    initial=lambda theta: dist.Normal(0.0, 0.1),
    transition=lambda theta, x, u: dist.Normal(0.0, 0.1),
    observation=lambda theta, x, u: dist.Normal(x + theta["level"], 1.0),
)
STEADY_FILTER = epf.bootstrap_filter(STEADY, N)
NOISE = jax.random.normal(jax.random.key(7), (T,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "y"),
    [
        ("Observations came higher than predicted", NOISE + 1.5),
        ("Observations came lower than predicted", NOISE - 1.5),
        ("Predictions were too narrow", 2.5 * NOISE),
        ("Predictions were too wide", 0.3 * NOISE),
        ("successive ones agree", 1.2 * jnp.sin(jnp.arange(T) / 8) + 0.5 * NOISE),
        ("successive ones alternate", 0.8 * (-1.0) ** jnp.arange(T) + 0.5 * NOISE),
    ],
)
def test_predictions_that_miss_are_found_and_said_how(message, y):
    found = epf.run(KEY, STEADY_FILTER, y, diagnostics=True).diagnose()
    assert {each.grade for each in found if each.kind == "prediction"} == {"harmless"}
    assert any(finding.kind == "prediction" and message in finding.message for finding in found)


@pytest.mark.slow
def test_predictions_that_hit_are_not_found():
    results = epf.run(KEY, STEADY_FILTER, NOISE.at[::7].set(jnp.nan), diagnostics=True)
    found = jax.tree.map(lambda leaf: leaf, results).diagnose()
    assert "prediction" not in [finding.kind for finding in found]


def test_a_batch_of_runs_is_refused_with_the_way_to_take_one(healthy):
    batch = jax.tree.map(lambda a: a[None], healthy)
    with pytest.raises(ValueError, match=r"^results: diagnose looks at one run, and these are 1\. Take one"):
        batch.diagnose()


def test_a_finding_reads_as_a_sentence_and_an_advice(healthy):
    finding = healthy._replace(num_bad_densities=healthy.num_bad_densities.at[4].set(3)).diagnose()
    assert "\n- harmless (" in repr(finding)
    assert " sd): density of theta, 1 step (first at t = 5): The density of theta was NaN at 3 of" in repr(finding)
    assert "\n    Look for a density that is NaN for some theta" in repr(finding)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["node", "smc2", "online-em"])
def test_methods_that_move_theta_otherwise_are_not_blamed_for_it(name):
    model = epf.models.ar1()
    _, y = epf.simulate(jax.random.key(0), model, {"phi": 0.7}, 60)
    filter_ = filter_of(name, model, None, room=60)
    found = [*causes(epf.run(jax.random.key(1), filter_, y, diagnostics=True))]
    assert not {"weights", "moves of theta"} & {finding.kind for finding in found}, found
