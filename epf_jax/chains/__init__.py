"""Markov chains over theta given a whole series: offline references for the filters."""

from epf_jax.chains.base import Chains
from epf_jax.chains.particle_gibbs import particle_gibbs
from epf_jax.chains.pmmh import pmmh

__all__ = ["Chains", "particle_gibbs", "pmmh"]
