"""`Chains`, the draws of Markov chains over theta, and the `Results` that they give."""

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.naming import scalars
from epf_jax.filters import FilterState
from epf_jax.models.parameters import Theta
from epf_jax.offline.mixing import findings, moving, pooled, rhat_and_ess
from epf_jax.particles.weights import uniform_log_weights
from epf_jax.running.results import Results, Summary, summaries


@jax.tree_util.register_static
class Words(str):
    """A text that is no leaf: what holds it can go through `jax.jit` and `jax.tree.map`."""


class Chains(NamedTuple):
    """Draws of theta by several Markov chains, after their warm-up.

    Attributes:
        theta: the draws, a pytree with the prior's structure whose leaves have shape (C, D, ...): C chains, D draws.
        log_likelihood: log p(y_1:T | theta) at every draw, as the particles of that draw estimated it: without bias
            of the likelihood in PMMH; in particle Gibbs the path of the draw before is one of them.
        acceptance: share of accepted moves of theta, for each chain (1 for exact draws).
        rhat: rank-normalised split R-hat of every parameter (Vehtari et al. 2021): 1 where the chains agree.
        ess: effective number of draws of every parameter, all chains together (bulk: of the normalised ranks).
        num_collapsed: for each chain, particle filters in which every weight was zero at some step.
        description: the algorithm and its parts, in words.
    """

    theta: Theta
    log_likelihood: Float[np.ndarray, "C D"]
    acceptance: Float[np.ndarray, " C"]
    rhat: Theta
    ess: Theta
    num_collapsed: Int[np.ndarray, " C"]
    description: str = Words()

    def __repr__(self) -> str:
        num_chains, num_draws = self.log_likelihood.shape
        acceptance = ", ".join(f"{share:.2f}" for share in np.asarray(self.acceptance))
        draws, ess, rhat = scalars(self.theta, num_axes=2), scalars(self.ess), scalars(self.rhat)
        rows = []
        for name, values in draws.items():
            numbers = [np.mean(values), np.std(values), *np.quantile(values, (0.05, 0.95), method="inverted_cdf")]
            rows.append([name, *(f"{number:.4g}" for number in numbers), f"{ess[name]:.0f}", f"{rhat[name]:.3f}"])
        table = _aligned([["", "mean", "sd", "5%", "95%", "ess", "r-hat"], *rows])
        return f"<{self.description}: {num_chains} chains x {num_draws} draws, acceptance {acceptance}\n{table}>"


def chains_of(theta: Theta, log_likelihood: Array, acceptance: Array, collapsed: Array, description: str) -> Chains:
    """`Chains` with their diagnostics; all that is given has axes of chains and of draws."""
    theta = jax.tree.map(np.asarray, theta)
    leaves, structure = jax.tree.flatten(theta)
    found = [rhat_and_ess(leaf) for leaf in leaves]
    return Chains(
        theta=theta,
        log_likelihood=np.asarray(log_likelihood),
        acceptance=np.mean(np.asarray(acceptance), axis=1),
        rhat=jax.tree.unflatten(structure, [rhat for rhat, _ in found]),
        ess=jax.tree.unflatten(structure, [ess for _, ess in found]),
        num_collapsed=np.sum(np.asarray(collapsed), axis=1),
        description=Words(description),
    )


def results_of_chains(chains: Chains, x: Array, num_steps: int, levels: tuple[float, ...]) -> Results:
    """The posterior given all observations as one row of `Results`, after a warning where the chains are bad.

    Args:
        chains: the draws of theta.
        x: the draws of x_T that belong to them, with axes of chains and of draws.
        num_steps: T.
        levels: of the quantiles.
    """
    for found in findings(chains):
        said = found.message[0].upper() + found.message[1:]
        warnings.warn(f"{said} Likely remedies: {found.advice}", RuntimeWarning, stacklevel=4)
    theta, x = jax.tree.map(lambda draws: jnp.asarray(pooled(draws)), (chains.theta, x))
    log_weights = uniform_log_weights(chains.log_likelihood.size)
    nan = jnp.full((), jnp.nan, log_weights.dtype)
    final = FilterState(x, theta, None, log_weights, nan, jnp.asarray(num_steps, int))
    of_theta, of_x = _one_row(final, levels)
    none = jnp.zeros(1, int)
    ess = [scalars(chains.ess)[name] for name in moving(chains)]
    return Results(
        theta=of_theta,
        x=of_x,
        log_evidence=nan[None],
        ess=jnp.asarray([np.min(ess) if ess else np.nan], log_weights.dtype),
        resampled=none > 0,
        acceptance=jnp.asarray([np.mean(chains.acceptance)], log_weights.dtype),
        num_bad_weights=none,
        num_bad_densities=none,
        collapsed=none > 0,
        levels=jnp.asarray(levels, log_weights.dtype),
        final=final,
        chains=chains,
    )


@partial(jax.jit, static_argnums=1)
def _one_row(final: FilterState, levels: tuple[float, ...]) -> tuple[Summary, Summary]:
    rows: Any = jax.tree.map(lambda leaf: leaf[None], summaries(final, levels))
    return rows


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f" {line}" for line in lines)
