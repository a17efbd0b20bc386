"""Results for other libraries: tables for pandas, labelled arrays for xarray, draws for ArviZ.

Each library is imported when its function is called: `pip install 'epf_jax[export]'` brings all of them. Results of
`epf.replicate` keep their runs: a column, a dimension, a chain.
"""

from typing import Any

import jax
import numpy as np

from epf_jax.core.checks import pip_install
from epf_jax.core.naming import component_names, named_leaves
from epf_jax.data.series import Panel, Series
from epf_jax.data.timestamps import axis_of
from epf_jax.filters import FilterState
from epf_jax.running.records import log_scores, times

_OVER_TIME = ("log_evidence", "ess", "resampled", "acceptance", "num_bad_weights", "num_bad_densities", "collapsed")
_COPIES = 100  # of each score, as draws of which ArviZ wants enough for its tables
STATE = "x"  # what the state is called; a parameter of that name is refused


def to_pandas(results: Any, series: Series | Panel | None = None, *, states: bool = False) -> Any:
    """A tidy `pandas.DataFrame`: a row for each time and parameter, with its mean, sd and quantiles.

    Args:
        results: of any method, or of `epf.replicate`, whose runs are then counted in a column `run`.
        series: what `epf.from_table` gave, whose time stamps then stand in a column `time`; or what `epf.panel` gave,
            whose names then stand in the column `run`, each series ending where it does, with its stamps.
        states: whether the components of the state get rows, too, as parameters named x, or x[0], x[1], ...

    Returns:
        Columns t, parameter, mean, sd, and one for each quantile level, named as `describe` does: 5%, 50%, ...
    """
    t, runs = times(results), results.ess.shape[:-1]
    if isinstance(series, Panel):
        return _of_panel(to_pandas(results, states=states), results, series)
    along = {"t": t} if series is None else {"t": t, "time": _stamps_of_run(results, series)}
    if runs:
        along = {name: np.tile(values, runs[0]) for name, values in along.items()}
        along = {"run": np.repeat(np.arange(runs[0]), len(t)), **along}
    return tidy(along, "parameter", named_summaries(results.theta, results.x, states=states), results.levels)


def _of_panel(table: Any, results: Any, panel: Panel) -> Any:
    """The table of a panel's runs, by the names of its series, without the rows after their ends."""
    if results.ess.shape != panel.y.shape[:2]:
        raise ValueError(f"series: expected the panel of these runs, {results.ess.shape[:-1]} of them, got {panel!r}.")
    run = table["run"].to_numpy()
    kept = table["t"].to_numpy() <= panel.lengths[run]
    table = table.assign(run=np.array(panel.names, object)[run])[kept].reset_index(drop=True)
    if panel.times is not None:
        axes = [axis_of(each) for each in panel.times]
        each = zip(run[kept], table["t"].to_numpy(), strict=True)
        table.insert(2, "time", np.array([axes[i][t - 1] for i, t in each]))
    return table


def tidy(along: dict[str, np.ndarray], kind: str, summaries: list, levels: Any) -> Any:
    """One table below the other: a row for each time (and run) of every component that is summarised.

    Args:
        along: the columns that say when (and in which run), with an entry for each row of the summaries.
        kind: the column that says what is summarised.
        summaries: name, means, sds and quantiles of each array.
        levels: of the quantiles.
    """
    pandas = library("pandas")
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


def to_xarray(results: Any, series: Series | None = None) -> Any:
    """An `xarray.Dataset` of everything over time, ready for `to_netcdf(path, engine="h5netcdf")`.

    Args:
        results: of any method, or of `epf.replicate`, which adds the dimension `run`.
        series: what `epf.from_table` gave, whose time stamps then are the coordinate `time` along `t`.

    Returns:
        For every parameter, and for the state x, the variables `name_mean`, `name_sd` and `name_quantile`, over `t`
        (and `level`); beside them log_evidence, ess and the other records of the run, and pit, the predictive check, if
        it was recorded.
    """
    xarray = library("xarray")
    lead = (*(("run",) if results.ess.ndim > 1 else ()), "t")
    variables: dict[str, Any] = {name: (lead, np.asarray(getattr(results, name))) for name in _OVER_TIME}
    for name, mean, sd, quantiles in named_summaries(results.theta, results.x, states=True):
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


def to_arviz(results: Any, y: Any = None, *, seed: int = 0) -> Any:
    """The posterior after the last observation as equally weighted draws, and one-step-ahead scores, for ArviZ.

    Every run of a filter is a chain of N draws, the particles picked by their weights (systematically, so that each is
    there as often as its weight says, to within one) in random order. They are no Markov chain: draws that share an
    ancestor are alike in ways that no autocorrelation shows, and ArviZ's effective sample sizes flatter.

    The group `log_likelihood` holds the scores log p(y_t | y_1:t-1), which add up to the evidence, the same for each of
    its draws. `arviz.loo` gives their sum with its standard error, and `arviz.compare` ranks models by it. That is
    leave-future-out comparison, without importance sampling: ArviZ's warning of Pareto's k does not apply.

    Args:
        results: of any filter, or of `epf.replicate`: then each run is a chain, and r_hat compares the runs.
        y: the observations, for the group `observed_data`.
        seed: of the picking.
    """
    final = results.final
    if results.ess.ndim == 1:
        final = jax.tree.map(lambda leaf: leaf[None], final)
    return state_to_arviz(final, results, y, seed)


def state_to_arviz(final: FilterState, results: Any, y: Any, seed: int) -> Any:
    """Equally weighted draws of theta and x from particles, a chain for each run, with the scores of the results."""
    rng = np.random.default_rng(seed)
    picks = [_picks(rng, log_weights) for log_weights in np.asarray(final.log_weights, float)]
    draws = {
        name: np.stack([np.asarray(rows)[pick] for rows, pick in zip(leaf, picks, strict=True)])
        for name, leaf in named_parts(final.theta, final.x, states=True)
    }
    scores = np.atleast_2d(log_scores(results))
    copies = np.broadcast_to(scores[:, None], (len(scores), _COPIES, scores.shape[1]))
    return inference_data(draws, times(results), y, copies)


def inference_data(
    draws: dict[str, np.ndarray], t: np.ndarray, y: Any, scores: np.ndarray | None = None, **statistics: np.ndarray
) -> Any:
    """Draws as the ArviZ that is installed expects them: an `InferenceData` below 1, an `xarray.DataTree` from 1 on.

    Args:
        draws: of each variable, with axes of chains and of draws.
        t: the time indices of the observations.
        y: the observations, or None.
        scores: log-densities of the observations, with axes of chains, draws and time, or None.
        statistics: of each draw.
    """
    arviz, xarray = library("arviz"), library("xarray")
    posterior = {
        name: (("chain", "draw", *(f"{name}_dim_{i}" for i in range(drawn.ndim - 2))), drawn)
        for name, drawn in draws.items()
    }
    num_chains, num_draws = next(iter(draws.values())).shape[:2]
    coordinates = {"chain": np.arange(num_chains), "draw": np.arange(num_draws)}
    attributes = {"inference_library": "epf_jax"}
    groups = {"posterior": xarray.Dataset(posterior, coordinates, attributes)}
    if statistics:
        of_draws = {name: (("chain", "draw"), values) for name, values in statistics.items()}
        groups["sample_stats"] = xarray.Dataset(of_draws, coordinates, attributes)
    if scores is not None:
        places = {"chain": coordinates["chain"], "draw": np.arange(scores.shape[1]), "t": t}
        groups["log_likelihood"] = xarray.Dataset({"y": (("chain", "draw", "t"), scores)}, places, attributes)
    if y is not None:
        values = np.asarray(y.y if isinstance(y, Series) else y)
        dims = ("t", *(f"y_dim_{i}" for i in range(values.ndim - 1)))
        if len(values) != len(t):
            raise ValueError(f"y: expected the {len(t)} observations of the run, got {len(values)}.")
        groups["observed_data"] = xarray.Dataset({"y": (dims, values)}, {"t": t}, attributes)
    if int(arviz.__version__.split(".")[0]) < 1:  # ArviZ 1 has a name InferenceData, too, for DataTree itself
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)


def _stamps_of_run(results: Any, series: Any) -> np.ndarray:
    return stamps(int(times(results)[-1]), results.ess.shape[-1], series)


def stamps(num_seen: int, num_rows: int, series: Any) -> np.ndarray:
    """The time stamps of the last rows of a series, of which so many were seen."""
    if getattr(series, "times", None) is None:
        raise ValueError(
            f"series: expected what epf.from_table(table, ..., time='date') gave, with its time stamps, got {series!r}."
        )
    if len(series.times) != num_seen:
        raise ValueError(f"series: expected the {num_seen} observations of the run, got {series!r}.")
    return axis_of(series.times)[num_seen - num_rows :]


def _picks(rng: np.random.Generator, log_weights: np.ndarray) -> np.ndarray:
    """N indices in random order, each as often as its weight says, to within one."""
    cumulative = np.cumsum(np.exp(log_weights - log_weights.max()))
    num = len(cumulative)
    at = (rng.random() + np.arange(num)) / num * cumulative[-1]
    return rng.permutation(np.minimum(np.searchsorted(cumulative, at, side="right"), num - 1))


def named_summaries(theta: Any, x: Any, *, states: bool) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Name, mean, sd and quantiles of every leaf of theta, and of x."""
    parts = [named_parts(*part, states=states) for part in zip(theta, x, strict=True)]  # means, sds, quantiles
    return [(mean[0], *(np.asarray(leaf) for _, leaf in (mean, sd, q))) for mean, sd, q in zip(*parts, strict=True)]


def named_parts(theta: Any, x: Any, *, states: bool) -> list[tuple[str, Any]]:
    """The leaves of theta by their names, and the state."""
    named = named_leaves(theta, "theta")
    if not states:
        return named
    if any(name == STATE for name, _ in named):
        raise ValueError(
            f"results: a parameter is called {STATE!r}, as the state is, and both would go by one name here. Give the "
            "parameter another name in the model's prior."
        )
    return [*named, (STATE, x)]


def library(name: str) -> Any:
    """A library that is not there unless it was asked for, or an error that says how to install it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"to_{name} needs {name}: {pip_install('export')}.") from error
