r"""Conditional SMC with ancestor sampling: redraws a path given theta, the observations and the current path.

A particle filter in which the last particle follows the current path (Andrieu, Doucet and Holenstein 2010), while its
ancestors are drawn again at every step (Lindsten, Jordan and Schön 2014). One sweep leaves
:math:`p(x_{1:L} \mid x_0, y_{1:L}, \theta)` invariant, for two particles or more.

Algorithm, for s = 1..L, with weights w of the particles (x' is the old path, x the new particles):

    1. resample    N - 1 ancestors independently by w g, g the proposal's look-ahead weight if it has one
    2. draw        x_s ~ q(. | x_{s-1}, y_s, theta) for each of them
    3. condition   the last particle is x'_s, and its ancestor is drawn by w p(x'_s | x_{s-1}, theta)
    4. weigh       by p(x_s | x_{s-1}, theta) p(y_s | x_s, theta) / q(x_s), less the look-ahead weight

Then one particle is drawn by w, and its ancestors are the new path. Step 3 draws by w and not by w g: the look-ahead
weight only guides the draws of the other particles. If components of x have no noise (lags), an ancestor fits if these
components are copies to half their digits (`densities.log_prob`), and so they are in the new path.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from epf_jax.core.densities import log_prob, sample_each
from epf_jax.core.random import threefry
from epf_jax.models.parameters import Theta
from epf_jax.models.state_space import StateSpaceModel, simulate
from epf_jax.particles.proposals import Proposal, blind_to_missing
from epf_jax.particles.quasi_random import is_quasi_random
from epf_jax.particles.resampling import independent_ancestors
from epf_jax.particles.weights import reweight, uniform_log_weights


class Redrawn(NamedTuple):
    """A path after one sweep.

    Attributes:
        x: the new path.
        renewed: where it differs from the old path.
        log_evidence: log p(y_1:L | x_0, theta), estimated by all particles, including the old path.
        num_collapsed: the number of steps at which every weight was zero.
    """

    x: Float[Array, "L *x"]
    renewed: Bool[Array, " L"]
    log_evidence: Float[Array, ""]
    num_collapsed: Int[Array, ""]


class _Generation(NamedTuple):
    """The particles of one step, their ancestors, and the step's log-evidence."""

    x: Float[Array, "N *x"]
    ancestors: Int[Array, " N"]
    log_weights: Float[Array, " N"]
    log_increment: Float[Array, ""]
    collapsed: Bool[Array, ""]


def redraw_path(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    proposal: Proposal,
    num_particles: int,
    theta: Theta,
    x_before: Float[Array, " *x"],
    x: Float[Array, "L *x"],
    y: Float[Array, "L *y"],
    u: Any,
    begins: Bool[Array, " L"],
) -> Redrawn:
    """One sweep over a stretch of a path.

    Args:
        key: a random key.
        model: the model.
        proposal: how the particles' states are drawn.
        num_particles: N, including the current path; at least two.
        theta: the parameters.
        x_before: the state before the stretch, which does not change.
        x: the states to redraw.
        y: their observations.
        u: their inputs, any pytree of arrays with L rows.
        begins: the rows that hold the model's initial state, drawn from `model.initial(theta)`. Their observations and
            inputs are ignored.
    """
    if is_quasi_random(proposal):
        raise ValueError(
            f"proposal: redrawing a path needs independent draws, and those of a {proposal.name} proposal are not. "
            "Give the proposal without epf.quasi_random."
        )
    proposal = blind_to_missing(proposal)
    key_end, key_rows = jax.random.split(key)
    num_steps = x.shape[0]
    cloud = jnp.broadcast_to(x_before, (num_particles, *x_before.shape)).astype(x.dtype)

    def turn(carry, row):
        made = jax.lax.cond(row[-1], _begin(model, theta), _go_on(model, proposal, theta), *carry, row[:-1])
        return (made.x, made.log_weights), made

    rows = (jax.random.split(key_rows, num_steps), x, y, u, begins)
    (_, log_weights), made = jax.lax.scan(turn, (cloud, uniform_log_weights(num_particles)), rows)
    last = independent_ancestors(key_end, log_weights, 1)[0]
    # Back from the particle drawn last to its ancestors; the old path is the last particle of every step.
    _, (path, renewed) = jax.lax.scan(
        lambda i, row: (row[1][i], (row[0][i], i < num_particles - 1)),
        last.astype(jnp.int32),
        (made.x, made.ancestors),
        reverse=True,
    )
    return Redrawn(path, renewed, jnp.sum(made.log_increment), jnp.sum(made.collapsed))


def redraw_whole_path(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    proposal: Proposal,
    num_particles: int,
    theta: Theta,
    x: Float[Array, "T+1 *x"],
    y: Float[Array, "T *y"],
    u: Any,
) -> Redrawn:
    """One sweep over x_0 .. x_T, including x_0."""
    # A first row in which the path begins, whose y and u are not looked at.
    y, u = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:1], leaf]), (y, u))
    return redraw_path(key, model, proposal, num_particles, theta, x[0], x, y, u, jnp.arange(len(y)) == 0)


def first_path(
    key: PRNGKeyArray,
    model: StateSpaceModel,
    proposal: Proposal,
    num_particles: int,
    theta: Theta,
    y: Float[Array, "T *y"],
    u: Any,
) -> Float[Array, "T+1 *x"]:
    """A first path: simulated without the data, then redrawn once, so that it does not explode.

    It is simulated with jax's own generator, which works with every distribution.
    """
    key_path, key_redraw = jax.random.split(threefry(key))
    x = simulate(key_path, model, theta, y.shape[0], inputs=u)[0]
    return redraw_whole_path(key_redraw, model, proposal, num_particles, theta, x, y, u).x


def _begin(model, theta):
    """The first generation: draws of x_0, and x_0 of the old path."""

    def generation(cloud, log_weights, row):
        key, x_old, _, _ = row
        n = cloud.shape[0]
        x = sample_each(key, lambda _: model.initial(theta), n - 1, jnp.arange(n - 1))
        x = jnp.concatenate([x.astype(cloud.dtype), x_old[None]])
        own = jnp.arange(n, dtype=jnp.int32)
        return _Generation(x, own, uniform_log_weights(n), jnp.zeros_like(log_weights[0]), jnp.array(False))

    return generation


def _go_on(model, proposal, theta):
    """The next generation: the four steps of the box."""

    def generation(cloud, log_weights, row):
        key, x_old, y, u = row
        key_resample, key_state, key_old = jax.random.split(key, 3)
        n = cloud.shape[0]

        increment, by = jnp.zeros_like(log_weights[0]), log_weights
        if proposal.look_ahead is not None:
            g = jax.vmap(lambda x: proposal.look_ahead(model, theta, x, y, u))(cloud)
            looked = reweight(log_weights, g)
            increment, by = looked.log_increment, looked.log_weights
        drawn = independent_ancestors(key_resample, by, n - 1)

        x = proposal.draw(key_state, lambda x: proposal.distribution(model, theta, x, y, u), n - 1, cloud[drawn])
        x = jnp.concatenate([x.astype(cloud.dtype), x_old[None]])

        joins = reweight(log_weights, jax.vmap(lambda x: log_prob(model.transition(theta, x, u), x_old))(cloud))
        joined = independent_ancestors(key_old, joins.log_weights, 1)
        own = jnp.array([n - 1], jnp.int32)  # the old path's own ancestor, should rounding make every other impossible
        ancestors = jnp.concatenate([drawn, jnp.where(joins.collapsed, own, joined)])

        w = jax.vmap(lambda x_prev, x: proposal.log_weight(model, theta, x_prev, x, y, u))(cloud[ancestors], x)
        weighed = reweight(uniform_log_weights(n), w)
        increment += weighed.log_increment
        # Where every weight is zero the old path is kept, if it is one: the draws may be NaN.
        alone = jnp.where(jnp.arange(n) == n - 1, 0.0, -jnp.inf).astype(weighed.log_weights.dtype)
        kept = weighed.collapsed & jnp.all(jnp.isfinite(x_old))
        return _Generation(x, ancestors, jnp.where(kept, alone, weighed.log_weights), increment, increment == -jnp.inf)

    return generation
