r"""The practical filter: a window of recent states refreshed by Gibbs sampling (Polson, Stroud and Müller 2008).

Every particle is its own Markov chain. It keeps theta, the last L states, the state just before them, and a statistic S
of all states that left the window, which never changes afterwards:

.. math:: p(\theta, x_{t-L+1:t} \mid x_{t-L}, S, y_{t-L+1:t}) \;\propto\; p(\theta \mid S)
          \prod_{s=t-L+1}^t p(x_s \mid x_{s-1}, \theta)\, p(y_s \mid x_s, \theta) .

Algorithm, for t = 1..T:

    1. leave    S <- S + phi(x_{t-L-1}, x_{t-L}, y_{t-L}); x_{t-L} is the state before the window from now on
    2. extend   x_t ~ q(. | x_{t-1}, y_t, theta)
    3. sweep    a few times over:
                  x_{t-L+1:t} given x_{t-L}, theta and y_{t-L+1:t}
                  theta       given S and the statistic of the window's states

The cost of a step does not depend on t. There is no resampling, so paths do not coalesce. The approximation is that
x_{t-L} was last drawn without y_t, y_{t+1}, ... This has two effects:

- Later observations say something about x_{t-L} through the states between. A window of a few memory lengths makes up
  for that.
- They also say something about it through theta. Only a much longer window makes up for that: states that left while
  theta was hardly known keep its posterior too wide for good.

Both effects are small if observations are precise; otherwise compare lags. As long as t < L nothing has left, and the
chains have the exact posterior, as far as they mix in a few sweeps per observation. A theta that is tied to a single
state, such as the mean of x_0, mixes slowly, and stays near its prior when that state leaves. More sweeps and a longer
window help.

Departures: Polson, Stroud and Müller draw the window by the forward filter and backward sampler of a linear (or
mixture of linear) model; here it is one sweep of conditional SMC with ancestor sampling (`conditional_smc.py`), for any
model. Any statistic of the library can be used, also approximate ones. An observation that every particle rules out is
counted in `StepInfo` and then treated as missing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from epf_jax.core.checks import check_whole_number
from epf_jax.core.choice import where
from epf_jax.filters.extended_parameter import check_statistic, default_statistic, propagate, propagate_blindly, redraw
from epf_jax.filters.filter import (
    Filter,
    build_filter,
    builds_filter,
    check_filter_arguments,
    edge_of_box,
    start,
    step_info,
)
from epf_jax.filters.memory import check_input
from epf_jax.filters.state import FilterState
from epf_jax.models.missing import missing_where
from epf_jax.models.state_space import StateSpaceModel, row_of
from epf_jax.particles.conditional_smc import redraw_path
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.proposals import Proposal, check_proposal
from epf_jax.particles.resampling import keep, systematic
from epf_jax.particles.weights import reweight
from epf_jax.samplers import Sampler, together
from epf_jax.statistics import Statistic, with_sampler
from epf_jax.statistics.statistic import check_model_learns, check_statistic_moves, updated


class Window(NamedTuple):
    """What a particle keeps: its last states, with their observations and inputs, and a statistic of those before.

    Each particle has its own copy of the observations and inputs. While t < L the rows of times before 0 hold copies of
    x_0, which are not used.

    Attributes:
        S: the statistic of the path up to x_{t-L}.
        x: states x_{t-L}, .., x_t.
        y: observations y_{t-L+1}, .., y_t; zero where they are missing.
        seen: which of their components are not missing.
        u: their inputs.
    """

    S: Any
    x: Float[Array, "L+1 *x"]
    y: Float[Array, "L *y"]
    seen: Bool[Array, "L *y"]
    u: Any

    @property
    def observed(self) -> Float[Array, "L *y"]:
        """The observations, with NaN where missing."""
        return where(self.seen, self.y, jnp.nan)


@builds_filter
def practical_filter(
    model: StateSpaceModel,
    num_particles: int,
    lag: int = 10,
    *,
    num_sweeps: int = 2,
    num_path_particles: int = 8,
    statistic: Statistic | None = None,
    sampler: Sampler | None = None,
    proposal: Proposal | None = None,
) -> Filter:
    """The practical filter: N independent chains over theta and the last `lag` states.

    A step costs about `num_sweeps * lag * num_path_particles` times one of the extended parameter filter, whatever t.

    Args:
        model: the state-space model.
        num_particles: N.
        lag: L, the number of states in the window.
        num_sweeps: Gibbs sweeps per observation, in which each particle must move from the posterior of t - 1 to that
            of t.
        num_path_particles: particles of the conditional SMC that refreshes a window, at least two.
        statistic: what each particle keeps of the states that left its window; chosen as for
            `extended_parameter_filter`.
        sampler: how theta is drawn given the statistics; the statistic's own by default.
        proposal: how states are drawn; by default `epf.fully_adapted(model)` if the model allows it, otherwise
            `epf.bootstrap()`.

    Weights are always equal. `ess` is that of p(y_t | x_{t-1}, theta) over the particles: it shows how surprising an
    observation is. `log_evidence` sums the logarithms of the means of these densities, each estimated with one draw of
    x_t if the proposal does not know it. For large N it is as approximate as the chains, and it is not unbiased.
    """
    check_filter_arguments(model, num_particles, systematic)
    check_model_learns(model, "practical_filter")
    check_whole_number("lag", lag, hint="Ten is a good start.")
    check_whole_number("num_sweeps", num_sweeps, hint="Two is a good start.")
    check_whole_number("num_path_particles", num_path_particles, least=2, hint="The window itself is one of them.")
    statistic = default_statistic(model) if statistic is None else statistic
    check_statistic(statistic, model)
    statistic = statistic if sampler is None else with_sampler(statistic, model, sampler)
    check_statistic_moves(statistic)
    proposal = default_proposal(model) if proposal is None else proposal
    check_proposal(proposal, model)
    N, L = num_particles, lag

    def init(key):
        return start(key, model, N, lambda x_0: _empty_window(model, statistic, L, x_0))

    def step(key, state, y, u):
        key_leave, key_state, key_blind, key_sweeps = jax.random.split(key, 4)
        window, theta, t = state.S, state.theta, state.t + 1
        y = y.astype(window.y.dtype)
        S = _leave(key_leave, statistic, window, theta, state.log_weights, t - L)

        x, weighing = _extend(key_state, key_blind, model, proposal, state, y, u)
        y = missing_where(weighing.collapsed, y)
        window = _slide(window._replace(S=S), x, y, u)

        def sweep(carry, key):
            x, theta = carry
            key_path, key_statistic, key_theta = jax.random.split(key, 3)
            x = _refresh(key_path, model, proposal, num_path_particles, window._replace(x=x), theta, t)
            S = _with_window(key_statistic, statistic, window._replace(x=x), theta, t)
            theta, drawn = redraw(key_theta, statistic, model.parameters, S, theta, state)
            return (x, theta), together(drawn)

        (x, theta), drawn = jax.lax.scan(sweep, (window.x, theta), jax.random.split(key_sweeps, num_sweeps))
        info = step_info(keep(weighing, ()), weighing, drawn=drawn)
        log_evidence = state.log_evidence + info.log_increment
        return FilterState(x[:, -1], theta, window._replace(x=x), state.log_weights, log_evidence, t), info

    description = (
        f"practical filter: {N} particles, lag {L}, {num_sweeps} sweep{'s' if num_sweeps > 1 else ''} with "
        f"{num_path_particles} particles each, statistic {statistic.description}, proposal {proposal.name}"
    )
    edge = None if statistic.box is None else lambda state: edge_of_box(model, statistic, state._replace(S=state.S.S))
    of_steps = statistic._replace(remainder=None)  # x_{t-1} is drawn anew with x_t: no step is left to compare with
    return build_filter(model, N, init, step, description, systematic, statistic=of_steps, edge=edge)


def _empty_window(model, statistic, lag, x_0):
    y, u = model.shapes.y, row_of(model)
    return Window(
        S=statistic.init(x_0),
        x=jnp.broadcast_to(x_0, (lag + 1, *x_0.shape)),
        y=jnp.zeros((lag, *y.shape)),  # floats, whatever the model draws: these can be told that they are missing
        seen=jnp.zeros((lag, *y.shape), bool),
        u=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (lag, *jnp.shape(leaf))), u),
    )


def _leave(key, statistic, window, theta, log_weights, time):
    """Every particle's statistic of what left, with x_{t-L}, whose time is given, and its observation."""
    y, u = jax.tree.map(lambda leaf: leaf[0, 0], (window.observed, window.u))  # the same for all
    x_prev, x = window.x[:, 0], window.x[:, 1]

    def update():
        return updated(statistic, key, window.S, theta, x_prev, x, y, u, log_weights, jnp.maximum(time, 1))

    return jax.lax.cond(time <= 0, lambda: jax.vmap(statistic.init)(x), update)


def _with_window(key, statistic, window, theta, t):
    """Every particle's statistic of its whole path: the states that left, and those of the window."""
    lag = window.x.shape[1] - 1
    x, y, u = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), (window.x, window.observed, window.u))

    def turn(S, row):
        key, *path = row
        return _add(key, statistic, S, theta, *path), None

    rows = (jax.random.split(key, lag), x[:-1], x[1:], y, u, t - lag + 1 + jnp.arange(lag))
    return jax.lax.scan(turn, window.S, rows)[0]


def _add(key, statistic, S, theta, x_prev, x, y, u, time):
    """Every particle's statistic with one more state; with x_0 it begins anew."""

    def begin():
        return jax.vmap(statistic.init)(x)

    def update():
        keys = jax.random.split(key, x.shape[0])
        return jax.vmap(statistic.update)(keys, S, theta, x_prev, x, y, u)

    return jax.lax.cond(time <= 0, begin, update)


def _extend(key, key_blind, model, proposal, state, y, u):
    """A first x_t for every particle, and the weighing of y_t by p(y_t | x_{t-1}, theta), estimated with it.

    If every particle rules y_t out, x_t is drawn without it.
    """
    theta, x_prev = state.theta, state.x
    x = propagate(key, proposal, model, theta, x_prev, y, u)
    w = jax.vmap(lambda th, x_prev, x: proposal.log_weight(model, th, x_prev, x, y, u))(theta, x_prev, x)
    if proposal.look_ahead is not None:
        w += jax.vmap(lambda th, x_prev: proposal.look_ahead(model, th, x_prev, y, u))(theta, x_prev)
    weighing = reweight(state.log_weights, w)
    blind = propagate_blindly(key_blind, model, theta, x_prev, u)
    return where(weighing.collapsed, blind, x), weighing


def _slide(window: Window, x: Array, y: Array, u: Any) -> Window:
    """The window one step later: its oldest row out, the newest in."""
    N = x.shape[0]

    def push(rows, new):
        return jnp.concatenate([rows[:, 1:], new[:, None].astype(rows.dtype)], axis=1)

    def push_all(rows, new):
        return push(rows, jnp.broadcast_to(new, (N, *rows.shape[2:])))

    check_input(jax.tree.map(lambda rows: jax.ShapeDtypeStruct(rows.shape[2:], rows.dtype), window.u), u)
    seen = ~jnp.isnan(y)
    return window._replace(
        x=push(window.x, x),
        y=push_all(window.y, where(seen, y, 0.0)),
        seen=push_all(window.seen, seen),
        u=jax.tree.map(push_all, window.u, u),
    )


def _refresh(key, model, proposal, num_path_particles, window, theta, t):
    """Every particle's window drawn anew given the state before it, by one sweep of conditional SMC."""
    N, lag = window.x.shape[0], window.x.shape[1] - 1
    begins = t - lag + 1 + jnp.arange(lag) <= 0

    def one(key, theta, x, y, u):
        return redraw_path(key, model, proposal, num_path_particles, theta, x[0], x[1:], y, u, begins).x

    redrawn = jax.vmap(one)(jax.random.split(key, N), theta, window.x, window.observed, window.u)
    return jnp.concatenate([window.x[:, :1], redrawn], axis=1)
