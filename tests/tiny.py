"""Tiny models with exact answers, worked out by NumPy alone, and samplers that tell what they were asked.

Everything here is written from the definitions, with none of the library's own algorithms.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.stats import norm

import epf_jax as epf
from epf_jax.samplers import SampleInfo, Sampler

# One unknown coefficient; the mean and the observation read the time, so that a step too early or too late shows.
PRIOR, FIRST, NOISE, SENSOR = (0.3, 0.5), (0.5, 1.0), 0.8, 0.6
KEY = jax.random.key(3)
Y = np.array([0.8, -0.4, 1.9])


def push(u):
    """What time adds to the state."""
    return 0.6 * jnp.cos(1.0 * u)


def autoregression(num):
    """Observations of an AR(1) of coefficient .8 in noise, by NumPy: modules that begin with them compile nothing."""
    rng, x, y = np.random.default_rng(0), 0.5, []
    for e, v in rng.normal(size=(num, 2)):
        x = 0.8 * x + e
        y.append(x + 0.5 * v)
    return np.array(y, np.float32)


@functools.cache
def _models(precision):
    ar = epf.StateSpaceModel(
        prior={"a": dist.Normal(*PRIOR)},
        initial=lambda theta: dist.Normal(*FIRST),
        transition=lambda theta, x, u: dist.Normal(theta["a"] * x + push(u), NOISE),
        observation=lambda theta, x, u: dist.Normal(x + 0.2 * u, SENSOR),
    )
    offset = dataclasses.replace(
        ar,
        prior={"a": dist.Normal(*PRIOR), "b": dist.Normal(0.0, 1.0)},
        observation=lambda theta, x, u: dist.Normal(x + theta["b"] + 0.2 * u, SENSOR),
    )
    scale = dataclasses.replace(
        ar,
        prior={"s": dist.LogNormal(-0.3, 0.5)},
        transition=lambda theta, x, u: dist.Normal(0.5 * x + push(u), theta["s"]),
    )
    return {"ar": ar, "offset": offset, "scale": scale}


def model(which="ar"):
    """One unknown coefficient; with "offset" one more, of the observation; with "scale" an unknown noise scale."""
    return _models(str(jnp.result_type(float)))[which]


def kalman(a, noise, y=Y):
    """log p(y_1:t) for t = 1..T, and mean and variance of x_T given y, of "ar" and "scale": for many a or noises."""
    m, v, logs = FIRST[0], FIRST[1] ** 2, []
    for t, value in enumerate(y, start=1):
        m, v = a * m + 0.6 * np.cos(t), a * a * v + noise**2
        total, off = v + SENSOR**2, value - m - 0.2 * t
        logs.append(-0.5 * off**2 / total - 0.5 * np.log(2 * np.pi * total))
        m, v = m + v / total * off, v * SENSOR**2 / total
    return np.cumsum(logs, axis=0), m, v


@functools.cache
def exact(which="ar", length=3):
    """p(y_1:t) for every t, and p(y) times the posterior means of the functions of `features`, on a grid of theta."""
    z = np.linspace(-6.0, 6.0, 2001)
    theta = np.exp(-0.3 + 0.5 * z) if which == "scale" else PRIOR[0] + PRIOR[1] * z
    logs, m, v = kalman(*((0.5, theta) if which == "scale" else (theta, NOISE)), Y[:length])
    prior = norm.pdf(z) * (z[1] - z[0])
    means = np.stack([np.ones_like(m), theta, theta**2, m, m**2 + v, theta * m]) @ (prior * np.exp(logs[-1]))
    return np.exp(logs) @ prior, means


def features(theta, x):
    """The functions whose posterior means `exact` gives."""
    return jnp.stack([jnp.ones_like(x), theta, theta**2, x, x**2, theta * x])


def unnormalised(filter_, y, num_runs):
    """For each key, the estimates of p(y_1:t) and of p(y) E[f | y]: unbiased, however few the particles are."""

    @jax.jit
    @jax.vmap
    def one(key):
        results = epf.run(key, filter_, jnp.asarray(y, float), levels=())
        final = results.final
        theta = jax.tree.leaves(final.theta)[0] if final.theta else jnp.zeros_like(final.x)
        scale = jnp.exp(results.log_evidence[-1] + final.log_weights)
        return jnp.exp(results.log_evidence), features(theta, final.x) @ scale

    return tuple(np.asarray(part, float) for part in one(jax.random.split(jax.random.key(7), num_runs)))


def assert_unbiased(estimates, expected, *, errors=4.5):
    """The mean over the keys within so many standard errors: at 4.5 one in 150,000 fails where all is right."""
    estimates, expected = np.asarray(estimates, float), np.asarray(expected)
    off = (estimates.mean(axis=0) - expected) / (estimates.std(axis=0) / np.sqrt(len(estimates)) + 1e-6)
    assert np.all(np.abs(off) < errors), f"off by {np.round(off, 1)} standard errors"


def reader(at, coordinate=-1):
    """A sampler that puts (log p(z = at) - log p(z = 0)) / 50, of what it draws from, in place of a coordinate.

    All other coordinates stay as they are, so that theta tells which particle it was resampled with.
    """

    def step(key, z, log_density, population=None):
        told = log_density(jnp.asarray(at, z.dtype)) - log_density(jnp.zeros_like(z))
        return z.at[coordinate].set(told / 50), SampleInfo(jnp.ones(()), jnp.zeros((), int))

    return Sampler(step, "reader")


def of_population(z_of):
    """A sampler that goes where `z_of(population)` says: it tells what population it was given."""

    def step(key, z, log_density, population=None):
        return z_of(population), SampleInfo(jnp.ones(()), jnp.zeros((), int))

    return Sampler(step, "teller")


STAY = Sampler(lambda key, z, log_density, population=None: (z, SampleInfo(jnp.ones(()), jnp.zeros((), int))), "stay")


def steps(filter_, y, key=0, inputs=None):
    """All states from before the first observation on, and the reports of the steps, as NumPy arrays."""
    state = filter_.init(jax.random.key(key))
    states, infos = [state], []
    for t, value in enumerate(y):
        u = () if inputs is None else (inputs[t],)
        state, info = filter_.step(jax.random.fold_in(jax.random.key(key), t + 1), state, value, *u)
        states.append(state)
        infos.append(info)
    return states, infos


def lineages(states, infos):
    """For every t, the paths x_0..x_t of the particles [N, t + 1], followed by the ancestors that steps report."""
    paths = [np.asarray(states[0].x, float)[:, None]]
    for state, info in zip(states[1:], infos, strict=True):
        before = paths[-1][np.asarray(info.ancestors)]
        paths.append(np.concatenate([before, np.asarray(state.x, float)[:, None]], axis=1))
    return paths


def log_path(theta, path, y):
    """log p(theta) p(x_0:t, y_1:t | theta) of "ar" (theta = (a,)) or "offset" (theta = (a, b)), for paths in rows."""
    a, b = theta[0], theta[1] if len(theta) > 1 else 0.0
    t = np.arange(1, path.shape[1])
    total = norm(*PRIOR).logpdf(a) + (norm(0.0, 1.0).logpdf(b) if len(theta) > 1 else 0.0)
    total = total + norm(*FIRST).logpdf(path[:, 0])
    total = total + norm(a * path[:, :-1] + 0.6 * np.cos(t), NOISE).logpdf(path[:, 1:]).sum(axis=1)
    return total + norm(path[:, 1:] + b + 0.2 * t, SENSOR).logpdf(np.asarray(y)[: len(t)]).sum(axis=1)


def normalised(log_weights):
    """Normalised log-weights, and the log of their sum."""
    top = np.max(log_weights)
    total = top + np.log(np.sum(np.exp(log_weights - top)))
    return log_weights - total, total


def leaves(tree):
    """All arrays of a tree, as NumPy's."""
    return [np.asarray(leaf, float) for leaf in jax.tree.leaves(tree)]


def error(filter_, y, log_evidence, num_runs):
    """Mean of exp(estimate - exact) less one, its standard error, and the share of steps that resampled."""
    results = epf.replicate(jax.random.split(jax.random.key(0), num_runs), filter_, y, levels=())
    ratio = np.exp(np.asarray(results.log_evidence[:, -1], float) - log_evidence)
    return float(ratio.mean() - 1.0), float(ratio.std(ddof=1) / np.sqrt(num_runs)), float(results.resampled.mean())
