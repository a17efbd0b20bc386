"""The breadth table: models evaluate, series and golds are there, rows are kept and judged by the bars."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.breadth import __main__ as table
from benchmarks.breadth import bars, golds, importance, likelihoods, paper
from benchmarks.breadth.entry import golds as stored_golds
from benchmarks.breadth.models import ENTRIES, cases
from epf_jax.core.densities import observed_log_prob
from epf_jax.exact import kalman_log_evidence
from epf_jax.models.state_space import input_rows

ALL = cases()


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])
def test_a_model_draws_a_state_sees_it_and_has_a_gold_of_its_parameters(case):
    u = jax.tree.map(lambda rows: rows[0], input_rows(case.inputs, len(case.y)))

    def one(key, z):
        theta = case.model.parameters.to_theta(z)
        x = case.model.transition(theta, case.model.initial(theta).sample(key), u).sample(key)
        return x, observed_log_prob(case.model.observation(theta, x, u), jnp.asarray(case.y[0], float))

    x, log_density = jax.eval_shape(one, jax.random.key(0), jnp.asarray(case.model.parameters.centre))
    assert x.shape == case.model.shapes.x.shape
    assert log_density.shape == ()
    assert 1 <= len(case.names) <= 7
    assert tuple(stored_golds()[case.name]["parameters"]) == case.names


def test_series_are_of_ordinary_length_and_finite_where_they_are_seen():
    assert len(ALL) >= 24
    for case in ALL:
        assert 50 <= len(case.y) == case.entry.num_steps <= 500
        assert np.isfinite(case.y).all() or case.name == "missing"
        assert case.half in ("tune", "report")


def test_every_model_has_a_gold_with_a_second_opinion():
    known = stored_golds()
    assert list(known) == list(ENTRIES)
    assert sum(gold["agree"] for gold in known.values()) >= 24
    for case in ALL:
        gold = known[case.name]
        assert gold["agree"] == (
            gold["means_apart"] <= golds.MEAN_APART
            and all(abs(ratio - 1) <= golds.SD_APART for ratio in gold["sd_ratios"])
        )
        assert {gold["method"], gold["second"]} == set(case.entry.opinions)
        assert all(row["mean_error"] < 0.1 * row["sd"] for row in gold["parameters"].values())


def test_the_golds_own_kalman_filter_is_the_librarys():
    (case,) = cases(["missing"])
    theta = {"mean": 1.5, "phi": 0.8, "state_sd": 0.5}
    found = jax.jit(likelihoods.kalman(case))(None, theta)
    assert float(found) == pytest.approx(float(kalman_log_evidence(case.model, theta, case.y)[-1]), abs=1e-2)


def test_importance_sampling_finds_a_gaussian():
    centre, scale = np.array([3.0, -2.0]), np.array([0.1, 0.5])

    def log_likelihood(z):
        return -0.5 * np.sum(((z - centre) / scale) ** 2, axis=1)

    target = importance.Target(lambda z: -0.5 * np.sum(z**2, axis=1) / 100.0, log_likelihood)
    start = importance.Proposal(np.zeros(2), 10.0 * np.eye(2))
    proposal, rounds = importance.adapted(target, start, 1024, np.inf)
    assert rounds < importance.ROUNDS
    np.testing.assert_allclose(proposal.mean, centre, atol=0.05)


def test_two_opinions_make_a_gold_where_they_agree():
    def opinion(name, mean, sd, error):
        row = {"mean": mean, "sd": sd, "mean_error": error, "sd_error": error, "quantiles": [0, 0, 0]}
        return {"opinion": name, "parameters": {"a": row}, "ess": 1.0, "log_evidence": 0.0, "log_evidence_error": 0.0}

    first = opinion("kalman", 1.0, 0.5, 0.01)
    assert golds.merged(opinion("nuts", 1.04, 0.52, 0.02), first)["agree"]
    assert golds.merged(opinion("nuts", 1.04, 0.52, 0.02), first)["method"] == "kalman"
    assert not golds.merged(first, opinion("nuts", 1.06, 0.5, 0.02))["agree"]
    assert not golds.merged(first, opinion("nuts", 1.0, 0.56, 0.02))["agree"]


def test_rows_that_failed_are_measured_again_and_the_last_of_a_row_counts(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"model": "level", "method": "learn", "seconds": 60.0}
    rows = [{**row, "worst z": 1.0}, {**row, "worst z": 2.0}, {**row, "method": "nuts", "failed": "more than 600 s"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert table.kept(path) == {("level", "learn", 60.0): rows[1]}
    assert table.kept(tmp_path / "none.jsonl") == {}


def test_models_whose_two_opinions_disagree_are_left_out_of_the_count(monkeypatch):
    def row(model, z, ratio, trusted):
        return {
            "model": model, "method": "learn", "worst z": z, "lowest sd ratio": ratio, "highest sd ratio": ratio,
            "trusted": trusted, "cold s": 1.0,
        }  # fmt: skip

    monkeypatch.setattr(bars, "golds", lambda: {name: {"agree": name != "d"} for name in "abcd"})
    rows = [row("a", 0.1, 1.0, True), row("b", 0.1, 0.5, True), row("c", 3.0, 1.0, False), row("d", 9.0, 1.0, True)]
    unjudged, right, wrong, lost, seconds = bars.lines([*rows, {**rows[0], "method": "nuts", "cold s": 2.0}])
    assert "1 (d) of 4" in unjudged
    assert "1 of 2" in right
    assert "1 (b)" in wrong
    assert "1 (c) of 4" in lost
    assert "on 1 models: learn 1.0, NUTS 2.0" in seconds


def test_the_papers_models_are_judged_by_their_worst_parameter():
    rows = [
        {"model": "star", "i": i, "z": [0.0, z], "sd ratio": [1.0, 0.9], "trusted": i == 0, "seconds": 1.0}
        for i, z in enumerate((0.3, -0.4))
    ]
    (row,) = paper.judged(rows)
    assert row["z rms"] == pytest.approx(np.sqrt(0.125))
    assert (row["lowest sd ratio"], row["trusted"], row["met"]) == (0.9, 1, False)


def test_a_tempered_round_never_goes_back_in_power():
    z = np.random.default_rng(0).normal(scale=0.5, size=1000)  # made for half of 4 z^2: the prior alone weighs few
    log_base, log_likelihood = -0.5 * (z / 30) ** 2 + 2.0 * z**2, -4.0 * z**2
    power = importance.temperature(log_base, log_likelihood, 900.0, 0.4)
    assert power > 0.4
    assert importance.ess(log_base + power * log_likelihood) == pytest.approx(900.0)
