"""`Chains`, what Markov chains over theta give back, with the diagnostics that say whether to believe them."""

import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from epf_jax.parameters import Theta
from epf_jax.results import scalars

_WORST_RHAT = 1.01  # and the least effective draws per chain: the rules of Vehtari et al. (2021)
_LEAST_ESS = 100
_MOST_LOST = 0.5  # share of draws whose particles all had zero weight; some of theta's proposals may well be impossible
_LEAST_ACCEPTANCE = 0.02  # of a noisy random walk; the best is 0.07 (Sherlock et al. 2015)


class Chains(NamedTuple):
    """Draws of theta by several Markov chains, after their warm-up.

    Attributes:
        theta: the draws, a pytree with the prior's structure whose leaves have shape (C, D, ...): C chains, D draws.
        log_evidence: log p(y_1:T | theta) at every draw, as the particles of that draw estimated it.
        acceptance: share of accepted moves of theta, for each chain (1 for exact draws).
        rhat: rank-normalised split R-hat of every parameter (Vehtari et al. 2021): 1 where the chains agree.
        ess: effective number of draws of every parameter, all chains together (bulk: of the normalised ranks).
        num_collapsed: for each chain, particle filters in which every weight was zero at some step.
        description: the algorithm and its parts, in words.
    """

    theta: Theta
    log_evidence: Float[np.ndarray, "C D"]
    acceptance: Float[np.ndarray, " C"]
    rhat: Theta
    ess: Theta
    num_collapsed: Int[np.ndarray, " C"]
    description: str = ""

    @property
    def mean(self) -> Theta:
        """Posterior means."""
        return jax.tree.map(lambda draws: np.mean(_pooled(draws), axis=0), self.theta)

    @property
    def sd(self) -> Theta:
        """Posterior standard deviations."""
        return jax.tree.map(lambda draws: np.std(_pooled(draws), axis=0), self.theta)

    def quantiles(self, levels: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)) -> Theta:
        """Posterior quantiles, along the last axis."""
        return jax.tree.map(lambda draws: np.moveaxis(np.quantile(_pooled(draws), levels, axis=0), 0, -1), self.theta)

    def plot(self, *, exact: Any = None, truth: Any = None) -> Any:
        """A figure of every parameter's trace and density."""
        from epf_jax.plots import plot_chains

        return plot_chains(self, exact=exact, truth=truth)

    def to_arviz(self) -> Any:
        """The draws for ArviZ: see `epf_jax.export.chains_to_arviz`."""
        from epf_jax.export import chains_to_arviz

        return chains_to_arviz(self)

    def __repr__(self) -> str:
        num_chains, num_draws = self.log_evidence.shape
        acceptance = ", ".join(f"{share:.2f}" for share in np.asarray(self.acceptance))
        ends = self.quantiles((0.05, 0.95))
        low, high = (jax.tree.map(lambda leaf, k=k: leaf[..., k], ends) for k in (0, 1))
        mean, sd, low, high, ess, rhat = (
            scalars(part) for part in (self.mean, self.sd, low, high, self.ess, self.rhat)
        )
        rows = []
        for name in mean:
            numbers = [f"{part[name]:.4g}" for part in (mean, sd, low, high)]
            rows.append([name, *numbers, f"{ess[name]:.0f}", f"{rhat[name]:.3f}"])
        table = _aligned([["", "mean", "sd", "5%", "95%", "ess", "r-hat"], *rows])
        return f"<{self.description}: {num_chains} chains x {num_draws} draws, acceptance {acceptance}\n{table}>"


def diagnose(draws: Float[np.ndarray, "C D *d"]) -> tuple[Float[np.ndarray, " *d"], Float[np.ndarray, " *d"]]:
    """R-hat and effective sample size of one parameter, by ranks, which infinite variances do not disturb.

    R-hat is the worse of two: that of the draws, and that of their distances from the median, which sees chains that
    agree in location and differ in spread.
    """
    draws = np.asarray(draws, float)
    normal = _normal_scores(draws)
    folded = _normal_scores(np.abs(draws - np.median(_pooled(draws), axis=0)))
    half = draws.shape[1] // 2
    with np.errstate(invalid="ignore", divide="ignore"):  # chains that never moved: R-hat is NaN, and is reported
        rhat = np.maximum(split_gelman_rubin(normal), split_gelman_rubin(folded))
        split = np.concatenate([normal[:, :half], normal[:, -half:]])
        return np.asarray(rhat), np.asarray(effective_sample_size(split))


def _normal_scores(draws: Float[np.ndarray, "C D *d"]) -> Float[np.ndarray, "C D *d"]:
    """The draws replaced by the normal quantiles of their ranks among all (Blom 1958); ties share a rank."""
    from scipy.special import ndtri
    from scipy.stats import rankdata  # half a second, which nobody should wait for who asks for no chain

    pooled = _pooled(draws)
    ranks = rankdata(pooled, axis=0)
    return ndtri((ranks - 0.375) / (len(pooled) + 0.25)).reshape(draws.shape)


def summarise_chains(
    theta: Theta, log_evidence: Array, acceptance: Array, collapsed: Array, description: str
) -> Chains:
    """`Chains` with their diagnostics, after a warning where these are bad."""
    theta = jax.tree.map(np.asarray, theta)
    leaves, structure = jax.tree.flatten(theta)
    found = [diagnose(leaf) for leaf in leaves]
    chains = Chains(
        theta=theta,
        log_evidence=np.asarray(log_evidence),
        acceptance=np.mean(np.asarray(acceptance), axis=1),
        rhat=jax.tree.unflatten(structure, [rhat for rhat, _ in found]),
        ess=jax.tree.unflatten(structure, [ess for _, ess in found]),
        num_collapsed=np.sum(np.asarray(collapsed), axis=1),
        description=description,
    )
    warn_of_bad_chains(chains)
    return chains


def warn_of_bad_chains(chains: Chains) -> None:
    """Tell of chains that disagree, that hardly move, or whose draws are few."""
    num_chains, num_draws = chains.log_evidence.shape
    rhat, ess = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(t)]) for t in (chains.rhat, chains.ess))
    lowest = float(np.min(chains.acceptance))
    lost = np.max(chains.num_collapsed) / num_draws
    if lost > _MOST_LOST:
        warnings.warn(
            f"Every particle had zero weight at some step, in up to {lost:.0%} of a chain's draws. Likely causes: an "
            "observation that the model all but rules out (an outlier, wrong units), or an observation noise too small "
            "for num_particles (try epf.fully_adapted or epf.guided).",
            RuntimeWarning,
            stacklevel=5,
        )
    hint = "more num_draws and num_warmup"
    if lowest < _LEAST_ACCEPTANCE:
        hint = f"more num_particles, whose log-likelihoods are less noisy (acceptance is down to {lowest:.1%})"
    if not np.all(rhat < _WORST_RHAT):
        warnings.warn(
            f"The chains disagree: R-hat is {np.max(rhat):.3f}, where {_WORST_RHAT} is the most to be believed. Likely "
            f"remedies: {hint}.",
            RuntimeWarning,
            stacklevel=5,
        )
    elif not np.all(ess >= _LEAST_ESS * num_chains):
        warnings.warn(
            f"The {num_chains} x {num_draws} draws are worth {np.min(ess):.0f} independent ones, and {_LEAST_ESS} for "
            f"each chain is the least that R-hat and the summaries can be trusted with. Likely remedies: {hint}.",
            RuntimeWarning,
            stacklevel=5,
        )


def _pooled(draws: Float[np.ndarray, "C D *d"]) -> Float[np.ndarray, "CD *d"]:
    draws = np.asarray(draws, float)
    return draws.reshape(-1, *draws.shape[2:])


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f" {line}" for line in lines)
