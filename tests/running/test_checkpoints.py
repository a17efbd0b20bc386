"""Claims about checkpoints: what comes back is what was, nothing else gets in, and a kill at any moment loses nothing."""

import json
import pathlib
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import tiny
from killing import hammer

import epf_jax as epf
from epf_jax.core.files import BusyError, held, write_atomically
from epf_jax.data.text_lines import LineReader
from epf_jax.running.checkpoints import write_checkpoint
from epf_jax.running.streaming import Stream

MODEL = epf.models.ar1()
ROUNDING = 0.0 if jax.default_backend() == "cpu" else 1e-6  # of summaries: on a GPU run's are computed in its kernel
FILTER = epf.storvik_filter(MODEL, 64)
KEY = jax.random.key(1)
Y = tiny.autoregression(12)


@pytest.fixture(scope="module")
def whole():
    return epf.run(KEY, FILTER, Y)


@pytest.fixture(scope="module")
def half():
    return epf.run(KEY, FILTER, Y[:6])


@pytest.fixture
def path(tmp_path, half):
    epf.save(tmp_path / "state.epf", half.final, FILTER)
    return tmp_path / "state.epf"


def equal(a, b):
    chex.assert_trees_all_equal(a, b, strict=True)


def test_what_comes_back_is_what_was_saved_bit_for_bit(path, half):
    equal(epf.load(path, FILTER), half.final)


def test_a_filter_built_anew_reads_the_state(path, half):
    equal(epf.load(path, epf.storvik_filter(epf.models.ar1(), 64)), half.final)


def test_stop_and_resume_equals_never_having_stopped_bit_for_bit(path, whole, half):
    rest = epf.run(KEY, FILTER, Y[6:], state=epf.load(path, FILTER))
    equal(rest.final, whole.final)
    np.testing.assert_array_equal(
        np.concatenate([half.theta.mean["phi"], rest.theta.mean["phi"]]), whole.theta.mean["phi"]
    )
    np.testing.assert_array_equal(np.concatenate([half.log_evidence, rest.log_evidence]), whole.log_evidence)


def test_stop_and_resume_between_single_steps_equals_run(path, whole):
    state = epf.load(path, FILTER)
    for t in range(6, 12):
        state, _ = FILTER.step(jax.random.fold_in(jax.random.split(KEY)[1], t + 1), state, Y[t])
        epf.save(path, state, FILTER)
        state = epf.load(path, FILTER)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), state, whole.final)  # to rounding


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["epf", "epf_chebyshev_adaptive", "liu_west_auxiliary", "sir", "bootstrap_known_theta"]
)
@pytest.mark.parametrize("kind", ["vector", "dict"])
def test_every_kind_of_filter_resumes_bit_for_bit_in_both_precisions(name, kind, precision, tmp_path):
    from conformance import FILTERS, MODELS, TRUTHS

    model = MODELS[kind]()
    filter_ = FILTERS[name](model, 16)
    y = epf.simulate(jax.random.key(0), model, TRUTHS[kind], 6)[1]
    epf.save(tmp_path / "state", epf.run(KEY, filter_, y[:3]).final, filter_)
    equal(
        epf.run(KEY, filter_, y[3:], state=epf.load(tmp_path / "state", filter_)).final, epf.run(KEY, filter_, y).final
    )


def refuses(path, message, filter_=FILTER):
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(epf.CheckpointError, match=message):
        epf.load(path, filter_)
    assert before is None or path.read_bytes() == before


def noisier():
    return epf.StateSpaceModel(MODEL.prior, MODEL.initial, MODEL.transition, lambda theta, x, u: dist.Normal(x, 0.6))


@pytest.mark.slow
def test_the_state_of_another_model_or_filter_is_refused_with_what_differs(path):
    refuses(path, "the model's observation is not what it was", epf.storvik_filter(noisier(), 64))
    refuses(path, "the model's prior is not what it was", epf.storvik_filter(epf.models.ar1(prior_sd=0.4), 64))
    refuses(path, "64 particles.* and is .*32 particles", epf.storvik_filter(MODEL, 32))
    refuses(
        path, "resampling systematic.* and is .*multinomial", epf.storvik_filter(MODEL, 64, resample=epf.multinomial)
    )
    with jax.enable_x64(True):
        refuses(path, "precision was float32 and is float64", epf.storvik_filter(epf.models.ar1(), 64))


def test_a_file_cut_short_anywhere_is_refused(path):
    content = path.read_bytes()
    for size in {0, 1, 18, 19, 21, 28, 29, 60, 61, 69, 70, 200, len(content) // 2, len(content) - 1}:
        path.write_bytes(content[:size])
        refuses(path, r"incomplete: \d+ bytes of")


def test_a_file_with_any_byte_changed_is_refused(path):
    content = path.read_bytes()
    for place in np.random.default_rng(0).integers(21, len(content), 40):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        refuses(path, "damaged|incomplete")
    path.write_bytes(content + b"more")
    refuses(path, "damaged")


def test_foreign_files_other_formats_and_missing_ones_are_refused(path, tmp_path):
    content = path.read_bytes()
    path.write_bytes(content.replace(b"checkpoint 1\n", b"checkpoint 7\n", 1))
    refuses(path, "format 7, and this version of epf_jax .* reads format 1")
    for foreign in (b"t,y\n1,2\n", b"PK\x03\x04 a zip", b"\x80\x04\x95 a pickle", bytes(200)):
        path.write_bytes(foreign)
        refuses(path, "not a checkpoint of epf_jax")
    refuses(tmp_path / "none", "No such file")


def test_an_attack_by_pickle_is_not_even_tried(path, monkeypatch):
    import pickle

    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "load", None)
    monkeypatch.setattr(pickle, "Unpickler", None)
    epf.load(path, FILTER)


def test_arrays_of_another_shape_under_the_same_settings_are_refused(path, half):
    write_checkpoint(path, FILTER, half.final._replace(x=half.final.x[:5]), {})
    refuses(path, r"arrays are not those of this filter \(first difference: .x\)")
    write_checkpoint(path, FILTER, half.final.x, {})
    refuses(path, "arrays are not those of this filter")


def test_an_interrupted_save_leaves_the_old_checkpoint(path, half, whole, monkeypatch):
    import os

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        epf.save(path, whole.final, FILTER)
    monkeypatch.undo()
    equal(epf.load(path, FILTER), half.final)
    assert [file.name for file in path.parent.iterdir()] == ["state.epf"]


def test_wrong_arguments_are_refused_by_name(path, half, tmp_path):
    with pytest.raises(TypeError, match=r"^path: expected the name of a file.*got 3"):
        epf.save(3, half.final, FILTER)
    with pytest.raises(ValueError, match=r"^path: there is no folder .*nowhere.*Make it first"):
        epf.save(tmp_path / "nowhere" / "file", half.final, FILTER)
    with pytest.raises(ValueError, match=r"^path: .* is a folder"):
        epf.save(tmp_path, half.final, FILTER)
    with pytest.raises(TypeError, match=r"^state: expected the FilterState"):
        epf.save(path, half, FILTER)
    with pytest.raises(ValueError, match=r"^state: expected the state of this filter, 32 particles"):
        epf.save(path, half.final, epf.storvik_filter(MODEL, 32))
    with pytest.raises(epf.CheckpointError, match=r"it does not hold an answer of epf\.learn"):
        epf.load(path, MODEL)
    reads = epf.StateSpaceModel(
        MODEL.prior, MODEL.initial, lambda theta, x, u: dist.Normal(theta["phi"] * x, u["dt"]), MODEL.observation
    )
    unseen = epf.bootstrap_filter(reads, 8)
    with pytest.raises(ValueError, match=r"^model: .*for_inputs"):
        epf.save(path, unseen.init(KEY), unseen)


def test_random_keys_in_a_state_come_back(tmp_path, half):
    keys = {"key": jax.random.split(jax.random.key(5), 3), "b": jnp.array([True, False])}
    write_checkpoint(tmp_path / "a", FILTER, keys, {"n": 1})
    from epf_jax.running.checkpoints import read_checkpoint

    back = read_checkpoint(tmp_path / "a", FILTER, jax.eval_shape(lambda: keys))
    np.testing.assert_array_equal(jax.random.key_data(back.state["key"]), jax.random.key_data(keys["key"]))
    np.testing.assert_array_equal(jax.random.normal(back.state["key"][1]), jax.random.normal(keys["key"][1]))
    assert back.notes == {"n": 1}


# ---------------------------------------------------------------------------------------------------------- streams


def observations(values):
    reader = LineReader((), dtype=np.float32)
    return [reader.read(repr(float(value)).encode()) for value in values]


def test_a_stream_gives_the_numbers_of_run_bit_for_bit(whole):
    stream = Stream(FILTER, seed=1)
    lines = [stream.take(observation) for observation in observations(Y)]
    for t, line in enumerate(lines):
        assert np.float32(line["log_evidence"]) == whole.log_evidence[t]
        told = [line["theta"]["phi"]["mean"], line["theta"]["phi"]["q95"], line["ess"]]
        expected = [whole.theta.mean["phi"][t], whole.theta.quantiles["phi"][t, -1], whole.ess[t]]
        np.testing.assert_allclose(np.float32(told), expected, rtol=ROUNDING)


def test_a_stream_stopped_after_every_observation_equals_one_never_stopped(tmp_path):
    never = Stream(FILTER, seed=1)
    expected = [never.take(observation) for observation in observations(Y)]
    told = []
    for observation in observations(Y):
        stream = Stream(FILTER, seed=1, checkpoint=tmp_path / "state")
        assert stream.line == (told[-1] if told else stream.line)
        told.append(stream.take(observation))
        stream.save()
    assert told == expected


def test_a_stream_refuses_another_seed(tmp_path):
    stream = Stream(FILTER, seed=1, checkpoint=tmp_path / "state")
    stream.take(observations(Y)[0])
    stream.save()
    with pytest.raises(epf.CheckpointError, match="begun with --seed 1"):
        Stream(FILTER, seed=2, checkpoint=tmp_path / "state")


def test_one_process_at_a_time_holds_a_file(tmp_path):
    path = tmp_path / "state"
    (tmp_path / "state.abc.part").write_text("half a file")
    (tmp_path / "other.abc.part").write_text("somebody else's")
    with held(path):
        assert not (tmp_path / "state.abc.part").exists()
        assert (tmp_path / "other.abc.part").exists()
        with pytest.raises(BusyError, match="in use by another process"), held(path):
            pass
    with held(path):
        write_atomically(path, "free again", durable=True)
    assert path.read_text() == "free again"


MODEL_FILE = "import epf_jax as epf\nfilter_ = epf.storvik_filter(epf.models.ar1(), 64)\n"


def survive(tmp_path, num_kills, num_values, seed):
    """The lines that a killed stream told, beside those of a stream that lived."""
    (tmp_path / "model.py").write_text(MODEL_FILE)
    values = np.asarray(epf.simulate(jax.random.key(3), MODEL, {"phi": 0.8}, num_values)[1]).tolist()
    told = hammer([f"{tmp_path / 'model.py'}:filter_", "--checkpoint", tmp_path / "state"], values, num_kills, seed)
    alive = Stream(FILTER, seed=0)
    expected = {0: json.loads(json.dumps(alive.line))}
    for observation in observations(values[: max(told.lines)]):
        expected[alive.t] = alive.take(observation)
    return told, expected


@pytest.mark.slow
def test_a_stream_killed_at_random_moments_loses_and_repeats_nothing(tmp_path):
    told, expected = survive(tmp_path, num_kills=2, num_values=2000, seed=4)
    assert told.num_kills == 2
    assert told.num_before == 0  # both died among their answers
    assert told.lines == expected
    assert sorted(file.name for file in tmp_path.glob("state*")) == ["state", "state.lock"]


@pytest.mark.slow
def test_a_stream_killed_a_hundred_times_loses_and_repeats_nothing(tmp_path):
    told, expected = survive(tmp_path, num_kills=100, num_values=20_000, seed=1)
    summary = {name: value for name, value in vars(told).items() if name != "lines"}
    print("killed:", {**summary, "observations": max(told.lines)})
    assert told.num_kills == 100
    assert told.num_before < 40
    assert told.lines == expected
    assert not list(pathlib.Path(tmp_path).glob("*.part"))
