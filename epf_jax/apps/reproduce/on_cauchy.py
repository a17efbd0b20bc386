"""Erol et al. (2013), figure 6: the Cauchy AR(1). The paper's expansion cannot work there; other filters do."""

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from epf_jax.apps.page import Figure, Table
from epf_jax.apps.reproduce.cases import CAUCHY, Size, data_settings, distinct_in_words, series
from epf_jax.apps.reproduce.claims import Claim, Experiment, Findings, verdict
from epf_jax.apps.reproduce.compared import Comparison, Method, literal, liu_west, others, sir, told_under
from epf_jax.apps.reproduce.store import Arrays, Stored, Unit
from epf_jax.exact import grid_moments, known_path
from epf_jax.filters import extended_parameter_filter
from epf_jax.models import cauchy_ar1
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.proposals import bootstrap, guided
from epf_jax.samplers import random_walk
from epf_jax.statistics import Statistic, chebyshev, scale_mixture, statistic_of_path, taylor_log_density

ORDER = 10
GRID = np.linspace(-1.0, 2.0, 6001)


class TruncatedCauchy(NamedTuple):
    """A Cauchy whose log-density is the paper's series -(v^2 - v^4/2 + v^6/3 - ...), truncated at v^`ORDER`."""

    loc: Any

    def sample(self, key):
        """A draw from the Cauchy itself."""
        return dist.Cauchy(self.loc, 1.0).sample(key)

    def log_prob(self, value):
        """The truncated series at v = value - loc."""
        w, total = (value - self.loc) ** 2, 0.0
        for k in range(ORDER // 2, 0, -1):
            total = (total + (-1) ** k / k) * w
        return total


def truncated_model(model: StateSpaceModel) -> StateSpaceModel:
    """The model with the series in place of the Cauchy's log-density."""
    return StateSpaceModel(
        model.prior, model.initial, lambda theta, x, u: TruncatedCauchy(theta["a"] * x), model.observation
    )


def truncated(model: StateSpaceModel) -> Statistic:
    """The paper's statistic: the series as a polynomial of degree 10 in a, about 0."""
    statistic = taylor_log_density(truncated_model(model), ORDER, radius=100.0)  # so wide that it confines nothing
    return statistic._replace(model=model)  # on purpose


def near_or_far(theta, x_prev, y, u):
    r"""The transition or the observation's likelihood N(y, 10^2), with the share that each has in the next state.

    With :math:`d = y - a x_{t-1}`, x_t is either near :math:`a x_{t-1}`, so that y is off by chance, of density
    :math:`N(d; 0, 10^2)`; or it has jumped to y, of density about :math:`1/(\pi (d^2 + 10^2))`, the Cauchy's tail. Equal
    shares would spend half of the draws where the state is not, and paths that end for it take along what they know of a.
    """
    location = theta["a"] * x_prev
    off_by_chance = dist.Normal(location, 10.0).log_prob(y)
    jumped = -jnp.log(jnp.pi * ((y - location) ** 2 + 10.0**2))
    shares = dist.Categorical(logits=jnp.stack([off_by_chance, jumped]))
    return dist.MixtureGeneral(shares, [dist.Cauchy(location, 1.0), dist.Normal(y, 10.0)])


def _epf(name, label, num_particles, statistic, proposal, **options):
    def build(m, n):
        return extended_parameter_filter(m, n, statistic=statistic(m), proposal=proposal())

    return Method(name, label, num_particles, build, **options)


def _nodes(model):
    """Forty nodes and four Metropolis-Hastings steps: after a jump, one step is too slow for the posterior."""
    return chebyshev(model, 40, sampler=random_walk(num_steps=4))


def _guided():
    return guided(near_or_far)


def learned_widely(model, num_particles):
    """A filter that learns under three times the prior's sd: the ratio of the priors is at most three."""
    wider = cauchy_ar1(prior_sd=0.6)
    learning = extended_parameter_filter(wider, num_particles, statistic=scale_mixture(wider), proposal=_guided())
    return told_under(model, learning)


COMPARED = Comparison(
    CAUCHY,
    [
        sir(50_000),
        liu_west(100),
        liu_west(10_000),
        literal(100, "EPF literal: series to v^10, {n}", truncated, x64=True),
    ],
    [
        _epf("chebyshev100", "EPF Chebyshev, bootstrap, {n}", 100, chebyshev, bootstrap, history=True),
        _epf("chebyshev5000", "EPF Chebyshev, 4 MH steps, guided, {n}", 5000, _nodes, _guided),
        _epf("mixture5000", "Storvik on a scale mixture, guided, {n}", 5000, scale_mixture, _guided),
        Method("wider5000", "Storvik on a scale mixture, wider prior, guided, {n}", 5000, learned_widely),
    ],
    others(),
)


def units(size: Size) -> list[Unit]:
    """The exact posterior, the filters, and what happens to the paper's series on a known path."""

    def why() -> Arrays:
        x, y = (rows[0] for rows in series(CAUCHY, Size("one", 1, size.num_steps)))
        found: Arrays = {"x": x, "y": y, "noise": x[1:] - CAUCHY.truth["a"] * x[:-1]}
        with jax.enable_x64(True):
            model = CAUCHY.model()
            found["log_p"] = known_path(model, x, {"a": GRID}).log_density[-1]
            surrogate = truncated_model(model)
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # narrower than the grid's spacing
                found["log_q"] = known_path(surrogate, x, {"a": GRID}).log_density[-1]  # the series, summed directly
            S = jax.jit(partial(statistic_of_path, truncated(model)))(jnp.asarray(x), jnp.asarray(y))
            powers = [
                leaf[-1] for leaf in jax.tree.leaves(S)
            ]  # the same series as a polynomial in a: a, a^2, ..., a^10
            assert len(powers) == ORDER, f"{len(powers)} coefficients of a polynomial of degree {ORDER}"
            found["coefficients"] = np.array([0.0, *powers])
            found["mixture_draws"] = _alternate(scale_mixture(model), x, y)
        return found

    one = data_settings(CAUCHY, Size("one", 1, size.num_steps))
    settings = {**one, "order": ORDER, "grid": [GRID[0], GRID[-1], len(GRID)]}
    return [*COMPARED.units(size), Unit("cauchy-why", settings, why)]


def _alternate(statistic: Statistic, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Draws of a given the known path, by turns with its precisions: 200 chains of 25 sweeps, started at the prior's mean."""

    def sweep(theta, key):
        key_path, key_theta = jax.random.split(key)
        S = statistic_of_path(statistic, jnp.asarray(x), jnp.asarray(y), theta, key=key_path)
        return statistic.sample(key_theta, jax.tree.map(lambda rows: rows[-1], S), theta)[0], None

    def chain(key):
        return jax.lax.scan(sweep, {"a": jnp.asarray(0.0)}, jax.random.split(key, 25))[0]["a"]

    return np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), 200)))


def _settings(size: Size) -> list[tuple[str, str, str]]:
    n = size.particles
    return [
        ("model", "gamma = 1, sigma_obs = 10, prior N(0, 0.2^2), a = 0.7", "the same; 10 read as a standard deviation"),
        ("x_0", "not stated", "N(0, 1)"),
        ("T", "not stated", str(size.num_steps)),
        ("SIR", "N = 50000", f"N = {n(50_000)}"),
        ("Liu-West", "N = 100 and 10000", f"N = {n(100)} and {n(10_000)}, rho = 0.9"),
        ("EPF", "N = 100, 10th order", f"N = {n(100)}, series to v^10, float64, one MH step, multinomial"),
        ("data sets", "1", str(size.num_series)),
    ]  # fmt: skip


def _reasons(why: Arrays, ages: list[int], size: Size) -> Table:
    """The paper's series on the known path, and how soon all paths have become one."""
    share = float(np.mean(np.abs(why["noise"]) > 1))
    largest = float(np.max(np.abs(why["x"])))
    (mean, sd), (lit_mean, _) = grid_moments(GRID, why["log_p"]), grid_moments(GRID, why["log_q"])
    terms = why["coefficients"] * 0.7 ** np.arange(len(why["coefficients"]))
    rounding = {kind.__name__: float(np.sum(np.abs(terms)) * np.finfo(kind).eps) for kind in (np.float32, np.float64)}
    n = size.particles
    return Table(
        "Why the literal EPF fails, on the first data set",
        [
            {"what": "steps with |v| > 1, where the series diverges", "measured": f"{share:.0%} of {len(why['noise'])}"},
            {"what": "p(a | true path), exact", "measured": f"{mean:.4f} +- {sd:.4f}"},
            {"what": "the same by the paper's series, summed without expanding it in a", "measured": f"{lit_mean:.4f}, {abs(lit_mean - mean) / sd:.0f} "
             "exact sd away"},
            {"what": "largest |x| of the path", "measured": f"{largest:.0f}"},
            {"what": "rounding error of the series as a polynomial in a, at a = 0.7",
             "measured": f"{rounding['float64']:.0e} in float64, {rounding['float32']:.0e} in float32 (1 would already blur a "
             "factor of e in the density)"},
            {"what": f"age of the last common ancestor, N = {n(100)}, literal", "measured": f"{ages[0]} observations"},
            {"what": f"the same, Chebyshev with bootstrap, N = {n(100)}", "measured": f"{ages[1]} observations"},
        ],
        "With the true path known nothing is sampled, so a wrong density is the series' own doing. A common ancestor a few "
        "observations old means that nearly all of the path is one path: the statistics of all particles are one "
        "statistic, however exact.",
    )  # fmt: skip


def present(size: Size, results: dict[str, Stored]) -> Findings:
    """Figure 6 with the exact posterior, why the literal filter fails, and what works."""
    judged, why = COMPARED.judged(size, results), results["cauchy-why"].arrays
    found = judged.arrays
    scores = {method.name: judged.score(method, "a") for method in (*COMPARED.paper, *COMPARED.ours)}
    z = {name: s.words for name, s in scores.items()}
    share = float(np.mean(np.abs(why["noise"]) > 1))
    (mean, sd), (lit_mean, _) = grid_moments(GRID, why["log_p"]), grid_moments(GRID, why["log_q"])
    ancestors = found["epf-literal"]["num_distinct_ancestors"], found["chebyshev100"]["num_distinct_ancestors"]
    ages = [int(len(a) - np.max(np.flatnonzero(a == 1), initial=-1) - 1) for a in ancestors]
    lit, mixture, cheb = scores["epf-literal"], scores["mixture5000"], scores["chebyshev5000"]
    wider = scores["wider5000"]
    first, small, large = (scores[method.name] for method in COMPARED.paper[:3])
    draws = why["mixture_draws"]
    errors = (draws.mean() - mean) / sd * np.sqrt(len(draws)), (draws.std() / sd - 1) * np.sqrt(2 * len(draws))
    exact_by_mixture = bool(np.max(np.abs(errors)) < 4)  # in standard errors
    n = size.particles

    return Findings(
        [
            "The paper expands log(1 + v^2) in v about 0. The series converges for |v| < 1, and a Cauchy variable is "
            "outside half of the time; cut off at v^10 it acts like a regression in the tenth power, ruled by the largest "
            "jumps. A model of this kind needs no expansion at all: given a random precision per step the noise is "
            "Gaussian and Storvik's statistics are exact (`epf.scale_mixture`), and on a box any log-density can be read "
            "from its values at Chebyshev nodes (`epf.chebyshev`). What remains is the particle filter's own difficulty: "
            "with sigma_obs = 10 against a unit of noise, few particles survive each jump."
        ],
        _settings(size),
        [
            Figure("cauchy-data", "A path of the Cauchy AR(1) with its observations; the vertical axis is linear between "
                   "-10 and 10 and logarithmic beyond. Right: the density of a given the true path, exact and by the "
                   "paper's series.", lambda: _draw_data(why)),
            Figure("cauchy", "Posterior of a over time. The first four panels are the paper's filters (the literal EPF leaves the frame), the rest this library's.",
                   lambda: judged.draw({"a": (-0.5, 1.15)})),
            Figure("cauchy-z", "What the panels above are too coarse to show: how many exact standard deviations each filter's "
                   "mean is off, over time (first data set). The axis is linear between -1 and 1 and logarithmic beyond.",
                   lambda: judged.draw_errors("a")),
        ],
        [_reasons(why, ages, size), judged.table()],
        [
            Claim("Figure 6(b)", "A bootstrap filter with N = 50000 is unable to perform meaningful inference.",
                  verdict(first.verdict != "agrees", because=first.reason),
                  f"z {first.words}, sdr {first.ratio:.2f}; of {n(50_000)} values of a, "
                  f"{distinct_in_words(found[COMPARED.paper[0].name]['distinct_a'])} left."),
            Claim("Figure 6(c)", "Liu-West does not converge with N = 100.",
                  verdict(small.verdict != "agrees", because=small.reason),
                  f"{small.summary}."),
            Claim("Figure 6(c)", "Liu-West converges slowly with N = 10000.",
                  verdict(large.verdict in ("narrow", "wide") or (large.verdict == "off" and large.median < 5),
                          because=large.reason),
                  f"{large.summary}; of {n(10_000)} values of a, "
                  f"{distinct_in_words(found[COMPARED.paper[2].name]['distinct_a'])} left."),
            Claim("Figure 6(d)", "The EPF converges rapidly with N = 100 and a 10th-order approximation.",
                  verdict(lit.verdict == "agrees", because=f"{lit.reason}: the series diverges at {share:.0%} of the steps"),
                  f"z {lit.words}, sdr {lit.ratio:.2g}, {lit.since}. On the true path itself the series puts a at "
                  f"{lit_mean:.3f}, {abs(lit_mean - mean) / sd:.0f} sd from the exact {mean:.3f}. Densities read from Chebyshev "
                  f"nodes give z {z['chebyshev100']} at N = {n(100)}: the common ancestor of all paths is {ages[1]} "
                  "observations old, so few paths are left to choose from."),
            Claim("Findings 5.2", "The necessary sufficient statistics do not exist, so Storvik's filter cannot handle this model.",
                  verdict(exact_by_mixture,
                          only_with="statistics of the states alone: given a precision per step, drawn as part of the path, two "
                                    "sums are exact sufficient statistics",
                          because="draws by turns of a and the precisions did not agree with the exact density, so that "
                                  "nothing was shown"),
                  f"On the true path, drawing the precisions and a by turns gives a = {draws.mean():.4f} +- {draws.std():.4f}, "
                  f"exactly {mean:.4f} +- {sd:.4f} ({len(draws)} draws; standard errors {sd / np.sqrt(len(draws)):.5f} and "
                  f"{sd / np.sqrt(2 * len(draws)):.5f}). In a filter (`scale_mixture`, guided, N = {n(5000)}): z "
                  f"{z['mixture5000']}, sdr {mixture.ratio:.2f}; Chebyshev nodes, which need no draws of precisions, at the "
                  f"same N: z {z['chebyshev5000']}, sdr {cheb.ratio:.2f}. Learnt under three times the prior's sd and weighted back, the "
                  f"scale mixture's z is {z['wider5000']}, sdr {wider.ratio:.2f}."),
        ],
    )  # fmt: skip


def _draw_data(why: Arrays) -> Any:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), width_ratios=(2, 1))
    t = np.arange(1, len(why["y"]) + 1)
    left.scatter(t, why["y"], s=4, color="0.65", label="observations y")
    left.plot(t, why["x"][1:], color="#1f5fa8", linewidth=0.9, label="state x")
    left.set_yscale("symlog", linthresh=10)
    left.set(xlabel="t", ylabel="x, y (symmetric log scale)")
    left.margins(x=0)
    left.legend(frameon=False, fontsize=9)
    for key, colour, label in (("log_p", "#d1662a", "exact"), ("log_q", "#1f5fa8", "series to v^10")):
        p = np.exp(why[key] - why[key].max())
        right.plot(GRID, p, color=colour, label=label)
    right.axvline(CAUCHY.truth["a"], color="#333333", linewidth=1, linestyle=":", label="value that made the data")
    right.set(xlabel="a", ylabel="p(a | true path), peak = 1", ylim=(0, 1.35))
    means = [grid_moments(GRID, why[key])[0] for key in ("log_p", "log_q")]
    spread = max(abs(means[0] - means[1]), 0.02)
    right.set_xlim(min(*means, 0.7) - spread, max(*means, 0.7) + spread)
    right.legend(facecolor="white", edgecolor="none", framealpha=1.0, fontsize=9, loc="upper right")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


EXPERIMENT = Experiment("cauchy", "Cauchy AR(1): an expansion that cannot converge", units, present)
