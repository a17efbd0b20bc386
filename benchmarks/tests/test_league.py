"""The league: what is kept of it and what is passed over; the models that are written out for other libraries."""

import json
import sys
import time

import jax
import numpy as np
import pytest

from benchmarks.accuracy import league, peer_methods, tasks
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
    path.write_text("\n".join(map(json.dumps, [rows[0], {**rows[0], "z rms": 0.3}])))
    assert [row["z rms"] for row in league.kept_rows(path)[0]] == [0.3]  # the last counts
    assert league.kept_rows(tmp_path / "none") == ([], [])


def test_what_another_library_said_of_a_series_is_not_asked_again(store, monkeypatch):
    task = league.Task("cycle", "smcx: SMC^2", "small", 20)
    said = league.Run(league.Estimate({"a": np.float32(0.5)}, {"a": 1.0}, {"a": np.array([-1.0, 2.0])}, np.nan), 70.0)
    assert kept_runs(task) == {}
    league.keep(task, 3, said)
    (kept,) = kept_runs(task).values()
    assert kept.estimate[:3] == ({"a": 0.5}, {"a": 1.0}, {"a": [-1.0, 2.0]})
    assert np.isnan(kept.estimate.log_evidence)
    assert kept.seconds == 70.0
    with league.runs_path(task).open("a") as file:
        file.write('{"by": "smcx')  # cut off
    assert list(kept_runs(task)) == [3]
    league.keep(task, 5, said)
    assert list(kept_runs(task)) == [3, 5]
    assert kept_runs(task._replace(num_series=3)) == {}
    monkeypatch.setattr(tasks, "_by", lambda task: "smcx, elsewhere")
    assert kept_runs(task) == {}
    assert kept_runs(task._replace(budget="tiny")) == {}
    ours = task._replace(method="SMC^2")
    league.keep(ours, 3, said)
    assert kept_runs(ours) == {}


def kept_runs(task):
    runs, slow = league.kept_runs(task, league.LIMIT)
    assert slow is None
    return runs


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty folder for what smcx says, which may not be installed."""
    monkeypatch.setattr(tasks, "RESULTS", tmp_path)
    monkeypatch.setattr(tasks, "_by", lambda task: "smcx, here")


@pytest.mark.slow
def test_a_method_too_slow_for_one_series_is_not_asked_for_others(store, monkeypatch):
    asked = []

    def ask(task, y, series, limit):
        asked.extend(series)
        raise league.too_long(limit) if series != [0] else ArithmeticError("which may run again")

    monkeypatch.setattr(league, "ask", ask)
    task = league.Task("cycle", "smcx: SMC^2", "small", 3)
    for i in range(3):
        league.ask_ahead((task, i))
    assert asked == [0, 1]
    assert league.contend(task) == {**task.row, "failed": league.failure(league.too_long(league.LIMIT))}
    assert asked == [0, 1]
    league.ask_ahead((task, 2), limit=2.0 * league.LIMIT)
    assert asked == [0, 1, 2]


def test_workers_share_the_series_of_what_compiles_at_every_call(store):
    task = league.Task("cycle", "smcx: SMC^2", "small", 3)
    said = league.Run(league.Estimate({"a": 0.5}, {"a": 1.0}, {"a": [-1.0, 2.0]}, 0.0), 70.0)
    league.keep(task, 1, said)
    assert league.pieces_of(task, league.LIMIT) == [(task, 0), (task, 2)]
    assert league.pieces_of(task._replace(method="SMC^2"), league.LIMIT) == []


def test_smcx_says_the_same_when_quickened(monkeypatch):
    smcx = pytest.importorskip("smcx", reason="a peer, of the extra `peers`")
    smc2 = sys.modules["smcx.smc2"]
    for name in ("jr", "_add_log_expansion", "_canonicalize_emissions"):  # as they are before and after the test
        monkeypatch.setattr(smc2, name, getattr(smc2, name))
    said = []
    monkeypatch.setattr(
        smcx, "smc2", lambda *given, run=smcx.smc2, **named: said.append(run(*given, **named)) or said[-1]
    )

    def say(quicken):
        monkeypatch.setattr(peer_methods, "quicken", quicken)
        y = jax.numpy.asarray(all_series("cycle", 1)[0, :40], float)
        peer_methods.smcx_smc2(jax.random.key(3), CONTESTS["cycle"].model(), y, (16, 16), None)

    assert smc2.jr is jax.random
    quicken = peer_methods.quicken.__wrapped__
    say(lambda: None)
    say(quicken)
    assert smc2.jr is not jax.random
    plain, quick = said
    assert np.count_nonzero(plain.acceptance_rates) > 1  # parameters were moved, over splits of several lengths
    jax.tree.map(np.testing.assert_array_equal, plain, quick)


def test_models_for_particles_have_the_densities_of_ours():
    pytest.importorskip("particles.distributions", reason="a peer, of the extra `peers`")
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
