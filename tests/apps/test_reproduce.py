"""`epf reproduce`: the report is whole, work is kept, and wrong arguments lose nothing."""

import json
import re
from functools import cache

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from epf_jax import exact, run
from epf_jax.apps.commands import app
from epf_jax.apps.reproduce import EXPERIMENTS, Experiment, Size, reproduce
from epf_jax.apps.reproduce import on_sinusoid as sinusoid
from epf_jax.apps.reproduce import on_star as star
from epf_jax.apps.reproduce.cases import CAUCHY, SIN, STAR, Score, focused, score, series, solve
from epf_jax.apps.reproduce.claims import Claim, Findings, verdict
from epf_jax.apps.reproduce.compared import told_under
from epf_jax.apps.reproduce.on_cauchy import near_or_far
from epf_jax.apps.reproduce.store import Store, Stored, StoreError, Unit
from epf_jax.filters import extended_parameter_filter
from epf_jax.models import cauchy_ar1
from epf_jax.particles.proposals import guided
from epf_jax.statistics import scale_mixture

TINY = Size("tiny", 1, 24, 500)
QUICK = ("density", "theorems")


def epf(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


@pytest.fixture(scope="session")  # of a worker: other files' tests may come in between
def report(tmp_path_factory):
    """A tiny run of two experiments: its folder and the units that were computed."""
    folder, computed = tmp_path_factory.mktemp("report"), []

    def progress(units):
        for unit in units:
            computed.append(unit.name)
            yield unit

    reproduce([EXPERIMENTS[name] for name in QUICK], TINY, folder, progress)
    return folder, computed


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_theorems_hold_to_rounding(report):
    folder, _ = report
    claims = {c["where"]: c for c in json.loads((folder / "claims.json").read_text())["claims"]}
    for where in ("Theorem 1", "Appendix A", "Theorem 3"):
        assert claims[where]["verdict"] == "reproduces"
    assert claims["Theorem 2, figure 2"]["verdict"].startswith("reproduces only with a bounded interval")


@pytest.mark.slow
def test_a_second_run_computes_nothing(report):
    folder, computed = report
    asked = []
    reproduce([EXPERIMENTS[name] for name in QUICK], TINY, folder, lambda units: asked.extend(units) or units)
    assert asked == []
    assert len(list((folder / "data").glob("*.npz"))) == len(computed)


def small_experiment(log, fail_at=None):
    """Three pieces of work that note when they are computed; one may be interrupted."""

    def work(i):
        def compute():
            if i == fail_at:
                raise KeyboardInterrupt
            log.append(i)
            return {"x": np.arange(i)}

        return Unit(f"piece-{i}", {"i": i}, compute)

    return Experiment(
        "pieces", "Pieces", lambda size: [work(i) for i in range(3)], lambda *_: Findings([], [], [], [], [])
    )


def test_an_interrupted_run_keeps_what_it_had_and_goes_on_from_there(tmp_path):
    log = []
    with pytest.raises(KeyboardInterrupt):
        reproduce([small_experiment(log, fail_at=1)], TINY, tmp_path)
    assert log == [0]
    reproduce([small_experiment(log)], TINY, tmp_path)
    assert log == [0, 1, 2]
    assert not list((tmp_path / "data").glob("*.part"))


@pytest.mark.slow
def test_one_experiment_never_replaces_the_whole_report(tmp_path):
    (tmp_path / "index.html").write_text("the whole")
    result = epf("density", "--output", tmp_path)
    assert result.exit_code == 0, result.output
    assert "report:" in result.output
    assert (tmp_path / "index.html").read_text() == "the whole"
    assert "index-density.html" in result.output.replace("\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in QUICK])
def test_every_experiment_runs_from_the_command_line(name, tmp_path):
    result = epf(name, "--steps", 24, "--fewer", 500, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    page = (tmp_path / f"index-{name}.html").read_text()
    assert "Reduced size" in page
    assert "nan" not in page.lower().replace("nan densities", "").split("<body>")[1].split("data:image")[0]


def stored(case, size, methods, shift=0.0, scale=1.0):
    """Made-up results: an exact posterior, and filters off by `shift` exact sds whose sd is `scale` times as large."""
    truth, found = {}, {}
    for name in case.truth:
        mean = np.tile(np.linspace(0.0, 1.0, size.num_steps), (size.num_series, 1))
        truth |= {
            f"mean_{name}": mean,
            f"sd_{name}": np.full_like(mean, 0.1),
            f"band_{name}": mean[0][:, None] + [-0.2, 0.2],
        }
        found |= {
            f"mean_{name}": mean + 0.1 * shift,
            f"sd_{name}": np.full_like(mean, 0.1 * scale),
            f"band_{name}": mean[0][:, None] + [-0.2, 0.2],
            f"distinct_{name}": np.full(size.num_series, 7),
        }
    extra = ("seconds", "seconds_compile", "num_collapsed", "num_bad_densities")
    found |= {name: np.zeros(size.num_series if name.startswith("num") else ()) for name in extra}
    found["num_distinct_ancestors"] = np.ones(size.num_steps, int)
    results = {f"{case.name}-{m.name}": Stored(found, {}) for m in methods}
    return {f"{case.name}-exact": Stored(truth, {}), **results}


@pytest.mark.parametrize(
    ("shift", "scale", "kinds"),
    [  # figures 5(a), 5(b) caption, 5(b) text, 5(c)
        (0.1, 1.0, ["no", "no", "no", "yes"]),  # every filter agrees with the exact posterior
        (0.1, 0.01, ["yes", "yes", "no", "no"]),  # every filter has collapsed, near the exact mean or not
        (4.0, 1.0, ["yes", "yes", "no", "no"]),  # every filter is far off
        (0.1, 0.5, ["yes", "no", "no", "no"]),  # near, but too narrow
        (np.nan, 1.0, ["yes", "yes", "no", "no"]),  # not a number is not agreement
    ],
)
def test_verdicts_of_sin_follow_the_numbers(shift, scale, kinds):
    size = Size("made up", 3, 50)
    section = sinusoid.present(size, stored(SIN, size, sinusoid.COMPARED.methods(size), shift, scale))
    assert [claim.kind for claim in section.claims] == kinds
    agreed = [claim for claim in section.claims if "it agrees with the exact posterior" in claim.verdict]
    assert len(agreed) == (3 if (shift, scale) == (0.1, 1.0) else 0)


@pytest.mark.parametrize(
    ("shift", "scale", "kinds"), [(0.1, 1.0, "no no yes"), (9.0, 1.0, "no yes no"), (0.1, 0.5, "no no no")]
)
def test_verdicts_of_star_follow_the_numbers(shift, scale, kinds):
    size = Size("made up", 3, 50)
    flat = {"log_p": np.zeros((3, 86, 73)), "log_q": np.zeros((86, 73)), "u": np.linspace(-4, 4, 50)}
    results = {**stored(STAR, size, star.COMPARED.methods(size), shift, scale), "star-gibbs": Stored(flat, {})}
    claims = star.present(size, results).claims
    assert [claim.kind for claim in claims] == kinds.split()  # a density that never shrinks does not reproduce 7(a)


def test_an_unknown_experiment_is_named_with_those_there_are(tmp_path):
    result = epf("sinus", "--output", tmp_path / "new")
    assert result.exit_code == 2
    assert "unknown experiment 'sinus'" in result.output
    assert "cauchy" in result.output
    assert not (tmp_path / "new").exists()


def test_an_output_that_cannot_be_written_is_told_at_once(tmp_path):
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
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 255
    with pytest.raises(StoreError, match="other settings") as error:
        store.load(other)
    assert "'steps': 1" in str(error.value)
    for damaged in (content[:20], bytes(flipped), b"", b"text"):
        store.path(other).write_bytes(damaged)
        with pytest.raises(StoreError, match=r"cannot be read|other settings"):
            store.load(other)
        assert store.path(other).read_bytes() == damaged


def test_a_failing_unit_leaves_no_file_behind(tmp_path):
    def fails():
        raise RuntimeError("in the middle")

    store = Store(tmp_path)
    with pytest.raises(RuntimeError):
        store.compute(Unit("work", {}, fails))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_first_of_twenty_series_is_the_only_one_of_a_quick_run():
    one, twenty = (series(SIN, Size("", n, 24))[1] for n in (1, 20))
    np.testing.assert_array_equal(one[0], twenty[0])


@cache
def _exact():
    _, y = series(SIN, Size("", 1, 24))
    return solve(SIN, y[0])


@pytest.mark.slow
def test_the_focused_grid_resolves_the_posterior_from_first_to_last():
    found = _exact()
    spacing = np.diff(found.axes["theta"])
    for t in (0, 5, 23):
        near = np.argmin(np.abs(found.axes["theta"] - found.mean["theta"][t]))
        # at a spacing of h sds the trapezoidal rule errs by exp(-2 pi^2 / h^2): 2e-9 at 1
        assert spacing[min(near, len(spacing) - 1)] < found.sd["theta"][t]
    axis = focused(-1.0, 1.0, 0.3, 0.01, 41)
    assert axis[0] == pytest.approx(-1.0)
    assert axis[-1] == pytest.approx(1.0)
    assert np.min(np.diff(axis)) < 0.004


def test_verdicts_and_scores_mean_what_they_say():
    assert Claim("", "", verdict(True), "").kind == "yes"
    assert Claim("", "", verdict(True, only_with="care"), "").kind == "partly"
    assert Claim("", "", verdict(False, because="no"), "").kind == "no"
    z = np.random.default_rng(0).normal(size=4000)
    many = Score(z, np.ones(4000), z)
    assert abs(many.rms - 1) < 4 * many.rms_error
    # the standard error of the rms of n standard normals is 1 / sqrt(2 n)
    assert many.rms_error == pytest.approx(1 / np.sqrt(8000), rel=0.1)
    assert Score(z, np.ones(4000), z).verdict == "off"  # the median |z| of a standard normal is 0.67


def test_a_score_knows_since_when_a_filter_is_right():
    truth = {"mean_a": np.zeros((2, 5)), "sd_a": np.ones((2, 5))}
    found = {"mean_a": np.array([[3.0, 0.0, 2.0, 0.1, 0.2], [0.0, 0.0, 0.0, 0.0, 5.0]]), "sd_a": np.ones((2, 5))}
    np.testing.assert_array_equal(score(found, truth, "a").first, [4.0, np.inf])


@pytest.mark.slow
def test_a_filter_told_another_prior_gives_its_posterior_and_evidence():
    y = series(CAUCHY, Size("short", 1, 30))[1][0]
    with jax.enable_x64(True):
        model, wider = CAUCHY.model(), cauchy_ar1(prior_sd=0.6)
        oracle = exact.quadrature(model, y, {"a": np.linspace(-1.2, 1.2, 41)}, exact.nodes_around(y, *CAUCHY.nodes))
        learning = extended_parameter_filter(wider, 4000, statistic=scale_mixture(wider), proposal=guided(near_or_far))
        results = run(jax.random.key(0), told_under(model, learning), y)
    mean, sd = oracle.mean["a"][-1], oracle.sd["a"][-1]
    # The ratio of the priors leaves an effective third of the particles; ten times their standard error allows for the
    # paths that resampling lost. The wider prior's own sd would be off by far more.
    error = 10 * sd / np.sqrt(4000 / 3)
    np.testing.assert_allclose(results.theta.mean["a"][-1], mean, atol=error)
    np.testing.assert_allclose(results.theta.sd["a"][-1], sd, atol=error)
    np.testing.assert_allclose(results.log_evidence[-1], oracle.log_evidence[-1], atol=0.3)
