"""Erol et al. (2013), figure 7: STAR, two parameters. The logistic's series leaves its radius of convergence there."""

from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from epf_jax.apps.page import Figure, Table
from epf_jax.apps.reproduce.cases import STAR, Size, data_settings, series
from epf_jax.apps.reproduce.claims import Claim, Experiment, Findings, verdict
from epf_jax.apps.reproduce.compared import Comparison, default, literal, liu_west, others
from epf_jax.apps.reproduce.store import Arrays, Stored, Unit
from epf_jax.core.derivatives import taylor_expansion
from epf_jax.exact import grid_moments, known_path
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.samplers import slice_sampler
from epf_jax.statistics import Statistic, separable, statistic_of_path

ORDER = 9
AXES = {"c": np.linspace(-2.0, 6.5, 86), "gamma": np.linspace(-1.0, 2.6, 73)}


def series_of_logistic(model: StateSpaceModel) -> Statistic:
    r"""The paper's statistic: the logistic's Taylor series in u = gamma (x - c), cut off at u^9.

    Multiplied out, :math:`u^k = \sum_j \binom{k}{j} x^{k-j} (-c)^j \gamma^k`: the system with that series in place of the
    logistic is separable, so its statistic (`separable`) is exact for it.
    """
    with jax.ensure_compile_time_eval():
        g = np.asarray(jax.jit(taylor_expansion(lambda z: jax.nn.sigmoid(z[0]), jnp.zeros(1), ORDER))())
    terms = [(k, j) for k in range(1, ORDER + 1, 2) for j in range(k + 1)]

    def features(x, u):
        rest = [-0.8 * g[k] * comb(k, j) * (-1) ** j * x * x ** (k - j) for k, j in terms]
        return jnp.stack([(0.9 - 0.8 * g[0]) * x, *rest])

    def coefficients(theta):
        rest = [theta["gamma"] ** k * theta["c"] ** j for k, j in terms]
        return jnp.stack([jnp.ones_like(theta["c"]), *rest])

    def transition(theta, x, u):
        return dist.Normal(features(x, u) @ coefficients(theta), 1.0)

    surrogate = StateSpaceModel(model.prior, model.initial, transition, model.observation)
    return separable(surrogate, features, coefficients)._replace(model=model)  # on purpose


COMPARED = Comparison(
    STAR,
    [liu_west(50_000), literal(100, "EPF literal: series to u^9, {n}", series_of_logistic, x64=True)],
    [default(100), default(1000)],
    others(slice_sampler),
)


def times(size: Size) -> tuple[int, ...]:
    """Where the Gibbs density is shown."""
    return (max(size.num_steps // 50, 1), max(size.num_steps // 10, 2), size.num_steps)


def units(size: Size) -> list[Unit]:
    """The exact posterior, the filters, and the density of a known path, exact and by the paper's series."""

    def gibbs() -> Arrays:
        x, y = (rows[0] for rows in series(STAR, Size("one", 1, size.num_steps)))
        with jax.enable_x64(True):
            exact = known_path(STAR.model(), x, AXES).log_density
            statistic = series_of_logistic(STAR.model())

            @jax.jit
            def by_series(x, y, c, gamma):
                last = jax.tree.map(lambda rows: rows[-1], statistic_of_path(statistic, x, y))
                along_c = jax.vmap(lambda c, g: statistic.log_density(last, {"c": c, "gamma": g}), (0, None))
                return jax.vmap(along_c, (None, 0), 1)(c, gamma)

            log_q = by_series(*(jnp.asarray(v) for v in (x, y, AXES["c"], AXES["gamma"])))
        at = np.array(times(size)) - 1
        # |u| at the true parameters, against the logistic's radius of convergence, pi
        u = STAR.truth["gamma"] * (x[:-1] - STAR.truth["c"])
        return {"log_p": exact[at], "log_q": np.asarray(log_q), "u": u}

    one = data_settings(STAR, Size("one", 1, size.num_steps))
    grid = {name: [axis[0], axis[-1], len(axis)] for name, axis in AXES.items()}
    settings = {**one, "order": ORDER, "times": times(size), "grid": grid}
    return [*COMPARED.units(size), Unit("star-gibbs", settings, gibbs)]


def _marginal_moments(log_density: np.ndarray) -> dict[str, tuple[float, float]]:
    """Mean and sd of c and gamma under a log-density on the grid."""
    p = np.nan_to_num(np.exp(log_density - np.nanmax(log_density)))
    with np.errstate(divide="ignore"):  # a row may have no mass at all
        return {name: grid_moments(AXES[name], np.log(p.sum(axis=1 - i))) for i, name in enumerate(("c", "gamma"))}


def _settings(size: Size) -> list[tuple[str, str, str]]:
    n = size.particles
    return [
        ("model", "a_1 = 0.9, b_1 = 0.1, sigma = 1, sigma_obs = 0.1, gamma = 1, c = 3", "the same"),
        ("x_0", "not stated", "N(0, 1)"),
        ("prior", "not stated", "gamma ~ N(0.5, 0.5^2), c ~ N(2, 1), independent"),
        ("T", "1000", str(size.num_steps)),
        ("Liu-West", "N = 50000", f"N = {n(50_000)}, rho = 0.9"),
        ("EPF", "N = 100, 9th order, one MH step",
         f"N = {n(100)}, series to u^9, float64, one population-scaled MH step, multinomial"),
        ("data sets", "1", str(size.num_series)),
    ]  # fmt: skip


def present(size: Size, results: dict[str, Stored]) -> Findings:
    """Figure 7 with the exact posterior, and why the literal filter fails."""
    judged, gibbs = COMPARED.judged(size, results), results["star-gibbs"].arrays
    outside = float(np.mean(np.abs(gibbs["u"]) > np.pi))
    exact, by_series = _marginal_moments(gibbs["log_p"][-1]), _marginal_moments(gibbs["log_q"])
    first = _marginal_moments(gibbs["log_p"][0])

    (lw, lit), (small, large) = COMPARED.paper, COMPARED.ours
    words, worst = judged.words, judged.worst
    inside = all(abs(STAR.truth[p] - exact[p][0]) < 3 * exact[p][1] for p in STAR.truth)
    shrinks = all(exact[p][1] < first[p][1] for p in STAR.truth)
    n = size.particles
    return Findings(
        [
            "The paper replaces the logistic by its Taylor series in u = gamma (x - c) about 0, which converges for "
            f"|u| < pi. At the true parameters {outside:.0%} of the steps lie outside, and |u| reaches "
            f"{np.max(np.abs(gibbs['u'])):.1f}. Chebyshev nodes on a box that follows the posterior need no series, and the "
            "fully adapted proposal loses few particles."
        ],
        _settings(size),
        [
            Figure("star-gibbs", "p(gamma, c | x_0:t) of a known path at growing t (contours at 50% and 95% of its mass), "
                   "and the same density by the paper's series at the last t.", lambda: _draw_gibbs(gibbs, times(size))),
            Figure("star", "Posterior of gamma and c over time: the paper's filters and this library's, against the exact "
                   "posterior.", lambda: judged.draw({"gamma": (-0.8, 2.4), "c": (-0.5, 5.8)})),
        ],
        [
            Table("The density of the known path at the last t", [
                {"density": label, **{p: f"{m[p][0]:.3f} +- {m[p][1]:.3f}" for p in STAR.truth}}
                for label, m in (("exact", exact), (f"series to u^{ORDER}", by_series))
            ], "Mean and sd on the grid of the figure. With the path known nothing is sampled: the difference is the "
               "series' own doing."),
            judged.table(),
        ],
        [
            Claim("Figure 7(a)", "The Gibbs density p(gamma, c | x_0:t) shrinks about the true values.",
                  verdict(inside and shrinks, because="it did not concentrate about the true values"),
                  "; ".join(f"{p}: {first[p][0]:.2f} +- {first[p][1]:.2f} at t = {times(size)[0]}, {exact[p][0]:.2f} +- "
                            f"{exact[p][1]:.2f} at t = {times(size)[-1]}" for p in STAR.truth) + "."),
            Claim("Figure 7(b)", "Liu-West with N = 50000 does not converge at all.",
                  verdict(worst(lw).verdict in ("off", "collapsed", "not finite"), because=worst(lw).reason), f"{words(lw)}."),
            Claim("Figure 7(c)", "The EPF converges quickly to both values with N = 100 and a 9th-order expansion.",
                  verdict(worst(lit).verdict == "agrees", because=f"{worst(lit).reason}: {outside:.0%} of the steps lie "
                          "outside the series' radius of convergence"),
                  f"{words(lit)}. On the true path itself the series gives "
                  + ", ".join(f"{p} = {by_series[p][0]:.2f} (exact {exact[p][0]:.2f} +- {exact[p][1]:.2f})" for p in STAR.truth)
                  + f". With Chebyshev nodes and the fully adapted proposal, N = {n(100)}: {words(small)}; "
                  f"N = {n(1000)}: {words(large)}."),
        ],
    )  # fmt: skip


def _levels(density: np.ndarray, shares: tuple[float, ...]) -> list[float]:
    """The heights above which the given shares of the mass lie, increasing."""
    ordered = np.sort(density.ravel())[::-1]
    mass = np.cumsum(ordered) / ordered.sum()
    return sorted(float(ordered[np.searchsorted(mass, share)]) for share in shares)


def _draw_gibbs(gibbs: Arrays, at: tuple[int, ...]) -> Any:
    import matplotlib.pyplot as plt

    panels = [(row, f"exact, t = {t}") for row, t in zip(gibbs["log_p"], at, strict=True)]
    panels.append((gibbs["log_q"], f"series to u^{ORDER}, t = {at[-1]}"))
    figure, axes = plt.subplots(1, len(panels), figsize=(3.4 * len(panels), 3.5), sharex=True, sharey=True)
    for ax, (log_density, title) in zip(axes, panels, strict=True):
        density = np.nan_to_num(np.exp(log_density - np.nanmax(log_density)))
        low, high = _levels(density, (0.95, 0.5))
        colour = "#d1662a" if "exact" in title else "#1f5fa8"
        if high > low:
            ax.contourf(
                AXES["gamma"], AXES["c"], density, levels=[low, high, 1.01], colors=[colour, colour], alpha=0.35
            )
            ax.contour(AXES["gamma"], AXES["c"], density, levels=[low, high], colors=colour, linewidths=1)
        else:  # narrower than the grid
            c, gamma = np.unravel_index(np.argmax(density), density.shape)
            ax.plot(AXES["gamma"][gamma], AXES["c"][c], "o", color=colour)
        ax.plot(STAR.truth["gamma"], STAR.truth["c"], "k+", markersize=10)
        ax.set(title=title, xlabel="gamma")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("c")
    figure.tight_layout()
    return figure


EXPERIMENT = Experiment("star", "STAR: two parameters", units, present)
