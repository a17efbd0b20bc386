"""Importance sampling from a Student-t that is fitted to the posterior in a few tempered rounds."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from benchmarks.breadth.entry import Case
from benchmarks.breadth.likelihoods import LogLikelihood

FREEDOM, WIDER = 5.0, 1.3  # of the proposal: degrees of freedom, and its variance against the posterior's
ROUNDS = 40
LEVELS = (0.05, 0.5, 0.95)


class Target(NamedTuple):
    """Log p(z) + log p(y | z) of many z, and the same without the prior."""

    log_prior: Callable[[np.ndarray], np.ndarray]
    log_likelihood: Callable[[np.ndarray], np.ndarray]


def target_of(case: Case, log_likelihood: LogLikelihood, seed: int, chunk: int) -> Target:
    """The densities in unconstrained coordinates, computed `chunk` at a time."""
    coordinates = case.model.parameters
    keys = iter(jax.random.split(jax.random.key(seed), 100_000))
    prior = jax.jit(jax.vmap(coordinates.log_prior))
    likelihood = jax.jit(jax.vmap(lambda key, z: log_likelihood(key, coordinates.to_theta(z))))

    def log_prior(z):
        return np.asarray(prior(jnp.asarray(z, float)), float)

    def by_chunks(z):
        size = min(chunk, len(z))  # both are powers of two
        found = [
            np.asarray(likelihood(jax.random.split(next(keys), size), jnp.asarray(z[i : i + size], float)), float)
            for i in range(0, len(z), size)
        ]
        return np.nan_to_num(np.concatenate(found), nan=-np.inf)

    return Target(log_prior, by_chunks)


class Proposal(NamedTuple):
    """A Student-t in z."""

    mean: np.ndarray
    scale_tril: np.ndarray

    def draws(self, num: int, seed: int) -> np.ndarray:
        """By scrambled Sobol numbers, which are spread more evenly than independent ones."""
        P = len(self.mean)
        uniform = np.clip(stats.qmc.Sobol(P + 1, seed=seed).random(num), 1e-9, 1 - 1e-9)
        stretch = np.sqrt(FREEDOM / stats.chi2.ppf(uniform[:, -1:], FREEDOM))
        return self.mean + stretch * stats.norm.ppf(uniform[:, :P]) @ self.scale_tril.T

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """Of each row."""
        return stats.multivariate_t(self.mean, self.scale_tril @ self.scale_tril.T, FREEDOM).logpdf(z).reshape(len(z))


def fitted(z: np.ndarray, log_weights: np.ndarray) -> Proposal:
    """To the weighted draws, a little wider."""
    w = normalised(log_weights)
    mean = w @ z
    covariance = (z - mean).T @ (w[:, None] * (z - mean)) * WIDER * (FREEDOM - 2) / FREEDOM
    return Proposal(mean, np.linalg.cholesky(covariance + 1e-9 * np.eye(len(mean))))


def normalised(log_weights: np.ndarray) -> np.ndarray:
    """Weights that sum to one."""
    w = np.exp(log_weights - np.max(log_weights))
    return w / np.sum(w)


def ess(log_weights: np.ndarray) -> float:
    """Effective sample size."""
    return float(1 / np.sum(normalised(log_weights) ** 2))


def temperature(log_base: np.ndarray, log_likelihood: np.ndarray, least: float, low: float) -> float:
    """The highest power of the likelihood from `low` to one that leaves an effective sample size of `least`.

    Below the power that the draws were made for, the effective sample size falls, too: nothing is looked for there.
    """
    high = 1.0
    if ess(log_base + log_likelihood) >= least:
        return 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if ess(log_base + middle * log_likelihood) >= least else (low, middle)
    return low


def adapted(target: Target, start: Proposal, num: int, until: float) -> tuple[Proposal, int]:
    """The proposal after rounds of draws that let in more and more of the likelihood, and twice all of it."""
    proposal, power, whole = start, 0.0, 0
    for i in range(ROUNDS):
        z = proposal.draws(num, seed=i)
        log_base, log_likelihood = target.log_prior(z) - proposal.log_density(z), target.log_likelihood(z)
        log_likelihood = np.where(np.isfinite(log_likelihood), log_likelihood, -1e9)
        power = temperature(log_base, log_likelihood, 0.15 * num, power)
        proposal = fitted(z, log_base + power * log_likelihood)
        whole += power == 1.0
        if whole == 2 or time.time() > until:
            break
    return proposal, i + 1


def posterior(case: Case, pilot: Target, target: Target, *, seconds: float, num: int, enough: float) -> dict[str, Any]:
    """Mean, sd and quantiles of every parameter and the evidence, with errors, by draws until their ESS is `enough`.

    Args:
        case: the model and its series.
        pilot: what the proposal is fitted to: the target, or a cheaper one.
        target: the posterior.
        seconds: the longest time for all.
        num: draws of a round.
        enough: the effective sample size to stop at.
    """
    begin, coordinates = time.time(), case.model.parameters
    start = Proposal(np.asarray(coordinates.centre, float), np.diag(np.asarray(coordinates.scale, float)))
    proposal, rounds = adapted(pilot, start, num, begin + 0.5 * seconds)
    if pilot is not target:
        proposal, more = adapted(target, proposal, num, begin + 0.5 * seconds)
        rounds += more
    z, log_weights = np.zeros((0, len(proposal.mean))), np.zeros(0)
    while len(z) == 0 or (ess(log_weights) < enough and time.time() - begin < 0.85 * seconds):
        new = proposal.draws(num, seed=1000 + len(z))
        log_new = target.log_prior(new) - proposal.log_density(new) + target.log_likelihood(new)
        z, log_weights = np.concatenate([z, new]), np.concatenate([log_weights, log_new])
    draws = np.asarray(jax.vmap(lambda z: _flat(coordinates.to_theta(z)))(jnp.asarray(z, float)), float)
    w, top = normalised(log_weights), np.max(log_weights)
    return {
        "parameters": summary(case.names, draws, w),
        "log_evidence": float(top + np.log(np.mean(np.exp(log_weights - top)))),
        "log_evidence_error": float(np.sqrt(max(np.sum(w**2) - 1 / len(w), 0.0))),
        "ess": ess(log_weights), "draws": len(z), "rounds": rounds, "seconds": round(time.time() - begin, 1),
    }  # fmt: skip


def _flat(theta: Any) -> jax.Array:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(theta)])


def summary(names: tuple[str, ...], draws: np.ndarray, w: np.ndarray) -> dict[str, Any]:
    """Of weighted draws: each parameter's mean, sd and quantiles, and the standard errors of the mean and the sd."""
    found = {}
    for name, values in zip(names, draws.T, strict=True):
        mean = float(w @ values)
        squares = (values - mean) ** 2
        sd = float(np.sqrt(w @ squares))
        order = np.argsort(values)
        share = np.cumsum(w[order]) - w[order] / 2
        found[name] = {
            "mean": mean, "sd": sd, "mean_error": float(np.sqrt(w**2 @ squares)),
            "sd_error": float(np.sqrt(w**2 @ (squares - sd**2) ** 2)) / (2 * sd),
            "quantiles": [float(np.interp(level, share, values[order])) for level in LEVELS],
        }  # fmt: skip
    return found
