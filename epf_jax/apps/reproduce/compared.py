"""The filters to compare: with the paper's settings and with this library's, one list for each model."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from epf_jax.apps.reproduce.cases import Case, Size, exact_unit, filter_unit, score
from epf_jax.apps.reproduce.claims import Table
from epf_jax.apps.reproduce.store import Stored, Unit
from epf_jax.filters import Filter, bootstrap_filter, coordinate_kernel, extended_parameter_filter, liu_west_filter
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.proposals import bootstrap
from epf_jax.particles.resampling import multinomial
from epf_jax.plots import draw_posterior, draw_reference, draw_truth, finish
from epf_jax.statistics import Statistic


class Method(NamedTuple):
    """A filter with its settings.

    Attributes:
        name: short, for files.
        label: for tables and figures; `{n}` stands for the number of particles.
        num_particles: as in the paper; a test run takes fewer.
        build: `build(model, num_particles)`.
        x64: whether it runs in double precision.
        history: whether its ancestors are kept.
    """

    name: str
    label: str
    num_particles: int
    build: Callable[[StateSpaceModel, int], Filter]
    x64: bool = False
    history: bool = False

    def title(self, size: Size) -> str:
        """The label with the number of particles put in."""
        return self.label.format(n=f"N = {size.particles(self.num_particles)}")


def sir(num_particles: int) -> Method:
    """SIR with theta in the state, multinomial resampling: the paper's Algorithm 1 on the augmented state."""
    return Method(
        f"sir{num_particles}", "SIR, {n}", num_particles, lambda m, n: bootstrap_filter(m, n, resample=multinomial)
    )


def liu_west(num_particles: int) -> Method:
    """Liu-West as in the paper: rho = 0.9, each coordinate perturbed by its own sd, inside SIR."""
    return Method(
        f"liu-west{num_particles}",
        "Liu-West (paper's), {n}",
        num_particles,
        lambda m, n: liu_west_filter(m, n, rho=0.9, kernel=coordinate_kernel, resample=multinomial),
    )


def literal(
    num_particles: int, label: str, statistic: Callable[[StateSpaceModel], Statistic], *, x64: bool = False
) -> Method:
    """The EPF as in the paper: bootstrap proposal, multinomial resampling, one random-walk step per observation."""
    return Method(
        "epf-literal",
        label,
        num_particles,
        lambda m, n: extended_parameter_filter(
            m, n, statistic=statistic(m), proposal=bootstrap(), resample=multinomial
        ),
        x64=x64,
        history=True,
    )


def default(num_particles: int, label: str = "EPF of this library (defaults), {n}") -> Method:
    """The EPF with all defaults."""
    return Method(f"epf-default{num_particles}", label, num_particles, extended_parameter_filter)


def told_under(model: StateSpaceModel, filter_: Filter) -> Filter:
    """`filter_`, which learns under a wider prior, with weights that correct for the model's prior.

    If the data lead far into a prior's tail, few particles start there, and all later paths descend from those few.
    Under a wider prior, many start there. The ratio of the priors is multiplied into each particle's weight after every
    step and removed before the next, so that resampling never sees it.
    """
    priors = model.parameters, filter_.model.parameters

    def log_ratio(theta):
        ours, wider = (coordinates.log_prior(coordinates.to_vector(theta)) for coordinates in priors)
        return ours - wider

    def weigh(state, sign):
        log_weights = state.log_weights + sign * jax.vmap(log_ratio)(state.theta)
        total = jax.nn.logsumexp(log_weights)
        return state._replace(log_weights=log_weights - total, log_evidence=state.log_evidence + total)

    def init(key):
        return weigh(filter_.init(key), 1.0)

    def step(key, state, y, u=None):
        new, info = filter_.step(key, weigh(state, -1.0), y, u)
        new = weigh(new, 1.0)
        return new, info._replace(log_increment=new.log_evidence - state.log_evidence)

    return filter_._replace(init=init, step=step, description=f"{filter_.description}, told under another prior")


def filter_units(case: Case, size: Size, methods: list[Method]) -> list[Unit]:
    """The exact posterior and every method's run."""
    units = [exact_unit(case, size)]
    for method in methods:
        n = size.particles(method.num_particles)
        settings = {"method": method.name, "label": method.label, "particles": n}
        build = partial(_build, method, n)
        units.append(filter_unit(case, size, method.name, build, settings, x64=method.x64, history=method.history))
    return units


def _build(method: Method, num_particles: int, model: StateSpaceModel) -> Filter:
    return method.build(model, num_particles)


def score_rows(case: Case, size: Size, methods: list[Method], results: dict[str, Stored]) -> list[dict[str, Any]]:
    """One row per method and parameter: distance from the exact posterior, and seconds."""
    truth = results[f"{case.name}-exact"].arrays
    rows = []
    for method in methods:
        found = results[f"{case.name}-{method.name}"].arrays
        for name in case.truth:
            s = score(found, truth, name)
            spread = "" if len(s.z) < 2 else f" +- {s.rms_error:.2f}"
            rows.append(
                {
                    "model": case.title,
                    "method": method.title(size),
                    "parameter": name,
                    ("|z|" if len(s.z) < 2 else "z rms"): f"{s.rms:.2f}{spread}",
                    **({} if len(s.z) < 2 else {"z median": f"{s.median:.2f}", "z max": f"{s.largest:.2f}"}),
                    "sdr": f"{s.ratio:.2f}",
                    "distinct values left": int(np.median(found[f"distinct_{name}"])),
                    "seconds": f"{float(found['seconds']):.2f}",
                    "compile s": f"{float(found['seconds_compile']):.1f}",
                    **_trouble(found),
                }
            )
    return rows


def _trouble(found: dict[str, np.ndarray]) -> dict[str, Any]:
    """The number of steps with all weights zero, and of NaN densities of theta, if any."""
    counts = {"collapsed steps": found["num_collapsed"], "NaN densities": found["num_bad_densities"]}
    return {name: int(np.sum(values)) for name, values in counts.items() if np.any(values)}


def score_table(case: Case, size: Size, methods: list[Method], results: dict[str, Stored]) -> Table:
    """The methods of one model, judged."""
    sets = f"{size.num_series} data set{'s' if size.num_series > 1 else ''}"
    return Table(
        f"{case.title}: against the exact posterior at T = {size.num_steps}, {sets}",
        score_rows(case, size, methods, results),
        "z = (filter mean - exact mean) / exact sd; sdr = filter sd / exact sd. 0 and 1 are right. Seconds are per series"
        + (f", in a batch of {size.num_series}" if size.num_series > 1 else "")
        + ", compilation apart.",
    )


def draw_errors(case: Case, size: Size, methods: list[Method], results: dict[str, Stored], name: str) -> Any:
    """Every method's z over time on one panel."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(10, 4.2))
    truth = results[f"{case.name}-exact"].arrays
    ax.axhspan(-1, 1, color="0.92")
    for i, method in enumerate(methods):
        found = results[f"{case.name}-{method.name}"].arrays
        z = (found[f"mean_{name}"][0] - truth[f"mean_{name}"][0]) / truth[f"sd_{name}"][0]
        ax.plot(np.arange(1, len(z) + 1), z, linewidth=1.4, color=plt.get_cmap("tab10")(i), label=method.title(size))
    ax.set_yscale("symlog", linthresh=1.0)
    ax.set(xlabel="observations t", ylabel=f"(mean of {name} - exact mean) / exact sd")
    finish(ax)
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    return figure


def draw_methods(case: Case, size: Size, methods: list[Method], results: dict[str, Stored], limits: Any = None) -> Any:
    """A panel per method and parameter: its posterior over time, the exact one, and the value that made the data."""
    import matplotlib.pyplot as plt

    names = list(case.truth)
    columns = min(len(methods), 3) if len(names) == 1 else len(methods)
    rows = -(-len(methods) // columns) if len(names) == 1 else len(names)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4.3 * columns, 3.1 * rows + 0.5), sharex=True, sharey="row", squeeze=False
    )
    truth = results[f"{case.name}-exact"].arrays
    used = []
    for i, method in enumerate(methods):
        found = results[f"{case.name}-{method.name}"].arrays
        for j, name in enumerate(names):
            ax = axes[i // columns, i % columns] if len(names) == 1 else axes[j, i]
            used.append(ax)
            draw_posterior(ax, found[f"mean_{name}"][0], *found[f"band_{name}"].T, label="filter")
            draw_reference(ax, truth[f"mean_{name}"][0], *truth[f"band_{name}"].T, label="exact: mean, 90% band")
            draw_truth(ax, case.truth[name])
            finish(ax)
            if limits is not None:
                ax.set_ylim(limits[name])
            if j == 0:
                ax.set_title(method.title(size), fontsize=10)
            if ax.get_subplotspec().is_first_col():
                ax.set_ylabel(name)
            if ax.get_subplotspec().is_last_row():
                ax.set_xlabel("observations t")
    for ax in axes.ravel():
        if ax not in used:  # the panel above becomes the last of its column
            ax.set_visible(False)
            above = axes[ax.get_subplotspec().rowspan.start - 1, ax.get_subplotspec().colspan.start]
            above.tick_params(labelbottom=True)
            above.set_xlabel("observations t")
    handles, labels = used[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.3 / figure.get_size_inches()[1], 1, 1))
    return figure
