r"""The `Statistic` noun: a fixed-size summary of one particle's path from which theta is redrawn.

.. math:: \log p(\theta \mid x_{0:t}, y_{1:t}) \approx \log p(\theta) + \langle\psi(\theta), S_t\rangle,
          \qquad S_t = S_{t-1} + \phi(x_{t-1}, x_t, y_t)

The path's likelihood is counted relative to that of a reference theta (the prior's centre, the Taylor centre, or a
nodal statistic's best node), so that running sums stay small in float32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from epf_jax.core.choice import where
from epf_jax.core.gaussian import cholesky, diagonal_matrix
from epf_jax.models.parameters import theta_inside
from epf_jax.models.state_space import StateSpaceModel, check_is_model, input_rows
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.particles.weights import where_rows
from epf_jax.samplers import LogDensity, Sampler, check_sampler, each_particle, prior_population, random_walk

# Shares of a box's half-width, which is six standard deviations of theta, or some tens where it has yet to be cut.
_LOST = 0.01  # a spread of theta below it is that of copies
_STEP_IN_BOX = 0.1  # what stands for it then


class Statistic(NamedTuple):
    """A statistic of one particle.

    Attributes:
        init: `init(x_0=None) -> S`. x_0 counts where its distribution depends on theta.
        update: `update(key, S, theta, x_prev, x, y, u) -> S`. key and theta serve data augmentation; most ignore them.
        log_density: `log_density(S, theta)`, the log of p(theta) p(path | theta), up to a number that theta does not
            enter: where nothing else is said, the log of p(path | reference theta) is taken off.
        sample: `sample(key, S, theta, population=None) -> theta, info`, started from theta where it is a Markov step;
            None where theta is never redrawn.
        log_target: `log_target(S)`, the same density as a function of unconstrained coordinates z, Jacobian included:
            what samplers see. What it takes to read S is done once, however often the function is called.
        update_all: `update_all(key, S, theta, x_prev, x, y, u, log_weights, t) -> S`, `update` for all particles at
            once, where more than one of them counts, or the t-th observation in a way of its own; None to have
            `update` vmapped.
        sample_all: `sample_all(key, S, theta, population)`, `sample` for all particles at once, where one batch of
            random numbers serves better than a key for each; None to have `sample` vmapped.
        box: `box(S) -> low, high`, the ends in z of the box that theta is confined to; None where it is confined to
            none.
        remainder: `remainder(theta, x_prev, x, y, u)`, what one step's share of the log-density, relative to the
            reference theta, has too much of at theta; None for statistics that leave nothing out by expansion.
        name: for descriptions.
        drawn_by: the name of the sampler that draws theta; None where the statistic knows how to.
        model: the model that it was built for; None where it will do for any.
    """

    init: Callable[..., Any]
    update: Callable[..., Any]
    log_density: Callable[[Any, Any], Any]
    sample: Any
    log_target: Callable[[Any], LogDensity]
    update_all: Callable[..., Any] | None = None
    sample_all: Callable[..., Any] | None = None
    box: Callable[[Any], tuple[Float[Array, " P"], Float[Array, " P"]]] | None = None
    remainder: Callable[..., Float[Array, ""]] | None = None
    name: str = "of your own"
    drawn_by: str | None = None
    model: StateSpaceModel | None = None

    @property
    def moves(self) -> bool:
        """Whether theta is ever redrawn."""
        return self.sample is not None

    @property
    def box_follows(self) -> bool:
        """Whether the box is one for all particles, and follows them."""
        return self.box is not None and self.update_all is not None

    @property
    def description(self) -> str:
        """The statistic, and how theta is drawn from it, in words."""
        return self.name if self.drawn_by is None else f"{self.name}, theta by {self.drawn_by}"


def from_log_target(
    model: StateSpaceModel,
    init: Callable,
    update: Callable,
    log_target: Callable,
    sampler: Sampler | None = None,
    name: str = "of your own",
) -> Statistic:
    """A `Statistic` from its recursion and its density over unconstrained coordinates, drawn from by `sampler`."""
    coordinates = model.parameters

    def log_density(S, theta):
        z = coordinates.to_vector(theta)
        return log_target(S)(z) - coordinates.log_jacobian(z)

    statistic = Statistic(init, update, log_density, _replaced, log_target, name=name, model=model)
    return with_sampler(statistic, model, random_walk() if sampler is None else sampler)


@waits_for_inputs
def with_sampler(statistic: Statistic, model: StateSpaceModel, sampler: Sampler) -> Statistic:
    """The same statistic, its theta drawn by `sampler`."""
    coordinates = model.parameters
    if not statistic.moves:
        raise ValueError(
            "sampler: the frozen statistic records nothing, so theta cannot be redrawn from it. Leave the sampler out, "
            "or choose a statistic that learns, such as epf.chebyshev(model)."
        )
    check_sampler(sampler, coordinates)
    prior = prior_population(coordinates)

    def sample(key, S, theta, population=None):
        population = prior if population is None else population
        z = coordinates.to_vector(theta)
        z, info = sampler.step(key, z, statistic.log_target(S), population)
        return theta_inside(coordinates, z, theta), info

    def sample_all(key, S, theta, population):
        if statistic.box_follows:
            theta, population = _taken_in(statistic, coordinates, S, theta, population)
        z = jax.vmap(coordinates.to_vector)(theta)
        z, info = each_particle(sampler, key, z, S, statistic.log_target, population)
        return jax.vmap(partial(theta_inside, coordinates))(z, theta), info

    return statistic._replace(sample=sample, sample_all=sample_all, drawn_by=sampler.name)


def _taken_in(statistic, coordinates, S, theta, population):
    """Theta where its statistic's box is, and steps of its size where the particles' own have none.

    An observation that says thousands of times as much as all before it leaves copies of one particle, beside the
    posterior by many of its standard deviations. The box, which follows the statistic, knows where it is.
    """
    low, high = (end[0] for end in jax.vmap(statistic.box)(S))  # the same for all particles
    scale_tril = population.scale_tril
    sd, reach = jnp.sqrt(jnp.sum(scale_tril**2, axis=1)), 0.5 * (high - low)
    least = where((sd < _LOST * reach) & jnp.isfinite(reach), _STEP_IN_BOX * reach, 0.0)
    longer = cholesky(scale_tril @ scale_tril.T + diagonal_matrix(least**2))
    scale_tril = where(jnp.any(least > 0), longer, scale_tril)
    z = jax.vmap(coordinates.to_vector)(theta)
    outside = jnp.any((z < low) | (z > high), axis=1)
    inside = jax.vmap(coordinates.to_theta)(jnp.minimum(jnp.maximum(z, low), high))
    return jax.tree.map(partial(where_rows, outside), inside, theta), population._replace(scale_tril=scale_tril)


def updated(statistic: Statistic, key, S, theta, x_prev, x, y, u, log_weights, t) -> Any:
    """Every particle's statistic after x_t and y_t."""
    if statistic.update_all is not None:
        return statistic.update_all(key, S, theta, x_prev, x, y, u, log_weights, t)
    keys = jax.random.split(key, x.shape[0])
    return jax.vmap(statistic.update, in_axes=(0, 0, 0, 0, 0, None, None))(keys, S, theta, x_prev, x, y, u)


def statistic_of_path(
    statistic: Statistic, x: Float[Array, "T+1 *x"], y: Any, theta: Any = None, *, inputs: Any = None, key: Any = None
) -> Any:
    """The statistic of a known path x_0..x_T with observations y_1..y_T, after every step: a pytree with T rows.

    Args:
        statistic: what to record.
        x: the path, x_0 first.
        y: the observations, or None where the statistic does not look at them.
        theta: the particle's own theta, for statistics that draw on it.
        inputs: one row per step, or None for the time index.
        key: for statistics that draw.
    """
    num_steps = x.shape[0] - 1
    keys = jax.random.split(jax.random.key(0) if key is None else key, num_steps)

    def step(S, row):
        key, x_prev, x, y, u = row
        S = statistic.update(key, S, theta, x_prev, x, y, u)
        return S, S

    rows = (keys, x[:-1], x[1:], y, input_rows(inputs, num_steps))
    return jax.lax.scan(step, statistic.init(x[0]), rows)[1]


def check_model_learns(model: StateSpaceModel, who: str) -> None:
    """Refuse a model with nothing to learn."""
    check_is_model(model)
    if model.parameters.dim == 0:
        raise ValueError(
            f"{who}: the model's prior is empty, so there is no theta to learn. With theta known, use "
            "epf.bootstrap_filter(model, num_particles)."
        )


def check_statistic_moves(statistic: Statistic) -> None:
    """Refuse a statistic from which theta is never redrawn."""
    if not statistic.moves:
        raise ValueError(
            "statistic: the frozen statistic records nothing, so theta would never move. Give one that learns, such as "
            "epf.chebyshev(model)."
        )


def _replaced(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("replaced by with_sampler")
