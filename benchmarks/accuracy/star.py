"""STAR: Chebyshev statistics with the fully adapted proposal, 100 and 1000 particles."""

import jax.numpy as jnp

import epf_jax as epf
from benchmarks.accuracy.judge import Exam
from epf_jax import exact


def posterior(model, y):
    nodes = exact.nodes_around(y, half_width=0.8, num_nodes=25)
    coarse = {"gamma": jnp.linspace(-0.2, 3.0, 33), "c": jnp.linspace(-2.0, 6.5, 35)}
    found = exact.quadrature(model, y, coarse, nodes)
    return exact.quadrature(model, y, exact.axes_around(found), nodes)


def default(num_particles):
    return lambda model: epf.extended_parameter_filter(model, num_particles)


def chebyshev(num_particles, **options):
    def build(model):
        statistic = epf.chebyshev(model, sampler=epf.random_walk(num_steps=4), **options)
        return epf.extended_parameter_filter(model, num_particles, statistic=statistic)

    return build


def main():
    exam = Exam("star", epf.models.star, {"gamma": 1.0, "c": 3.0}, posterior)
    box = ({"gamma": 0.0, "c": -2.0}, {"gamma": 2.5, "c": 6.0})
    exam.judge("EPF default: Chebyshev 24 x 24, fully adapted, N = 100", default(100), bars={"z rms": 0.25})
    exam.judge("EPF Chebyshev, given box, not shrinking, N = 100", chebyshev(100, box=box, shrink=None))
    exam.judge("EPF Chebyshev, prior's box, not shrinking, N = 100", chebyshev(100, shrink=None))
    exam.judge("EPF default: Chebyshev 24 x 24, fully adapted, N = 1000", default(1000), bars={"z rms": 0.10})
    exam.report()


if __name__ == "__main__":
    main()
