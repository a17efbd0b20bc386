"""Series of other lengths in one program: filled up to a few lengths, of which only the observations are filtered."""

from typing import Any

import jax
import numpy as np

from epf_jax.running.results import Results

_LEAST = 16  # rows


def room_for(num_steps: int) -> int:
    """The length that a series is filled up to: a power of two."""
    return max(_LEAST, 1 << (num_steps - 1).bit_length())


def can_be_padded(rows: Any) -> bool:
    """Whether the rows are known, and the program is for a CPU: on a GPU all steps may be one kernel."""
    known = not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(rows))
    return known and jax.default_backend() == "cpu"


def padded(rows: Any, room: int) -> Any:
    """Arrays over time filled up to so many rows, by NumPy: on a device each length would be a program of its own."""
    return jax.tree.map(lambda leaf: np.pad(leaf, [(0, room - len(leaf)), *[(0, 0)] * (leaf.ndim - 1)]), rows)


def trimmed(results: Results, num_steps: int) -> Results:
    """The results of the observations alone, likewise."""
    none: Any = None
    diagnostics, lineage = results.diagnostics, none
    if diagnostics is not None:
        diagnostics, lineage = diagnostics._replace(lineage=none), diagnostics.lineage
    over_time = results._replace(levels=none, final=none, diagnostics=diagnostics)
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(over_time))
    found = jax.tree.map(lambda leaf: (leaf if traced else np.asarray(leaf))[:num_steps], over_time)
    found = found if traced else jax.device_put(found)
    if diagnostics is not None:
        found = found._replace(diagnostics=found.diagnostics._replace(lineage=lineage))
    return found._replace(levels=results.levels, final=results.final)
