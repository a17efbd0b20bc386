"""The filters to compare: with the paper's settings and with this library's, one list for each model."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from epf_jax.apps.page import Table
from epf_jax.apps.reproduce.cases import Case, Score, Size, exact_unit, filter_unit, score
from epf_jax.apps.reproduce.store import Arrays, Stored, Unit
from epf_jax.filters import Filter, bootstrap_filter, coordinate_kernel, extended_parameter_filter, liu_west_filter
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.proposals import bootstrap
from epf_jax.particles.resampling import multinomial
from epf_jax.plots import draw_posterior, draw_reference, draw_truth, finish
from epf_jax.samplers import grid_sampler, slice_sampler
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


def others(*samplers: Any) -> list[Method]:
    """What the paper does not name: Liu and West's own kernel, and other ways of drawing theta from the same statistic."""

    def drawn_by(sampler):
        name = sampler.__name__.split("_")[0]
        build = partial(_drawn_by, sampler)
        return Method(f"epf-{name}", f"EPF, defaults with {name} sampling, {{n}}", 1000, build)

    own = Method("liu-west-own", "Liu-West (2001), covariance kernel, rho = 0.98, {n}", 1000, _own_kernel)
    return [own, *map(drawn_by, samplers or (slice_sampler, grid_sampler))]


def _own_kernel(model: StateSpaceModel, num_particles: int) -> Filter:
    return liu_west_filter(model, num_particles, rho=0.98)


def _drawn_by(sampler: Any, model: StateSpaceModel, num_particles: int) -> Filter:
    return extended_parameter_filter(model, num_particles, sampler=sampler())


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


class Comparison(NamedTuple):
    """Filters on one of the paper's models.

    Attributes:
        case: the model.
        paper: the paper's filters.
        ours: this library's.
        more: those that only a run on many data sets has.
    """

    case: Case
    paper: list[Method]
    ours: list[Method]
    more: list[Method]

    def methods(self, size: Size) -> list[Method]:
        """Those of a run of this size."""
        return [*self.paper, *self.ours, *(self.more if size.num_series > 1 else [])]

    def units(self, size: Size) -> list[Unit]:
        """The exact posterior and every method's run."""
        units = [exact_unit(self.case, size)]
        for method in self.methods(size):
            n = size.particles(method.num_particles)
            settings = {"method": method.name, "label": method.label, "particles": n}
            build = partial(_build, method, n)
            options = {"x64": method.x64, "history": method.history}
            units.append(filter_unit(self.case, size, method.name, build, settings, **options))
        return units

    def judged(self, size: Size, results: dict[str, Stored]) -> "Judged":
        """What came of them."""
        prefix = f"{self.case.name}-"
        arrays = {name.removeprefix(prefix): stored.arrays for name, stored in results.items() if prefix in name}
        return Judged(self, size, arrays)


class Judged(NamedTuple):
    """What came of the filters, against the exact posterior.

    Attributes:
        of: the filters.
        size: the size of the run.
        arrays: the numbers of each, by the filters' names, and of the "exact" posterior.
    """

    of: Comparison
    size: Size
    arrays: dict[str, Arrays]

    def score(self, method: Method, name: str) -> Score:
        """How far a parameter's posterior is off."""
        return score(self.arrays[method.name], self.arrays["exact"], name)

    def worst(self, method: Method) -> Score:
        """The score of the parameter that is learned worst."""
        order = ("agrees", "narrow", "wide", "off", "collapsed", "not finite")
        return max((self.score(method, p) for p in self.of.case.truth), key=lambda s: order.index(s.verdict))

    def words(self, method: Method) -> str:
        """The scores of all parameters, in words."""
        return "; ".join(f"{p}: {self.score(method, p).summary}" for p in self.of.case.truth)

    def table(self) -> Table:
        """A row for each method and parameter."""
        many = self.size.num_series > 1
        sets = f"{self.size.num_series} data set{'s' if many else ''}"
        return Table(
            f"{self.of.case.title}: against the exact posterior at T = {self.size.num_steps}, {sets}",
            [self._row(method, name) for method in self.of.methods(self.size) for name in self.of.case.truth],
            "z = (filter mean - exact mean) / exact sd; sdr = filter sd / exact sd. 0 and 1 are right. Seconds are per "
            f"series{f', in a batch of {self.size.num_series}' if many else ''}, compilation apart.",
        )

    def _row(self, method: Method, name: str) -> dict[str, Any]:
        found, s = self.arrays[method.name], self.score(method, name)
        several = {
            "z rms": f"{s.rms:.2f} +- {s.rms_error:.2f}",
            "z median": f"{s.median:.2f}",
            "z max": f"{s.largest:.2f}",
        }
        counts = {"collapsed steps": found["num_collapsed"], "NaN densities": found["num_bad_densities"]}
        return {
            "model": self.of.case.title,
            "method": method.title(self.size),
            "parameter": name,
            **({"|z|": f"{s.rms:.2f}"} if len(s.z) < 2 else several),
            "sdr": f"{s.ratio:.2f}",
            "distinct values left": int(np.median(found[f"distinct_{name}"])),
            "seconds": f"{float(found['seconds']):.2f}",
            "compile s": f"{float(found['seconds_compile']):.1f}",
            **{what: int(np.sum(values)) for what, values in counts.items() if np.any(values)},
        }

    def draw_errors(self, name: str) -> Any:
        """Every method's z over time on one panel."""
        import matplotlib.pyplot as plt

        figure, ax = plt.subplots(figsize=(10, 4.2))
        truth = self.arrays["exact"]
        ax.axhspan(-1, 1, color="0.92")
        for i, method in enumerate(self.of.methods(self.size)):
            mean = self.arrays[method.name][f"mean_{name}"][0]
            z = (mean - truth[f"mean_{name}"][0]) / truth[f"sd_{name}"][0]
            colour = plt.get_cmap("tab10")(i % 10)
            ax.plot(np.arange(1, len(z) + 1), z, linewidth=1.4, color=colour, label=method.title(self.size))
        ax.set_yscale("symlog", linthresh=1.0)
        ax.set(xlabel="observations t", ylabel=f"(mean of {name} - exact mean) / exact sd")
        finish(ax)
        ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.tight_layout()
        return figure

    def draw(self, limits: Any) -> Any:
        """A panel per method and parameter: its posterior over time, the exact one, and the value that made the data."""
        import matplotlib.pyplot as plt

        methods, names = [*self.of.paper, *self.of.ours], list(self.of.case.truth)
        columns = min(len(methods), 3) if len(names) == 1 else len(methods)
        rows = -(-len(methods) // columns) * len(names)
        shape = {"figsize": (4.3 * columns, 3.1 * rows + 0.5), "sharex": True, "sharey": "row", "squeeze": False}
        figure, axes = plt.subplots(rows, columns, **shape)
        for ax in axes.ravel()[len(methods) * len(names) :]:  # the panel above becomes the last of its column
            ax.set_visible(False)
        for k, ax in enumerate(axes.ravel()[: len(methods) * len(names)]):
            method, name = methods[k % len(methods)], names[k // len(methods)]
            self._draw_one(ax, method, name)
            ax.set_ylim(limits[name])
            if name == names[0]:
                ax.set_title(method.title(self.size), fontsize=10)
            if k % columns == 0:
                ax.set_ylabel(name)
            if k + columns >= len(methods) * len(names):
                ax.tick_params(labelbottom=True)
                ax.set_xlabel("observations t")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=9)
        figure.tight_layout(rect=(0, 0.3 / figure.get_size_inches()[1], 1, 1))
        return figure

    def _draw_one(self, ax: Any, method: Method, name: str) -> None:
        found, truth = self.arrays[method.name], self.arrays["exact"]
        draw_posterior(ax, found[f"mean_{name}"][0], *found[f"band_{name}"].T, label="filter")
        draw_reference(ax, truth[f"mean_{name}"][0], *truth[f"band_{name}"].T, label="exact: mean, 90% band")
        draw_truth(ax, self.of.case.truth[name])
        finish(ax)


def _build(method: Method, num_particles: int, model: StateSpaceModel) -> Filter:
    return method.build(model, num_particles)
