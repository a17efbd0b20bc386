"""64 series of 100 observations by four models with two to four parameters: seconds, and what is found.

python -m benchmarks.speed.many_series [--series 64] [--steps 100]
"""

import argparse
import pathlib
import tempfile
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.report import save, show

TRUTH = {"level_sd": 0.4, "noise_sd": 1.0}


def of_level(with_start: bool = False, phi: bool = False) -> epf.StateSpaceModel:
    """A level in noise; with an unknown start, or one that returns to a mean."""
    prior = {"level_sd": dist.LogNormal(-1.0, 1.0), "noise_sd": dist.LogNormal(0.0, 1.0)}
    prior |= {"start": dist.Normal(0.0, 2.0)} if with_start else {}
    prior |= {"phi": dist.Uniform(0.0, 1.0), "mean": dist.Normal(0.0, 2.0)} if phi else {}

    def transition(theta, x, u):
        mean = theta["mean"] + theta["phi"] * (x - theta["mean"]) if phi else x
        return dist.Normal(mean, theta["level_sd"])

    return epf.StateSpaceModel(
        prior=prior,
        initial=lambda theta: dist.Normal(theta.get("start", 0.0), 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, theta["noise_sd"]),
    )


def of_trend() -> epf.StateSpaceModel:
    """A level with a constant drift."""
    return epf.StateSpaceModel(
        prior={
            "drift": dist.Normal(0.0, 0.5),
            "level_sd": dist.LogNormal(-1.0, 1.0),
            "noise_sd": dist.LogNormal(0.0, 1.0),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(x + theta["drift"], theta["level_sd"]),
        observation=lambda theta, x, u: dist.Normal(x, theta["noise_sd"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    models = {"level": of_level(), "start": of_level(with_start=True), "mean": of_level(phi=True), "drift": of_trend()}
    keys = jax.random.split(jax.random.key(0), given.series)
    y = [np.asarray(epf.simulate(key, models["level"], TRUTH, given.steps)[1]) for key in keys]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of differences that are not to be believed
        began, worked = time.perf_counter(), time.process_time()
        found = epf.sweep_series(models, y, pathlib.Path(folder))
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        began = time.perf_counter()
        again = epf.sweep_series(models, y, pathlib.Path(folder), progress=False)
        resumed = time.perf_counter() - began
    assert again == found
    row = {
        "series": given.series, "steps": given.steps, "models": len(models), "s": seconds, "processor s": cpu,
        "s again": resumed, "trusted": float(np.mean([each["trusted"] for each in found.parameters])),
        "largest error": max(each["error"] for each in found.parameters),
        "largest evidence error": max(each["error"] or jnp.inf for each in found.evidences),
        "believed": float(np.mean([each["believed"] for each in found.evidences])),
    }  # fmt: skip
    show("many series", [row])
    print("stored in", save("speed_many_series", {"truth": TRUTH}, [row]))


if __name__ == "__main__":
    main()
