"""Keeps compiled programs between processes, in JAX's persistent cache."""

import os
import pathlib
import warnings

import jax

from epf_jax.core.machine import share_of_maps

_MANY = 0.75  # of all memory maps: there is still room to do something about it


def cache_compiled_programs(folder: str | os.PathLike | None = None) -> pathlib.Path:
    """Keep compiled programs in a folder, so that the next process does not compile them again.

    Put this line at the top of a script; the command `epf` calls it by itself. It switches on JAX's persistent cache
    (`jax_compilation_cache_dir`) for programs of any size. The folder holds machine code: let only people write there
    who may also run programs on your machine.

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


def warn_of_many_programs() -> None:
    """Warn before the process has too many compiled programs; called where runs and chains are traced."""
    share = share_of_maps()
    if share > _MANY:
        warnings.warn(
            f"This process has {share:.0%} of the memory maps that Linux allows it (vm.max_map_count). XLA crashes "
            "when there are no more, and every filter, length of series and number of runs needs a program with "
            "hundreds of maps. Call jax.clear_caches() now and then, or give series one length by epf.panel.",
            RuntimeWarning,
            stacklevel=2,
        )
