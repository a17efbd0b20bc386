r"""Exact statistics of models that are conjugate block by block: coefficients, variances, rates, transition matrices.

Independent priors are seldom conjugate together: a Gaussian coefficient and an inverse-gamma variance are not. But each
is conjugate *given the other*. So theta is divided into blocks, and each particle keeps

- sums from which the likelihood of its whole path can be computed exactly (`factors`), and
- its own theta, which one Gibbs sweep moves at every step: each block is drawn from its exact conditional given the
  sums and the other blocks (`families`). A sweep leaves p(theta | path) invariant.

.. math:: \beta \mid v \sim N, \qquad
          v_k \mid \beta \sim \mathrm{IG}\Big(a + \frac{n_k}2,\; b + \frac{SSR_k(\beta)}2\Big), \qquad
          P_{r\cdot} \sim \mathrm{Dirichlet}(\alpha + N_{r\cdot})

With one block (a variance alone, a transition matrix alone) the draw is exact and independent of the last. Storvik
(2002) has the normal-inverse-gamma case; Carvalho, Johannes, Lopes and Polson (2010) the switching ones.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.extend.core import jaxpr_as_fun

from epf_jax.core.densities import counted, is_count
from epf_jax.core.dependence import abstractly
from epf_jax.core.gaussian import base_distribution
from epf_jax.core.platforms import full_precision, on_cpu
from epf_jax.models.path_terms import Term, other_inputs, path_terms, require_noise
from epf_jax.models.state_space import StateSpaceModel, known, row_of, simulate
from epf_jax.models.switching import Switching
from epf_jax.models.waiting import waits_for_inputs
from epf_jax.samplers import exact_draw
from epf_jax.statistics.factors import Factor, View, factors_of, refuse_at_a_glance
from epf_jax.statistics.families import (
    COEFFICIENTS,
    Leaf,
    NotConjugateError,
    draw_coefficients,
    has_conjugate_noise,
    is_bounded,
    prior_leaves,
)
from epf_jax.statistics.statistic import Statistic, check_model_learns

_COUNTS = np.array([0, 1, 2, 3, 5, 8])  # what is counted at simulated steps
# Simulated paths, and steps of each, where a claimed form is compared with the model.
_PROBES = (8, len(_COUNTS))
_OTHERS = 8  # how often each of these steps is looked at with another input
_TOLERANCE = 1e-3  # of that comparison, relative: far above float32's rounding, far below a wrong form


@waits_for_inputs
def conjugate_blocks(model: StateSpaceModel) -> Statistic:
    """The exact statistic of a model that is conjugate block by block, and its Gibbs sweep.

    theta's leaves, and what each may do in the transition, the observation and the initial state:

    - `Normal`, `MultivariateNormal` or a scalar `TruncatedNormal`: enter means linearly (each given the others: a
      product of two leaves is allowed; truncated ones are then drawn between their bounds);
    - `InverseGamma`, of any shape: *variances* of the noise, each component having one, times any known function of the
      state (`dist.Normal(mean, jnp.sqrt(theta["variance"]))`);
    - `InverseWishart`: the covariance of a transition (`dist.MultivariateNormal(mean, theta["covariance"])`);
    - `Dirichlet`, of shape (K,) or (K, K): probabilities of a `dist.Categorical` or a `dist.Multinomial`, or of the
      regimes of `epf.switching`;
    - `Gamma` or `Exponential`, of any shape: inverse variances of Gaussian noise, and rates r of any density that is
      linear in log r and r (Poisson counts with r times any known function of the state, waiting times);
    - `Beta`, of any shape: probabilities of a density that is linear in log p and log(1 - p) and not categorical
      (successes, the first of them); `InverseGamma` so, too, of a density that is not Gaussian (a Laplace's scale).

    Which parameter is used may depend on the state, as in `theta["phi"][regime]`. The form is derived from the model
    and compared with the model's own densities on simulated paths, at thetas within two prior standard deviations; a
    model that does not fit raises an error. If the model has another form at some later time or state, theta becomes
    NaN, and `run` warns.

    Sums of squares are kept in the precision in use. If the level of a series is hundreds of times its noise, subtract
    it first, or use float64.
    """
    check_model_learns(model, "conjugate_blocks")
    require_noise(model, "conjugate_blocks")
    try:
        return _conjugate_blocks(model)
    except NotConjugateError as error:
        raise NotConjugateError(
            f"conjugate_blocks: {error} Use epf.chebyshev(model), epf.assumed_density(model) or epf.taylor(model, ...)."
        ) from error


def conjugate_blocks_if_fitting(model: StateSpaceModel) -> Statistic | None:
    """The statistic, if the prior has more than coefficients and the model fits; otherwise None."""
    if not has_conjugate_noise(model):
        return None
    try:
        return conjugate_blocks(model)
    except NotConjugateError:
        return None


def _conjugate_blocks(model: StateSpaceModel) -> Statistic:
    coordinates, leaves = model.parameters, prior_leaves(model)
    terms, view = _view(model, leaves)
    for term in (*terms.initial, *terms.steps):
        refuse_at_a_glance(term, view)
    initial, steps = (
        [factor for term in group for factor in _checked(model, term, view)] for group in (terms.initial, terms.steps)
    )
    blocks = _blocks(leaves, initial + steps)
    structure = jax.tree.structure(model.shapes.theta)
    reference = coordinates.to_theta(coordinates.centre)

    def features(values):
        return [leaf.family.features(value) for leaf, value in zip(leaves, values, strict=True)]

    def log_likelihood(S, features):
        both = zip((*S[0], *S[1]), initial + steps, strict=True)
        return sum((f.log_likelihood(s, features) for s, f in both), start=jnp.zeros(()))

    def init(x_0=None):
        S = tuple(f.init() for f in initial), tuple(f.init() for f in steps)
        if x_0 is None:
            return S
        first = zip(S[0], initial, strict=True)
        example = (terms.example[2], terms.example[3])
        return tuple(f.update(s, view.reference, x_0, x_0, *example) for s, f in first), S[1]

    def update(key, S, theta, x_prev, x, y, u):
        own = jax.tree.leaves(theta) or view.reference  # a known path may come without
        return S[0], tuple(f.update(s, own, x_prev, x, y, u) for s, f in zip(S[1], steps, strict=True))

    def log_target(S):
        at_reference = log_likelihood(S, features(jax.tree.leaves(reference)))

        def target(z):
            likelihood = log_likelihood(S, features(jax.tree.leaves(coordinates.to_theta(z))))
            return coordinates.log_prior(z) + likelihood - at_reference

        return target

    def log_density(S, theta):
        z = coordinates.to_vector(theta)
        return log_target(S)(z) - coordinates.log_jacobian(z)

    def sample_all(key, S, theta, population=None):
        values = list(jax.tree.leaves(theta))
        for key_block, block in zip(jax.random.split(key, len(blocks)), blocks, strict=True):
            drawn = _draw_block(key_block, [leaves[i] for i in block], block, S, values, features, log_likelihood)
            for i, value in zip(block, drawn, strict=True):
                values[i] = value
        return jax.tree.unflatten(structure, values), exact_draw(values[0].dtype)

    def sample(key, S, theta, population=None):
        one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (S, theta))
        drawn, info = sample_all(key, *one)
        return jax.tree.map(lambda leaf: leaf[0], drawn), info

    return Statistic(
        init, update, log_density, sample, log_target, sample_all=sample_all, name="conjugate_blocks", model=model
    )


def _draw_block(key, leaves, block, S, values, features, log_likelihood):
    """One block's leaves of every particle, from their exact conditionals given the statistics and the other blocks."""
    seen = jax.vmap(features)(values)

    def of_block(own, given):
        S, seen = given
        return log_likelihood(S, [own[block.index(i)] if i in block else other for i, other in enumerate(seen)])

    own, given = [seen[i] for i in block], (S, seen)
    if leaves[0].family is COEFFICIENTS:
        return draw_coefficients(key, leaves, own, of_block, given)
    return [leaves[0].family.draw(key, leaves[0].prior, jax.vmap(jax.grad(of_block))(own, given)[0])]


def _blocks(leaves: list[Leaf], factors: list[Factor]) -> list[list[int]]:
    """The leaves by position, in blocks drawn one after another; coefficients without products share a block."""
    products = {pair for factor in factors for pair in factor.products}
    blocks: list[list[int]] = []
    for i, leaf in enumerate(leaves):

        def fits(block, i=i, leaf=leaf):
            together = [leaves[j] for j in block] + [leaf]
            joint = all(other.family is COEFFICIENTS and not is_bounded(other) for other in together)
            return joint and not any((j, i) in products for j in block)

        home = next((block for block in blocks if fits(block)), None)
        if home is None:
            blocks.append([i])
        else:
            home.append(i)
    return blocks


# ------------------------------------------------------------------------------------------------ looking at the model


def _view(model: StateSpaceModel, leaves: list[Leaf]) -> tuple[Any, View]:
    """The model's terms as functions of theta's leaves, and simulated steps to look at them with."""
    terms = path_terms(model, natural=True)
    reference = _evaluated(lambda z: jax.tree.leaves(model.parameters.to_theta(z)), model.parameters.centre)
    num = _PROBES[0] * _PROBES[1]

    @cache  # many a model is refused before any step is simulated
    def simulated():
        steps = _simulated_steps(model)
        x_prev, x, y, u = jax.tree.map(lambda a: np.concatenate([a] * _OTHERS), steps)
        others = (*_other_regimes(model, x_prev, x), y, jax.tree.map(other_inputs, u))
        return jax.tree.map(lambda a, b: np.concatenate([a, b]), steps, others)

    def probe(function):
        found = np.asarray(_evaluated(jax.vmap(function), *simulated()))
        meaningful = np.isfinite(found.reshape(len(found), -1)).all(axis=1)  # a made-up input may be impossible
        return found[meaningful | (np.arange(len(found)) < num)]

    def glance(function):
        return np.asarray(_evaluated(function, *terms.example))

    return terms, View(leaves, reference, terms.example, probe, glance)


def _other_regimes(model: StateSpaceModel, *states: np.ndarray) -> Iterator[np.ndarray]:
    """States with regimes drawn again, evenly, because simulated paths may not contain a rare one."""
    theta = model.parameters.to_theta(model.parameters.centre)
    x = np.zeros(model.shapes.x.shape, model.shapes.x.dtype)
    law = abstractly(model.transition, theta, x, row_of(model))
    rng = np.random.default_rng(2)
    for state in states:
        if isinstance(law, Switching):
            regimes = rng.integers(law.probabilities.shape[-1], size=(len(state), 1))
            yield np.concatenate([regimes.astype(state.dtype), state[:, 1:]], axis=1)
        elif isinstance(base_distribution(law), (dist.CategoricalProbs, dist.CategoricalLogits)):
            given = base_distribution(law)  # of which the one that was not given would be computed
            given = given.probs if isinstance(given, dist.CategoricalProbs) else given.logits
            yield rng.integers(given.shape[-1], size=state.shape).astype(state.dtype)
        else:
            yield state


def _evaluated(function: Callable, *arguments: Any) -> Any:
    """The function's value as numbers, even if a filter is built inside jit."""
    with full_precision():
        program, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    if any(isinstance(number, jax.core.Tracer) for number in (*program.consts, *jax.tree.leaves(arguments))):
        raise NotConjugateError("its form is checked with numbers, which a model inside jax.jit does not have.")
    leaves = list(map(np.asarray, jax.tree.leaves(arguments)))
    with on_cpu():
        compiled = (
            jax.jit(jaxpr_as_fun(program)).lower(*leaves).compile()
        )  # outside of what would evaluate it bit by bit
        with jax.ensure_compile_time_eval():
            values = list(map(np.asarray, compiled(*leaves)))
    with jax.ensure_compile_time_eval():
        return jax.tree.unflatten(jax.tree.structure(shape), map(jnp.asarray, values))


@lru_cache(maxsize=16)
def _likely_thetas(model: StateSpaceModel) -> list[Any]:
    """A few thetas within two prior standard deviations of the centre, in unconstrained coordinates, leaf by leaf."""
    coordinates = model.parameters
    steps = np.clip(np.random.default_rng(0).normal(size=(_PROBES[0], coordinates.dim)), -2.0, 2.0)

    def at(steps):
        z = coordinates.centre + jnp.asarray(steps, coordinates.centre.dtype) * coordinates.scale
        return jax.tree.leaves(jax.vmap(coordinates.to_theta)(z))

    return _evaluated(at, steps)


def _simulated_steps(model: StateSpaceModel) -> tuple[Any, Any, Any, Any]:
    """Steps x_prev, x, y, u of a few short simulated paths, with regimes."""
    num_paths, num_steps = _PROBES
    structure = jax.tree.structure(model.shapes.theta)
    rows = jax.tree.map(lambda a: np.broadcast_to(a, (num_steps, *np.shape(a))), row_of(model))

    def path(key, leaves):
        """One path; counts on it are invented, because draws of counts would take seconds to compile."""
        at_theta = known(model, jax.tree.unflatten(structure, leaves))
        x = jnp.zeros(model.shapes.x.shape, model.shapes.x.dtype)
        if not is_count(at_theta.observation({}, x, row_of(model))):
            return simulate(key, at_theta, {}, num_steps, inputs=rows)
        blind = dataclasses.replace(at_theta, observation=lambda _, x, u: dist.Normal(0.0, 1.0))
        x, _ = simulate(key, blind, {}, num_steps, inputs=rows)
        return x, jax.vmap(lambda x, u, k: counted(at_theta.observation({}, x, u), k))(x[1:], rows, _COUNTS)

    def steps(seed, thetas):
        x, y = jax.vmap(path)(jax.random.split(jax.random.key(seed), num_paths), thetas)
        u = jax.tree.map(lambda a: jnp.broadcast_to(a, (num_paths, *a.shape)), rows)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), (x[:, :-1], x[:, 1:], y, u))

    return _evaluated(steps, np.uint32(0), _likely_thetas(model))


def _checked(model: StateSpaceModel, term: Term, view: View) -> list[Factor]:
    """The factors of a term, after a comparison of their log-likelihoods with the model's, up to a constant."""
    factors, thetas = factors_of(term, view), _likely_thetas(model)

    def both(x_prev, x, y, u):
        def at(values):
            features = [leaf.family.features(value) for leaf, value in zip(view.leaves, values, strict=True)]
            sums = [f.update(f.init(), values, x_prev, x, y, u) for f in factors]
            claimed = sum(f.log_likelihood(s, features) for f, s in zip(factors, sums, strict=True))
            own = term.log_prob(values, x_prev, x, y, u)
            wrong = jnp.isfinite(own) & ~jnp.isfinite(claimed)  # told apart from what is impossible in the model itself
            return jnp.stack([jnp.where(wrong, 1e30, claimed), own])

        return jax.vmap(at)(thetas)

    claimed, own = np.moveaxis(np.asarray(view.probe(both), float), -1, 0)  # one row per step, one column per theta
    difference = (claimed - claimed[:, :1]) - (own - own[:, :1])
    size = 1.0 + np.max(np.abs(own), axis=1, keepdims=True)
    if not np.all(np.abs(difference) < _TOLERANCE * size):
        raise NotConjugateError(
            f"the {term.name} is not what its mean and noise, or its slopes in rates and probabilities, promise."
        )
    return factors
