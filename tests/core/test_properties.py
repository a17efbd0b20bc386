"""Properties that hold for whatever numbers, weights, polynomials, parameters and lines of text come.

Each claim is tried on a few examples, always the same, and on many more by `make test-all`.
"""

import functools
import json
import math
import types

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from scipy.special import logsumexp
from typer.testing import CliRunner

import epf_jax as epf
from epf_jax.apps.commands import app
from epf_jax.core.polynomials import evaluate, multiply, num_coefficients
from epf_jax.data.text_lines import LineError, LineReader, Observation, as_number
from epf_jax.data.timestamps import time_steps
from epf_jax.models.parameters import parameters
from epf_jax.particles.quantiles import quantiles
from epf_jax.particles.resampling import multinomial, residual, stratified, systematic
from epf_jax.particles.weights import ess, mean_and_sd, reweight

QUICK, MANY = 25, 500
N = 8  # one shape, one compilation


def claim(**strategies):
    """A test on a few examples, and a slow one of the same name and `_at_length` on many."""

    def tried(function, num):
        how = settings(max_examples=num, derandomize=True, deadline=None, database=None)
        return how(given(**strategies)(function))

    def wrap(function):
        twin = types.FunctionType(function.__code__, function.__globals__, f"{function.__name__}_at_length")
        function.__globals__[twin.__name__] = pytest.mark.slow(tried(twin, MANY))
        return tried(function, QUICK)

    return wrap


def vectors(elements, size=N):
    return st.lists(elements, min_size=size, max_size=size).map(lambda values: np.array(values, np.float32))


MODERATE = st.floats(-50, 50, width=32)
LOG_FACTORS = vectors(st.one_of(MODERATE, st.sampled_from([-math.inf, math.inf, math.nan])))
VALUES = vectors(st.floats(-1e3, 1e3, width=32))
jitted = functools.cache(jax.jit)


def normalised(log_weights):
    return (log_weights - logsumexp(log_weights.astype(float))).astype(np.float32)


# --------------------------------------------------------------------------------------------------------- weights


@claim(log_weights=vectors(MODERATE), log_factors=LOG_FACTORS)
def test_reweighting_normalises_and_counts_what_is_bad(log_weights, log_factors):
    before = normalised(log_weights)
    found = jitted(reweight)(before, log_factors)
    bad = np.isnan(log_factors) | (log_factors == np.inf)
    product = before.astype(float) + np.where(bad, -np.inf, log_factors)
    assert int(found.num_bad) == bad.sum()
    assert bool(found.collapsed) == bool(np.all(product == -np.inf))
    np.testing.assert_allclose(np.exp(found.log_weights).sum(), 1.0, atol=1e-5)
    assert 0.999 <= found.ess <= N * 1.001
    if found.collapsed:
        assert found.log_increment == -np.inf
        np.testing.assert_allclose(found.log_weights, before, atol=1e-4)
    else:
        # logs of up to 100 in float32: 24 bits leave 1e-5
        np.testing.assert_allclose(found.log_increment, logsumexp(product), atol=1e-4)
        np.testing.assert_allclose(found.log_weights, product - logsumexp(product), atol=1e-4)


@claim(log_weights=vectors(MODERATE), shift=st.floats(-100, 100, width=32), order=st.permutations(range(N)))
def test_the_effective_sample_size_knows_neither_scale_nor_order(log_weights, shift, order):
    one, other = jitted(ess)(log_weights), jitted(ess)(log_weights[order] + np.float32(shift))
    # shifting by 100 rounds logs to 1e-5, and so weights by 1e-5 of themselves
    np.testing.assert_allclose(one, other, rtol=1e-3)
    assert 0.999 <= one <= N * 1.001


@claim(values=VALUES, log_weights=vectors(MODERATE))
def test_moments_and_quantiles_are_numpys(values, log_weights):
    w = np.exp(log_weights - logsumexp(log_weights.astype(float)))
    mean, sd = jitted(mean_and_sd)(values, normalised(log_weights))
    expected = np.average(values, weights=w)
    scale = np.abs(values).max() + 1e-3
    np.testing.assert_allclose(mean, expected, atol=1e-5 * scale)
    np.testing.assert_allclose(sd, np.sqrt(np.average((values - expected) ** 2, weights=w)), atol=2e-3 * scale)
    levels = np.array([0.05, 0.5, 0.95], np.float32)
    found = np.asarray(jitted(quantiles)(values, normalised(log_weights), levels))
    assert np.all(np.diff(found) >= 0)
    assert values.min() - 1e-3 * scale <= found[0] <= found[-1] <= values.max() + 1e-3 * scale
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(w[order])
    for q, level in zip(found, levels, strict=True):
        # the quantile at a level a little lower or higher, where rounding of the weights may put it
        low, high = (values[order][min(np.searchsorted(reached, level + d), N - 1)] for d in (-1e-4, 1e-4))
        assert low - 1e-5 * scale <= q <= high + 1e-5 * scale


# ------------------------------------------------------------------------------------------------------- resampling

WEIGHTS = vectors(st.one_of(st.floats(-20, 0, width=32), st.just(-math.inf))).filter(lambda w: np.any(np.isfinite(w)))


@claim(log_weights=WEIGHTS, seed=st.integers(0, 2**31 - 1))
def test_resamplers_keep_the_number_and_never_choose_a_weight_of_zero(log_weights, seed):
    w = np.exp(log_weights - logsumexp(log_weights.astype(float)))
    for scheme in (multinomial, stratified, systematic, residual):
        ancestors = np.asarray(jitted(scheme)(jax.random.key(seed), log_weights))
        assert ancestors.shape == (N,)
        assert np.all((ancestors >= 0) & (ancestors < N))
        copies = np.bincount(ancestors, minlength=N)
        assert np.all(copies[w == 0] == 0), scheme
        if scheme is systematic:
            assert np.all(np.abs(copies - N * w) < 1 + 1e-4)
        if scheme is stratified:
            assert np.all(np.abs(copies - N * w) < 2 + 1e-4)
        if scheme is residual:
            assert np.all(copies >= np.floor(N * w - 1e-4))


# ------------------------------------------------------------------------------------------------------ polynomials

SIZES = st.sampled_from([(1, 4), (2, 2)])  # variables, degree
SMALL = st.floats(-2, 2, width=32)


@functools.cache
def polynomial_tools(num_variables, degree):
    return (
        jax.jit(lambda a, b: jnp.stack(multiply(list(a), list(b), num_variables, degree))),
        jax.jit(lambda a, z: evaluate(a, z, degree)),
        jax.jit(lambda a, z: evaluate(a, z, 2 * degree)),
    )


@claim(size=SIZES, data=st.data())
def test_a_products_value_is_the_product_of_values_in_either_order(size, data):
    num_variables, degree = size
    a, b = (data.draw(vectors(SMALL, num_coefficients(num_variables, degree))) for _ in range(2))
    z = data.draw(vectors(st.floats(-1, 1, width=32), num_variables))
    product, value, value_of_product = polynomial_tools(num_variables, degree)
    ab, ba = product(a, b), product(b, a)
    np.testing.assert_allclose(ab, ba, atol=1e-5)
    # at most 15 terms of at most 2 each in a and in b: products below 900, of which float32 keeps 1e-7
    np.testing.assert_allclose(value_of_product(ab, z), value(a, z) * value(b, z), atol=2e-3)
    if num_variables == 1:
        np.testing.assert_allclose(ab, np.convolve(a, b), atol=1e-4)
    np.testing.assert_allclose(product(a, a), np.asarray(product(a, a.copy())), atol=1e-5)


# ------------------------------------------------------------------------------------------------------- parameters

PRIORS = {
    "real, positive and bounded": {
        "level": dist.Normal(0.0, 1.0),
        "noise": dist.LogNormal(0.0, 1.0),
        "memory": dist.Uniform(-1.0, 1.0),
        "share": dist.Beta(2.0, 3.0),
    },
    "a vector of positive numbers": dist.Gamma(2.0 * jnp.ones(4), 1.0).to_event(1),
}


@functools.cache
def coordinates_of(name):
    return parameters(PRIORS[name])


@claim(name=st.sampled_from(list(PRIORS)), z=vectors(st.floats(-4, 4, width=32), 4))
def test_theta_and_its_unconstrained_vector_go_back_and_forth(name, z):
    coordinates = coordinates_of(name)
    theta = jitted(coordinates.to_theta)(z)
    # a logit of 4 sits at 0.982: float32 keeps it to 6e-8, which is 3e-6 of the logit
    np.testing.assert_allclose(jitted(coordinates.to_vector)(theta), z, atol=2e-4)
    again = jitted(coordinates.to_theta)(jitted(coordinates.to_vector)(theta))
    for one, other in zip(jax.tree.leaves(theta), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert np.isfinite(jitted(coordinates.log_prior)(z))


@functools.cache
def jacobian_of(name):
    flat = lambda z: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(coordinates_of(name).to_theta(z))])  # noqa: E731
    return jax.jit(lambda z: jnp.linalg.slogdet(jax.jacfwd(flat)(z))[1])


@claim(name=st.sampled_from(list(PRIORS)), z=vectors(st.floats(-4, 4, width=32), 4))
def test_the_jacobian_is_that_of_the_map(name, z):
    np.testing.assert_allclose(jitted(coordinates_of(name).log_jacobian)(z), jacobian_of(name)(z), atol=1e-3)


# ------------------------------------------------------------------------------------------------------------ lines

NUMBERS = st.one_of(st.floats(width=32, allow_infinity=False), st.integers(-(10**9), 10**9), st.none())
ROWS = st.lists(NUMBERS, min_size=3, max_size=3)


def as_array(row):
    return np.array([math.nan if value is None else value for value in row], np.float32)


@claim(row=ROWS, header=st.booleans(), spaces=st.sampled_from(["", " ", "  "]))
def test_numbers_survive_every_form_of_a_line(row, header, spaces):
    expected = as_array(row)
    cells = [spaces + ("" if value is None else repr(value)) for value in row]
    plain = [None if value is None or value != value else value for value in row]
    reader = LineReader((3,), dtype=np.float32)
    if header:
        assert reader.read(b"a,b,c\n") is None
    csv = reader.read((",".join(cells) + "\n").encode())
    as_list = LineReader((3,), dtype=np.float32).read(json.dumps(plain).encode())
    mixed = {"c": plain[2], "more": "text", "a": plain[0], "b": plain[1]}
    as_object = LineReader((3,), ("a", "b", "c"), dtype=np.float32).read(json.dumps(mixed).encode())
    for found in (csv, as_list, as_object):
        np.testing.assert_array_equal(found.y, expected)
    with pytest.raises(LineError, match="an object has no order"):
        LineReader((3,), dtype=np.float32).read(json.dumps(dict(zip("abc", plain, strict=True))).encode())


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)),
    max_leaves=10,
)
PIECES = st.sampled_from(
    ["1.5", "-2", "1e400", "NaN", "Infinity", "null", "true", ",", ",,", '"', "{", "}", "[", "]", ":", '"y"', '{"y": 1}',
     "[1, 2]", "y,z", " ", "\t", "\x00", "\ufeff", "\u2028", "1_000", "0x10", "--1", "1.5.2", "\uff19", "é", "[" * 3000, "9" * 5000]
)  # fmt: skip
LINES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(PIECES, max_size=6).map(lambda pieces: "".join(pieces).encode()),
    JSON.map(lambda value: json.dumps(value).encode()),
)


def reading(reader, line):
    """What a reader makes of a line: an observation or None, and the reason if it refuses."""
    try:
        return reader.read(line), None
    except LineError as error:
        return None, str(error)


@claim(
    lines=st.lists(LINES, max_size=5),
    shape=st.sampled_from([(), (1,), (2,)]),
    columns=st.sampled_from([(), ("y",), ("2", "1")]),
    inputs=st.sampled_from([(), ("u",)]),
    sequence=st.sampled_from([None, "n"]),
)
def test_any_line_is_an_observation_or_has_a_reason(lines, shape, columns, inputs, sequence):
    reader = LineReader(shape, columns, inputs, sequence, np.float32)
    for line in lines:
        found, reason = reading(reader, line)
        assert reason is None or (reason and "\n" not in reason)
        assert found is None or isinstance(found, Observation)
        if found is not None:
            assert found.y.shape == shape
            assert found.y.dtype == np.float32
            assert not np.any(np.isinf(found.y))
            assert found.u is None or all(math.isfinite(value) for value in found.u.values())


@claim(value=st.one_of(JSON, st.decimals(), st.fractions(), st.binary(max_size=4)))
def test_any_value_is_a_number_or_has_a_reason(value):
    try:
        number = as_number(value)
    except ValueError:
        return
    assert isinstance(number, float)
    assert not math.isinf(number)


@claim(steps=st.lists(st.floats(0.001, 1e3), min_size=2, max_size=20), first=st.floats(-1e3, 1e3))
def test_time_steps_add_up_to_the_time_that_passed(steps, first):
    stamps = np.cumsum([first, *steps])
    found = time_steps(stamps, "t", str, None, None)
    np.testing.assert_allclose(found[1:].sum(), stamps[-1] - stamps[0], rtol=1e-9)
    assert found[0] == found[1]


# ----------------------------------------------------------------------------------------------------------- stream


def fuzzed_lines(num, seed):
    """Lines of numbers, half of them damaged: cut, doubled, with bytes changed, inserted or taken from other lines."""
    rng = np.random.default_rng(seed)
    forms = (b"%r", b"[%r]", b'{"y": %r}', b"%r,%r")
    lines = []
    for _ in range(num):
        form = forms[rng.integers(len(forms))]
        line = bytearray(form.replace(b"%r", repr(float(rng.normal())).encode()))
        if rng.random() < 0.5:
            for _ in range(rng.integers(1, 4)):
                place = int(rng.integers(len(line) + 1))
                kind = rng.integers(3)
                line[place : place + (kind == 0) * 3] = bytes(rng.integers(1, 256, kind).astype(np.uint8).tolist())
        lines.append(bytes(line).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")
    return lines


def survives(folder, lines):
    """Stream the lines, and hold what is told against what a reader says of each alone."""
    # Its states are sines and noise: no observation, however far away, drives them out of what float32 holds.
    built = "epf.bootstrap_filter(epf.models.sinusoid(), 16, theta={'theta': 0.7}, proposal=epf.bootstrap())"
    (folder / "model.py").write_text(f"import epf_jax as epf\nfilter_ = {built}\n")
    reader, reasons, counted = LineReader((), dtype=np.float32), {}, 0
    for number, line in enumerate(lines, 1):
        found, reason = reading(reader, line)
        counted += found is not None
        reasons |= {number: reason} if reason else {}
    arguments = ["stream", f"{folder}/model.py:filter_", "--on-error"]
    skip = CliRunner().invoke(app, [*arguments, "skip"], input=b"".join(lines))
    assert skip.exit_code == 0
    assert [json.loads(line)["t"] for line in skip.stdout.splitlines()] == list(range(1, counted + 1))
    told = [line for line in skip.stderr.splitlines() if "the model all but rules it out; it was counted" not in line]
    assert told == [f"epf: line {n}: {reason}. Skipped." for n, reason in reasons.items()]
    stop = CliRunner().invoke(app, [*arguments, "stop"], input=b"".join(lines))
    assert stop.exit_code == 1
    assert stop.stderr.startswith(f"epf: line {min(reasons)}: ")
    return reasons


@pytest.mark.slow
def test_a_stream_of_damaged_lines_goes_on_or_stops_and_never_trips(tmp_path):
    assert 20 < len(survives(tmp_path, [b"0.5\n", *fuzzed_lines(100, seed=0)])) < 95


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_stream_of_many_damaged_lines_goes_on_or_stops_and_never_trips(tmp_path, seed):
    survives(tmp_path, [b"0.5\n", *fuzzed_lines(2000, seed)])


@pytest.mark.slow
@claim(seed=st.integers(0, 2**31 - 1), cut=st.integers(2, 8))
def test_a_run_cut_anywhere_goes_on_to_the_same_bits(seed, cut):
    # Pieces of one step are left out: XLA unrolls their loop, and seed 28413 cut at 1 differs in the last bit.
    filter_, key = _filter(), jax.random.key(seed)
    y = epf.simulate(key, filter_.model, {"phi": 0.8}, 10)[1]
    whole, head = epf.run(key, filter_, y), epf.run(key, filter_, y[:cut])
    rest = epf.run(key, filter_, y[cut:], state=head.final)
    for one, other in zip(jax.tree.leaves(rest.final), jax.tree.leaves(whole.final), strict=True):
        np.testing.assert_array_equal(one, other)


@functools.cache
def _filter():
    return epf.storvik_filter(epf.models.ar1(), 16)
