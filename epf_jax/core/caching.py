"""Compiled programs kept between processes.

jax keeps what XLA made of a program, and has to trace and lower the program to find it again: half a second and more
for a filter. Here the whole program is kept, under a name that is read off its source (`sources`): the filter with its
model's functions, the shapes that it is given, the versions, settings and processor that it was compiled for. What has
no such name, or cannot be stored, goes jax's own way.
"""

import collections
import contextlib
import hashlib
import logging
import os
import pathlib
import pickle
import platform
import re
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import jax
import jax.extend
import numpy as np
from jax.experimental import serialize_executable

from epf_jax.core.checks import is_key
from epf_jax.core.machine import share_of_maps
from epf_jax.core.sources import NamelessError, source_name, version_name

_log = logging.getLogger(__name__)
_NOT_OF_PROGRAMS = re.compile("cache|log|traceback|explain|profiler|dump")  # settings that change no program
_DEBUGGING = ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks")  # of jax's own way
_Program = Callable[..., Any]


_FLAGS = tuple(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))  # as XLA will have read them
_MOST = 32  # programs at hand: jax.clear_caches() does not let go of them, and memory maps are few (`share_of_maps`)
_MANY = 0.75  # of all memory maps: there is still room to do something about it


class _Kept:
    """Where programs are kept, nowhere unless asked for, and those at hand: None for a call that goes jax's own way."""

    folder: pathlib.Path | None = None
    at_hand: ClassVar[collections.OrderedDict[Any, _Program | None]] = collections.OrderedDict()
    lock = threading.RLock()


def cache_compiled_programs(folder: str | os.PathLike | None = None) -> pathlib.Path:
    """Keep compiled programs in a folder, so that the next process starts where this one did, without compiling.

    Off unless asked for: one line at the top of a script. Sets jax's own options `jax_compilation_cache_dir` and
    `jax_persistent_cache_min_compile_time_secs`; and the programs of `epf.run` are kept as a whole, so that the next
    process need not even trace them. A program is found again by the source of the model's functions and of all that
    they read: these must be functions of their arguments and of constants (no files, no imports inside, no `np.random`,
    no `print`), or jax's own way is taken. To see why, `logging.basicConfig()` and
    `logging.getLogger("epf_jax.core.caching").setLevel(logging.INFO)`. Within a process a filter stays what it was when it
    first ran, as under `jax.jit`: build model and filter again after a global changed.
    Before a new program is stored `jax.clear_caches()` is called, so that nothing traced earlier gets into it.

    On a GPU XLA chooses among kernels by timing them, so that two processes may round differently; a program that is
    kept is the same in all.

    The folder holds machine code: let nobody write there whom you would not let run programs.

    Args:
        folder: where to keep them; by default `epf_jax` in the user's cache folder.

    Returns:
        The folder.
    """
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        folder = pathlib.Path(base) / "epf_jax"
    try:
        path = pathlib.Path(folder).expanduser().resolve()
        path.mkdir(parents=True, exist_ok=True)
    except (TypeError, OSError) as error:
        why = f"folder: expected the path of a folder that can be made and written to, got {folder!r} ({error})."
        raise type(error)(why) from error
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    version_name("epf_jax")  # now, while the files are those that were imported
    _Kept.folder = path
    _Kept.at_hand.clear()
    return path


def call_kept(function: Callable, static: tuple, *arguments: Any) -> Any:
    """`function(*static, *arguments)`, `function` jitted: by a program kept from an earlier process, if there is one.

    Args:
        function: a jitted function of a module.
        static: its static arguments, hashable.
        arguments: pytrees of arrays.
    """
    if _Kept.folder is None:
        return function(*static, *arguments)
    leaves, treedef = jax.tree.flatten(arguments)
    if not all(map(_is_plain, leaves)) or any(getattr(jax.config, name) for name in _DEBUGGING):
        return function(*static, *arguments)
    kinds = tuple((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in leaves)
    call = (function, static, treedef, kinds, _settings())
    with _Kept.lock:
        if call not in _Kept.at_hand:
            path = _path(_Kept.folder, function, static, treedef, kinds)
            found = _loaded(path, leaves) if path is not None else None
            if found is not None:
                _put_at_hand(call, found[0])
                return found[1]
            _put_at_hand(call, None if path is None else _stored(path, function, static, treedef, leaves))
        _Kept.at_hand.move_to_end(call)
        program = _Kept.at_hand[call]
    return function(*static, *arguments) if program is None else program(leaves)


def _put_at_hand(call: Any, program: _Program | None) -> None:
    """Keep a program for the next such call, and let go of the one that was not called for longest."""
    _Kept.at_hand[call] = program
    held = [call for call, program in _Kept.at_hand.items() if program is not None]
    for oldest in held[:-_MOST]:
        del _Kept.at_hand[oldest]


def warn_of_many_programs() -> None:
    """Tell that a few more programs will be too many; called where those of runs and of chains are traced."""
    share = share_of_maps()
    if share > _MANY:
        warnings.warn(
            f"This process has {share:.0%} of the memory maps that Linux allows it (vm.max_map_count). A compiled "
            "program takes hundreds, and XLA crashes when there are no more. Every filter, length of series and number "
            "of runs is a program of its own: call jax.clear_caches() now and then, or give series one length by "
            "epf.panel.",
            RuntimeWarning,
            stacklevel=2,
        )


def _settings() -> tuple[Any, ...]:
    """Those of jax's settings that may change a program, as they are here: some may be set by a `with`."""
    return tuple(getattr(jax.config, name) for name in _names_of_settings())


@cache
def _names_of_settings() -> list[str]:
    names = sorted(name for name in jax.config.values if hasattr(jax.config, name))
    return [name for name in names if not _NOT_OF_PROGRAMS.search(name)]


def _is_plain(leaf: Any) -> bool:
    """Whether it is an array of one device, the first of all: a program that is kept asks for such."""
    if isinstance(leaf, np.ndarray):
        return True
    is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    return is_array and leaf.devices() == {jax.devices()[0]}


def _path(folder, function, static, treedef, kinds) -> pathlib.Path | None:
    """Where the program of such a call is kept, or None where it has no name."""
    try:
        name = source_name(function, static, treedef, kinds, _surroundings())
    except NamelessError as error:
        _log.info("The program of this %s is not kept whole: it depends on %s.", function.__name__, error)
        return None
    except Exception as error:  # of an object of the user's that does not bear to be looked into
        _log.info(
            "The program of this %s is not kept whole: its source could not be read, %r.", function.__name__, error
        )
        return None
    return folder / f"{function.__name__}-{name}.program"


def _stored(path, function, static, treedef, leaves) -> _Program | None:
    """The program, compiled and put into the folder; None where it cannot be kept."""
    try:
        compiled, shape = _compiled(function, static, treedef, leaves)
        content = _as_bytes(compiled, shape)
    except _NotKeptError as error:
        _log.info("The program of this %s is not kept whole: %s.", function.__name__, error)
        return None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)  # in one move: another process never sees half of it
    except OSError as error:
        warnings.warn(f"The program could not be stored in {path.parent}: {error}.", RuntimeWarning, stacklevel=5)
    return _program(compiled, shape)


def _as_bytes(compiled, shape) -> bytes:
    try:
        return pickle.dumps((serialize_executable.serialize(compiled), shape))
    except Exception as error:  # of jax's, or of a class of the user's that is in the results
        raise _NotKeptError(f"it cannot be stored ({error!r})") from error


class _NotKeptError(Exception):
    """Why a program cannot be stored."""


def _compiled(function, static, treedef, leaves):
    """The compiled program, a function of the arguments' leaves, and what it returns: a tree of its leaves' numbers."""
    shape: list[Any] = []

    def flat(words):
        arguments = jax.tree.unflatten(treedef, _with_keys(words, leaves))
        found, structure = jax.tree.flatten(function(*static, *arguments))
        if any(map(is_key, found)):
            raise _NotKeptError("it returns random keys")
        try:
            shape.append(jax.tree.unflatten(structure, range(len(found))))
        except Exception as error:  # of a class of the user's that takes arrays alone
            raise _NotKeptError(f"its results cannot be described ({error!r})") from error
        return found

    jax.clear_caches()  # a trace of before may hold what a global was then
    lowered = jax.jit(flat).lower(_without_keys(leaves))
    if "callback" in lowered.as_text():
        raise _NotKeptError("it calls back to Python")
    with _not_by_jax():
        return lowered.compile(), shape[0]


@contextlib.contextmanager
def _not_by_jax():
    """Keeps jax from storing a program: one that it gave back from its own folder could not be stored again."""
    option = "jax_persistent_cache_min_compile_time_secs"
    seconds = getattr(jax.config, option)
    jax.config.update(option, float("inf"))
    try:
        yield
    finally:
        jax.config.update(option, seconds)


def _loaded(path, leaves) -> tuple[_Program, Any] | None:
    """The program from the folder and its first result, None where there is none; with a warning, if it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:  # not there, or not to be read: then it is compiled
        return None
    try:
        parts, shape = pickle.loads(content)
        compiled = serialize_executable.deserialize_and_load(*parts, execution_devices=jax.devices()[:1])
        program = _program(compiled, shape)
        return program, jax.block_until_ready(program(leaves))
    except Exception as error:  # a damaged file may break anywhere: it is said so, and compiled again
        if "RESOURCE_EXHAUSTED" in str(error):
            raise
        warnings.warn(f"{path} could not be read ({error}); it is compiled again.", RuntimeWarning, stacklevel=4)
        return None


def _program(compiled, shape) -> _Program:
    structure = jax.tree.structure(shape)
    return lambda leaves: jax.tree.unflatten(structure, compiled(_without_keys(leaves)))


def _without_keys(leaves: list[Any]) -> list[Any]:
    """Random keys as the words that they are made of."""
    return [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves]


def _with_keys(words: list[Any], like: list[Any]) -> list[Any]:
    return [
        jax.random.wrap_key_data(word, impl=jax.random.key_impl(leaf)) if is_key(leaf) else word
        for word, leaf in zip(words, like, strict=True)
    ]


def _surroundings() -> tuple:
    """All that a program depends on beside its source and its arguments."""
    backend = jax.extend.backend.get_backend()
    devices = (backend.platform, backend.platform_version, jax.local_devices()[0].device_kind, jax.device_count())
    packages = tuple(map(version_name, ("epf_jax", "jax", "jaxlib", "numpy", "numpyro")))
    settings = sorted(
        (name, str(value)) for name, value in jax.config.values.items() if not _NOT_OF_PROGRAMS.search(name)
    )
    return settings, str(_settings()), devices, packages, _FLAGS, platform.python_version(), _processor()


@cache
def _processor() -> str:
    """What the processor can do: a program compiled for another may not run on it."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return f"{platform.machine()} {platform.processor()}"
    lines = sorted(set(re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", cpuinfo.read_text(), re.M)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
