"""Results for other libraries: tables for pandas, labelled arrays for xarray, draws for ArviZ.

`pip install 'epf_jax[export]'` installs these libraries. They are imported when a function needs them. The runs of
`epf.replicate` become a column, a dimension, or chains.
"""

from typing import Any

import jax
import numpy as np

from epf_jax.core.checks import brief, pip_install
from epf_jax.core.naming import component_names, named_leaves
from epf_jax.data.series import Panel, Series
from epf_jax.data.timestamps import axis_of
from epf_jax.offline.smoothing import Smoothed
from epf_jax.running.forecast import Forecast
from epf_jax.running.results import Results, check_is_results, times

_OVER_TIME = ("log_evidence", "ess", "resampled", "acceptance", "num_bad_weights", "num_bad_densities", "collapsed")
_STATE = "x"  # what the state is called; a parameter of that name is refused


def to_pandas(results: Results, series: Series | Panel | None = None, *, states: bool = False) -> Any:
    """A tidy `pandas.DataFrame`: a row for each time and parameter, with its mean, sd and quantiles.

    Args:
        results: results of any method, or of `epf.replicate`, whose runs get a column `run`.
        series: the result of `epf.from_table`, whose time stamps become a column `time`; or of `epf.panel`, whose names
            become the column `run`. Rows after the end of a series are left out.
        states: whether the components of the state get rows, too, as parameters named x, or x[0], x[1], ...

    Returns:
        Columns t, parameter, mean, sd, and one for each quantile level, named as `describe` does: 5%, 50%, ...
    """
    pandas = _library("pandas")
    check_is_results(results)
    t, runs = times(results), results.ess.shape[:-1]
    if isinstance(series, Panel):
        return _of_panel(to_pandas(results, states=states), results, series)
    along = {"t": t} if series is None else {"t": t, "time": _stamps_of_run(results, series)}
    if runs:
        along = {name: np.tile(values, runs[0]) for name, values in along.items()}
        along = {"run": np.repeat(np.arange(runs[0]), len(t)), **along}
    return _tidy(pandas, along, "parameter", _summaries(results, states=states), results.levels)


def _of_panel(table: Any, results: Results, panel: Panel) -> Any:
    """The table of a panel's runs, by the names of its series, without the rows after their ends."""
    if results.ess.shape != panel.y.shape[:2]:
        raise ValueError(f"series: expected the panel of these runs, {results.ess.shape[:-1]} of them, got {panel!r}.")
    run = table["run"].to_numpy()
    kept = table["t"].to_numpy() <= panel.lengths[run]
    table = table.assign(run=np.array(panel.names, object)[run])[kept].reset_index(drop=True)
    if panel.times is not None:
        stamps = [axis_of(each) for each in panel.times]
        each = zip(run[kept], table["t"].to_numpy(), strict=True)
        table.insert(2, "time", np.array([stamps[i][t - 1] for i, t in each]))
    return table


def forecast_to_pandas(forecast: Forecast, series: Series | None = None) -> Any:
    """A tidy `pandas.DataFrame`: a row for each step ahead and component of y and x, with its mean, sd and quantiles.

    Args:
        forecast: the result of `epf.forecast`.
        series: the result of `epf.from_table` for the data before the forecast. Its time stamps, if there are at least
            two, go on in a column `time`, and observations get the names of its columns, unless a state has that name.

    Returns:
        Columns t, variable (y, or y[0], y[1], ..., and x likewise), mean, sd, and one for each quantile level.
    """
    summaries = [(name, *map(np.asarray, summary)) for name, summary in (("y", forecast.y), (_STATE, forecast.x))]
    along, names = {"t": np.asarray(forecast.t)}, component_names("y", forecast.y.mean.shape[1:])
    if series is not None:
        if not isinstance(series, Series):
            raise TypeError(f"series: expected what epf.from_table(table, ..., time='date') gave, got {brief(series)}.")
        if series.times is not None and len(series.times) > 1:
            along["time"] = series.stamps_ahead(len(forecast.t), forecast.dt)
    table = _tidy(_library("pandas"), along, "variable", summaries, forecast.levels)
    if series is None or len(series.columns) != len(names) or not set(series.columns).isdisjoint(table["variable"]):
        return table
    return table.replace({"variable": dict(zip(names, series.columns, strict=True))})


def smoothed_to_pandas(smoothed: Smoothed, series: Series | None = None) -> Any:
    """A tidy `pandas.DataFrame`: a row for each time and component of x given all observations.

    Args:
        smoothed: the result of `epf.smooth`.
        series: the result of `epf.from_table`, whose time stamps become a column `time`.

    Returns:
        Columns t, variable (x, or x[0], x[1], ...), mean, sd, and one for each quantile level.
    """
    along = {"t": np.asarray(smoothed.t)}
    if series is not None:
        along["time"] = _stamps(len(smoothed.t), len(smoothed.t), series)
    return _tidy(_library("pandas"), along, "variable", [(_STATE, *map(np.asarray, smoothed.x))], smoothed.levels)


def _tidy(pandas: Any, along: dict[str, np.ndarray], kind: str, summaries: list, levels: Any) -> Any:
    """A row for each time (and run) of every summarised component."""
    num_rows = len(along["t"])
    names = [f"{100 * float(level):g}%" for level in np.asarray(levels)]
    tables = [pandas.DataFrame(columns=[*along, kind, "mean", "sd", *names])]
    for name, mean, sd, quantiles in summaries:
        shape = mean.shape[2 if "run" in along else 1 :]
        means, sds = (np.reshape(a, (num_rows, -1)) for a in (mean, sd))
        bands = np.reshape(quantiles, (num_rows, means.shape[1], len(names)))
        for j, component in enumerate(component_names(name, shape)):
            columns = {**along, kind: component, "mean": means[:, j], "sd": sds[:, j]}
            tables.append(pandas.DataFrame({**columns, **dict(zip(names, bands[:, j].T, strict=True))}))
    return pandas.concat(tables[1:] or tables, ignore_index=True)


def to_xarray(results: Results, series: Series | None = None) -> Any:
    """An `xarray.Dataset` of everything over time, ready for `to_netcdf(path, engine="h5netcdf")`.

    Args:
        results: results of any method, or of `epf.replicate`, which adds the dimension `run`.
        series: the result of `epf.from_table`, whose time stamps become the coordinate `time` along `t`.

    Returns:
        For every parameter, and for the state x, the variables `name_mean`, `name_sd` and `name_quantile`, over `t`
        (and `level`); beside them log_evidence, ess and the other records of the run, and pit, the predictive check, if
        it was recorded.
    """
    xarray = _library("xarray")
    check_is_results(results)
    lead = (*(("run",) if results.ess.ndim > 1 else ()), "t")
    variables: dict[str, Any] = {name: (lead, np.asarray(getattr(results, name))) for name in _OVER_TIME}
    for name, mean, sd, quantiles in _summaries(results, states=True):
        inner = tuple(f"{name}_dim_{i}" for i in range(mean.ndim - len(lead)))
        variables[f"{name}_mean"] = ((*lead, *inner), mean)
        variables[f"{name}_sd"] = ((*lead, *inner), sd)
        variables[f"{name}_quantile"] = ((*lead, *inner, "level"), quantiles)
    if results.diagnostics is not None:
        pit = np.asarray(results.diagnostics.pit)
        variables["pit"] = ((*lead, *(f"y_dim_{i}" for i in range(pit.ndim - len(lead)))), pit)
    coordinates: dict[str, Any] = {"t": times(results), "level": np.asarray(results.levels)}
    if series is not None:
        coordinates["time"] = ("t", _stamps_of_run(results, series))
    if "run" in lead:
        coordinates["run"] = np.arange(results.ess.shape[0])
    from epf_jax._version import __version__

    return xarray.Dataset(variables, coordinates, {"inference_library": "epf_jax", "version": __version__})


def to_arviz(results: Results, y: Any = None, *, seed: int = 0) -> Any:
    """The posterior after the last observation as equally weighted draws, for ArviZ's plots and summaries.

    Markov chains are exported unchanged, with the log-likelihood of all observations for each draw as the sample
    statistic `log_marginal_likelihood`. Each run of a filter becomes a chain of N draws: particles picked by their
    weights (systematically) in random order. They are not a Markov chain: draws with a common ancestor are alike in
    ways that no autocorrelation shows, so ArviZ's effective sample sizes are too large.

    Args:
        results: results of any method, or of `epf.replicate`: then each run is a chain, and r_hat compares the runs.
        y: the observations, for the group `observed_data`.
        seed: the seed for picking particles.

    Returns:
        An `InferenceData` with ArviZ below 1, an `xarray.DataTree` with ArviZ 1 and later, as that ArviZ expects.
    """
    _, xarray = _library("arviz"), _library("xarray")
    check_is_results(results)
    draws = _draws(results, seed)
    posterior = {
        name: (("chain", "draw", *(f"{name}_dim_{i}" for i in range(drawn.ndim - 2))), drawn)
        for name, drawn in draws.items()
    }
    num_chains, num_draws = next(iter(draws.values())).shape[:2]
    coordinates = {"chain": np.arange(num_chains), "draw": np.arange(num_draws)}
    attributes = {"inference_library": "epf_jax"}
    groups = {"posterior": xarray.Dataset(posterior, coordinates, attributes)}
    if results.chains is not None:
        likelihoods = {"log_marginal_likelihood": (("chain", "draw"), results.chains.log_likelihood)}
        groups["sample_stats"] = xarray.Dataset(likelihoods, coordinates, attributes)
    if y is not None:
        values = np.asarray(y.y if isinstance(y, Series) else y)
        dims = ("t", *(f"y_dim_{i}" for i in range(values.ndim - 1)))
        t = _times_seen(results)
        if len(values) != len(t):
            raise ValueError(f"y: expected the {len(t)} observations of the run, got {len(values)}.")
        groups["observed_data"] = xarray.Dataset({"y": (dims, values)}, {"t": t}, attributes)
    return _for_arviz(groups)


def _draws(results: Results, seed: int) -> dict[str, np.ndarray]:
    """Draws of every leaf of theta and of x, with axes of chains and of draws."""
    final = results.final
    if results.chains is not None:
        shape = results.chains.log_likelihood.shape
        parts = _named_parts(final.theta, final.x, states=True)
        return {name: np.reshape(leaf, (*shape, *np.shape(leaf)[1:])) for name, leaf in parts}
    if results.ess.ndim == 1:
        final = jax.tree.map(lambda leaf: leaf[None], final)
    rng = np.random.default_rng(seed)
    picks = [_picks(rng, log_weights) for log_weights in np.asarray(final.log_weights, float)]
    return {
        name: np.stack([np.asarray(rows)[pick] for rows, pick in zip(leaf, picks, strict=True)])
        for name, leaf in _named_parts(final.theta, final.x, states=True)
    }


def _times_seen(results: Results) -> np.ndarray:
    """The time index of every observation: a filter's results have a row for each, chains one row for all."""
    return times(results) if results.chains is None else np.arange(1, int(results.final.t) + 1)


def _for_arviz(groups: dict[str, Any]) -> Any:
    """The groups in the form that the installed ArviZ expects."""
    arviz, xarray = _library("arviz"), _library("xarray")
    if int(arviz.__version__.split(".")[0]) < 1:  # ArviZ 1 has a name InferenceData, too, for DataTree itself
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)


def _stamps_of_run(results: Results, series: Any) -> np.ndarray:
    return _stamps(len(_times_seen(results)), results.ess.shape[-1], series)


def _stamps(num_seen: int, num_rows: int, series: Any) -> np.ndarray:
    """The stamps of the last rows among all observations."""
    if getattr(series, "times", None) is None:
        raise ValueError(
            f"series: expected what epf.from_table(table, ..., time='date') gave, with its time stamps, got {series!r}."
        )
    if len(series.times) != num_seen:
        raise ValueError(f"series: expected the {num_seen} observations of the run, got {series!r}.")
    return axis_of(series.times)[num_seen - num_rows :]


def _picks(rng: np.random.Generator, log_weights: np.ndarray) -> np.ndarray:
    """N indices in random order, each in proportion to its weight, to within one."""
    cumulative = np.cumsum(np.exp(log_weights - log_weights.max()))
    num = len(cumulative)
    at = (rng.random() + np.arange(num)) / num * cumulative[-1]
    return rng.permutation(np.minimum(np.searchsorted(cumulative, at, side="right"), num - 1))


def _summaries(results: Results, *, states: bool) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Name, mean, sd and quantiles of every leaf of theta, and of x."""
    parts = [
        _named_parts(theta, x, states=states) for theta, x in zip(results.theta, results.x, strict=True)
    ]  # for the means, the sds, and the quantiles
    return [(mean[0], *(np.asarray(leaf) for _, leaf in (mean, sd, q))) for mean, sd, q in zip(*parts, strict=True)]


def _named_parts(theta: Any, x: Any, *, states: bool) -> list[tuple[str, Any]]:
    named = named_leaves(theta, "theta")
    if not states:
        return named
    if any(name == _STATE for name, _ in named):
        raise ValueError(
            f"results: a parameter is called {_STATE!r}, which is the name of the state here. Give the parameter "
            "another name in the model's prior."
        )
    return [*named, (_STATE, x)]


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"to_{name} needs {name}: {pip_install('export')}.") from error
