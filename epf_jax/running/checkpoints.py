r"""Checkpoints: a filter's state in a file, refused by any other filter, and never unpickled.

A file is

    epf_jax checkpoint 1\n       the format's version
    8 bytes                      the size of the whole file
    32 bytes                     SHA-256 of everything after them
    8 bytes                      the size of the header
    header                       JSON: the filter's settings, notes, and each array's name, dtype and shape
    arrays                       their bytes, one after the other, in C order, least significant byte first: first the
                                 state's, then those of the results over time, where these were kept

It is written under another name and renamed, so that there is always a whole file, whenever the process dies. The
filter that reads it knows the arrays; a file that does not agree raises an error.

Keys are not saved: step t of a run draws from `fold_in(key_steps, t)`, and t is in the state. So the same key goes on
as if the run had never stopped:

    epf.save("state.epf", results.final, filter_)
    more = epf.run(key, filter_, later_y, state=epf.load("state.epf", filter_))
"""

import hashlib
import json
import math
import os
import pathlib
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax._version import __version__
from epf_jax.core.checks import brief, is_key
from epf_jax.core.files import write_atomically
from epf_jax.filters import Filter, FilterState
from epf_jax.filters.filter import check_state
from epf_jax.filters.state import PARTICLES
from epf_jax.particles.devices import spread_particles
from epf_jax.running.checkpoint_settings import differences, settings_of, state_like, warn_of_another_program
from epf_jax.running.run import check_filter

_MAGIC = b"epf_jax checkpoint "
_VERSION = 1
_DIGEST = 32
_SIZE = 8
_ALWAYS = ("filter", "parameters", "precision")  # in the settings of every release
_ROWS = "rows"
_NOTES = {  # what writers may know, and its kinds
    "seed": int,  # of the key, from which steps draw
    "data": str,  # a digest of all observations counted, one after the other
    "room": int | None,  # observations that the filter can remember
    "sequence": int | None,  # the number of the last line
    "read": int,  # lines read, with those that were refused
    "line": dict,  # the last line of a stream
    "header": list | None,  # the names of a stream's columns
    "stamp": str | int | float | None,  # the last time stamp
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or belongs to another filter; the message says what to do."""


class Checkpoint(NamedTuple):
    """The contents of a checkpoint: any part of the library writes one, and any other goes on from it.

    Attributes:
        state: the arrays of the state, in the requested structure.
        notes: what else its writer knew; a reader does without what is missing.
        rows: the results over time, in the requested structure, or None.
    """

    state: Any
    notes: dict[str, Any]
    rows: Any


def save(path: str | os.PathLike, state: FilterState, filter_: Filter) -> None:
    """Write a filter's state to a file, whole or not at all, with a fingerprint of the filter and its model.

    Args:
        path: the file; an existing file is replaced.
        state: the state, from `filter_.step` or `results.final`.
        filter_: the filter that made it.
    """
    if isinstance(state, Filter) and isinstance(filter_, FilterState):
        raise TypeError("state, filter_: these are in the wrong order. Call epf.save(path, state, filter_).")
    _ = check_filter(filter_).model.shapes  # an error for a filter that waits for inputs
    check_state(state, filter_)
    write_checkpoint(check_path(path), filter_, state, {})


def load(path: str | os.PathLike, filter_: Filter) -> FilterState:
    """The state that `epf.save` wrote.

    Raises `CheckpointError` (a `ValueError`) if the file is damaged, incomplete or no checkpoint, or if it belongs to
    another model, filter or precision. Files of other releases of epf_jax and jax can be read. Warns if only the code
    has changed.

    Args:
        path: the file.
        filter_: a filter built like the one that made the state, in this process or another.
    """
    check_filter(filter_)
    state = read_checkpoint(check_path(path), filter_, state_like(filter_)).state
    return spread_particles(filter_.mesh, state, PARTICLES)


def write_checkpoint(path: pathlib.Path, filter_: Filter, state: Any, notes: dict[str, Any], rows: Any = None) -> None:
    """Write the state of a filter, with notes as JSON, and results over time if they are to be kept, too."""
    named = _named(state) | ({} if rows is None else _named({_ROWS: rows}))
    arrays = {name: _to_numpy(leaf) for name, leaf in named.items()}
    listed = [{"name": name, "dtype": a.dtype.name, "shape": a.shape} for name, a in arrays.items()]
    header = json.dumps({"settings": settings_of(filter_), "notes": notes, "arrays": listed}).encode()
    body = b"".join([len(header).to_bytes(_SIZE, "little"), header, *(a.tobytes() for a in arrays.values())])
    start = _MAGIC + f"{_VERSION}\n".encode()
    size = len(start) + _SIZE + _DIGEST + len(body)
    digest = hashlib.sha256(body).digest()
    write_atomically(path, b"".join([start, size.to_bytes(_SIZE, "little"), digest, body]), durable=True)


def read_checkpoint(path: pathlib.Path, filter_: Filter, like: Any, rows_like: Any = None) -> Checkpoint:
    """The state in a checkpoint of this filter, its notes, and its results over time if they are wanted.

    Args:
        path: the file.
        filter_: the filter.
        like: the structure, shapes and dtypes of the state.
        rows_like: those of the results, with as many rows as the file has: see `num_rows`.
    """
    header, content = _read(path)
    _check_settings(path, header["settings"], settings_of(filter_))
    of_state = [entry for entry in header["arrays"] if not _is_row(entry)]
    of_rows = header["arrays"][len(of_state) :]
    state, content = _filled(path, like, of_state, content)
    rows = None
    if of_rows and rows_like is not None:
        rows, content = _filled(path, {_ROWS: rows_like}, of_rows, content)
        rows = rows[_ROWS]
    elif of_rows:
        content = content[:0]
    if content:
        raise CheckpointError(f"{path}: it has {len(content)} bytes too many. Use another copy.")
    return Checkpoint(state, header["notes"], rows)


class Kept(NamedTuple):
    """What a file says of itself: its notes, and how many rows of results over time it has."""

    notes: dict[str, Any]
    num_rows: int


def kept_in(path: pathlib.Path | None) -> Kept:
    """What a file says of itself; nothing if there is none."""
    if path is None or not path.exists():
        return Kept({}, 0)
    header = _read(path)[0]
    return Kept(header["notes"], next((entry["shape"][0] for entry in header["arrays"] if _is_row(entry)), 0))


def digest_of(before: str, values: Any, inputs: Any) -> str:
    """The digest of all observations so far, after one more: it tells whether two files have counted the same."""
    digest = hashlib.sha256(before.encode())
    for leaf in jax.tree.leaves((values, inputs)):
        with np.errstate(over="ignore"):
            numbers = np.asarray(leaf, np.float32)  # of either precision
        digest.update(np.where(np.isnan(numbers), np.float32(np.nan), numbers).tobytes())
    return digest.hexdigest()


def _is_row(entry: dict[str, Any]) -> bool:
    return entry["name"].startswith(f"['{_ROWS}']") and bool(entry["shape"])


def _check_settings(path: pathlib.Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    said = differences(there, here)
    if said:
        raise CheckpointError(
            f"{path}: it holds the state of another filter ({'; '.join(said)}). It was left as it is. Go on with the "
            "model and the filter that made it, or choose another file."
        )
    warn_of_another_program(path, there, here)


def _read(path: pathlib.Path) -> tuple[dict[str, Any], memoryview]:
    """The header and the bytes of the arrays; raises if the file is not whole."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: it cannot be read ({error.strerror or error}).") from error
    line, _, rest = content.partition(b"\n")
    if not line.startswith(_MAGIC) and not _MAGIC.startswith(content):
        raise CheckpointError(f"{path}: it is not a checkpoint of epf_jax. Choose another file; it was not changed.")
    version = line[len(_MAGIC) :].decode("ascii", "replace")
    if rest and version != str(_VERSION):
        raise CheckpointError(
            f"{path}: it is written in format {version}, and this version of epf_jax ({__version__}) reads format "
            f"{_VERSION}. Use the version that wrote it, or choose another file."
        )
    size = int.from_bytes(rest[:_SIZE], "little") if len(rest) >= _SIZE else None
    if size is None or len(content) < size:
        wanted = "its own size" if size is None else f"{size} bytes"
        raise CheckpointError(f"{path}: it is incomplete: {len(content)} bytes of {wanted}. Use a complete copy.")
    digest, body = rest[_SIZE : _SIZE + _DIGEST], memoryview(rest)[_SIZE + _DIGEST :]
    if len(content) != size or hashlib.sha256(body).digest() != digest:
        raise CheckpointError(f"{path}: it is damaged: its bytes are not those that were written. Use another copy.")
    end = _SIZE + int.from_bytes(body[:_SIZE], "little")
    return _header(path, bytes(body[_SIZE:end])), body[end:]


def _header(path: pathlib.Path, text: bytes) -> dict[str, Any]:
    """The header, whose parts are of the kinds that `write_checkpoint` gives them."""
    try:
        header = json.loads(text)
        kinds = {"settings": dict, "notes": dict, "arrays": list}
        right = all(isinstance(header[name], kind) for name, kind in kinds.items())
        right = right and all(name in header["settings"] for name in _ALWAYS)
        right = right and isinstance(header["settings"].get("densities", {}), dict)
        right = right and all(isinstance(header["notes"].get(n), k) for n, k in _NOTES.items() if n in header["notes"])
        for entry in header["arrays"]:
            right = right and isinstance(entry["name"], str) and isinstance(entry["dtype"], str)
            right = right and all(isinstance(number, int) for number in entry["shape"])
    except (ValueError, KeyError, TypeError, RecursionError):
        right = False
    if not right:
        raise CheckpointError(f"{path}: its header is not one that epf_jax writes. Use another copy.")
    return header


def _filled(path: pathlib.Path, like: Any, listed: list[dict[str, Any]], content: memoryview) -> tuple[Any, memoryview]:
    """The arrays in the structure of `like`, and the bytes after them; raises if dtypes or shapes differ."""
    expected = _named(like)
    kinds = {name: _kind(leaf) for name, leaf in expected.items()}
    there = {entry["name"]: (entry["dtype"], tuple(entry["shape"])) for entry in listed}
    if there != {name: (dtype.name, shape) for name, (dtype, shape) in kinds.items()}:
        differ = sorted(name for name in there.keys() ^ kinds.keys()) or [n for n in there if there[n] != kinds[n]]
        raise CheckpointError(
            f"{path}: its arrays are not those of this filter (first difference: {differ[0]}). It was left as it is; "
            "choose another file."
        )
    wanted = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds.values())
    if len(content) < wanted or len(listed) != len(kinds):
        raise CheckpointError(f"{path}: it holds {len(content)} bytes of arrays, and not {wanted}. Use another copy.")
    leaves, start = {}, 0
    for name in there:
        dtype, shape = kinds[name]
        end = start + dtype.itemsize * math.prod(shape)
        leaves[name] = _from_numpy(np.frombuffer(content[start:end], dtype).reshape(shape), expected[name])
        start = end
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in expected]), content[start:]


def _named(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _kind(leaf: Any) -> tuple[np.dtype, tuple[int, ...]]:
    data = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
    return np.dtype(data.dtype), tuple(data.shape)


def _to_numpy(leaf: Any) -> np.ndarray:
    if not getattr(leaf, "is_fully_addressable", True):
        raise CheckpointError(
            "state: its particles lie on devices of other processes, and a checkpoint is written by one. Gather them "
            "first, by jax.experimental.multihost_utils.process_allgather."
        )
    array = np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
    return array if sys.byteorder == "little" else array.astype(array.dtype.newbyteorder("<"))


def _from_numpy(array: np.ndarray, like: Any) -> jax.Array:
    leaf = jnp.asarray(array if sys.byteorder == "little" else array.byteswap())
    return jax.random.wrap_key_data(leaf, impl=like.dtype._impl.name) if is_key(like) else leaf


def check_path(path: Any) -> pathlib.Path:
    """The path; raises if its folder does not exist."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise TypeError(f'path: expected the name of a file such as "state.epf", got {brief(path)}.')
    checked = pathlib.Path(path).expanduser()
    if not checked.parent.is_dir():
        raise ValueError(f"path: there is no folder {checked.parent} to keep {checked.name} in. Make it first.")
    if checked.is_dir():
        raise ValueError(f"path: {checked} is a folder; give the name of a file in it.")
    if checked.exists() and not checked.is_file():
        raise ValueError(f"path: {checked} is a device or a pipe, which cannot be replaced. Give the name of a file.")
    return checked
