"""Programs kept between processes: found again by their source, and by nothing else than the same source."""

import collections
import dataclasses
import functools
import logging
import math
import os
import shutil
import subprocess
import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax.core import caching
from epf_jax.core.sources import NamelessError, source_name

SLOPE = 0.5
Y = np.linspace(-1.0, 1.0, 6)


def drift(x):
    return SLOPE * x


def model_of(transition):
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )


def filter_of(transition):
    return epf.bootstrap_filter(model_of(transition), 8)


def plain(theta, x, u):
    return dist.Normal(theta["a"] * x, 1.0)


@pytest.fixture
def folder(tmp_path):
    """A folder where programs are kept for one test."""
    options = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in options}
    yield epf.cache_compiled_programs(tmp_path / "kept")
    caching._Kept.folder = None
    caching._Kept.at_hand.clear()
    for name, value in before.items():
        jax.config.update(name, value)


def programs(folder):
    return sorted(folder.glob("*.program"))


def test_the_folder_is_made_and_told_to_jax(folder):
    assert folder.is_dir()
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0.0


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder, error in ((3, TypeError), (tmp_path / "file", OSError), ("/proc/nope", OSError)):
        with pytest.raises(error, match=r"^folder: expected the path of a folder"):
            epf.cache_compiled_programs(folder)


def test_a_kept_program_gives_the_same_numbers_and_another_process_does_not_trace_it(folder):
    code = f"""if True:
        import sys
        import jax, numpy as np, numpyro.distributions as dist
        import epf_jax as epf
        from epf_jax.running.run import run_and_look
        epf.cache_compiled_programs({str(folder)!r})
        model = epf.StateSpaceModel(
            prior={{"a": dist.Normal(0.0, 1.0)}},
            initial=lambda theta: dist.Normal(0.0, 1.0),
            transition=lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
            observation=lambda theta, x, u: dist.Normal(x, 0.5),
        )
        filter_ = epf.bootstrap_filter(model, 8)
        first = epf.run(jax.random.key(1), filter_, np.linspace(-1.0, 1.0, 6))
        again = epf.run(jax.random.key(1), filter_, np.linspace(-1.0, 1.0, 6))
        assert first.log_evidence.tobytes() == again.log_evidence.tobytes()
        print(first.log_evidence.tobytes().hex(), run_and_look._cache_size())"""

    def told(seed):
        env = {**os.environ, "PYTHONHASHSEED": seed, "JAX_ENABLE_X64": "0"}
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True).stdout

    compiled, loaded = told("1").split(), told("2").split()
    assert len(programs(folder)) == 1
    assert compiled[0] == loaded[0]
    assert loaded[1] == "0"  # nothing was traced
    caching._Kept.folder = None
    without = epf.run(jax.random.key(1), filter_of(lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0)), Y)
    assert np.asarray(without.log_evidence).tobytes().hex() == compiled[0]


@pytest.mark.slow
def test_other_shapes_options_and_precisions_are_other_programs(folder):
    filter_ = filter_of(plain)
    key = jax.random.key(0)
    epf.run(key, filter_, Y)
    epf.run(jax.random.key(1), filter_, -Y)
    assert len(programs(folder)) == 1
    epf.run(key, filter_, Y[:3])
    epf.run(key, filter_, Y, levels=(0.5,))
    assert len(programs(folder)) == 3
    with jax.enable_x64(True):
        epf.run(key, filter_of(plain), Y)
    assert len(programs(folder)) == 4
    slope = jax.grad(lambda shift: epf.run(key, filter_, jnp.asarray(Y) + shift).log_evidence[-1])(0.1)
    assert np.isfinite(slope)
    assert len(programs(folder)) == 4  # a gradient goes jax's own way


@pytest.mark.slow
def test_a_program_goes_on_from_a_state(folder):
    filter_, key = filter_of(plain), jax.random.key(0)
    whole, half = epf.run(key, filter_, Y), epf.run(key, filter_, Y[:3])
    rest = epf.run(key, filter_, Y[3:], state=half.final)
    np.testing.assert_array_equal(rest.log_evidence, whole.log_evidence[3:])
    assert len(programs(folder)) == 3


@pytest.mark.slow
def test_a_damaged_file_is_said_to_be_and_compiled_again(folder):
    expected = epf.run(jax.random.key(0), filter_of(plain), Y).log_evidence
    (path,) = programs(folder)
    path.write_bytes(path.read_bytes()[:1000])
    caching._Kept.at_hand.clear()
    with pytest.warns(RuntimeWarning, match="could not be read .* compiled again"):
        found = epf.run(jax.random.key(0), filter_of(plain), Y).log_evidence
    np.testing.assert_array_equal(found, expected)
    assert path.stat().st_size > 1000


def test_a_model_that_calls_back_or_prints_is_not_kept_whole_and_says_why(folder, caplog):
    def telling(theta, x, u):
        jax.debug.print("x is {}", x)
        return dist.Normal(theta["a"] * x, 1.0)

    def printing(theta, x, u):
        print("traced")
        return dist.Normal(theta["a"] * x, 1.0)

    with caplog.at_level(logging.INFO, "epf_jax.core.caching"):
        for transition in (telling, printing):
            assert np.isfinite(epf.run(jax.random.key(0), filter_of(transition), Y).log_evidence).all()
    assert programs(folder) == []
    assert "calls back to Python" in caplog.text
    assert "`print`, which is not known to be pure" in caplog.text


@pytest.mark.slow
def test_what_was_traced_before_a_global_changed_is_not_stored(folder, monkeypatch):
    this = sys.modules[__name__]
    monkeypatch.setattr(this, "GAIN", 0.5)
    filter_ = filter_of(lambda theta, x, u: dist.Normal(gain(x), 1.0))
    caching._Kept.folder = None
    epf.run(jax.random.key(0), filter_, Y)
    monkeypatch.setattr(this, "GAIN", 0.9)
    caching._Kept.folder = folder
    found = epf.run(jax.random.key(0), filter_, Y).log_evidence
    caching._Kept.folder = None
    jax.clear_caches()
    np.testing.assert_array_equal(found, epf.run(jax.random.key(0), filter_, Y).log_evidence)


GAIN = 0.5


@jax.jit
def gain(x):
    return GAIN * x


@jax.tree_util.register_pytree_node_class
class Picky:
    """Inputs that take nothing but arrays."""

    def __init__(self, values):
        if not hasattr(values, "shape"):
            raise TypeError("arrays alone")
        self.values = values

    def tree_flatten(self):
        return (self.values,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_objects_that_do_not_bear_to_be_looked_into_go_jaxs_own_way(folder, caplog):
    config = AttrDict(scale=1.0)
    with caplog.at_level(logging.INFO, "epf_jax.core.caching"):
        epf.run(jax.random.key(0), filter_of(lambda theta, x, u: dist.Normal(theta["a"] * x, config.scale)), Y)
        driven = filter_of(lambda theta, x, u: dist.Normal(theta["a"] * x + getattr(u, "values", u), 1.0))
        epf.run(jax.random.key(0), driven, Y, inputs=Picky(jnp.ones(6)))
    assert programs(folder) == []
    assert caplog.text.count("is not kept whole") == 2


def test_a_folder_that_is_gone_is_told_of_and_costs_no_result(folder):
    shutil.rmtree(folder)
    with pytest.warns(RuntimeWarning, match="could not be stored"):
        results = epf.run(jax.random.key(0), filter_of(plain), Y)
    assert np.isfinite(results.log_evidence).all()


@pytest.mark.slow
def test_programs_are_found_again_where_there_are_several_devices(tmp_path):
    code = f"""if True:
        import warnings
        warnings.simplefilter("error")
        import jax
        jax.config.update("jax_num_cpu_devices", 2)
        import numpy as np
        import epf_jax as epf
        from epf_jax.running.run import run_and_look
        epf.cache_compiled_programs({str(tmp_path)!r})
        filter_ = epf.bootstrap_filter(epf.models.ar1(), 8)
        print(epf.run(jax.random.key(1), filter_, np.linspace(-1.0, 1.0, 6)).log_evidence[-1], run_and_look._cache_size())
        """
    told = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)]
    assert told[0] == told[1]
    assert len(programs(tmp_path)) == 1


# ------------------------------------------------------------------------------------------------ names of sources


def shifted(by):
    return lambda theta, x, u: dist.Normal(theta["a"] * x + by, 1.0)


def test_equal_sources_have_equal_names():
    assert source_name(filter_of(shifted(0.5))) == source_name(filter_of(shifted(0.5)))
    array = np.arange(3.0)
    assert source_name(filter_of(shifted(array.sum()))) == source_name(filter_of(shifted(np.arange(3.0).sum())))


def _with_default(theta, x, u, by=0.0):
    return dist.Normal(theta["a"] * x + by, 1.0)


def _with_another_default(theta, x, u, by=1.0):
    return dist.Normal(theta["a"] * x + by, 1.0)


def _by_helper(theta, x, u):
    return dist.Normal(drift(x) + theta["a"], 1.0)


class Scale(float):
    """A number of the user's own, whose value is not among its attributes."""


class Config(NamedTuple):
    """Settings as people keep them."""

    scale: float


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings as other people keep them."""

    scale: float


class AttrDict(dict):
    """A dict that answers to any name, and raises the wrong error for those that it does not have."""

    __getattr__ = dict.__getitem__


class Table:
    """Something of the user's own, with numbers inside."""

    def __init__(self, numbers):
        self.numbers = numbers


def test_whatever_a_function_reads_is_in_its_name(monkeypatch):
    this = sys.modules[__name__]
    helper = types.ModuleType("helper_of_the_users")
    helper.gain = 2.0
    monkeypatch.setattr(this, "helper", helper, raising=False)

    by_module = types.FunctionType(
        compile("lambda theta, x, u: dist.Normal(helper.gain * x, 1.0)", "<test>", "eval").co_consts[0], vars(this)
    )
    names = [
        source_name(function)
        for function in (
            shifted(0.5),
            shifted(0.25),
            shifted(jnp.float32(0.5)),
            shifted(float("0.5")),
            shifted(Table(0.5)),
            shifted(Table(0.25)),
            lambda theta, x, u: dist.Normal(theta["a"] * x, 1.0),
            lambda theta, x, u: dist.Normal(theta["a"] * x, 2.0),
            lambda theta, x, u: dist.Normal(theta["a"] + x, 2.0),
            _with_default,
            _with_another_default,
            _by_helper,
            by_module,
        )
    ]
    assert len(set(names)) == len(names) - 1  # the fourth is the first
    monkeypatch.setattr(this, "SLOPE", 0.75)
    assert source_name(_by_helper) != names[-2]
    helper.gain = 3.0
    assert source_name(by_module) != names[-1]
    before = source_name(Table(1.0))
    assert before == source_name(Table(1.0)) != source_name(Table(2.0))
    monkeypatch.setattr(Table, "scale", lambda self: 2.0 * self.numbers, raising=False)
    assert source_name(Table(1.0)) != before


def _reads_a_file(theta, x, u):
    return dist.Normal(float(open("numbers").read()), 1.0)


def _draws(theta, x, u):
    return dist.Normal(np.random.normal(), 1.0)  # noqa: NPY002


def _knows_the_time(theta, x, u):
    import time

    return dist.Normal(time.time(), 1.0)


def _asks_the_system(theta, x, u):
    return dist.Normal(len(os.environ), 1.0)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (_reads_a_file, "`open`"),
        (_draws, "`np`"),
        (_knows_the_time, "an import of time"),
        (lambda x: np.load("numbers.npy"), "`np`, there on `load`"),
        (lambda x: np.random.RandomState(0).normal(), "`np`"),
        (lambda x: np.loadtxt("numbers"), "`np`"),
        (shifted(np), "cannot be looked into"),
        (shifted(np.ma.masked_array([1.0], [True])), "cannot be looked into"),
        (shifted(np.frompyfunc(lambda x: x, 1, 1)), "not known to be pure"),
        (shifted(collections.defaultdict(float)), "cannot be looked into"),
        (shifted(Scale(2.0)), "cannot be looked into"),
        (shifted(ValueError("2")), "cannot be looked into"),
        (_asks_the_system, "`os`"),
        (shifted(iter([])), "cannot be looked into"),
        (shifted(np.array([None])), "an array of objects"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_not_known_to_be_pure_has_no_name(function, why):
    with pytest.raises(NamelessError, match=why):
        source_name(function)


def with_rule(by):
    @jax.custom_jvp
    def f(x):
        return x

    f.defjvp(lambda primals, tangents: (primals[0], by * tangents[0]))
    return lambda x: f(x)


def wrapped(by):
    @functools.wraps(math.sin)
    def f(x):
        return by * jnp.sin(x)

    return f


def with_attribute(by):
    def f(x):
        return f.scale * x

    f.scale = by
    return f


@pytest.mark.parametrize(
    "build", [with_rule, wrapped, with_attribute, lambda by: shifted(Config(by)), lambda by: shifted(Settings(by))]
)
def test_rules_attributes_and_settings_are_part_of_a_name(build):
    assert source_name(build(2.0)) == source_name(build(2.0)) != source_name(build(3.0))


def test_functions_of_math_and_numpy_have_names():
    names = {
        source_name(lambda x: math.sin(x)),
        source_name(lambda x: np.sin(x)),
        source_name(lambda x: jnp.sin(x)),
        source_name(lambda x: jax.nn.sigmoid(x)),
        source_name(lambda x: jax.scipy.special.ndtri(x)),
    }
    assert len(names) == 5


@pytest.mark.parametrize(
    "build",
    [
        lambda m: epf.extended_parameter_filter(m, 8),
        lambda m: epf.extended_parameter_filter(m, 8, statistic=epf.taylor(m, order=2)),
        lambda m: epf.extended_parameter_filter(m, 8, statistic=epf.assumed_density(m)),
        lambda m: epf.storvik_filter(m, 8, resample=epf.when_ess_below(0.5, epf.stratified)),
        lambda m: epf.liu_west_filter(m, 8),
        lambda m: epf.node_filter(m, 4),
        lambda m: epf.node_filter(m, inner=epf.sigma_points(m)),
        lambda m: epf.resample_move_filter(m, 8, max_steps=6),
        lambda m: epf.practical_filter(m, 8),
        lambda m: epf.smc2_filter(m, 8, max_steps=6),
        lambda m: epf.smc2_filter(m, 8, max_steps=6, inner=epf.kalman(m)),
        lambda m: epf.online_em(m, 8),
    ],
)
def test_every_filter_has_a_name_and_its_model_is_part_of_it(build):
    assert source_name(build(model_of(plain))) == source_name(build(model_of(plain)))
    assert source_name(build(model_of(plain))) != source_name(build(model_of(_by_helper)))


def test_few_programs_are_at_hand_and_the_one_not_called_for_longest_goes(monkeypatch):
    monkeypatch.setattr(caching, "_MOST", 2)
    monkeypatch.setattr(caching._Kept, "at_hand", collections.OrderedDict())
    for call, program in {"first": len, "not kept": None, "second": len, "third": len}.items():
        caching._put_at_hand(call, program)
    assert list(caching._Kept.at_hand) == ["not kept", "second", "third"]
