"""`epf reproduce`: the report is whole, work is kept, and wrong arguments lose nothing."""

import json
import re
from functools import cache

import numpy as np
import pytest
from typer.testing import CliRunner

from epf_jax.commands import app
from epf_jax.exact import kl
from epf_jax.reproduce import EXPERIMENTS, Size, reproduce
from epf_jax.reproduce.cases import SIN, Score, focused, series, solve
from epf_jax.reproduce.claims import Claim, verdict
from epf_jax.reproduce.store import Store, StoreError, Unit

TINY = Size("tiny", 1, 24, 500)
QUICK = ("density", "theorems")


def epf(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A tiny run of two experiments: its folder and the units that were computed."""
    folder, computed = tmp_path_factory.mktemp("report"), []

    def progress(units):
        for unit in units:
            computed.append(unit.name)
            yield unit

    reproduce([EXPERIMENTS[name] for name in QUICK], TINY, folder, progress)
    return folder, computed


@pytest.mark.xdist_group("reproduce")
def test_the_report_stands_alone_and_holds_every_figure_and_verdict(report):
    folder, computed = report
    page = (folder / "index.html").read_text()
    summary = json.loads((folder / "claims.json").read_text())
    assert len(computed) == len(set(computed)) == len(summary["work"])
    assert page.count("data:image/png;base64,") == len(list((folder / "figures").glob("*.png"))) == 2
    assert not re.search(r"(src|href)='http", page)
    for claim in summary["claims"]:
        assert claim["verdict"].startswith(("reproduces", "does not reproduce, because "))
        assert re.search(r"\d", claim["evidence"])  # a number of this run
    assert all(f"id='{name}'" in page for name in QUICK)


@pytest.mark.xdist_group("reproduce")
def test_the_theorems_hold_to_rounding(report):
    folder, _ = report
    claims = {c["where"]: c for c in json.loads((folder / "claims.json").read_text())["claims"]}
    for where in ("Theorem 1", "Appendix A", "Theorem 3"):
        assert claims[where]["verdict"] == "reproduces"
    assert claims["Theorem 2, figure 2"]["verdict"].startswith("reproduces only with a bounded interval")


@pytest.mark.xdist_group("reproduce")
def test_a_second_run_computes_nothing_and_an_interrupted_one_goes_on(report, monkeypatch):
    folder, computed = report
    asked = []
    reproduce([EXPERIMENTS[name] for name in QUICK], TINY, folder, lambda units: asked.extend(units) or units)
    assert asked == []
    lost = next((folder / "data").glob("theorem-sign-*.npz"))
    kept = lost.read_bytes()
    lost.unlink()

    def interrupted(units):
        assert [unit.name for unit in units] == ["theorem-sign"]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce([EXPERIMENTS[name] for name in QUICK], TINY, folder, interrupted)
    assert len(list((folder / "data").glob("*.npz"))) == len(computed) - 1
    lost.write_bytes(kept)


@pytest.mark.slow
@pytest.mark.xdist_group("reproduce-all")
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in QUICK])
def test_every_experiment_runs_from_the_command_line(name, tmp_path):
    result = epf(name, "--steps", 24, "--fewer", 500, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    assert "report:" in result.output
    assert (tmp_path / "index.html").stat().st_size > 50_000


def test_a_tiny_sin_experiment_judges_filters_by_the_exact_posterior(tmp_path):
    result = epf("sin", "--steps", 24, "--fewer", 500, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    rows = [r for t in json.loads((tmp_path / "claims.json").read_text())["tables"] for r in t["rows"]]
    assert {row["method"].split(",")[0] for row in rows} >= {"SIR", "Liu-West (paper's)", "EPF literal: Taylor 7"}
    assert all(float(row["|z|"]) >= 0 for row in rows)


def test_an_unknown_experiment_is_named_with_those_there_are(tmp_path):
    result = epf("sinus", "--output", tmp_path / "new")
    assert result.exit_code == 2
    assert "unknown experiment 'sinus'" in result.output
    assert "cauchy" in result.output
    assert not (tmp_path / "new").exists()


def test_an_output_that_cannot_be_written_is_told_before_anything_is_computed(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    result = epf("density", "--output", blocked / "deeper")
    assert result.exit_code == 2
    assert "--output: cannot write to" in result.output
    assert "Nothing was computed" in result.output
    assert blocked.read_text() == "not a folder"


def test_results_of_other_settings_are_refused_and_left_alone(tmp_path):
    store = Store(tmp_path)
    one = Unit("work", {"steps": 1}, lambda: {"x": np.arange(3)})
    other = Unit("work", {"steps": 2}, lambda: {"x": np.arange(4)})
    store.compute(one)
    assert store.load(other) is None
    np.testing.assert_array_equal(store.load(one).arrays["x"], np.arange(3))
    store.path(one).rename(store.path(other))
    content = store.path(other).read_bytes()
    with pytest.raises(StoreError, match="other settings") as error:
        store.load(other)
    assert "'steps': 1" in str(error.value)
    store.path(other).write_bytes(content[:20])
    with pytest.raises(StoreError, match="cannot be read"):
        store.load(other)
    assert store.path(other).read_bytes() == content[:20]


def test_a_failing_unit_leaves_no_file_behind(tmp_path):
    def fails():
        raise RuntimeError("in the middle")

    store = Store(tmp_path)
    with pytest.raises(RuntimeError):
        store.compute(Unit("work", {}, fails))
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_twenty_series_is_the_only_one_of_a_quick_run():
    one, twenty = (series(SIN, Size("", n, 24))[1] for n in (1, 20))
    np.testing.assert_array_equal(one[0], twenty[0])


@cache
def _exact():
    _, y = series(SIN, Size("", 1, 24))
    return solve(SIN, y[0])


def test_the_focused_grid_resolves_the_posterior_from_first_to_last():
    found = _exact()
    spacing = np.diff(found.axes["theta"])
    for t in (0, 5, 23):
        near = np.argmin(np.abs(found.axes["theta"] - found.mean["theta"][t]))
        assert spacing[min(near, len(spacing) - 1)] < 0.6 * found.sd["theta"][t]
    axis = focused(-1.0, 1.0, 0.3, 0.01, 41)
    assert axis[0] == pytest.approx(-1.0)
    assert axis[-1] == pytest.approx(1.0)
    assert np.min(np.diff(axis)) < 0.004


def test_verdicts_and_scores_mean_what_they_say():
    assert Claim("", "", verdict(True), "").kind == "yes"
    assert Claim("", "", verdict(True, only_with="care"), "").kind == "partly"
    assert Claim("", "", verdict(False, because="no"), "").kind == "no"
    z = np.random.default_rng(0).normal(size=4000)
    score = Score(z, np.ones(4000))
    assert abs(score.rms - 1) < 4 * score.rms_error
    # the standard error of the rms of n standard normals is 1 / sqrt(2 n)
    assert score.rms_error == pytest.approx(1 / np.sqrt(8000), rel=0.1)
    assert kl(np.zeros(11), np.zeros(11), np.linspace(0, 1, 11)) == 0.0
