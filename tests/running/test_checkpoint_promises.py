"""What a checkpoint promises: refused by what was declared otherwise, read across releases, told where code changed."""

import errno
import hashlib
import json
import os
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf
from epf_jax.core.files import write_atomically
from epf_jax.running import checkpoint_settings
from epf_jax.running.fingerprints import fingerprint

KEY = jax.random.key(1)
OLD = pathlib.Path(__file__).parent / "written_by_0_1_0" / "ar1_storvik.epf"


def built(mean=lambda a, x: a * x, name="phi", sd=0.5):
    model = epf.StateSpaceModel(
        prior={name: dist.Normal(0.0, sd)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(mean(theta[name], x), 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 1.0),
    )
    return epf.bootstrap_filter(model, 8)


FILTER = built()


@pytest.fixture
def path(tmp_path):
    epf.save(tmp_path / "state.epf", FILTER.init(KEY), FILTER)
    return tmp_path / "state.epf"


# ------------------------------------------------------------------------------------------------------ fingerprints


def carry(order):
    return lambda x: jax.lax.fori_loop(0, 5, lambda i, c: order(*c), (x, x))[0]


def bounds(swapped):
    def count(x):
        low, high, step, shrink = (x * scale for scale in (-3.0, 3.0, 0.5, 0.9))
        low, high = (high, low) if swapped else (low, high)
        return jax.lax.while_loop(lambda c: (low < c) & (c < high), lambda c: c * shrink + step, x)

    return count


def callback(host):
    return lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (carry(lambda a, b: (a + 1.0, b)), carry(lambda a, b: (b + 1.0, a))),
        (bounds(False), bounds(True)),
        (callback(lambda x: np.sin(x)), callback(lambda x: np.cos(x))),
        (callback(lambda x: np.float32(x + 1)), callback(lambda x: np.float32(x + 2))),
        (lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x), lambda x: jax.lax.cond(x > 0, jnp.cos, jnp.sin, x)),
        (
            lambda x: jax.lax.scan(lambda c, k: (c + k, c), x, jnp.arange(3.0))[1],
            lambda x: jax.lax.scan(lambda c, k: (c + k, k), x, jnp.arange(3.0))[1],
        ),
        (lambda x: jax.jit(jnp.subtract)(x, 2.0), lambda x: jax.jit(jnp.subtract)(2.0, x)),
    ],
    ids=["carry", "bounds", "callback", "callback's constant", "branches", "scanned", "jitted"],
)
def test_programs_that_compute_otherwise_have_other_fingerprints(one, other):
    assert fingerprint(one, jnp.float32(0.5)) == fingerprint(one, jnp.float32(0.5))
    assert fingerprint(one, jnp.float32(0.5)) != fingerprint(other, jnp.float32(0.5))


# ------------------------------------------------------------------------------------------------------- what differs


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: built(name="rho"), r"parameters was \['phi'\] and is \['rho'\]"),
        (lambda: built(sd=0.6), "the model's prior is not what it was"),
        (lambda: built(mean=lambda a, x: a * x + 0.1), "the model's transition is not what it was"),
        (lambda: built(mean=lambda a, x: jax.pure_callback(
            lambda v: np.float32(2.0 * v), jax.ShapeDtypeStruct((), jnp.float32), a * x, vmap_method="sequential"
        )), "the model's transition is not what it was"),
    ],
    ids=["names", "prior", "function", "callback"],
)  # fmt: skip
def test_what_was_declared_otherwise_is_refused(path, other, said):
    with pytest.raises(epf.CheckpointError, match=said):
        epf.load(path, other())


def test_code_that_changed_where_no_density_shows_it_is_told_of(path):
    with pytest.warns(RuntimeWarning, match="the code of the model, or an option of the filter, is not what it was"):
        epf.load(path, built(mean=lambda a, x: jnp.where(x > 100.0, 0.0, a * x)))


@pytest.fixture
def of_another_release(path, monkeypatch):
    """The same file as written by another release: its program has another fingerprint."""
    rewrite(path, lambda header: header["settings"].update(epf_jax="0.0.9", jax="0.9", program="another"))
    return path


def test_another_release_reads_it_without_a_word(of_another_release):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epf.load(of_another_release, FILTER)
    with pytest.raises(epf.CheckpointError, match="the model's prior"):
        epf.load(of_another_release, built(sd=0.6))


def test_a_file_of_release_0_1_0_is_read_and_goes_on():
    filter_ = epf.storvik_filter(epf.models.ar1(), 8)
    state = epf.load(OLD, filter_)
    assert int(state.t) == 4
    np.testing.assert_allclose(state.log_evidence, -5.166274, rtol=1e-6)
    later, info = filter_.step(KEY, state, 0.4)
    assert np.isfinite(info.log_increment)
    assert int(later.t) == 5
    with pytest.raises(epf.CheckpointError, match="16 particles"):
        epf.load(OLD, epf.storvik_filter(epf.models.ar1(), 16))


# ------------------------------------------------------------------------------------------------------------ forgery


def rewrite(path, change):
    """Change the header, and make the checksum right again."""
    content = path.read_bytes()
    start = content.index(b"\n") + 1
    body = content[start + 40 :]
    end = 8 + int.from_bytes(body[:8], "little")
    header = json.loads(body[8:end])
    changed = change(header)
    text = json.dumps(header).encode() if not isinstance(changed, bytes) else changed
    body = len(text).to_bytes(8, "little") + text + body[end:]
    size = start + 40 + len(body)
    path.write_bytes(content[:start] + size.to_bytes(8, "little") + hashlib.sha256(body).digest() + body)


FORGERIES = {
    "no JSON": lambda header: b"{",
    "a list": lambda header: b"[]",
    "no settings": lambda header: header.pop("settings") and None,
    "settings a number": lambda header: header.update(settings=3),
    "settings empty": lambda header: header.update(settings={}),
    "densities a number": lambda header: header["settings"].update(densities=3),
    "densities of texts": lambda header: header["settings"].update(densities={"prior": ["a", "b", "c"]}),
    "no arrays": lambda header: header.pop("arrays") and None,
    "arrays a dict": lambda header: header.update(arrays={"a": 1}),
    "an array without a shape": lambda header: header["arrays"][0].pop("shape") and None,
    "a shape of texts": lambda header: header["arrays"][0].update(shape=["a"]),
    "a shape that is negative": lambda header: header["arrays"][0].update(shape=[-8]),
    "an array twice": lambda header: header["arrays"].append(header["arrays"][0]),
    "an array less": lambda header: header["arrays"].pop() and None,
    "another kind": lambda header: header["arrays"][0].update(dtype="object"),
    "deeply nested": lambda header: b"[" * 100_000,
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_header_is_always_a_checkpoint_error(path, forgery):
    rewrite(path, FORGERIES[forgery])
    with pytest.raises(epf.CheckpointError):
        epf.load(path, FILTER)


def test_fewer_bytes_than_the_arrays_have_are_a_checkpoint_error(path):
    content = path.read_bytes()
    start = content.index(b"\n") + 1
    body = content[start + 40 : -4]
    head = content[:start] + (len(content) - 4).to_bytes(8, "little")
    path.write_bytes(head + hashlib.sha256(body).digest() + body)
    with pytest.raises(epf.CheckpointError, match="bytes of arrays"):
        epf.load(path, FILTER)


# -------------------------------------------------------------------------------------------------------------- files

posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and devices are POSIX's")


@posix
def test_a_file_keeps_its_mode_and_a_new_one_gets_that_of_any_other(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new", "a")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    (tmp_path / "new").chmod(0o600)
    write_atomically(tmp_path / "new", "b")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").read_text() == "b"


@posix
def test_a_link_is_followed_to_its_target(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "target")
    for text in ("a", "b"):  # the target is not there at first
        write_atomically(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "target").read_text() == text


@posix
def test_what_is_no_regular_file_is_refused_and_left_as_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    for name in ("pipe", "link"):
        with pytest.raises(ValueError, match="is a device or a pipe"):
            epf.save(tmp_path / name, FILTER.init(KEY), FILTER)
        with pytest.raises(OSError, match="no regular file"):
            write_atomically(tmp_path / name, "a")
    assert not pathlib.Path("/dev/null").is_file()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_full_disk_leaves_the_old_file_and_no_other(path, monkeypatch):
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        epf.save(path, FILTER.init(KEY), FILTER)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_settings_are_found_once_for_a_filter(path):
    assert checkpoint_settings.settings_of(FILTER) is checkpoint_settings.settings_of(FILTER)
