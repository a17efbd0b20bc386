r"""Proposals: how x_t is drawn, and the weight of the draw.

A proposal draws :math:`x_t \sim q(\cdot \mid x_{t-1}, y_t, \theta)` and weighs it by
:math:`p(x_t \mid x_{t-1}, \theta)\, p(y_t \mid x_t, \theta) / q(x_t)`. One with a look-ahead weight
:math:`g(x_{t-1}, \theta)` resamples the particles by g before x_t is drawn (Pitt and Shephard 1999); the weight after
the draw is then divided by g.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from epf_jax.core.checks import check_signature
from epf_jax.core.choice import where
from epf_jax.core.densities import log_prob, observed_log_prob, sample_each
from epf_jax.core.dependence import abstractly, depends_on, is_affine
from epf_jax.core.gaussian import condition, is_gaussian, is_linear_gaussian, linear_parts, moments
from epf_jax.models.one_particle import WantsInputsError, drawn
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel, check_is_model, row_of
from epf_jax.models.waiting import waits_for_inputs


class Proposal(NamedTuple):
    """A proposal for one particle. Every function takes the model first.

    Attributes:
        distribution: `distribution(model, theta, x_prev, y, u)`, the distribution of the draw of x_t.
        log_weight: `log_weight(model, theta, x_prev, x, y, u)`, the log-weight of the draw, less any look-ahead weight.
        look_ahead: `look_ahead(model, theta, x_prev, y, u)`, the log-weight before the draw, or None.
        blind: whether x_t is drawn without y_t.
        name: the name for descriptions.
        draw: `draw(key, distribution, num, *batched)`, a draw for every particle, like `densities.sample_each`.
        made_for: the model that it was built for, or None.
        why_not: `why_not(model)`, a sentence that says why it does not fit another model, or an empty string. None for
            a proposal that fits every model.
    """

    distribution: Callable[..., Any]
    log_weight: Callable[..., Float[Array, ""]]
    look_ahead: Callable[..., Float[Array, ""]] | None = None
    blind: bool = False
    name: str = "of your own"
    draw: Callable[..., Array] = sample_each
    made_for: StateSpaceModel | None = None
    why_not: Callable[[StateSpaceModel], str] | None = None

    @property
    def even(self) -> bool:
        """Whether the look-ahead weight is the whole weight, so that all draws have equal weight."""
        return self.look_ahead is not None and self.log_weight is nothing_more


def nothing_more(model, theta, x_prev, x, y, u):
    """The log-weight zero, for draws whose look-ahead weight is the whole weight."""
    return jnp.zeros(())


def bootstrap() -> Proposal:
    """Draw from the transition, weigh by the observation (Gordon, Salmond and Smith 1993)."""

    def distribution(model, theta, x_prev, y, u):
        return model.transition(theta, x_prev, u)

    def log_weight(model, theta, x_prev, x, y, u):
        return observed_log_prob(model.observation(theta, x, u), y)

    return Proposal(distribution, log_weight, blind=True, name="bootstrap")


def guided(q: Callable[[Theta, Array, Array, Any], Any]) -> Proposal:
    """Draw from the user's `q(theta, x_prev, y, u)`, a distribution for x_t; weigh by p(x_t) p(y_t) / q(x_t).

    q must have a density wherever the transition has one. If y may be missing, q must handle NaN.
    """
    check_signature("q", q, ("theta", "x_prev", "y", "u"))

    def distribution(model, theta, x_prev, y, u):
        return q(theta, x_prev, y, u)

    def log_weight(model, theta, x_prev, x, y, u):
        prior = log_prob(model.transition(theta, x_prev, u), x)
        likelihood = observed_log_prob(model.observation(theta, x, u), y)
        return prior + likelihood - log_prob(q(theta, x_prev, y, u), x)

    return Proposal(distribution, log_weight, name="guided")


class _Either(NamedTuple):
    """One of two distributions of the same states, chosen by a traced flag."""

    flag: Any
    first: Any
    second: Any

    def sample(self, key):
        return where(self.flag, self.first.sample(key), self.second.sample(key))

    def log_prob(self, x):
        return where(self.flag, log_prob(self.first, x), log_prob(self.second, x))


def _either(flag: Any, first: Any, second: Any) -> Any:
    """One of two distributions by a flag; if both are of one family, the flag chooses its parameters."""

    def form(d):
        return jax.tree.structure(d), [jnp.shape(leaf) for leaf in jax.tree.leaves(d)]

    if isinstance(first, dist.Distribution) and form(first) == form(second):
        return jax.tree.map(partial(where, flag), first, second)
    return _Either(flag, first, second)


def blind_to_missing(proposal: Proposal) -> Proposal:
    """The proposal, except that x_t is drawn from the transition if all of y_t is missing.

    Filters that remember an impossible observation as missing use it, so that the user's q need not handle NaN.
    """
    if proposal.blind or proposal.look_ahead is not None or proposal.draw is not sample_each:
        return proposal

    def distribution(model, theta, x_prev, y, u):
        seen = proposal.distribution(model, theta, x_prev, y, u)
        return _either(jnp.all(jnp.isnan(y)), model.transition(theta, x_prev, u), seen)

    def log_weight(model, theta, x_prev, x, y, u):
        return where(jnp.all(jnp.isnan(y)), 0.0, proposal.log_weight(model, theta, x_prev, x, y, u))

    return proposal._replace(distribution=distribution, log_weight=log_weight)


def at_known(proposal: Proposal, model: StateSpaceModel, theta: Theta) -> Proposal:
    """The proposal for the model with known theta, whose own theta is empty; q still gets theta."""
    look_ahead = proposal.look_ahead

    def distribution(known, _, x_prev, y, u):
        return proposal.distribution(model, theta, x_prev, y, u)

    def log_weight(known, _, x_prev, x, y, u):
        return proposal.log_weight(model, theta, x_prev, x, y, u)

    def ahead(known, _, x_prev, y, u):
        return look_ahead(model, theta, x_prev, y, u)  # type: ignore[misc]

    return proposal._replace(
        distribution=distribution,
        log_weight=nothing_more if proposal.even else log_weight,
        look_ahead=None if look_ahead is None else ahead,
    )


@waits_for_inputs
def fully_adapted(model: StateSpaceModel) -> Proposal:
    r"""Resample by p(y_t | x_{t-1}, theta), then draw from p(x_t | x_{t-1}, y_t, theta): all weights are equal.

    For Gaussian transitions :math:`x_t \sim N(f, Q)`, f and Q any functions of x_{t-1} and theta, and linear-Gaussian
    observations :math:`y_t \sim N(H x_t + c, R)`, both densities are Gaussian and exact:

    .. math:: y_t \mid x_{t-1} \sim N(Hf + c,\; HQH^T + R), \qquad
              x_t \mid x_{t-1}, y_t \sim N(f + K(y_t - Hf - c),\; (I - KH)Q) .

    Missing components of y drop out of both. Other models raise an error.
    """
    check_is_model(model)
    problem = why_not_fully_adapted(model)
    if problem:
        raise ValueError(
            f"fully_adapted: {problem} It needs a Gaussian transition and an observation that is Gaussian with a mean "
            "linear in x. Use epf.bootstrap(), epf.laplace(model), or epf.guided(q) with a proposal of your own."
        )
    x_shape, x_dtype = model.shapes.x.shape, model.shapes.x.dtype

    def given_y(model, theta, x_prev, y, u):
        observed = linear_parts(lambda x: model.observation(theta, x, u), x_shape, x_dtype)
        return condition(*moments(model.transition(theta, x_prev, u)), *observed, jnp.ravel(y))

    def look_ahead(model, theta, x_prev, y, u):
        return given_y(model, theta, x_prev, y, u).log_density

    def distribution(model, theta, x_prev, y, u):
        mean, scale_tril, _ = given_y(model, theta, x_prev, y, u)
        if x_shape == ():
            return dist.Normal(mean[0], scale_tril[0, 0])
        return dist.MultivariateNormal(mean, scale_tril=scale_tril)

    return Proposal(
        distribution, nothing_more, look_ahead, name="fully adapted", made_for=model, why_not=why_not_fully_adapted
    )


def why_not_gaussian(model: StateSpaceModel, *functions: str) -> str:
    """A sentence on which of the model's functions are not Gaussian, or an empty string."""
    if len(model.shapes.x.shape) > 1:
        return f"the state has several axes, shape {model.shapes.x.shape}."
    theta = model.shapes.theta
    x = np.zeros(model.shapes.x.shape, model.shapes.x.dtype)
    for name in functions:
        kind = abstractly(getattr(model, name), theta, x, row_of(model))
        if not is_gaussian(kind):
            return f"the {name} is {type(kind).__name__}, not Gaussian."
    return ""


@lru_cache(maxsize=256)
def why_not_fully_adapted(model: StateSpaceModel) -> str:
    """A sentence that says why the fully adapted proposal does not fit `model`, or an empty string."""
    return why_not_gaussian(model, "transition") or why_not_linear_observation(model)


@lru_cache(maxsize=256)
def why_not_linear_observation(model: StateSpaceModel) -> str:
    """Why the observation is not Gaussian with a mean linear in x and noise free of it; empty when it is."""
    problem = why_not_gaussian(model, "observation")
    if problem:
        return problem
    theta, u = model.shapes.theta, row_of(model)
    x = np.zeros(model.shapes.x.shape, model.shapes.x.dtype)

    def mean(x, theta, u):
        return moments(model.observation(theta, x, u))[0]

    def scale(x, theta, u):
        return moments(model.observation(theta, x, u))[1]

    if not is_affine(mean, x, theta, u):
        return "the mean of the observation is not linear in x."
    if depends_on(scale, x, theta, u):
        return "the noise of the observation depends on x."
    return ""


def why_not_gaussian_filter(model: StateSpaceModel) -> str:
    """A sentence that says why a filter with Gaussian laws of the state does not fit `model`, or an empty string."""
    kind = abstractly(model.initial, model.shapes.theta)
    start = "" if is_gaussian(kind) else f"the initial state is {type(kind).__name__}, not Gaussian."
    return why_not_fully_adapted(model) or start


@lru_cache(maxsize=256)
def why_not_kalman(model: StateSpaceModel) -> str:
    """A sentence that says why Kalman's filter does not fit `model`, or an empty string."""
    problem = why_not_gaussian_filter(model)
    if problem:
        return problem

    def transition(x, theta, u):
        return model.transition(theta, x, u)

    x = np.zeros(model.shapes.x.shape, float)
    if is_linear_gaussian(transition, x, model.shapes.theta, row_of(model)):
        return ""
    return "the mean of the transition is not linear in x, or its noise depends on x."


def check_proposal(proposal: Any, model: StateSpaceModel) -> None:
    """Raise if it is not a proposal, or does not draw states of `model`."""
    if not isinstance(proposal, Proposal):
        raise TypeError(
            f"proposal: expected epf.bootstrap(), epf.fully_adapted(model), epf.laplace(model) or epf.guided(q), got "
            f"{proposal!r}." + (" Call it: proposals are built by their functions." if callable(proposal) else "")
        )
    shapes = model.shapes
    fits = proposal.blind or proposal.made_for is model
    problem = "" if fits or proposal.why_not is None else proposal.why_not(model)
    if problem:
        raise ValueError(
            f"proposal: it was made for another model, {proposal.name}, and does not fit this one: {problem} Use "
            "epf.bootstrap() or epf.guided(q)."
        )
    if fits and proposal.draw is sample_each:
        return
    call = "q(theta, x_prev, y, u)"
    try:
        x, _ = drawn(
            "proposal",
            call,
            lambda *given: proposal.distribution(model, *given),
            *(shapes.theta, shapes.x, shapes.y, row_of(model)),
        )
    except WantsInputsError:  # of inputs that the model does not read itself, perhaps
        return
    if x.shape != shapes.x.shape:
        raise ValueError(
            f"proposal: {call} draws x_t of shape {x.shape}, but the model's state has shape {shapes.x.shape}. Propose "
            "one state for one particle."
        )
    if proposal.draw is not sample_each:
        _draw_two(proposal, model)


def _draw_two(proposal: Proposal, model: StateSpaceModel) -> None:
    """Two draws of x_0 and of x_t by abstract evaluation, to find errors."""
    theta, x, y = model.shapes.theta, model.shapes.x, model.shapes.y

    def draw(key, two_theta, two_x, y, u):
        proposal.draw(key, lambda theta, _: model.initial(theta), 2, two_theta, two_x)
        return proposal.draw(key, lambda theta, x: proposal.distribution(model, theta, x, y, u), 2, two_theta, two_x)

    x_shape = (2, *x.shape)
    two_theta, two_x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), (theta, x))
    drawn_x = jax.eval_shape(draw, jax.random.key(0), two_theta, two_x, y, row_of(model))
    if drawn_x.shape != x_shape:
        raise ValueError(f"proposal: {proposal.name} draws states of shape {drawn_x.shape[1:]}, expected {x.shape}.")
