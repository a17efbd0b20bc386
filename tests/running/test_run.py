"""Claims about running: progress, history, replication, memory."""

import mmap
import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import tiny

import epf_jax as epf
from epf_jax.core import compilation_cache
from epf_jax.core.machine import share_of_maps
from epf_jax.models.observed import observed_series
from epf_jax.running.records import log_scores
from epf_jax.running.run import DEFAULT_LEVELS, run_jitted

MODEL = epf.models.ar1()
FILTER = epf.storvik_filter(MODEL, 64)
Y = tiny.autoregression(12)
KEY = jax.random.key(1)
HIGHEST, HIGH = jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGH


@pytest.mark.slow
def test_a_progress_bar_changes_no_number(capsys):
    plain = epf.run(KEY, FILTER, Y)
    shown = epf.run(KEY, FILTER, Y, progress=True)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(shown), strict=True):
        np.testing.assert_array_equal(a, b)
    assert "12/12" in capsys.readouterr().err


@pytest.mark.slow
def test_history_is_kept_only_when_asked_for_and_agrees_with_the_summaries():
    assert epf.run(KEY, FILTER, Y).history is None
    results = epf.run(KEY, FILTER, Y, history=True)
    weights = np.exp(results.history.log_weights)
    assert results.history.theta["phi"].shape == weights.shape == results.history.ancestors.shape == (12, 64)
    np.testing.assert_allclose(
        (weights * results.history.theta["phi"]).sum(axis=1), results.theta.mean["phi"], rtol=1e-4, atol=1e-5
    )
    low = np.quantile(results.history.theta["phi"], 0.05, axis=1, method="inverted_cdf")
    # bisection stops at 2^-24 of the particles' range
    np.testing.assert_allclose(results.theta.quantiles["phi"][:, 0], low, atol=1e-5)


def test_a_run_that_goes_on_counts_on():
    first = epf.run(KEY, FILTER, Y[:9])
    with pytest.warns(RuntimeWarning, match=r"zero weight at 1 step \(first at t = 12\)"):
        second = epf.run(KEY, FILTER, np.append(Y[9:11], 1e25), state=first.final)
    assert np.isfinite(log_scores(first)).all()
    scores = log_scores(second)
    assert np.isnan(scores[0])  # what the first run had is not known
    assert float(scores[1]) == pytest.approx(float(second.log_evidence[1] - second.log_evidence[0]), rel=1e-6)


@pytest.mark.slow
def test_inputs_tell_one_series_of_vectors_from_a_series_for_each_key():
    model = epf.StateSpaceModel(
        prior={"phi": dist.Normal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x + u["z"], 1.0),
        observation=lambda theta, x, u: dist.Normal(jnp.stack([x, -x]), 0.5).to_event(1),
    )
    keys, inputs = jax.random.split(KEY, 3), {"z": jnp.zeros(5)}
    filter_ = epf.bootstrap_filter(model, 8)
    results = epf.replicate(keys, filter_, jnp.zeros((5, 2)), inputs=inputs)
    assert results.ess.shape == (3, 5)
    each = epf.replicate(keys, filter_, jnp.zeros((3, 5, 2)), inputs=inputs)
    np.testing.assert_allclose(each.log_evidence, results.log_evidence, rtol=1e-5)


@pytest.mark.slow
def test_replicate_runs_over_keys_and_over_series():
    keys = jax.random.split(jax.random.key(2), 3)
    shared = epf.replicate(keys, FILTER, Y)
    series = epf.replicate(keys, FILTER, jnp.stack([Y, Y, -Y]))
    assert shared.theta.mean["phi"].shape == (3, 12)
    assert shared.theta.quantiles["phi"].shape == (3, 12, 5)
    np.testing.assert_allclose(shared.log_evidence[:2], series.log_evidence[:2], rtol=1e-5)
    assert not np.allclose(series.log_evidence[2], shared.log_evidence[2])
    single = epf.run(keys[1], FILTER, Y)
    np.testing.assert_allclose(shared.theta.mean["phi"][1], single.theta.mean["phi"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_memory_of_a_run_grows_with_the_series_only_by_its_summaries():
    from epf_jax.running.run import _scan

    def temporary_bytes(num_steps):
        y = jnp.zeros(num_steps)
        state = jax.eval_shape(FILTER.init, KEY)
        u = jax.ShapeDtypeStruct((num_steps,), jnp.int32)
        lowered = _scan.lower(FILTER, (0.5,), False, None, KEY, state, y, u)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    short, long = temporary_bytes(100), temporary_bytes(1000)
    # nothing of size N * T: 900 more steps of 64 particles would take 230 kB
    assert long - short < 900 * 64 * 4 / 4


def test_old_style_keys_work_as_new_ones_do():
    old = epf.run(jax.random.PRNGKey(1), FILTER, Y)
    np.testing.assert_array_equal(old.log_evidence, epf.run(KEY, FILTER, Y).log_evidence)


def test_lists_and_numpy_arrays_are_observations_too():
    results = epf.run(KEY, FILTER, [float(v) for v in Y])
    np.testing.assert_array_equal(results.log_evidence, epf.run(KEY, FILTER, np.asarray(Y)).log_evidence)


@pytest.mark.slow
def test_every_process_traces_the_same_program_and_finds_it_in_the_cache():
    code = """if True:
        import jax, jax.numpy as jnp, epf_jax as epf, hashlib
        filter_ = epf.bootstrap_filter(epf.models.sinusoid(), 10, theta={"theta": 0.7}, proposal=epf.bootstrap())
        run = jax.jit(lambda key, y: epf.run(key, filter_, y))
        print(hashlib.md5(run.lower(jax.random.key(0), jnp.zeros(3)).as_text().encode()).hexdigest())"""
    # The order of a set of strings, as of the numbers of a numpyro distribution, hangs on the process's hash seed.
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "6")
    }
    assert len(told) == 1


def test_a_process_that_holds_too_many_programs_is_told_before_xla_crashes(monkeypatch):
    monkeypatch.setattr(compilation_cache, "share_of_maps", lambda: 0.8)
    with pytest.warns(RuntimeWarning, match=r"80% of the memory maps .* jax.clear_caches\(\)"):
        jax.eval_shape(lambda: epf.run(KEY, epf.bootstrap_filter(MODEL, 10), Y))
    if sys.platform == "linux":
        before, held = share_of_maps(), [mmap.mmap(-1, 4096, prot=mmap.PROT_READ) for _ in range(200)]
        assert 0.0 < before < share_of_maps() < 1.0
        assert len(held) == 200


def precisions(jaxpr):
    """Those asked for by the matrix products of a program, of its loops and of its parts."""
    found = set()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            found.add(eqn.params["precision"])
        for part in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda part: hasattr(part, "eqns")):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                found |= precisions(part)
    return found


@pytest.mark.slow
def test_a_gpu_may_not_round_matrix_products_unless_the_user_lets_it():
    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(3), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * jnp.ones((3, 3)) @ x, 1.0).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x, 1.0).to_event(1),
    )
    filter_, storvik, nodes = epf.bootstrap_filter(model, 8), epf.storvik_filter(model, 8), epf.node_filter(model, 4)
    y = jnp.zeros((2, 3))
    runs = [
        lambda: filter_.step(KEY, filter_.init(KEY), y[0]),
        lambda: epf.run(KEY, filter_, y, diagnostics=True),
        lambda: epf.simulate(KEY, model, {"a": 0.1}, 2),
        lambda: epf.forecast(KEY, filter_, filter_.init(KEY), 2),
        lambda: epf.replicate(jax.random.split(KEY, 2), filter_, y),
        lambda: epf.run(KEY, storvik, y),
        lambda: epf.run(KEY, nodes, y),
        lambda: jax.grad(lambda y: epf.run(KEY, filter_, y).x.quantiles.sum())(y),
        lambda: epf.exact.kalman_log_evidence(model, {"a": 0.1}, y),
    ]
    for run in runs:
        assert precisions(jax.make_jaxpr(run)()) == {(HIGHEST, HIGHEST)}
    with jax.default_matmul_precision("tensorfloat32"):
        assert precisions(jax.make_jaxpr(runs[0])()) == {(HIGH, HIGH)}


def test_the_kind_of_an_observation_is_asked_without_numbers():
    def observation(theta, x, u):
        assert isinstance(x, jax.core.Tracer)  # numpyro checks numbers by a program for each operation
        return dist.Poisson(jnp.exp(x))

    model = epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
        observation=observation,
    )
    assert observed_series(model, np.array([1, 2])).values.shape == (2,)
    with pytest.raises(ValueError, match="whole numbers"):
        observed_series(model, np.array([1.0, 2.5]))


def test_a_step_is_compiled_once_for_all_kinds_of_numbers():
    num_traced = []

    def observation(theta, x, u):
        num_traced.append(1)
        return dist.Normal(x, 1.0)

    model = epf.StateSpaceModel(
        prior={"phi": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, 1.0),
        observation=observation,
    )
    filter_ = epf.bootstrap_filter(model, 8, theta={"phi": 0.5})
    state = filter_.init(jax.random.key(0))
    first, _ = filter_.step(jax.random.key(1), state, 2.0)
    before = len(num_traced)
    for y in (2, np.float64(2.0), np.int32(2), np.float32(2.0), np.uint8(2)):
        again, info = filter_.step(jax.random.key(1), state, y)
        np.testing.assert_array_equal(again.x, first.x)
    assert len(num_traced) == before
    assert repr(first).startswith("<FilterState after 1 observation, 8 particles, log-evidence")
    assert repr(info).startswith("<StepInfo ess ")
    with pytest.raises(TypeError, match=r"^y: expected numbers, got the text '2'. Give one observation"):
        filter_.step(jax.random.key(1), state, "2")
    assert filter_.step._cache_size() == 1


def test_a_step_takes_masked_values_and_whole_numbers_of_any_size():
    state = FILTER.init(KEY)
    missing, masked = (FILTER.step(KEY, state, y)[0] for y in (np.nan, np.ma.masked_array(5.0, mask=True)))
    np.testing.assert_array_equal(missing.x, masked.x)
    by_hand = jax.jit(lambda y: FILTER.step(KEY, state, y)[0].x)(0.5)
    np.testing.assert_array_equal(by_hand, FILTER.step(KEY, state, 0.5)[0].x)
    large, real = (FILTER.step(KEY, state, y)[0].x for y in (2**40, 2.0**40))
    np.testing.assert_array_equal(large, real)


def test_states_and_reports_print_whatever_they_hold():
    state = FILTER.init(KEY)
    later, info = FILTER.step(KEY, state, 0.5)
    assert (
        repr(jax.vmap(lambda key: FILTER.init(key))(jax.random.split(KEY, 2)))
        == "<FilterState of 2 runs of 64 particles>"
    )
    shapes = jax.eval_shape(FILTER.init, KEY)
    for other in (shapes, jax.tree.map(lambda leaf: leaf.dtype, state), state._replace(theta=None), FILTER.by_particle):
        assert "FilterState" in repr(other)
    for other in (jax.tree.map(lambda leaf: leaf.dtype, info), type(info)(*[None] * 9), info._replace(ess=jnp.ones(3))):
        assert repr(other).startswith("StepInfo(")
    told = []
    jax.grad(lambda a: told.append(repr(later._replace(theta={"phi": a * later.theta["phi"]}))) or a)(1.0)
    assert "FilterState" in told[0]


def test_series_of_other_lengths_share_one_program():
    y = np.asarray(Y)
    epf.run(KEY, FILTER, y)
    programs = run_jitted._cache_size()
    results = epf.run(KEY, FILTER, y[:9])
    assert run_jitted._cache_size() == programs
    exact = run_jitted(FILTER, DEFAULT_LEVELS, False, None, False, KEY, None, y[:9], np.arange(1, 10))
    for found, wanted in zip(jax.tree.leaves(results), jax.tree.leaves(exact), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_a_run_of_unknown_length_has_the_gradient_of_a_scan():
    def log_evidence(scale, **options):
        model = epf.StateSpaceModel(
            prior={"phi": dist.Normal(0.0, 0.5)},
            initial=lambda theta: dist.Normal(0.0, 1.0),
            transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, scale),
            observation=lambda theta, x, u: dist.Normal(x, 1.0),
        )
        return epf.run(KEY, epf.bootstrap_filter(model, 16), Y[:5], levels=(), **options).log_evidence[-1]

    found = jax.value_and_grad(log_evidence)(0.7)
    wanted = jax.value_and_grad(partial(log_evidence, remat_every=2))(0.7)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
