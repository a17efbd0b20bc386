r"""Mixtures of multivariate Student distributions: fitted to weighted draws, drawn from, their density.

They are what `learn` draws theta from, in unconstrained coordinates. The fit is expectation maximisation for Gaussian
components (Dempster et al. 1977), whose number is the one of the best BIC; the tails are then Student's with five
degrees of freedom, heavier than those of nearly any posterior, so that importance weights stay bounded. Everything here
is NumPy in double precision: a few thousand draws of a few coordinates are not worth a compiled program.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

DEGREES = 5.0
_MOST_COMPONENTS = 4
_NUM_ITERATIONS = 15
_LEAST_SHARE = 0.02


class Mixture(NamedTuple):
    """A mixture of K Student distributions over P coordinates.

    Attributes:
        shares: of the components.
        centres: their locations.
        trils: lower-triangular factors of their scale matrices.
    """

    shares: np.ndarray
    centres: np.ndarray
    trils: np.ndarray


def draw(rng: np.random.Generator, mixture: Mixture, num: int) -> np.ndarray:
    """So many draws, a row each, as numbers that single precision holds."""
    which = rng.choice(len(mixture.shares), size=num, p=mixture.shares)
    normals = rng.standard_normal((num, mixture.centres.shape[1]))
    stretch = np.sqrt(DEGREES / rng.chisquare(DEGREES, num))
    z = mixture.centres[which] + stretch[:, None] * np.einsum("nij,nj->ni", mixture.trils[which], normals)
    return z.astype(np.float32).astype(float)


def log_density(mixture: Mixture, z: np.ndarray) -> np.ndarray:
    """The log-density at each row of z."""
    dim = z.shape[1]
    constant = gammaln((DEGREES + dim) / 2) - gammaln(DEGREES / 2) - dim / 2 * np.log(DEGREES * np.pi)
    squares, log_dets = _distances(mixture.centres, mixture.trils, z)
    parts = constant - log_dets - (DEGREES + dim) / 2 * np.log1p(squares / DEGREES)
    return _log_sum(parts + np.log(mixture.shares))


def fit(z: np.ndarray, weights: np.ndarray) -> Mixture:
    """The mixture nearest to the weighted draws; `weights` sum to one."""
    heavy = weights > 1e-6 * np.max(weights)
    z, weights = z[heavy], weights[heavy] / weights[heavy].sum()
    size = 1.0 / np.sum(weights**2)
    dim = z.shape[1]
    best, best_score = None, -np.inf
    for num in range(1, _MOST_COMPONENTS + 1):
        free = num * (1 + dim + dim * (dim + 1) / 2) - 1
        if num > 1 and size < 4 * free:
            break
        found, log_likelihood = _maximise(z, weights, num)
        score = size * log_likelihood - free * np.log(size)  # twice BIC's penalty: another component has to earn it
        if score <= best_score:
            break
        best, best_score = found, score
    assert best is not None
    return best


def widened(mixture: Mixture, by: float) -> Mixture:
    """The mixture with every component so many times as wide."""
    return mixture._replace(trils=mixture.trils * by)


def pooled(mixtures: list[Mixture], shares: list[float]) -> Mixture:
    """One mixture of several, each with its share."""
    return Mixture(
        np.concatenate([share * mixture.shares for share, mixture in zip(shares, mixtures, strict=True)]),
        np.concatenate([mixture.centres for mixture in mixtures]),
        np.concatenate([mixture.trils for mixture in mixtures]),
    )


def modes_apart(mixture: Mixture, least_share: float = 0.05) -> int:
    """How many groups of components are so far apart that hardly any mass lies between them."""
    main = [k for k in range(len(mixture.shares)) if mixture.shares[k] >= least_share]
    group = list(range(len(main)))
    for i in range(len(main)):
        for j in range(i):
            a, b = main[i], main[j]
            covariance = sum(mixture.trils[k] @ mixture.trils[k].T for k in (a, b)) / 2
            apart = mixture.centres[a] - mixture.centres[b]
            if apart @ np.linalg.solve(covariance, apart) < 5.0**2:
                group = [group[j] if g == group[i] else g for g in group]
    return len(set(group))


def _maximise(z: np.ndarray, weights: np.ndarray, num: int) -> tuple[Mixture, float]:
    """So many Gaussian components by expectation maximisation, and the mean log-density of the draws."""
    mean = weights @ z
    apart = z - mean
    whole = (weights[:, None] * apart).T @ apart
    floor = np.diag(np.maximum(np.diag(whole), 1e-12))
    size = 1.0 / np.sum(weights**2)
    centres, shares = _far_apart(z, weights, floor, num), np.full(num, 1.0 / num)
    trils = np.stack([np.linalg.cholesky(_shrunk(whole, floor, size))] * num)
    log_likelihood = -np.inf
    for _ in range(_NUM_ITERATIONS if num > 1 else 1):
        squares, log_dets = _distances(centres, trils, z)
        parts = np.log(shares) - log_dets - 0.5 * squares - 0.5 * z.shape[1] * np.log(2 * np.pi)
        each = _log_sum(parts)
        log_likelihood = float(weights @ each)
        belongs = weights[:, None] * np.exp(parts - each[:, None])
        sums = np.maximum(belongs.sum(axis=0), 1e-12)
        shares = np.maximum(sums, _LEAST_SHARE) / np.maximum(sums, _LEAST_SHARE).sum()
        centres = (belongs.T @ z) / sums[:, None]
        for k in range(num):
            apart = z - centres[k]
            covariance = (belongs[:, k, None] * apart).T @ apart / sums[k]
            trils[k] = np.linalg.cholesky(_shrunk(covariance, floor, size * sums[k]))
    squares, log_dets = _distances(centres, trils, z)
    parts = np.log(shares) - log_dets - 0.5 * squares - 0.5 * z.shape[1] * np.log(2 * np.pi)
    log_likelihood = float(weights @ _log_sum(parts))
    return Mixture(shares, centres, trils), log_likelihood


def _shrunk(covariance: np.ndarray, floor: np.ndarray, size: float) -> np.ndarray:
    """The covariance pulled towards a diagonal one, as if that had been seen a few times."""
    dim = len(covariance)
    trust = max(size, 1.0) / (max(size, 1.0) + dim + 1)
    own = np.diag(np.maximum(np.diag(covariance), 1e-6 * np.diag(floor)))
    return trust * covariance + (1 - trust) * own + 1e-9 * floor


def _far_apart(z: np.ndarray, weights: np.ndarray, floor: np.ndarray, num: int) -> np.ndarray:
    """Centres to start from: the mean's nearest draw, then each time the likely draw farthest from those before."""
    white = z / np.sqrt(np.diag(floor))
    likely = weights >= np.quantile(weights[weights > 0], 0.25)
    chosen = [int(np.argmin(np.sum((white - weights @ white) ** 2, axis=1) + 1e9 * ~likely))]
    while len(chosen) < num:
        nearest = np.min([np.sum((white - white[i]) ** 2, axis=1) for i in chosen], axis=0)
        chosen.append(int(np.argmax(np.where(likely, np.minimum(nearest, 16.0) * weights, -1.0))))
    return z[chosen].copy()


def _log_sum(parts: np.ndarray) -> np.ndarray:
    """The logarithm of the sum of each row's exponentials."""
    top = parts.max(axis=1)
    return top + np.log(np.sum(np.exp(parts - top[:, None]), axis=1))


def _distances(centres: np.ndarray, trils: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared Mahalanobis distances of every row from every component, and the log-determinants of the factors."""
    squares = np.empty((len(z), len(centres)))
    for k, (centre, tril) in enumerate(zip(centres, trils, strict=True)):
        squares[:, k] = np.sum(np.linalg.solve(tril, (z - centre).T) ** 2, axis=0)
    return squares, np.array([np.sum(np.log(np.diag(tril))) for tril in trils])
