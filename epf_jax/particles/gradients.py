r"""Resampling schemes with a gradient, and proposals with score gradients.

Ancestors are whole numbers. So a plain scheme passes on the gradients of the particles that it keeps, but not those of
their weights, and the gradient of the evidence is biased. The schemes here wrap a plain one:

- `stop_gradient_resampling` (Scibior and Wood 2021): the same results, but every copy of particle a has the weight
  :math:`w_a / \bot(w_a)`, whose value is 1 (:math:`\bot` stops gradients). For any fixed ancestors the evidence is then
  an unbiased estimate at every nearby parameter, so its gradient is unbiased, too: :math:`E[\nabla\hat Z] = \nabla Z`.
- `soft_resampling` (Karkus, Hsu and Lee 2018): ancestors are drawn from a mixture of the weights and equal weights, and
  keep the ratio, with its gradient, as their weight. The bias lies between those of the two schemes above.
- `transport_resampling` (Corenflos, Thornton, Deligiannidis and Doucet 2021): all particles are moved to equally
  weighted places by entropy-regularised optimal transport. Biased, and smooth in every parameter.

Gradients flow through draws of states and parameters by reparameterisation. Decisions inside Metropolis-Hastings and
slice sampling are held fixed, which adds a bias (`benchmarks/accuracy/gradients.py` measures it).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import Distribution

from epf_jax.core.checks import brief, check_positive, check_whole_number, pip_install
from epf_jax.core.densities import log_prob
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.particles.proposals import Proposal
from epf_jax.particles.resampling import (
    Resampler,
    Selection,
    check_resampler,
    is_share,
    keep,
    layers,
    replaced,
    resampler_name,
    select,
    systematic,
    unless,
)
from epf_jax.particles.weights import Weighing, mean_and_sd, uniform_log_weights, where_rows


@dataclasses.dataclass(frozen=True)
class stop_gradient_resampling:  # noqa: N801  used as a function, as `when_ess_below` is
    r"""Resample as `scheme` does, with the gradient of Scibior and Wood (2021): unbiased for the evidence.

    Its variance grows with the square of the number of steps, because all particles descend from a few of long ago.
    With `memory` below 1 it grows linearly (Nemeth, Fearnhead and Mihaylova 2016): the effect of a step's parameters on
    the observation k steps later counts :math:`memory^k` times. Each effect has mean zero at the true parameters, so
    that maximisers stay consistent; far from them the gradient is biased.

    Args:
        scheme: any resampler, `epf.systematic` by default; `epf.when_ess_below(0.5)` is one, too.
        memory: the share of the gradient that a step passes to the next, above 0 and at most 1. With 1 it is unbiased.
    """

    scheme: Resampler = systematic
    memory: float = 1.0

    def __post_init__(self):
        if not (is_share(self.memory) and self.memory > 0.0):
            raise ValueError(
                f"memory: expected the share of the gradient that a step passes on, above 0 and at most 1, got "
                f"{self.memory!r}."
            )

    def select(self, key: PRNGKeyArray, weighing: Weighing, particles: Any, place: Any) -> Selection:
        """What the scheme selects, its weights multiplied by factors of one that carry the gradient."""
        chosen = select(key, self.scheme, weighing, (particles, weighing.log_weights), place)
        particles, earned = chosen.particles
        # With whatever probability p_a an ancestor was chosen, its weight is w_a / p_a: only w_a has a gradient.
        fixed = jax.lax.stop_gradient(chosen.log_weights)
        log_weights = fixed + _only_gradient(jnp.where(earned > -jnp.inf, earned, 0.0))
        log_total = _only_gradient(jax.nn.logsumexp(log_weights))
        log_weights = jnp.where(chosen.resampled, log_weights - log_total, chosen.log_weights)
        particles, log_weights = jax.tree.map(lambda leaf: _faded(leaf, self.memory), (particles, log_weights))
        return chosen._replace(
            particles=particles,
            log_weights=log_weights,
            log_increment=jax.lax.stop_gradient(chosen.log_increment) + jnp.where(chosen.resampled, log_total, 0.0),
        )

    def check(self, num_particles: int) -> None:
        """Refuse a scheme that is none, or that chooses no ancestors."""
        check_resampler(self.scheme, num_particles)
        if moves_particles(self.scheme):
            raise TypeError(
                "scheme: transport_resampling moves particles and chooses no ancestors, whose weights could carry "
                "a gradient; it has its own. Use it by itself."
            )

    @property
    def name(self) -> str:
        """For descriptions."""
        memory = "" if self.memory == 1.0 else f", memory {self.memory:g}"
        return f"{resampler_name(self.scheme)} with stop-gradient weights{memory}"


@dataclasses.dataclass(frozen=True)
class soft_resampling:  # noqa: N801
    r"""Draw ancestors from :math:`q = \alpha w + (1-\alpha)/N`, and weigh them by w/q (Karkus, Hsu and Lee 2018).

    Args:
        alpha: the share of the weights in the mixture; 1 is the plain scheme, without a gradient.
        scheme: how ancestors are drawn from q; `epf.systematic` by default.
    """

    alpha: float = 0.5
    scheme: Resampler = systematic

    def __post_init__(self):
        if not (is_share(self.alpha) and self.alpha < 1.0):
            raise ValueError(
                f"alpha: expected the share of the weights in the mixture, at least 0 and less than 1, got "
                f"{self.alpha!r}. At 1 it is the plain scheme."
            )

    def select(self, key: PRNGKeyArray, weighing: Weighing, particles: Any, place: Any) -> Selection:
        """Ancestors from the mixture, with the weights that correct for it."""
        log_weights = weighing.log_weights
        n = log_weights.shape[0]
        log_q = jnp.log(self.alpha * jnp.exp(log_weights) + (1.0 - self.alpha) / n)
        mixture = weighing._replace(log_weights=log_q, weights=jnp.exp(log_q))
        drawn = select(key, self.scheme, mixture, (particles, log_weights - log_q))
        selected, log_ratios = drawn.particles
        log_total = jax.nn.logsumexp(log_ratios) - jnp.log(n)
        corrected = log_ratios - jnp.log(n) - log_total
        # The total is one on average, whatever the parameters are: its gradient is noise, and biased noise at that.
        log_increment = jax.lax.stop_gradient(log_total)
        chosen = drawn._replace(particles=selected, log_weights=corrected, log_increment=log_increment)
        lost = log_total == -jnp.inf  # none of the particles that have weight was drawn
        return unless(weighing.collapsed | lost, chosen, keep(weighing, particles))

    def check(self, num_particles: int) -> None:
        """Refuse a scheme that is none, or that decides for itself whether to resample."""
        check_resampler(self.scheme, num_particles)
        if hasattr(self.scheme, "select"):
            raise TypeError(
                f"scheme: soft_resampling draws its ancestors by a plain scheme such as epf.systematic, got "
                f"{resampler_name(self.scheme)}. To resample now and then: epf.when_ess_below(0.5, soft_resampling())."
            )

    @property
    def name(self) -> str:
        """For descriptions."""
        return f"soft ({self.alpha:g}) {resampler_name(self.scheme)}"


@dataclasses.dataclass(frozen=True)
class transport_resampling:  # noqa: N801
    r"""Move all particles to equally weighted places by optimal transport (Corenflos et al. 2021). Needs `ott-jax`.

    The plan P between the weighted cloud and the same places with equal weights minimises the squared distance of
    states and parameters, in units of the cloud's standard deviations before it was weighed, less `epsilon` times its
    entropy; particle j becomes :math:`N \sum_i P_{ij} x_i`, and so do its parameters and its statistic. The mean stays.
    The spread shrinks, and more so if the weighted cloud is narrow in these units. O(N^2) a step.

    Args:
        epsilon: how blurred the plan is; as it grows, all particles move to the mean.
        num_iterations: iterations of Sinkhorn's algorithm. Gradients go back through each of them, because the implicit
            gradient of the fixed point (ott's default) is singular if weights are zero.
    """

    epsilon: float = 0.5
    num_iterations: int = 50

    def __post_init__(self):
        check_positive("epsilon", self.epsilon, "a positive amount of blur, in squared standard deviations")
        check_whole_number("num_iterations", self.num_iterations)

    def select(self, key: PRNGKeyArray, weighing: Weighing, particles: Any, place: Any) -> Selection:
        """The particles moved, each its own ancestor, all of the same weight."""
        log_weights = weighing.log_weights
        n = log_weights.shape[0]
        plan = self._plan(weighing.weights, _coordinates(place, weighing))
        moved = jax.tree.map(lambda leaf: _moved(plan, leaf, weighing.weights), particles)
        ancestors = jnp.arange(n, dtype=jnp.int32)
        return replaced(weighing, particles, moved, uniform_log_weights(n), ancestors)

    def _plan(self, w: Float[Array, " N"], at: Float[Array, "N d"]) -> Float[Array, "N N"]:
        """Row j: the shares of all particles in the j-th new one."""
        pointcloud, linear = _ott()
        geometry = pointcloud.PointCloud(at, at, epsilon=self.epsilon)
        # A weight of zero has no logarithm in Sinkhorn's iteration; a share of 1e-6 / N is none.
        w = (w + 1e-6 / w.shape[0]) / (1.0 + 1e-6)
        rounds = {"min_iterations": self.num_iterations, "max_iterations": self.num_iterations}
        shares = linear.solve(geometry, a=w, implicit_diff=None, **rounds).matrix.T
        return shares / jnp.sum(shares, axis=1, keepdims=True)

    def check(self, num_particles: int) -> None:
        """Refuse when there is nothing to solve the transport with."""
        _ott()

    @property
    def name(self) -> str:
        """For descriptions."""
        return f"by optimal transport, epsilon = {self.epsilon:g}"


@waits_for_inputs
def score_gradient(proposal: Proposal) -> Proposal:
    r"""The same draws, differentiated by their score instead of by reparameterisation.

    x_t is held fixed, and its weight carries :math:`\nabla\log q(x_t)`; with `stop_gradient_resampling` the evidence's
    gradient is then that of Fisher's identity, the sum of :math:`\nabla\log p(x_t, y_t \mid x_{t-1}, \theta)` along the
    particles' paths. It is unbiased, too. Use it for states without a derivative (counts, regimes), and for models
    whose paths part exponentially fast, so that the derivative of x_t with respect to x_0 explodes. The variance of a
    score grows with the length of the series unless `stop_gradient_resampling(memory=...)` lets it fade.
    """
    if not isinstance(proposal, Proposal):
        raise TypeError(f"proposal: expected epf.bootstrap() or another proposal, got {brief(proposal)}.")

    def distribution(model, theta, x_prev, y, u):
        drawn_from = proposal.distribution(model, theta, x_prev, y, u)
        if not isinstance(drawn_from, Distribution):
            return _Held(drawn_from)
        return jax.tree.map(jax.lax.stop_gradient, drawn_from)

    def log_weight(model, theta, x_prev, x, y, u):
        x = jax.lax.stop_gradient(x)
        score = _only_gradient(log_prob(proposal.distribution(model, theta, x_prev, y, u), x))
        return proposal.log_weight(model, theta, x_prev, x, y, u) + score

    name = f"{proposal.name}, differentiated by its score"
    return proposal._replace(distribution=distribution, log_weight=log_weight, name=name)


class _Held:
    """A stand-in for a distribution, or a switching one, whose draws are held fixed."""

    def __init__(self, d: Any):
        self._d = d

    def sample(self, key):
        return jax.lax.stop_gradient(self._d.sample(key))

    def log_prob(self, x):
        return self._d.log_prob(x)


def _only_gradient(x: Array) -> Array:
    """Zeros with the gradient of x."""
    return x - jax.lax.stop_gradient(x)


def _faded(x: Array, share: float) -> Array:
    """X with a share of its gradient."""
    if share == 1.0 or not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    fixed = jax.lax.stop_gradient(x)
    return jnp.where(jnp.isfinite(fixed), fixed + share * (x - fixed), fixed)


def _coordinates(place: Any, weighing: Weighing) -> Float[Array, "N d"]:
    """The particles in units of the cloud's standard deviations; those without weight are put at the mean."""
    columns = []
    for leaf in jax.tree.leaves(place):
        leaf = leaf.reshape(leaf.shape[0], -1)
        mean, _ = mean_and_sd(leaf, weighing.log_weights)
        leaf = jnp.where(weighing.weights[:, None] > 0, leaf, mean)
        sd = jnp.std(jax.lax.stop_gradient(leaf), axis=0)
        columns.append(leaf / jnp.where(sd > 0, sd, 1.0))
    return jnp.concatenate(columns, axis=1)


def moves_particles(resample: Resampler) -> bool:
    """Whether particles become means of others (`transport_resampling`) instead of copies."""
    return any(isinstance(layer, transport_resampling) for layer in layers(resample))


def _moved(plan: Float[Array, "N N"], leaf: Array, w: Float[Array, " N"]) -> Array:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise TypeError(
            f"resample: transport_resampling moves particles to weighted means of others, and there are none of "
            f"{leaf.dtype} numbers (states, or a statistic's). Use epf.stop_gradient_resampling()."
        )
    return jnp.tensordot(plan, where_rows(w > 0, leaf, jnp.zeros_like(leaf)), axes=1)


def _ott() -> Any:
    try:
        from ott.geometry import pointcloud
        from ott.solvers import linear
    except ImportError as error:
        raise ImportError(f"transport_resampling needs ott-jax: {pip_install('transport')}.") from error
    return pointcloud, linear
