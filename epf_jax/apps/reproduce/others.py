"""The library's other methods on the paper's three models, for the league table."""

from epf_jax.apps.reproduce.cases import CASES, Size
from epf_jax.apps.reproduce.claims import Experiment, Section
from epf_jax.apps.reproduce.compared import Method, filter_units, score_table
from epf_jax.apps.reproduce.store import Stored, Unit
from epf_jax.filters import extended_parameter_filter, liu_west_filter
from epf_jax.samplers import grid_sampler, slice_sampler


def _liu_west(num_particles: int) -> Method:
    return Method("liu-west-own", "Liu-West (2001), covariance kernel, rho = 0.98, {n}", num_particles, _build_liu_west)


def _build_liu_west(model, num_particles):
    return liu_west_filter(model, num_particles, rho=0.98)


def _with(sampler, num_particles: int) -> Method:
    def build(model, n):
        return extended_parameter_filter(model, n, sampler=sampler())

    name = sampler.__name__.split("_")[0]
    return Method(f"epf-{name}", f"EPF, defaults with {name} sampling, {{n}}", num_particles, build)


METHODS = {
    "sin": [_liu_west(1000), _with(slice_sampler, 1000), _with(grid_sampler, 1000)],
    "cauchy": [_liu_west(1000), _with(slice_sampler, 1000), _with(grid_sampler, 1000)],
    "star": [_liu_west(1000), _with(slice_sampler, 1000)],
}


def units(size: Size) -> list[Unit]:
    """The exact posteriors and every method's run; nothing for a quick run on a single data set."""
    if size.num_series == 1:
        return []
    return [unit for name, methods in METHODS.items() for unit in filter_units(CASES[name], size, methods)]


def present(size: Size, results: dict[str, Stored]) -> Section:
    """A table for each model. The league table has them together."""
    if size.num_series == 1:
        return Section(
            ["Liu and West's own kernel, slice and grid sampling: run by epf reproduce --full."], [], [], [], []
        )
    return Section(
        [
            "The paper names none of these. They are here so that the league table at the top holds every method of the "
            "library: Liu and West's own kernel, and other ways of drawing theta from the same statistic."
        ],
        [],
        [],
        [score_table(CASES[name], size, methods, results) for name, methods in METHODS.items()],
        [],
    )


EXPERIMENT = Experiment("others", "The library's other methods", units, present)
