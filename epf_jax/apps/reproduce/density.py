"""Erol et al. (2013), figure 2: densities exp(P(x)), P the Taylor polynomial of S(x) = -x^2 + 5 sin^2 x at 0."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.apps.page import Figure, Table
from epf_jax.apps.reproduce.cases import Size
from epf_jax.apps.reproduce.claims import Claim, Experiment, Findings, verdict
from epf_jax.apps.reproduce.store import Arrays, Stored, Unit
from epf_jax.core.derivatives import taylor_expansion
from epf_jax.exact import kl

ORDERS = tuple(range(2, 25, 2))  # S is even: odd orders repeat the even ones
INTERVAL, WIDER, NUM_POINTS = 3.0, 6.0, 2001
SHOWN = (4, 8, 12)


def _log_density(x):
    return jnp.sum(-(x**2) + 5 * jnp.sin(x) ** 2)


def units(size: Size) -> list[Unit]:
    """One unit: it takes a second or two at any size."""

    def compute() -> Arrays:
        with jax.enable_x64(True):
            grid = np.linspace(-INTERVAL, INTERVAL, NUM_POINTS)
            coefficients = np.asarray(jax.jit(taylor_expansion(_log_density, jnp.zeros(1), max(ORDERS)))())
        log_p = -(grid**2) + 5 * np.sin(grid) ** 2
        log_q = [np.polynomial.polynomial.polyval(grid, coefficients[: m + 1]) for m in ORDERS]
        found = {"grid": grid, "log_p": log_p, "log_q": np.stack(log_q), "leading": coefficients[list(ORDERS)]}
        wide = 2 * grid
        divergence_wide = [
            kl(-(wide**2) + 5 * np.sin(wide) ** 2, np.polynomial.polynomial.polyval(wide, coefficients[: m + 1]), wide)
            for m in ORDERS
        ]
        return {**found, "kl": np.array([kl(log_p, q, grid) for q in log_q]), "kl_wide": np.array(divergence_wide)}

    return [Unit("density", {"orders": ORDERS, "intervals": [INTERVAL, WIDER], "points": NUM_POINTS}, compute)]


def present(size: Size, results: dict[str, Stored]) -> Findings:
    """The densities by order, and their KL divergences."""
    a = results["density"].arrays
    proper = a["leading"] < 0
    rows: list[dict[str, Any]] = [
        {
            "order M": m,
            f"KL(p, p_hat) on [-{INTERVAL:g}, {INTERVAL:g}]": f"{d:.1e}",
            f"on [-{WIDER:g}, {WIDER:g}]": f"{e:.1e}",
            "on the real line": "proper" if good else "improper: grows without bound",
        }
        for m, d, e, good in zip(ORDERS, a["kl"], a["kl_wide"], proper, strict=True)
    ]
    orders = np.array(ORDERS)[proper]
    slopes, wide = (_slopes(orders, a[key][proper]) for key in ("kl", "kl_wide"))
    steeper = len(slopes) > 2 and bool(np.all(np.diff(slopes) > 0.1))
    improper = ", ".join(str(m) for m, good in zip(ORDERS, proper, strict=True) if not good)
    claim = Claim(
        "Theorem 2, figure 2",
        "KL(p, p_hat) goes to 0 super-exponentially as the order M grows.",
        verdict(
            steeper,
            only_with="a bounded interval: on the real line every other even order is no density at all",
            because="log KL does not fall ever faster with the order",
        ),
        f"Proper orders {', '.join(map(str, orders))}: on [-{INTERVAL:g}, {INTERVAL:g}] KL is "
        f"{', '.join(f'{v:.0e}' for v in a['kl'][proper])}, and -log KL grows by {_list(slopes)} per order until rounding"
        f"{': ever faster' if steeper else ''}. On [-{WIDER:g}, {WIDER:g}] it grows by {_list(wide)}. Orders {improper} have a positive leading "
        "coefficient: exp(P) has no integral over the real line, though it is close on the interval.",
    )
    return Findings(
        ["The paper's opening example: a log-density, its Taylor polynomials at 0, and how far apart they are. A "
         "divergence between densities of which one may not be normalisable means nothing until its interval is said."],
        [("order M", "not stated in text", f"{ORDERS[0]} to {ORDERS[-1]}, even (S is even)"),
         ("interval of the KL", "not stated", f"[-{INTERVAL:g}, {INTERVAL:g}], {NUM_POINTS} points; also [-{WIDER:g}, {WIDER:g}]")],
        [Figure("density", "Left: the density exp(S(x)) and its approximations, each normalised on the interval. Right: "
                "KL divergence by order; hollow marks are orders that are improper on the real line.",
                lambda: _draw(a, proper))],
        [Table("KL divergence by order", rows)],
        [claim],
    )  # fmt: skip


def _slopes(orders: np.ndarray, divergence: np.ndarray) -> np.ndarray:
    """How fast -log KL grows per order, where the divergence is above rounding."""
    kept = divergence > 1e-13
    return -np.diff(np.log(divergence[kept])) / np.diff(orders[kept])


def _list(values: np.ndarray) -> str:
    return ", ".join(f"{v:.1f}" for v in values)


def _draw(a: Arrays, proper: np.ndarray) -> Any:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
    grid = a["grid"]

    def normalised(log_density):
        p = np.exp(log_density - log_density.max())
        return p / np.trapezoid(p, grid)

    left.fill_between(grid, normalised(a["log_p"]), color="0.85", label="exact")
    for m, colour in zip(SHOWN, ("#d1662a", "#2a8f5a", "#1f5fa8"), strict=True):
        left.plot(grid, normalised(a["log_q"][ORDERS.index(m)]), color=colour, linewidth=1.6, label=f"M = {m}")
    left.set(xlabel="x", ylabel="density")
    left.legend(frameon=False)
    right.semilogy(ORDERS, a["kl"], color="0.75", linewidth=1, zorder=1)
    for good, label in ((True, "proper"), (False, "improper on the real line")):
        face = "#1f5fa8" if good else "white"
        chosen = proper == good
        right.scatter(
            np.array(ORDERS)[chosen], a["kl"][chosen], facecolor=face, edgecolor="#1f5fa8", label=label, zorder=2
        )
    right.set(xlabel="order M", ylabel="KL(p, p_hat)", xticks=ORDERS[1::2])
    right.legend(frameon=False)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


EXPERIMENT = Experiment("density", "Log-polynomial densities", units, present)
