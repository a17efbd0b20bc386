"""Oracles: exact posteriors, with which filters are compared."""

from epf_jax.exact.kalman_oracle import kalman, kalman_log_evidence, kalman_states
from epf_jax.exact.known_path import known_path, path_log_likelihood
from epf_jax.exact.quadrature import nodes_around, quadrature, quadrature_log_evidence, quadrature_states
from epf_jax.exact.states import GridStates, states
from epf_jax.exact.theta_grid import GridPosterior, axes_around, grid_moments, kl, posterior

__all__ = [
    "GridPosterior",
    "GridStates",
    "axes_around",
    "grid_moments",
    "kalman",
    "kalman_log_evidence",
    "kalman_states",
    "kl",
    "known_path",
    "nodes_around",
    "path_log_likelihood",
    "posterior",
    "quadrature",
    "quadrature_log_evidence",
    "quadrature_states",
    "states",
]
