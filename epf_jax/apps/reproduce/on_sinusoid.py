"""Erol et al. (2013), figure 5: SIR, Liu-West and the EPF on SIN."""

from epf_jax.apps.page import Figure
from epf_jax.apps.reproduce.cases import SIN, Size, distinct_in_words
from epf_jax.apps.reproduce.claims import Claim, Experiment, Findings, verdict
from epf_jax.apps.reproduce.compared import Comparison, Method, default, literal, liu_west, others, sir
from epf_jax.apps.reproduce.store import Stored
from epf_jax.filters import extended_parameter_filter
from epf_jax.statistics import taylor


def _adapted(model, num_particles):
    return extended_parameter_filter(model, num_particles, statistic=taylor(model, 7))


COMPARED = Comparison(
    SIN,
    [sir(50_000), liu_west(50_000), literal(1000, "EPF literal: Taylor 7, {n}", lambda m: taylor(m, 7))],
    [Method("epf-adapted", "EPF Taylor 7, fully adapted, {n}", 1000, _adapted), default(1000)],
    others(),
)


def _settings(size: Size) -> list[tuple[str, str, str]]:
    return [
        ("model", "sigma = 1, sigma_obs = 0.1, prior N(0, 0.2^2), theta = 0.7", "the same"),
        ("x_0", "not stated", "N(0, 1)"),
        ("T", "not stated", str(size.num_steps)),
        ("SIR, Liu-West", "N = 50000; rho = 0.9", f"N = {size.particles(50_000)}; rho = 0.9"),
        ("EPF", "N = 1000, order 7 at 0", f"N = {size.particles(1000)}, order 7 at 0, one MH step, multinomial"),
        ("data sets", "1", str(size.num_series)),
    ]


def present(size: Size, results: dict[str, Stored]) -> Findings:
    """Figure 5 with the exact posterior in it."""
    judged = COMPARED.judged(size, results)
    found_sir, found_lw, found_epf, adapted, ours = (
        judged.score(method, "theta") for method in (*COMPARED.paper, *COMPARED.ours)
    )
    distinct, truth = judged.arrays[COMPARED.paper[0].name]["distinct_theta"], judged.arrays["exact"]
    exact_mean, exact_sd = truth["mean_theta"][0], truth["sd_theta"][0]
    early = min(199, len(exact_mean) - 1)
    return Findings(
        [
            "The paper compares filters with the value that made the data. That value lies 3.5 standard deviations out "
            f"under the prior, so exact inference itself is off at first: at t = {early + 1} the exact posterior is "
            f"{exact_mean[early]:.2f} +- {exact_sd[early]:.2f}. A filter is right when it agrees with the exact "
            "posterior (dashed), which the paper did not have."
        ],
        _settings(size),
        [
            Figure(
                "sin",
                "SIN: posterior of theta over time for the paper's three filters and this library's (blue), the exact "
                "posterior by quadrature (orange, dashed), and the value that made the data (dotted).",
                lambda: judged.draw({"theta": (-0.5, 1.0)}),
            )
        ],
        [judged.table()],
        [
            Claim(
                "Figure 5(a)",
                "A bootstrap filter with N = 50000 and theta in its state fails to converge.",
                verdict(found_sir.verdict != "agrees", because=found_sir.reason),
                f"Of {size.particles(50_000)} values of theta, {distinct_in_words(distinct)} left at "
                f"T = {size.num_steps}; {found_sir.summary}.",
            ),
            Claim(
                "Figure 5(b), caption",
                "Liu-West with N = 50000 does not converge.",
                verdict(found_lw.verdict in ("collapsed", "off", "not finite"), because=found_lw.reason),
                f"{found_lw.summary}.",
            ),
            Claim(
                "Figure 5(b), text",
                "Liu-West with N = 50000, rho = 0.9 converges slowly compared to the EPF.",
                verdict(
                    found_lw.verdict != "agrees" and found_epf.verdict == "agrees",
                    because=found_lw.reason if found_epf.verdict == "agrees" else f"of the EPF, {found_epf.reason}",
                ),
                f"Liu-West: {found_lw.summary}. EPF with {size.particles(50_000) / size.particles(1000):.0f} times "
                f"fewer particles: {found_epf.summary}.",
            ),
            Claim(
                "Figure 5(c)",
                "The EPF converges quickly with N = 1000 and a 7th-order expansion.",
                verdict(found_epf.verdict == "agrees", because=found_epf.reason),
                f"{found_epf.summary}. With the fully adapted proposal, z {adapted.words}; this library's defaults, z "
                f"{ours.words}, {ours.since}.",
            ),
        ],
    )


EXPERIMENT = Experiment("sin", "SIN: three filters and the exact posterior", COMPARED.units, present)
