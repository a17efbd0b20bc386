"""The model and the series that results come from, and another posterior of them to judge the results by.

The reference is found from the prior on, by importance sampling with fresh likelihoods (see `exploration` and
`certificate`): exact ones where Kalman's filter gives them, unbiased estimates otherwise. It knows nothing of the run.
"""

from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from epf_jax.filters.known_theta import KnownTheta, kalman, particles
from epf_jax.models.observed import Observed, ObservedBatch
from epf_jax.models.state_space import StateSpaceModel, seen
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.proposals import why_not_kalman
from epf_jax.particles.resampling import systematic
from epf_jax.running.certificate import Certificate, certify
from epf_jax.running.clock import Clock
from epf_jax.running.exploration import explore_with_enough

_NUM_PARTICLES = 128  # of each likelihood's filter, to begin with


@jax.tree_util.register_pytree_node_class
class Origin:
    """Where results come from. It has no leaves: results that went through `jax.jit` or a pickle have forgotten it."""

    def __init__(self, model: StateSpaceModel | None = None, series: Observed | ObservedBatch | None = None):
        """Of a model and the whole series, or several, from the first observation on; unknown without."""
        self.model, self.series = model, series
        self._certificate: Certificate | None = None

    def tree_flatten(self) -> tuple[tuple[()], None]:
        """Nothing that JAX could trace."""
        return (), None

    @classmethod
    def tree_unflatten(cls, _: None, __: Any) -> "Origin":
        """An unknown origin."""
        return cls()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()

    def one(self, run: int) -> "Origin":
        """That of one run of many."""
        if not isinstance(self.series, ObservedBatch):
            return Origin()
        of = self.series
        values = of.values[run] if of.many else of.values
        inputs = jax.tree.map(lambda rows: rows[run], of.inputs) if of.many_inputs else of.inputs
        return Origin(self.model, Observed(values, inputs))

    def certificate(self, seconds: float) -> Certificate | None:
        """The posterior from fresh likelihoods, found once; None if the origin is unknown."""
        if self._certificate is None and self.model is not None and isinstance(self.series, Observed):
            self._certificate = reference(self.model, self.series, seconds)
        return self._certificate


def reference(model: StateSpaceModel, series: Observed, seconds: float) -> Certificate:
    """The posterior of theta given the series, in at most about so many seconds."""
    model, rng, clock = seen(model, series.inputs), np.random.default_rng(0), Clock(seconds)
    num_particles = _NUM_PARTICLES if why_not_kalman(model) else 0
    found, likelihood = explore_with_enough(rng, model, partial(_inner, model), num_particles, series, clock)
    return certify(rng, likelihood, found.mixture, len(series.values), clock)


@lru_cache(maxsize=64)
def _inner(model: StateSpaceModel, num_particles: int) -> KnownTheta:
    """One object for one model: what is built from it is compiled once."""
    if num_particles == 0:
        return kalman(model)
    return particles(model, num_particles, default_proposal(model), systematic)
