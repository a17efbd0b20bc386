"""Vague priors: the default filter where the prior says next to nothing, judged by the exact posterior.

A linear model, x_t = a + b x_{t-1} + N(0, s), y_t = x_t + N(0, 0.3), of which two or all three of a, b and s are to be
learned from 100 observations, with a ~ N(0, w), b ~ U(-1, 1), log s ~ N(0, 1); and the same with the mean m that it
reverts to, a = m (1 - b), m ~ N(0, w), which is linear in the state and not in theta. Nothing is tuned. The default
statistic is exact here (`linear_means`); beside it the one that any model with so few parameters may have, `chebyshev`.

    python -m benchmarks.accuracy.vague [--store]
"""

import argparse

import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.accuracy.judge import NUM_SERIES, Exam
from benchmarks.report import save, show
from epf_jax import exact

NUM_STEPS = 100
TRUTH = {"a": 1.0, "b": 0.6, "s": 1.0, "m": 2.5}
# With a and b unknown, correlated by -.9, about one point to a conditional standard deviation.
AXES = {
    "a": np.linspace(-0.6, 3.4, 41),
    "b": np.linspace(0.0, 0.99, 39),
    "s": np.linspace(0.6, 1.6, 21),
    "m": 2.5 + 0.5 * np.sinh(np.linspace(-4.7, 4.7, 61)),  # wide where b is next to one
}
UNKNOWN, WIDTHS = ("ab", "as", "abs", "mb", "mbs"), (1.0, 10.0, 100.0)
FILTERS = {
    "EPF (default), 1000 particles": lambda model: epf.extended_parameter_filter(model, 1000),
    "EPF, chebyshev, 1000 particles": lambda model: epf.extended_parameter_filter(
        model, 1000, statistic=epf.chebyshev(model, sampler=epf.random_walk(num_steps=4))
    ),
    "node filter (default)": epf.node_filter,
}


def linear_model(unknown: str, width: float) -> epf.StateSpaceModel:
    """The model with some of its parameters unknown, and a prior of that width for its level, a or m."""

    def transition(theta, x, u):
        known = TRUTH | theta
        reverts = known["m"] + known["b"] * (x - known["m"])
        return dist.Normal(reverts if "m" in unknown else known["a"] + known["b"] * x, known["s"])

    level = dist.Normal(0.0, width)
    priors = {"a": level, "m": level, "b": dist.Uniform(-1.0, 1.0), "s": dist.LogNormal(0.0, 1.0)}
    return epf.StateSpaceModel(
        prior={name: priors[name] for name in unknown},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x, 0.3),
    )


def main(
    unknown=UNKNOWN, widths=WIDTHS, num_series: int = NUM_SERIES, *, filters=tuple(FILTERS), store: bool = False
) -> list[dict]:
    """A row for every parameter, set of unknown ones, prior and filter."""
    rows = []
    for names in unknown:
        for width in widths:
            exam = Exam(
                f"{', '.join(names)} unknown, {names[0]} ~ N(0, {width:g})",
                lambda names=names, width=width: linear_model(names, width),
                {name: TRUTH[name] for name in names},
                lambda model, y, names=names: exact.kalman(model, y, {name: AXES[name] for name in names}),
                num_series,
                NUM_STEPS,
            )
            for label in filters:
                exam.judge(label, FILTERS[label])
            rows += [{"unknown": ", ".join(names), "prior sd": width, **row} for row in exam.rows]
    show(f"vague priors: {num_series} data sets, T = {NUM_STEPS}", rows)
    if store:
        settings = {"series": num_series, "steps": NUM_STEPS, "truth": TRUTH}
        print("stored in", save("accuracy_vague", settings, rows))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true")
    main(store=parser.parse_args().store)
