"""Every wrong input is refused by name: the argument, what was expected, what came, and what to do about it.

Each row is (what the message must say, the call that is wrong). A message starts with the name of the argument.
"""

import contextlib
import dataclasses
import math
import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import gammaln

import epf_jax as epf
from epf_jax import exact
from epf_jax.models.observed import observed_series

KEY = jax.random.key(0)
Y = jnp.array([0.1, 0.2, 0.3])


def ar1(**pieces):
    """A linear-Gaussian AR(1), with some of its pieces replaced."""
    given = {
        "prior": {"phi": dist.Normal(0.0, 0.5)},
        "initial": lambda theta: dist.Normal(0.0, 1.0),
        "transition": lambda theta, x, u: dist.Normal(theta["phi"] * x, 1.0),
        "observation": lambda theta, x, u: dist.Normal(x, 0.5),
    }
    return epf.StateSpaceModel(**(given | pieces))


@cache
def model():
    return ar1()


@cache
def filter_():
    return epf.extended_parameter_filter(model(), 8)


@cache
def counting():
    return epf.bootstrap_filter(ar1(observation=lambda theta, x, u: dist.Poisson(jnp.exp(x))), 8)


@cache
def of_ten():
    two = lambda theta, x, u: dist.Binomial(10, logits=jnp.stack([x, -x])).to_event(1)  # noqa: E731
    return epf.bootstrap_filter(ar1(observation=two), 8)


def build(**pieces):
    return epf.extended_parameter_filter(ar1(**pieces), 8)


def two_parameters():
    return ar1(
        prior={"a": dist.Normal(0.0, 0.5), "b": dist.Normal(0.0, 0.5)},
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x + theta["b"], 1.0),
    )


def vector_state(observation):
    return ar1(
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, 1.0).to_event(1),
        observation=observation,
    )


def refuses(*rows):
    """Parametrise a test by rows (message, call)."""
    return pytest.mark.parametrize(("message", "call"), rows, ids=[f"{i}-{row[0][:40]}" for i, row in enumerate(rows)])


# ----------------------------------------------------------------------------------------------------------- the model


@refuses(
    (r"^prior: expected a distribution.*'theta' is float: 0\.3.*Wrap it", lambda: build(prior=0.3)),
    (r"^prior: expected a distribution.*'phi' is float: 0\.3.*Wrap it", lambda: build(prior={"phi": 0.3})),
    (r"^prior: expected a distribution.*'phi' is NoneType.*Wrap it", lambda: build(prior={"phi": None})),
    (r"^prior: expected a distribution.*'theta' is NoneType.*Wrap it", lambda: build(prior=None)),
    (r"^prior: expected a distribution.*'phi' is \w+: <class.*Wrap it", lambda: build(prior={"phi": dist.Normal})),
    (r"^prior: expected a distribution.*'theta' is str.*Wrap it", lambda: build(prior="normal")),
    (
        r"^prior: the parameter 'phi' cannot be drawn \(ImproperUniform has no sample\).*Take a proper",
        lambda: build(prior={"phi": dist.ImproperUniform(dist.constraints.real, (), ())}),
    ),
    (r"^prior: the parameter 'phi' is discrete \(Poisson\).*Move", lambda: build(prior={"phi": dist.Poisson(3.0)})),
)
def test_a_prior_that_is_no_continuous_distribution_is_refused(message, call):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("initial", r"initial\(theta\)"),
        ("transition", r"transition\(theta, x_prev, u\)"),
        ("observation", r"observation\(theta, x, u\)"),
    ],
)
def test_a_model_function_that_is_no_function_to_distributions_is_refused(name, call):
    for wrong, got in ((0.3, "0.3"), (dist.Normal(0.0, 1.0), "numpyro"), ("normal", "'normal'")):
        with pytest.raises(TypeError, match=rf"^{name}: expected a function {call}.*got.*{got}.*Write it as lambda"):
            ar1(**{name: wrong})
    for wrong in (lambda: dist.Normal(0.0, 1.0), lambda a, b: dist.Normal(0.0, 1.0)):
        with pytest.raises(TypeError, match=rf"^{name}: it will be called as {call}.*Write it with"):
            ar1(**{name: wrong})
    for wrong, got in (
        (lambda *_: 0.3, "0.3"),
        (lambda *_: jnp.zeros(2), r"an array of shape \(2,\)"),
        (lambda *_: None, "None"),
        (lambda *_: dist.Normal, "<class 'numpyro.*Normal'>"),
    ):
        with pytest.raises(TypeError, match=rf"^{name}: expected a distribution.*returned {got}.*Return the dist"):
            build(**{name: wrong})


def test_a_transition_that_changes_the_states_shape_is_refused():
    with pytest.raises(ValueError, match=r"^transition: draws x_t of shape \(2,\), but .* \(\).*must keep its shape"):
        build(transition=lambda theta, x, u: dist.Normal(theta["phi"] * x * jnp.ones(2), 1.0))


def reading_steps():
    return epf.StateSpaceModel(
        prior={"phi": dist.Normal(0.5, 0.3)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, jnp.sqrt(u["dt"])),
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
        row={"dt": jnp.ones(())},
    )


@pytest.mark.parametrize("example", [jnp.array(0.5), {"u": jnp.zeros(())}, jnp.zeros(2), jnp.array(True)])
def test_no_time_index_stands_for_inputs_that_a_model_reads(example):
    model = ar1(row=example)
    filter_ = epf.bootstrap_filter(model, 10)
    state = filter_.init(KEY)
    for forgotten in (
        lambda: epf.run(KEY, filter_, Y),
        lambda: epf.replicate(jax.random.split(KEY, 2), filter_, Y),
        lambda: filter_.step(KEY, state, Y[0]),
        lambda: epf.forecast(KEY, filter_, state, 3),
        lambda: epf.simulate(KEY, model, {"phi": 0.5}, 3),
        lambda: epf.pmmh(KEY, model, Y),
    ):
        with pytest.raises(ValueError, match=r"^inputs: none were given, .*has seen"):
            forgotten()
    epf.simulate(KEY, model, {"phi": 0.5}, 3, inputs=jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), example))
    epf.simulate(KEY, ar1(row=1), {"phi": 0.5}, 3)  # as a time index is


@pytest.mark.filterwarnings("ignore:Every particle had zero weight")
def test_inputs_that_are_no_numbers_are_refused():
    steps = epf.bootstrap_filter(reading_steps(), 10)
    with pytest.raises(ValueError, match=r"^inputs\['dt'\]: row 1 .* is NaN or infinite"):
        epf.run(KEY, steps, [0.1, 0.2, 0.3], inputs={"dt": np.array([1.0, np.nan, 1.0])})
    with pytest.warns(RuntimeWarning, match="NaN or infinite from t = 2 on"):
        epf.run(KEY, steps, [0.1, 0.2, 0.3], inputs={"dt": np.array([1.0, -1.0, 1.0])})


def test_a_list_of_numbers_is_a_column_of_inputs():
    series = observed_series(reading_steps(), Y, {"dt": [1.0, 2.0, 1.0]})
    np.testing.assert_array_equal(series.inputs["dt"], np.array([1.0, 2.0, 1.0]))


def test_masked_values_are_missing():
    masked = np.ma.masked_array([0.1, 5.0, 0.3], mask=[False, True, False])
    np.testing.assert_array_equal(observed_series(model(), masked).values, np.float32([0.1, np.nan, 0.3]))


def test_a_series_without_a_value_is_told_of_at_the_users_line():
    filter_, y, keys = epf.bootstrap_filter(model(), 8), np.full(3, np.nan), jax.random.split(KEY, 2)
    for call in (
        lambda: epf.run(KEY, filter_, y, levels=()),
        lambda: epf.replicate(keys, filter_, np.stack([y, y]), levels=()),
    ):
        with pytest.warns(RuntimeWarning, match="every value is missing") as caught:
            call()
        told = [warning for warning in caught if "every value is missing" in str(warning.message)]  # jax may warn, too
        assert [warning.filename for warning in told] == [__file__]


def test_a_name_that_the_prior_does_not_have_is_noted():
    for part in ("initial", "transition", "observation"):
        with pytest.raises(
            KeyError, match=rf"'rho'(?s:.*)This came from {part}, called as .* of shapes {{'phi': \(\)}}"
        ):
            build(**{part: lambda theta, *others: dist.Normal(theta["rho"], 1.0)})


def test_a_parameter_that_nothing_reads_is_told_of_at_the_users_line():
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0), "s": dist.HalfNormal(1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.3),
    )
    with pytest.warns(UserWarning, match=r"reads theta\['s'\], so its posterior") as told:
        epf.bootstrap_filter(model, 10)
    assert told[0].filename == __file__


@pytest.mark.parametrize("build", [epf.chebyshev, epf.assumed_density, epf.node_filter])
def test_observations_that_end_where_theta_says_are_told_of(build):
    def model(ends):
        return epf.StateSpaceModel(
            prior={"a": dist.Gamma(4.0, 1.0)},
            initial=lambda theta: dist.Normal(0.0, 1.0),
            transition=lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
            observation=lambda theta, x, u: dist.Uniform(jnp.zeros(2), ends(theta)).to_event(1),
        )

    with pytest.warns(UserWarning, match=r"where the observation's values end depends on theta"):
        build(model(lambda theta: theta["a"]))
    build(model(lambda theta: 3.0))  # warns of nothing, or the test fails


@pytest.mark.parametrize(
    ("kind", "observation"),
    [
        (jax.errors.TracerArrayConversionError, lambda theta, x, u: dist.Normal(np.exp(x), 1.0)),
        (jax.errors.ConcretizationTypeError, lambda theta, x, u: dist.Normal(math.exp(x), 1.0)),
        (jax.errors.ConcretizationTypeError, lambda theta, x, u: dist.Normal(x if x > 0 else 0.0, 1.0)),
        (jax.errors.TracerIntegerConversionError, lambda theta, x, u: dist.Normal([1.0, 2.0][u], 1.0)),
        (AttributeError, lambda theta, x, u: dist.Normal(theta.phi * x, 1.0)),
        (ValueError, lambda theta, x, u: dist.Normal(x, -0.3)),
        (AssertionError, lambda theta, x, u: numpyro.sample("y", dist.Normal(x, 1.0))),
        (IndexError, lambda theta, x, u: dist.Normal(x[0], 1.0)),
        (TypeError, lambda theta, x, u: dist.Normal(mean=x, scale=1.0)),
        (NameError, lambda theta, x, u: dist.Normal(forgotten * x, u)),
    ],
)
def test_a_mistake_that_has_nothing_to_do_with_inputs_is_raised_at_once(kind, observation):
    note = r"This came from observation, called as observation\(theta, x, u\) .* of shapes {'phi': \(\)}, \(\), \(\)\."
    with pytest.raises(kind, match=note):
        epf.extended_parameter_filter(ar1(observation=observation), 10)


def test_a_prior_without_names_is_told_of():
    for prior, given in ((dist.Normal(0.0, 1.0), r"\(\)"), ([dist.Normal(0.0, 1.0)], r"\[\(\)\]")):
        with pytest.raises(TypeError, match=rf"This came from transition, .* of shapes {given}, \(\), \(\)\."):
            epf.extended_parameter_filter(ar1(prior=prior), 10)


def test_an_example_of_inputs_that_cannot_be_read_is_refused():
    model = ar1(transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, u["dt"]), row={"hours": 1.0})
    with pytest.raises(KeyError, match=r"'dt'(?s:.*)This came from transition"):
        epf.bootstrap_filter(model, 10)


@pytest.mark.parametrize(
    ("prior", "observation", "told"),
    [
        (dist.Normal(0.0, 0.5), lambda theta, x, u: dist.Normal(x, theta["a"]), "scale"),
        (
            dist.Normal(jnp.zeros(2), 1.0).to_event(1),
            lambda theta, x, u: dist.StudentT(theta["a"][1], x, 1.0).expand([1]).to_event(1),
            "df",
        ),
        (dist.Normal(2.0, 0.2), lambda theta, x, u: dist.Normal(x, theta["a"]), None),
        (dist.HalfNormal(1.0), lambda theta, x, u: dist.Normal(x, theta["a"]), None),
        (dist.Normal(0.0, 0.5), lambda theta, x, u: dist.Normal(theta["a"] * x, jnp.exp(theta["a"])), None),
    ],
)
def test_a_scale_that_its_prior_lets_be_negative_is_told_of(prior, observation, told):
    model = ar1(prior={"phi": dist.Normal(0.0, 0.5), "a": prior}, observation=observation)
    with contextlib.ExitStack() as stack:
        if told:
            message = rf"^observation: its {told} is theta\['a'\], whose prior has negative numbers.*HalfNormal"
            stack.enter_context(pytest.warns(UserWarning, match=message))
        epf.bootstrap_filter(model, 10)


@pytest.mark.parametrize("prior", [lambda a: dist.LogNormal(0.0, 0.5), lambda a: dist.LogNormal(a, 0.5)])
def test_a_scale_is_looked_at_inside_of_jit_too(prior):
    """Where a filter is built of numbers that are being differentiated, the prior's own may be known or not."""

    def build(a):
        model = ar1(
            prior={"phi": dist.Normal(0.0, 0.5), "a": prior(a)},
            observation=lambda theta, x, u: dist.Normal(x + a, theta["a"]),
        )
        return epf.bootstrap_filter(model, 10).init(KEY).x

    for transform in (jax.jit, jax.vmap, jax.jacfwd):
        found = jax.eval_shape(transform(build), jnp.zeros(3 if transform is jax.vmap else ()))
        assert found.shape[-1] == 10


def test_inputs_unlike_the_example_are_told_of_beside_it():
    filter_ = epf.bootstrap_filter(
        ar1(transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, u["dt"]), row={"dt": 1.0}), 10
    )
    with pytest.raises(ValueError, match=r"^inputs: .*has seen {'dt': 'float32'}, and a row came as {'DT':"):
        epf.run(KEY, filter_, Y, inputs={"DT": np.ones(3)})


READS_INPUTS = {
    "by name": lambda u: u["dt"],
    "by place": lambda u: u[0],
    "by attribute": lambda u: u.dt,
    "unpacked": lambda u: (lambda a, b: a)(*u),
    "jitted": jax.jit(lambda u: u[0]),
    "mapped": lambda u: jnp.sum(jax.vmap(lambda v: v)(u)),
    "in a branch": lambda u: jax.lax.cond(jnp.array(True), lambda v: v[0], lambda v: 1.0, u),
    "in a product": lambda u: (jnp.ones((2, 3)) @ u)[0],
    "counted": len,
    "by its kind": lambda u: 1.0 if isinstance(u, dict) else u["dt"],
    "in a tree": lambda u: jax.tree.map(lambda v: v[0], u),
}


@pytest.mark.parametrize("read", READS_INPUTS.values(), ids=READS_INPUTS)
def test_a_model_that_fails_for_want_of_its_inputs_waits_for_them(read):
    model = ar1(transition=lambda theta, x, u: dist.Normal(theta["phi"] * x + read(u), 1.0))
    assert model.wants_inputs


@pytest.mark.parametrize(
    ("y", "told"),
    [(2.5, r"^y: the model observes whole numbers, and 2\.5 is none"), (-2, r"^y: -2 lies outside of the support")],
)
def test_a_step_refuses_what_a_run_refuses(y, told):
    filter_ = epf.bootstrap_filter(ar1(observation=lambda theta, x, u: dist.Poisson(jnp.exp(x))), 10)
    with pytest.raises(ValueError, match=told):
        filter_.step(KEY, filter_.init(KEY), y)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, np.float32(np.nan), jnp.asarray(jnp.nan)])
def test_a_step_refuses_inputs_from_which_no_state_recovers(wrong):
    heated = ar1(transition=lambda theta, x, u: dist.Normal(theta["phi"] * x + u["heat"], 1.0), row={"heat": 0.0})
    filter_ = epf.bootstrap_filter(heated, 10)
    with pytest.raises(ValueError, match=r"^u: expected finite numbers, got \{'heat': (nan|inf)\}"):
        filter_.step(KEY, filter_.init(KEY), 0.3, {"heat": wrong})


@pytest.mark.filterwarnings("ignore:.*(all but rules out|zero weight)")  # numbers that far off
def test_observations_lost_to_rounding_are_told_of():
    filter_, steps = epf.bootstrap_filter(ar1(), 10), np.sin(np.arange(12.0)) / 100
    for far in (steps + 1e6, list(steps + 1e6), np.where(steps > 0, np.nan, 1e6 + 3 * steps)):
        with pytest.warns(RuntimeWarning, match=r"^y: single precision rounds .* by 0\.0\d+ on average.*\(1000000\)"):
            epf.run(KEY, filter_, far, levels=())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="y: single precision")
        epf.run(KEY, filter_, steps + 100.0, levels=())  # rounded by 4e-6
        epf.run(KEY, filter_, np.round(100 * steps) + 1e6, levels=())  # whole numbers are kept
        epf.run(KEY, filter_, np.where(steps > 0.009, 1e20 / 3, steps), levels=())  # an outlier is not the others
        epf.run(KEY, filter_, np.full(12, 1e6 + 1 / 3), levels=())  # there is nothing to tell apart
        with jax.enable_x64(True):
            epf.run(KEY, epf.bootstrap_filter(ar1(), 10), steps + 1e6, levels=())


def test_arguments_called_the_other_way_round_are_told_of():
    called = r".* called theta, u, x_prev, .* called as transition\(theta, x_prev, u\)\. Check their order"
    with pytest.warns(UserWarning, match=rf"^transition: {called}"):
        ar1(transition=lambda theta, u, x_prev: dist.Normal(x_prev, 1.0))
    with pytest.warns(UserWarning, match=r"^q: .* called y, x, theta, u, .* called as q\(theta, x_prev, y, u\)"):
        epf.guided(lambda y, x, theta, u: dist.Normal(x, 1.0))
    epf.guided(lambda params, x, y, _: dist.Normal(x, 1.0))  # warnings are errors here


def test_an_observation_that_the_model_all_but_rules_out_is_told_of():
    filter_ = epf.extended_parameter_filter(ar1(), 20)
    for y, first in (([0.1, 0.2, -999.0, 0.1], 3), ([-999.0, 0.2], 1)):
        with pytest.warns(RuntimeWarning, match=rf"all but rules out .*\(first at t = {first}\).* -999"):
            epf.run(jax.random.key(0), filter_, jnp.array(y), levels=())


def test_weights_that_are_nan_are_told_of():
    filter_ = epf.bootstrap_filter(ar1(observation=lambda theta, x, u: dist.Poisson(x)), 100)
    with pytest.warns(RuntimeWarning, match=r"more than 1% of the particles were NaN .*negative for some states"):
        epf.run(jax.random.key(0), filter_, jnp.array([1.0, 2.0]), levels=())


def test_a_mistake_inside_a_model_function_is_reported_with_its_name():
    with pytest.raises(AttributeError, match=r"'rho'(?s:.*)This came from initial, called as initial\(theta\)"):
        build(initial=lambda theta: dist.Normal(theta.rho, 1.0))
    # A transition may fail for want of inputs, so it is left to the first run, which knows them.
    broken = build(transition=lambda theta, x, u: dist.Normal(theta["phi"] * x * u["dt"], 1.0))
    for _ in range(2):
        with pytest.raises(
            TypeError, match=r"(?s)This came from transition, .*transition\(theta, x_prev, u\).*inputs="
        ):
            epf.run(KEY, broken, Y)


@pytest.mark.parametrize(
    ("index", "told"),
    [
        (lambda x: x[2], r"of shape \(2,\) for entry 2 of an axis with entries 0 to 1"),
        (lambda x: x[-3], r".* for entry -3 of"),
        (lambda x: jax.jit(lambda x: x[7])(x), r".* for entry 7 of"),
        (lambda x: jnp.eye(2)[1, 4] * x[0], r"of shape \(2, 2\) for entry 4 of"),
        (lambda x: jax.lax.cond(x[0] > 0, lambda: x[5], lambda: x[0]), r".* for entry 5 of"),
        (lambda x: jax.checkpoint(lambda x: x[6])(x), r".* for entry 6 of"),
    ],
)
def test_an_entry_that_an_array_does_not_have_is_refused(index, told):
    with pytest.raises(ValueError, match=f"^observation: it asks an array {told}.*JAX would silently give the nearest"):
        epf.bootstrap_filter(vector_state(lambda theta, x, u: dist.Normal(index(x), 0.5)), 8)


def turned(x):
    """The entry before, in turns of a loop whose first has none."""
    turn = lambda carried, _: ((carried[0] + 1, jnp.where(carried[0] >= 1, x[carried[0] - 1], carried[1])), None)  # noqa: E731
    return jax.lax.scan(turn, (jnp.int32(0), 0.0), None, length=2)[0][1]


def test_entries_that_an_array_has_are_left_alone():
    for index in (
        *(lambda x: x[1], lambda x: x[-2], lambda x: x[-1:][0], lambda x: jnp.eye(2)[-1, 0] + x[0]),
        lambda x: jax.lax.select_n(jnp.int32(1), 0.1, 0.2, 0.3) + x[0],
        lambda x: jnp.sum(jax.lax.dynamic_slice_in_dim(x, 1, 2)),  # which is meant to end with x
        turned,
    ):
        epf.bootstrap_filter(vector_state(lambda theta, x, u, index=index: dist.Normal(index(x), 0.5)), 8)


def test_a_parameter_that_x_was_asked_for_is_told_of():
    with pytest.raises(
        TypeError, match=r"'phi'(?s:.*)This came from transition, called as transition\(theta, x_prev, u\)"
    ):
        epf.extended_parameter_filter(ar1(transition=lambda a, b, c: dist.Normal(b["phi"] * a, 1.0)), 8)


def test_an_approximation_is_told_of_where_the_model_has_an_exact_filter():
    four = {name: dist.HalfNormal(1.0) for name in "kqrs"}
    irregular = ar1(
        prior=four,
        transition=lambda theta, x, u: dist.Normal(jnp.exp(-theta["k"] * u) * x, theta["q"] + theta["s"] * u),
        observation=lambda theta, x, u: dist.Normal(x, theta["r"]),
        row=1.0,
    )
    with pytest.warns(UserWarning, match=r"4 parameters get epf.assumed_density.*inner=epf.kalman\(model\)"):
        epf.extended_parameter_filter(irregular, 8)
    epf.extended_parameter_filter(irregular, 8, statistic=epf.assumed_density(irregular))  # no warning is an error


def test_a_model_that_reads_inputs_asks_for_them():
    reads_inputs = ar1(transition=lambda theta, x, u: dist.Normal(theta["phi"] * x + u["a"], 1.0))
    for part in (epf.taylor, epf.conjugate, epf.fully_adapted):
        with pytest.raises(AttributeError, match=r"waits for the first row.*for_inputs\(inputs\[0\]\)"):
            _ = part(reads_inputs).name
    with pytest.raises(TypeError, match=r"If the model reads inputs, give them: inputs=\.\.\. to run"):
        epf.run(KEY, epf.extended_parameter_filter(reads_inputs, 8), Y)


# --------------------------------------------------------------------------------------------------------- the filters

FILTERS = [
    epf.extended_parameter_filter,
    epf.storvik_filter,
    epf.bootstrap_filter,
    epf.liu_west_filter,
    epf.practical_filter,
]


@pytest.mark.parametrize("make", FILTERS)
def test_a_number_of_particles_that_is_no_positive_whole_number_is_refused(make):
    for wrong in (0, -1, 2.5, True, "10", None):
        with pytest.raises(ValueError, match=rf"^num_particles: expected a positive whole number, got {wrong!r}\. "):
            make(model(), wrong)


def test_a_whole_number_of_numpy_is_a_whole_number():
    assert epf.bootstrap_filter(model(), np.int64(5)).num_particles == 5


@pytest.mark.parametrize("make", FILTERS)
def test_what_is_no_model_is_refused(make):
    with pytest.raises(TypeError, match=r"^model: expected an epf\.StateSpaceModel, got int: 10\. Build one"):
        make(10, model())
    for part in (epf.taylor, epf.chebyshev, epf.conjugate, epf.separable, epf.frozen, epf.fully_adapted):
        with pytest.raises(TypeError, match=r"^model: expected an epf\.StateSpaceModel, got NoneType"):
            part(None)


@refuses(
    (
        r"^sampler: expected epf\.random_walk\(\).*got <function random_walk.*Call it",
        lambda: epf.extended_parameter_filter(model(), 8, sampler=epf.random_walk),
    ),
    (
        r"^sampler: expected .*got 'slice'",
        lambda: epf.extended_parameter_filter(model(), 8, sampler="slice"),
    ),
    (
        r"^sampler: expected .*got 'slice'",
        lambda: epf.taylor(model(), 2, sampler="slice"),
    ),
    (
        r"^proposal: expected epf\.bootstrap\(\).*got <function fully_adapted.*Call it",
        lambda: epf.extended_parameter_filter(model(), 8, proposal=epf.fully_adapted),
    ),
    (
        r"^proposal: expected .*got 'bootstrap'",
        lambda: epf.bootstrap_filter(model(), 8, proposal="bootstrap"),
    ),
    (
        r"^statistic: expected a Statistic.*got <function taylor.*Call it with the model",
        lambda: epf.extended_parameter_filter(model(), 8, statistic=epf.taylor),
    ),
    (
        r"^statistic: expected a Statistic.*got 'taylor'",
        lambda: epf.storvik_filter(model(), 8, statistic="taylor"),
    ),
    (
        r"^resample: expected a function.*such as epf\.systematic.*got 'systematic'",
        lambda: epf.extended_parameter_filter(model(), 8, resample="systematic"),
    ),
    (
        r"^resample: expected a function.*got <class '.*when_ess_below'>",
        lambda: epf.liu_west_filter(model(), 8, resample=epf.when_ess_below),
    ),
    (
        r"^resample: expected a function.*failed with TypeError",
        lambda: epf.bootstrap_filter(model(), 8, resample=lambda log_weights: log_weights),
    ),
    (
        r"^resample: expected a function.*returns float32 of shape \(8,\).*Return one index",
        lambda: epf.bootstrap_filter(model(), 8, resample=lambda key, log_weights: log_weights),
    ),
    (
        r"^resample: expected a function.*got 'systematic'",
        lambda: epf.bootstrap_filter(model(), 8, resample=epf.when_ess_below(0.5, "systematic")),
    ),
    (
        r"^kernel: expected a function kernel\(z, log_weights\).*got 'coordinate'",
        lambda: epf.liu_west_filter(model(), 8, kernel="coordinate"),
    ),
)
def test_parts_passed_as_strings_or_uncalled_are_refused(message, call):
    with pytest.raises(TypeError, match=message):
        call()


def test_a_resampling_threshold_outside_0_to_1_is_refused():
    for wrong in (1.5, -0.1, "half", float("nan")):
        with pytest.raises(ValueError, match=rf"^when_ess_below: fraction .*expected 0 to 1, got {wrong!r}"):
            epf.bootstrap_filter(model(), 8, resample=epf.when_ess_below(wrong, epf.systematic))
    with pytest.raises(ValueError, match=r"^when_ess_below: fraction .*got <function systematic"):
        epf.bootstrap_filter(model(), 8, resample=epf.when_ess_below(epf.systematic, 0.5))


def test_a_shrinkage_outside_0_to_1_is_refused():
    for wrong in (0, 1.1, -0.1, "a", None):
        with pytest.raises(ValueError, match=rf"^rho: expected a shrinkage above 0 and at most 1, got {wrong!r}\. "):
            epf.liu_west_filter(model(), 8, wrong)


def test_a_model_with_nothing_to_learn_is_refused_where_theta_is_learned():
    known = ar1(prior={}, transition=lambda theta, x, u: dist.Normal(0.5 * x, 1.0))
    for learn in (
        lambda: epf.extended_parameter_filter(known, 8),
        lambda: epf.liu_west_filter(known, 8),
        lambda: epf.chebyshev(known),
    ):
        with pytest.raises(ValueError, match="prior is empty, so there is no theta to learn"):
            learn()


# -------------------------------------------------------------------------------------------- statistics, samplers, ...


def test_an_order_that_is_no_positive_whole_number_is_refused():
    for wrong in (0, -1, 1.5, True, None):
        for make in (epf.taylor, epf.taylor_log_density):
            with pytest.raises(ValueError, match=rf"^order: expected a positive whole number, got {wrong!r}\. "):
                make(model(), order=wrong)


@refuses(
    (r"^centre: expected a theta .*\{'psi': 0\.0\}", lambda: epf.taylor(model(), 2, centre={"psi": 0.0})),
    (r"^centre: expected a theta .*shape \(2,\)", lambda: epf.taylor(model(), 2, centre={"phi": jnp.zeros(2)})),
    (r"^radius: expected a positive number.*got -1", lambda: epf.taylor_log_density(model(), 2, radius=-1)),
    (r"^shrink: expected a positive number.*or None.*got 0", lambda: epf.chebyshev(model(), shrink=0)),
    (
        r"^box: it holds only 0\.0% of the prior's mass.*Widen the box",
        lambda: epf.chebyshev(model(), box=({"phi": 30.0}, {"phi": 40.0})),
    ),
    (
        r"^box: every end must be finite.*lower end below its upper end, got.*1\.0.*-1\.0",
        lambda: epf.chebyshev(model(), box=({"phi": 1.0}, {"phi": -1.0})),
    ),
    (
        r"^box: every end must be finite and strictly inside the support",
        lambda: epf.chebyshev(ar1(prior={"phi": dist.Uniform(0.0, 1.0)}), box=({"phi": 0.0}, {"phi": 1.0})),
    ),
    (
        r"^box: expected \(lowest theta, highest theta\).*prior's structure, got \(-1\.0, 1\.0\)",
        lambda: epf.chebyshev(model(), box=(-1.0, 1.0)),
    ),
    (
        r"^box: expected \(lowest theta, highest theta\).*\{'psi': -1\.0\}",
        lambda: epf.chebyshev(model(), box=({"psi": -1.0}, {"psi": 1.0})),
    ),
    (
        r"^box: expected \(lowest theta, highest theta\).*not enough values",
        lambda: epf.chebyshev(model(), box=({"phi": -1.0},)),
    ),
    (
        r"^chebyshev: .*the prior has 4 \(theta\[0\], .*three is the most\. Use epf\.smc2_filter, or epf\.extended_parameter_filter",
        lambda: epf.chebyshev(
            ar1(
                prior=dist.Normal(jnp.zeros(4), 1.0).to_event(1),
                transition=lambda theta, x, u: dist.Normal(jnp.sum(theta) * x, 1.0),
            )
        ),
    ),
    (r"^num_nodes: expected a whole number of at least 2.*got 1\.$", lambda: epf.chebyshev(model(), 1)),
    (r"^num_nodes: expected a whole number of at least 2.*got 2\.5", lambda: epf.chebyshev(model(), 2.5)),
    (r"^num_nodes: .*one for each of the 1 parameters \(phi\), got \(3, 4\)", lambda: epf.chebyshev(model(), (3, 4))),
)
def test_wrong_options_of_taylor_and_chebyshev_statistics_are_refused(message, call):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("function", "primitive"), [(gammaln, "lgamma"), (jax.nn.softplus, "UnexpectedTracer")])
def test_what_jet_cannot_expand_is_named_at_high_orders_alone(function, primitive):
    curved = ar1(transition=lambda theta, x, u: dist.Normal(function(2.0 + theta["phi"]) * x, 1.0))
    with pytest.raises(
        ValueError, match=rf"^order: cannot expand the mean of the transition to order 9.* {primitive}.* Use epf\.cheby"
    ):
        epf.taylor(curved, order=9)
    statistic = epf.taylor(curved, order=3)
    x_prev, x, y = jnp.array([1.0, 0.5, 0.1])
    S = jax.jit(statistic.update)(KEY, statistic.init(), {"phi": 0.0}, x_prev, x, y, 1)

    def exact_term(phi):
        return -0.5 * (0.5 - function(2.0 + phi)) ** 2

    # Fourth derivatives are below 0.5: at 0.1 from the centre the mean is off by 0.5 * 1e-4 / 4! = 2e-6, the density by
    # that times a residual below 2, and float32 adds about 1e-6.
    expected = exact_term(0.1) - exact_term(0.0) + model().parameters.log_prior(jnp.array([0.1]))
    np.testing.assert_allclose(statistic.log_density(S, {"phi": 0.1}), expected, atol=1e-5)


@refuses(
    (
        r"^conjugate: the mean of the transition is not linear in theta\. Use epf\.chebyshev",
        lambda: epf.conjugate(epf.models.sinusoid()),
    ),
    (
        r"^conjugate: the mean of the transition is not linear.* epf\.extended_parameter_filter\(model, N\) takes any",
        lambda: epf.storvik_filter(epf.models.sinusoid(), 8),
    ),
    (
        r"^conjugate: the prior must be Gaussian, but holds a Uniform\. Use",
        lambda: epf.conjugate(ar1(prior={"phi": dist.Uniform(0.0, 1.0)})),
    ),
    (
        r"^conjugate: the noise of the observation depends on theta\. Use",
        lambda: epf.conjugate(ar1(observation=lambda theta, x, u: dist.Normal(x, jnp.exp(theta["phi"])))),
    ),
    (
        r"^conjugate: theta enters the transition, which is not Gaussian\. Use",
        lambda: epf.conjugate(epf.models.cauchy_ar1()),
    ),
    (
        r"^separable: theta enters the transition, so features and coefficients are needed",
        lambda: epf.separable(model()),
    ),
    (
        r"^features: expected shape \(m, 1\) or \(m,\) for the m = 1 coefficients.*got shape \(2,\)",
        lambda: epf.separable(model(), lambda x, u: jnp.stack([x, x]), lambda theta: theta["phi"][None]),
    ),
    (
        r"^coefficients: expected a vector.*got shape \(\)\. Put the m numbers",
        lambda: epf.separable(model(), lambda x, u: x[None], lambda theta: theta["phi"]),
    ),
    (
        r"^coefficients: calling it .*KeyError: 'psi'",
        lambda: epf.separable(model(), lambda x, u: x[None], lambda theta: theta["psi"][None]),
    ),
    (
        r"^features, coefficients: .*is not the mean of the model's transition",
        lambda: epf.separable(model(), lambda x, u: 2 * x[None], lambda theta: theta["phi"][None]),
    ),
    (
        r"^features.*not the mean of the model's transition\..* u = 2 ",
        lambda: epf.separable(
            ar1(transition=lambda theta, x, u: dist.Normal(theta["phi"] * x * u, 1.0)),
            lambda x, u: x[None],
            lambda theta: theta["phi"][None],
        ),
    ),
    (
        r"^features.*not the mean of the model's transition\..* u = 1 ",
        lambda: epf.separable(
            ar1(transition=lambda theta, x, u: dist.Normal(1e-6 * theta["phi"] * jnp.cos(x), 1e-6)),
            lambda x, u: 1e-6 * jnp.sin(x)[None],
            lambda theta: theta["phi"][None],
        ),
    ),
    (
        r"^statistic: it was built for another model\. Build both with the same object",
        lambda: epf.extended_parameter_filter(model(), 10, statistic=epf.taylor(ar1(), 2)),
    ),
    (
        r"^separable: the transition is not Gaussian\. Use",
        lambda: epf.separable(epf.models.cauchy_ar1(), lambda x, u: x[None], lambda theta: theta["a"][None]),
    ),
    (
        r"^fully_adapted: the transition is Cauchy, not Gaussian.*Use epf\.bootstrap",
        lambda: epf.fully_adapted(epf.models.cauchy_ar1()),
    ),
    (
        r"^fully_adapted: the mean of the observation is not linear in x.*Use epf\.bootstrap",
        lambda: epf.fully_adapted(ar1(observation=lambda theta, x, u: dist.Normal(x**2, 0.5))),
    ),
    (
        r"^fully_adapted: the noise of the observation depends on x.*Use epf\.bootstrap",
        lambda: epf.fully_adapted(ar1(observation=lambda theta, x, u: dist.Normal(x, jnp.exp(x)))),
    ),
    (
        r"^sampler: grid_sampler handles 1 parameter, but the prior has 2 \(a, b\)\. Use epf\.random_walk",
        lambda: epf.extended_parameter_filter(two_parameters(), 8, sampler=epf.grid_sampler()),
    ),
    (
        r"^sampler: the frozen statistic records nothing.*Leave the sampler out",
        lambda: epf.extended_parameter_filter(model(), 8, statistic=epf.frozen(model()), sampler=epf.random_walk()),
    ),
    (
        r"^prior: the parameter 'phi' has no finite centre and positive spread.*take a less vague prior",
        lambda: ar1(prior={"phi": dist.LogNormal(0.0, 1e-30)}),
    ),
    (
        r"^step_size: expected one number, or one for each of the 1 .*got shape \(3,\)",
        lambda: epf.extended_parameter_filter(model(), 8, sampler=epf.random_walk(jnp.ones(3))),
    ),
    (
        r"^width: expected one number, or one for each of the 2 .*got shape \(3,\)",
        lambda: epf.chebyshev(two_parameters(), sampler=epf.slice_sampler(jnp.ones(3))),
    ),
    (
        r"^proposal: q\(theta, x_prev, y, u\) draws x_t of shape \(2,\), but the model's state has shape \(\)",
        lambda: epf.bootstrap_filter(
            model(), 8, proposal=epf.guided(lambda theta, x, y, u: dist.Normal(jnp.zeros(2), 1.0))
        ),
    ),
    (r"^step_size: expected positive.*got -1\.0", lambda: epf.random_walk(-1.0)),
    (r"^step_size: expected positive.*got 'a'", lambda: epf.random_walk("a")),
    (r"^num_steps: expected a positive whole number, got 0", lambda: epf.random_walk(num_steps=0)),
    (r"^num_steps: expected a positive whole number, got 1\.5", lambda: epf.random_walk(num_steps=1.5)),
    (r"^width: expected positive widths.*got 0\.0", lambda: epf.slice_sampler(0.0)),
    (r"^max_steps_out: expected a positive whole number, got 0", lambda: epf.slice_sampler(max_steps_out=0)),
    (r"^max_shrinks: expected a positive whole number, got 1\.5", lambda: epf.slice_sampler(max_shrinks=1.5)),
    (r"^num_points: expected a whole number of at least 3, got 2", lambda: epf.grid_sampler(2)),
    (r"^half_width: expected a positive number.*got 0\.0", lambda: epf.grid_sampler(half_width=0.0)),
)
def test_parts_that_do_not_fit_the_model_are_refused_with_an_alternative(message, call):
    with pytest.raises(ValueError, match=message):
        call()


@refuses(
    (r"^q: expected a function q\(theta, x_prev, y, u\).*got 3", lambda: epf.guided(3)),
    (r"^q: it will be called as q\(theta, x_prev, y, u\)", lambda: epf.guided(lambda theta, x: dist.Normal(x, 1.0))),
    (
        r"^proposal: expected a distribution.*returned 0\.5",
        lambda: epf.bootstrap_filter(model(), 8, proposal=epf.guided(lambda theta, x, y, u: 0.5)),
    ),
    (r"^features: expected a function features\(x, u\).*got 3", lambda: epf.separable(model(), 3, 4)),
    (
        r"^features: it will be called as features\(x, u\)",
        lambda: epf.separable(model(), lambda x: x[None], lambda theta: theta["phi"][None]),
    ),
)
def test_functions_of_the_wrong_kind_are_refused(message, call):
    with pytest.raises(TypeError, match=message):
        call()


# ------------------------------------------------------------------------------------------------------ run, replicate


@refuses(
    (r"^y: the series is empty \(shape \(0,\)\)", lambda: epf.run(KEY, filter_(), jnp.zeros(0))),
    (r"^y: expected shape \(T,\).*got shape \(\)", lambda: epf.run(KEY, filter_(), 0.3)),
    (r"^y: .*shape \(T,\).*got shape \(3, 2\).*from_table", lambda: epf.run(KEY, filter_(), jnp.zeros((3, 2)))),
    (r"^y: expected finite numbers, got inf; write NaN", lambda: filter_().step(KEY, filter_().init(KEY), jnp.inf)),
    (r"^y: expected finite numbers, got -inf", lambda: filter_().step(KEY, filter_().init(KEY), jnp.array(-jnp.inf))),
    (
        r"^y: expected shape \(T, 2\).*got shape \(3,\)",
        lambda: epf.run(KEY, epf.bootstrap_filter(epf.models.pendulum(), 8), Y),
    ),
    (
        r"^y: 1 infinite value, the first at index \(2,\).*write NaN",
        lambda: epf.run(KEY, filter_(), jnp.array([0.0, jnp.nan, jnp.inf])),
    ),
    (
        r"^y: 2 infinite values, the first at index \(1,\).*write NaN",
        lambda: epf.run(KEY, filter_(), jnp.array([0.0, -jnp.inf, jnp.inf])),
    ),
    (
        r"^y: some components are missing.*first in row 1.*MultivariateStudentT.*make the whole row NaN",
        lambda: epf.run(
            KEY,
            epf.bootstrap_filter(vector_state(lambda theta, x, u: dist.MultivariateStudentT(5.0, x, jnp.eye(2))), 8),
            jnp.array([[0.1, 0.2], [jnp.nan, 0.1]]),
        ),
    ),
    (
        r"^y: the model observes whole numbers, and 2\.5 at index \(1,\) is none \(1 such\)\. Round",
        lambda: epf.run(KEY, counting(), [1.0, 2.5, None]),
    ),
    (
        r"^y: -2 at index \(1,\) lies outside of the support .*IntegerNonnegative\(lower_bound=0\) of Poisson \(1 such\)",
        lambda: epf.run(KEY, counting(), [1.0, -2.0, None]),
    ),
    (
        r"^y: -2 at index \(0, 1\) lies outside of the support",
        lambda: epf.replicate(jax.random.split(KEY, 1), counting(), jnp.array([[1, -2]])),
    ),
    (
        r"^y: 12 at index \(0, 1\) lies outside .*upper_bound=\[10\]\) of BinomialLogits \(2 such\)",
        lambda: epf.run(KEY, of_ten(), jnp.array([[1, 12], [0, 11]])),
    ),
    (
        r"^y: 1 infinite value, the first at index \(1,\) \(float32 has no number beyond 3\.4e\+38\)",
        lambda: epf.run(KEY, filter_(), np.array([1.0, 1e300, 2.0])),
    ),
    (
        r"^keys: there are no keys. Give one key for each run",
        lambda: epf.replicate(jax.random.split(KEY, 0), filter_(), Y),
    ),
    (
        r"^inputs: expected one row per observation, 3 rows, but it has shape \(2,\)\. Give",
        lambda: epf.run(KEY, filter_(), Y, inputs=jnp.zeros(2)),
    ),
    (
        r"^inputs\['b'\]: expected one row per observation, 3 rows, but it has shape \(2,\)",
        lambda: epf.run(KEY, filter_(), Y, inputs={"a": jnp.zeros(3), "b": jnp.zeros(2)}),
    ),
    (
        r"^levels: expected quantile levels strictly between 0 and 1, got \(0\.0, 0\.5\)",
        lambda: epf.run(KEY, filter_(), Y, levels=(0.0, 0.5)),
    ),
    (
        r"^levels: expected quantile levels strictly between 0 and 1, got \(0\.5, 1\.2\)",
        lambda: epf.replicate(jax.random.split(KEY, 2), filter_(), Y, levels=(0.5, 1.2)),
    ),
    (
        r"^state: expected the state of this filter, 8 particles.*Go on with the filter that made",
        lambda: epf.run(KEY, filter_(), Y, state=epf.storvik_filter(model(), 4).init(KEY)),
    ),
    (
        r"^y: 2 series came with 3 keys; give one key per series: jax\.random\.split\(key, 2\)\.$",
        lambda: epf.replicate(jax.random.split(KEY, 3), filter_(), jnp.zeros((2, 4))),
    ),
    (
        r"^inputs: expected shape \(3, 3, \.\.\.\), one series of rows for each key, got shape \(2, 3\)",
        lambda: epf.replicate(jax.random.split(KEY, 3), filter_(), Y, inputs=jnp.zeros((2, 3)), inputs_per_series=True),
    ),
    (
        r"^inputs: row 1 of series 2 \(the first is 0\) is NaN or infinite",
        lambda: epf.replicate(
            jax.random.split(KEY, 3),
            filter_(),
            Y,
            inputs=jnp.zeros((3, 3)).at[2, 1].set(jnp.nan),
            inputs_per_series=True,
        ),
    ),
    (
        r"^y: expected one observation of shape \(\).*got shape \(3,\)\. For a whole series use epf\.run",
        lambda: filter_().step(KEY, filter_().init(KEY), Y),
    ),
)
def test_data_that_do_not_fit_the_model_are_refused(message, call):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "observation",
    [
        lambda theta, x, u: dist.Uniform(x - 9.0, x + 9.0),  # whose support moves with x
        lambda theta, x, u: dist.StudentT(4.0, x, 1.0),
    ],
)
def test_a_support_that_is_not_known_beforehand_refuses_nothing(observation):
    results = epf.run(KEY, epf.bootstrap_filter(ar1(observation=observation), 8), jnp.array([0.5, -5.0]), levels=())
    assert np.isfinite(results.log_evidence[-1])


@refuses(
    (r"^y: expected numbers, got \['low', 'high'\]\. Give an array", lambda: epf.run(KEY, filter_(), ["low", "high"])),
    (r"^y: expected numbers, got array\(\['low'", lambda: epf.run(KEY, filter_(), np.array(["low", "high"]))),
    (r"^y: expected numbers, got \[0\.1, '-'\]\..*NaN where a value", lambda: epf.run(KEY, filter_(), [0.1, "-"])),
    (r"^y: expected real numbers, got dtype complex64", lambda: epf.run(KEY, filter_(), jnp.array([1.0 + 2.0j]))),
    (r"^y: expected real numbers, got dtype key", lambda: epf.run(KEY, filter_(), KEY)),
    (r"^y: expected real numbers, got dtype bool", lambda: epf.run(KEY, filter_(), jnp.array([True, False]))),
    (r"^inputs: expected numbers, got the text 'high'\. Give", lambda: epf.run(KEY, filter_(), Y, inputs="high")),
    (
        r"^inputs: expected real numbers, got dtype complex",
        lambda: epf.run(KEY, filter_(), Y, inputs=np.ones(len(Y)) + 2j),
    ),
    (r"^state, filter_: these are in the wrong order", lambda: epf.save("a.npz", filter_(), filter_().init(KEY))),
    (r"^key: expected a key, jax\.random\.key\(0\), got 0", lambda: epf.run(0, filter_(), Y)),
    (r"^key: expected a key.*array of shape \(3,\)", lambda: epf.run(jax.random.split(KEY, 3), filter_(), Y)),
    (r"^key: expected a key.*got an array.*int32", lambda: filter_().init(0)),
    (r"^key: expected a key.*got an array.*int32", lambda: filter_().step(0, filter_().init(KEY), 0.1)),
    (r"^state: expected the FilterState.*got an array", lambda: filter_().step(KEY, 1.0, 0.1)),
    (r"^state: expected the FilterState.*results\.final, got int", lambda: epf.run(KEY, filter_(), Y, state=3)),
    (r"^filter_: expected a filter.*got ArrayImpl\. The arguments are", lambda: epf.run(KEY, Y, filter_())),
    (r"^filter_: expected a filter.*got PRNGKeyArray\. The arguments are", lambda: epf.run(filter_(), KEY, Y)),
    (r"^filter_: expected a filter.*got StateSpaceModel", lambda: epf.run(KEY, model(), Y)),
    (r"^levels: expected a tuple of numbers.*got 0\.5", lambda: epf.run(KEY, filter_(), Y, levels=0.5)),
    (
        r"^run: expected the number of a run, 0 for the first, got 'shop'.*panel\.names\.index\(name\)",
        lambda: epf.replicate(jax.random.split(KEY, 2), filter_(), Y).one("shop"),
    ),
    (r"^history: expected True or False, got 'yes'", lambda: epf.run(KEY, filter_(), Y, history="yes")),
    (r"^diagnostics: expected True or False, got 'no'", lambda: epf.run(KEY, filter_(), Y, diagnostics="no")),
    (r"^keys: expected B keys, jax\.random\.split.*shape \(\)", lambda: epf.replicate(KEY, filter_(), Y)),
    (r"^keys: expected B keys, jax\.random\.split.*got 5", lambda: epf.replicate(5, filter_(), Y)),
    (r"^filter_: expected a filter", lambda: epf.replicate(jax.random.split(KEY, 2), Y, filter_())),
    (
        r"^filter_: a function that builds the filter needs hyper",
        lambda: epf.replicate(jax.random.split(KEY, 2), lambda hyper: filter_(), Y),
    ),
    (r"^state: .*The arguments are those of step\(key, state, y, u\)", lambda: filter_().step(KEY, Y, 0.1)),
    (
        r"has a mean, an sd and quantiles\. Write \.mean\['phi'\]",
        lambda: epf.run(KEY, filter_(), Y).theta["phi"],
    ),
    (
        r"^row: expected one row of the inputs, as numbers, got the text 'high'",
        lambda: dataclasses.replace(model(), row={"z": "high"}),
    ),
)
def test_arguments_of_run_of_the_wrong_kind_are_refused(message, call):
    with pytest.raises(TypeError, match=message):
        call()


# ----------------------------------------------------------------------------------------------------- simulate, theta


@pytest.mark.parametrize(
    "use",
    [
        lambda theta: epf.simulate(KEY, model(), theta, 3),
        lambda theta: epf.bootstrap_filter(model(), 8, theta=theta),
    ],
    ids=["simulate", "bootstrap_filter"],
)
def test_a_theta_unlike_the_prior_is_refused(use):
    with pytest.raises(ValueError, match=r"^theta: the parameter 'phi' should have shape \(\).*shape \(2,\)"):
        use({"phi": jnp.zeros(2)})
    for wrong, came in (
        ({"psi": 0.5}, r"\{'psi': 0\.5\}"),
        (0.5, r"0\.5"),
        ({"phi": 0.0, "psi": 1.0}, r"\{'phi': 0\.0, 'psi': 1\.0\}"),
    ):
        with pytest.raises(
            ValueError, match=rf"^theta: expected.*with shapes \{{'phi': \(\)\}}, got {came}\. Give one"
        ):
            use(wrong)
    with pytest.raises(ValueError, match=r"^theta: expected finite numbers, got.*nan"):
        use({"phi": jnp.nan})
    with pytest.raises(TypeError, match=r"^theta: expected numbers, got the text 'a'"):
        use({"phi": "a"})


def test_simulate_refuses_wrong_numbers_of_steps_inputs_and_keys():
    theta = {"phi": 0.5}
    for wrong in (0, -1, 2.5, True, "3"):
        with pytest.raises(ValueError, match=rf"^num_steps: expected a positive whole number, got {wrong!r}\. "):
            epf.simulate(KEY, model(), theta, wrong)
    with pytest.raises(ValueError, match=r"^inputs: expected one row per observation, 3 rows, but.* \(2,\)"):
        epf.simulate(KEY, model(), theta, 3, inputs=jnp.zeros(2))
    with pytest.raises(TypeError, match=r"^key: expected a key, jax\.random\.key\(0\), got 0"):
        epf.simulate(0, model(), theta, 3)
    with pytest.raises(TypeError, match=r"^key: expected a key.*got StateSpaceModel"):
        epf.simulate(model(), KEY, theta, 3)
    with pytest.raises(TypeError, match=r"^model: expected an epf\.StateSpaceModel, got Filter"):
        epf.simulate(KEY, filter_(), theta, 3)


# ------------------------------------------------------------------------------------------------------------- oracles

AXIS = jnp.linspace(-1.0, 1.0, 5)


@refuses(
    (
        r"^quadrature: the state must be a scalar, but has shape \(2,\)\..*exact\.kalman",
        lambda: exact.quadrature_log_evidence(
            epf.models.pendulum(), {"stiffness": 1.0, "damping": 1.0, "noise": 1.0}, jnp.zeros((3, 2)), AXIS
        ),
    ),
    (
        r"^nodes: expected one grid of G >= 2 states, shape \(G,\).*\(4, G\), got shape \(2, 5\)",
        lambda: exact.quadrature_log_evidence(model(), {"phi": 0.1}, Y, jnp.zeros((2, 5))),
    ),
    (
        r"^nodes: expected one grid of G >= 2 states.*got shape \(\)",
        lambda: exact.quadrature_log_evidence(model(), {"phi": 0.1}, Y, 3.0),
    ),
    (
        r"^y: nodes_around needs every observation.*give a fixed grid",
        lambda: exact.nodes_around(jnp.array([0.0, jnp.nan]), 1.0, 5),
    ),
    (
        r"^kalman: the transition must be Gaussian with a mean linear in x.*use exact\.quadrature",
        lambda: exact.kalman(epf.models.sinusoid(), Y, {"theta": AXIS}),
    ),
    (
        r"^kalman: the transition must be Gaussian",
        lambda: exact.kalman_log_evidence(epf.models.cauchy_ar1(), {"a": 0.1}, Y),
    ),
    (
        r"^kalman: the observation must be Gaussian with a mean linear in x",
        lambda: exact.kalman_log_evidence(ar1(observation=lambda theta, x, u: dist.Normal(x**2, 0.5)), {"phi": 0.1}, Y),
    ),
    (
        r"^kalman: the initial distribution must be Gaussian, but is Cauchy",
        lambda: exact.kalman_log_evidence(ar1(initial=lambda theta: dist.Cauchy(0.0, 1.0)), {"phi": 0.1}, Y),
    ),
    (
        r"^y: expected shape \(T,\).*got shape \(3, 2\)",
        lambda: exact.kalman_log_evidence(model(), {"phi": 0.1}, jnp.zeros((3, 2))),
    ),
    (
        r"^y: the series is empty \(shape \(0,\)\)",
        lambda: exact.quadrature_log_evidence(model(), {"phi": 0.1}, jnp.zeros(0), AXIS),
    ),
    (
        r"^x: expected shape \(T\+1,\).*got shape \(4, 2\)",
        lambda: exact.known_path(model(), jnp.zeros((4, 2)), {"phi": AXIS}),
    ),
    (
        r"^y: expected 3 observations for the path x_0\.\.x_3, got 4\. x_0 has none",
        lambda: exact.known_path(model(), jnp.zeros(4), {"phi": AXIS}, jnp.zeros(4)),
    ),
    (
        r"^theta: expected the prior's structure, with shapes \{'phi': \(\)\}",
        lambda: exact.kalman_log_evidence(model(), {"psi": 0.1}, Y),
    ),
    (
        r"^axes: expected one grid per parameter, with the prior's structure \{'phi'",
        lambda: exact.kalman(model(), Y, {"psi": AXIS}),
    ),
    (
        r"^axes: expected one grid per parameter, with the prior's structure \{'phi'",
        lambda: exact.kalman(model(), Y, AXIS),
    ),
    (
        r"^axes: each grid must be a vector of two or more increasing values",
        lambda: exact.kalman(model(), Y, {"phi": AXIS[::-1]}),
    ),
    (
        r"^axes: each grid must be a vector of two or more increasing values, got 0\.3",
        lambda: exact.kalman(model(), Y, {"phi": 0.3}),
    ),
    (
        r"^axes: after observation 1 no point of the grid has any density\. Move the grid",
        lambda: exact.kalman(ar1(prior={"phi": dist.Uniform(0.0, 1.0)}), Y, {"phi": AXIS + 3.0}),
    ),
    (
        r"^axes: grids are for scalar parameters",
        lambda: exact.kalman(
            ar1(
                prior=dist.Normal(jnp.zeros(2), 1.0).to_event(1),
                transition=lambda theta, x, u: dist.Normal(theta[0] * x + theta[1], 1.0),
            ),
            Y,
            AXIS,
        ),
    ),
)
def test_oracles_refuse_models_and_grids_that_they_cannot_handle(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_precision_other_than_the_filters_is_told_of():
    filter_ = epf.extended_parameter_filter(ar1(), 10)
    with jax.enable_x64(True), pytest.raises(TypeError, match=r"^filter_: .*went into the step as float32 .*float64"):
        epf.run(KEY, filter_, np.zeros(3))
