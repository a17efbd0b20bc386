r"""Structural time series in a line: a level, a slope, a season, a cycle, an autoregression and regressors, added up.

.. math::
    y_t &= level_t + season_t + cycle_t + ar_t + regression_t + N(0, \sigma^2) \\
    level_t &= level_{t-1} + trend_{t-1} + N(0, \sigma_{level}^2), \\
    trend_t &= trend_{t-1} + N(0, \sigma_{trend}^2) \\
    season_t &= -(season_{t-1} + \dots + season_{t-s+1}) + N(0, \sigma_{season}^2) \\
    cycle_t &= \rho (\cos\lambda \; cycle_{t-1} + \sin\lambda \; cycle^*_{t-1}) + N(0, \sigma_{cycle}^2), \\
    cycle^*_t &= \rho (\cos\lambda \; cycle^*_{t-1} - \sin\lambda \; cycle_{t-1}) + N(0, \sigma_{cycle}^2), \qquad
                 \lambda = 2 \pi / period \\
    ar_t &= \phi_1 ar_{t-1} + \dots + \phi_p ar_{t-p} + N(0, \sigma_{ar}^2), \qquad regression_t = \beta^T u_t

Harvey (1989), *Forecasting, structural time series models and the Kalman filter*. Other families than the Gaussian put
another law of y_t about the sum, or, where y_t counts, about its exponential.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from epf_jax.core.checks import check_whole_number
from epf_jax.core.number_arrays import given_numbers
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel


class _Scales(NamedTuple):
    """Where a series is, how widely it spreads, and how much it changes from one observation to the next."""

    centre: float
    spread: float
    change: float


class _Block(NamedTuple):
    """One component, whose first state is added to the sum.

    Attributes:
        names: of its first states; those after them are lags or helpers.
        noises: the name of each state's noise, None where it has none.
        step: `step(theta, x, u)`, the means of its states given the last ones.
        start: means and sds of its states before the first observation.
        prior: of its parameters other than noise scales.
    """

    names: tuple[str, ...]
    noises: tuple[str | None, ...]
    step: Callable[[Theta, Float[Array, " k"], Any], Float[Array, " k"]]
    start: tuple[Any, Any]
    prior: dict[str, Any]


def structural(
    y: Any,
    *,
    level: bool = True,
    trend: bool = False,
    season: int = 0,
    cycle: float = 0,
    ar: int = 0,
    regressors: int = 0,
    family: str = "gaussian",
) -> StateSpaceModel:
    """A structural model of a series, its priors weakly informative on the scale of `y`.

    Args:
        y: the series, or a part of it. Noise scales are half-normal with the standard deviation of its changes; the
            level begins within two standard deviations of its mean. Counts are taken by their logarithms.
        level: whether there is a level that wanders.
        trend: whether the level has a slope, which wanders, too.
        season: observations in a season, such as 12 for months; 0 for none.
        cycle: about how many observations a cycle takes, which is then learned; 0 for none.
        ar: lags of an autoregression; 0 for none.
        regressors: numbers in a row of `inputs`, of shape (T, regressors), about one in size; 0 for none. Columns of a
            table are taken in the order of their names.
        family: the law of y_t: "gaussian", "student", "poisson" or "negative_binomial".

    `state_names` are those of the components, so that `learned.smooth(key).plot(y)` shows them apart.
    """
    if family not in _FAMILIES:
        raise ValueError(f"family: expected one of {', '.join(_FAMILIES)}, got {family!r}. Give one of these names.")
    for name, number in (("season", season), ("ar", ar), ("regressors", regressors)):
        check_whole_number(name, number, least=0, hint="Give 0 to leave it out.")
    of = _scales(y, counts=family in ("poisson", "negative_binomial"))
    blocks = [
        *([_level(of, trend)] if level else []),
        *([_season(of, season)] if season > 1 else []),
        *([_cycle(of, cycle)] if cycle else []),
        *([_ar(of, ar)] if ar else []),
        *([_regression(of, regressors)] if regressors else []),
    ]
    if not blocks:
        raise ValueError("structural: no component is left. Write level=True, say.")
    return _model(of, blocks, *_FAMILIES[family], np.zeros(regressors) if regressors else None)


def _scales(y: Any, counts: bool) -> _Scales:
    values = given_numbers("y", y, "Give the series.").astype(float).ravel()
    values = values[np.isfinite(values)]
    values = np.log(np.maximum(values, 0.0) + 0.5) if counts else values
    if len(values) < 2 or np.ptp(values) == 0:
        raise ValueError("y: expected a series of at least two different numbers. Priors have its scale.")
    return _Scales(float(values.mean()), float(values.std()), float(np.std(np.diff(values))))


# ---------------------------------------------------------------------------------------------------- components


def _level(of: _Scales, trend: bool) -> _Block:
    begin = (of.centre, 2 * of.spread)
    if not trend:
        return _Block(("level",), ("level",), lambda theta, x, u: x, ([begin[0]], [begin[1]]), {})
    names = ("level", "trend")
    start = ([begin[0], 0.0], [begin[1], of.change])
    return _Block(names, names, lambda theta, x, u: jnp.stack([x[0] + x[1], x[1]]), start, {})


def _season(of: _Scales, length: int) -> _Block:
    lags = length - 2
    start = (np.zeros(lags + 1), np.full(lags + 1, of.spread))
    step = lambda theta, x, u: jnp.concatenate([-jnp.sum(x, keepdims=True), x[:-1]])  # noqa: E731
    return _Block(("season",), ("season", *[None] * lags), step, start, {})


def _cycle(of: _Scales, period: float) -> _Block:
    def step(theta, x, u):
        angle = 2 * np.pi / theta["cycle_period"]
        c, s = jnp.cos(angle), jnp.sin(angle)
        return theta["cycle_damping"] * jnp.stack([c * x[0] + s * x[1], c * x[1] - s * x[0]])

    prior = {"cycle_period": dist.LogNormal(np.log(period), 0.3), "cycle_damping": dist.Beta(8.0, 2.0)}
    return _Block(("cycle",), ("cycle", "cycle"), step, (np.zeros(2), np.full(2, of.spread)), prior)


def _ar(of: _Scales, lags: int) -> _Block:
    def step(theta, x, u):
        return jnp.concatenate([jnp.sum(theta["ar_coefficients"] * x, keepdims=True), x[:-1]])

    prior = {"ar_coefficients": dist.Normal(np.zeros(lags), 0.5).to_event(1)}
    return _Block(("ar",), ("ar", *[None] * (lags - 1)), step, (np.zeros(lags), np.full(lags, of.spread)), prior)


def _regression(of: _Scales, num: int) -> _Block:
    prior = {"coefficients": dist.Normal(np.zeros(num), 2 * of.spread).to_event(1)}

    def step(theta, x, u):
        row = jnp.stack(jax.tree.leaves(u)) if isinstance(u, dict) else u
        return jnp.sum(theta["coefficients"] * row, keepdims=True)

    return _Block(("regression",), (None,), step, ([0.0], [of.spread]), prior)


# ------------------------------------------------------------------------------------------------------ families


def _gaussian(theta, mean):
    return dist.Normal(mean, theta["observation_noise"])


def _student(theta, mean):
    return dist.StudentT(theta["degrees"], mean, theta["observation_noise"])


def _poisson(theta, mean):
    return dist.Poisson(jnp.exp(mean))


def _negative_binomial(theta, mean):
    return dist.NegativeBinomial2(jnp.exp(mean), theta["overdispersion"] ** -2)


_FAMILIES = {
    "gaussian": (_gaussian, lambda of: {"observation_noise": dist.HalfNormal(of.change)}),
    "student": (
        _student,
        lambda of: {"observation_noise": dist.HalfNormal(of.change), "degrees": dist.Gamma(2.0, 0.1)},
    ),
    "poisson": (_poisson, lambda of: {}),
    "negative_binomial": (_negative_binomial, lambda of: {"overdispersion": dist.HalfNormal(1.0)}),
}


def _model(
    of: _Scales, blocks: list[_Block], law: Callable, prior_of: Callable, row: np.ndarray | None
) -> StateSpaceModel:
    """The model of a sum of components, their named states before all others."""
    ends = list(itertools.pairwise(np.cumsum([0, *(len(block.noises) for block in blocks)])))
    firsts = [first for first, _ in ends]
    named = [first + i for block, first in zip(blocks, firsts, strict=True) for i in range(len(block.names))]
    order = np.array([*named, *(i for i in range(ends[-1][1]) if i not in named)])
    places = [np.argsort(order)[first:end] for first, end in ends]
    noises = np.array([noise for block in blocks for noise in block.noises], object)[order]
    masks = {f"{name}_noise": (noises == name).astype(float) for name in noises if name}
    mean, sd = (np.concatenate([block.start[i] for block in blocks])[order] for i in (0, 1))
    summed = np.isin(order, firsts).astype(float)

    def transition(theta, x, u):
        ahead = [block.step(theta, x[place], u) for block, place in zip(blocks, places, strict=True)]
        scale = sum(theta[name] * mask for name, mask in masks.items())
        return dist.Normal(jnp.concatenate(ahead)[order], scale, validate_args=False).to_event(1)

    prior = {name: dist.HalfNormal(of.change) for name in masks}
    for block in blocks:
        prior |= block.prior
    return StateSpaceModel(
        prior=prior | prior_of(of),
        initial=lambda theta: dist.Normal(mean, sd).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: law(theta, jnp.sum(summed * x)),
        row=row,
        state_names=tuple(name for block in blocks for name in block.names),
    )
