"""Claims about many series by many models: right beside Kalman's filter, kept, named, and told where not to believe."""

import csv

import numpy as np
import pytest

import epf_jax as epf
from tests import tiny

MODELS = {"ar": tiny.model("ar"), "offset": tiny.model("offset")}
SERIES = {"first": tiny.Y, "second": tiny.Y[:2] + 0.5}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    return folder, epf.sweep_series(MODELS, SERIES, folder, progress=False)


def exact(y):
    """Mean, sd and evidence of the coefficient, by a grid over Kalman's likelihoods."""
    a = np.linspace(tiny.PRIOR[0] - 6 * tiny.PRIOR[1], tiny.PRIOR[0] + 6 * tiny.PRIOR[1], 2001)
    log_likelihood = np.asarray(tiny.kalman(a, tiny.NOISE, y)[0])[-1]
    prior = np.exp(-0.5 * ((a - tiny.PRIOR[0]) / tiny.PRIOR[1]) ** 2)
    weights = prior * np.exp(log_likelihood)
    mean = weights @ a / weights.sum()
    return mean, np.sqrt(weights @ (a - mean) ** 2 / weights.sum()), np.log(weights.sum() / prior.sum())


def test_every_cell_is_right_within_its_own_error(swept):
    for row in swept[1].parameters:
        if row["model"] == "ar":
            mean, sd, _ = exact(SERIES[row["series"]])
            assert row["trusted"]
            assert abs(row["mean"] - mean) / sd < 4 * row["error"] < 0.3
    for row in swept[1].evidences:
        if row["model"] == "ar":
            assert abs(row["log_evidence"] - exact(SERIES[row["series"]])[2]) < 4 * row["error"] < 0.3


def test_the_tables_have_a_row_for_every_series_and_model(swept):
    folder, found = swept
    cells = [(name, model) for name in SERIES for model in MODELS]
    assert [(row["series"], row["model"]) for row in found.evidences] == cells
    parameters = {"ar": ["a"], "offset": ["a", "b"]}
    assert [(row["series"], row["model"], row["parameter"]) for row in found.parameters] == [
        (*cell, name) for cell in cells for name in parameters[cell[1]]
    ]
    with (folder / "evidences.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(cells)


def test_what_is_there_is_not_computed_again_and_more_may_be_added(swept, monkeypatch):
    folder, found = swept
    monkeypatch.setitem(epf.sweep_series.__globals__, "reference", None)
    assert epf.sweep_series(MODELS, SERIES, folder, progress=False) == found
    renamed = epf.sweep_series(MODELS, {"other": SERIES["second"]}, folder, progress=False)
    assert [row["log_evidence"] for row in renamed.evidences] == [row["log_evidence"] for row in found.evidences[2:]]
    with pytest.raises(TypeError, match="NoneType"):
        epf.sweep_series(MODELS, [tiny.Y + 1.0], folder, progress=False)
    with pytest.raises(ValueError, match="holds results of 'importance sampling' on 'ar' under other settings"):
        epf.sweep_series({"ar": MODELS["offset"]}, SERIES, folder, progress=False)


def test_a_folder_of_tables_is_as_many_series(swept, tmp_path):
    for name, y in SERIES.items():
        (tmp_path / f"{name}.csv").write_text("y\n" + "\n".join(map(str, y)) + "\n")
    assert epf.sweep_series(MODELS, tmp_path, swept[0], progress=False) == swept[1]


def test_evidences_too_close_for_their_errors_are_told_of(swept):
    row = {"series": "s", "model": "m", "log_evidence": -3.0, "log_evidence_error": 0.1}
    ranked = epf.sweep_series.__globals__["_ranked"]
    near, far = (ranked([row, {**row, "model": "n", "log_evidence": -3.0 - by}]) for by in (0.2, 0.4))
    assert [each["believed"] for each in near] == [True, False]
    assert [each["believed"] for each in far] == [True, True]
    unknown = ranked([row, {**row, "log_evidence": -9.0, "log_evidence_error": None}])
    assert [each["believed"] for each in unknown] == [True, False]
    with pytest.warns(RuntimeWarning, match="Do not choose between models"):
        epf.sweep_series({"a": MODELS["ar"], "b": MODELS["ar"]}, SERIES, swept[0] / "twins", progress=False)
