"""Many series by many models: one table of parameters, one of evidences, both with their errors.

Every cell, a model and a series, is found from the prior by importance sampling with fresh likelihoods (`reference`).
Cells are kept in `folder/parts` by what they are made of, the model's program and the numbers of the series: the same
call goes on after an interruption, and series or models may be added.
"""

import hashlib
import json
import os
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from epf_jax.core.checks import brief
from epf_jax.data.series import Panel, Series, panel
from epf_jax.data.tables import read_csv
from epf_jax.models.observed import Observed, observed_series
from epf_jax.models.state_space import StateSpaceModel, check_is_model, seen, simulate
from epf_jax.running.fingerprints import fingerprint
from epf_jax.running.reference import reference
from epf_jax.running.sweep_folder import Parts, Row, check_folder, write_table

_SURE = 2.0  # standard errors of a difference of log-evidences, below which it is not to be believed


class SeriesSweep(NamedTuple):
    """Two tables, as lists of dicts: `pandas.DataFrame(found.evidences)`.

    Attributes:
        parameters: for each series, model and number of theta: `mean`, `sd`, and their errors, `error` in posterior
            standard deviations and `sd_error` as a share; `trusted` is False where the errors are too small to be true.
        evidences: for each series and model: `log_evidence`, its `error`, how far it is `behind` the best model of this
            series, and whether that is `believed`.
    """

    parameters: list[Row]
    evidences: list[Row]


def sweep_series(
    models: Mapping[str, StateSpaceModel],
    series: Any,
    folder: str | os.PathLike,
    *,
    seconds: float = 60.0,
    progress: bool = True,
) -> SeriesSweep:
    """The posterior and the evidence of every model for every series, each with its error.

    Args:
        models: models by their names.
        series: a panel, a dict or list of tables, arrays or `Series`, or a folder of CSV files, one for each series.
        folder: the folder of the results: it gets `parameters.csv`, `evidences.csv`, and what is needed to go on.
        seconds: the most to spend on one cell.
        progress: whether to show a progress bar, which forecasts the time that is left.
    """
    if not isinstance(models, Mapping) or not models:
        raise TypeError(f'models: expected models by their names, got {brief(models)}. Write {{"level": model}}.')
    for model in models.values():
        check_is_model(model)
    folder, apart = check_folder(folder), _apart(series)
    cells = [_Cells(folder, name, model, apart) for name, model in models.items()]
    with tqdm(total=len(cells) * len(apart), unit="fit", desc="fitting", disable=not progress) as bar:
        for each in cells:
            for name in apart:
                each.fill(name, seconds)
                bar.update()
    parameters = [row for name in apart for each in cells for row in each.rows(name)]
    evidences = [row for name in apart for row in _ranked([each.rows(name)[0] for each in cells])]
    parameters = [{k: v for k, v in row.items() if not k.startswith("log_")} for row in parameters]
    for name, table in (("parameters.csv", parameters), ("evidences.csv", evidences)):
        write_table(folder / name, table)
    doubtful = [row["series"] for row in evidences if not row["believed"]]
    if doubtful:
        warnings.warn(
            f"Some log-evidences differ by less than {_SURE:g} standard errors from the best, in the series "
            f"{brief(sorted(set(doubtful)))}. Do not choose between models where `believed` is False.",
            RuntimeWarning,
            stacklevel=2,
        )
    return SeriesSweep(parameters, evidences)


class _Cells:
    """The cells of one model: a file of the folder for each series."""

    def __init__(self, folder: pathlib.Path, name: str, model: StateSpaceModel, series: Mapping[str, Series]):
        self._name, self._model = name, model
        self._observed = {key: observed_series(model, each) for key, each in series.items()}
        self._ids = {key: _id(each) for key, each in self._observed.items()}
        first = next(iter(self._observed.values()))
        settings = {"precision": jnp.result_type(float).name, "program": _program(model, first)}
        self._parts = Parts(folder, name, "importance sampling", settings)

    def fill(self, name: str, seconds: float) -> None:
        """Compute the cell if it is not there."""
        if self._parts.missing([self._ids[name]]):
            self._parts.write([self._ids[name]], self._found(self._observed[name], self._ids[name], seconds))

    def rows(self, name: str) -> list[Row]:
        """The cell's rows, one for each number of theta."""
        rows = self._parts.read([self._ids[name]])
        return [{"series": name, **{k: v for k, v in row.items() if k not in ("seed", "status")}} for row in rows]

    def _found(self, series: Observed, number: int, seconds: float) -> list[Row]:
        found = reference(self._model, series, seconds)
        of = found.of_theta
        numbers = zip(of.mean, of.sd, of.error, of.sd_error, strict=True)
        return [
            {
                "model": self._name,
                "parameter": name,
                **dict(zip(("mean", "sd", "error", "sd_error"), map(float, row), strict=True)),
                "trusted": found.holds,
                "log_evidence": found.log_evidence,
                "log_evidence_error": found.log_evidence_error if found.holds else None,
                "seed": number,
                "status": "ok",
            }
            for name, row in zip(self._model.parameters.names, numbers, strict=True)
        ]


def _apart(series: Any) -> dict[str, Series]:
    """The series by their names, each with its own length."""
    if isinstance(series, str | os.PathLike):
        series = {path.stem: read_csv(path)[0] for path in sorted(pathlib.Path(series).glob("*.csv"))}
    found = series if isinstance(series, Panel) else panel(series)
    apart = {}
    for i, (name, length) in enumerate(zip(found.names, found.lengths, strict=True)):
        inputs = None if found.inputs is None else {u: rows[i, :length] for u, rows in found.inputs.items()}
        apart[name] = Series(found.y[i, :length], inputs, found.columns)
    return apart


def _id(series: Observed) -> int:
    """A number of the series' numbers."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((series.values, series.inputs))]
    digest = hashlib.sha256(json.dumps([[str(leaf.dtype), leaf.shape] for leaf in leaves]).encode())
    for leaf in leaves:
        digest.update(leaf.tobytes())
    return int(digest.hexdigest()[:12], 16)


def _program(model: StateSpaceModel, series: Observed) -> str:
    """What tells this model from another of the same name: the program that draws from it."""
    row = jax.tree.map(lambda rows: rows[:1], series.inputs)
    model = seen(model, series.inputs)

    def draw(key):
        theta = jax.tree.map(lambda leaf: leaf[0], model.parameters.sample(key, 1))
        return model.parameters.log_prior(model.parameters.to_vector(theta)), simulate(key, model, theta, 1, inputs=row)

    return fingerprint(draw, jax.random.key(0))


def _ranked(rows: list[Row]) -> list[Row]:
    """The evidences of one series, each beside the best one."""
    best = max(rows, key=lambda row: row["log_evidence"])
    ranked = []
    for row in rows:
        behind = best["log_evidence"] - row["log_evidence"]
        errors = [each["log_evidence_error"] for each in (row, best)]
        known = row is best or (None not in errors and behind > _SURE * float(np.hypot(*errors)))
        ranked.append(
            {
                **{name: row[name] for name in ("series", "model", "log_evidence")},
                "error": row["log_evidence_error"],
                "behind": behind,
                "believed": bool(known),
            }
        )
    return ranked
