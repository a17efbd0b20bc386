"""`Chains`, the result of `epf.pmmh` and `epf.particle_gibbs`: draws of theta and x_T, and their posterior."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.findings import Diagnosis, warn_of
from epf_jax.core.naming import scalars
from epf_jax.filters import FilterState
from epf_jax.models.parameters import Theta
from epf_jax.offline.mixing import findings, pooled, rhat_and_ess
from epf_jax.particles.weights import uniform_log_weights
from epf_jax.running.export import inference_data, named_parts, named_summaries, stamps, tidy
from epf_jax.running.records import Summary, summaries


@jax.tree_util.register_static
class Words(str):
    """A text that is not a leaf of a pytree, so that `jax.jit` and `jax.tree.map` accept what contains it."""


class Chains(NamedTuple):
    """The posterior given a whole series, by several Markov chains after their warm-up.

    Attributes:
        theta: summary of the parameters given y_1:T, in one row, so that `theta.mean["phi"][-1]` works as for a filter.
        x: summary of the state x_T given y_1:T, in one row.
        draws: draws of theta, a pytree with the prior's structure and leaves of shape (C, D, ...): C chains, D draws.
        last_states: the draws of x_T that belong to them.
        log_likelihood: log p(y_1:T | theta) at every draw, as estimated by its particles: the likelihood without bias
            in PMMH; in particle Gibbs one of the particles is the path of the last draw.
        acceptance: share of accepted moves of theta, for each chain (1 for exact draws).
        rhat: rank-normalised split R-hat of every parameter (Vehtari et al. 2021): 1 if the chains agree.
        ess: effective number of draws of every parameter, over all chains (bulk: of the normalised ranks).
        num_collapsed: for each chain, the number of particle filters in which every weight was zero at some step.
        levels: the quantile levels of the summaries.
        num_steps: T.
        description: the algorithm and its parts, in words.
    """

    theta: Summary
    x: Summary
    draws: Theta
    last_states: Float[np.ndarray, "C D *x"]
    log_likelihood: Float[np.ndarray, "C D"]
    acceptance: Float[np.ndarray, " C"]
    rhat: Theta
    ess: Theta
    num_collapsed: Int[np.ndarray, " C"]
    levels: Float[np.ndarray, " Q"]
    num_steps: int
    description: str = Words()

    def __repr__(self) -> str:
        num_chains, num_draws = self.log_likelihood.shape
        acceptance = ", ".join(f"{share:.2f}" for share in np.asarray(self.acceptance))
        draws, ess, rhat = scalars(self.draws, num_axes=2), scalars(self.ess), scalars(self.rhat)
        rows = []
        for name, values in draws.items():
            numbers = [np.mean(values), np.std(values), *np.quantile(values, (0.05, 0.95), method="inverted_cdf")]
            rows.append([name, *(f"{number:.4g}" for number in numbers), f"{ess[name]:.0f}", f"{rhat[name]:.3f}"])
        table = _aligned([["", "mean", "sd", "5%", "95%", "ess", "r-hat"], *rows])
        return f"<{self.description}: {num_chains} chains x {num_draws} draws, acceptance {acceptance}\n{table}>"

    @property
    def final(self) -> FilterState:
        """The draws as equally weighted particles, for `epf.forecast` and `epf.smooth`, but not for filters."""
        return _particles(self.draws, self.last_states, self.num_steps)

    def diagnose(self) -> Diagnosis:
        """Whether the chains agree and are long enough, and what to try."""
        return Diagnosis(findings(self))

    def plot(self, **options: Any) -> Any:
        """Traces and densities as a matplotlib figure: see `epf.plots.plot_chains`."""
        from epf_jax.plots import plot_chains

        return plot_chains(self, **options)

    def to_pandas(self, series: Any = None, *, states: bool = False) -> Any:
        """A tidy `pandas.DataFrame` of the posterior, as `Results.to_pandas`, with a row for each parameter."""
        along = {"t": np.array([self.num_steps])}
        if series is not None:
            along["time"] = stamps(self.num_steps, 1, series)
        return tidy(along, "parameter", named_summaries(self.theta, self.x, states=states), self.levels)

    def to_arviz(self, y: Any = None) -> Any:
        """The chains for ArviZ, the log-likelihood of each draw as the statistic `log_marginal_likelihood`."""
        draws = {name: np.asarray(leaf) for name, leaf in named_parts(self.draws, self.last_states, states=True)}
        t = np.arange(1, int(self.num_steps) + 1)
        return inference_data(draws, t, y, log_marginal_likelihood=np.asarray(self.log_likelihood))


def chains_of(
    draws: Theta,
    last_states: Array,
    log_likelihood: Array,
    acceptance: Array,
    collapsed: Array,
    *,
    num_steps: int,
    levels: tuple[float, ...],
    description: str,
) -> Chains:
    """`Chains` with their summaries and diagnostics, after a warning where they are bad.

    All arrays that are given have axes of chains and of draws.
    """
    draws = jax.tree.map(np.asarray, draws)
    leaves, structure = jax.tree.flatten(draws)
    found = [rhat_and_ess(leaf) for leaf in leaves]
    theta, x = _one_row(_particles(draws, last_states, num_steps), levels)
    chains = Chains(
        theta=theta,
        x=x,
        draws=draws,
        last_states=np.asarray(last_states),
        log_likelihood=np.asarray(log_likelihood),
        acceptance=np.mean(np.asarray(acceptance), axis=1),
        rhat=jax.tree.unflatten(structure, [rhat for rhat, _ in found]),
        ess=jax.tree.unflatten(structure, [ess for _, ess in found]),
        num_collapsed=np.sum(np.asarray(collapsed), axis=1),
        levels=np.asarray(levels, log_likelihood.dtype),
        num_steps=num_steps,
        description=Words(description),
    )
    warn_of(findings(chains), stacklevel=4)
    return chains


def _particles(draws: Theta, last_states: Any, num_steps: int) -> FilterState:
    theta, x = jax.tree.map(lambda leaf: jnp.asarray(pooled(leaf)), (draws, last_states))
    log_weights = uniform_log_weights(len(x))
    nan = jnp.full((), jnp.nan, log_weights.dtype)  # chains do not estimate the evidence
    return FilterState(x, theta, None, log_weights, nan, jnp.asarray(num_steps, int))


@partial(jax.jit, static_argnums=1)
def _one_row(final: FilterState, levels: tuple[float, ...]) -> tuple[Summary, Summary]:
    rows: Any = jax.tree.map(lambda leaf: leaf[None], summaries(final, levels))
    return rows


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f" {line}" for line in lines)
