"""The paper's three models as experiments: their data, their exact posteriors, and a filter's run over them.

Every series has its own seed, so that a quick run uses the first of the twenty. Exact posteriors are computed at every
t by quadrature over the state. Their grid of theta is fine near the final posterior and coarse far from it, so that it
resolves the posterior at every t while it shrinks.
"""

import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax import exact, models
from epf_jax.apps.reproduce.store import Arrays, Unit
from epf_jax.exact.theta_grid import likelihood_of
from epf_jax.filters import Filter
from epf_jax.models.state_space import StateSpaceModel, simulate
from epf_jax.running.replicate import replicate

LEVELS = (0.05, 0.95)


class Size(NamedTuple):
    """How much to run: data sets per model, observations in each, and the divisor for numbers of particles."""

    name: str
    num_series: int
    num_steps: int
    divide: int = 1

    def particles(self, num: int) -> int:
        """The number of particles of a setting of the paper, at this size."""
        return max(num // self.divide, 20)


DEMO, FULL = Size("demo", 1, 1000), Size("full", 20, 1000)


class Case(NamedTuple):
    """A model of the paper.

    Attributes:
        name: short, for files.
        title: for people.
        model: builds the model, in the precision in use.
        truth: the parameters that make the data.
        seed: of the data.
        ranges: where the posterior may be, for each parameter.
        nodes: half-width and number of the state's quadrature nodes about each observation.
        grid: points along each parameter, of the first look and of the final grid.
    """

    name: str
    title: str
    model: Callable[[], StateSpaceModel]
    truth: dict[str, float]
    seed: int
    ranges: dict[str, tuple[float, float]]
    nodes: tuple[float, int]
    grid: tuple[int, int]


SIN = Case("sin", "SIN", models.sinusoid, {"theta": 0.7}, 10, {"theta": (-1.0, 1.3)}, (0.8, 25), (33, 81))
CAUCHY = Case("cauchy", "Cauchy AR(1)", models.cauchy_ar1, {"a": 0.7}, 21, {"a": (-0.9, 1.2)}, (55.0, 145), (15, 65))
STAR = Case(
    "star",
    "STAR",
    models.star,
    {"gamma": 1.0, "c": 3.0},
    30,
    {"gamma": (-1.6, 2.8), "c": (-2.2, 6.5)},
    (0.8, 25),
    (21, 41),
)


CASES = {case.name: case for case in (SIN, CAUCHY, STAR)}


def series(case: Case, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Paths (B, T+1) and observations (B, T), simulated in double precision."""
    return _series(case.name, size.num_series, size.num_steps)


@cache
def _series(name: str, num_series: int, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    case = CASES[name]
    with jax.enable_x64(True):
        model = case.model()
        keys = jnp.stack([jax.random.fold_in(jax.random.key(case.seed), i) for i in range(num_series)])
        x, y = jax.vmap(lambda key: simulate(key, model, case.truth, num_steps))(keys)
        return np.asarray(x), np.asarray(y)


def exact_unit(case: Case, size: Size) -> Unit:
    """The exact posterior of every series: means and sds at every t, and the first one's 5% and 95% quantiles."""

    def compute() -> Arrays:
        _, y = series(case, size)
        found = [solve(case, row) for row in y]
        arrays: Arrays = {}
        for name in case.truth:
            arrays[f"mean_{name}"] = np.stack([f.mean[name] for f in found])
            arrays[f"sd_{name}"] = np.stack([f.sd[name] for f in found])
            arrays[f"band_{name}"] = found[0].quantiles(LEVELS)[name]
        return arrays

    return Unit(f"{case.name}-exact", {**data_settings(case, size), "nodes": case.nodes, "grid": case.grid}, compute)


def solve(case: Case, y: Any) -> exact.GridPosterior:
    """The exact posterior given y, at every t, on a grid that resolves it from the first observation to the last."""
    with jax.enable_x64(True):
        model, nodes = _double_precision(case.name), exact.nodes_around(y, *case.nodes)
        few_nodes = exact.nodes_around(y, case.nodes[0], case.nodes[1] // 3 + 1)  # enough to find the way
        of_nodes = likelihood_of(exact.quadrature_log_evidence, model)
        first, final = case.grid
        axes = {name: np.linspace(*ends, first) for name, ends in case.ranges.items()}
        for _ in range(8):  # zoom in until the grid resolves where the posterior ends
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # the spacing is looked at below
                found = exact.posterior(model, axes, of_nodes, y, few_nodes, None)
            spacing = {name: axis[1] - axis[0] for name, axis in axes.items()}
            mean, sd = ({name: values[-1] for name, values in m.items()} for m in (found.mean, found.sd))
            if all(spacing[name] < 0.7 * sd[name] for name in axes):
                break
            reach = {name: max(5 * sd[name], 1.5 * spacing[name]) for name in axes}
            axes = {name: np.linspace(mean[name] - reach[name], mean[name] + reach[name], first) for name in axes}
        axes = {name: focused(*case.ranges[name], mean[name], sd[name], final) for name in axes}
        found = exact.quadrature(model, y, axes, nodes)
    for name, axis in axes.items():
        # The trapezoidal rule errs by exp(-2 pi^2 / h^2) at a spacing of h standard deviations: 2e-4 at 1.5.
        gaps = np.interp(found.mean[name], axis, np.gradient(axis)) / found.sd[name]
        if not np.max(gaps) < 1.5:
            t = int(np.argmax(gaps)) + 1
            raise RuntimeError(
                f"{case.name}: at t = {t} the grid of {name} is {np.max(gaps):.1f} posterior sd apart, too coarse to be "
                "an oracle; give the case more grid points."
            )
    return found


@cache
def _double_precision(name: str) -> StateSpaceModel:
    """The model in double precision: one object, so that its oracle is compiled once for all series."""
    return CASES[name].model()


def focused(low: float, high: float, centre: float, width: float, num: int) -> np.ndarray:
    """`num` points from low to high, about a third of `width` apart at the centre, ever further apart away from it."""
    centre = float(np.clip(centre, low + 1e-6, high - 1e-6))
    ends = np.array([low - centre, high - centre])

    def points(scale):
        u = np.arcsinh(ends / scale)
        return centre + scale * np.sinh(np.linspace(u[0], u[1], num))

    scales = width * np.geomspace(0.2, 50.0, 60)
    finest = [np.min(np.diff(points(scale))) for scale in scales]
    wide_enough = [scale for scale, step in zip(scales, finest, strict=True) if step <= 0.35 * width]
    return points(wide_enough[-1] if wide_enough else scales[0])


def filter_unit(
    case: Case,
    size: Size,
    name: str,
    build: Callable[[StateSpaceModel], Filter],
    settings: dict[str, Any],
    *,
    x64: bool = False,
    history: bool = False,
) -> Unit:
    """A filter on every series of a case: its posterior of theta at every t, and its seconds."""

    def compute() -> Arrays:
        _, y = series(case, size)
        with jax.enable_x64(x64):
            filter_ = build(case.model())
            return run_filter(filter_, jnp.asarray(y, float), seed=1, history=history)

    about = {**data_settings(case, size), "filter_seed": 1, "float64": x64, **settings}
    return Unit(f"{case.name}-{name}", about, compute)


def run_filter(filter_: Filter, y: jax.Array, *, seed: int, history: bool = False) -> Arrays:
    """The filter over every row of y, compiled first and then timed."""
    keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), i) for i in range(len(y))])
    start = time.perf_counter()
    compiled = (
        jax.jit(lambda keys, y: replicate(keys, filter_, y, levels=LEVELS, history=history)).lower(keys, y).compile()
    )
    seconds_compile = time.perf_counter() - start
    start = time.perf_counter()
    results = jax.block_until_ready(compiled(keys, y))
    seconds = time.perf_counter() - start
    arrays = {
        "seconds": np.array(seconds / len(y)),
        "seconds_compile": np.array(seconds_compile),
        "ess": np.asarray(results.ess[0]),
        "acceptance": np.asarray(results.acceptance[0]),
        "num_collapsed": np.asarray(results.collapsed.sum(axis=1)),
        "num_bad_densities": np.asarray(results.num_bad_densities.sum(axis=1)),
    }
    for name, mean in results.theta.mean.items():
        arrays[f"mean_{name}"] = np.asarray(mean)
        arrays[f"sd_{name}"] = np.asarray(results.theta.sd[name])
        arrays[f"band_{name}"] = np.asarray(results.theta.quantiles[name][0])
        final = np.asarray(results.final.theta[name])
        arrays[f"distinct_{name}"] = np.array([len(np.unique(row)) for row in final])
    if history:
        first = jax.tree.map(lambda leaf: leaf[0], results.history)
        arrays["num_distinct_ancestors"] = first.num_distinct_ancestors()
    return arrays


def data_settings(case: Case, size: Size) -> dict[str, Any]:
    """What the simulated series of a case depend on."""
    return {
        "model": case.name,
        "truth": case.truth,
        "data_seed": case.seed,
        "series": size.num_series,
        "steps": size.num_steps,
    }


class Score(NamedTuple):
    """A filter against the exact posterior at the last observation, over the data sets.

    Attributes:
        z: (mean - exact mean) / exact sd, one per data set.
        sdr: sd / exact sd, one per data set.
        first: the t after which |z| stays below 1, one per data set; infinite where it does not.
    """

    z: np.ndarray
    sdr: np.ndarray
    first: np.ndarray

    @property
    def verdict(self) -> str:
        """One word: "agrees", "collapsed" (no spread), "narrow", "wide", "off", or "not finite".

        A filter agrees if its median |z| is at most 0.6 and its median sdr lies between 0.75 and 1.33.
        """
        if not (np.all(np.isfinite(self.z)) and np.all(np.isfinite(self.sdr))):
            return "not finite"
        if self.ratio < 0.1:
            return "collapsed"
        if self.median > 1:
            return "off"
        if self.ratio < 0.75:
            return "narrow"
        if self.ratio > 1.33:
            return "wide"
        return "agrees" if self.median <= 0.6 else "off"

    @property
    def reason(self) -> str:
        """The verdict as the end of a sentence that begins with "because"."""
        return {
            "agrees": "it agrees with the exact posterior",
            "collapsed": f"its spread is lost (sdr {self.ratio:.2g})",
            "narrow": f"it follows the exact mean, {self.median:.2f} sd away, and is too narrow (sdr {self.ratio:.2f})",
            "wide": f"it is too wide (sdr {self.ratio:.2f})",
            "off": f"its mean is {self.median:.2f} exact sd away",
            "not finite": "it gives numbers that are not finite",
        }[self.verdict]

    @property
    def since(self) -> str:
        """From when on its mean stays within one exact sd of the exact mean: the median over the data sets, in words."""
        times = np.sort(self.first)
        middle = times[len(times) // 2]
        return (
            f"within one exact sd from t = {int(middle)} on"
            if np.isfinite(middle)
            else "never within one exact sd for good"
        )

    @property
    def rms(self) -> float:
        """Root mean square of z."""
        return float(np.sqrt(np.mean(self.z**2)))

    @property
    def rms_error(self) -> float:
        """Standard error of `rms` over the data sets, by the jackknife; NaN with one."""
        n = len(self.z)
        if n < 2:
            return float("nan")
        left_out = np.sqrt((np.sum(self.z**2) - self.z**2) / (n - 1))
        return float(np.sqrt((n - 1) * np.mean((left_out - left_out.mean()) ** 2)))

    @property
    def words(self) -> str:
        """|z| of one data set, or the root mean square of several with its error."""
        if len(self.z) < 2:
            return f"{self.rms:.2f}"
        return f"rms {self.rms:.2f} +- {self.rms_error:.2f} (median {self.median:.2f})"

    @property
    def summary(self) -> str:
        """z, the ratio of sds, and since when, in words."""
        return f"z {self.words}, sdr {self.ratio:.2f}, {self.since}"

    @property
    def median(self) -> float:
        """The median |z|: a filter that is lost on one data set of twenty may be sound on the rest."""
        return float(np.median(np.abs(self.z)))

    @property
    def largest(self) -> float:
        """The largest |z|."""
        return float(np.max(np.abs(self.z)))

    @property
    def ratio(self) -> float:
        """Median ratio of posterior sds."""
        return float(np.median(self.sdr))


def score(found: Arrays, truth: Arrays, name: str) -> Score:
    """How a filter's parameter `name` compares with the exact posterior at the last observation."""
    sd = truth[f"sd_{name}"]
    z = (found[f"mean_{name}"] - truth[f"mean_{name}"]) / sd
    outside = ~(np.abs(z) < 1)
    last = np.where(outside.any(axis=1), z.shape[1] - np.argmax(outside[:, ::-1], axis=1), 0)  # the last t outside
    first = np.where(last < z.shape[1], last + 1.0, np.inf)
    return Score(z[:, -1], found[f"sd_{name}"][:, -1] / sd[:, -1], first)


def distinct_in_words(counts: np.ndarray) -> str:
    """How many distinct values are left, over the data sets: '1 is', or '1 to 3 are'."""
    low, high = int(np.min(counts)), int(np.max(counts))
    return f"{low} {'is' if low == 1 else 'are'}" if low == high else f"{low} to {high} are"
