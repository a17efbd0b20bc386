"""Samplers of theta given a particle's statistic. Each is a Markov kernel on one flat unconstrained vector."""

from epf_jax.samplers.blackjax_sampler import blackjax_sampler
from epf_jax.samplers.grid_sampler import grid_sampler
from epf_jax.samplers.random_walk import default_walk, random_walk
from epf_jax.samplers.sampler import (
    LogDensity,
    SampleInfo,
    Sampler,
    check_sampler,
    each_particle,
    exact_draw,
    no_draw,
    prior_population,
    together,
)
from epf_jax.samplers.slice_sampler import slice_sampler

__all__ = [
    "LogDensity",
    "SampleInfo",
    "Sampler",
    "blackjax_sampler",
    "check_sampler",
    "default_walk",
    "each_particle",
    "exact_draw",
    "grid_sampler",
    "no_draw",
    "prior_population",
    "random_walk",
    "slice_sampler",
    "together",
]
