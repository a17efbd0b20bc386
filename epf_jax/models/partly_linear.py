"""Models that are linear in most of their parameters, which `decomposed` takes apart: four to seven unknowns each."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from epf_jax.models.state_space import StateSpaceModel


def sine_and_line() -> StateSpaceModel:
    r""":math:`x_t = a + b x_{t-1} + \sin(\theta x_{t-1}) + N(0, s^2)`, the paper's first example with a line added."""
    return StateSpaceModel(
        prior={
            "a": dist.Normal(0.0, 1.0),
            "b": dist.Normal(0.0, 0.5),
            "s": dist.LogNormal(0.0, 0.5),
            "theta": dist.Normal(0.0, 0.5),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(
            theta["a"] + theta["b"] * x + jnp.sin(theta["theta"] * x), theta["s"]
        ),
        observation=lambda theta, x, u: dist.Normal(x, 0.1),
    )


def smooth_transition() -> StateSpaceModel:
    """A smooth-transition autoregression, the paper's third example, with every parameter unknown."""

    def transition(theta, x, u):
        G = jax.nn.sigmoid(theta["gamma"] * (x - theta["c"]))
        low, high = theta["low"] + theta["low_memory"] * x, theta["high"] + theta["high_memory"] * x
        return dist.Normal((1 - G) * low + G * high, theta["noise"])

    return StateSpaceModel(
        prior={
            "low": dist.Normal(0.0, 0.5),
            "low_memory": dist.Normal(0.5, 0.5),
            "high": dist.Normal(0.0, 0.5),
            "high_memory": dist.Normal(0.5, 0.5),
            "gamma": dist.LogNormal(0.5, 0.5),
            "c": dist.Normal(1.0, 1.0),
            "noise": dist.LogNormal(0.0, 0.5),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, 0.1),
    )


def seasonal_growth() -> StateSpaceModel:
    """Theta-logistic growth of a log-population, moved by a season, seen as counts."""

    def transition(theta, x, u):
        season = theta["cosine"] * jnp.cos(0.5 * u) + theta["sine"] * jnp.sin(0.5 * u)
        return dist.Normal(x + season - theta["growth"] * jnp.expm1(theta["rate"] * x), theta["noise"])

    return StateSpaceModel(
        prior={
            "growth": dist.Normal(0.3, 0.2),
            "cosine": dist.Normal(0.0, 0.2),
            "sine": dist.Normal(0.0, 0.2),
            "rate": dist.LogNormal(0.0, 0.3),
            "noise": dist.LogNormal(-1.5, 0.5),
        },
        initial=lambda theta: dist.Normal(-1.0, 0.5),
        transition=transition,
        observation=lambda theta, x, u: dist.Poisson(jnp.exp(4.0 + x)),
    )


def exponential_autoregression() -> StateSpaceModel:
    """Two lags whose coefficients fade with the size of the older one, of log10 of a trapped series."""

    def transition(theta, x, u):
        now, before = x
        fade = jnp.exp(-theta["gamma"] * before**2)
        mean = theta["level"] + (theta["now"] + theta["now_small"] * fade) * now
        mean += (theta["before"] + theta["before_small"] * fade) * before
        return dist.Normal(jnp.stack([mean, now]), jnp.stack([theta["noise"], jnp.full_like(mean, 0.01)])).to_event(1)

    priors = {name: dist.Normal(0.0, 1.0) for name in ("now", "before", "now_small", "before_small", "level")}
    return StateSpaceModel(
        prior=priors | {"gamma": dist.LogNormal(0.5, 0.7), "noise": dist.LogNormal(-1.6, 0.5)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 0.5).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], 0.05),
    )


def waves_and_sigmoid(num_linear: int) -> StateSpaceModel:
    """A logistic transition of two parameters, and so many coefficients of waves in time."""

    def transition(theta, x, u):
        G = jax.nn.sigmoid(theta["gamma"] * (x - theta["c"]))
        waves = sum(theta[f"b{i}"] * jnp.cos(0.1 * (i + 1) * u) for i in range(num_linear))
        return dist.Normal((0.9 - 0.8 * G) * x + waves, 1.0)

    waves = {f"b{i}": dist.Normal(0.0, 0.5) for i in range(num_linear)}
    return StateSpaceModel(
        prior={**waves, "gamma": dist.LogNormal(0.5, 0.5), "c": dist.Normal(1.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, 0.1),
    )
