"""NUTS, of numpyro: on the joint density of theta and the states, and on theta alone by exact likelihoods."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

import epf_jax as epf
from benchmarks.breadth.entry import Case
from benchmarks.breadth.importance import summary
from benchmarks.breadth.likelihoods import series_of
from epf_jax.core.densities import log_prob, observed_log_prob
from epf_jax.core.gaussian import moments

CHAINS, WARM_UP, DEPTH = 4, 800, 8


class Density(NamedTuple):
    """What NUTS moves on: minus the log density of a dict that holds "z", and where chains start."""

    potential: Callable[[dict[str, Any]], jax.Array]
    start: dict[str, np.ndarray]


def joint(case: Case) -> Density:
    """Theta and the states, or theta and the noises that make the states of a Gaussian transition."""
    return (_centred if case.entry.centred else _by_noises)(case)


def _centred(case: Case) -> Density:
    (y, rows), model = series_of(case), case.model
    coordinates, shape = model.parameters, model.shapes.x.shape

    def potential(at):
        theta, x = coordinates.to_theta(at["z"]), at["x"]
        moves = jax.vmap(lambda x_prev, x, u: log_prob(model.transition(theta, x_prev, u), x))(x[:-1], x[1:], rows)
        seen = jax.vmap(lambda x, y, u: observed_log_prob(model.observation(theta, x, u), y))(x[1:], y, rows)
        first = log_prob(model.initial(theta), x[0])
        return -(coordinates.log_prior(at["z"]) + first + jnp.sum(moves) + jnp.sum(seen))

    start = case.entry.start
    x = np.zeros((len(y) + 1, *shape)) if start is None else np.asarray(start(case.y), float)
    return Density(potential, {"z": np.asarray(coordinates.centre, float), "x": x})


def _by_noises(case: Case) -> Density:
    (y, rows), model = series_of(case), case.model
    coordinates, shape = model.parameters, model.shapes.x.shape

    def drawn(d, noise):
        mean, scale_tril = moments(d)
        return (mean + scale_tril @ noise).reshape(shape)

    def potential(at):
        theta, noises = coordinates.to_theta(at["z"]), at["noises"]

        def step(x, row):
            noise, y_t, u = row
            x = drawn(model.transition(theta, x, u), noise)
            return x, observed_log_prob(model.observation(theta, x, u), y_t)

        x = drawn(model.initial(theta), noises[0])
        seen = jax.lax.scan(step, x, (noises[1:], y, rows))[1]
        return -(coordinates.log_prior(at["z"]) - 0.5 * jnp.sum(noises**2) + jnp.sum(seen))

    noises = np.zeros((len(y) + 1, int(np.prod(shape))))
    return Density(potential, {"z": np.asarray(coordinates.centre, float), "noises": noises})


def marginal(case: Case) -> Density:
    """Theta alone, by the library's own Kalman filter."""
    (y, rows), coordinates = series_of(case), case.model.parameters

    def potential(at):
        theta = coordinates.to_theta(at["z"])
        inputs = None if case.inputs is None else rows
        evidence = epf.exact.kalman_log_evidence(case.model, theta, y, inputs=inputs)[-1]
        return -(coordinates.log_prior(at["z"]) + evidence)

    return Density(potential, {"z": np.asarray(coordinates.centre, float)})


def sampler(density: Density, seed: int, warm_up: int, draws: int) -> numpyro.infer.MCMC:
    """Chains side by side in one program, which start near the density's start."""
    kernel = numpyro.infer.NUTS(potential_fn=density.potential, max_tree_depth=DEPTH)
    return numpyro.infer.MCMC(
        kernel, num_warmup=warm_up, num_samples=draws, num_chains=CHAINS, chain_method="vectorized", progress_bar=False
    )


def starts(density: Density, seed: int) -> dict[str, jax.Array]:
    """One for each chain, spread a little."""
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(value + 0.1 * rng.normal(size=(CHAINS, *value.shape)), float)
        for name, value in density.start.items()
    }


def posterior(
    case: Case, density: Density, *, seconds: float, draws: int, enough: float, warm_up: int = WARM_UP, seed: int = 0
) -> dict[str, Any]:
    """Mean, sd and quantiles of every parameter with their errors, by `draws` at a time until the ESS is `enough`."""
    begin = time.time()
    mcmc = sampler(density, seed, warm_up, draws)
    mcmc.run(jax.random.key(seed), init_params=starts(density, seed))
    found = [np.asarray(mcmc.get_samples(group_by_chain=True)["z"], float)]
    warm, before = time.time() - begin, time.time()
    while True:
        theta = _thetas(case, np.concatenate(found, axis=1))
        sizes = [float(effective_sample_size(column)) for column in np.moveaxis(theta, -1, 0)]
        now = time.time()
        if min(sizes) >= enough or now - begin + (now - before) * (len(found) > 1) > seconds or warm > seconds:
            break
        before = now
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(mcmc.post_warmup_state.rng_key)
        found.append(np.asarray(mcmc.get_samples(group_by_chain=True)["z"], float))
    rows = theta.reshape(-1, theta.shape[-1])
    parameters = summary(case.names, rows, np.full(len(rows), 1 / len(rows)))
    for row, size in zip(parameters.values(), sizes, strict=True):
        stretch = float(np.sqrt(len(rows) / max(size, 1.0)))
        row["mean_error"], row["sd_error"] = row["mean_error"] * stretch, row["sd_error"] * stretch
    return {
        "parameters": parameters, "ess": min(sizes), "draws": len(rows),
        "r_hat": max(float(split_gelman_rubin(column)) for column in np.moveaxis(theta, -1, 0)),
        "seconds": round(time.time() - begin, 1),
    }  # fmt: skip


def _thetas(case: Case, z: np.ndarray) -> np.ndarray:
    """The numbers of theta at every z, chain by chain."""

    def flat(z):
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(case.model.parameters.to_theta(z))])

    return np.asarray(jax.vmap(jax.vmap(flat))(jnp.asarray(z, float)), float)
