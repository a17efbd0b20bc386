"""Measurements of the paper's theorems, and of the cost of a step."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from epf_jax.apps.page import Figure, Table
from epf_jax.apps.reproduce.cases import SIN, Size, data_settings, series
from epf_jax.apps.reproduce.claims import Claim, Experiment, Findings, verdict
from epf_jax.apps.reproduce.store import Arrays, Stored, Unit
from epf_jax.core.derivatives import taylor_expansion
from epf_jax.core.polynomials import num_coefficients
from epf_jax.exact import path_log_likelihood
from epf_jax.filters import extended_parameter_filter
from epf_jax.models.state_space import StateSpaceModel, simulate
from epf_jax.particles.proposals import bootstrap
from epf_jax.particles.resampling import multinomial
from epf_jax.running.run import run
from epf_jax.statistics import Statistic, conjugate, from_log_target, separable, statistic_of_path, taylor

ORDER, NUM_PARTICLES, REPEATS = 7, 200, 5


def lengths(size: Size) -> tuple[int, ...]:
    """The times t at which the cost of a step is measured."""
    return (100, 1000) if size.num_steps >= 1000 else (10, 20)


def units(size: Size) -> list[Unit]:
    """The algebra, and the clock."""
    algebra = {"separable": _separable(), "storvik": _storvik(), "sign": _sign()}
    works = [Unit(f"theorem-{name}", settings, compute) for name, (settings, compute) in algebra.items()]
    settings = {
        "at": lengths(size),
        "particles": NUM_PARTICLES,
        "repeats": REPEATS,
        "order": ORDER,
        "data_seed": SIN.seed,
    }
    return [*works, Unit("theorem-cost", settings, lambda: _cost(lengths(size)))]


def _separable():
    """A separable system: f = a sin(x) + a^2 b + exp(b) x. Its statistic against the path's own density."""

    def features(x, u):
        return jnp.stack([jnp.sin(x), jnp.ones_like(x), x])

    def coefficients(theta):
        a, b = theta["a"], theta["b"]
        return jnp.stack([a, a**2 * b, 0.1 * jnp.exp(b)])

    def compute() -> Arrays:
        with jax.enable_x64(True):
            model = StateSpaceModel(
                prior={"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)},
                initial=lambda theta: dist.Normal(0.0, 1.0),
                transition=lambda theta, x, u: dist.Normal(features(x, u) @ coefficients(theta), 0.8),
                observation=lambda theta, x, u: dist.Normal(x, 1.0),
            )
            x, y = simulate(jax.random.key(0), model, {"a": 0.5, "b": 0.3}, 1000)
            statistic = separable(model, features, coefficients)
            S = jax.tree.map(lambda rows: rows[-1], statistic_of_path(statistic, x, y))
            thetas = model.parameters.sample(jax.random.key(1), 50)
            reference = model.parameters.to_theta(model.parameters.centre)

            @jax.jit
            @jax.vmap
            def both(theta):
                ratio = path_log_likelihood(model, theta, x)[-1] - path_log_likelihood(model, reference, x)[-1]
                prior = sum(model.prior[name].log_prob(theta[name]) for name in theta)
                return statistic.log_density(S, theta), prior + ratio

            found, exact = both(thetas)
            return {
                "found": np.asarray(found),
                "exact": np.asarray(exact),
                "size": sum(s.size for s in jax.tree.leaves(S)),
            }

    return {"steps": 1000, "thetas": 50, "seed": 0}, compute


def _storvik():
    """Storvik's recursion against a textbook Kalman filter whose state is theta, and against one batch regression."""

    def compute() -> Arrays:
        with jax.enable_x64(True):
            Q = np.array([[0.5, 0.2], [0.2, 0.4]])

            def mean(theta, x):
                return jnp.stack(
                    [theta["a"] * x[0] + theta["b"] * jnp.sin(x[1]), theta["b"] * jnp.cos(x[0]) + theta["c"]]
                )

            model = StateSpaceModel(
                prior={name: dist.Normal(0.1, 0.5) for name in "abc"},
                initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
                transition=lambda theta, x, u: dist.MultivariateNormal(mean(theta, x), jnp.asarray(Q)),
                observation=lambda theta, x, u: dist.Normal(x, 1.0).to_event(1),
            )
            x, y = simulate(jax.random.key(0), model, {"a": 0.5, "b": 0.3, "c": -0.2}, 300)
            S = jax.tree.map(np.asarray, jax.jit(lambda x, y: statistic_of_path(conjugate(model), x, y))(x, y))
            states = np.asarray(x)
        m, C = np.full(3, 0.1), 0.25 * np.eye(3)
        precision, shift, worst = np.linalg.inv(C), np.linalg.solve(C, m), 0.0
        for t in range(1, len(states)):
            a, b = states[t - 1]
            F = np.array([[a, np.sin(b), 0.0], [0.0, np.cos(a), 1.0]])
            D = F @ C @ F.T + Q
            K = C @ F.T @ np.linalg.inv(D)
            m, C = m + K @ (states[t] - F @ m), (np.eye(3) - K @ F) @ C
            precision, shift = precision + F.T @ np.linalg.solve(Q, F), shift + F.T @ np.linalg.solve(Q, states[t])
            worst = np.maximum(worst, np.max(np.abs(np.concatenate([S.m[t - 1] - m, np.ravel(S.C[t - 1] - C)]))))
        errors = [np.linalg.solve(precision, shift) - S.m[-1], np.ravel(np.linalg.inv(precision) - S.C[-1])]
        return {"kalman": np.array(worst), "batch": np.max(np.abs(np.concatenate(errors)))}

    return {"steps": 300, "parameters": 3, "states": 2, "seed": 0}, compute


def _sign():
    """The exponential-family theorem: <T(theta), eta> with either sign, against the squared residuals themselves."""

    def compute() -> Arrays:
        x, y = (rows[0] for rows in series(SIN, Size("one", 1, 1024)))
        with jax.enable_x64(True):
            model = SIN.model()
            statistic = taylor(model, ORDER)
            expand = taylor_expansion(lambda z, x: jnp.sin(z[0] * x), jnp.zeros(1), ORDER, jnp.zeros(()))
            H = np.stack(jax.jit(jax.vmap(expand))(jnp.asarray(x[:-1])), axis=1)  # H^i(x_{t-1}), as in the theorem
            thetas = np.linspace(-1.0, 1.0, 41)

            @jax.jit
            def densities(x, y, thetas):
                S = jax.tree.map(lambda rows: rows[-1], statistic_of_path(statistic, x, y))
                return jax.vmap(lambda theta: statistic.log_density(S, {"theta": theta}))(thetas)

            ours = np.asarray(densities(*(jnp.asarray(v) for v in (x, y, thetas))))
        J = np.stack([np.convolve(h, h) for h in H])
        eta = -0.5 * J[:, 1:].sum(axis=0)
        eta[:ORDER] += (x[1:, None] * H[:, 1:]).sum(axis=0)
        T = thetas[:, None] ** np.arange(1, 2 * ORDER + 1)
        residuals = x[1:] - thetas[:, None] ** np.arange(ORDER + 1) @ H.T
        direct = -0.5 * np.sum(residuals**2, axis=1)
        direct -= direct[20]  # relative to theta = 0, where T vanishes
        log_prior = -0.5 * (thetas / 0.2) ** 2 - np.log(0.2 * np.sqrt(2 * np.pi))
        return {"thetas": thetas, "theorem": T @ eta, "direct": direct, "ours": ours - log_prior}

    return {**data_settings(SIN, Size("one", 1, 1024)), "order": ORDER}, compute


def whole_path(model: StateSpaceModel, max_steps: int) -> Statistic:
    """The exact Gibbs density from the whole path: the cost of a filter without a statistic, O(t) for each draw."""
    coordinates = model.parameters

    def init(x_0=None):
        path = jnp.zeros(max_steps + 1)
        return (path if x_0 is None else path.at[0].set(x_0)), jnp.zeros((), int)

    def update(key, S, theta, x_prev, x, y, u):
        path, t = S
        return path.at[t + 1].set(x), t + 1

    def log_target(S):
        path, t = S

        def log_density(z):
            theta = coordinates.to_theta(z)
            terms = jax.vmap(lambda x_prev, x: model.transition(theta, x_prev, None).log_prob(x))(path[:-1], path[1:])
            return coordinates.log_prior(z) + jnp.sum(jnp.where(jnp.arange(max_steps) < t, terms, 0.0))

        return log_density

    return from_log_target(model, init, update, log_target, name="whole path")


def _cost(times: tuple[int, ...]) -> Arrays:
    """Microseconds of a step near each t: medians of interleaved runs over short stretches, on the CPU.

    The EPF goes on from its state at t. The filter that keeps whole paths has a path of length t. All stretches have
    the same length, and so the same fixed cost.
    """
    stretch = min(100, times[0])
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        model = SIN.model()
        y = jnp.asarray(series(SIN, Size("one", 1, times[-1] + stretch))[1][0], float)

        def filter_with(statistic):
            return extended_parameter_filter(
                model, NUM_PARTICLES, statistic=statistic, proposal=bootstrap(), resample=multinomial
            )

        epf = filter_with(taylor(model, ORDER))
        runs: dict[tuple[str, int], Any] = {}
        for t in times:
            start = run(jax.random.key(0), epf, y[:t], levels=()).final
            runs["taylor", t] = (epf, y[t : t + stretch], start)
            runs["path", t] = (filter_with(whole_path(model, t)), y[:stretch], None)
        taken: dict[tuple[str, int], list[float]] = {case: [] for case in runs}
        for repeat in range(REPEATS + 1):
            for case, (filter_, part, state) in runs.items():
                begin = time.perf_counter()
                jax.block_until_ready(run(jax.random.key(repeat), filter_, part, state=state, levels=()))
                if repeat:  # the first compiles
                    taken[case].append((time.perf_counter() - begin) / stretch * 1e6)
    return {name: np.array([np.median(taken[name, t]) for t in times]) for name in ("taylor", "path")}


def present(size: Size, results: dict[str, Stored]) -> Findings:
    """The theorems, each with its largest deviation, and the cost per step."""
    a = {name: results[f"theorem-{name}"].arrays for name in ("separable", "storvik", "sign", "cost")}
    times, cost, sign = lengths(size), a["cost"], a["sign"]
    error = float(np.max(np.abs(a["separable"]["found"] - a["separable"]["exact"])))
    kalman, batch = float(a["storvik"]["kalman"]), float(a["storvik"]["batch"])
    right = float(np.max(np.abs(sign["theorem"] - sign["direct"])))
    library = float(np.max(np.abs(sign["ours"] - sign["direct"])))
    wrong = float(np.max(np.abs(-sign["theorem"] - sign["direct"])))
    flat, grown = cost["taylor"][-1] / cost["taylor"][0], cost["path"][-1] / cost["path"][0]
    counts = [(p, m, num_coefficients(p, 2 * m), m**p) for p, m in ((1, 7), (2, 9), (3, 5))]
    return Findings(
        ["What can be checked to rounding is checked to rounding, in double precision; the rest is timed."],
        [("separability", "a proof", f"1000 steps, 50 random theta, statistic of {int(a['separable']['size'])} numbers"),
         ("Storvik and Kalman", "a derivation", "2 states, 3 parameters, full noise covariance, 300 steps"),
         ("exponential family", "a theorem, and a proof in the appendix", "SIN, T = 1024, order 7"),
         ("cost", "stated", f"N = {NUM_PARTICLES}, about t = {', '.join(map(str, times))}; medians of {REPEATS} interleaved runs, CPU")],
        [Figure("cost", "Microseconds per observation about observation t: the EPF's fixed statistic, and the exact Gibbs "
                "density recomputed from each particle's whole path.", lambda: _draw_cost(times, cost))],
        [Table("Largest deviations", [
            {"fact": "separable statistic against the path's log-density", "largest difference": f"{error:.1e}"},
            {"fact": "Storvik's m_t, C_t against a Kalman filter whose state is theta", "largest difference": f"{kalman:.1e}"},
            {"fact": "the same against one batch regression", "largest difference": f"{batch:.1e}"},
            {"fact": "theorem 3's equation against the squared residuals", "largest difference": f"{right:.1e}"},
            {"fact": "this library's Taylor statistic against the squared residuals", "largest difference": f"{library:.1e}"},
            {"fact": "the sign of the appendix's proof, against the same", "largest difference": f"{wrong:.1e}"},
         ]),
         Table("Microseconds a step", [
            {"filter": label, **{f"t = {t}": f"{v:.0f}" for t, v in zip(times, cost[key], strict=True)},
             "ratio, last to first": f"{cost[key][-1] / cost[key][0]:.2f}"}
            for label, key in (("EPF, Taylor 7", "taylor"), ("whole path kept, exact Gibbs", "path"))]),
         Table("Size of the statistic", [
            {"parameters p": p, "order M": m, "C(2M + p, p) numbers kept": k, "the paper's M^p": power}
            for p, m, k, power in counts],
            "The log-density has degree 2M, so the count of its coefficients is C(2M + p, p).")],
        [
            Claim("Theorem 1", "Separable systems have fixed-dimensional sufficient statistics.",
                  verdict(error < 1e-9, because="the densities differ"),
                  f"{int(a['separable']['size'])} numbers per particle give the log-density of a path of 1000 steps to "
                  f"{error:.0e}."),
            Claim("Appendix A", "Storvik's recursion is a Kalman filter whose state is the parameter.",
                  verdict(kalman < 1e-9 and batch < 1e-9, because="the two differ"),
                  f"Largest difference of m_t and C_t over 300 steps {kalman:.0e}; from a batch regression {batch:.0e}."),
            Claim("Theorem 3", "The approximate Gibbs density is an exponential family with the theorem's log-polynomial.",
                  verdict(right < 1e-9 and library < 1e-9, because="the two differ"),
                  f"The theorem's equation equals the squared residuals to {right:.0e}, and so does the library to {library:.0e}. The "
                  f"proof in the appendix has both signs flipped: taken at its word it is off by {wrong:.0f}."),
            Claim("Findings 4", "Time per step does not grow with t, where sampling from the exact Gibbs density takes O(t).",
                  verdict(flat < 1.25 and grown > 1.5, because="it grew" if flat >= 1.25 else
                          "the two could not be told apart on this machine"),
                  f"From t = {times[0]} to {times[-1]} a step of the EPF takes {flat:.2f} times as long, one of a filter that "
                  f"keeps every path and draws from its exact Gibbs density {grown:.1f} times."),
            Claim("Findings 4", "For p parameters an order-M expansion has M^p terms, so that a step costs O(M^p).",
                  verdict(True, only_with="" if all(k == power for _, _, k, power in counts) else
                          "another constant: squared, the expansion has degree 2M and C(2M + p, p) coefficients, which for a "
                          "given p is of the order M^p"),
                  "Numbers kept per particle: " + "; ".join(f"p = {p}, M = {m}: {k} numbers against {power}" for p, m, k, power in counts) + "."),
        ],
    )  # fmt: skip


def _draw_cost(times: tuple[int, ...], cost: Arrays) -> Any:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(6.5, 3.6))
    curves = (("path", "#d1662a", "whole path kept, exact Gibbs"), ("taylor", "#1f5fa8", "EPF, Taylor 7"))
    for key, colour, label in curves:
        ax.plot(times, cost[key], "o-", color=colour, label=label)
        for t, v in zip(times, cost[key], strict=True):
            place = {"xytext": (0, 7 if key == "path" else -15), "textcoords": "offset points"}
            ax.annotate(f"{v:.0f}", (t, v), ha="center", fontsize=9, **place)
    ax.set(
        xlabel="observation t",
        ylabel="microseconds per observation",
        xticks=times,
        ylim=(0, 1.2 * np.max(cost["path"])),
    )
    ax.legend(frameon=False, loc="upper left")
    ax.margins(x=0.1)
    ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


EXPERIMENT = Experiment("theorems", "The theorems, measured", units, present)
