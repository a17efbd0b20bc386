"""Erol et al. (2013), figures 3 and 4: the Gibbs density p(theta | x_0:t) of SIN, and its Taylor approximations."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.apps.page import Figure, Table
from epf_jax.apps.reproduce.cases import SIN, Size, data_settings, series
from epf_jax.apps.reproduce.claims import Claim, Experiment, Findings, verdict
from epf_jax.apps.reproduce.store import Arrays, Stored, Unit
from epf_jax.exact import grid_moments, kl, path_log_likelihood
from epf_jax.statistics import statistic_of_path, taylor

ORDERS, NUM_PATHS = (1, 3, 5, 7, 9), 20
GRID = np.linspace(-1.2, 1.2, 481)  # six prior standard deviations to either side of the prior's mean
ROUNDING = 1e-15  # below this a divergence is rounding
COLOURS = ("#9ecae1", "#6baed6", "#3182bd", "#08519c", "#08306b")


def lengths(size: Size) -> tuple[int, ...]:
    """T = 4, 16, 64, ..., 1024, as far as the size allows."""
    return tuple(t for t in (4, 16, 64, 256, 1024) if t <= max(size.num_steps + 24, 16))


def units(size: Size) -> list[Unit]:
    """One unit: exact densities, and expansions at 0 and at the true value."""
    times = lengths(size)
    num_paths = NUM_PATHS if size.num_steps >= 1000 else 3
    about = {
        **data_settings(SIN, Size("paths", num_paths, times[-1])),
        "lengths": times,
        "orders": ORDERS,
        "grid": [GRID[0], GRID[-1], len(GRID)],
    }

    def compute() -> Arrays:
        x, y = series(SIN, Size("paths", num_paths, times[-1]))
        with jax.enable_x64(True):
            model = SIN.model()
            exact = _exact(model, x, times)
            found: Arrays = {"log_p": exact[0]}
            for name, centre in (("", None), ("_at_truth", SIN.truth)):
                q = np.stack([_approximate(taylor(model, m, centre=centre), x, y, times) for m in ORDERS])
                pairs = [[[(exact[i, j], qm[i, j]) for j in range(len(times))] for i in range(num_paths)] for qm in q]
                found["kl" + name] = np.array([[[kl(*pair, GRID) for pair in row] for row in rows] for rows in pairs])
                found["log_q" + name] = q[:, 0]
        return found

    return [Unit("gibbs", {**about, "centres": [0.0, SIN.truth["theta"]]}, compute)]


def _exact(model, x, times):
    """Log p(theta | x_0:t) on the grid up to a constant, for every path and every t of `times`."""

    @jax.jit
    @jax.vmap
    def densities(x):
        def at(theta):
            prior = model.prior["theta"].log_prob(theta)
            return prior + path_log_likelihood(model, {"theta": theta}, x)[jnp.array(times) - 1]

        return jax.vmap(at)(jnp.asarray(GRID)).T

    return np.asarray(densities(jnp.asarray(x)))


def _approximate(statistic, x, y, times):
    """Log p_hat(theta | x_0:t) on the grid up to a constant, for every path and every t of `times`."""

    @jax.jit
    @jax.vmap
    def densities(x, y):
        S = jax.tree.map(lambda rows: rows[jnp.array(times) - 1], statistic_of_path(statistic, x, y))
        return jax.vmap(
            lambda S: jax.vmap(lambda theta: statistic.log_density(S, {"theta": theta}))(jnp.asarray(GRID))
        )(S)

    return np.asarray(densities(jnp.asarray(x), jnp.asarray(y)))


def present(size: Size, results: dict[str, Stored]) -> Findings:
    """Shrinkage, approximations by order, and the divergence over order and length."""
    a = results["gibbs"].arrays
    times = lengths(size)
    median, median_truth = np.median(a["kl"], axis=1), np.median(a["kl_at_truth"], axis=1)
    mean, sd = zip(*(grid_moments(GRID, row) for row in a["log_p"]), strict=True)
    theta = SIN.truth["theta"]
    off = (mean[-1] - theta) / sd[-1]
    grows = all(row[-1] > row[0] for row in median)
    falls = bool(np.all(np.diff(np.log(np.maximum(median[:, -1], ROUNDING))) < 0))
    at_truth = [bool(np.all(np.diff(np.maximum(row[np.argmax(row) :], ROUNDING)) <= 0)) for row in median_truth]
    text = [
        "Here the path is known, so nothing is sampled: the question is only how well a polynomial statistic stands for "
        f"the path. Every divergence is over theta in [{GRID[0]:g}, {GRID[-1]:g}], six prior standard deviations to "
        f"either side; tables give the median over {a['kl'].shape[1]} simulated paths."
    ]

    def table(title, values, note=""):
        return Table(
            title,
            [
                {"order M": m, **{f"T = {t}": _number(v) for t, v in zip(times, row, strict=True)}}
                for m, row in zip(ORDERS, values, strict=True)
            ],
            note,
        )

    return Findings(
        text,
        [("model", "x_t = sin(theta x_{t-1}) + N(0, 1), theta = 0.7, prior N(0, 0.2^2)", "the same"),
         ("T of the approximate densities", "1024", str(times[-1])),
         ("centre of the expansion", "0", "0; the true value in the second table"),
         ("interval of the KL", "not stated", f"[{GRID[0]:g}, {GRID[-1]:g}]"),
         ("paths", "1", str(a["kl"].shape[1]))],
        [Figure("gibbs", "Left: the exact Gibbs density shrinks as the path grows. Middle: approximations by order at "
                f"T = {times[-1]}; low orders are confidently wrong. Right: median KL over paths; at a fixed order it "
                "grows with T.", lambda: _draw(a, median, times))],
        [table("KL(p, p_hat), expansion at 0", median),
         table("KL(p, p_hat), expansion at the true value", median_truth,
               "The proof of theorem 4 in the paper's appendix argues that at the true centre any order converges as T grows.")],
        [
            Claim("Figure 3", "The Gibbs density p(theta | x_0:t) shrinks about the true value as t grows.",
                  verdict(sd[-1] < 0.5 * sd[0] and abs(off) < 3, because="it did not concentrate about the true value"),
                  f"Its sd falls from {sd[0]:.3f} at t = {times[0]} to {sd[-1]:.3f} at t = {times[-1]}, where its mean "
                  f"{mean[-1]:.3f} is {abs(off):.1f} sd from 0.7. (The prior N(0, 0.2^2) puts 0.7 at 3.5 sd, so with few "
                  "observations the exact posterior itself is far from 0.7.)"),
            Claim("Figure 4", f"At T = {times[-1]} the approximate densities converge to the Gibbs density as M grows.",
                  verdict(falls, because="the divergence did not fall with every order"),
                  f"Median KL at T = {times[-1]} for M = {', '.join(map(str, ORDERS))}: "
                  f"{', '.join(map(_number, median[:, -1]))}."),
            Claim("Theorem 4, figure 4", "KL(p_T, p_hat_T) goes to 0 as M and T go to infinity.",
                  verdict(falls, because="the divergence did not fall with M",
                          only_with="M growing fast enough with T: at every fixed M it grew with T" if grows else ""),
                  f"Median KL from T = {times[0]} to {times[-1]}: "
                  + "; ".join(f"M = {m} {_number(row[0])} to {_number(row[-1])}" for m, row in zip(ORDERS, median, strict=True))
                  + ". Every observation adds a remainder of its own."),
            Claim("Appendix, proof of theorem 4",
                  "With the expansion centred at the true value, an approximation of any order converges as T grows.",
                  verdict(all(at_truth), because="the divergence did not fall beyond its largest value at every order"),
                  "; ".join(f"M = {m}: " + ", ".join(map(_number, row)) for m, row in zip(ORDERS, median_truth, strict=True))
                  + f" at T = {', '.join(map(str, times))}"
                  + (": it rises at first, by "
                     f"{max(np.max(row) / row[0] for row in median_truth):.0f} times at most, and falls from there on."
                     if all(at_truth) else ".")),
        ],
    )  # fmt: skip


def _number(v: float) -> str:
    return f"{v:.1e}" if v > ROUNDING else f"< {ROUNDING:.0e}"


def _draw(a: Arrays, median: np.ndarray, times: tuple[int, ...]) -> Any:
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.9))

    def normalised(log_density):
        p = np.exp(log_density - log_density.max())
        return p / np.trapezoid(p, GRID)

    for row, t, colour in zip(a["log_p"], times, COLOURS, strict=False):
        left.plot(GRID, normalised(row), color=colour, linewidth=1.8, label=f"t = {t}")
    middle.fill_between(GRID, normalised(a["log_p"][-1]), color="0.85", label="exact")
    for m, row, colour in zip(
        ORDERS, a["log_q"][:, -1], ("#d1662a", "#c9a227", "#2a8f5a", "#1f5fa8", "#6a3d9a"), strict=True
    ):
        middle.plot(GRID, normalised(row), color=colour, linewidth=1.5, label=f"M = {m}")
    for ax in (left, middle):
        ax.axvline(SIN.truth["theta"], color="#333333", linewidth=1, linestyle=":")
        ax.set(xlabel="theta", ylabel="density")
        ax.legend(frameon=False, fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
    left.set(title="p(theta | x_0:t), exact", xlim=(-0.6, 1.2))
    mean, sd = grid_moments(GRID, a["log_p"][-1])
    middle.set(title=f"approximations at T = {times[-1]}", xlim=(mean - 12 * sd, mean + 12 * sd))
    image = right.imshow(np.maximum(median, ROUNDING), norm=LogNorm(), cmap="viridis_r", aspect="auto")
    right.set(
        title="median KL(p, p_hat)", xlabel="T", ylabel="order M", xticks=range(len(times)), xticklabels=times,
        yticks=range(len(ORDERS)), yticklabels=ORDERS,
    )  # fmt: skip
    for i, row in enumerate(median):
        for j, v in enumerate(row):
            dark = image.norm(v) > 0.5
            right.text(
                j,
                i,
                f"{v:.0e}" if v > ROUNDING else "< 1e-15",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark else "black",
            )
    figure.colorbar(image, ax=right)
    figure.tight_layout()
    return figure


EXPERIMENT = Experiment("gibbs", "SIN: the Gibbs density of a known path", units, present)
