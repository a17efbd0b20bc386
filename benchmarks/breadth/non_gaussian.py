"""Random walks and autoregressions that are not seen in Gaussian noise: volatility, counts, shares, durations."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.breadth.entry import NUTS, Entry, with_first


def log_rate(theta, x, u):
    """An AR(1) about an unknown mean."""
    return dist.Normal(theta["mean"] + theta["phi"] * (x - theta["mean"]), theta["state_sd"])


def walk(theta, x, u):
    """A random walk."""
    return dist.Normal(x, theta["state_sd"])


AROUND_A_MEAN = {"mean": dist.Normal(0.0, 2.0), "phi": dist.Uniform(-1.0, 1.0), "state_sd": dist.HalfNormal(0.5)}


def volatility():
    """Stochastic volatility with conjugate priors."""
    return epf.models.stochastic_volatility()


def volatility_t():
    """Stochastic volatility, the returns with heavy tails."""
    return epf.StateSpaceModel(
        prior={**AROUND_A_MEAN, "phi": dist.Beta(20.0, 1.5), "freedom": dist.Gamma(2.0, 0.2)},
        initial=lambda theta: dist.Normal(theta["mean"], 1.0),
        transition=log_rate,
        observation=lambda theta, x, u: dist.StudentT(2.0 + theta["freedom"], 0.0, jnp.exp(x / 2)),
    )


def counts():
    """Poisson counts whose log rate is a random walk."""
    return epf.StateSpaceModel(
        prior={"state_sd": dist.HalfNormal(0.5)},
        initial=lambda theta: dist.Normal(1.0, 1.0),
        transition=walk,
        observation=lambda theta, x, u: dist.Poisson(jnp.exp(x)),
    )


def counts_on_inputs():
    """Poisson counts on an input, with an autoregressive log rate."""
    return epf.StateSpaceModel(
        prior={**AROUND_A_MEAN, "slope": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(theta["mean"], 1.0),
        transition=log_rate,
        observation=lambda theta, x, u: dist.Poisson(jnp.exp(x + theta["slope"] * u)),
    )


def overdispersed_counts():
    """Negative binomial counts with an autoregressive log rate."""
    return epf.StateSpaceModel(
        prior={**AROUND_A_MEAN, "concentration": dist.LogNormal(1.5, 0.7)},
        initial=lambda theta: dist.Normal(theta["mean"], 1.0),
        transition=log_rate,
        observation=lambda theta, x, u: dist.NegativeBinomial2(jnp.exp(x), theta["concentration"]),
    )


def polls():
    """Binomial counts out of varying totals, whose logit is a random walk."""
    return epf.StateSpaceModel(
        prior={"state_sd": dist.HalfNormal(0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=walk,
        observation=lambda theta, x, total: dist.Binomial(total, logits=x),
    )


def shares():
    """Beta distributed shares, whose logit is a random walk."""

    def observation(theta, x, u):
        mean = jax.nn.sigmoid(x)
        return dist.Beta(mean * theta["precision"], (1 - mean) * theta["precision"])

    return epf.StateSpaceModel(
        prior={"state_sd": dist.HalfNormal(0.5), "precision": dist.LogNormal(3.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=walk,
        observation=observation,
    )


def durations():
    """Gamma distributed durations with an autoregressive log mean."""
    return epf.StateSpaceModel(
        prior={**AROUND_A_MEAN, "shape": dist.LogNormal(0.5, 0.7)},
        initial=lambda theta: dist.Normal(theta["mean"], 1.0),
        transition=log_rate,
        observation=lambda theta, x, u: dist.Gamma(theta["shape"], theta["shape"] * jnp.exp(-x)),
    )


def robust_level():
    """A random walk seen with heavy-tailed errors."""
    return epf.StateSpaceModel(
        prior={"state_sd": dist.HalfNormal(1.0), "noise_sd": dist.HalfNormal(1.0)},
        initial=lambda theta: dist.Normal(0.0, 3.0),
        transition=walk,
        observation=lambda theta, x, u: dist.StudentT(4.0, x, theta["noise_sd"]),
    )


NON_GAUSSIAN = {
    "volatility": Entry(
        "tune", volatility, 400, {"level": 0.0, "persistence": 0.95, "variance": 0.06}, opinions=NUTS,
    ),
    "volatility_t": Entry(
        "report", volatility_t, 300, {"mean": -1.0, "phi": 0.95, "state_sd": 0.3, "freedom": 6.0}, opinions=NUTS,
    ),
    "counts": Entry("report", counts, 200, {"state_sd": 0.2}, opinions=NUTS, start=lambda y: with_first(np.log(y + 1))),
    "counts_on_inputs": Entry(
        "tune", counts_on_inputs, 150, {"mean": 1.0, "phi": 0.8, "state_sd": 0.3, "slope": 0.5}, opinions=NUTS,
        inputs=lambda rng, num_steps: rng.normal(size=num_steps),
    ),
    "overdispersed_counts": Entry(
        "report", overdispersed_counts, 200, {"mean": 1.5, "phi": 0.9, "state_sd": 0.3, "concentration": 4.0},
        opinions=NUTS,
    ),
    "polls": Entry(
        "tune", polls, 100, {"state_sd": 0.15}, opinions=NUTS,
        inputs=lambda rng, num_steps: rng.integers(10, 60, num_steps),
    ),
    "shares": Entry("report", shares, 120, {"state_sd": 0.2, "precision": 20.0}, opinions=NUTS),
    "durations": Entry(
        "tune", durations, 200, {"mean": 0.5, "phi": 0.85, "state_sd": 0.3, "shape": 2.0}, opinions=NUTS,
    ),
    "robust_level": Entry(
        "report", robust_level, 200, {"state_sd": 0.4, "noise_sd": 0.7}, opinions=NUTS, start=with_first,
    ),
}  # fmt: skip
