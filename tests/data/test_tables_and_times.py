"""Claims about tables: what people have becomes what a filter takes, or is refused with its row and its value."""

import datetime
import decimal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import epf_jax as epf
from epf_jax.apps.commands.data_file import Reading, series_in
from epf_jax.data.tables import read_csv
from epf_jax.data.timestamps import UNITS, axis_of

MODEL = epf.models.ar1()
FILTER = epf.storvik_filter(MODEL, 32)
Y = np.asarray(epf.simulate(jax.random.key(0), MODEL, {"phi": 0.8}, 12)[1])
KEY = jax.random.key(1)
PAIR = epf.StateSpaceModel(
    prior={"phi": dist.Normal(0.0, 0.5)},
    initial=lambda theta: dist.Normal(0.0, 1.0),
    transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, 1.0),
    observation=lambda theta, x, u: dist.Normal(jnp.stack([x, -x]), 0.5).to_event(1),
)
HIGH, LOW = [1.0, 2.0, None, 4.0], [0.5, float("nan"), 2.5, 3.5]
DAYS = [datetime.datetime(2024, 1, day) for day in (1, 2, 5, 6)]


@pytest.fixture(scope="module")
def plain():
    return epf.run(KEY, FILTER, Y)


TABLES = {
    "pandas": lambda columns: pd.DataFrame(columns),
    "pandas nullable": lambda columns: pd.DataFrame(columns).convert_dtypes(),
    "polars": lambda columns: pl.DataFrame(columns, strict=False),
    "pyarrow": lambda columns: pa.table(columns),
    "dict": lambda columns: columns,
}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_every_make_of_table_gives_the_same_series(make):
    series = epf.from_table(make({"day": DAYS, "high": HIGH, "low": LOW, "n": [1, 2, 3, 4]}), ["high", "low"],
                            time="day", unit="days", inputs=["n"])  # fmt: skip
    np.testing.assert_array_equal(series.y, [[1.0, 0.5], [2.0, np.nan], [np.nan, 2.5], [4.0, 3.5]])
    np.testing.assert_array_equal(series.inputs["dt"], [1.0, 1.0, 3.0, 1.0])  # the first as the second
    np.testing.assert_array_equal(series.inputs["n"], [1, 2, 3, 4])
    assert series.columns == ("high", "low")
    assert len(series.times) == 4


def test_rows_at_the_end_change_nothing_of_those_before():
    stamps = [0.0, 1.0, 3.0, 3.5, 7.0]
    steps = [epf.from_table({"t": stamps[:n], "y": [1.0] * n}, time="t").inputs["dt"] for n in (2, 4, 5)]
    for fewer in steps:
        np.testing.assert_array_equal(fewer, steps[-1][: len(fewer)])


def test_columns_of_a_panel_are_told_apart_by_name():
    tables = {"A": {"high": [3.0], "low": [1.0]}, "B": {"low": [2.0, 2.5], "high": [4.0, 4.5]}}
    panel = epf.panel(tables)
    assert panel.columns == ("high", "low")
    np.testing.assert_array_equal(panel.y[1], [[4.0, 2.0], [4.5, 2.5]])
    np.testing.assert_array_equal(epf.panel([np.ones((2, 2)), {"a": [2.0], "b": [3.0]}]).y[1, 0], [2.0, 3.0])


def test_a_series_of_one_row_takes_the_usual_step_of_its_panel():
    table = {"shop": [*"aaabcc"], "week": [0.0, 1.0, 2.0, 50.0, 0.0, 3.0], "sold": np.arange(6.0)}
    panel = epf.panel(table, "sold", by="shop", time="week")
    assert panel.names == ("a", "b", "c")
    np.testing.assert_array_equal(panel.inputs["dt"][:, 0], [1.0, 1.0, 3.0])  # steps 1, 1, 1, 3, 3: the median is 1
    alone = {name: column[3:4] for name, column in table.items()}
    with pytest.raises(ValueError, match=r"^series 'b': start: column 'week' has one stamp"):
        epf.panel(alone, "sold", by="shop", time="week")


def test_one_name_is_a_scalar_series_and_a_list_of_one_a_vector_series():
    table = {"a": [1.0, 2.0], "b": [3, 4]}
    assert epf.from_table(table, "a").y.shape == (2,)
    assert epf.from_table(table, ["a"]).y.shape == (2, 1)
    assert epf.from_table(table).y.shape == (2, 2)
    assert epf.from_table(table, inputs="b").y.shape == (2,)
    assert epf.from_table(table).inputs is None
    np.testing.assert_array_equal(epf.from_table(np.arange(6.0).reshape(3, 2), [1, 0]).y[0], [1.0, 0.0])
    structured = np.array([(1.0, 2), (3.0, 4)], dtype=[("a", float), ("b", int)])
    np.testing.assert_array_equal(epf.from_table(structured, "b").y, [2, 4])
    np.testing.assert_array_equal(epf.from_table({"a": [decimal.Decimal("1.5"), "2.5", "NA"]}).y, [1.5, 2.5, np.nan])


@pytest.mark.parametrize(
    "table",
    [pd.DataFrame({"price": Y}), pd.Series(Y, name="price"), pl.DataFrame({"price": Y}), pl.Series("price", Y), Y],
    ids=["pandas", "pandas series", "polars", "polars series", "numpy"],
)
def test_run_takes_a_table_as_it_is(table, plain):
    np.testing.assert_array_equal(epf.run(KEY, FILTER, table).log_evidence, plain.log_evidence)


def test_what_from_table_gives_goes_in_as_it_is(plain):
    series = epf.from_table(pd.DataFrame({"price": Y}), "price")
    np.testing.assert_array_equal(epf.run(KEY, FILTER, series).log_evidence, plain.log_evidence)
    assert repr(series) == f"<Series of {len(Y)} observations of price>"
    assert repr(plain).startswith(f"<Results of {len(Y)} observations, ")
    assert " +- " in repr(plain)


def test_a_table_with_gaps_equals_an_array_with_nan():
    gaps = Y.astype(object)
    gaps[3] = None
    expected = epf.run(KEY, FILTER, np.array(gaps, float)).log_evidence
    np.testing.assert_array_equal(epf.run(KEY, FILTER, pd.DataFrame({"y": gaps})).log_evidence, expected)
    np.testing.assert_array_equal(epf.run(KEY, FILTER, pl.DataFrame({"y": gaps.tolist()})).log_evidence, expected)


def test_columns_that_the_model_does_not_observe_are_refused():
    with pytest.raises(ValueError, match=r"^y: the model observes 1 number a time.*got 2 columns: a, b\. Choose"):
        epf.run(KEY, FILTER, pd.DataFrame({"a": Y, "b": Y}))
    with pytest.raises(ValueError, match=r"^y: the model observes 2 numbers a time \(shape \(2,\)\), got 1 column: a"):
        epf.run(KEY, epf.bootstrap_filter(PAIR, 8), pl.DataFrame({"a": Y}))


def test_text_in_a_number_column_is_refused_with_its_row_and_value():
    for table in (pd.DataFrame({"p": ["1", "2", "abc"]}), pl.DataFrame({"p": ["1", "2", "abc"]}), {"p": [1, 2, "abc"]}):
        with pytest.raises(ValueError, match=r"^column 'p', row 2 \(the first is 0\): 'abc' is not a number\. Write"):
            epf.from_table(table)
    with pytest.raises(ValueError, match=r"column 'p', row 1.*infinite"):
        epf.from_table({"p": np.array([1.0, np.inf])})
    with pytest.raises(ValueError, match=r"column 'p', row 0.*True is not a number"):
        epf.from_table({"p": [True, False]})


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (r"^columns: the table has no column 'c'; it has a, b, t", {"columns": "c"}),
        (r"^inputs: the table has no column 'c'", {"inputs": ["c"]}),
        (r"^time: the table has no column 'c'", {"time": "c"}),
        (r"^time: unit and start need a column of time stamps", {"unit": "days"}),
        (r"^unit: column 't' holds numbers.*Leave the unit out", {"time": "t", "unit": "days"}),
        (r"^start: expected a time before the first stamp in column 't', got 5", {"time": "t", "start": 5}),
        (r"^inputs: column 'b', row 1.*missing \(1 in all\)", {"columns": "a", "inputs": "b"}),
        (r"^inputs: 'dt' is what the column of time stamps becomes", {"time": "t", "inputs": "dt"}),
    ],
)
def test_wrong_arguments_are_refused_by_name(message, arguments):
    with pytest.raises(ValueError, match=message):
        epf.from_table({"a": [1.0, 2.0], "b": [1.0, None], "t": [1.0, 2.0]}, **arguments)


def test_a_column_of_an_array_may_be_named_by_its_number():
    series = epf.from_table(np.array([[0.0, 1.0], [2.0, 3.0]]), time=0)
    np.testing.assert_array_equal(series.y, [1.0, 3.0])


def steps(stamps, **options):
    return epf.from_table({"y": np.arange(float(len(stamps))), "t": stamps}, "y", time="t", **options).inputs["dt"]


def test_irregular_stamps_become_steps_in_the_stated_unit():
    np.testing.assert_allclose(steps([0.0, 0.5, 2.0], start=-1.0), [1.0, 0.5, 1.5])
    texts = ["2024-01-01T00:00:00", "2024-01-01T06:00:00", "2024-01-03"]
    np.testing.assert_allclose(steps(texts, unit="days", start="2023-12-31"), [1.0, 0.25, 1.75])
    np.testing.assert_allclose(steps(texts, unit="hours"), [6.0, 6.0, 42.0])
    zoned = ["2024-03-31T00:30:00+01:00", "2024-03-31T03:30:00+02:00"]  # the clocks went forward between them
    np.testing.assert_allclose(steps(zoned, unit="hours"), [2.0, 2.0])
    close = pd.to_datetime(["2024-01-01T00:00:00.000000001", "2024-01-01T00:00:00.000000003"])
    for stamps in (close, close.tz_localize("UTC")):
        np.testing.assert_allclose(steps(stamps, unit="seconds"), [2e-9, 2e-9])
    assert UNITS["days"] == 24 * UNITS["hours"] == 1440 * UNITS["minutes"]
    np.testing.assert_allclose(steps([datetime.date(2024, 2, 28), datetime.date(2024, 3, 1)], unit="days"), [2.0, 2.0])


@pytest.mark.parametrize(
    ("stamps", "unit", "expected"),
    [
        (["2024-01-01", "2024-02-01", "2024-03-01"], "months", [1, 1, 1]),
        (["2024-01-31", "2024-02-29", "2024-03-31"], "months", [1, 1, 1]),
        (["2024-01-15", "2024-02-15", "2024-04-15"], "months", [1, 1, 2]),
        (["2024-01-01T00:00+01:00", "2024-02-01T00:00+01:00"], "months", [1, 1]),
        (["2024-03-31", "2024-06-30", "2024-12-31"], "quarters", [1, 1, 2]),
        (["2024-01-01", "2025-01-01", "2025-07-01"], "years", [1, 1, 0.5]),
        (["2024-01-01", "2024-02-16"], "months", [1 + 15 / 29, 1 + 15 / 29]),
    ],
)
def test_months_quarters_and_years_are_those_of_the_calendar(stamps, unit, expected):
    np.testing.assert_allclose(steps(stamps, unit=unit), expected, rtol=1e-12)
    before = steps(stamps[1:], unit=unit, start=stamps[0])
    np.testing.assert_allclose(before, expected[1:], rtol=1e-12)


def test_dates_without_a_unit_are_labels():
    series = epf.from_table({"y": [1.0, 2.0, 3.0], "t": ["2024-01-31", "2024-02-29", "2024-03-31"]}, "y", time="t")
    assert series.inputs is None
    ahead = series.stamps_ahead(3).astype("datetime64[D]")
    np.testing.assert_array_equal(ahead, np.array(["2024-04-30", "2024-05-31", "2024-06-30"], "datetime64[D]"))
    with pytest.raises(ValueError, match="comes before"):
        epf.from_table({"y": [1.0, 2.0], "t": ["2024-02-29", "2024-01-31"]}, "y", time="t")
    results = epf.run(KEY, FILTER, series)
    assert results.to_pandas(series)["time"].iloc[0] == pd.Timestamp("2024-01-31")


@pytest.mark.parametrize(
    ("message", "stamps", "options"),
    [
        (r"row 2 .*: 1\.5 comes before 2\.0 of the row before\. Sort the table by 't'", [1.0, 2.0, 1.5], {}),
        (r"row 1 .*: the stamp 1\.0 is that of the row before, too", [1.0, 1.0, 2.0], {}),
        (r"row 1 .*: 2023-01-01 comes before 2024-01-01", ["2024-01-01", "2023-01-01"], {"unit": "days"}),
        (r"row 1 .*: the stamp 2024-01-01 is that of the row before", ["2024-01-01", "2024-01-01"], {"unit": "days"}),
        (r"row 1 .*: 'soon' is neither a number nor a date", ["2024-01-01", "soon"], {"unit": "days"}),
        (r"row 1 .*: the time is missing", [1.0, None], {}),
        (r"row 1 .*: the time is missing", pd.to_datetime(["2024-01-01", None]), {"unit": "days"}),
        (r"row 1 .* is a number, and those before it are a date", ["2024-01-01", "3"], {"unit": "days"}),
        (r"row 1 .* is a date with its time zone, and", ["2024-01-01", "2024-01-02T00:00+00:00"], {"unit": "days"}),
        (r"^unit: with start, the dates in column", ["2024-01-01", "2024-01-02"], {"start": "2023-12-01"}),
        (r"^unit: expected one of seconds, .* got 'fortnights'", ["2024-01-01"] * 2, {"unit": "fortnights"}),
        (r"^start: column 't' has one stamp", [1.0], {}),
        (r"^start: expected a stamp like those", [1.0, 2.0], {"start": "2024-01-01"}),
        (
            r"^start: expected a stamp like those",
            ["2024-01-02T00:00+05:00", "2024-01-03T00:00+05:00"],
            {"unit": "days", "start": "2024-01-01"},
        ),
        (r"row 0 .*: the date lies outside of the years 1678", ["1500-01-01", "1500-01-02"], {"unit": "days"}),
        (r"row 0 .*: the date lies outside", np.array(["1500-01-01"], "datetime64[D]"), {"unit": "days"}),
        (r"^unit: .*or write dates as 2024-01-31", ["20240131", "20240201"], {"unit": "days"}),
    ],
)
def test_stamps_that_make_no_steps_are_refused_with_their_row(message, stamps, options):
    with pytest.raises(ValueError, match=message):
        steps(stamps, **options)


def ornstein_uhlenbeck():
    """A mean-reverting state seen at irregular times: its transition reads the time since the last observation."""
    return epf.StateSpaceModel(
        prior={"rate": dist.LogNormal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(
            x * jnp.exp(-theta["rate"] * u["dt"]), jnp.sqrt(1 - jnp.exp(-2 * theta["rate"] * u["dt"]))
        ),
        observation=lambda theta, x, u: dist.Normal(x, 0.3),
        row={"dt": jnp.ones(())},
    )


@pytest.mark.slow
def test_a_gap_in_time_equals_the_missing_observations_in_it():
    """A step of 2 is two steps of 1 with nothing seen between: the exact evidence is the same."""
    model = ornstein_uhlenbeck()
    y, gap = np.array([0.5, 0.2, np.nan, -0.4, 0.1]), [0, 1, 3, 4]
    axes = {"rate": np.linspace(0.2, 4.0, 25)}
    full = epf.exact.kalman(model, y, axes, inputs={"dt": np.ones(5)})
    series = epf.from_table({"y": y[gap], "t": np.arange(1.0, 6.0)[gap]}, "y", time="t", start=0.0)
    np.testing.assert_array_equal(series.inputs["dt"], [1, 1, 2, 1])
    short = epf.exact.kalman(model, series.y, axes, inputs=series.inputs)
    np.testing.assert_allclose(short.log_evidence[-1], full.log_evidence[-1], rtol=1e-5)
    # And a filter's evidence is Kalman's: the sd of log Z over 4 steps of 4000 particles is near 0.02; five of them.
    found = epf.run(KEY, epf.bootstrap_filter(model, 4000), series.y, inputs=series.inputs)
    np.testing.assert_allclose(found.log_evidence[-1], short.log_evidence[-1], atol=0.1)


def test_inputs_may_be_a_table():
    model, dt = ornstein_uhlenbeck(), np.array([1.0, 2.0, 1.0, 0.5])
    filter_ = epf.bootstrap_filter(model, 16)
    as_dict = epf.run(KEY, filter_, Y[:4], inputs={"dt": dt})
    for table in (pd.DataFrame({"dt": dt}), pl.DataFrame({"dt": dt})):
        np.testing.assert_array_equal(epf.run(KEY, filter_, Y[:4], inputs=table).log_evidence, as_dict.log_evidence)


def test_a_table_of_steps_to_come_needs_no_observations():
    model = ornstein_uhlenbeck()
    filter_ = epf.bootstrap_filter(model, 16)
    results = epf.run(KEY, filter_, Y[:4], inputs={"dt": np.ones(4)})
    ahead = epf.from_table({"day": [1, 3, 4]}, time="day", start=0)
    assert repr(ahead) == "<Series of 3 rows, nothing observed, inputs dt>"
    found = epf.forecast(KEY, filter_, results.final, 3, inputs=ahead)
    expected = epf.forecast(KEY, filter_, results.final, 3, inputs={"dt": [1.0, 2.0, 1.0]})
    np.testing.assert_array_equal(found.y.mean, expected.y.mean)
    with pytest.raises(
        ValueError, match=r"^start: a table without observations needs .* start=series\.times\[-1\], or"
    ):
        epf.from_table({"day": [1, 3, 4]}, time="day")
    with pytest.raises(ValueError, match=r"^inputs: <Series of 4 observations of y> has no inputs. Name columns"):
        epf.forecast(KEY, filter_, results.final, 4, inputs=epf.from_table({"y": Y[:4]}))


@pytest.mark.slow
def test_a_panels_results_are_those_of_each_series_alone():
    lengths = (12, 7)
    panel = epf.panel({f"shop {n}": Y[:n] for n in lengths})
    assert panel.names == ("shop 12", "shop 7")
    assert panel.y.shape == (2, 12)
    keys = jax.random.split(KEY, 2)
    results = epf.replicate(keys, FILTER, panel.y)
    for i, n in enumerate(lengths):
        alone = epf.run(keys[i], FILTER, Y[:n])
        # the same numbers in a program for a batch, which may round otherwise
        np.testing.assert_allclose(panel.last(results.log_evidence)[i], alone.log_evidence[-1], rtol=1e-5)
        np.testing.assert_allclose(panel.last(results.theta.mean)["phi"][i], alone.theta.mean["phi"][-1], rtol=1e-4)
    # padding adds nothing to the evidence but rounding: log N - log N is off by 1e-7 or so a step
    np.testing.assert_allclose(results.log_evidence[:, -1], panel.last(results.log_evidence), atol=1e-5)
    with pytest.raises(ValueError, match=r"^values: expected arrays of shape \(2, 12\)"):
        panel.last(results.levels)


@pytest.mark.slow
def test_a_panel_goes_in_as_it_is_with_its_inputs():
    table = {"who": list("aabab"), "t": [1, 2, 1, 4, 3], "y": [1.0, 2.0, 0.5, 1.5, 1.0]}
    panel, filter_ = epf.panel(table, "y", by="who", time="t"), epf.bootstrap_filter(ornstein_uhlenbeck(), 16)
    keys = jax.random.split(KEY, 2)
    taken_apart = epf.replicate(keys, filter_, panel.y, inputs=panel.inputs, inputs_per_series=True)
    np.testing.assert_array_equal(epf.replicate(keys, filter_, panel).log_evidence, taken_apart.log_evidence)
    assert repr(panel) == "<Panel of 2 series, 2 to 3 observations of y, inputs dt>"


def test_a_long_table_is_a_panel_by_a_column():
    table = pd.DataFrame({"who": list("aabab"), "t": [1, 2, 1, 4, 3], "y": [1.0, 2.0, 5.0, 3.0, 6.0], "u": range(5)})
    panel = epf.panel(table, "y", by="who", time="t", inputs="u")
    np.testing.assert_array_equal(panel.y, [[1.0, 2.0, 3.0], [5.0, 6.0, np.nan]])
    np.testing.assert_array_equal(panel.inputs["dt"], [[1.0, 1.0, 2.0], [2.0, 2.0, 2.0]])
    np.testing.assert_array_equal(panel.inputs["u"], [[0, 1, 3], [2, 4, 4]])  # padded with the last row
    np.testing.assert_array_equal(panel.lengths, [3, 2])


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, r"^series 'b': column '0', row 1.*'x' is not", lambda: epf.panel({"a": [1.0], "b": [1.0, "x"]})),
        (ValueError, r"^series '1': one observation has shape \(2,\)", lambda: epf.panel([np.ones(3), np.ones((3, 2))])),
        (ValueError, r"^tables: expected at least one series", lambda: epf.panel([])),
        (ValueError, r"^series '1': table: expected observations, got a table without rows", lambda: epf.panel([Y, Y[:0]])),
        (TypeError, r"^tables: expected a dict or a list of tables", lambda: epf.panel(pd.DataFrame({"y": [1.0]}))),
        (ValueError, r"^tables: this is one long table with the columns day, y\. .*by='shop'", lambda: epf.panel({"day": [1, 2], "y": [1.0, 2.0]}, time="day")),
        (ValueError, r"^by: the table has no column 'z'; it has y", lambda: epf.panel({"y": [1.0]}, by="z")),
        (ValueError, r"^by: column 'who' is missing in row 1", lambda: epf.panel({"y": [1.0, 2.0], "who": ["a", None]}, by="who")),
        (ValueError, r"^by: column 'who' is missing in row 1", lambda: epf.panel({"y": [1.0, 2.0], "who": ["a", " "]}, by="who")),
        (ValueError, r"^by: column 'who' is missing in row 0", lambda: epf.panel(pd.DataFrame({"y": [1.0], "who": pd.array([pd.NA])}), by="who")),
        (ValueError, r"^table: its columns have unequal lengths", lambda: epf.from_table({"a": [1], "b": [1, 2]})),
        (ValueError, r"^table: two columns have the same name", lambda: epf.from_table(pd.DataFrame([[1, 2]], columns=["a", "a"]))),
        (TypeError, r"^table: expected a DataFrame, a dict of columns", lambda: epf.from_table(np.ones((2, 2, 2)))),
        (ValueError, r"^a.parquet: it cannot be read as Parquet", lambda: epf.from_table("a.parquet", "y")),
        (ValueError, r"^table: expected observations, got a table without columns", lambda: epf.from_table({})),
    ],
)  # fmt: skip
def test_wrong_panels_and_tables_are_refused(kind, message, call):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    ("tables", "columns"),
    [
        ({"a": pd.DataFrame({"a": Y}), "b": pd.DataFrame({"a": Y})}, "a"),
        ({"0": np.ones((3, 2)), "1": np.ones((3, 2))}, "0"),
        ({"0": Y, "1": Y}, "0"),
        ([pd.DataFrame({"t": Y, "y": Y})] * 2, pd.Index(["y"])),
    ],
)
def test_series_called_like_columns_are_series(tables, columns):
    assert epf.panel(tables, columns=columns).y.shape[0] == 2


def test_lists_of_unequal_series_are_told_of_panels():
    with pytest.raises(ValueError, match=r"epf\.panel\(y\)"):
        epf.replicate(jax.random.split(KEY, 2), FILTER, [Y, Y[:5]])


def test_a_csv_file_is_read_with_its_line_numbers(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text('\ufeffdate,"high, day"\n2024-01-01,1.5\n\n2024-01-02,NA\n', encoding="utf-8")
    table, row = read_csv(path)
    assert table == {"date": ["2024-01-01", "2024-01-02"], "high, day": ["1.5", "NA"]}
    assert row(1) == "line 4"
    for text, message in (
        ("a,b\n1\n", "line 2 has 1 cell, and line 1 2 names"),
        ("a,a\n1,2\n", "the same column name twice"),
        ("a\n", "got 1 line"),
        ("", "got 0 lines"),
        ('a\n"1\n', "cannot be read as CSV"),
        ("a\n1\n2,3\n", "line 3 has 2 cells, and line 1 1 name"),
        ("a\n1\n\n2\n\n", r"line 3 is blank \(1 such lines\)\. In a table of one column"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_csv(path)
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match="cannot be read as CSV"):
        read_csv(path)
    with pytest.raises(ValueError, match="No such file"):
        read_csv(tmp_path / "none.csv")


def test_a_column_is_not_both_observed_and_an_input():
    with pytest.raises(ValueError, match="inputs: 'y' is observed, and also given as an input"):
        epf.from_table({"y": [1.0, 2.0], "z": [0.0, 1.0]}, "y", inputs=["z", "y"])
    with pytest.raises(ValueError, match="inputs: 't' is observed, and also given as the time"):
        epf.from_table({"y": [1.0, 2.0], "t": [0.0, 1.0]}, ["y", "t"], time="t")


def test_days_written_as_one_number_are_refused_and_other_numbers_are_not():
    days = [20240130, 20240131, 20240201]
    with pytest.raises(ValueError, match="whole numbers such as 20240130, which look like dates"):
        epf.from_table({"y": [1.0, 2.0, 3.0], "day": days}, "y", time="day")
    series = epf.from_table({"y": [1.0, 2.0, 3.0], "day": [20240130, 20240131, 20240132]}, "y", time="day")
    assert series.inputs["dt"].tolist() == [1, 1, 1]


def test_stamps_of_a_zone_are_shown_as_a_clock_there_shows_them():
    stamps = ["2024-01-01T00:00:00+09:00", "2024-01-02T00:00:00+09:00"]
    series = epf.from_table({"y": [1.0, 2.0], "at": stamps}, "y", time="at", unit="days")
    assert axis_of(series.times).astype("datetime64[D]").astype(str).tolist() == ["2024-01-01", "2024-01-02"]


def test_a_series_inputs_and_others_are_not_both_taken():
    series = epf.from_table({"y": [1.0, 2.0], "z": [0.0, 1.0]}, "y", inputs="z")
    with pytest.raises(ValueError, match="inputs: the series has inputs of its own, z"):
        epf.run(jax.random.key(0), epf.bootstrap_filter(epf.models.ar1(), 10), series, inputs={"z": [0.0, 1.0]})


def test_a_pandas_index_may_be_the_time_and_truth_values_are_numbers():
    days = pd.date_range("2024-01-01", periods=3, name="day")
    table = pd.DataFrame({"y": [1.0, 2.0, 3.0], "holiday": [True, False, True]}, index=days)
    series = epf.from_table(table, "y", time="day", unit="days", inputs=["holiday"])
    np.testing.assert_array_equal(series.inputs["holiday"], [1.0, 0.0, 1.0])
    assert series.example_input == {"dt": 1.0, "holiday": 1.0}
    ahead = np.array(["2024-01-05", "2024-01-06"], "datetime64[ns]")
    np.testing.assert_array_equal(series.stamps_ahead(2, dt=[2.0, 1.0]), ahead)
    same = epf.from_table(table.reset_index().set_index("day", drop=False), "y", time="day", unit="days")
    np.testing.assert_array_equal(same.inputs["dt"], series.inputs["dt"])
    long = table.assign(place=["a", "a", "a"])
    assert epf.panel(long, "y", by="place", time="day", unit="days").names == ("a",)
    hours = epf.from_table(
        {"t": pd.date_range("2024-01-01", periods=9, freq="h"), "y": np.ones(9)}, "y", time="t", unit="days"
    )
    in_single = np.full(3, 1 / 24, np.float32)  # of a day, which is an hour and a tenth of a millisecond
    np.testing.assert_array_equal(hours.stamps_ahead(3, dt=in_single), hours.stamps_ahead(3))
    with pytest.raises(ValueError, match=r"^dt: expected a time step for each of 3 steps, got 2"):
        series.stamps_ahead(3, dt=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"^series: expected a series with at least two time stamps"):
        epf.from_table(table, "y").stamps_ahead(2)


def test_a_panel_is_told_of_replicate():
    panel = epf.panel([[1.0, 2.0], [3.0]])
    with pytest.raises(TypeError, match=r"^y: expected one series, got <Panel of 2 series.*epf\.replicate"):
        epf.run(KEY, FILTER, panel)


def test_a_table_of_steps_to_come_has_their_stamps():
    days = {"day": ["2024-01-05", "2024-01-07"], "heat": [1.0, 2.0]}
    ahead = epf.from_table(days, [], time="day", unit="days", inputs="heat", start=np.datetime64("2024-01-03"))
    assert [str(day)[:10] for day in ahead.stamps_ahead(2)] == days["day"]
    with pytest.raises(ValueError, match=r"^series: expected the filtered series, or one of the 3 future steps"):
        ahead.stamps_ahead(3)


def test_a_parquet_file_is_the_table_that_it_holds(tmp_path, monkeypatch):
    table = pd.DataFrame(
        {"day": pd.date_range("2024-01-01", periods=4), "y": [1.0, np.nan, 3.0, 4.0], "rain": [0, 1, 0, 2]}
    )
    table.to_parquet(tmp_path / "data.parquet")
    found = epf.from_table(tmp_path / "data.parquet", "y", time="day", unit="days", inputs="rain")
    expected = epf.from_table(table, "y", time="day", unit="days", inputs="rain")
    jax.tree.map(np.testing.assert_array_equal, (found.y, found.inputs), (expected.y, expected.inputs))
    at_the_shell = series_in(tmp_path / "data.parquet", Reading(("y",), "day", "days", None, ("rain",)))
    jax.tree.map(np.testing.assert_array_equal, (found.y, found.inputs), (at_the_shell.y[:, 0], at_the_shell.inputs))
    (tmp_path / "text.parquet").write_text("y\n1\n")
    with pytest.raises(ValueError, match=r"text.parquet: it cannot be read as Parquet"):
        epf.from_table(tmp_path / "text.parquet", "y")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"data.parquet: Parquet is read by pyarrow: pip install"):
        epf.from_table(tmp_path / "data.parquet", "y")
