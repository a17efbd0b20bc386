"""The fan chart of a forecast."""

from typing import Any

import numpy as np

from epf_jax.data import Series
from epf_jax.plots.base import (
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


def plot_forecast(forecast: Any, y: Any = None, *, truth: Any = None, title: str | None = None) -> Any:
    """A figure of the observations to come: predictive mean and nested bands, after the data so far.

    Args:
        forecast: what `epf.forecast` gave back.
        y: the observations so far, the last of which came just before the forecast's first step.
        truth: the observations that came then, one row for each step of the forecast.
        title: of the figure.

    Returns:
        The matplotlib figure, a panel for each component of y.
    """
    check_levels_kept(forecast)
    t, found = np.asarray(forecast.t), curves(forecast.y, "y")[:MOST_PANELS]
    past = None if y is None else _rows("y", y, forecast)
    came = None if truth is None else _rows("truth", truth, forecast)
    if came is not None and len(came) != len(t):
        raise ValueError(f"truth: expected one row for each of the {len(t)} steps, got {len(came)}.")
    figure, axes = column(len(found), 3.2 if len(found) < 3 else 2.2)
    for j, (ax, curve) in enumerate(zip(axes, found, strict=True)):
        if past is not None:
            before = np.arange(t[0] - len(past), t[0])
            ax.plot(before, past[:, j], color=DATA, linewidth=0.8, alpha=0.5)
            draw_data(ax, before, past[:, j])
        draw_fan(ax, t, curve, forecast.levels, label="forecast")
        if came is not None:
            ax.plot(t, came[:, j], "o", color="black", markersize=4, fillstyle="none", label="what came")
        ax.axvline(t[0] - 0.5, color="#888888", linewidth=0.8)
        ax.set_ylabel(y.columns[j] if isinstance(y, Series) else curve.name)
        finish(ax)
    legend(axes[0])
    return finished(figure, axes, "observations t", title)


def _rows(name: str, values: Any, forecast: Any) -> np.ndarray:
    rows = np.asarray(values.y if isinstance(values, Series) else values, float)
    expected = np.shape(forecast.y.mean)[1:]
    if rows.ndim == 0 or rows.shape[1:] != expected:
        raise ValueError(f"{name}: expected observations of shape {expected} along time, got shape {rows.shape}.")
    return rows.reshape(len(rows), -1)
