"""Reads time stamps (numbers, dates, ISO 8601 text) and computes the time steps between them."""

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np

from epf_jax.core.checks import brief
from epf_jax.data.text_lines import as_number

UNITS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0, "weeks": 604800.0}
MONTHS = {"months": 1, "quarters": 3, "years": 12}  # of the calendar, whose days they share out evenly
_NANOSECONDS = 10**9  # of a second
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
RowName = Callable[[int], str]
_MONTH = np.timedelta64(1, "M")


class EarlyError(ValueError):
    """A first stamp that does not come after the start."""


def time_steps(
    stamps: Any, name: str, row: RowName, unit: str | None, start: Any, alone: float | None = None
) -> np.ndarray | None:
    """The time from the last observation to each observation: T numbers in the unit; None for dates without a unit.

    Args:
        stamps: one for each observation: numbers, dates, or ISO 8601 text such as 2024-01-31T12:00:00.
        name: the name of their column.
        row: `row(i)` is the name of row i in messages.
        unit: the unit of the time steps if stamps are dates, one of `UNITS` or `MONTHS`; None if stamps are numbers, or
            dates that only label the rows.
        start: the stamp of the initial state x_0; by default the first step is as long as the second.
        alone: the first step of a series with a single stamp.
    """
    values, dated = _values(list(stamps), name, row)
    if unit is not None and not dated:
        raise ValueError(
            f"unit: column {name!r} holds numbers, which have no unit. Leave the unit out, or write dates as "
            "2024-01-31."
        )
    if not dated and _look_like_days(values):
        raise ValueError(
            f"time: column {name!r} holds whole numbers such as {int(values[0])}, which look like dates. Write them as "
            "dates, 2024-01-31 (pandas.to_datetime(column, format='%Y%m%d')), and give the unit."
        )
    if unit is not None and unit not in UNITS | MONTHS:
        raise ValueError(f"unit: expected one of {', '.join(UNITS | MONTHS)}, got {unit!r}.")
    scale = _NANOSECONDS * UNITS[unit] if unit in UNITS else 1.0
    steps = np.diff(values) / scale  # dates are whole numbers until here, so that no difference is rounded away
    _check_increasing(steps, stamps, name, row)
    if dated and unit is None:
        if start is not None:
            raise ValueError(
                f"unit: with start, the dates in column {name!r} become time steps. Give their unit, unit='days'."
            )
        return None
    if start is None and len(steps) == 0 and alone is not None:
        return np.array([alone])
    first = _first_step(next(iter(stamps)), steps, name, scale, start)
    if unit in MONTHS:
        months = _in_months([*stamps] if start is None else [start, *stamps]) / MONTHS[unit]
        return np.diff(months, prepend=2 * months[0] - months[1]) if start is None else np.diff(months)
    return np.concatenate([[first], steps])


def _in_months(stamps: list[Any]) -> np.ndarray:
    """Dates as months since 1970: whole ones apart where all are on one day of the month, or on the last.

    Of others the days are parts of their own month.
    """
    dates = axis_of(stamps)
    days, day = dates.astype("datetime64[D]"), np.timedelta64(1, "D")
    if np.all((dates == days) & ((days + day).astype("datetime64[M]") == days + day)):
        dates = dates + day
    months = dates.astype("datetime64[M]")
    begin, end = (month.astype("datetime64[ns]") for month in (months, months + _MONTH))
    since = dates - begin
    return months.astype(int) + (np.zeros(len(dates)) if np.all(since == since[0]) else since / (end - begin))


def months_ahead(stamps: Any, num_steps: int) -> np.ndarray | None:
    """So many dates that go on by the months between those given; None where these are not whole months apart."""
    dates = axis_of(stamps)
    if dates.dtype.kind != "M" or len(dates) < 3:
        return None
    months = _in_months(list(stamps))
    apart = np.diff(months)
    if not (apart[0] == round(apart[0]) and np.all(apart == apart[0])):
        return None
    last = dates[-1].astype("datetime64[M]")
    later = last + round(apart[0]) * np.arange(1, num_steps + 1) * _MONTH
    if months[-1] == last.astype(int) + 1:  # the last of a month
        return (later + _MONTH).astype("datetime64[ns]") - np.timedelta64(1, "D")
    return later.astype("datetime64[ns]") + (dates[-1] - last.astype("datetime64[ns]"))


def usual_step(steps: np.ndarray) -> Any:
    """The upper median of time steps, which is one of them."""
    return np.sort(steps)[len(steps) // 2]


def rounded_to(since: np.ndarray, eps: float) -> np.ndarray:
    """Times since a stamp; those of dates in whole units of which one is as much as they may be off by, and no more.

    A third of a day in single precision is eight hours and some hundred microseconds: in milliseconds, eight hours.
    """
    if since.dtype.kind != "m":
        return since
    found = since.astype("timedelta64[ns]")
    off = np.max(np.abs(found.astype(np.int64))) * eps  # in nanoseconds
    units = [int(_NANOSECONDS * unit) for unit in (UNITS["hours"], UNITS["minutes"], UNITS["seconds"], 1e-3, 1e-6)]
    unit = next((unit for unit in units[::-1] if unit >= off), units[0]) if off >= 1 else 1
    return ((found.astype(np.int64) + unit // 2) // unit * unit).astype("timedelta64[ns]")


def axis_of(stamps: Any) -> np.ndarray:
    """The stamps as numbers or NumPy dates, for an axis or a column; stamps with a time zone in its local time."""
    values, dated = _values([_of_its_zone(stamp) for stamp in stamps], "time", lambda i: f"row {i}")
    return values.astype("datetime64[ns]") if dated else values


def are_dates(stamps: Any) -> bool:
    """Whether the first stamp is a date."""
    try:
        return _value(next(iter(stamps)))[1] != "a number"
    except ValueError:  # told with its row, later
        return False


def _of_its_zone(stamp: Any) -> Any:
    """A stamp with a time zone as local time."""
    if isinstance(stamp, str):
        try:
            as_number(stamp)
        except ValueError:
            stamp = _from_iso(stamp)
    return stamp.replace(tzinfo=None) if getattr(stamp, "tzinfo", None) is not None else stamp


def _look_like_days(values: np.ndarray) -> bool:
    """Whether numbers are days written as 20240131, all of them."""

    def is_day(value):
        try:
            datetime.datetime.strptime(f"{int(value):08d}", "%Y%m%d")
        except ValueError:
            return False
        return value == int(value) and 19000101 <= value <= 21001231

    return len(values) > 1 and all(map(is_day, values))


def _first_step(first: Any, steps: np.ndarray, name: str, scale: float, start: Any) -> float:
    if start is None:
        if not len(steps):
            raise ValueError(f"start: column {name!r} has one stamp, so no time step. Give the time of x_0 as start.")
        return float(steps[0])
    (at,), _ = _values([start], "start", lambda i: "the time of x_0")
    first, kind = _value(first)
    if kind != _value(start)[1]:
        raise ValueError(f"start: expected a stamp like those in column {name!r}, got {brief(start)}.")
    if not first > at:
        raise EarlyError(f"start: expected a time before the first stamp in column {name!r}, got {brief(start)}.")
    return float((first - at) / scale)


def _check_increasing(steps: np.ndarray, stamps: Any, name: str, row: RowName) -> None:
    wrong = np.flatnonzero(~(steps > 0))
    if not len(wrong):
        return
    i = int(wrong[0]) + 1
    before, here = str(stamps[i - 1]), str(stamps[i])
    if steps[i - 1] == 0:
        raise ValueError(
            f"time: column {name!r}, {row(i)}: the stamp {here} is that of the row before, too ({len(wrong)} such or "
            "unsorted rows in all). Keep one row for each time, for example the mean of several."
        )
    raise ValueError(
        f"time: column {name!r}, {row(i)}: {here} comes before {before} of the row before. Sort the table by {name!r}."
    )


def _values(stamps: list[Any], name: str, row: RowName) -> tuple[np.ndarray, bool]:
    """The stamps as numbers, whole nanoseconds since 1970 if they are dates, and whether they are."""
    found, kinds = [], set()
    for i, stamp in enumerate(stamps):
        try:
            value, kind = _value(stamp)
        except ValueError as error:
            raise ValueError(f"time: column {name!r}, {row(i)}: {error}.") from error
        found.append(value)
        kinds.add(kind)
        if len(kinds) > 1:
            raise ValueError(
                f"time: column {name!r}, {row(i)}: {brief(str(stamp))} is {kind}, and those before it are "
                f"{(kinds - {kind}).pop()}. Write all stamps in one way."
            )
    dated = kinds != {"a number"}
    return np.array(found, np.int64 if dated else float), dated


def _value(stamp: Any) -> tuple[float | int, str]:
    if isinstance(stamp, np.datetime64):
        if np.isnat(stamp):
            raise ValueError("the time is missing; every observation needs its time")
        _within(int(stamp.astype("datetime64[s]").astype(np.int64)) * _NANOSECONDS)
        return int(stamp.astype("datetime64[ns]").astype(np.int64)), "a date"
    if isinstance(stamp, str):
        try:
            stamp = as_number(stamp)
        except ValueError:
            stamp = _from_iso(stamp)
    if isinstance(stamp, datetime.date) and not isinstance(stamp, datetime.datetime):
        stamp = datetime.datetime(stamp.year, stamp.month, stamp.day)
    if isinstance(stamp, datetime.datetime):
        if stamp != stamp:  # pandas.NaT
            raise ValueError("the time is missing; every observation needs its time")
        zoned = stamp.tzinfo is not None
        since = (stamp if zoned else stamp.replace(tzinfo=datetime.UTC)) - _EPOCH
        seconds = since.days * 86400 + since.seconds
        beyond = since.microseconds * 1000 + getattr(stamp, "nanosecond", 0)  # pandas has them
        return _within(seconds * _NANOSECONDS + beyond), "a date with its time zone" if zoned else "a date"
    number = as_number(stamp)
    if number != number:
        raise ValueError("the time is missing; every observation needs its time")
    return number, "a number"


def _within(nanoseconds: int) -> int:
    if abs(nanoseconds) >= 2**63:
        raise ValueError("the date lies outside of the years 1678 to 2261")
    return nanoseconds


def _from_iso(text: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(f"{brief(text)} is neither a number nor a date such as 2024-01-31") from error
