"""Shared by all pictures: colours, panels, fans, and the data to draw."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from epf_jax.core.checks import brief, pip_install
from epf_jax.core.naming import component_names, named_leaves
from epf_jax.data.series import Series, from_table
from epf_jax.data.tables import is_table
from epf_jax.data.timestamps import axis_of
from epf_jax.running.records import Diagnostics, Summary, times
from epf_jax.running.results import Results

FILTER, EXACT, TRUTH, DATA = "#1f5fa8", "#d1662a", "#333333", "#7a3b8f"
MOST_PANELS = 8
ALONG = "observations t"
TRUE = "value that made the data"
_FOLLOWS, _ALIKE = 0.4, 3.0  # the least correlation of data with states that they measure; the most of their spreads


class Curve(NamedTuple):
    """One scalar over time: its name, mean and quantiles."""

    name: str
    mean: np.ndarray
    quantiles: np.ndarray


def curves(summary: Summary, otherwise: str, names: Sequence[str] = ()) -> list[Curve]:
    """Every scalar component of a summary over time; those that are named, by their names, where names are given."""
    found = []
    bands = jax.tree.leaves(summary.quantiles)
    for (name, mean), quantiles in zip(named_leaves(summary.mean, otherwise), bands, strict=True):
        mean, quantiles = np.asarray(mean), np.asarray(quantiles)
        flat, edges = mean.reshape(len(mean), -1), quantiles.reshape(len(mean), -1, quantiles.shape[-1])
        for j, component in enumerate(component_names(name, mean.shape[1:])):
            found.append(Curve(component, flat[:, j], edges[:, j]))
    return [curve._replace(name=name) for curve, name in zip(found, names, strict=False)] if names else found


def dates() -> Any:
    """matplotlib.dates."""
    import matplotlib.dates

    return matplotlib.dates


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: {pip_install('plots')}.") from error
    return plt


def check_levels_kept(results: Any) -> None:
    """Raise if a run, a forecast or smoothed states have no quantiles, and so no band to draw."""
    if results.levels.shape[-1] < 2:
        raise ValueError(
            f"{type(results).__name__.lower()}: it kept no quantiles; make it with levels=(0.05, 0.95) to plot a band."
        )


def check_recorded(results: Results, who: str) -> Diagnostics:
    """The run's diagnostics, or an error if it recorded none."""
    if results.diagnostics is None:
        raise ValueError(
            f"results: {who} draws what epf.run(..., diagnostics=True) records, and this run recorded none."
        )
    return results.diagnostics


def true_values(truth: Any, like: Any, what: str = "the prior's structure") -> list[Any]:
    """The numbers of `truth` in the order of the curves; None for each without `truth`."""
    num = sum(int(np.prod(np.shape(leaf)[1:])) for leaf in jax.tree.leaves(like))
    if truth is None:
        return [None] * num
    expected: Any = jax.tree.structure(like)
    if jax.tree.structure(truth) != expected:
        shapes = jax.tree.map(lambda leaf: np.shape(leaf)[1:], like)
        raise ValueError(f"truth: expected {what}, with shapes {shapes}, got {truth!r}. Give every value by its name.")
    return [float(v) for leaf in jax.tree.leaves(truth) for v in np.ravel(leaf)]


class Shown(NamedTuple):
    """The time axis of a run's pictures, and the observations.

    Attributes:
        t: the time of each step: its number, or its time stamp.
        along: the label of the axis.
        y: the observations, or None.
        names: the names of their components.
    """

    t: np.ndarray
    along: str
    y: np.ndarray | None
    names: list[str]

    @property
    def columns(self) -> np.ndarray:
        """The observations, a column for each component; none where there are none."""
        return np.zeros((len(self.t), 0)) if self.y is None else self.y.reshape(len(self.t), -1)


def shown(results: Results, y: Any) -> Shown:
    """The axis and the data of a run; `y` is an array, a table, a `Series` with its names and stamps, or None."""
    return shown_at(times(results), y)


def shown_at(t: np.ndarray, y: Any) -> Shown:
    """The axis and the data of any steps t."""
    if y is None:
        return Shown(t, ALONG, None, [])
    if isinstance(y, Mapping):
        raise TypeError(
            f"y: expected the {len(t)} observations of the run, got {brief(y)}. True values go by name, truth={{...}}; "
            "give a table as epf.from_table(y, 'column')."
        )
    y = from_table(y) if is_table(y) else y
    stamps = y.times if isinstance(y, Series) else None
    values = np.asarray(y.y if isinstance(y, Series) else y, float)
    if values.ndim == 0 or len(values) != len(t):
        raise ValueError(f"y: expected the {len(t)} observations of the run, got shape {values.shape}.")
    names = list(y.columns) if isinstance(y, Series) else component_names("y", values.shape[1:])
    return Shown(t, ALONG, values, names) if stamps is None else Shown(axis_of(stamps), "time", values, names)


def measured(y: Any, mean: Any) -> bool:
    """Whether observations look like the states plus noise, so that both can share a panel.

    They follow the states on the same scale. Counts of a log-rate do not, nor do returns of a volatility.
    """
    y, mean = (np.asarray(a, float).reshape(len(a), -1) for a in (y, mean))
    if y.shape != mean.shape:
        return False
    for values, states in zip(y.T, mean.T, strict=True):
        seen = np.isfinite(values) & np.isfinite(states)
        values, states = values[seen], states[seen]
        if len(values) < 2 or min(values.std(), states.std()) == 0:
            continue
        follows = np.corrcoef(values, states)[0, 1] > _FOLLOWS
        alike = max(values.std(), states.std()) < _ALIKE * min(values.std(), states.std())
        near = np.median(np.abs(values - states)) < _ALIKE * values.std()
        if not (follows and alike and near):
            return False
    return True


def draw_fan(ax: Any, t: np.ndarray, curve: Curve, levels: Any, *, label: str = "filter", color: str = FILTER) -> None:
    """A posterior over time on one panel: its mean and nested bands between the outermost levels, the next, ..."""
    levels = np.asarray(levels, float)
    num_bands = len(levels) // 2
    for i in range(num_bands):
        low, high = curve.quantiles[:, i], curve.quantiles[:, len(levels) - 1 - i]
        name = f"{label}: {levels[-1 - i] - levels[i]:.0%} band"
        ax.fill_between(t, low, high, color=_tint(color, (i + 1) / (num_bands + 1)), linewidth=0, label=name)
    ax.plot(t, curve.mean, color=color, linewidth=1.8, label=f"{label}: mean")


def focus(ax: Any, curve: Curve, data: Any = None) -> None:
    """Set the limits of a panel without its few widest bands, such as those before anything was learned.

    This happens if all bands would take more than 1.5 times the room of: the data, the means without the first 2%, and
    the bands without the widest 2% at either side.
    """
    edges = [curve.mean, *curve.quantiles.T]
    lows, highs = np.nanmin(edges, axis=0), np.nanmax(edges, axis=0)
    means = curve.mean[1 + len(curve.mean) // 50 :]
    seen = np.concatenate([means if data is None else np.ravel(data), means]).astype(float)
    seen = seen[np.isfinite(seen)]
    low = min([np.nanquantile(lows, 0.02), *seen])
    high = max([np.nanquantile(highs, 0.98), *seen])
    if high > low and max([np.nanmax(highs), *seen]) - min([np.nanmin(lows), *seen]) > 1.5 * (high - low):
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def _tint(color: str, strength: float) -> Any:
    """A paler colour. Bands are opaque, so that the legend shows their colour."""
    from matplotlib.colors import to_rgb

    return tuple(1 - 0.55 * strength * (1 - channel) for channel in to_rgb(color))


def draw_posterior(
    ax: Any, mean: Any, low: Any, high: Any, *, label: str, band: str = "90%", color: str = FILTER
) -> None:
    """A filter's posterior over time on one panel: its mean and its band."""
    t = np.arange(1, len(mean) + 1)
    ax.fill_between(t, low, high, color=color, alpha=0.22, linewidth=0, label=f"{label}: {band} band")
    ax.plot(t, mean, color=color, linewidth=2.2, label=f"{label}: mean")


def draw_reference(ax: Any, mean: Any, low: Any, high: Any, *, label: str, t: Any = None) -> None:
    """The exact posterior over time on one panel, dashed: its mean and the ends of its band."""
    t = np.arange(1, len(mean) + 1) if t is None else t
    for curve, width in ((mean, 1.5), (low, 1.0), (high, 1.0)):
        ax.plot(t, curve, color=EXACT, linewidth=width, linestyle=(0, (4, 2)), label=label if curve is mean else None)


def draw_truth(ax: Any, value: float, label: str = TRUE) -> None:
    """A value to compare with, by default the one that made the data."""
    ax.axhline(value, color=TRUTH, linewidth=1.0, linestyle=":", label=label)


def draw_data(ax: Any, t: np.ndarray, y: np.ndarray, label: str = "observed") -> None:
    """Observations as dots."""
    ax.plot(t, y, ".", color=DATA, markersize=4, alpha=0.7, label=label)


def finish(ax: Any) -> None:
    """Finish a panel over time: labels, limits, legend."""
    ax.margins(x=0)
    locator = ax.xaxis.get_major_locator()
    if hasattr(locator, "intervald"):  # dates: few, and each only as long as it must be
        # With fewer than 7, or from fewer than 3 on, some ranges of dates would suit none of matplotlib's steps.
        locator.minticks, locator.maxticks = 3, dict.fromkeys(locator.maxticks, 7)
        ax.xaxis.set_major_formatter(dates().ConciseDateFormatter(locator))
    ax.spines[["top", "right"]].set_visible(False)


def legend(ax: Any, **options: Any) -> None:
    """A legend above the panel, in one row."""
    above = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98), "ncols": 5, "borderaxespad": 0.2}
    ax.legend(**(above | {"frameon": False, "fontsize": 8, "handlelength": 1.4, "columnspacing": 1.2} | options))


def finished(figure: Any, axes: Any, along: str, title: str | None) -> Any:
    """The figure of stacked panels, with the label of their axis and its title."""
    axes[-1].set_xlabel(along)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.align_ylabels(axes)
    figure.tight_layout()
    return figure


def column(num: int, height: float = 2.6) -> tuple[Any, Any]:
    """A figure of panels below each other that share their time axis."""
    figure, axes = pyplot().subplots(num, 1, figsize=(9, 1 + height * num), sharex=True, squeeze=False)
    return figure, axes[:, 0]
