"""The forecaster hands a series to `learn`, and its predictions are the forecast's numbers, in kind."""

from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
import tiny

import epf_jax as epf
from epf_jax.learning import forecaster

Y = tiny.autoregression(12).astype(float)
MODEL = epf.models.ar1()
MONTHS = pd.date_range("2024-01-01", periods=12, freq="MS", name="month")


@pytest.fixture(scope="module")
def draws():
    return epf.run(jax.random.key(1), epf.bootstrap_filter(MODEL, 64), Y).final


# Steps and levels are few, because each pair of them is a program.


@pytest.fixture
def given(draws, monkeypatch):
    """What `learn` was given last."""
    seen = {}

    def learned(key, model, y, *, inputs, seconds):
        seen.update(model=model, y=np.asarray(y), inputs=inputs, seconds=seconds)
        update = lambda key, y, **options: learned(key, model, y, **options)  # noqa: E731
        return SimpleNamespace(model=MODEL, draws=draws, y=seen["y"], update=update)

    monkeypatch.setattr(forecaster, "learn", learned)
    return seen


def ahead(draws, levels):
    key = jax.random.fold_in(jax.random.key(0), 12)
    return jax.tree.map(np.asarray, epf.forecast(key, MODEL, draws, 3, levels=levels).y)


def test_predictions_are_those_of_the_forecast_at_the_steps_asked_for(draws, given):
    fitted = epf.Forecaster(MODEL, seconds=5.0).fit(Y, fh=[1, 3])
    assert given["model"] is MODEL
    assert given["seconds"] == 5.0
    np.testing.assert_allclose(fitted.predict(), ahead(draws, (0.5,)).mean[[0, 2]])
    np.testing.assert_allclose(fitted.predict(3), ahead(draws, (0.5,)).mean[[2]])
    quantiles = ahead(draws, (0.05, 0.5, 0.95)).quantiles
    np.testing.assert_allclose(fitted.predict_quantiles([1, 2, 3], alpha=[0.5, 0.05, 0.95]), quantiles[:, [1, 0, 2]])
    np.testing.assert_allclose(fitted.predict_interval([1, 2, 3], coverage=0.9), quantiles[:, [0, 2]], rtol=1e-5)


def test_pandas_goes_in_and_comes_back_with_the_index_that_follows(given):
    fitted = epf.Forecaster(MODEL).fit(pd.Series(Y, MONTHS, name="sales"), fh=[1, 3])
    np.testing.assert_array_equal(given["y"], Y)
    found = fitted.predict()
    assert found.name == "sales"
    assert found.index.tolist() == [pd.Timestamp("2025-01-01"), pd.Timestamp("2025-03-01")]
    interval = fitted.predict_interval(coverage=[0.5, 0.9])
    assert interval.columns.tolist() == [("sales", c, end) for c in (0.5, 0.9) for end in ("lower", "upper")]
    assert (interval["sales", 0.9, "lower"] < interval["sales", 0.5, "lower"]).all()
    periods = epf.Forecaster(MODEL).fit(pd.Series(Y, MONTHS.to_period("M")), fh=3).predict()
    assert [str(period) for period in periods.index] == ["2025-03"]
    assert epf.Forecaster(MODEL).fit(pd.Series(Y), fh=3).predict().index.tolist() == [14]


def test_polars_goes_in_and_comes_back(given):
    fitted = epf.Forecaster(MODEL).fit(pl.Series("sales", Y), fh=[1, 3])
    assert fitted.predict().name == "sales"
    found = fitted.predict_quantiles(alpha=[0.5, 0.05, 0.95])
    assert found.columns == ["sales_0.5", "sales_0.05", "sales_0.95"]


def test_an_update_goes_on_after_the_series_that_was_seen(given):
    y = pd.Series(Y, MONTHS)
    fitted = epf.Forecaster(MODEL).fit(y[:8], fh=[1, 3]).update(y[8:], X=np.ones(4))
    np.testing.assert_array_equal(given["y"], Y[8:])
    np.testing.assert_array_equal(given["inputs"], np.ones(4))
    assert fitted.predict().index[0] == pd.Timestamp("2025-01-01")


def test_a_model_may_be_made_of_the_series(given):
    epf.Forecaster(partial(epf.models.structural, trend=True)).fit(Y)
    assert given["model"].state_names == ("level", "trend")


def test_arguments_are_got_and_set_as_scikit_learn_does():
    made = epf.Forecaster(MODEL, seed=3)
    assert type(made)(**made.get_params()).get_params() == {"model": MODEL, "seconds": 60.0, "seed": 3}
    assert made.set_params(seconds=2.0).seconds == 2.0
    with pytest.raises(ValueError, match="nodes: a Forecaster has no such argument"):
        made.set_params(nodes=1)
    with pytest.raises(ValueError, match=r"Forecaster: it has seen no series. Call fit\(y\) first."):
        made.predict(1)


@pytest.mark.slow
def test_a_forecaster_learns_and_goes_on():
    fitted = epf.Forecaster(MODEL, seconds=300.0).fit(Y[:10]).update(Y[10:])
    assert fitted.learned_.trusted
    assert len(fitted.learned_.y) == 12
    assert np.isfinite(fitted.predict([1, 2])).all()
