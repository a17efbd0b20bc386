"""What a step of the filter costs that `extended_parameter_filter` chooses, by the statistic that a model gets.

A run's seconds over its steps, without quantiles; what the call that compiles took beside that. Interleaved runs,
medians. On a GPU a small filter is one kernel where that can hold its step: there is XLA alone beside it.
"""

import statistics

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.report import of_this_cpu, save, show
from benchmarks.speed.gpu import without_kernels
from benchmarks.speed.racing import race, running
from epf_jax.core import loops

SIZES = {"cpu": {1000: 200, 10_000: 200}, "gpu": {1000: 500, 1_000_000: 100}}  # N: T


def noise_unknown():
    """An autoregression in noise, its coefficient and its noise unknown: means linear in theta, any prior."""
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.5, 0.5), "s": dist.LogNormal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x, theta["s"]),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )


def trend_variances():
    """A local linear trend, whose three variances have conjugate priors."""
    return epf.StateSpaceModel(
        prior={name: dist.InverseGamma(3.0, 1.0) for name in ("level", "slope", "y")},
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(
            jnp.array([x[0] + x[1], x[1]]), jnp.sqrt(jnp.array([theta["level"], theta["slope"]]))
        ).to_event(1),
        observation=lambda theta, x, u: dist.Normal(x[0], jnp.sqrt(theta["y"])),
    )


MODELS = {
    "SIN": epf.models.sinusoid,
    "STAR": epf.models.star,
    "AR(1) in noise": epf.models.ar1,
    "AR(1) in noise, its noise unknown": noise_unknown,
    "trend, its variances unknown": trend_variances,
    "stochastic volatility": epf.models.stochastic_volatility,
}


def main(repeats: int = 5, *, store: bool = True):
    backend, rows = jax.default_backend(), []
    for n, num_steps in SIZES[backend].items():
        y = jnp.sin(jnp.arange(1.0, num_steps + 1))
        filters = {name: epf.extended_parameter_filter(build(), n) for name, build in MODELS.items()}
        runs = {(name, "as it is"): running(f, y) for name, f in filters.items()}
        if backend == "gpu" and n <= loops.MAX_PARTICLES:
            for name, build in MODELS.items():
                other = epf.extended_parameter_filter(build(), n)  # a program belongs to its filter
                runs[name, "XLA alone"] = without_kernels(running)(other, y)
        for (name, way), found in race(runs, repeats).items():
            taken = {"us a step": found.seconds / num_steps * 1e6, "s to compile": found.first - found.seconds}
            what = {"model": name, "statistic": filters[name].statistic.name, "by": way}
            values = {"log-evidence": statistics.mean(found.values), "its sd": statistics.stdev(found.values)}
            rows.append({**what, "N": n, "T": num_steps, **taken, **values})
    show(f"a step of the filters chosen by default, on {backend}, float32", rows)
    if store:
        name = of_this_cpu("speed_defaults") if backend == "cpu" else f"speed_defaults_{backend}"
        print("stored in", save(name, {"repeats": repeats}, rows))
    return rows


if __name__ == "__main__":
    main()
