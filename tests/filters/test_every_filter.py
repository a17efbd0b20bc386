"""Every filter, on a scalar, a vector and a dict theta: under jit, vmap and scan, in both precisions, online = offline.

Compiling is what costs here: tests of one (filter, model) share its compiled functions.
"""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import FILTERS, MODELS, TRUTHS, one_model_each

import epf_jax as epf

N, T = 32, 6
LEVELS = (0.1, 0.9)
QUICK = ["epf"]


@cache
def build(name, model_name, precision="float32"):
    model = MODELS[model_name]()
    return FILTERS[name](model, N), data(model_name, precision)


@cache
def data(model_name, precision):
    return epf.simulate(jax.random.key(0), MODELS[model_name](), TRUTHS[model_name], T)[1]


@cache
def whole_run(name, model_name):
    filter_, y = build(name, model_name)
    return epf.run(jax.random.key(1), filter_, y, levels=LEVELS)


def assert_same(a, b):
    """Equal to rounding: of sums of 32 numbers of size ten and less in float32, six times over."""
    chex.assert_trees_all_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "model_name"), one_model_each(FILTERS, quick_names=QUICK))
def test_stepping_equals_running_to_rounding_with_one_compilation(name, model_name):
    filter_, y = build(name, model_name)
    results = whole_run(name, model_name)
    key_init, key_steps = jax.random.split(jax.random.key(1))
    state = filter_.init(key_init)
    chex.clear_trace_counter()  # it counts by where a function is written: all models' together
    step = jax.jit(chex.assert_max_traces(lambda key, state, y: filter_.step(key, state, y), n=1))
    for t in range(T):
        state, info = step(jax.random.fold_in(key_steps, t + 1), state, y[t])
        assert_same((results.log_evidence[t], results.ess[t]), (state.log_evidence, info.ess))
    assert_same(results.final, state)
    assert np.all(np.isfinite(results.log_evidence))


@pytest.mark.parametrize(("name", "model_name"), one_model_each(FILTERS, quick_names=QUICK))
def test_everything_has_the_precision_asked_for_and_the_structure_of_theta(name, model_name, x64):
    filter_, y = build(name, model_name, "float64")
    results = epf.run(jax.random.key(1), filter_, y, levels=())
    floats = [leaf for leaf in jax.tree.leaves(results) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert all(leaf.dtype == jnp.float64 for leaf in floats)
    assert np.all(np.isfinite(results.log_evidence))
    assert jax.tree.structure(results.theta.mean) == jax.tree.structure(results.final.theta)
    with jax.enable_x64(False):
        single = [
            leaf for leaf in jax.tree.leaves(whole_run(name, model_name)) if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
    assert all(leaf.dtype == jnp.float32 for leaf in single)


@pytest.mark.parametrize(("name", "model_name"), one_model_each(FILTERS, quick_names=QUICK))
def test_filters_run_under_jit_and_vmap(name, model_name):
    filter_, y = build(name, model_name)
    keys = jnp.stack([jax.random.key(3), jax.random.key(1)])
    batch = jax.jit(jax.vmap(lambda key: epf.run(key, filter_, y, levels=()).log_evidence))(keys)
    # The vmapped program sums in another order: 6 steps, each off by a few eps = 1.2e-7 of numbers of size ~10.
    np.testing.assert_allclose(batch[1], whole_run(name, model_name).log_evidence, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "model_name"), one_model_each(FILTERS, ["dict"], quick_names=[]))
def test_a_series_cut_in_two_gives_the_same_numbers(name, model_name):
    filter_, y = build(name, model_name)
    first = epf.run(jax.random.key(1), filter_, y[:3], levels=LEVELS)
    second = epf.run(jax.random.key(1), filter_, y[3:], state=first.final, levels=LEVELS)
    whole = whole_run(name, model_name)
    assert_same(second.final, whole.final)
    assert_same(whole.log_evidence[3:], second.log_evidence)


@pytest.mark.parametrize(
    ("name", "model_name"),
    one_model_each(FILTERS, ["scalar", "vector"], quick_names=QUICK),
)
def test_missing_observations_leave_no_trace_of_nan(name, model_name):
    filter_, y = build(name, model_name)
    y = y.at[3].set(jnp.nan)
    y = y.at[1, 0].set(jnp.nan) if y.ndim > 1 else y
    results = epf.run(jax.random.key(1), filter_, y, levels=LEVELS)
    if filter_.max_steps is not None:  # it remembers the observations themselves, missing ones as they came
        S = results.final.S
        np.testing.assert_array_equal(S.memory.y[:T], y)
        results = results._replace(final=results.final._replace(S=S._replace(memory=None)))
    if filter_.max_steps is not None or name == "online_em":  # NaN at steps that try no move: now and then, or never
        results = results._replace(acceptance=jnp.zeros(T))
    results = results._replace(error=jnp.zeros(T))  # NaN where there are no groups
    for leaf in jax.tree.leaves(results):
        assert not np.any(np.isnan(leaf))
    assert int(results.num_bad_weights.sum()) == 0
    np.testing.assert_allclose(results.log_evidence[3], results.log_evidence[2], atol=1e-5)  # no data, no evidence


@pytest.mark.parametrize(("name", "model_name"), one_model_each(FILTERS, ["scalar"], quick_names=QUICK))
def test_particles_survive_a_step_of_zero_weights(name, model_name):
    filter_, y = build(name, model_name)
    with pytest.warns(RuntimeWarning, match=r"zero weight at 1 step \(first at t = 3"):
        results = epf.run(jax.random.key(1), filter_, y.at[2].set(1e25), levels=LEVELS)
    assert list(np.asarray(results.collapsed)) == [False, False, True, False, False, False]
    assert results.log_evidence[2] == -jnp.inf
    for leaf in jax.tree.leaves((results.final.x, results.final.theta, results.theta)):
        assert np.all(np.isfinite(leaf))
