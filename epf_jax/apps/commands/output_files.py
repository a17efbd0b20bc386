"""Writes the numbers of a run: Parquet and netCDF over time, forecasts as CSV."""

import io
import pathlib
from typing import Any

import jax
import numpy as np

from epf_jax.apps.commands.options import note
from epf_jax.apps.page import prepare_pictures
from epf_jax.core.checks import pip_install
from epf_jax.core.files import write_atomically
from epf_jax.core.naming import scalars
from epf_jax.data.series import Series
from epf_jax.offline.smoothing import Smoothed
from epf_jax.running.forecast import Forecast
from epf_jax.running.records import Summary, log_scores
from epf_jax.running.results import Results


def prepare(page: pathlib.Path) -> None:
    """Raise before the work starts if the folder cannot be made or a package is missing."""
    try:
        import h5netcdf  # noqa: F401
        import h5py  # noqa: F401
        import pyarrow  # noqa: F401
        import xarray  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{error}: {pip_install('cli')}. Nothing was computed.") from error
    if page.exists():
        note(f"{page} is there already; it is replaced, with its figures and numbers, when this run ends.")
    try:
        prepare_pictures(page.parent)
    except OSError as error:
        raise ValueError(f"--output: cannot make {page.parent} ({error.strerror or error}).") from error


def columns_over_time(
    series: Series, results: Results | None = None, smoothed: Smoothed | None = None
) -> dict[str, np.ndarray]:
    """All that is known over time as columns, with a row for every observation of the results or of the series."""
    num = len(series.y)
    found: dict[str, Any] = {"t": np.arange(1, num + 1)}
    if series.times is not None:
        found["time"] = np.asarray([str(stamp) for stamp in series.times])
    flat = series.y.reshape(num, -1)
    data = {name: flat[:, i] for i, name in enumerate(series.columns)}
    own = {} if smoothed is None else _columns("smoothed", smoothed.x, smoothed.levels)
    last = slice(None) if results is None else slice(num - len(results.ess), None)
    columns = {} if results is None else _found(results)
    # A column of the table that is called as one of the run's own is told apart from it.
    taken = {"method", *found, *columns, *own}
    data = {f"y.{name}" if name in taken else name: column for name, column in data.items()}
    return (
        {name: column[last] for name, column in (found | data).items()}
        | columns
        | {name: column[last] for name, column in own.items()}
    )


def _found(results: Results) -> dict[str, np.ndarray]:
    """The results of a run as columns."""
    found = _columns("theta", results.theta, results.levels) | _columns("x", results.x, results.levels)
    found |= {"log_evidence": np.asarray(results.log_evidence), "log_score": log_scores(results)}
    for name in ("ess", "resampled", "acceptance", "num_bad_weights", "num_bad_densities", "collapsed"):
        found[name] = np.asarray(getattr(results, name))
    return found


def _columns(root: str, summary: Summary, levels: Any) -> dict[str, np.ndarray]:
    """A summary over time, a column for each component's mean, sd and quantiles."""
    parts = {"mean": summary.mean, "sd": summary.sd}
    for i, level in enumerate(np.asarray(levels)):
        parts[f"q{round(100 * float(level)):02d}"] = jax.tree.map(lambda leaf, i=i: leaf[..., i], summary.quantiles)
    return {
        f"{root}.{name}.{part}" if name != root else f"{root}.{part}": np.asarray(values)
        for part, tree in parts.items()
        for name, values in scalars(tree, 1, root).items()
    }


def write_parquet(path: pathlib.Path, columns: dict[str, np.ndarray]) -> None:
    """The columns as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    write_atomically(path, buffer.getvalue())


def write_netcdf(path: pathlib.Path, columns: dict[str, np.ndarray]) -> None:
    """The columns as variables along t in a netCDF file."""
    import xarray as xr

    # netCDF takes a slash for a group.
    rows = {name.replace("/", "_"): ("t", values) for name, values in columns.items() if name != "t"}
    data = xr.Dataset(rows, coords={"t": columns["t"]})
    write_atomically(path, bytes(data.to_netcdf(engine="h5netcdf")))


def write_forecast(path: pathlib.Path, found: Forecast, series: Series) -> None:
    """Write the whole forecast, states and observations, to a CSV file."""
    write_atomically(path, found.to_pandas(series).to_csv(index=False))
