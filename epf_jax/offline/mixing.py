"""Diagnosis of chains: R-hat and ESS (Vehtari et al. 2021), and findings in words."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from epf_jax.core.findings import Finding
from epf_jax.core.naming import scalars

_WORST_RHAT = 1.01  # and the least effective draws per chain: the rules of Vehtari et al. (2021)
_LEAST_ESS = 100
_MOST_LOST = 0.5  # share of draws whose particles all had zero weight; some of theta's proposals may well be impossible
_LEAST_ACCEPTANCE = 0.02  # of a noisy random walk; the best is 0.07 (Sherlock et al. 2015)


def rhat_and_ess(draws: Float[np.ndarray, "C D *d"]) -> tuple[Float[np.ndarray, " *d"], Float[np.ndarray, " *d"]]:
    """R-hat and effective sample size of one parameter, by ranks, so that infinite variances do no harm.

    R-hat is the larger of two: that of the draws, and that of their distances from the median, which detects chains
    that agree in location but differ in spread.
    """
    draws = np.asarray(draws, float)
    normal = _normal_scores(draws)
    folded = _normal_scores(np.abs(draws - np.median(pooled(draws), axis=0)))
    half = draws.shape[1] // 2
    with np.errstate(invalid="ignore", divide="ignore"):  # chains that never moved: R-hat is NaN, and is reported
        rhat = np.maximum(split_gelman_rubin(normal), split_gelman_rubin(folded))
        split = np.concatenate([normal[:, :half], normal[:, -half:]])
        # Chains that go up and down by turns can be worth more draws than they have, but not as many as few draws say.
        # (Of some, numpyro's sum over lags comes out negative.)
        num = draws.shape[0] * draws.shape[1]
        ess, most = np.asarray(effective_sample_size(split)), num * np.log10(num)
        return np.asarray(rhat), np.where((ess <= 0) | (ess > most), most, ess)


def _normal_scores(draws: Float[np.ndarray, "C D *d"]) -> Float[np.ndarray, "C D *d"]:
    """The draws replaced by the normal quantiles of their ranks among all (Blom 1958); ties share a rank."""
    from scipy.special import ndtri
    from scipy.stats import rankdata  # half a second, which nobody should wait for who asks for no chain

    ranks = rankdata(pooled(draws), axis=0)
    return ndtri((ranks - 0.375) / (len(ranks) + 0.25)).reshape(draws.shape)


def pooled(draws: Float[np.ndarray, "C D *d"]) -> Float[np.ndarray, "CD *d"]:
    """The draws of all chains, one after the other."""
    draws = np.asarray(draws)
    return draws.reshape(-1, *draws.shape[2:])


def moving(chains: Any) -> list[str]:
    """The parameters that vary over the draws: some entries of a Cholesky factor are constant."""
    return [name for name, draws in scalars(chains.draws, num_axes=2).items() if np.ptp(draws) != 0.0]


def findings(chains: Any) -> Iterator[Finding]:
    """Findings: chains that lost their particles, disagree, hardly move, or have too few effective draws."""
    num_chains, num_draws = chains.log_likelihood.shape
    names = moving(chains)
    rhat, ess = ({name: scalars(part)[name] for name in names} for part in (chains.rhat, chains.ess))
    lowest, lost = float(np.min(chains.acceptance)), np.max(chains.num_collapsed) / num_draws
    unborn = ~np.all(np.isfinite(chains.log_likelihood), axis=1)
    if unborn.any():
        yield Finding(
            "zero weights",
            f"chain {', '.join(str(i) for i in np.flatnonzero(unborn))}",
            "It has draws that no particle could explain: it never left the place where it was started.",
            "Look at the data for an observation that the model all but rules out (an outlier, wrong units), or take "
            "more num_particles.",
            float("inf"),
        )
    if lost > _MOST_LOST:
        yield Finding(
            "zero weights",
            "all chains",
            f"Every particle had zero weight at some step, in up to {lost:.0%} of a chain's draws.",
            "Look at the data for an observation that the model all but rules out (an outlier, wrong units); if the "
            "observation noise is too small for num_particles, take epf.fully_adapted or epf.laplace.",
        )
    remedy = "Take more num_draws and num_warmup."
    if lowest < _LEAST_ACCEPTANCE:
        remedy = f"Take more num_particles, whose log-likelihoods are less noisy (acceptance is down to {lowest:.1%})."
    apart = [name for name in names if not rhat[name] < _WORST_RHAT]  # NaN, of chains that never moved, too
    few = [name for name in names if not ess[name] >= _LEAST_ESS * num_chains]
    if apart:
        worst = np.max([rhat[name] for name in apart])
        yield Finding(
            "mixing",
            ", ".join(apart),
            f"The chains disagree: R-hat is {worst:.3f}, where {_WORST_RHAT} is the most to be believed.",
            remedy,
            float(np.sqrt(worst**2 - 1.0)),
        )
    elif few:
        least = np.min([ess[name] for name in few])
        yield Finding(
            "mixing",
            ", ".join(few),
            f"The {num_chains} x {num_draws} draws are worth {least:.0f} independent ones, and {_LEAST_ESS} for each "
            "chain is the least that R-hat and the summaries can be trusted with.",
            remedy,
            float(1.0 / np.sqrt(least)),
        )
