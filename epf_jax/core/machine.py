"""The machine and the versions, which are stored with every measured result."""

import importlib.metadata
import os
import pathlib
import platform
import time
from typing import Any

import jax

from epf_jax._version import __version__

PACKAGES = ("jax", "jaxlib", "numpyro", "numpy")


def num_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_of_maps() -> float:
    """The share of the memory maps of a process that are in use (vm.max_map_count); at 1 XLA crashes.

    Every kernel that XLA compiles for a CPU takes some; a filter takes hundreds of 65530. 0 if there is no limit.
    """
    try:
        used = pathlib.Path("/proc/self/maps").read_bytes().count(b"\n")
        return used / int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
    except OSError:  # not Linux, or not to be read
        return 0.0


def machine() -> dict[str, Any]:
    """Hardware, versions and date."""
    processor = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else processor
    return {
        "processor": processor,
        "cores": num_cores(),
        "device": str(jax.local_devices()[0].device_kind),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "epf_jax": __version__,
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }
