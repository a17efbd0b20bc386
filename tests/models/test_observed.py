"""The door: whatever numbers a user gives, those of their float64 values come in, or it is told what is lost."""

import decimal
import os
import warnings
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax.core.checks import check_key
from epf_jax.models.missing import as_observation, observed_number, of_one_kind
from epf_jax.models.observed import observed_batch, observed_series
from epf_jax.models.state_space import seen

MODEL = epf.StateSpaceModel(
    prior={"level": dist.Normal(0.0, 1.0)},
    initial=lambda theta: dist.Normal(0.0, 1.0),
    transition=lambda theta, x, u: dist.Normal(x, 1.0),
    observation=lambda theta, x, u: dist.Normal(theta["level"] + x, 1.0),
)
BILLIONS = [3_000_000_000, 5_000_000_000, 1_000_000_000, 4_000_000_000]
KINDS = {
    "int64": np.array(BILLIONS),
    "uint64": np.array(BILLIONS, np.uint64),
    "Python's": BILLIONS,
    "beyond int64": [number * 2**70 for number in BILLIONS],
    "big-endian": np.array(BILLIONS, ">i8"),
    "big-endian floats": np.array(BILLIONS, ">f8"),
    "longdouble": np.array(BILLIONS, np.longdouble),
    "Decimal": [decimal.Decimal(number) / 3 for number in BILLIONS],
    "Fraction": [Fraction(number, 7) for number in BILLIONS],
    "mixed": [decimal.Decimal(BILLIONS[0]), Fraction(BILLIONS[1]), None, float(BILLIONS[3])],
}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_every_kind_come_in_as_their_float64_values(kind):
    given = KINDS[kind]
    expected = np.array([np.nan if number is None else float(number) for number in given])
    series = observed_series(MODEL, given)
    np.testing.assert_allclose(series.values, expected, rtol=1e-6)
    assert series.values.dtype == jnp.float32
    batch = observed_batch(MODEL, [given, given], None, 2)
    assert batch.many
    np.testing.assert_allclose(batch.values[1], expected, rtol=1e-6)
    for number, value in zip(given, expected, strict=True):
        np.testing.assert_allclose(observed_number(number, MODEL), value, rtol=1e-6)
        np.testing.assert_allclose(of_one_kind("u", number), value, rtol=1e-6)
    if np.isfinite(expected).all():
        rows = observed_series(MODEL, np.zeros(4), {"volume": given}).inputs
        np.testing.assert_allclose(rows["volume"], expected, rtol=1e-6)


@pytest.mark.parametrize("kind", [np.float16, jnp.float16, jnp.bfloat16])
def test_floats_of_few_digits_are_computed_with_as_others_are(kind):
    given = (jnp if kind is jnp.bfloat16 else np).asarray([0.5, 1.0, 1.5], kind)
    for number in (given, jnp.asarray(given)):
        series = observed_series(MODEL, number, {"at": number})
        assert series.values.dtype == series.inputs["at"].dtype == jnp.float32
        assert as_observation(number[0], MODEL.shapes.y).dtype == jnp.float32


def test_what_no_float_holds_is_refused_as_infinite():
    with pytest.raises(ValueError, match="y: 1 infinite value"):
        observed_series(MODEL, [1.0, 10**400])
    with pytest.raises(ValueError, match="y: 1 infinite value"):
        observed_series(MODEL, [1.0, 1e300])
    with pytest.raises(ValueError, match=r"inputs\['v'\]: row 1"):
        observed_series(MODEL, [1.0, 2.0], {"v": [1.0, 1e300]})


SECONDS = 1_700_000_000 + np.arange(20)


@pytest.mark.parametrize(
    "given",
    [
        SECONDS.astype(float),
        SECONDS,
        SECONDS.tolist(),
        SECONDS.astype(np.longdouble),
        SECONDS * 1000,
        2**60 + np.arange(20),
        [2**80 + i for i in range(20)],
        [decimal.Decimal("1e20") + i for i in range(20)],
    ],
    ids=["float64", "int64", "list", "longdouble", "milliseconds", "2**60", "2**80", "Decimal"],
)
def test_steps_lost_to_rounding_are_told_of_for_y_and_inputs(given):
    with pytest.warns(RuntimeWarning, match="y: single precision rounds these numbers by"):
        observed_series(MODEL, given)
    with pytest.warns(RuntimeWarning, match=r"inputs\['at'\]: single precision rounds these numbers by"):
        observed_series(MODEL, np.zeros(20), {"at": given})
    with pytest.warns(RuntimeWarning, match="y: single precision rounds"):
        observed_batch(MODEL, [given, given], None, 2)


@pytest.mark.parametrize("given", [2**60 + np.arange(20), [decimal.Decimal("1e20") + i for i in range(20)]])
def test_double_precision_is_held_to_the_same(given, x64):
    with pytest.warns(RuntimeWarning, match="y: double precision rounds these numbers by"):
        observed_series(MODEL, given)


def test_numbers_near_zero_and_small_whole_ones_come_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (np.arange(20), np.linspace(0.0, 1.0, 20), np.array([3e9, 5e9, 1e9]), np.full(5, 2**60)):
            series = observed_series(MODEL, given, {"at": given})
            assert len(series.values) == len(given)
    assert observed_series(MODEL, np.arange(20)).values.dtype == jnp.int32  # as it was given: none is lost


def test_large_whole_numbers_are_told_of_before_float64_rounds_them():
    with pytest.warns(RuntimeWarning, match="column 'y': double precision rounds"):
        epf.from_table({"y": 2**60 + np.arange(20)})


def test_a_checked_series_is_trusted():
    series = observed_series(MODEL, [1.0, 2.0])
    assert observed_series(MODEL, series) is series


def test_missing_values_are_no_accident_that_debug_nans_looks_for():
    with jax.debug_nans(True):
        series = observed_series(MODEL, [1.0, None, 2.0])
        batch = observed_batch(MODEL, [[1.0, np.nan], [0.0, 2.0]], None, 2)
    np.testing.assert_array_equal(series.values, [1.0, np.nan, 2.0])
    np.testing.assert_array_equal(batch.values, [[1.0, np.nan], [0.0, 2.0]])


def test_a_child_process_that_would_hang_says_so(monkeypatch):
    key = jax.random.key(0)
    check_key(key)
    filter_ = epf.bootstrap_filter(MODEL, 4)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for call in (lambda: epf.run(key, filter_, [1.0]), lambda: filter_.step(key, None, 1.0), lambda: check_key(key)):
        with pytest.raises(RuntimeError, match=r"forked from one that had run JAX.*Start it anew"):
            call()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_old_style_keys_of_every_generator_are_keys(impl):
    key = check_key(jax.random.PRNGKey(0, impl=impl))
    assert jnp.array_equal(jax.random.key_data(key), jax.random.PRNGKey(0, impl=impl))
    with pytest.raises(TypeError, match="key: expected a key"):
        check_key(jnp.zeros(3, jnp.uint32))


READS = epf.StateSpaceModel(
    prior={"level": dist.Normal(0.0, 1.0)},
    initial=lambda theta: dist.Normal(0.0, 1.0),
    transition=lambda theta, x, u: dist.Normal(theta["level"] * x, jnp.sqrt(u["dt"])),
    observation=lambda theta, x, u: dist.Gamma(jnp.exp(x), 1.0),
)


def test_whoever_gives_a_series_gives_its_inputs():
    series = observed_series(READS, [1.0, 2.0], {"dt": [0.5, 1.0]})
    model = seen(READS, series.inputs)
    assert model.row == {"dt": 0.5}
    assert not model.wants_inputs
    assert model.parameters is READS.parameters
    assert seen(READS, observed_series(READS, [1.0], {"dt": [3.0]}).inputs) is model  # compiled once
    assert seen(MODEL, series.inputs) is MODEL
    assert READS.wants_inputs  # as it was
    with pytest.raises(ValueError, match="support of the model"):
        observed_series(READS, [1.0, -2.0], {"dt": [0.5, 1.0]})
    with pytest.raises(ValueError, match="expected one row per observation"):
        observed_series(READS, [1.0, 2.0], {"dt": 0.5})
    batch = observed_batch(READS, [1.0, 2.0], {"dt": np.ones((3, 2))}, 3, inputs_per_series=True)
    assert (batch.many, batch.many_inputs) == (False, True)
