r"""Learns hyper-parameters by gradient ascent of the log-evidence, while the filter learns theta.

    model_of = lambda h: epf.models.sinusoid(noise=h["noise"], observation_noise=h["sensor"])
    fitted = epf.fit(model_of, {"noise": 0.5, "sensor": 1.0}, y, support=dist.constraints.positive)
    fitted.hyper, fitted.results.theta.mean

Every step runs the filter with new random numbers and follows the gradient of its log-evidence (empirical Bayes, or
maximum likelihood if the prior is empty). The default filter differentiates draws by their scores
(`epf.score_gradient`), with a fading memory (`epf.stop_gradient_resampling(memory=0.95)`): the gradient's variance
grows no faster than the series, and no path's derivative can explode. Gradients that are many times longer than usual
are shortened before the optimizer gets them.
"""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from tqdm.auto import tqdm

from epf_jax.core.checks import (
    brief,
    check_key,
    check_signature,
    check_whole_number,
    frames_to_user,
    returned,
)
from epf_jax.core.naming import named_leaves, scalars
from epf_jax.core.number_arrays import numeric_array
from epf_jax.data.tables import listed
from epf_jax.filters import Filter, bootstrap_filter, extended_parameter_filter
from epf_jax.models.observed import observed_series
from epf_jax.models.state_space import StateSpaceModel, check_is_model, seen
from epf_jax.particles.default_proposal import default_proposal
from epf_jax.particles.gradients import score_gradient, stop_gradient_resampling
from epf_jax.running.results import Results
from epf_jax.running.run import check_filter, check_remat, run

_MEMORY = 0.95  # of the default filter's gradient, as Nemeth et al. (2016) recommend
_MOST_LOST = 10  # steps in a row without a finite gradient before `fit` gives up


class Fit(NamedTuple):
    """Learned hyper-parameters.

    Attributes:
        hyper: the estimate: the mean of the last `patience` steps in unconstrained coordinates, but of no more than the
            second half of all steps.
        log_evidence: the filter's log-evidence at every step.
        trace: hyper before every step, a pytree like it with the steps along a leading axis.
        stopped_early: whether the log-evidence stopped rising before `num_steps`.
        num_lost: the number of steps that were skipped because their gradient was not finite.
        results: the filter's run with the estimate.
    """

    hyper: Any
    log_evidence: Float[np.ndarray, " S"]
    trace: Any
    stopped_early: bool
    num_lost: int
    results: Results

    def __repr__(self) -> str:
        """What was learned, without the arrays."""
        learned = ", ".join(f"{name} = {float(value):.4g}" for name, value in scalars(self.hyper, root="hyper").items())
        steps = f"{len(self.log_evidence)} steps{', stopped early' if self.stopped_early else ''}"
        return f"<Fit after {steps}, log-evidence {float(np.mean(self.log_evidence[-10:])):.2f}: {learned}>"

    def plot(self, *, truth: Any = None) -> Any:
        """A figure of the log-evidence and of every hyper-parameter over the steps."""
        from epf_jax.plots import plot_fit

        return plot_fit(self, truth=truth)


def fit(
    model_of: Callable[[Any], StateSpaceModel],
    hyper: Any,
    y: Float[Array, "T *y"],
    *,
    key: PRNGKeyArray | None = None,
    filter_of: Callable[[StateSpaceModel], Filter] | None = None,
    num_particles: int = 500,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 400,
    patience: int = 50,
    batch: int = 1,
    support: Any = None,
    inputs: Any = None,
    remat_every: int | None = None,
    progress: bool = False,
) -> Fit:
    """The hyper-parameters that maximise the log-evidence of a series.

    Args:
        model_of: `model_of(hyper)`, the model; hyper may enter its prior and its functions in any way.
        hyper: the start: a pytree of numbers or arrays, such as the weights of a neural network.
        y: the observations; NaN is a missing value.
        key: a random key; by default that of seed 0.
        filter_of: `filter_of(model)`, the filter that learns theta; by default `epf.extended_parameter_filter` (or
            `epf.bootstrap_filter` if the prior is empty) with `epf.score_gradient` of its own proposal and
            `epf.stop_gradient_resampling(memory=0.95)`. That memory removes part of the gradient of the prior's
            hyper-parameters: for these give a filter with memory 1, or `epf.node_filter`.
        num_particles: the number of particles of the default filter.
        optimizer: any optimizer of optax; `optax.adam(0.05)` by default.
        num_steps: the largest number of steps.
        patience: every `patience` steps, stop unless their mean log-evidence exceeds that of as many steps before by
            twice its standard error.
        batch: the number of filters per step, with different keys, whose gradients are averaged.
        support: numpyro's constraints: one for all, or a pytree like hyper (None for a real number).
            `dist.constraints.positive` keeps scales above zero. Steps are taken in unconstrained coordinates.
        inputs: one row per observation, or None for the time index.
        remat_every: as in `run`, for long series.
        progress: whether to show a progress bar.
    """
    key = jax.random.key(0) if key is None else check_key(key)
    for name, number in (("num_steps", num_steps), ("patience", patience), ("batch", batch)):
        check_whole_number(name, number)
    check_remat(remat_every)
    check_signature("model_of", model_of, ("hyper",), returns="an epf.StateSpaceModel")
    filter_of = _default_filter(num_particles) if filter_of is None else filter_of
    check_signature("filter_of", filter_of, ("model",), returns="a filter")
    optimizer = optax.adam(0.05) if optimizer is None else optimizer
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"optimizer: expected an optimizer of optax, such as optax.adam(0.05), got {brief(optimizer)}.")
    to_hyper, z = _coordinates(hyper, support)

    def at(make, z):
        try:
            return make(to_hyper(z))
        except KeyError as error:
            error.add_note(f"This came from model_of(hyper), where hyper has {listed(hyper)}.")
            raise

    def model_at(given):
        return returned("model_of", check_is_model, model_of(given))

    def filter_at(given):
        return returned("filter_of", check_filter, filter_of(seen(model_at(given), series.inputs)))

    series = observed_series(at(model_at, z), y, inputs)
    build = partial(at, filter_at)
    build(z)  # refused before anything is compiled

    def loss(z, keys):
        def one(key):
            return run(key, build(z), series, levels=(), remat_every=remat_every).log_evidence[-1]

        # Under vmap both branches of every decision are computed, which one filter alone need not pay for.
        return -(one(keys[0]) if batch == 1 else jnp.mean(jax.vmap(one)(keys)))

    key_steps, key_final = jax.random.split(key)
    ascent = _ascend(loss, z, optimizer, key_steps, batch)
    steps, num_lost, stopped = _until_flat(ascent, num_steps, patience, progress)
    _warn_of_idle([step.felt for step in steps])
    trace = [step.z for step in steps]
    last = trace[-min(patience, max(len(trace) // 2, 1)) :]
    estimate = jax.tree.map(lambda *rows: jnp.mean(jnp.stack(rows), axis=0), *last)
    return Fit(
        hyper=to_hyper(estimate),
        log_evidence=np.array([step.log_evidence for step in steps]),
        trace=jax.tree.map(lambda *rows: np.stack(rows), *map(to_hyper, trace)),
        stopped_early=stopped,
        num_lost=num_lost,
        results=run(key_final, build(estimate), series),
    )


def _warn_of_idle(felt: list[Any]) -> None:
    """Warn of hyper-parameters whose gradients were zero at every step."""
    at_any = jax.tree.map(lambda *leaves: np.any(np.stack(leaves)), *felt)
    idle = [name for name, at_all in named_leaves(at_any, "hyper") if not at_all]
    if idle:
        warnings.warn(
            f"{', '.join(idle)} of hyper changes nothing: the gradient of the log-evidence was zero at every step. "
            "Does the model that model_of(hyper) builds read it?",
            RuntimeWarning,
            stacklevel=frames_to_user(),
        )


class _Step(NamedTuple):
    """A step of the ascent: coordinates, log-evidence, where its gradient is not zero, and whether it is finite."""

    z: Any
    log_evidence: float
    felt: Any
    finite: bool


def _ascend(
    loss: Callable, z: Any, optimizer: optax.GradientTransformation, key: PRNGKeyArray, batch: int
) -> Iterator[_Step]:
    """Yield steps of the ascent without end."""
    optimizer = optax.chain(_shorten_outliers(), optimizer)

    @jax.jit
    def update(z, carried, key):
        value, gradient = jax.value_and_grad(loss)(z, jax.random.split(key, batch))
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((value, gradient))]))
        updates, after = optimizer.update(gradient, carried, z)
        stepped = (optax.apply_updates(z, updates), after)
        z, carried = jax.tree.map(lambda new, old: jnp.where(finite, new, old), stepped, (z, carried))
        return z, carried, -value, jax.tree.map(lambda leaf: leaf != 0, gradient), finite

    carried = optimizer.init(z)
    for i in itertools.count():
        before = z
        z, carried, log_evidence, felt, finite = update(z, carried, jax.random.fold_in(key, i))
        yield _Step(before, float(log_evidence), jax.device_get(felt), bool(finite))


def _shorten_outliers(times: float = 5.0, memory: float = 0.9) -> optax.GradientTransformation:
    """Cut gradients to a multiple of the usual length, the geometric mean of those before.

    One path that a small change of hyper throws far off makes a gradient many times as long as the others. An optimizer
    that scales its steps by past gradients would then stand still for a long time.
    """

    def init(z):
        return jnp.full((), jnp.nan)  # of the logarithm; nothing is usual yet

    def update(gradient, usual, z=None):
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))
        length = 0.5 * jnp.log(jnp.maximum(squares, jnp.finfo(jnp.asarray(squares).dtype).tiny))
        usual = jnp.where(jnp.isfinite(usual), usual, length)
        shorter = jnp.minimum(length, usual + math.log(times))
        gradient = jax.tree.map(lambda leaf: leaf * jnp.exp(shorter - length), gradient)
        return gradient, memory * usual + (1.0 - memory) * shorter

    return optax.GradientTransformation(init, update)


def _until_flat(
    ascent: Iterator[_Step], num_steps: int, patience: int, progress: bool
) -> tuple[list[_Step], int, bool]:
    """Take steps until the log-evidence stops rising or all are spent; counts lost steps."""
    steps: list[_Step] = []
    num_lost = lost_in_a_row = 0
    with tqdm(total=num_steps, unit="step", desc="compiling", disable=not progress) as bar:
        for i, step in enumerate(itertools.islice(ascent, num_steps)):
            bar.update()
            bar.set_description("fitting", refresh=False)
            bar.set_postfix(log_evidence=f"{step.log_evidence:.2f}")
            lost_in_a_row = 0 if step.finite else lost_in_a_row + 1
            num_lost += not step.finite
            if lost_in_a_row == min(_MOST_LOST, num_steps):
                raise ValueError(
                    f"The log-evidence, or its gradient, was not finite at {lost_in_a_row} steps in a row (from step "
                    f"{i + 1 - lost_in_a_row} on). Give `support` if hyper left what the model allows, take shorter "
                    "steps (`optimizer=optax.adam(0.01)`), or start elsewhere."
                )
            if step.finite:
                steps.append(step)
            if _is_flat([step.log_evidence for step in steps], patience):
                return steps, num_lost, True
    return steps, num_lost, False


def _is_flat(values: list[float], patience: int) -> bool:
    if len(values) < 2 * patience or len(values) % patience:  # asked once every `patience` steps
        return False
    earlier, recent = np.array(values[-2 * patience : -patience]), np.array(values[-patience:])
    error = math.sqrt((earlier.var() + recent.var()) / patience)
    return bool(recent.mean() - earlier.mean() < 2.0 * error)


def _default_filter(num_particles: int) -> Callable[[StateSpaceModel], Filter]:
    def filter_of(model):
        build = extended_parameter_filter if model.parameters.dim else bootstrap_filter
        proposal = score_gradient(default_proposal(model))
        return build(model, num_particles, proposal=proposal, resample=stop_gradient_resampling(memory=_MEMORY))

    return filter_of


def _coordinates(hyper: Any, support: Any) -> tuple[Callable[[Any], Any], Any]:
    """The map from unconstrained coordinates to hyper, and the start."""
    start = jax.tree.map(lambda leaf: numeric_array("hyper", leaf, "Give a pytree of numbers.", float), hyper)
    leaves, treedef = jax.tree.flatten(start)
    if not leaves:
        raise ValueError("hyper: it is empty, so there is nothing to learn. To learn theta alone, use epf.run.")

    def is_leaf(node):
        return node is None or isinstance(node, dist.constraints.Constraint)

    if is_leaf(support):
        constraints = [support] * len(leaves)
    else:
        constraints = jax.tree.leaves(support, is_leaf=is_leaf)
        structure: Any = jax.tree.structure(support, is_leaf=is_leaf)
        if structure != treedef or not all(map(is_leaf, constraints)):
            raise ValueError(
                f"support: expected one of numpyro's constraints, or a pytree of them like hyper ({treedef}), got "
                f"{support!r}."
            )
    maps = [dist.biject_to(dist.constraints.real if c is None else c) for c in constraints]
    z = [inverse.inv(leaf) for inverse, leaf in zip(maps, leaves, strict=True)]
    if not all(bool(jnp.all(jnp.isfinite(part))) for part in z):
        raise ValueError(f"hyper: expected finite numbers inside the support, got {hyper}.")

    def to_hyper(z):
        parts = jax.tree.leaves(z)
        return jax.tree.unflatten(treedef, [forward(part) for forward, part in zip(maps, parts, strict=True)])

    return to_hyper, jax.tree.unflatten(treedef, z)
