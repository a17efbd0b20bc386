"""What a step of a bootstrap filter costs by the distribution that its states are drawn from.

A Normal is one number from the generator, a Student's t a quotient with a gamma draw, a Beta a share of two.
Interleaved runs, medians, without quantiles.
"""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.report import of_this_cpu, save, show
from benchmarks.speed.racing import race, running

SIZES = {"cpu": (1000, 10_000), "gpu": (1000, 100_000)}
NUM_STEPS = 100
NOISES = {
    "Normal": lambda mean: dist.Normal(mean, 1.0),
    "Laplace": lambda mean: dist.Laplace(mean, 1.0),
    "LogNormal": lambda mean: dist.LogNormal(mean, 1.0),
    "Cauchy": lambda mean: dist.Cauchy(mean, 1.0),
    "StudentT": lambda mean: dist.StudentT(4.0, mean, 1.0),
    "Gamma": lambda mean: dist.Gamma(2.0, 1.0 / (1.0 + mean**2)),
    "Beta": lambda mean: dist.Beta(2.0, 1.0 + mean**2),
}


def model(noise):
    """An autoregression in noise, its states drawn from another distribution."""
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.5, 0.3)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: noise(theta["a"] * x),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )


def main(repeats: int = 5, *, store: bool = True):
    backend, rows = jax.default_backend(), []
    y = jnp.sin(jnp.arange(1.0, NUM_STEPS + 1))
    for n in SIZES[backend]:
        filters = {name: epf.bootstrap_filter(model(noise), n, theta={"a": 0.5}) for name, noise in NOISES.items()}
        for name, found in race({name: running(f, y) for name, f in filters.items()}, repeats).items():
            us = found.seconds / NUM_STEPS * 1e6
            rows.append({"states": name, "N": n, "us a step": us, "ns a particle-step": us / n * 1e3})
    show(f"a step of a bootstrap filter by the distribution of its states, on {backend}, float32", rows)
    if store:
        name = of_this_cpu("speed_noise") if backend == "cpu" else f"speed_noise_{backend}"
        print("stored in", save(name, {"repeats": repeats, "T": NUM_STEPS}, rows))
    return rows


if __name__ == "__main__":
    main()
