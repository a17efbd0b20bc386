r"""Log-likelihoods of many thetas over a series, or its beginning, by one compiled program for series of any length.

The series is padded to a power of two, and the loop over it ends where it is told to: other series, longer prefixes and
more draws compile nothing. Likelihoods are exact where Kalman's filter runs inside, and unbiased estimates where
particles do.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from epf_jax.core.platforms import full_precision
from epf_jax.filters.known_theta import KnownTheta
from epf_jax.models.state_space import StateSpaceModel

_SHORTEST = 64  # rows that a series is padded to at least
_AT_ONCE = 16384  # particles that one call of the program moves, over all of its thetas
_MOST_THETAS, _LEAST_THETAS = 512, 16


class Evaluated(NamedTuple):
    """Draws of theta and what was found of them, a row for each.

    Attributes:
        z: unconstrained coordinates.
        theta: theta's numbers in a row.
        log_prior: their log-density under the prior.
        log_likelihood: of the observations that were looked at; -inf where it was NaN.
        x: a state of the last time that was looked at, given theta and these observations.
    """

    z: np.ndarray
    theta: np.ndarray
    log_prior: np.ndarray
    log_likelihood: np.ndarray
    x: np.ndarray


class Likelihoods(NamedTuple):
    """How thetas are evaluated.

    Attributes:
        evaluate: `evaluate(rng, z, num_steps) -> Evaluated`, over the first `num_steps` observations.
        num_thetas: how many thetas one call of the compiled program takes.
        num_particles: of each inner filter; 0 where there are none, and likelihoods are exact.
        description: in words.
    """

    evaluate: Callable[[np.random.Generator, np.ndarray, int], Evaluated]
    num_thetas: int
    num_particles: int
    description: str


def likelihoods(inner: KnownTheta, num_particles: int, y: Any, inputs: Any) -> Likelihoods:
    """Those of a series, by an inner filter of so many particles (0 of one without)."""
    num_thetas = _MOST_THETAS
    if num_particles:
        num_thetas = int(np.clip(_AT_ONCE // num_particles, _LEAST_THETAS, _MOST_THETAS))
    program = _program(inner)
    room = max(_SHORTEST, 1 << (len(y) - 1).bit_length())
    y, inputs = _padded(y, room), jax.tree.map(lambda rows: _padded(rows, room), inputs)

    def evaluate(rng, z, num_steps):
        found = []
        for start in range(0, len(z), num_thetas):
            some = z[start : start + num_thetas]
            rows = np.concatenate([some, np.broadcast_to(some[:1], (num_thetas - len(some), z.shape[1]))])
            seed = rng.integers(2**32, dtype=np.uint32)
            parts = program(seed, rows.astype(np.float32), y, inputs, num_steps)
            found.append([np.asarray(part, float)[: len(some)] for part in parts])
        theta, log_prior, log_likelihood, x = (np.concatenate(parts) for parts in zip(*found, strict=True))
        log_prior, log_likelihood = (np.where(np.isfinite(a), a, -np.inf) for a in (log_prior, log_likelihood))
        return Evaluated(z, theta, log_prior, log_likelihood, x)

    return Likelihoods(evaluate, num_thetas, num_particles, inner.description)


@lru_cache(maxsize=32)
def _program(inner: KnownTheta) -> Callable:
    """The compiled program for one model and kind of inner filter, whatever the series."""
    model: StateSpaceModel = inner.model

    @jax.jit
    def program(seed, z, y, inputs, num_steps):
        key_start, key_steps, key_x = jax.random.split(jax.random.key(seed), 3)
        z = jnp.asarray(z, float)
        theta = jax.vmap(model.parameters.to_theta)(z)
        log_prior = jax.vmap(model.parameters.log_prior)(z)
        states = jax.vmap(inner.start)(jax.random.split(key_start, len(z)), theta)

        def step(t, carry):
            states, total, rest = carry
            keys = jax.random.split(jax.random.fold_in(key_steps, t), len(z))
            u = jax.tree.map(lambda rows: rows[t], inputs)
            states, info = jax.vmap(lambda key, state: inner.step(key, state, y[t], u))(keys, states)
            # Kahan's sum: a long series in single precision would lose what tells two thetas apart.
            more = info.log_increment - rest
            new = total + more
            rest = jnp.where(jnp.isfinite(new), (new - total) - more, 0.0)
            return states, new, rest

        zero = jnp.zeros(len(z), log_prior.dtype)
        with full_precision():
            states, total, _ = jax.lax.fori_loop(0, num_steps, step, (states, zero, zero))
            x = inner.pick(key_x, states, jnp.arange(len(z)))
        return jax.vmap(lambda theta: ravel_pytree(theta)[0])(theta), log_prior, total, x

    return program


def noise(rng: np.random.Generator, likelihood: Likelihoods, z: np.ndarray, num_steps: int) -> float:
    """The variance of log-likelihood estimates of one theta."""
    if not likelihood.num_particles:
        return 0.0
    found = likelihood.evaluate(rng, np.repeat(z[None], likelihood.num_thetas, axis=0), num_steps).log_likelihood
    return float(np.var(found)) if np.isfinite(found).all() else np.inf


def _padded(rows: Any, room: int) -> np.ndarray:
    """The rows and copies of the last one, so many in all: no loop gets to those."""
    rows = np.asarray(rows)
    return np.concatenate([rows, np.broadcast_to(rows[-1:], (room - len(rows), *rows.shape[1:]))])
