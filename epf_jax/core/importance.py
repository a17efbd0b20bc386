r"""Importance weights: how many draws they are worth, how far their means may be off, whether their tail allows it.

Draws :math:`z_i \sim q` weigh :math:`w_i = p(z_i) \hat p(y \mid z_i) / q(z_i)`. Their mean estimates the evidence, and
weighted means of functions of theta the posterior's, even where the likelihoods are noisy, as long as they are
unbiased. Errors are the usual ones of self-normalised importance sampling (Owen 2013, chapter 9). They can be believed
where the weights have a finite variance: the shape k of a Pareto tail fitted to the largest of them tells (Vehtari et
al. 2024); above .7 it has none to speak of.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

LARGEST_TAIL = 0.7
_POWERS = np.concatenate([np.geomspace(1e-7, 1e-2, 16), np.linspace(0.02, 1.0, 50)])


class Moments(NamedTuple):
    """Means and standard deviations under the weights, a number for each column, with their standard errors.

    Attributes:
        mean: weighted means.
        sd: weighted standard deviations.
        error: standard errors of the means, in standard deviations.
        sd_error: standard errors of the standard deviations, as a share of them.
    """

    mean: np.ndarray
    sd: np.ndarray
    error: np.ndarray
    sd_error: np.ndarray


def normalised(log_weights: np.ndarray) -> np.ndarray:
    """Weights that sum to one; all zero where none is positive."""
    top = np.max(log_weights)
    if not np.isfinite(top):
        return np.zeros(len(log_weights))
    weights = np.exp(log_weights - top)
    return weights / weights.sum()


def size_of(weights: np.ndarray) -> float:
    """The effective sample size of weights that sum to one."""
    return 1.0 / max(float(np.sum(weights**2)), 1e-300)


def moments(values: np.ndarray, weights: np.ndarray) -> Moments:
    """Those of every column of `values`, which may be anything where nothing weighs.

    Where the weights are worth n draws, no error is below 1 / n: one draw has no spread to tell an error by.
    """
    values, weights = values[weights > 0], weights[weights > 0]
    mean = weights @ values
    apart = values - mean
    variance = weights @ apart**2
    sd = np.sqrt(variance)
    scale = np.where(sd > 0, sd, 1.0)
    white = apart / scale
    least = 1.0 / size_of(weights)
    error = np.maximum(np.sqrt(weights**2 @ white**2), least)
    sd_error = np.maximum(0.5 * np.sqrt(weights**2 @ (white**2 - 1.0) ** 2), least)
    return Moments(mean, sd, error, sd_error)


def log_mean(log_weights: np.ndarray) -> tuple[float, float]:
    """The logarithm of the weights' mean, and its standard error."""
    num = len(log_weights)
    centre = logsumexp(log_weights) - np.log(num)
    if not np.isfinite(centre):
        return float(centre), np.inf
    ratios = np.exp(log_weights - centre)
    return float(centre), float(np.sqrt(np.mean((ratios - 1.0) ** 2) / num))


def temperature(base: np.ndarray, log_likelihood: np.ndarray, least: float) -> tuple[float, np.ndarray]:
    """The largest power of the likelihood, at most 1, that leaves weights worth `least` draws, and these weights.

    Where no power does, the one whose weights are worth most, and their own power that is worth `least`: a fit to a
    few draws would have no width.
    """

    def at(power: float) -> np.ndarray:
        return normalised(np.where(np.isfinite(log_likelihood), base + power * log_likelihood, -np.inf))

    worths = [size_of(at(power)) for power in _POWERS]
    enough = [i for i, worth in enumerate(worths) if worth >= least]
    power = _POWERS[enough[-1] if enough else int(np.argmax(worths))]
    weights = at(power)
    low, high = 0.0, 1.0
    for _ in range(30 if size_of(weights) < least else 0):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if size_of(_flattened(weights, middle)) >= least else (low, middle)
    return float(power), weights if enough else _flattened(weights, low)


def _flattened(weights: np.ndarray, power: float) -> np.ndarray:
    flat = np.where(weights > 0, weights, 1.0) ** power * (weights > 0)
    return flat / flat.sum() if flat.sum() > 0 else weights


def tail_shape(weights: np.ndarray) -> float:
    """The shape k of the Pareto distribution nearest to the largest weights (Zhang and Stephens 2009)."""
    num = int(min(0.2 * len(weights), 3.0 * np.sqrt(len(weights))))
    if num < 10:
        return np.inf
    tail = np.sort(weights)[-num - 1 :]
    x = tail[1:] - tail[0]
    if not x[-1] > 0 or not x[0] >= 0:
        return -np.inf if x[-1] == 0 else np.inf
    x = np.maximum(x, 1e-300)
    guesses = 20 + int(np.sqrt(num))
    quartile = x[int(0.25 * num + 0.5) - 1]
    theta = 1 / x[-1] + (1 - np.sqrt(guesses / (np.arange(1, guesses + 1) - 0.5))) / (3 * max(quartile, 1e-300))
    k = np.array([np.mean(np.log1p(-t * x)) for t in theta])
    profile = num * (np.log(-theta / k) - k - 1)
    shares = normalised(profile)
    best = float(shares @ theta)
    return float((num * np.mean(np.log1p(-best * x)) + 10 * 0.5) / (num + 10))  # towards .5, as if seen ten times
