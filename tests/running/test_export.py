"""Results for other libraries hold the numbers of the run, under names that one can read."""

import sys
import warnings

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
import tiny
from conformance import vector_theta

import epf_jax as epf
from epf_jax.offline.chains import chains_of

T, N = 12, 64
MODEL = epf.models.ar1()
FILTER = epf.bootstrap_filter(MODEL, N)
Y = tiny.autoregression(T)


@pytest.fixture(scope="module")
def one():
    return epf.run(jax.random.key(1), FILTER, Y, diagnostics=True)


@pytest.fixture(scope="module")
def three():
    return epf.replicate(jax.random.split(jax.random.key(2), 3), FILTER, Y)


@pytest.fixture(scope="module")
def vectors():
    model = vector_theta()
    y = epf.simulate(jax.random.key(0), model, np.array([0.7, 0.4]), 6)[1]
    return epf.run(jax.random.key(1), epf.bootstrap_filter(model, 32), y)


def test_the_table_has_a_row_for_every_time_and_parameter(one):
    table = one.to_pandas()
    assert list(table.columns) == ["t", "parameter", "mean", "sd", "5%", "25%", "50%", "75%", "95%"]
    assert table["t"].tolist() == list(range(1, T + 1))
    np.testing.assert_array_equal(table["mean"], one.theta.mean["phi"])
    np.testing.assert_array_equal(table[["5%", "95%"]], one.theta.quantiles["phi"][:, [0, -1]])
    assert one.to_pandas(states=True)["parameter"].unique().tolist() == ["phi", "x"]


def dated(num):
    days = [f"2024-01-{day + 1:02d}" for day in range(num)]
    return epf.from_table({"date": days, "price": np.asarray(Y)[:num]}, "price", time="date", unit="days")


def test_a_panels_table_has_the_names_of_its_series_and_ends_where_they_do(three):
    panel = epf.panel({"north": np.asarray(Y), "south": np.asarray(Y)[:5], "west": np.asarray(Y)[:2]})
    table = three.to_pandas(panel)
    assert table.groupby("run", sort=False)["t"].max().to_dict() == {"north": T, "south": 5, "west": 2}
    np.testing.assert_array_equal(table[table["run"] == "south"]["mean"], three.theta.mean["phi"][1, :5])
    assert "time" not in table
    stamps = np.datetime64("2024-01-01") + 7 * np.arange(len(Y))
    dated = {n: {"y": np.asarray(Y)[:k], "week": stamps[:k]} for n, k in (("north", len(Y)), ("south", 5), ("west", 2))}
    table = three.to_pandas(epf.panel(dated, "y", time="week", unit="weeks"))
    assert table[table["run"] == "west"]["time"].dt.strftime("%m-%d").unique().tolist() == ["01-01", "01-08"]
    with pytest.raises(ValueError, match=r"^series: expected the panel of these runs, \(3,\) of them, got <Panel of 2"):
        three.to_pandas(epf.panel([np.asarray(Y), np.asarray(Y)]))


def test_a_run_without_quantiles_is_a_table_without_their_columns(one):
    table = one._replace(
        levels=one.levels[:0],
        theta=one.theta._replace(quantiles=jax.tree.map(lambda leaf: leaf[..., :0], one.theta.quantiles)),
    ).to_pandas()
    assert list(table.columns) == ["t", "parameter", "mean", "sd"]


def test_time_stamps_stand_beside_the_steps(one, three):
    assert list(one.to_pandas(dated(T))["time"].astype(str)[:2]) == ["2024-01-01", "2024-01-02"]
    assert len(three.to_pandas(dated(T))) == 3 * T
    assert str(one.to_xarray(dated(T))["time"].values[-1])[:10] == f"2024-01-{T}"
    with pytest.raises(ValueError, match=f"series: expected the {T} observations of the run, got <Series of 5"):
        one.to_pandas(dated(5))
    with pytest.raises(ValueError, match=r"series: expected what epf\.from_table"):
        one.to_xarray(np.asarray(Y))


def test_one_run_of_many_is_taken_out(three):
    one = three.one(1)
    np.testing.assert_array_equal(one.theta.mean["phi"], three.theta.mean["phi"][1])
    assert one.levels.shape == (5,)
    with pytest.raises(IndexError, match="there is no run 3 in results of 3"):
        three.one(3)


@pytest.mark.filterwarnings("ignore:The chains disagree")
def test_chains_go_to_arviz_as_they_are():
    theta, x = {"phi": np.arange(8.0).reshape(2, 4)}, np.arange(16.0).reshape(2, 4, 2)
    rest = {"num_steps": T, "levels": (0.5,), "description": "test"}
    results = chains_of(theta, x, np.zeros((2, 4)), np.ones((2, 4)), np.zeros((2, 4)), **rest)
    found = results.to_arviz(np.asarray(Y))
    np.testing.assert_array_equal(found["posterior"]["phi"].values, theta["phi"])
    np.testing.assert_array_equal(found["posterior"]["x"].values, x)
    assert found["sample_stats"]["log_marginal_likelihood"].shape == (2, 4)
    assert found["observed_data"]["y"].shape == np.shape(Y)
    assert results.to_pandas(dated(T))[["t", "time"]].astype(str).values.tolist() == [[str(T), f"2024-01-{T}"]]


def test_vectors_get_a_row_for_each_component(vectors):
    table = vectors.to_pandas(states=True)
    assert table["parameter"].unique().tolist() == ["theta[0]", "theta[1]", "x[0]", "x[1]"]
    np.testing.assert_array_equal(table.loc[table["parameter"] == "theta[1]", "sd"], vectors.theta.sd[:, 1])


def test_many_runs_are_told_apart_by_a_column_and_by_a_dimension(three):
    table = three.to_pandas()
    assert table.groupby("run").size().tolist() == [T, T, T]
    np.testing.assert_array_equal(table.loc[table["run"] == 2, "mean"], three.theta.mean["phi"][2])
    dataset = three.to_xarray()
    assert dataset["phi_mean"].dims == ("run", "t")
    np.testing.assert_array_equal(dataset["phi_mean"], three.theta.mean["phi"])


@pytest.mark.slow
def test_a_run_that_went_on_goes_on_counting(one):
    more = epf.run(jax.random.key(1), FILTER, Y[:3], state=one.final)
    assert more.to_pandas()["t"].tolist() == [T + 1, T + 2, T + 3]


def test_the_dataset_survives_a_file(one, vectors, tmp_path):
    import xarray

    for results in (one, vectors):
        dataset = results.to_xarray()
        dataset.to_netcdf(tmp_path / "results.nc", engine="h5netcdf")
        back = xarray.load_dataset(tmp_path / "results.nc", engine="h5netcdf")
        xarray.testing.assert_equal(back, dataset)
    dataset = one.to_xarray()
    assert dataset["phi_quantile"].dims == ("t", "level")
    np.testing.assert_array_equal(dataset["log_evidence"], one.log_evidence)
    np.testing.assert_array_equal(dataset["pit"], one.diagnostics.pit)
    assert dataset.attrs["inference_library"] == "epf_jax"


def test_the_table_survives_a_parquet_file(one, tmp_path):
    import pandas

    one.to_pandas().to_parquet(tmp_path / "results.parquet")
    pandas.testing.assert_frame_equal(pandas.read_parquet(tmp_path / "results.parquet"), one.to_pandas())


def test_arviz_gets_draws_with_the_posteriors_mean_and_sd(one):
    import arviz

    w, phi = np.arange(1, N + 1) / np.arange(1, N + 1).sum(), np.linspace(-1.0, 1.0, N)
    uneven = one._replace(final=one.final._replace(log_weights=np.log(w), theta={"phi": phi}))
    data = uneven.to_arviz(np.asarray(Y))
    draws = np.asarray(data["posterior"]["phi"])
    assert draws.shape == (1, N)
    assert abs(draws.mean() - w @ phi) < 2 / N  # phi in order, picked systematically: off by one spacing at most
    counts = np.array([(draws == value).sum() for value in phi])
    assert np.all(np.abs(counts - N * w) < 1 + 1e-3)
    summary = arviz.summary(data, var_names=["phi"])
    assert summary.index.tolist() == ["phi"]
    np.testing.assert_array_equal(data["observed_data"]["y"], Y)


def test_runs_are_chains_and_vectors_keep_their_shape(three, vectors):
    assert three.to_arviz()["posterior"]["phi"].shape == (3, N)
    posterior = vectors.to_arviz()["posterior"]
    assert posterior["theta"].dims == ("chain", "draw", "theta_dim_0")
    assert posterior["x"].shape == (1, 32, 2)


def test_arviz_from_1_on_gets_the_tree_that_it_expects(one, monkeypatch):
    import arviz
    import xarray

    class ArvizOne:
        """ArviZ 1 takes an xarray.DataTree with the same groups; its name InferenceData stands for DataTree itself."""

        __version__ = "1.3.0"
        InferenceData = xarray.DataTree

    usual = one.to_arviz()
    monkeypatch.setitem(sys.modules, "arviz", ArvizOne)
    tree = one.to_arviz()
    assert isinstance(tree, xarray.DataTree)
    posterior = usual["posterior"]
    if arviz.__version__ < "1":
        assert isinstance(usual, arviz.InferenceData)
    else:
        posterior = posterior.to_dataset()
    xarray.testing.assert_equal(tree["posterior"].to_dataset(), posterior)


def test_what_cannot_be_exported_is_refused_by_name(one, monkeypatch):
    with pytest.raises(ValueError, match=r"^y: expected the 12 observations of the run, got 3"):
        one.to_arviz(np.zeros(3))
    named_x = one._replace(theta=epf.Summary(*({"x": part["phi"]} for part in one.theta)))
    with pytest.raises(ValueError, match=r"^results: a parameter is called 'x'.*Give the parameter another name"):
        named_x.to_xarray()
    for library, call in (("pandas", one.to_pandas), ("xarray", one.to_xarray), ("arviz", one.to_arviz)):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ImportError, match=rf"to_{library} needs {library}: pip install -e '.*\[export\]'"):
            call()


@pytest.mark.slow
def test_with_nothing_to_learn_the_table_is_empty_and_the_states_are_there():
    known = epf.StateSpaceModel(
        {}, lambda t: dist.Normal(0.0, 1.0), lambda t, x, u: dist.Normal(x, 1.0), lambda t, x, u: dist.Normal(x, 1.0)
    )
    results = epf.run(jax.random.key(1), epf.bootstrap_filter(known, 16), Y[:3])
    assert len(results.to_pandas()) == 0
    assert len(results.to_pandas(states=True)) == 3
    assert "x_mean" in results.to_xarray()


@pytest.mark.slow
def test_importing_the_library_imports_no_table_and_no_plot():
    import subprocess

    heavy = ("pandas", "xarray", "arviz", "matplotlib", "statsmodels", "scipy.stats")
    code = f"import sys, epf_jax; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_arvizs_table_of_models_is_that_of_their_one_step_ahead_scores(one, three):
    import arviz

    scores = np.diff(np.asarray(one.log_evidence, float), prepend=0.0)
    data = one.to_arviz()
    np.testing.assert_allclose(data["log_likelihood"]["y"].sel(chain=0, draw=5), scores)
    assert data["log_likelihood"]["y"].dims == ("chain", "draw", "t")
    assert three.to_arviz()["log_likelihood"]["y"].shape[::2] == (3, T)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto", UserWarning)
        found = arviz.loo(data, pointwise=True)
    assert found["elpd_loo"] == pytest.approx(float(one.log_evidence[-1]), abs=1e-4)
    assert found["se"] == pytest.approx(np.sqrt(T) * scores.std(), rel=1e-4)
    np.testing.assert_allclose(found["loo_i"], scores, rtol=1e-4)
