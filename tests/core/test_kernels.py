"""Kernels, in Pallas' interpreter: the same numbers as XLA's. (On a GPU the conformance tests run through them.)"""

import sys
import types
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax.core import loops, platforms
from epf_jax.core.kernels import cells
from epf_jax.core.kernels.cells import NotFusable
from epf_jax.core.kernels.on_chip import scan_on_chip
from epf_jax.core.kernels.vectors import ancestors_by_bisection, running_sum_by_blocks
from epf_jax.core.random import WORDS, stream
from epf_jax.filters.state import PARTICLES
from epf_jax.running.records import record

# Pallas tells of its own deprecations under jax 0.11; what they concern is inside jax.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

N, T = 48, 4


@cache
def linear_model():
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.5, 0.3), "b": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(
            jnp.stack([theta["a"] * x[0] + theta["b"], 0.5 * x[1]]), 1.0
        ).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x, 0.5).to_event(1),
    )


def filters():
    model = epf.models.sinusoid()
    return {
        "bootstrap": lambda: epf.bootstrap_filter(model, N, theta={"theta": 0.7}),
        "SIR, when the ESS is low": lambda: epf.bootstrap_filter(model, N, resample=epf.when_ess_below(0.5)),
        "EPF, Taylor 7": lambda: epf.extended_parameter_filter(
            model, N, statistic=epf.taylor(model, 7), proposal=epf.bootstrap()
        ),
        "two states, two parameters": lambda: epf.extended_parameter_filter(
            linear_model(), N, statistic=epf.taylor(linear_model(), 1), proposal=epf.bootstrap()
        ),
    }


SLOW = ["bootstrap", "two states, two parameters", "SIR, when the ESS is low"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in filters()])
def test_a_filter_on_chip_gives_the_numbers_of_a_scan(name):
    filter_ = filters()[name]()
    model = filter_.model
    theta = {"theta": 0.7} if model.shapes.y.shape == () else {"a": 0.5, "b": 0.2}
    truth = theta if model.parameters.dim else {}
    _, y = epf.simulate(jax.random.key(0), model, truth, T)
    y = y.at[1].set(jnp.nan)  # a missing observation, too
    rows = (jax.random.split(jax.random.key(2), T), y, jnp.arange(1, T + 1))

    def body(state, row):
        state, info = filter_.step(row[0], state, *row[1:])
        return state, record(state, info, (0.26, 0.77))  # no shares of 48

    state = filter_.init(jax.random.key(1))
    expected = jax.jit(lambda state, rows: jax.lax.scan(body, state, rows))(state, rows)
    found = jax.jit(lambda state, rows: scan_on_chip(body, N, PARTICLES, state, rows, interpret=True))(state, rows)
    # Sums are taken in another order: some 1e-6 of each number, grown by four steps of the filter.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), found, expected)


@cache
def noisy_level():
    return epf.StateSpaceModel(
        prior={"v": dist.InverseGamma(3.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x, jnp.sqrt(theta["v"])),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        noisy_level,
    ],
)
def test_filters_that_draw_variances_fit_on_chip(build, as_on_a_gpu):
    filter_ = epf.extended_parameter_filter(build(), N)
    assert filter_.statistic.name == "conjugate_blocks"
    rows = (jax.random.split(jax.random.key(2), T), jnp.array([0.3, jnp.nan, -0.8, 0.1]), jnp.arange(1, T + 1))
    step = lambda state, row: filter_.step(row[0], state, *row[1:])  # noqa: E731
    state = filter_.init(jax.random.key(1))
    expected = jax.jit(lambda state, rows: jax.lax.scan(step, state, rows))(state, rows)
    as_on_a_gpu()
    found = jax.jit(lambda state, rows: scan_on_chip(step, N, PARTICLES, state, rows, interpret=True))(state, rows)
    # As above, and variances are quotients of gamma draws.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), found, expected)


@pytest.mark.parametrize("num", [1, 1000, 1024, 5003])
def test_long_vectors_are_summed_and_searched_as_numpy_does(num):
    x = np.random.default_rng(0).integers(0, 100, num).astype(np.int32)
    np.testing.assert_array_equal(running_sum_by_blocks(jnp.asarray(x), interpret=True), np.cumsum(x))
    counts = np.sort(np.random.default_rng(1).integers(0, num + 1, num)).astype(np.int32)
    expected = np.searchsorted(counts, np.arange(num), side="right")
    np.testing.assert_array_equal(ancestors_by_bisection(jnp.asarray(counts), interpret=True), expected)


def on_chip(step, state, **options):
    return scan_on_chip(step, N, True, state, jnp.arange(3), interpret=True, **options)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda x, t: (jnp.sort(x), None), "the primitive 'sort', which has no rule"),
        (lambda x, t: (x[::-1], None), "the primitive 'rev'"),
        (lambda x, t: (x.at[:3].set(0.0), None), "the primitive"),
        (lambda x, t: (x, x[:5]), "a slice of the particles"),
        (lambda x, t: (x + jax.lax.fori_loop(0, 9, lambda i, v: v.reshape(1, N)[0], x), x.reshape(6, 8)), "takes the"),
    ],
    ids=["sort", "reverse", "scatter", "slice", "reshape"],
)
def test_what_has_no_rule_is_named(step, reason):
    with pytest.raises(NotFusable, match=reason):
        on_chip(step, jnp.zeros(N))


def test_arrays_of_keys_are_left_to_xla():
    def step(x, key):
        return x + jax.vmap(lambda key: jax.random.uniform(jax.random.split(key)[0]))(jax.random.split(key, 2))[0], None

    with pytest.raises(NotFusable, match=r"an array of keys, of shape \(2,\)"):
        scan_on_chip(step, N, True, jnp.zeros(N), stream(jax.random.split(jax.random.key(2), 3)), interpret=True)


@pytest.mark.parametrize("kind", [stream, lambda key: key], ids=["own", "threefry"])
def test_draws_on_chip_are_those_of_jax(kind):
    keys = kind(jax.random.split(jax.random.key(2), 3))
    step = lambda x, key: (x + jax.random.uniform(jax.random.split(key)[1], (N,)), None)  # noqa: E731
    expected, _ = jax.lax.scan(step, jnp.zeros(N), keys)
    found, _ = scan_on_chip(step, N, True, jnp.zeros(N), keys, interpret=True)
    np.testing.assert_array_equal(found, expected)


def test_keys_of_a_kind_that_kernels_do_not_know_are_named(monkeypatch):
    monkeypatch.delitem(WORDS, "key<fry>")
    step = lambda x, key: (x + jax.random.uniform(key, (N,)), None)  # noqa: E731
    with pytest.raises(NotFusable, match="random numbers of key<fry>"):
        scan_on_chip(step, N, True, jnp.zeros(N), jax.random.split(jax.random.key(2), 3), interpret=True)


@pytest.mark.parametrize("build", [epf.smc2_filter, epf.resample_move_filter])
def test_filters_that_remember_the_series_are_left_to_xla(build):
    filter_ = build(epf.models.ar1(), N, max_steps=T)
    rows = (jax.random.split(jax.random.key(2), T), jnp.zeros(T), jnp.arange(1, T + 1))
    state = jax.eval_shape(filter_.init, jax.random.key(1))

    def whole(state, rows):
        step = lambda state, row: filter_.step(row[0], state, *row[1:])  # noqa: E731
        return scan_on_chip(step, N, filter_.by_particle, state, rows, interpret=True)

    with pytest.raises(NotFusable, match="that all particles share"):
        jax.eval_shape(whole, state, rows)


def test_what_prints_is_left_to_xla():
    def telling(x, t):
        jax.debug.print("t is {}", t)
        return x + 1, None

    with pytest.raises(NotFusable, match="side effects: Debug"):
        on_chip(lambda x, t: jax.lax.cond(t > 1, telling, lambda x, t: (x, None), x, t), jnp.zeros(N))


def test_a_step_of_too_many_operations_is_left_to_xla(monkeypatch):
    monkeypatch.setattr(cells, "MAX_OPERATIONS", 5)
    with pytest.raises(NotFusable, match="more than 5 operations"):
        on_chip(lambda x, t: (x * 2 + 1 - x * 3 + x**2 - 4 * x, None), jnp.zeros(N))


def test_long_loops_count_as_often_as_they_turn(monkeypatch):
    monkeypatch.setattr(cells, "MAX_OPERATIONS", 100)

    def turning(times):  # two operations at a time
        return lambda x, t: (jax.lax.fori_loop(0, times, lambda i, v: 2 * v + 1, x), None)

    on_chip(turning(30), jnp.zeros(N))
    with pytest.raises(NotFusable, match="more than 100 operations a step"):
        on_chip(turning(60), jnp.zeros(N))


def test_double_precision_and_large_filters_are_left_to_xla(x64):
    with pytest.raises(NotFusable, match="an array of float64"):
        on_chip(lambda x, t: (x + 1, None), jnp.zeros(N))
    with pytest.raises(NotFusable, match="5000 particles, more than the 4096 of one block"):
        scan_on_chip(lambda x, t: (x, None), 5000, True, jnp.zeros(5000), jnp.arange(3))


@pytest.mark.slow
def test_for_a_gpu_a_run_becomes_one_kernel(monkeypatch):
    y = jnp.array([0.1, -0.4, 0.8])

    def evidence(noise):
        model = epf.models.sinusoid(noise=noise)
        filter_ = epf.bootstrap_filter(model, 16, theta={"theta": 0.7})
        return epf.run(jax.random.key(1), filter_, y, levels=()).log_evidence[-1]

    expected = jax.grad(evidence)(1.0)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # what is written for a GPU, lowered but not run
    for module in (loops, platforms):
        monkeypatch.setattr(module, "why_no_kernels", lambda: "")
    np.testing.assert_allclose(jax.grad(evidence)(1.0), expected, rtol=1e-4)
    gpu = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=gpu)):
        program = jax.jit(evidence).trace(1.0).lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("triton") >= 1
    assert "while" not in program.replace("while_", "")


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A process that takes its machine for one with a GPU, and has yet to try a kernel."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    platforms.why_no_kernels.cache_clear()
    yield
    platforms.why_no_kernels.cache_clear()


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("jax.experimental.pallas", None),
        ("jax.experimental.pallas.triton", None),
        ("jax.experimental.pallas.triton", types.ModuleType("triton")),  # with other names in it
    ],
    ids=["pallas", "triton", "its names"],
)
def test_without_pallas_xla_takes_over(name, gone, monkeypatch, on_a_gpu):
    monkeypatch.setitem(sys.modules, name, gone)
    package, _, last = name.rpartition(".")
    monkeypatch.delattr(sys.modules.get(package) or types.ModuleType(package), last, raising=False)
    assert platforms.why_no_kernels().startswith("Pallas fails with ")
    model = epf.models.ar1()
    filter_ = epf.bootstrap_filter(model, 16)
    program = jax.make_jaxpr(lambda key: epf.run(key, filter_, jnp.zeros(3)).log_evidence)(jax.random.key(0))
    assert "pallas_call" not in str(program)
    state = filter_.init(jax.random.key(0))
    assert "pallas_call" not in str(jax.make_jaxpr(filter_.step)(jax.random.key(1), state, 0.0))


@pytest.mark.gpu
def test_kernels_are_used_on_a_gpu():
    assert platforms.why_no_kernels() == ""


@pytest.mark.gpu
def test_a_small_filter_on_a_gpu_is_one_kernel_and_its_steps_are_the_run():
    filter_ = filters()["EPF, Taylor 7"]()
    _, y = epf.simulate(jax.random.key(0), filter_.model, {"theta": 0.7}, 20)
    key_init, key_steps = jax.random.split(jax.random.key(3))
    state = filter_.init(key_init)
    assert "pallas_call" in str(jax.make_jaxpr(filter_.step)(jax.random.key(1), state, y[0]))
    for t in range(20):
        state, _ = filter_.step(jax.random.fold_in(key_steps, t + 1), state, y[t])
    results = epf.run(jax.random.key(3), filter_, y)
    jax.tree.map(np.testing.assert_array_equal, results.final, state)
