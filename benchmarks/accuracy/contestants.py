"""Who contends in the league: every method of this library, and those of others, at three budgets."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax

import epf_jax as epf
from benchmarks.accuracy import peer_methods
from epf_jax.apps.reproduce.on_cauchy import learned_widely
from epf_jax.filters.node_filter import DEFAULT_NODES

BUDGETS = ("tiny", "small", "large")
LEVELS = (0.05, 0.95)


class Contestant(NamedTuple):
    """A method: `estimate(key, model, y, size, proposal)` gives an `Estimate`; sizes are those of the budgets.

    One of another library names the package that it `needs`. One that compiles anew at every call has no use for a
    first call that is not timed: `warms_up` is False.
    """

    label: str
    sizes: tuple[Any, Any, Any]
    estimate: Callable[..., "Estimate"]
    online: bool = True
    fits: Callable[[epf.StateSpaceModel], bool] = lambda model: True
    needs: str | None = None
    warms_up: bool = True


class Estimate(NamedTuple):
    """What a method says after the last observation: for each parameter a mean, an sd, a 90% interval."""

    mean: dict[str, Any]
    sd: dict[str, Any]
    interval: dict[str, Any]
    log_evidence: Any


def last_row(results: epf.Results) -> Estimate:
    """What any method of this library says after the last observation."""
    return Estimate(*jax.tree.map(lambda leaf: leaf[-1], (*results.theta, results.log_evidence)))


def online(build: Callable[..., epf.Filter]) -> Callable[..., Estimate]:
    """An estimate by a filter of this library, `build(model, size, num_steps, proposal)`."""
    kept = cache(build)  # one filter for all series of a job, so that it compiles once

    def estimate(key, model, y, size, proposal):
        return last_row(epf.run(key, kept(model, size, len(y), proposal), y, levels=LEVELS))

    return estimate


def by_chains(sample: Callable[..., Any]) -> Callable[..., Estimate]:
    """An estimate by Markov chains."""

    def estimate(key, model, y, size, proposal):
        num_particles, num_draws = size
        sizes = {"num_particles": num_particles, "num_draws": num_draws, "num_warmup": num_draws // 2}
        return last_row(sample(key, model, y, proposal=proposal, levels=LEVELS, **sizes))

    return estimate


def by_peer(method: Callable[..., tuple]) -> Callable[..., Estimate]:
    """An estimate by a method of another library."""
    return lambda *given: Estimate(*method(*given))


def smc2(model, size, num_steps, proposal):
    num_particles, num_inner = size
    return epf.smc2_filter(model, num_particles, max_steps=num_steps, num_inner=num_inner, proposal=proposal)


def accepted_by(build: Callable[[epf.StateSpaceModel], Any]) -> Callable[[epf.StateSpaceModel], bool]:
    """Whether what is built for a model fits it: what does not refuses it by a ValueError."""

    def fits(model):
        try:
            build(model)
        except ValueError:
            return False
        return True

    return fits


def assumed_density(model, size, num_steps, proposal):
    statistic = epf.assumed_density(model)
    return epf.extended_parameter_filter(model, size, statistic=statistic, proposal=proposal)


def nodes_of_sigma_points(model, num_nodes, num_steps, proposal):
    few = {"num_points": {1: 32, 2: 89}[model.parameters.dim], "reach": 4.0}
    options = few if num_nodes < DEFAULT_NODES[model.parameters.dim] else {}
    return epf.node_filter(model, inner=epf.sigma_points(model), num_nodes=num_nodes, **options)


CONTESTANTS = [
    Contestant("SIR", (200, 2000, 20_000), online(lambda m, n, _, q: epf.bootstrap_filter(m, n, proposal=q))),
    Contestant("Liu-West", (100, 1000, 10_000), online(lambda m, n, _, q: epf.liu_west_filter(m, n))),
    Contestant(
        "Storvik",
        (25, 250, 2500),
        online(lambda m, n, _, q: epf.storvik_filter(m, n, proposal=q)),
        fits=accepted_by(lambda m: epf.storvik_filter(m, 10)),
    ),
    Contestant(
        "Storvik, wider prior",
        (50, 500, 5000),
        online(lambda m, n, _, q: learned_widely(m, n)),
        fits=lambda model: set(model.prior) == {"a"},  # the Cauchy model alone calls its parameter so
    ),
    Contestant(
        "EPF (default)", (50, 250, 1000), online(lambda m, n, _, q: epf.extended_parameter_filter(m, n, proposal=q))
    ),
    Contestant("EPF, assumed density", (50, 250, 1000), online(assumed_density)),
    Contestant(
        "particle learning",
        (50, 250, 1000),
        online(lambda m, n, _, q: epf.particle_learning_filter(m, n)),
        fits=accepted_by(epf.fully_adapted),
    ),
    Contestant("practical filter", (10, 50, 200), online(lambda m, n, _, q: epf.practical_filter(m, n, proposal=q))),
    Contestant(
        "resample-move",
        (64, 250, 2500),
        online(lambda m, n, steps, q: epf.resample_move_filter(m, n, max_steps=steps, proposal=q)),
    ),
    Contestant("online EM", (20, 100, 500), online(lambda m, n, _, q: epf.online_em(m, n, proposal=q))),
    Contestant("node filter", (4, 16, 64), online(lambda m, n, _, q: epf.node_filter(m, n, proposal=q))),
    Contestant(
        "node filter, lean",  # fewer nodes and points than by default, for two parameters
        (2, 4, 16),
        online(lambda m, n, _, q: epf.node_filter(m, n, num_nodes=15, num_points=89, reach=4.0, proposal=q)),
        fits=lambda model: model.parameters.dim == 2,
    ),
    Contestant(
        "node filter, sigma points", (9, 15, 21), online(nodes_of_sigma_points), fits=accepted_by(epf.sigma_points)
    ),
    Contestant("SMC^2", ((16, 16), (64, 32), (256, 64)), online(smc2)),
    Contestant("PMMH", ((25, 60), (50, 200), (100, 500)), by_chains(epf.pmmh), online=False),
    Contestant("particle Gibbs", ((5, 30), (10, 100), (20, 300)), by_chains(epf.particle_gibbs), online=False),
    Contestant("smcx: Liu-West", (100, 1000, 10_000), by_peer(peer_methods.smcx_liu_west), needs="smcx"),
    Contestant(
        "smcx: SMC^2",
        ((16, 16), (64, 64), (256, 256)),
        by_peer(peer_methods.smcx_smc2),
        needs="smcx",
        warms_up=False,
    ),
    Contestant(
        "particles: SMC^2",
        ((16, 16), (64, 32), (256, 64)),
        by_peer(peer_methods.particles_smc2),
        needs="particles",
    ),
]
BY_LABEL = {contestant.label: contestant for contestant in CONTESTANTS}
