"""The league: what is kept of it and what is passed over; the models that are written out for other libraries."""

import json
import time

import jax
import numpy as np
import pytest

from benchmarks.accuracy import league, peer_methods
from benchmarks.accuracy.contests import CONTESTS, all_series


def test_a_method_is_passed_over_with_a_reason():
    reason = league.passed_over
    assert reason("ar1", "Storvik") is None
    assert reason("star", "Storvik") == "does not fit the model"
    absent = league.importlib.util.find_spec("smcx") is None
    assert reason("sin", "smcx: SMC^2") == ("smcx is not installed" if absent else None)


def test_who_takes_too_long_is_out():
    def spend(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return seconds

    with pytest.raises(TimeoutError, match=r"more than 0\.05 s of a core"):
        league.in_time(spend, 0.05)(10.0)
    assert league.in_time(spend, 0.2)(0.0) == 0.0
    assert spend(0.3) == 0.3  # the limit ended with what it was for


def test_rows_that_failed_are_kept_apart(tmp_path):
    path = tmp_path / "league.jsonl"
    row = league.Task("sin", "SIR", "tiny", 20).row
    rows = [{**row, "z rms": 0.1}, {**row, "model": "star", "failed": "LinAlgError"}, {**row, "failed": "once"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    rows.append({**row, "model": "cycle", "failed": league.failure(league.too_long(league.LIMIT))})
    path.write_text("\n".join(map(json.dumps, rows)))
    done, failed = league.kept_rows(path)
    assert sorted(done, key=str) == sorted([rows[0], rows[3]], key=str)
    assert failed == rows[1:2]
    rows.append({**rows[3], "z rms": 0.2})
    del rows[4]["failed"]  # a quicker machine
    path.write_text("\n".join(map(json.dumps, [*rows, rows[3]])))
    assert rows[4] in league.kept_rows(path)[0]
    assert rows[3] not in league.kept_rows(path)[0]
    assert league.kept_rows(tmp_path / "none") == ([], [])


def test_what_another_library_said_of_a_series_is_not_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(league, "RESULTS", tmp_path)
    monkeypatch.setattr(league, "_by", lambda task: "smcx, here")  # which may not be installed
    task = league.Task("cycle", "smcx: SMC^2", "small", 20)
    said = league.Run(league.Estimate({"a": np.float32(0.5)}, {"a": 1.0}, {"a": np.array([-1.0, 2.0])}, np.nan), 70.0)
    assert league.kept_runs(task) == ({}, None)
    league.keep(task, 3, said)
    (kept,) = league.kept_runs(task)[0].values()
    assert kept.estimate[:3] == ({"a": 0.5}, {"a": 1.0}, {"a": [-1.0, 2.0]})
    assert np.isnan(kept.estimate.log_evidence)
    assert kept.seconds == 70.0
    with league.runs_path(task).open("a") as file:
        file.write('{"by": "smcx')  # cut off
    assert list(league.kept_runs(task)[0]) == [3]
    assert league.kept_runs(task._replace(num_series=3)) == ({}, None)
    monkeypatch.setattr(league, "_by", lambda task: "smcx, elsewhere")
    assert league.kept_runs(task) == ({}, None)
    assert league.kept_runs(task._replace(budget="tiny")) == ({}, None)
    ours = task._replace(method="SMC^2")
    league.keep(ours, 3, said)
    assert league.kept_runs(ours) == ({}, None)


def test_a_series_that_fails_fails_its_row_and_is_not_asked_again(tmp_path, monkeypatch):
    asked = []

    def ask(task, y, series, limit):
        asked.extend(series)
        raise ArithmeticError("no")

    monkeypatch.setattr(league, "RESULTS", tmp_path)
    monkeypatch.setattr(league, "_by", lambda task: "smcx, here")
    monkeypatch.setattr(league, "ask", ask)
    task = league.Task("cycle", "smcx: SMC^2", "small", 3)
    league.ask_ahead((task, 1))
    league.ask_ahead((task, 2))
    assert asked == [1]
    assert league.contend(task) == {**task.row, "failed": "ArithmeticError: no"}
    assert asked == [1]


def test_smcx_says_the_same_when_quickened():
    smcx = pytest.importorskip("smcx", reason="a peer, of the extra `peers`")
    assert smcx.__version__
    contest = CONTESTS["cycle"]
    model, y = contest.model(), np.float32(all_series("cycle", 1)[0, :25])

    def says():
        return peer_methods.smcx_smc2(jax.random.key(3), model, y, (8, 8), None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_methods, "quicken", lambda: None)
        plain = says()
    quick = says()
    jax.tree.map(np.testing.assert_array_equal, plain, quick)


def test_models_for_particles_have_the_densities_of_ours():
    pytest.importorskip("particles", reason="a peer, of the extra `peers`")
    from benchmarks.accuracy.particles_models import written_for

    for contest in CONTESTS.values():
        written = written_for(contest.model())
        if written.filter_kind.__name__ == "GuidedPF":
            check_optimal_proposal(written.kind(**contest.truth), contest.model().shapes.x.shape)


def check_optimal_proposal(theirs, shape):
    """It is the transition times the observation, up to a factor that x does not enter."""
    draws = np.random.default_rng(1)
    before, x = np.repeat(draws.standard_normal((1, *shape)), 5, axis=0), draws.standard_normal((5, *shape))
    data = [0.0, 0.7]
    product = theirs.PX(1, before).logpdf(x) + theirs.PY(1, None, x).logpdf(data[1])
    factor = product - theirs.proposal(1, before, data).logpdf(x)
    np.testing.assert_allclose(factor, factor[0], atol=1e-9)
