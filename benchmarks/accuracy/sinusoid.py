"""SIN: the literal EPF of the paper, and what the fully adapted proposal makes of it."""

import jax.numpy as jnp

import epf_jax as epf
from benchmarks.accuracy.judge import Exam
from epf_jax import exact

LITERAL = {"z rms": 0.30, "z max": 0.8, "sdr": 0.1}
ADAPTED = {"z rms": 0.10, "z max": 0.3}


def posterior(model, y):
    nodes = exact.nodes_around(y, half_width=0.8, num_nodes=25)  # 8 sd of y's noise, two thirds of an sd apart
    coarse = exact.quadrature(model, y, {"theta": jnp.linspace(-0.2, 1.2, 57)}, nodes)
    return exact.quadrature(model, y, exact.axes_around(coarse), nodes)


def literal(model, order=7):
    return epf.extended_parameter_filter(
        model, 1000, statistic=epf.taylor(model, order), proposal=epf.bootstrap(), resample=epf.multinomial
    )


def adapted(statistic):
    return lambda model: epf.extended_parameter_filter(model, 1000, statistic=statistic(model))


def main():
    exam = Exam("sinusoid", epf.models.sinusoid, {"theta": 0.7}, posterior)
    for x64 in (False, True):
        name = "EPF literal: Taylor 7 at 0, bootstrap, multinomial, 1 MH"
        exam.judge(name, literal, bars=LITERAL, x64=x64, repeats=9)
        exam.judge("EPF Taylor 7, fully adapted", adapted(lambda m: epf.taylor(m, 7)), bars=ADAPTED, x64=x64)
        exam.judge("EPF default: Chebyshev, fully adapted", adapted(epf.chebyshev), bars=ADAPTED, x64=x64)
    exam.judge("EPF Taylor 3, bootstrap, multinomial", lambda m: literal(m, 3))
    exam.judge("EPF Chebyshev 12 nodes", adapted(lambda m: epf.chebyshev(m, 12)))
    exam.judge(
        "EPF Taylor 7, fully adapted, slice sampler",
        lambda m: epf.extended_parameter_filter(m, 1000, statistic=epf.taylor(m, 7), sampler=epf.slice_sampler()),
    )
    exam.judge(
        "EPF Taylor 7, fully adapted, grid sampler",
        lambda m: epf.extended_parameter_filter(m, 1000, statistic=epf.taylor(m, 7), sampler=epf.grid_sampler()),
    )
    exam.judge("SIR, theta in the state, N = 1000", lambda m: epf.bootstrap_filter(m, 1000))
    exam.judge("Liu-West, N = 1000", lambda m: epf.liu_west_filter(m, 1000))
    exam.judge("Liu-West, auxiliary weights, N = 1000", lambda m: epf.liu_west_filter(m, 1000, auxiliary=True))
    exam.judge(
        "Liu-West, the paper's perturbation, N = 10000",
        lambda m: epf.liu_west_filter(m, 10_000, kernel=epf.coordinate_kernel, resample=epf.multinomial),
    )
    exam.report()


if __name__ == "__main__":
    main()
