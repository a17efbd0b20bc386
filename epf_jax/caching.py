"""Compiled programs kept between processes."""

import os
import pathlib

import jax


def cache_compiled_programs(folder: str | os.PathLike | None = None) -> pathlib.Path:
    """Keep compiled programs in a folder, so that the next process starts where this one did, without compiling.

    Off unless asked for: one line at the top of a script. Equal to setting jax's own options
    `jax_compilation_cache_dir` and `jax_persistent_cache_min_compile_time_secs`.

    Args:
        folder: where to keep them; by default `epf_jax` in the user's cache folder.

    Returns:
        The folder.
    """
    if folder is None:
        base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        folder = pathlib.Path(base) / "epf_jax"
    path = pathlib.Path(folder).expanduser().resolve()
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return path
