"""Claims about the command line: from a model's file and a table to a posterior, or to a reason; never to a traceback."""

import csv
import json
import re
import shlex
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import matplotlib.pyplot
import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
import xarray as xr
from typer.testing import CliRunner

import epf_jax as epf
from epf_jax.apps.commands import app
from epf_jax.apps.commands import output_files as outputs
from epf_jax.apps.commands.answers import told_of
from epf_jax.apps.commands.data_file import Reading, steps_ahead
from epf_jax.apps.commands.epf_compare import comparison, disagreements, scores
from epf_jax.apps.commands.kept_runs import filter_series
from epf_jax.apps.commands.method_names import METHODS, filter_of
from epf_jax.apps.commands.model_file import target_of
from epf_jax.apps.commands.options import in_options
from epf_jax.apps.commands.report_page import named_states
from epf_jax.data.series import Series
from epf_jax.data.tables import read_csv
from epf_jax.running.streaming import Stream

MODEL_FILE = """
import jax.numpy as jnp
import numpyro.distributions as dist
import epf_jax as epf

model = epf.models.ar1()
sin = epf.models.sinusoid()
filter_ = epf.storvik_filter(model, 32)
short = filter_._replace(max_steps=3)
counts = epf.bootstrap_filter(
    epf.StateSpaceModel(
        prior={"rate": dist.Normal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x, 0.1),
        observation=lambda theta, x, u: dist.Poisson(jnp.exp(theta["rate"] + x)),
    ),
    32,
)
number = 3

def build():
    return model

pair = epf.StateSpaceModel(
    prior={"phi": dist.Normal(0.0, 0.5)},
    initial=lambda theta: dist.Normal(0.0, 1.0),
    transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, 1.0),
    observation=lambda theta, x, u: dist.Normal(jnp.stack([x, -x]), 0.5).to_event(1),
)
joint = epf.StateSpaceModel(
    prior=pair.prior,
    initial=pair.initial,
    transition=pair.transition,
    observation=lambda theta, x, u: dist.Dirichlet(jnp.ones(3) + jnp.exp(x)),
)
timed = epf.StateSpaceModel(
    prior={"phi": dist.Normal(0.0, 0.5)},
    initial=lambda theta: dist.Normal(0.0, 1.0),
    transition=lambda theta, x, u: dist.Normal(theta["phi"] * x + u["rain"], jnp.sqrt(u["dt"])),
    observation=lambda theta, x, u: dist.Normal(x, 0.5),
)
"""
Y = tiny.autoregression(20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    (path / "model.py").write_text(MODEL_FILE)
    (path / "data.csv").write_text("y\n" + "".join(f"{value!r}\n" for value in Y.tolist()))
    rows = (f"2024-01-{day:02d},{value!r},0.5,{-value!r}\n" for day, value in enumerate(Y.tolist(), 1))
    (path / "wide.csv").write_text("day,y,rain,z\n" + "".join(rows))
    return path


def epf_command(*arguments, given=None):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)


def refused(message, *arguments, code=2, given=None):
    result = epf_command(*arguments, given=given)
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert re.search(message, result.stderr), result.stderr
    assert "Traceback" not in result.output
    return result


# ------------------------------------------------------------------------------------------------------ model files


def test_a_wrong_model_is_told_by_its_file_its_name_or_its_kind(folder, tmp_path):
    data = folder / "data.csv"
    for target, message in (
        ("model", r"MODEL: expected path/to/model.py:name, got 'model'"),
        (f"{folder}/model.py", r"MODEL: say which, .*model.py:name; its models and filters are model, sin, filter_"),
        ("none.py", r"MODEL: there is no file none.py"),
        ("none.py:model", r"MODEL: there is no file .*none.py"),
        (
            f"{folder}/model.py:nothing",
            r"has no 'nothing'; its models and filters are model, sin, filter_, short, counts, pair",
        ),
        (f"{folder}/model.py:number", r"number in .* is int: 3, and not an epf.StateSpaceModel"),
        (f"{folder}/model.py:build", r"Call it in the file: model = build\(\)"),
        (f"{folder}/data.csv:model", r"is not a Python file"),
    ):
        refused(message, "fit", target, data, "--output", tmp_path)
    for text, message in (
        ("import nowhere_to_be_found", "line 1: ModuleNotFoundError: No module named"),
        ("x = 1\ny = 1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
        ("model = 1", r"it has no model: write model = epf"),
    ):
        (tmp_path / "bad.py").write_text(text)
        refused(message, "fit", f"{tmp_path}/bad.py:other", data, "--output", tmp_path)


def test_the_only_model_of_a_file_needs_no_name(tmp_path):
    (tmp_path / "one.py").write_text("import epf_jax as epf\nsin = epf.models.sinusoid()\n")
    assert list(target_of(f"{tmp_path}/one.py").prior) == ["theta"]


def test_a_table_without_a_value_is_refused(folder, tmp_path):
    (tmp_path / "empty.csv").write_text("y\nnan\nNA\n")
    arguments = (f"{folder}/model.py:model", tmp_path / "empty.csv", "--output", tmp_path / "made")
    refused(r"empty.csv: every value of y is missing", "fit", *arguments)


def test_a_table_without_a_line_of_names_is_refused(folder, tmp_path):
    message = r"numbers.csv: line 1 should name the columns, and has numbers"
    for text in ("1.0\n2.0\n3.0\n", "3\n5\n", "0.5,0.5\n0.6,0.7\n", "1.5,\n2.5,3.5\n", "nan\n1.5\n", "inf\n1.5\n"):
        (tmp_path / "numbers.csv").write_text(text)
        refused(message, "fit", f"{folder}/model.py:model", tmp_path / "numbers.csv", "--output", tmp_path / "made")
    assert not (tmp_path / "made").exists()
    for header in ("0,1", "2019,2020", "y,z", ",y"):  # an array's columns, years, names, an index without one
        (tmp_path / "named.csv").write_text(f"{header}\n1.5,2.5\n")
        assert list(read_csv(tmp_path / "named.csv")[0]) == header.split(",")


def test_a_method_that_collapsed_has_a_score_of_minus_infinity(expected):
    end = expected.final._replace(log_evidence=np.float32(-np.inf))
    lost = expected._replace(log_evidence=np.where(np.arange(20) < 2, -1.0, -np.inf), final=end)
    seconds = {"epf": 0.0, "sir": 0.0}
    table = scores({"epf": expected, "sir": lost}, Series(Y, None, ("y",)), seconds, {})
    assert [row["log-evidence"] for row in table.rows][1] == "-inf"
    assert "differences are their errors" in table.note


def test_an_unknown_method_is_told_with_those_that_there_are(folder, tmp_path):
    message = r"--methods?: there is no 'kalman'; choose one of epf, storvik, node, particle-learning, "
    for command in (("fit", "--method"), ("compare", "--methods")):
        refused(
            message,
            command[0],
            f"{folder}/model.py:model",
            folder / "data.csv",
            "--output",
            tmp_path,
            command[1],
            "kalman",
        )
    refused("Leave --method and --particles out", "stream", f"{folder}/model.py:filter_", "--particles", 10, given="")
    refused("smc2 remembers every observation", "stream", f"{folder}/model.py:model", "--method", "smc2", given="")


@pytest.mark.slow
def test_every_method_of_the_list_is_built():
    for name in METHODS:
        assert isinstance(filter_of(name, epf.models.ar1(), None, room=5), epf.Filter)


# ------------------------------------------------------------------------------------------------------------- fit


@pytest.fixture(scope="module")
def fitted(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("fitted")
    arguments = ("fit", f"{folder}/model.py:filter_", folder / "data.csv", "--seed", 1, "--output", output)
    more = ("--checkpoint", output / "fit.epf", "--forecast", 15)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["epf", *map(str, arguments + more)])
        result = epf_command(*arguments, *more)
    assert result.exit_code == 0, (result.output, result.exception)
    return output, result, arguments


@pytest.fixture(scope="module")
def expected():
    return epf.run(jax.random.key(1), epf.storvik_filter(epf.models.ar1(), 32), Y)


def test_fit_prints_the_posterior_and_writes_the_numbers_of_run(fitted, expected):
    output, result, _ = fitted
    assert re.search(r"parameter +mean +sd +5% +50% +95%", result.stdout)
    assert f"{float(expected.theta.mean['phi'][-1]):.4g}" in result.stdout
    assert f"{float(expected.log_evidence[-1]):.3f}" in result.stdout
    assert "filtering" in result.stderr
    assert "20/20" in result.stderr
    table, data = (
        pq.read_table(output / "fit.parquet").to_pydict(),
        xr.load_dataset(output / "fit.nc", engine="h5netcdf"),
    )
    for found in (table, data):
        np.testing.assert_array_equal(np.float32(found["log_evidence"]), expected.log_evidence)
        np.testing.assert_array_equal(np.float32(found["theta.phi.mean"]), expected.theta.mean["phi"])
        np.testing.assert_array_equal(np.float32(found["theta.phi.q95"]), expected.theta.quantiles["phi"][:, -1])
        np.testing.assert_array_equal(np.float32(found["x.sd"]), expected.x.sd)
        np.testing.assert_array_equal(np.float32(found["y"]), Y)
        smoothed = epf.smooth(jax.random.fold_in(jax.random.key(1), 10), epf.models.ar1(), expected.final, Y)
        np.testing.assert_allclose(np.float32(found["smoothed.mean"]), smoothed.x.mean, atol=1e-5)  # in pieces


def test_fit_forecasts_what_epf_forecast_would(fitted, expected):
    output, result, _ = fitted
    ahead = epf.forecast(jax.random.fold_in(jax.random.key(1), 11), epf.models.ar1(), expected.final, 15)
    with (output / "forecast.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["variable"] == "y"]
    assert [int(row["t"]) for row in rows] == list(range(21, 36))
    np.testing.assert_allclose([float(row["mean"]) for row in rows], ahead.y.mean, atol=1e-5)  # filtered in pieces
    assert re.search(rf"\n21 +{float(ahead.y.mean[0]):.4g} ", result.stdout)
    assert "3 more steps in forecast.csv" in result.stdout  # the table ends after 12


def test_steps_to_come_go_on_as_usual_or_as_a_table_says(folder, tmp_path):
    days = ["2024-01-01", "2024-01-11", "2024-01-12", "2024-01-13"]
    uneven = epf.from_table({"day": days, "y": Y[:4]}, time="day", unit="days", start="2023-01-01")
    np.testing.assert_array_equal(steps_ahead(2, None, uneven, Reading((), "day", "days")).inputs["dt"], [1.0, 1.0])
    np.testing.assert_array_equal(uneven.stamps_ahead(1), np.array(["2024-01-14"], "datetime64[ns]"))
    series = epf.from_table({"day": ["2024-01-01", "2024-01-03", "2024-01-04"], "y": Y[:3]}, time="day", unit="days")
    of_days = (series, Reading((), "day", "days"))
    assert steps_ahead(None, None, *of_days) is None
    assert steps_ahead(4, None, epf.from_table({"y": Y}), Reading()) == (4, None)
    np.testing.assert_array_equal(steps_ahead(2, None, *of_days).inputs["dt"], [2.0, 2.0])  # of 2, 2 and 1
    (tmp_path / "zone.csv").write_text("day,rain\n2024-01-07T00:00:00+00:00,0.5\n")
    (tmp_path / "next.csv").write_text("day,rain\n2024-01-07,0.5\n2024-01-08,0\n")
    steps = steps_ahead(None, tmp_path / "next.csv", series, Reading((), "day", "days", None, ("rain",)))
    np.testing.assert_array_equal(steps.inputs["dt"], [3.0, 1.0])  # from the data's last day
    np.testing.assert_array_equal(steps.inputs["rain"], [0.5, 0.0])
    for num, future, names, message in (
        (2, tmp_path / "next.csv", ("rain",), "--forecast: leave it out with --future"),
        (2, None, ("rain",), "--forecast: .* with the columns day, rain, a row for each step"),
        (
            None,
            folder / "wide.csv",
            ("rain",),
            "wide.csv: its first stamp in column 'day' is to come after .* 2024-01-04",
        ),
        (None, tmp_path / "zone.csv", ("rain",), "zone.csv: start: expected a stamp like those in column 'day'"),
        (None, tmp_path / "next.csv", ("sun",), "next.csv: inputs: the table has no column 'sun'"),
    ):
        with pytest.raises(ValueError, match=message):
            steps_ahead(num, future, series, Reading((), "day", "days", None, names))
    with pytest.raises(ValueError, match="--future: without --time and --inputs"):
        steps_ahead(None, tmp_path / "next.csv", series, Reading())


def test_columns_called_as_the_runs_own_lose_nothing(expected, tmp_path):
    series = epf.from_table({"t": Y, "USD/EUR": Y})
    columns = outputs.columns_over_time(series, expected)
    np.testing.assert_array_equal(columns["t"], np.arange(1, 21))
    np.testing.assert_array_equal(columns["y.t"], columns["USD/EUR"])
    outputs.write_netcdf(tmp_path / "fit.nc", columns)
    assert "USD_EUR" in xr.load_dataset(tmp_path / "fit.nc", engine="h5netcdf")


@pytest.mark.slow
def test_a_method_that_remembers_goes_on_in_its_checkpoints_room(folder, tmp_path):
    rows = (folder / "data.csv").read_text().splitlines()
    arguments = ("fit", f"{folder}/model.py:model", tmp_path / "grows.csv", "--output", tmp_path / "out")
    arguments += ("--method", "resample-move", "--particles", 8, "--checkpoint", tmp_path / "fit.epf")
    for num in (8, 18):  # room for 32
        (tmp_path / "grows.csv").write_text("\n".join(rows[: num + 1]) + "\n")
        result = epf_command(*arguments)
        assert result.exit_code == 0, result.output


def test_the_report_begins_with_the_verdict_and_ends_with_its_command(fitted):
    output, _, arguments = fitted
    page = (output / "fit.html").read_text()
    assert (
        page.count("data:image/png;base64,") == len(list((output / "figures").glob("*.png"))) == 6
    )  # data, parameters, states; folded: theta, filtered, diagnostics
    assert [page.index(f"<section id='{name}'>") for name in ("data", "parameters", "states")] == sorted(
        page.index(f"<section id='{name}'>") for name in ("data", "parameters", "states")
    )
    assert page.index("class='verdict'") < page.index("<section")
    assert page.count("<details") == 2
    assert not re.search(r"(src|href)='http", page)
    assert "seed 1" in page
    assert f"<pre>epf {shlex.join(map(str, arguments))}" in page  # the command that made it, at the end


@pytest.mark.slow
def test_a_fit_goes_on_from_its_checkpoint_and_refuses_other_data(tmp_path, expected):
    filter_ = epf.storvik_filter(epf.models.ar1(), 32)
    for num in (8, 20, 20):
        results = filter_series(filter_, Series(Y[:num], None, ("y",)), 1, tmp_path / "fit.epf")
    for name in ("log_evidence", "ess", "acceptance"):
        np.testing.assert_array_equal(getattr(results, name), getattr(expected, name))
    np.testing.assert_array_equal(results.theta.mean["phi"], expected.theta.mean["phi"])
    np.testing.assert_array_equal(results.final.x, expected.final.x)
    for y, seed, message in (
        (-Y, 1, "first 20 rows are not"),
        (Y[:12], 1, "first 20 rows"),
        (Y, 2, "--seed was 1 and is 2"),
    ):
        with pytest.raises(epf.CheckpointError, match=message):
            filter_series(filter_, Series(y, None, ("y",)), seed, tmp_path / "fit.epf")


@pytest.mark.slow
def test_fit_is_learn_and_the_stream_goes_on_from_its_state(folder, tmp_path):
    file = tmp_path / "state.epf"
    arguments = ("fit", f"{folder}/model.py:model", folder / "data.csv", "--output", tmp_path, "--forecast", 2)
    result = epf_command(*arguments, "--checkpoint", file)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "Trusted: " in result.stdout
    assert "importance sampling with Kalman's exact likelihoods" in result.stdout
    with (tmp_path / "parameters.csv").open() as rows:
        (row,) = csv.DictReader(rows)
    exact = epf.exact.kalman(epf.models.ar1(), Y, {"phi": jnp.linspace(-1.0, 2.0, 301)})
    off = (float(row["mean"]) - float(exact.mean["phi"][-1])) / float(exact.sd["phi"][-1])
    assert abs(off) < 0.2  # the most that an answer which is trusted may be off
    assert "importance sampling" in (tmp_path / "fit.html").read_text()
    lines = lines_of(stream(folder, "0.1\n", "--checkpoint", file, name="model"))
    assert [line["t"] for line in lines] == [20, 21]
    found = lines[0]["theta"]["phi"]
    assert abs(found["mean"] - float(exact.mean["phi"][-1])) < 0.2 * float(exact.sd["phi"][-1])


@pytest.mark.slow
def test_save_fit_and_stream_go_on_from_each_others_checkpoints(folder, fitted, tmp_path, told):
    filter_, file = epf.storvik_filter(epf.models.ar1(), 32), tmp_path / "state.epf"
    given = "".join(f"{value!r}\n" for value in Y.tolist())
    lines = lines_of(stream(folder, given, "--checkpoint", file))  # the stream writes; fit and load read
    assert int(epf.load(file, filter_).t) == 20
    more = Series(np.append(Y, [0.1, 0.2]), None, ("y",))
    results = filter_series(filter_, more, 0, file)
    assert len(results.ess) == 2  # those that came since
    assert int(results.final.t) == 22
    with pytest.raises(epf.CheckpointError, match="first 22 rows are not"):
        filter_series(filter_, Series(-more.y, None, ("y",)), 0, file)
    resumed = lines_of(stream(folder, "0.3\n", "--checkpoint", file))  # fit writes, the stream reads
    assert [line["t"] for line in resumed] == [22, 23]
    kept = epf.run(jax.random.key(0), filter_, Y[:3]).final
    epf.save(file, kept, filter_)  # save writes, stream and fit read
    again = lines_of(stream(folder, "".join(f"{value!r}\n" for value in Y.tolist()[3:5]), "--checkpoint", file))
    assert [line["t"] for line in again] == [3, 4, 5]
    np.testing.assert_allclose(again[-1]["log_evidence"], lines[5]["log_evidence"], rtol=1e-5)


def fit_of_columns(folder, output):
    """A fit of a table with stamps and inputs, and the options that name its columns."""
    wide = ("fit", f"{folder}/model.py:timed", folder / "wide.csv", "--output", output)
    options = ("--no-smooth", "--method", "sir", "--particles", 16)
    return wide + options, ("--columns", "y", "--time", "day", "--inputs", "rain")


@pytest.mark.slow
def test_fit_reads_columns_stamps_and_inputs_by_name(folder, tmp_path):
    arguments, named = fit_of_columns(folder, tmp_path)
    result = epf_command(*arguments, *named, "--unit", "days")
    assert result.exit_code == 0, (result.output, result.exception)
    assert pq.read_table(tmp_path / "fit.parquet")["time"][0].as_py() == "2024-01-01"


def test_columns_that_do_not_fit_the_model_are_told_of_by_name(folder, tmp_path):
    arguments, named = fit_of_columns(folder, tmp_path)
    refused(
        r"transition reads inputs, and failed without them: KeyError: 'dt'. Name the col", *arguments, *named
    )  # dates are labels
    refused(r"wide.csv: --columns: the table has no column 'w'; it has day, y, rain, z", *arguments, "--columns", "w")
    refused(r"its transition cannot be looked at before there are inputs.*--inputs", *arguments, "--columns", "y")
    refused(r"--columns: the model observes 1 number a time .*got 2 columns: y, z",
            *arguments, "--columns", "y,z", "--time", "day", "--inputs", "rain", "--unit", "days")  # fmt: skip


def test_wrong_data_are_told_with_their_line(folder, tmp_path):
    for text, message in (
        ("y\n1.0\nabc\n", r"bad.csv: column 'y', line 3: 'abc' is not a number"),
        ("y\n1.0\n1.0,2.0\n", r"bad.csv: line 3 has 2 cells"),
        ("", r"bad.csv: expected a line of column names"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        refused(message, "fit", f"{folder}/model.py:filter_", tmp_path / "bad.csv", "--output", tmp_path / "out")
    refused(
        "none.csv: it cannot be read as CSV",
        "fit",
        f"{folder}/model.py:filter_",
        tmp_path / "none.csv",
        "--output",
        tmp_path,
    )
    (tmp_path / "file").write_text("no folder")
    refused(
        "--output: cannot make",
        "fit",
        f"{folder}/model.py:filter_",
        folder / "data.csv",
        "--output",
        tmp_path / "file" / "x",
    )


@pytest.mark.slow
def test_warnings_of_a_run_stand_in_the_summary_and_in_the_report(folder, tmp_path):
    values = [*Y.tolist()[:5], 1e30, *Y.tolist()[5:19]]
    (tmp_path / "outlier.csv").write_text("y\n" + "".join(f"{value!r}\n" for value in values))
    result = epf_command("fit", f"{folder}/model.py:filter_", tmp_path / "outlier.csv", "--output", tmp_path)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "Every particle had zero weight at 1 step (first at t = 6)" in result.stdout.replace("\n", " ")
    assert "first at t = 6" in (tmp_path / "fit.html").read_text()


# --------------------------------------------------------------------------------------------------------- compare


def test_methods_far_from_learn_are_told_of():
    def at(mean, sd):
        over_time = {"phi": np.array([0.0, mean]), "mu": np.zeros(2)}
        return SimpleNamespace(theta=SimpleNamespace(mean=over_time, sd={"phi": np.array([1.0, sd]), "mu": np.ones(2)}))

    answer = SimpleNamespace(theta=({"phi": 0.88, "mu": 0.0}, {"phi": 0.05, "mu": 1.0}))
    (sentence,) = disagreements({"epf": at(0.88, 0.05), "node": at(0.93, 0.04), "ibis": at(0.89, 0.05)}, answer)
    assert sentence == "node puts phi 1.0 posterior standard deviations from learn."


def test_evidences_are_less_that_of_the_first_method(expected):
    answer = SimpleNamespace(theta=SimpleNamespace(mean={"phi": 0.8}))
    _, evidence = comparison({"epf": expected, "sir": expected}, epf.from_table({"y": Y}), answer)
    drawn = evidence.draw()
    assert drawn.axes[0].get_ylabel() == "log-evidence\nminus that of epf"
    matplotlib.pyplot.close(drawn)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("unit: expected one of days, such as unit='days'.", "--unit: expected one of days, such as --unit days."),
        ("Name them, inputs=['rain', 'dt'].", "Name them, --inputs rain,dt."),
        ("Try more seconds=...", "Try more --seconds N"),
        ("Take epf.smc2_filter(model, 256), say.", "Take --method smc2, say."),
        ("with epf.laplace(model)", "with epf.laplace(model)"),
        ("y.csv: start: expected a time", "y.csv: --start: expected a time"),
    ],
)
def test_messages_name_the_commands_own_options(told, said):
    assert in_options(told) == said


def test_copies_of_lags_are_not_drawn():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 9, 1))
    paths = np.concatenate([x[:, 1:], x[:, :-1]], axis=-1)  # the second is the first of a step before
    summary = epf.Summary(paths.mean(axis=0), paths.std(axis=0), np.stack([paths.mean(axis=0)] * 2, -1))
    smoothed = SimpleNamespace(x=summary, paths=paths)
    assert [c.name for c in named_states(smoothed, epf.models.ar1())] == ["x[0]"]


def test_what_is_warned_of_is_among_the_findings():
    told = []
    with told_of(told):
        warnings.warn("lost", RuntimeWarning, stacklevel=1)
    assert told == ["lost"]


@pytest.mark.slow
def test_compare_puts_methods_side_by_side(folder, tmp_path):
    result = epf_command(
        "compare", f"{folder}/model.py:pair", folder / "wide.csv", "--columns", "y,z", "--particles", 16,
        "--methods", "storvik,sir", "--output", tmp_path, "--checkpoint", tmp_path / "c.epf",
    )  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    assert re.search(r"method +log-evidence +log score", result.stdout)
    assert re.search(r"Of sir: it never redraws theta", " ".join(result.stdout.split()))
    table = pq.read_table(tmp_path / "compare.parquet").to_pydict()
    assert table["method"] == ["storvik"] * 20 + ["sir"] * 20
    last = {name: table["log_evidence"][i] for name, i in (("storvik", 19), ("sir", 39))}
    for value in last.values():
        assert f"{value:.3f}" in result.stdout
    # the mean of the one-step log scores, times T, is the log-evidence
    assert re.search(rf"sir +{last['sir']:.3f} +{last['sir'] / 20:.4g} ", result.stdout)
    assert {path.name for path in tmp_path.glob("c-*.epf")} == {"c-storvik.epf", "c-sir.epf"}
    assert re.search(r"phi +sir +\S+ +\S+ +[+-]\d", result.stdout)  # how far it is from learn
    assert (tmp_path / "compare.html").read_text().count("data:image/png;base64,") == 2
    result = epf_command(
        "compare", f"{folder}/model.py:sin", folder / "data.csv", "--methods", "storvik",
        "--output", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 2
    assert "none of the methods is for this model: storvik: " in result.stderr


# ---------------------------------------------------------------------------------------------------------- stream


def lines_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def told():
    """What a stream of the first values tells."""
    from epf_jax.data.text_lines import LineReader

    stream, reader = Stream(epf.storvik_filter(epf.models.ar1(), 32), seed=0), LineReader((), dtype=np.float32)
    return [stream.take(reader.read(repr(value).encode())) for value in Y.tolist()]


def stream(folder, given, *options, name="filter_"):
    return epf_command("stream", f"{folder}/model.py:{name}", *options, given=given)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda values: "".join(f"{value!r}\n" for value in values), marks=pytest.mark.slow),
        pytest.param(lambda values: "y\n" + "\n".join(f"{value!r}" for value in values), marks=pytest.mark.slow),
        pytest.param(lambda values: "".join(f"[{value!r}]\n" for value in values), marks=pytest.mark.slow),
        lambda values: "".join(json.dumps({"y": value}) + "\r\n\n" for value in values),
        pytest.param(
            lambda values: "\ufeffday,y\n" + "".join(f"Monday,{value!r}\n" for value in values),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda values: "".join(f"{i},{value!r}\n" for i, value in enumerate(values)), marks=pytest.mark.slow
        ),
    ],
    ids=["numbers", "header", "lists", "objects and blank lines", "a column of words", "columns by position"],
)
def test_a_stream_tells_the_same_of_every_form_of_the_same_numbers(folder, told, form):
    text = form(Y.tolist()[:5])
    columns = ("--columns", "y") if "Monday" in text else ("--columns", "2") if text.startswith("0,") else ()
    result = stream(folder, text, *columns)
    assert result.exit_code == 0, (result.output, result.exception)
    assert lines_of(result) == told[:5]
    assert result.stderr == ""


@pytest.mark.slow
def test_missing_values_and_vectors_stream(folder):
    result = stream(folder, "y,z\n1.0,\nNA,nan\n[null, 2.0]\n", "--method", "sir", "--particles", 8, name="pair")
    found = lines_of(result)
    assert [line["t"] for line in found] == [1, 2, 3]
    assert abs(found[1]["log_score"]) < 1e-5  # nothing seen: log 1, but for the rounding of the weights' sum
    refusal = stream(folder, "0.2,0.3,0.5\n0.2,,0.5\n0.2,0.3,0.5\n", "--method", "sir", "--particles", 8,
                     "--on-error", "skip", name="joint")  # fmt: skip
    assert "line 2: some components are missing while others are seen" in refusal.stderr
    assert [line["t"] for line in lines_of(refusal)] == [1, 2]


def test_a_stream_without_observations_says_so(folder):
    for given in ("", "\n\n", "y\n"):
        result = stream(folder, given)
        assert (result.exit_code, result.stdout) == (0, "")
        assert "no observation" in result.stderr


def test_an_object_names_its_column(folder):
    options = ("--on-error", "skip")
    result = stream(folder, '{"y": 0.1}\n{"temperature": 0.2}\n{"error": 3}\n0.3\n', *options)
    assert [line["t"] for line in lines_of(result)] == [1, 2]
    assert "line 2: it has no 'y', only 'temperature'; choose --columns" in result.stderr
    result = stream(folder, '{"y": 0.1}\n{"temperature": 0.2}\n', "--columns", "temperature", *options)
    assert [line["t"] for line in lines_of(result)] == [1]


def timed_lines():
    """Lines with a time column, one of them damaged, and the options that read them."""
    options = ("--time", "day", "--unit", "days", "--start", "2023-12-31", "--method", "sir", "--particles", 8)
    text = "day,y,rain\n2024-01-01,0.1,0.5\n2024-01-03,x,0.5\n2024-01-04,0.2,0.5\n"
    return text, (*options, "--inputs", "rain", "--columns", "y")


@pytest.mark.slow
def test_time_goes_on_from_a_checkpoint(folder, tmp_path):
    text, options = timed_lines()
    kept = (*options, "--checkpoint", tmp_path / "state", "--on-error", "skip")
    head, rest = "".join(text.splitlines(True)[:2]), "".join(text.splitlines(True)[2:])
    found = lines_of(stream(folder, text, *options, "--on-error", "skip", name="timed"))
    stream(folder, head, *kept, name="timed")
    assert lines_of(stream(folder, rest, *kept, name="timed"))[1:] == found[1:]
    assert lines_of(stream(folder, text, *kept, "--replay", name="timed"))[1:] == []


def test_a_time_column_streams_as_steps_and_a_refused_line_takes_no_time(folder):
    text, options = timed_lines()
    found = lines_of(stream(folder, text, *options, "--on-error", "skip", name="timed"))
    steps = "".join(json.dumps({"y": y, "rain": 0.5, "dt": dt}) + "\n" for y, dt in ((0.1, 1.0), (0.2, 3.0)))
    same = lines_of(stream(folder, steps, "--inputs", "dt,rain", "--method", "sir", "--particles", 8, name="timed"))
    assert found == same
    target = ("stream", f"{folder}/model.py:timed")
    refused("--start: the first line's step begins", *target, "--time", "day", "--unit", "days", given="")
    refused("--time: --unit and --start speak of", *target, "--unit", "days", given="")
    refused("line 2: --time: column 'day', this line: 'noon' is neither", *target, *options,
            given="day,y,rain\nnoon,0.1,0.5\n", code=1)  # fmt: skip


def test_dates_without_a_unit_are_labels_of_a_stream(folder, told):
    text = "".join(f"2024-01-{i:02d},{value!r}\n" for i, value in enumerate(Y.tolist()[:3], 1))
    assert lines_of(stream(folder, "day,y\n" + text, "--time", "day")) == told[:3]


def test_a_model_file_that_prints_or_exits_breaks_nothing(tmp_path):
    (tmp_path / "loud.py").write_text(
        "import epf_jax as epf\nimport numpyro.distributions as dist\nprint('loading')\n"
        "def observation(theta, x, u):\n    print('tracing')\n    return dist.Normal(x, 1.0)\n"
        "model = epf.StateSpaceModel({'a': dist.Normal(0.0, 1.0)}, lambda theta: dist.Normal(0.0, 1.0),\n"
        "    lambda theta, x, u: dist.Normal(theta['a'] * x, 1.0), observation)\n"
    )
    result = epf_command("stream", f"{tmp_path}/loud.py", "--method", "sir", "--particles", 8, given="0.1\n0.2\n")
    assert [line["t"] for line in lines_of(result)] == [1, 2]
    assert "loading" in result.stderr
    assert "tracing" in result.stderr
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    refused("running .*leaves.py failed, line 2: it calls sys.exit", "stream", f"{tmp_path}/leaves.py", given="")


def test_inputs_stream_by_name(folder):
    text = "".join(json.dumps({"y": value, "rain": 0.5, "dt": 1.0}) + "\n" for value in Y.tolist()[:4])
    result = stream(folder, text, "--inputs", "dt,rain", "--method", "sir", "--particles", 8, name="timed")
    assert result.exit_code == 0, (result.output, result.exception)
    assert [line["t"] for line in lines_of(result)] == [1, 2, 3, 4]
    missing = stream(
        folder,
        '{"y": 1.0, "rain": null, "dt": 1.0}\n',
        "--inputs",
        "dt,rain",
        "--method",
        "sir",
        "--particles",
        8,
        name="timed",
    )
    assert "line 1: the input 'rain' is missing" in missing.stderr
    refused(
        r"--inputs: the model reads inputs; name their columns",
        "stream",
        f"{folder}/model.py:timed",
        "--method",
        "sir",
        given="",
    )


BAD = "1.0\nabc\n2.0,3.0\n{\n[1.0\n[true]\n1e999\n\xff\n0.5\n"
REASONS = {
    2: "column 1: 'abc' is not a number",
    3: "it has 2 numbers, and the model observes 1 number",
    4: "it is not JSON",
    5: "it is not JSON",
    6: "column 1: True is not a number",
    7: "column 1: '1e999' is infinite",
    8: "it is not UTF-8 text",
}


def test_bad_lines_are_skipped_with_their_number_and_reason(folder):
    result = stream(folder, BAD.encode("latin-1"), "--on-error", "skip")
    assert result.exit_code == 0, (result.output, result.exception)
    assert [line["t"] for line in lines_of(result)] == [1, 2]
    said = result.stderr.splitlines()
    assert len(said) == len(REASONS)
    for text, (number, reason) in zip(said, REASONS.items(), strict=True):
        assert text.startswith(f"epf: line {number}: {reason}")
        assert text.endswith("Skipped.")


def test_a_bad_line_stops_the_stream_after_what_came_before_it(folder, told):
    result = refused(r"line 3: .*'x' is not a number.*Stopped, with 2 observations counted",
                     "stream", f"{folder}/model.py:filter_", given=f"{Y[0]}\n{Y[1]}\nx\n{Y[2]}\n", code=1)  # fmt: skip
    assert [line["t"] for line in lines_of(result)] == [1, 2]
    refused(r"line 1: the model observes 1 number, and the header names a, b; choose --columns",
            "stream", f"{folder}/model.py:filter_", given="a,b\n1,2\n", code=1)  # fmt: skip
    refused(r"line 1: the header has no column 'z'; it has a, b", "stream", f"{folder}/model.py:filter_",
            "--columns", "z", "--on-error", "skip", given="a,b\n1,2\n", code=1)  # fmt: skip
    refused(r"line 1: column 1: '1.2.3' is not a number", "stream", f"{folder}/model.py:filter_",
            given="1.2.3\n2\n", code=1)  # fmt: skip


@pytest.mark.slow
def test_a_filter_without_room_stops_whatever_is_said_of_bad_lines(folder, tmp_path, told):
    given = "".join(f"{value!r}\n" for value in Y.tolist()[:5])
    result = refused(r"line 4: the filter has room for 3 observations, .*Stopped, with 3 observations counted",
                     "stream", f"{folder}/model.py:short", "--on-error", "skip", given=given, code=1)  # fmt: skip
    assert lines_of(result) == told[:3]
    refused(r"20 observations after 0 earlier ones are more than the 3", "fit", f"{folder}/model.py:short",
            folder / "data.csv", "--output", tmp_path / "made")  # fmt: skip


@pytest.mark.slow
def test_what_the_model_refuses_is_not_counted(folder, tmp_path):
    options = ("--checkpoint", tmp_path / "s.epf", "--on-error", "skip")
    first = stream(folder, "1\n1.5\n2\n3\n", *options, name="counts")
    assert "line 2: the model observes whole numbers, and 1.5" in first.stderr
    assert [line["t"] for line in lines_of(first)] == [0, 1, 2, 3]
    again = stream(folder, "1\n1.5\n2\n3\n0.5\n4\n", *options, "--replay", name="counts")
    assert [line["t"] for line in lines_of(again)] == [3, 4]
    third = stream(folder, "1\n1.5\n2\n3\n0.5\n4\n5\n", *options, "--replay", name="counts")
    assert [line["t"] for line in lines_of(third)] == [4, 5]


@pytest.mark.slow
def test_a_line_without_end_does_not_fill_the_memory(folder):
    result = stream(folder, b"9" * (3 << 20) + b"\n0.5\n", "--on-error", "skip")
    assert "line 1: it is longer than" in result.stderr
    assert [line["t"] for line in lines_of(result)] == [1]


@pytest.fixture
def numbered():
    return [f'{{"y": {value!r}, "n": {i}}}\n' for i, value in enumerate(Y.tolist(), 1)]


@pytest.mark.slow
def test_a_line_that_would_spoil_the_particles_is_refused_and_not_counted(folder, tmp_path):
    (tmp_path / "steps.py").write_text(
        "import jax.numpy as jnp\nimport numpyro.distributions as dist\nimport epf_jax as epf\n"
        "model = epf.StateSpaceModel({'phi': dist.Normal(0.5, 0.3)}, lambda theta: dist.Normal(0.0, 1.0),\n"
        "    lambda theta, x, u: dist.Normal(theta['phi'] * x, jnp.sqrt(u['dt'])),\n"
        "    lambda theta, x, u: dist.Normal(x, 1.0))\n"
    )
    options = ("--inputs", "dt", "--columns", "y", "--particles", 8, "--method", "sir", "--on-error", "skip")
    given = "".join(json.dumps({"y": 0.1, "dt": dt}) + "\n" for dt in (1.0, -3.0, 1.0))
    result = epf_command("stream", f"{tmp_path}/steps.py:model", *options, given=given)
    assert [json.loads(line)["t"] for line in result.stdout.splitlines()] == [1, 2]
    assert "line 2: the model gives NaN" in result.stderr


def test_a_checkpoint_tells_how_many_it_holds_and_the_stream_goes_on(folder, tmp_path, told):
    options = ("--checkpoint", tmp_path / "s.epf")
    first = stream(folder, "y\n" + "".join(f"{v!r}\n" for v in Y.tolist()[:3]), *options, "--columns", "y")
    assert "is new" in first.stderr
    lines = lines_of(first)
    assert lines[0]["t"] == 0
    assert lines[0]["resumed"] is False
    assert lines[1:] == told[:3]
    second = stream(
        folder, "".join(f"{v!r}\n" for v in Y.tolist()[3:6]), *options, "--columns", "y"
    )  # the header is known
    assert "holds 3 observations" in second.stderr
    assert lines_of(second) == [{**told[2], "resumed": True}, *told[3:6]]
    whole = "y\n" + "".join(f"{v!r}\n" for v in Y.tolist())
    third = stream(folder, whole, *options, "--replay", "--checkpoint-every", 4)
    assert lines_of(third) == [{**told[5], "resumed": True}, *told[6:]]
    nothing = stream(folder, whole, *options, "--replay")
    assert "The input had nothing new: its 20 observations were counted before." in nothing.stderr
    refused("begun with --seed 0", "stream", f"{folder}/model.py:filter_", *options, "--seed", 5, given="")
    refused("it holds the state of another filter", "stream", f"{folder}/model.py:model", *options, given="")
    refused("--checkpoint: --replay", "stream", f"{folder}/model.py:model", "--replay", given="")


@pytest.mark.slow
def test_the_part_of_a_line_that_a_producer_left_is_not_counted(folder, tmp_path, told):
    options, lines = ("--checkpoint", tmp_path / "s.epf"), [f"{v!r}\n" for v in Y.tolist()[:3]]
    cut = refused("line 3: it does not end, and may be a part of one", "stream", f"{folder}/model.py:filter_", *options,
                  given="".join(lines)[:-3], code=1)  # fmt: skip
    assert lines_of(cut)[1:] == told[:2]
    assert lines_of(stream(folder, "".join(lines), *options, "--replay"))[1:] == told[2:3]
    assert lines_of(stream(folder, "".join(lines)[:-1])) == told[:3]  # nothing is kept that could not be mended


@pytest.mark.slow
def test_numbered_lines_sent_again_are_answered_and_not_counted(folder, tmp_path, told, numbered):
    options = ("--checkpoint", tmp_path / "s.epf", "--sequence", "n")
    stream(folder, "".join(numbered[:3]), *options)
    again = stream(folder, "".join([numbered[1], numbered[2], numbered[3], numbered[3], numbered[4]]), *options)
    repeated = [line["sequence"] for line in lines_of(again)[1:] if line.get("repeated")]
    assert repeated == [2, 3, 4]
    assert [line for line in lines_of(again)[1:] if not line.get("repeated")] == [
        {**told[3], "sequence": 4},
        {**told[4], "sequence": 5},
    ]
    bad = stream(folder, '{"y": 1.0, "n": 1.5}\n', *options)
    assert "line 1: sequence number n: expected a whole number, got 1.5" in bad.stderr


def test_an_observation_that_rules_out_every_particle_gives_null_not_nan(folder):
    result = stream(folder, "0.1\n1e30\n0.2\n")
    assert "NaN" not in result.stdout
    assert "Infinity" not in result.stdout
    assert [(line["collapsed"], line["log_evidence"] is None) for line in lines_of(result)] == [
        (False, False),
        (True, True),
        (False, True),
    ]
    (said,) = result.stderr.splitlines()
    assert said.startswith("epf: line 2: the model all but rules it out; no particle could explain it, and it was")


# ---------------------------------------------------------------------------------------------------------- doctor


def test_doctor_tells_devices_versions_precision_and_the_cache():
    result = epf_command("doctor")
    assert result.exit_code == 0, (result.output, result.exception)
    for word in (
        "epf_jax",
        jax.__version__,
        "device 0",
        "float32 (JAX_ENABLE_X64=1",
        "compilation cache",
        ".jax_cache",
        "polars",
    ):
        assert word in result.stdout
