"""Reads observations from lines of text, CSV or JSON. A line that cannot be read raises an error with the reason.

A line is one observation:

    1.5                            a number
    1.5,2.5                        CSV, as many cells as the model observes numbers, or those that `columns` names
    [1.5, null]                    a JSON list
    {"y": 1.5, "dt": 0.1}          a JSON object, whose `columns` ("y" by default) and `inputs` are read by name

The first line may be a CSV header: none of its cells is a number. Blank lines are skipped. A missing value is an empty
cell, NA, NaN, null or none. Without a header, columns are named by position, from 1.
"""

import csv
import decimal
import json
import math
import numbers
from typing import Any, NamedTuple

import numpy as np

from epf_jax.core.checks import brief

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
LONGEST = 1 << 20  # bytes of a line; what never ends must not fill the memory


class LineError(ValueError):
    """A line that is not an observation; the message is the reason."""


class HeaderError(LineError):
    """A header without the wanted columns, so that no later line can be read."""


class Observation(NamedTuple):
    """One observation.

    Attributes:
        y: the observation, in the model's shape, NaN where missing.
        u: the inputs by name, or None without inputs.
        sequence: the number of the line in the sequence, if lines are numbered.
        stamp: the time stamp as it was written, if lines have one.
    """

    y: np.ndarray
    u: dict[str, float] | None
    sequence: int | None
    stamp: Any = None


def as_number(value: Any) -> float:
    """The value as a float, NaN if it is missing. Raises `ValueError` with the reason if it is not a number."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in _MISSING:
            return math.nan
        try:
            number = float(text) if "_" not in text else None  # Python reads 1_000
        except ValueError:
            number = None
        if number is None:
            raise ValueError(f"{brief(text)} is not a number")
    elif isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | decimal.Decimal | np.number):
        raise ValueError(f"{brief(value)} is not a number")
    else:
        try:
            number = float(value)
        except OverflowError as error:
            raise ValueError("it is too large a number") from error
    if math.isinf(number):
        raise ValueError(f"{brief(value)} is infinite or too large; no density allows it")
    return number


class LineReader:
    """Reads lines one by one, and remembers the header.

    Attributes:
        header: the names of the CSV columns, once they are known.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        columns: tuple[str, ...] = (),
        inputs: tuple[str, ...] = (),
        sequence: str | None = None,
        dtype: Any = np.float64,
        header: list[str] | None = None,
        time: str | None = None,
    ):
        """Expect observations of the model's shape.

        Args:
            shape: the shape of one observation.
            columns: names, or positions from 1, of the observed columns; by default all that are not inputs.
            inputs: names or positions of the input columns.
            sequence: name or position of the column with the line's number.
            dtype: the precision of y.
            header: the header that an earlier reader of the same stream found.
            time: name or position of the column with the time stamp.
        """
        self.header = header
        self._shape, self._size, self._dtype = shape, math.prod(shape), dtype
        self._columns, self._inputs, self._sequence, self._time = columns, inputs, sequence, time
        self._first = True

    def read(self, line: bytes) -> Observation | None:
        """The observation of a line, None for a blank line or a header; a `LineError` if it is neither."""
        if len(line) > LONGEST:
            raise LineError(f"it is longer than {LONGEST} bytes")
        try:
            text = line.decode("utf-8-sig" if self._first else "utf-8").strip()
        except UnicodeDecodeError as error:
            self._first = False
            raise LineError(f"it is not UTF-8 text ({error.reason} at byte {error.start + 1})") from error
        if not text:
            return None
        first, self._first = self._first, False
        if text[0] in "{[":
            cells = _json(text)
        else:
            cells = _csv(text)
            if first and _is_header(cells):
                self._take_header(cells)
                return None
        return self._observation(cells)

    def _take_header(self, cells: list[str]) -> None:
        names = [cell.strip() for cell in cells]
        if len(set(names)) < len(names):
            raise HeaderError(f"the header names a column twice: {', '.join(names)}")
        wanted = [*self._columns, *self._inputs, *(name for name in (self._sequence, self._time) if name)]
        lacking = [name for name in wanted if name not in names]
        if lacking:
            raise HeaderError(f"the header has no column {lacking[0]!r}; it has {', '.join(names)}")
        if not self._columns and len(names) - len(wanted) != self._size:
            raise HeaderError(
                f"the model observes {_numbers(self._size)}, and the header names {', '.join(names)}; choose --columns"
            )
        self.header = names

    def _observation(self, cells: Any) -> Observation:
        ordered = isinstance(cells, list)
        if ordered and self.header is not None:
            if len(cells) != len(self.header):
                raise LineError(f"it has {len(cells)} cells, and the header {len(self.header)}")
            cells = dict(zip(self.header, cells, strict=True))
        sequence = None if self._sequence is None else _whole(_cell(cells, self._sequence), self._sequence)
        u = {name: self._number(_cell(cells, name), name) for name in self._inputs} or None
        for name, value in (u or {}).items():
            if math.isnan(value):
                raise LineError(f"the input {name!r} is missing; the model needs every input")
        stamp = None if self._time is None else _cell(cells, self._time)
        if isinstance(stamp, dict | list | None) and self._time is not None:
            raise LineError(f"the time {self._time!r} is missing; every observation needs its time")
        if not ordered and not self._columns and self.header is None and self._size > 1:
            raise LineError("an object has no order; name the columns that are observed, in the model's order")
        named = {name: _cell(cells, name) for name in self._observed(cells)}
        if len(named) != self._size:
            raise LineError(f"it has {_numbers(len(named))}, and the model observes {_numbers(self._size)}")
        y = np.array([self._number(value, name) for name, value in named.items()], self._dtype)
        return Observation(y.reshape(self._shape), u, sequence, stamp)

    def _observed(self, cells: Any) -> tuple[str, ...]:
        """The columns that are observed: those named, else all of the header that are nothing else, or "y"."""
        if self._columns:
            return self._columns
        if self.header is None and isinstance(cells, dict):
            if "y" not in cells:
                raise LineError(f"it has no 'y', only {brief(', '.join(cells))}; choose --columns")
            return ("y",)
        there = [str(i) for i in range(1, len(cells) + 1)] if self.header is None else self.header
        return tuple(name for name in there if name not in {*self._inputs, self._sequence, self._time})

    def _number(self, value: Any, name: str) -> float:
        try:
            number = as_number(value)
        except ValueError as error:
            raise LineError(f"column {name}: {error}") from error
        with np.errstate(over="ignore"):
            if math.isfinite(number) and not np.isfinite(np.asarray(number).astype(self._dtype)):
                raise LineError(f"column {name}: {number:g} is too large for {np.dtype(self._dtype).name}")
        return number


def _json(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else error
        raise LineError(f"it is not JSON ({reason})") from error
    return value


def _csv(text: str) -> list[str]:
    try:
        (cells,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        raise LineError(f"it is not a line of CSV ({error})") from error
    return cells


def _is_header(cells: list[str]) -> bool:
    """Whether no cell is a number and some begin with a letter; the column of an index may have no name."""
    words = [cell.strip() for cell in cells if cell.strip().lower() not in _MISSING]
    return not any(map(is_number, cells)) and any(word[0].isalpha() for word in words)


def is_number(cell: str) -> bool:
    """Whether a cell's text is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _cell(cells: Any, name: str) -> Any:
    if isinstance(cells, dict):
        if name not in cells:
            there = brief(", ".join(map(str, cells)))
            raise LineError(f"it has no {name!r}, only {there}; write null where it is missing")
        return cells[name]
    if not name.isdecimal() or not 1 <= int(name) <= len(cells):
        raise LineError(
            f"it has no column {name!r}: {_numbers(len(cells))} without a header, whose columns are named by position "
            "from 1"
        )
    return cells[int(name) - 1]


def _whole(value: Any, name: str) -> int:
    try:
        number = as_number(value)
    except ValueError as error:
        raise LineError(f"sequence number {name}: {error}") from error
    if not number.is_integer() or number < 0 or number >= 2**53:
        raise LineError(f"sequence number {name}: expected a whole number, got {brief(value)}")
    return int(number)


def _numbers(count: int) -> str:
    return f"{count} number{'s' if count != 1 else ''}"
