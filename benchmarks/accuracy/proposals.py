"""What a proposal that looks at the data gives where the fully adapted one does not fit, judged by the exact posterior.

Three models with a Gaussian state and one parameter: a level behind precise Student noise, counts, and a volatility, of
which each observation says little. The default EPF with 1000 and 8000 particles of the bootstrap proposal, and with
1000 of `epf.laplace`; the time of a step by turns.

    python -m benchmarks.accuracy.proposals [--store]
"""

import argparse

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.accuracy.judge import NUM_SERIES, Exam
from benchmarks.report import of_this_cpu, save, show
from benchmarks.speed.racing import race, running
from epf_jax import exact

NUM_STEPS = 200


def gaussian_state(prior, transition, observation) -> epf.StateSpaceModel:
    return epf.StateSpaceModel(
        prior=prior, initial=lambda theta: dist.Normal(0.0, 1.0), transition=transition, observation=observation
    )


def level() -> epf.StateSpaceModel:
    return gaussian_state(
        {"a": dist.Normal(0.0, 1.0)},
        lambda theta, x, u: dist.Normal(0.8 * x, 0.5),
        lambda theta, x, u: dist.StudentT(4.0, theta["a"] + x, 0.3),
    )


def counts() -> epf.StateSpaceModel:
    return gaussian_state(
        {"phi": dist.Uniform(0.0, 1.0)},
        lambda theta, x, u: dist.Normal(theta["phi"] * x, 0.5),
        lambda theta, x, u: dist.Poisson(50.0 * jnp.exp(x)),
    )


def volatility() -> epf.StateSpaceModel:
    return gaussian_state(
        {"phi": dist.Uniform(0.0, 1.0)},
        lambda theta, x, u: dist.Normal(theta["phi"] * x, 0.3),
        lambda theta, x, u: dist.Normal(0.0, jnp.exp(0.5 * x)),
    )


# Nodes of x: at most 0.7 of the smallest standard deviation apart, which is that of the noise, of the transition, or of
# log-counts of 50 exp(2), 1 / sqrt(370) = 0.05.
MODELS = {
    "level, Student noise": (level, {"a": 0.5}, {"a": np.linspace(-1.0, 2.0, 101)}, np.linspace(-5.0, 5.0, 101)),
    "counts": (counts, {"phi": 0.8}, {"phi": np.linspace(0.4, 0.999, 101)}, np.linspace(-4.5, 4.0, 251)),
    "volatility": (volatility, {"phi": 0.9}, {"phi": np.linspace(0.01, 0.999, 101)}, np.linspace(-5.0, 5.0, 101)),
}
FILTERS = {
    "bootstrap, 1000": lambda model: epf.extended_parameter_filter(model, 1000, proposal=epf.bootstrap()),
    "bootstrap, 8000": lambda model: epf.extended_parameter_filter(model, 8000, proposal=epf.bootstrap()),
    "laplace, 1000": lambda model: epf.extended_parameter_filter(model, 1000, proposal=epf.laplace(model)),
}


def main(models=tuple(MODELS), num_series: int = NUM_SERIES, *, filters=tuple(FILTERS), store: bool = False):
    """A row for every model and filter."""
    rows = []
    for name in models:
        build, truth, axes, nodes = MODELS[name]
        exam = Exam(
            name,
            build,
            truth,
            lambda model, y, axes=axes, nodes=nodes: exact.quadrature(model, y, axes, nodes),
            num_series,
            NUM_STEPS,
        )
        for label in filters:
            exam.judge(label, FILTERS[label])
        y, model = jnp.asarray(exam.y[0], float), build()
        taken = race({label: running(FILTERS[label](model), y) for label in filters}, 5)
        for row in exam.rows:
            del row["seconds"]
            microseconds = taken[row["filter"]].seconds / NUM_STEPS * 1e6
            rows.append({"model": name, **row, "us a step": microseconds})
    show(f"proposals: {num_series} data sets, T = {NUM_STEPS}", rows)
    if store:
        settings = {"series": num_series, "steps": NUM_STEPS}
        print("stored in", save(of_this_cpu("accuracy_proposals"), settings, rows))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true")
    main(store=parser.parse_args().store)
