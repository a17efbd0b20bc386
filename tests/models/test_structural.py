"""Structural models: the evidence of statsmodels given the same parameters, the components that are named, families."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from pages import ROOT
from statsmodels.datasets import nile
from statsmodels.tsa.api import UnobservedComponents

import epf_jax as epf
from epf_jax import exact

DATA = ROOT / "notebooks" / "data"
NOISES = {"level": 0.7, "trend": 0.1, "season": 0.3, "cycle": 0.4, "ar": 0.5, "observation": 0.8}
CYCLE = {"cycle_period": 10.0, "cycle_damping": 0.9}
COEFFICIENTS = {"ar_coefficients": np.array([0.5, -0.2]), "coefficients": np.array([0.3, -0.6])}
THEIRS = {"frequency.cycle": 2 * np.pi / 10, "damping.cycle": 0.9}
THEIRS |= {"ar.L1": 0.5, "ar.L2": -0.2, "beta.x1": 0.3, "beta.x2": -0.6}
THEIRS |= {f"sigma2.{name}": noise**2 for name, noise in NOISES.items()}
THEIRS |= {"sigma2.seasonal": NOISES["season"] ** 2, "sigma2.irregular": NOISES["observation"] ** 2}


def test_the_evidence_is_that_of_statsmodels_given_the_parameters():
    rng = np.random.default_rng(0)
    y, inputs = 10.0 + np.cumsum(rng.normal(size=40)), rng.normal(size=(40, 2))
    y[7] = np.nan
    with jax.enable_x64(True):
        model = epf.models.structural(y, trend=True, season=4, cycle=9, ar=2, regressors=2)
        theta = {f"{name}_noise": noise for name, noise in NOISES.items()} | CYCLE | COEFFICIENTS
        ours = float(exact.kalman_log_evidence(model, theta, y, inputs=inputs)[-1])
        start = model.initial(theta).base_dist
    kinds = {"seasonal": 4, "cycle": True, "stochastic_cycle": True, "damped_cycle": True, "autoregressive": 2}
    theirs = UnobservedComponents(y, "lltrend", exog=inputs, **kinds)
    params = np.array([THEIRS[name] for name in theirs.param_names])
    theirs.update(params)
    # Ours are level, trend, season, cycle, ar, regression, two lags of the season, the cycle's helper, a lag of ar.
    order = [0, 1, 2, 6, 7, 3, 8, 4, 9]
    mean, covariance = np.asarray(start.loc)[order], np.diag(np.asarray(start.scale)[order] ** 2)
    T, R, Q = (theirs.ssm[name] for name in ("transition", "selection", "state_cov"))
    theirs.ssm.initialize_known(T @ mean, T @ covariance @ T.T + R @ Q @ R.T)  # theirs begins at the first observation
    theirs.ssm.loglikelihood_burn = 0
    assert ours == pytest.approx(theirs.loglike(params), abs=1e-6)


def test_a_model_has_the_components_that_it_is_asked_for():
    y = np.array([1.0, 3.0, 2.0])
    assert epf.models.structural(y).state_names == ("level",)
    assert set(epf.models.structural(y).prior) == {"level_noise", "observation_noise"}
    without_level = epf.models.structural(y, level=False, ar=2, season=3)
    assert without_level.state_names == ("season", "ar")
    assert without_level.shapes.x.shape == (4,)


def test_priors_have_the_scale_of_the_data():
    y = np.array([1.0, 3.0, 2.0, np.nan, 5.0])
    small, large = (epf.models.structural(scale * y, trend=True) for scale in (1.0, 1000.0))
    assert large.prior["level_noise"].scale == pytest.approx(1000 * small.prior["level_noise"].scale)
    np.testing.assert_allclose(large.initial({}).base_dist.loc, [2750.0, 0.0])
    np.testing.assert_allclose(large.initial({}).base_dist.scale, 1000 * small.initial({}).base_dist.scale)


@pytest.mark.parametrize(
    ("family", "theta", "law"),
    [
        ("gaussian", {"observation_noise": 0.5}, dist.Normal(1.5, 0.5)),
        ("student", {"observation_noise": 0.5, "degrees": 4.0}, dist.StudentT(4.0, 1.5, 0.5)),
        ("poisson", {}, dist.Poisson(np.exp(1.5))),
        ("negative_binomial", {"overdispersion": 0.5}, dist.NegativeBinomial2(np.exp(1.5), 4.0)),
    ],
)
def test_a_family_is_the_law_of_y_about_the_sum_of_the_components(family, theta, law):
    model = epf.models.structural(np.array([1.0, 3.0, 2.0]), season=3, family=family)
    found = model.observation(theta, jnp.array([1.0, 0.5, 9.0]), 1)  # level, season and its lag, which does not count
    assert float(found.log_prob(2.0)) == pytest.approx(float(law.log_prob(2.0)), rel=1e-5)
    assert set(theta) <= set(model.prior)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"y": [2.0, 2.0]}, "y: expected a series of at least two different numbers. Priors have its scale."),
        ({"family": "normal"}, "family: expected one of gaussian, student, poisson, negative_binomial, got 'normal'."),
        ({"season": 1.5}, "season: expected a whole number of at least 0, got 1.5. Give 0 to leave it out."),
        ({"level": False}, "structural: no component is left. Write level=True, say."),
    ],
)
def test_what_makes_no_structural_model_is_told_of(options, told):
    with pytest.raises(ValueError, match=told.replace(".", r"\.")):
        epf.models.structural(**({"y": [1.0, 2.0]} | options))


def learned_and_fitted(y, **options):
    """What learn says of a series, and the scales that statsmodels' maximum likelihood gives."""
    model = epf.models.structural(y, **options)
    learned = epf.learn(jax.random.key(0), model, y, seconds=300)
    theirs = UnobservedComponents(y, "lltrend" if "trend" in options else "llevel", seasonal=options.get("season"))
    fitted = theirs.fit(theirs.fit(disp=0, method="powell").params, disp=0)
    found = dict(zip(theirs.param_names, np.sqrt(np.abs(fitted.params)), strict=True))
    names = {"level": "level", "trend": "trend", "season": "seasonal", "observation": "irregular"}
    here = {ours: found[f"sigma2.{name}"] for ours, name in names.items() if f"sigma2.{name}" in found}
    return learned, {f"{ours}_noise": scale for ours, scale in here.items()}


def check_near(learned, scales):
    """Whether the answer is trusted, and each posterior mean within 1.5 posterior sds of an estimate."""
    assert learned.trusted
    for name, scale in scales.items():
        assert abs(learned.theta.mean[name] - scale) < 1.5 * learned.theta.sd[name], name


@pytest.mark.slow
def test_the_nile_is_that_of_statsmodels_and_of_r():
    learned, scales = learned_and_fitted(nile.load_pandas().data["volume"].to_numpy())
    check_near(learned, scales)
    check_near(learned, {"level_noise": 1469**0.5, "observation_noise": 15099**0.5})  # R's StructTS(Nile, "level")


@pytest.mark.slow
def test_gas_is_that_of_statsmodels():
    y = np.log(pd.read_csv(DATA / "ukgas.csv", comment="#")["therms"].to_numpy(float))
    check_near(*learned_and_fitted(y, trend=True, season=4))


@pytest.mark.slow
def test_airline_passengers_are_those_of_statsmodels_and_come_apart():
    y = np.log(pd.read_csv(DATA / "airline.csv", comment="#")["passengers"].to_numpy(float))
    learned, scales = learned_and_fitted(y, trend=True, season=12)
    check_near(learned, scales)
    smoothed = learned.smooth(jax.random.key(1))
    level, season = np.asarray(smoothed.x.mean)[:, 0], np.asarray(smoothed.x.mean)[:, 2]
    np.testing.assert_allclose(level + season, y, atol=0.03)
    figure = smoothed.plot(y)
    assert [ax.get_ylabel() for ax in figure.axes] == ["y", "level", "trend", "season"]
    plt.close(figure)
    ahead = learned.forecast(jax.random.key(2), 12)
    assert abs(np.asarray(ahead.y.mean) - y[-12:] - 0.1).max() < 0.1  # about a tenth more than the last year


@pytest.mark.slow
def test_weekly_counts_are_learned_with_the_coefficients_of_their_year():
    rng, t = np.random.default_rng(3), np.arange(1, 201)
    year = np.stack([np.sin(2 * np.pi * t / 52), np.cos(2 * np.pi * t / 52)], axis=1)
    rate = np.exp(2.0 + np.cumsum(0.08 * rng.normal(size=200)) + year @ [0.5, -0.3])
    y = rng.poisson(rate).astype(float)
    model = epf.models.structural(y, regressors=2, family="poisson")
    learned = epf.learn(jax.random.key(0), model, y, inputs=year, seconds=300)
    assert learned.trusted
    off = (learned.theta.mean["coefficients"] - np.array([0.5, -0.3])) / learned.theta.sd["coefficients"]
    assert np.abs(off).max() < 4  # the truth lies within a few posterior sds
