"""Reads tables of any library as named columns, and columns as numbers. Errors name the row and the value."""

import csv
import math
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from epf_jax.core.checks import brief, pip_install
from epf_jax.core.number_arrays import warn_of_rounding
from epf_jax.data.text_lines import as_number, is_number
from epf_jax.data.timestamps import RowName

_TABLES = frozenset({"pandas", "polars", "pyarrow"})


def is_table(value: Any) -> bool:
    """Whether it is a table or a column of pandas, polars or pyarrow."""
    return type(value).__module__.split(".")[0] in _TABLES and hasattr(value, "__len__")


def columns_of(table: Any) -> dict[str, Any]:
    """The columns of a table by name, each as it is."""
    if isinstance(table, str | pathlib.PurePath):
        return read_file(pathlib.Path(table))[0]
    if isinstance(table, Mapping):
        columns = {str(name): column for name, column in table.items()}
    elif hasattr(table, "column_names"):  # pyarrow
        columns = {name: table[name] for name in table.column_names}
    elif is_table(table) and hasattr(table, "columns"):
        names = [str(name) for name in table.columns]
        if len(set(names)) < len(names):
            raise ValueError(f"table: two columns have the same name, among {listed(names)}. Rename one.")
        columns = {str(name): table[name] for name in table.columns}
    elif getattr(getattr(table, "dtype", None), "names", None):  # NumPy's structured arrays
        columns = {name: table[name] for name in table.dtype.names}
    else:
        array = plain(table)
        if array.ndim not in (1, 2):
            raise TypeError(
                f"table: expected a DataFrame, a dict of columns, or an array of shape (T, d), got {brief(table)}."
            )
        name = getattr(table, "name", None)
        flat = array if array.ndim == 2 else array[:, None]
        columns = {str(name if name and array.ndim == 1 else i): flat[:, i] for i in range(flat.shape[1])}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"table: its columns have unequal lengths, {brief(lengths)}.")
    return columns


def read_file(path: pathlib.Path) -> tuple[dict[str, Any], RowName]:
    """The columns of a CSV or Parquet file by name, and how its rows are called."""
    return _read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else read_csv(path)


def _read_parquet(path: pathlib.Path) -> tuple[dict[str, Any], RowName]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise ImportError(f"{path}: Parquet is read by pyarrow: {pip_install('export')}.") from error
    try:
        table = parquet.read_table(path)
    except (OSError, ArrowInvalid) as error:
        raise ValueError(f"{path}: it cannot be read as Parquet ({error}).") from error
    return columns_of(table), lambda i: f"row {i + 1}"


def read_csv(path: pathlib.Path) -> tuple[dict[str, list[str]], RowName]:
    """The columns of a CSV file as text, by the names in its first line, and how its rows are called."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            rows, lines, blank = [], [], []
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(reader.line_num)
                else:
                    blank.append(reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: it cannot be read as CSV ({getattr(error, 'strerror', None) or error}).") from error
    if len(rows) < 2:
        raise ValueError(f"{path}: expected a line of column names and then rows, got {count_of(len(rows), 'line')}.")
    names = [name.strip() for name in rows[0]]
    if _are_numbers(names):
        raise ValueError(
            f"{path}: line 1 should name the columns, and has numbers: {listed(names)}. Put a line of names above it."
        )
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: line 1 has the same column name twice: {listed(names)}. Rename one.")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(names):
            named = count_of(len(names), "name")
            raise ValueError(f"{path}: line {line} has {count_of(len(row), 'cell')}, and line 1 {named}.")
    inner = [line for line in blank if lines[0] < line < lines[-1]]
    if inner and len(names) == 1:
        raise ValueError(
            f"{path}: line {inner[0]} is blank ({len(inner)} such lines). In a table of one column, write nan for a "
            "missing value, and delete lines that mean nothing."
        )
    return {name: [row[i] for row in rows[1:]] for i, name in enumerate(names)}, lambda i: f"line {lines[i + 1]}"


def _are_numbers(names: list[str]) -> bool:
    """Whether a line has values and no names: numbers, but for those that count up, as an array's columns or years."""
    if not any(map(is_number, names)) or not all(is_number(name) or not name for name in names):
        return False
    first = int(names[0]) if names[0].isdecimal() else None
    counts_up = first is not None and names == [str(first + i) for i in range(len(names))]
    return not counts_up or (len(names) == 1 and first != 0)


def numbers_of(column: Any, name: str, row: RowName) -> np.ndarray:
    """A column as floats, NaN where a value is missing."""
    array = plain(column)
    if array.dtype.kind in "fiub":  # truth values, of dummies, are 0 and 1
        warn_of_rounding(f"column {name!r}", array, 0, "Take something off all, the first one say", np.float64)
        values = array.astype(float)
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            raise ValueError(f"column {name!r}, {row(int(infinite[0]))}: the value is infinite; no density allows it.")
        return values
    found = np.empty(len(array))
    for i, value in enumerate(array):
        try:
            found[i] = math.nan if is_missing(value) else as_number(value)
        except ValueError as error:
            told = f"column {name!r}, {row(i)}: {error}. Write a number, or nan where it is missing."
            raise ValueError(told) from error
    return found


def is_missing(value: Any) -> bool:
    """Whether it is None, NaN, or what pandas has in their place."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def complete(values: np.ndarray, name: str, row: RowName) -> np.ndarray:
    """The values of an input, or an error where one is missing."""
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        raise ValueError(
            f"inputs: column {name!r}, {row(int(missing[0]))}: the value is missing ({len(missing)} in all), and a "
            "model needs every input. Fill it in."
        )
    return values


def plain(column: Any) -> np.ndarray:
    """A column as a NumPy array; numbers with gaps may come as objects."""
    whole = is_table(column) or hasattr(column, "__array__")  # NumPy's, JAX's
    return np.asarray(column) if whole else np.array(list(column), object)


def listed(names: Iterable[Any]) -> str:
    """The names, as many as fit a line."""
    written = ", ".join(map(str, names))
    return written if len(written) <= 120 else f"{written[:117]}..."


def count_of(count: int, noun: str) -> str:
    """Such as "1 column" and "2 columns"."""
    return f"{count} {noun}{'s' if count != 1 else ''}"
