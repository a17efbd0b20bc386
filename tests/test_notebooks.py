"""Every notebook runs, in its quick mode, and its own assertions hold."""

import pathlib
import runpy

import matplotlib
import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).resolve().parents[1] / "notebooks").glob("*.py"))


def test_the_notebooks_are_there():
    names = ["01_quickstart", "02_the_paper", "03_your_own_model", "04_differentiable"]
    assert [path.stem for path in NOTEBOOKS][:4] == names
    assert {"05_stock_volatility", "06_nile", "07_lynx", "08_every_method"} <= {path.stem for path in NOTEBOOKS}


@pytest.mark.slow  # they compile for long
@pytest.mark.filterwarnings("ignore:The chains disagree", "ignore:The .* draws are worth")  # short, in quick mode
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_and_its_conclusion_holds(path, monkeypatch):
    monkeypatch.setenv("EPF_QUICK", "1")
    matplotlib.use("Agg")
    monkeypatch.setattr("matplotlib.pyplot.show", lambda *_: matplotlib.pyplot.close("all"))
    names = runpy.run_path(str(path), run_name="__main__")  # the notebook asserts its own conclusion
    assert names["QUICK"]
