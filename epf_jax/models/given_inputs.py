"""Checks the user's inputs and converts them to rows of numbers, one for each observation."""

import decimal
import numbers
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from epf_jax.core.number_arrays import given_numbers, holds_jax, numeric_array, warn_of_rounding
from epf_jax.data.series import Series, inputs_of
from epf_jax.data.tables import columns_of, is_table

_SHORT = 100_000  # steps; a longer series takes seconds, whoever counts them


def input_arrays(inputs: Any, num_axes: int = 1) -> Any:
    """The inputs as a pytree of arrays; the last of the first axes is time. Warns if they lose digits."""
    inputs = inputs_of(inputs) if isinstance(inputs, Series) else inputs
    inputs = columns_of(inputs) if is_table(inputs) else inputs

    def array(path, leaf):
        name, hint = f"inputs{jax.tree_util.keystr(path)}", "Give arrays whose first axis is time."
        if not holds_jax(leaf):
            leaf = given_numbers(name, leaf, hint)
            warn_of_rounding(name, leaf, num_axes - 1, "Take something off all, the first one say")
        return numeric_array(name, leaf, hint)

    return jax.tree_util.tree_map_with_path(array, inputs, is_leaf=_is_column)


def _is_column(part: Any) -> bool:
    """Whether it is a list of numbers, which is one column and not a pytree."""
    kinds = (numbers.Real, decimal.Decimal, type(None))
    return isinstance(part, list) and len(part) > 0 and all(isinstance(number, kinds) for number in part)


def check_num_rows(rows: Any, lead: tuple[int, ...]) -> None:
    """Raise for inputs without a row for each observation (of each series), and for NaN or infinite inputs."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(rows):
        name = f"inputs{jax.tree_util.keystr(path)}"
        if leaf.shape[: len(lead)] != lead:
            wanted = f"one row per observation, {lead[0]} rows, but it has"
            if len(lead) > 1:
                wanted = f"shape ({lead[0]}, {lead[1]}, ...), one series of rows for each key, got"
            way_out = "For inputs shared by all, leave inputs_per_series False."
            if len(lead) == 1:
                way_out = "Give inputs whose first axis is time."
            raise ValueError(f"{name}: expected {wanted} shape {leaf.shape}. {way_out}")
        if isinstance(leaf, jax.core.Tracer) or np.isfinite(np.asarray(leaf)).all():
            continue
        first = np.argwhere(~np.isfinite(np.asarray(leaf)))[0]
        row = f"row {int(first[0])}" if len(lead) == 1 else f"row {int(first[1])} of series {int(first[0])}"
        raise ValueError(f"{name}: {row} (the first is 0) is NaN or infinite. The model needs every input; fill it in.")


def time_index(num_steps: int, x64: bool) -> np.ndarray:
    """1, 2, ..., made once if it is short, so that short runs stay cheap."""
    return (_counted if num_steps <= _SHORT else _counted.__wrapped__)(num_steps, x64)


@lru_cache(maxsize=32)
def _counted(num_steps: int, x64: bool) -> np.ndarray:
    index = np.arange(1, num_steps + 1, dtype=np.int64 if x64 else np.int32)
    index.setflags(write=False)
    return index
