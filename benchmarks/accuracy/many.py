"""Four parameters and more, which no grid holds: the filters that any model may have, judged by the exact posterior.

Three linear-Gaussian models (an AR(1) in noise, a damped trend, an AR(1) with a season) and seasonal counts, with
everything unknown under priors as one would write them. The exact posterior is that of importance sampling: Student
draws about the posterior, fitted to it in a few rounds and weighted by the exact likelihood (Kalman, or quadrature over
the state); the smallest effective number of draws stands in the table's settings: z is off by its inverse root.

    python -m benchmarks.accuracy.many [--store]
"""

import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.accuracy.judge import NUM_SERIES, Exam
from benchmarks.report import save, show
from epf_jax.exact import kalman_log_evidence, quadrature_log_evidence

NUM_STEPS, NUM_PARTICLES = 300, 2000
ROUNDS, DEGREES = 6, 5.0  # of importance sampling, and of freedom of its draws


class Posterior(NamedTuple):
    """Mean and standard deviation of each parameter after the last observation, with one row."""

    mean: dict
    sd: dict


def in_noise() -> epf.StateSpaceModel:
    return epf.StateSpaceModel(
        prior={
            "c": dist.Normal(0.0, 1.0),
            "phi": dist.Uniform(-1.0, 1.0),
            "q": dist.HalfNormal(1.0),
            "r": dist.HalfNormal(1.0),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["c"] + theta["phi"] * x, theta["q"]),
        observation=lambda theta, x, u: dist.Normal(x, theta["r"]),
    )


def damped_trend() -> epf.StateSpaceModel:
    def transition(theta, x, u):
        mean = jnp.stack([x[0] + x[1], theta["phi"] * x[1]])
        return dist.Normal(mean, jnp.stack([theta["level"], theta["slope"]])).to_event(1)

    return epf.StateSpaceModel(
        prior={
            "phi": dist.Beta(4.0, 2.0),
            "level": dist.LogNormal(-1.0, 1.0),
            "slope": dist.LogNormal(-1.0, 1.0),
            "r": dist.LogNormal(-1.0, 1.0),
        },
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], theta["r"]),
    )


def season(theta, t):
    angle = 2 * jnp.pi / 12 * t
    return theta["sin"] * jnp.sin(angle) + theta["cos"] * jnp.cos(angle)


def seasonal() -> epf.StateSpaceModel:
    return epf.StateSpaceModel(
        prior={
            "phi": dist.Uniform(-1.0, 1.0),
            "q": dist.HalfNormal(1.0),
            "r": dist.HalfNormal(1.0),
            "sin": dist.Normal(0.0, 1.0),
            "cos": dist.Normal(0.0, 1.0),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, theta["q"]),
        observation=lambda theta, x, u: dist.Normal(x + season(theta, u), theta["r"]),
    )


def counts() -> epf.StateSpaceModel:
    return epf.StateSpaceModel(
        prior={
            "phi": dist.Uniform(-1.0, 1.0),
            "level": dist.Normal(0.0, 2.0),
            "sin": dist.Normal(0.0, 1.0),
            "cos": dist.Normal(0.0, 1.0),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, 0.4),
        observation=lambda theta, x, u: dist.Poisson(jnp.exp(theta["level"] + season(theta, u) + x)),
    )


def by_kalman(model, y):
    return lambda theta: kalman_log_evidence(model, theta, y)[-1]


def by_quadrature(model, y):
    nodes = jnp.linspace(-4.0, 4.0, 41)  # half of the transition's standard deviation apart, 6 of the state's wide
    return lambda theta: quadrature_log_evidence(model, theta, y, nodes)[-1]


MODELS = {
    "AR(1) in noise": (in_noise, {"c": 0.3, "phi": 0.8, "q": 0.5, "r": 0.5}, by_kalman, 4000),
    "damped trend": (damped_trend, {"phi": 0.8, "level": 0.3, "slope": 0.2, "r": 0.5}, by_kalman, 4000),
    "AR(1) with a season": (seasonal, {"phi": 0.8, "q": 0.5, "r": 0.5, "sin": 1.0, "cos": -0.5}, by_kalman, 4000),
    "seasonal counts": (counts, {"phi": 0.8, "level": 1.0, "sin": 0.5, "cos": -0.3}, by_quadrature, 500),
}
LAPLACE = "EPF (default), laplace proposal"
KALMAN = "SMC^2 with Kalman inside, half the particles"
FILTERS = {
    "EPF (default)": lambda m: epf.extended_parameter_filter(m, NUM_PARTICLES),
    "EPF, assumed density": lambda m: epf.extended_parameter_filter(m, NUM_PARTICLES, statistic=epf.assumed_density(m)),
    LAPLACE: lambda m: epf.extended_parameter_filter(m, NUM_PARTICLES, proposal=epf.laplace(m)),
    "Liu-West, 4 times the particles": lambda m: epf.liu_west_filter(m, 4 * NUM_PARTICLES),
    "resample-move, a quarter of the particles": lambda m: epf.resample_move_filter(
        m, NUM_PARTICLES // 4, max_steps=NUM_STEPS
    ),
    KALMAN: lambda m: epf.smc2_filter(m, NUM_PARTICLES // 2, max_steps=NUM_STEPS, inner=epf.kalman(m)),
}


def importance_sampling(likelihood, num_draws: int, model: epf.StateSpaceModel) -> tuple[Posterior, float]:
    """The posterior by weighted Student draws in z, fitted to it round by round, and how many draws that is worth."""
    parameters, rng = model.parameters, np.random.default_rng(1)

    @jax.jit
    def log_posterior(z):
        return jax.lax.map(lambda z: parameters.log_prior(z) + likelihood(parameters.to_theta(z)), z, batch_size=500)

    z = np.asarray(jax.vmap(parameters.to_vector)(parameters.sample(jax.random.key(0), num_draws)))
    log_q = np.asarray(jax.vmap(parameters.log_prior)(z))
    for _ in range(ROUNDS):
        log_w = np.asarray(log_posterior(jnp.asarray(z))) - log_q
        mean, L = fitted(z, log_w)
        s = rng.normal(size=z.shape) / np.sqrt(rng.chisquare(DEGREES, size=(num_draws, 1)) / DEGREES)
        z = mean + s @ L.T
        log_q = -0.5 * (DEGREES + z.shape[1]) * np.log1p(np.sum(s**2, axis=1) / DEGREES) - np.sum(np.log(np.diag(L)))
    w = normalised(np.asarray(log_posterior(jnp.asarray(z))) - log_q)
    theta = jax.tree.map(np.asarray, jax.vmap(parameters.to_theta)(jnp.asarray(z)))
    means = {name: np.array([w @ values]) for name, values in theta.items()}
    sds = {name: np.sqrt(np.array([w @ (values - means[name]) ** 2])) for name, values in theta.items()}
    return Posterior(means, sds), 1 / np.sum(w**2)


def fitted(z: np.ndarray, log_w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale of weighted draws, their weights flattened until a tenth of the draws count."""
    power = 1.0
    while 1 / np.sum(normalised(power * log_w) ** 2) < 0.1 * len(z):
        power *= 0.7
    w = normalised(power * log_w)
    mean = w @ z
    return mean, np.linalg.cholesky((w[:, None] * (z - mean)).T @ (z - mean))


def normalised(log_w: np.ndarray) -> np.ndarray:
    log_w = np.where(np.isnan(log_w), -np.inf, log_w)
    w = np.exp(log_w - log_w.max())
    return w / w.sum()


def main(models=tuple(MODELS), num_series: int = NUM_SERIES, *, filters=tuple(FILTERS), store: bool = False):
    """A row for every model, filter and parameter."""
    rows, worth = [], []
    for name in models:
        build, truth, likelihood_of, num_draws = MODELS[name]

        def solve(model, y, likelihood_of=likelihood_of, num_draws=num_draws):
            found, num = importance_sampling(likelihood_of(model, y), num_draws, model)
            worth.append(num)
            return found

        exam = Exam(name, build, truth, solve, num_series, NUM_STEPS)
        for label in filters:
            linear = likelihood_of is by_kalman
            if linear if label == LAPLACE else label == KALMAN and not linear:
                continue  # the one is for models whose default proposal is not exact, the other for linear ones
            exam.judge(label, FILTERS[label])
        for row in exam.rows:
            del row["seconds"]
            rows.append({"model": name, **row})
    show(f"four parameters and more: {num_series} data sets, T = {NUM_STEPS}", rows)
    print(f"exact posteriors are worth {min(worth):.0f} draws and more")
    if store:
        settings = {"series": num_series, "steps": NUM_STEPS, "particles": NUM_PARTICLES, "least draws": min(worth)}
        print("stored in", save("accuracy_many", settings, rows))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true")
    main(store=parser.parse_args().store)
