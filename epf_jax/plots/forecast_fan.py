"""The fan chart of a forecast."""

from typing import Any

import numpy as np

from epf_jax.core.checks import check_whole_number
from epf_jax.data.series import Series, shaped
from epf_jax.data.timestamps import axis_of
from epf_jax.plots.figures import (
    ALONG,
    DATA,
    MOST_PANELS,
    check_levels_kept,
    column,
    curves,
    draw_data,
    draw_fan,
    finish,
    finished,
    legend,
)


def plot_forecast(
    forecast: Any, y: Any = None, *, truth: Any = None, title: str | None = None, num_past: int | None = None
) -> Any:
    """A figure of future observations: predictive mean and nested bands, after the data so far.

    Args:
        forecast: what `epf.forecast` returned.
        y: the observations up to the forecast. From `epf.from_table`, its names and stamps are shown, and the
            forecast's inputs "dt" place its steps.
        truth: the observations that came later, one row for each step of the forecast.
        title: the title of the figure.
        num_past: how many past observations are drawn; by default four for each step of the forecast, at least 40.

    Returns:
        The matplotlib figure, a panel for each component of y.
    """
    check_levels_kept(forecast)
    t, found = np.asarray(forecast.t), curves(forecast.y, "y")[:MOST_PANELS]
    past = None if y is None else _rows("y", y, forecast)
    came = None if truth is None else _rows("truth", truth, forecast)
    if came is not None and len(came) != len(t):
        raise ValueError(f"truth: expected one row for each of the {len(t)} steps, got {len(came)}.")
    before, t, edge, along = _axis(t, y, 0 if past is None else len(past), forecast.dt)
    if past is not None:
        if num_past is not None:
            check_whole_number("num_past", num_past, hint="It is the number of past observations to draw.")
        shown = max(40, 4 * len(t)) if num_past is None else num_past
        before, past = before[-shown:], past[-shown:]
    figure, axes = column(len(found), 3.2 if len(found) < 3 else 2.2)
    for j, (ax, curve) in enumerate(zip(axes, found, strict=True)):
        if past is not None:
            ax.plot(before, past[:, j], color=DATA, linewidth=0.8, alpha=0.5)
            draw_data(ax, before, past[:, j])
        draw_fan(ax, t, curve, forecast.levels, label="forecast")
        if came is not None:
            ax.plot(t, came[:, j], "o", color="black", markersize=4, fillstyle="none", label="what came")
        ax.axvline(edge, color="#888888", linewidth=0.8)
        ax.set_ylabel(y.columns[j] if isinstance(y, Series) else curve.name)
        finish(ax)
    legend(axes[0])
    return finished(figure, axes, along, title)


def _axis(t: np.ndarray, y: Any, num_past: int, dt: Any) -> tuple[np.ndarray, np.ndarray, Any, str]:
    """The places of past and forecast along the axis, the line between them, and the label of the axis.

    Future stamps follow the forecast's own time steps dt, or else the median step of the past.
    """
    if not isinstance(y, Series) or y.times is None or num_past < 2:
        return np.arange(t[0] - num_past, t[0]), t, t[0] - 0.5, ALONG
    before, after = axis_of(y.times), y.stamps_ahead(len(t), dt)
    return before, after, before[-1] + (after[0] - before[-1]) / 2, "time"


def _rows(name: str, values: Any, forecast: Any) -> np.ndarray:
    expected = np.shape(forecast.y.mean)[1:]
    values = shaped(values.y, values.columns, expected, name) if isinstance(values, Series) else values
    rows = np.asarray(values, float)
    if rows.ndim == 0 or rows.shape[1:] != expected:
        raise ValueError(f"{name}: expected observations of shape {expected} along time, got shape {rows.shape}.")
    return rows.reshape(len(rows), -1)
