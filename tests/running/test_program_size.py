"""Compilation follows the size of a program: the equations of every filter's `run`, counted, may not grow.

The table is written anew by `python tests/running/test_program_size.py`.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
import pytest
from jax.extend import core

import epf_jax as epf
from epf_jax.models.partly_linear import sine_and_line
from epf_jax.running.run import DEFAULT_LEVELS, run_jitted

TABLE = pathlib.Path(__file__).with_name("equations.json")
MAY_GROW = 1.1
NUM_STEPS = 100
SIN = epf.models.sinusoid()
AR1 = epf.models.ar1()
LEVEL = epf.StateSpaceModel(
    prior={"sd_level": dist.LogNormal(0.0, 1.0), "sd_noise": dist.LogNormal(0.0, 1.0)},
    initial=lambda theta: dist.Normal(0.0, 1.0),
    transition=lambda theta, x, u: dist.Normal(x, theta["sd_level"]),
    observation=lambda theta, x, u: dist.Normal(x, theta["sd_noise"]),
)
SINE = sine_and_line()
FILTERS = {
    "bootstrap": lambda: epf.bootstrap_filter(SIN, 1000),
    "EPF": lambda: epf.extended_parameter_filter(SIN, 1000),
    "EPF, Taylor": lambda: epf.extended_parameter_filter(SIN, 1000, statistic=epf.taylor(SIN, order=7)),
    "EPF, local level": lambda: epf.extended_parameter_filter(LEVEL, 1000),
    "EPF, decomposed": lambda: epf.extended_parameter_filter(SINE, 1000),
    "Storvik": lambda: epf.storvik_filter(AR1, 1000),
    "particle learning": lambda: epf.particle_learning_filter(AR1, 1000),
    "Liu and West": lambda: epf.liu_west_filter(SIN, 1000),
    "resample-move": lambda: epf.resample_move_filter(SIN, 1000, max_steps=NUM_STEPS),
    "node filter": lambda: epf.node_filter(SIN, 1000),
    "node filter, Kalman": lambda: epf.node_filter(LEVEL, inner=epf.kalman(LEVEL)),
    "SMC^2": lambda: epf.smc2_filter(SIN, 256, max_steps=NUM_STEPS),
    "SMC^2, Kalman": lambda: epf.smc2_filter(LEVEL, 256, max_steps=NUM_STEPS, inner=epf.kalman(LEVEL)),
}


def num_equations(jaxpr):
    """Those of the program and of all programs inside of it, each as often as it is called."""
    inner = [part for equation in jaxpr.eqns for part in jax.tree.leaves(equation.params, is_leaf=_is_jaxpr)]
    return len(jaxpr.eqns) + sum(num_equations(getattr(part, "jaxpr", part)) for part in inner if _is_jaxpr(part))


def _is_jaxpr(part):
    return isinstance(part, (core.Jaxpr, core.ClosedJaxpr))


def equations_of_run(filter_):
    """What `epf.run` traces for a series."""

    def run(*given):
        return run_jitted(filter_, DEFAULT_LEVELS, False, None, False, *given)

    y, times = jnp.zeros(NUM_STEPS), jnp.arange(1, NUM_STEPS + 1)
    return num_equations(jax.make_jaxpr(run)(jax.random.key(0), None, y, times, NUM_STEPS).jaxpr)


QUICK = ["EPF", "EPF, local level", "Storvik", "SMC^2, Kalman", "node filter, Kalman"]


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FILTERS])
def test_the_program_of_a_filter_does_not_grow(name):
    most = MAY_GROW * json.loads(TABLE.read_text())[name]
    assert equations_of_run(FILTERS[name]()) <= most


if __name__ == "__main__":
    table = {name: equations_of_run(build()) for name, build in FILTERS.items()}
    TABLE.write_text(json.dumps(table, indent=2) + "\n")
    print(TABLE.read_text())
