"""Which method `learn` takes for a model: one table, read by code and by the docs."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from epf_jax.filters import Filter, smc2_filter
from epf_jax.filters.groups import in_groups
from epf_jax.filters.known_theta import KnownTheta, kalman, particles
from epf_jax.filters.window import least_thetas
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.laplace_proposal import laplace, why_not_laplace
from epf_jax.particles.proposals import Proposal, why_not_kalman
from epf_jax.particles.resampling import systematic

# Components of the state. With four, one draw takes 300 times as long as a draw of the transition.
_MOST_BY_LAPLACE = 2
_WINDOW, _INNER = 256, 256  # observations, and particles of each theta


class Route(NamedTuple):
    """One way to the likelihoods of a model's thetas.

    Attributes:
        why: what of the model makes it apply, in words.
        method: what is done, in words.
        fits: whether it applies.
        inner: `inner(model, num_particles)`, the filter of the state for one theta.
        exact: whether likelihoods are exact: particles are not needed.
    """

    why: str
    method: str
    fits: Callable[[StateSpaceModel], bool]
    inner: Callable[[StateSpaceModel, int], KnownTheta]
    exact: bool = False


def _with_particles(proposal: Callable[[StateSpaceModel], Proposal]) -> Callable[[StateSpaceModel, int], KnownTheta]:
    return lambda model, num_particles: particles(model, num_particles, proposal(model), systematic)


ROUTES = (
    Route(
        "the model is linear and Gaussian in its state",
        "importance sampling with Kalman's exact likelihoods",
        lambda model: not why_not_kalman(model),
        lambda model, _: kalman(model),
        exact=True,
    ),
    Route(
        "the model is not linear and Gaussian in its state",
        "importance sampling with particle filters' likelihoods",
        lambda model: True,
        _with_particles(default_proposal),
    ),
    Route(
        "few particles are where the observations are, and the state has few components",
        "importance sampling with particle filters' likelihoods, by Laplace's proposal",
        lambda model: (
            default_proposal(model).blind
            and not why_not_laplace(model)
            and math.prod(model.shapes.x.shape) <= _MOST_BY_LAPLACE
        ),
        _with_particles(laplace),
    ),
)


class StreamingRoute(NamedTuple):
    """One way to learn from a stream, at a cost per observation that never grows.

    Attributes:
        why: what of the model makes it apply, in words.
        method: what is done, in words.
        fits: whether it applies.
        filter_of: `filter_of(model, num_thetas)`, the filter of a model with so many thetas in each of its groups.
    """

    why: str
    method: str
    fits: Callable[[StateSpaceModel], bool]
    filter_of: Callable[[StateSpaceModel, int], Filter]


STREAMING_ROUTES = (
    StreamingRoute(
        "the model is linear and Gaussian in its state",
        "groups of windowed SMC^2 with Kalman's exact likelihoods",
        lambda model: not why_not_kalman(model),
        lambda model, num: in_groups(smc2_filter(model, num, window=_WINDOW, inner=kalman(model)), 8),
    ),
    StreamingRoute(
        "the model is not linear and Gaussian in its state",
        "groups of windowed SMC^2 with particle filters' likelihoods",
        lambda model: True,
        lambda model, num: in_groups(smc2_filter(model, num, window=_WINDOW, num_inner=_INNER, max_inner=_INNER), 4),
    ),
)


def streaming_route_of(model: StateSpaceModel) -> StreamingRoute:
    """The first route for streams that fits the model."""
    return next(route for route in STREAMING_ROUTES if route.fits(model))


def streaming_filter(model: StateSpaceModel, num_thetas: int | None = None) -> Filter:
    """The filter for streams of a model, with so many thetas in each of its groups."""
    enough = max(128, 2 * least_thetas(model.parameters.dim))
    return streaming_route_of(model).filter_of(model, enough if num_thetas is None else num_thetas)


def routes_of(model: StateSpaceModel) -> list[Route]:
    """The routes that fit the model, the first choice first."""
    fitting = [route for route in ROUTES if route.fits(model)]
    return fitting[:1] if fitting[0].exact else fitting


@lru_cache(maxsize=64)
def inner_of(model: StateSpaceModel, route: Route, num_particles: int) -> KnownTheta:
    """The inner filter of a route, one object for one model: what is built from it is compiled once."""
    return route.inner(model, num_particles)
