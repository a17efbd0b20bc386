r"""SIN's bootstrap filter in each peer library's own fast idiom, for a fair race.

    x_0 ~ N(0, 1),  x_t = sin(0.7 x_{t-1}) + N(0, 1),  y_t = x_t + N(0, 0.1^2),  t = 1..T

Systematic resampling at every step, theta known. Each build takes (y, num_particles, dtype) and gives `run(seed)`,
whose result is the estimate of log p(y_{1:T}); the first call compiles, the later ones only execute. For float64 the
caller sets `jax.config.update("jax_enable_x64", True)` around both. A peer is imported by its own build, so that any of
them may be missing.
"""

import math
from collections.abc import Callable
from importlib import metadata
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

THETA, NOISE = 0.7, 0.1
LOG_NORMALISER = math.log(NOISE * math.sqrt(2 * math.pi))  # a Python float, which promotes no float32


class Peer(NamedTuple):
    """A contestant: the distribution that gives its version, and `build(y, num_particles, dtype) -> run(seed)`."""

    package: str
    build: Callable


def log_density(y_t, x):
    return -0.5 * ((y_t - x) / NOISE) ** 2 - LOG_NORMALISER


def with_particles(y, num_particles, dtype):
    """A Feynman-Kac class of particles: NumPy, with Numba in the resampling, on the CPU.

    A class of one's own is faster than `StateSpaceModel`, whose densities go through scipy.stats. The states are in
    `dtype`; the weights are always float64, for particles' inverse CDF reads past the end of weights that sum to less
    than the last uniform, as float32 ones do.
    """
    import particles

    y = np.asarray(y, dtype)

    class Sinusoid(particles.FeynmanKac):
        def __init__(self, seed):
            super().__init__(len(y))
            self.rng = np.random.default_rng(seed)

        def M0(self, N):  # noqa: N802  (the first state that particles weighs is x_1)
            return self.M(0, self.rng.standard_normal(N, dtype=dtype))

        def M(self, t, xp):  # noqa: N802
            return np.sin(THETA * xp) + self.rng.standard_normal(len(xp), dtype=dtype)

        def logG(self, t, xp, x):  # noqa: N802
            return log_density(y[t], x).astype(np.float64, copy=False)

    def run(seed):
        np.random.seed(seed)  # noqa: NPY002  (particles resamples from NumPy's global generator)
        # ESS < 2 N always holds; "off" collects nothing at each step.
        smc = particles.SMC(Sinusoid(seed), num_particles, resampling="systematic", ESSrmin=2.0, collect="off")
        smc.run()
        return smc.logLt

    return run


def with_cuthbert(y, num_particles, dtype):
    """The particle filter of cuthbert, jitted whole, so that XLA drops the history that `filter` would return.

    On the CPU its inverse CDF is a Numba callback, elsewhere a search by sorting. The callback runs in a thread that
    does not see `jax.enable_x64(True)`, so float64 needs the global flag.
    """
    import cuthbert
    from cuthbert.smc import particle_filter
    from cuthbertlib.resampling import systematic

    y = jnp.asarray(y, dtype)
    filter_ = particle_filter.build_filter(
        init_sample=lambda key: jax.random.normal(key, (), dtype),
        propagate_sample=lambda key, x, _: jnp.sin(THETA * x) + jax.random.normal(key, (), dtype),
        log_potential=lambda _, x, y_t: log_density(y_t, x),
        n_filter_particles=num_particles,
        resampling_fn=systematic.resampling,
    )

    @jax.jit
    def run(seed):
        key_init, key_steps = jax.random.split(jax.random.key(seed))
        states = cuthbert.filter(filter_, y, filter_.init_prepare(key=key_init), key=key_steps)
        return states.log_normalizing_constant[-1]

    return run


def with_smcx(y, num_particles, dtype):
    """The bootstrap filter of smcx, jitted, without history; a threshold above one resamples at every step."""
    import smcx

    y = jnp.asarray(y, dtype)

    def transition(key, x):
        return jnp.sin(THETA * x) + jax.random.normal(key, jnp.shape(x), dtype)

    def initial(key, n):  # the first state that smcx weighs is x_1
        key_x0, key_x1 = jax.random.split(key)
        return transition(key_x1, jax.random.normal(key_x0, (n,), dtype))

    @jax.jit
    def run(seed):
        posterior = smcx.bootstrap_filter(
            jax.random.key(seed),
            initial,
            transition,
            lambda y_t, x: log_density(y_t[0], x),
            y,
            num_particles,
            resampling_fn=smcx.systematic,
            resampling_threshold=2.0,
            store_history=False,
        )
        return posterior.marginal_loglik

    return run


def with_pypomp(y, num_particles, dtype):
    """The functional `pfilter` of pypomp, jitted, its process vectorized by hand; threshold 0 always resamples."""
    import pandas as pd
    import pypomp
    import pypomp.functional

    def rinit(theta_, key, covars, t0):
        return {"x": jax.random.normal(key, (), dtype)}

    @pypomp.vectorized
    def rproc(X_, theta_, key, covars, t, dt):
        x = X_["x"]
        return {"x": jnp.sin(theta_["theta"] * x) + jax.random.normal(key, x.shape, dtype)}

    def dmeas(Y_, X_, theta_, covars, t):
        return log_density(Y_["y"], X_["x"])

    struct = pypomp.Pomp(
        ys=pd.DataFrame({"y": np.asarray(y, dtype)}, index=np.arange(1.0, len(y) + 1)),
        theta=pypomp.PompParameters({"theta": THETA}),
        statenames=["x"],
        t0=0.0,
        rinit=rinit,
        rproc=rproc,
        dmeas=dmeas,
        nstep=1,
    ).to_struct()
    thetas = jnp.full((1, 1), THETA, dtype)

    @jax.jit
    def run(seed):
        keys = jax.random.split(jax.random.key(seed), (1, 1))  # one parameter, one replicate
        return pypomp.functional.pfilter(struct, thetas, num_particles, keys, thresh=0.0)["logLik"][0, 0]

    return run


def with_blackjax(y, num_particles, dtype):
    """A plain JAX scan with blackjax's systematic resampler: it has no filter of state-space models of its own."""
    from blackjax.smc.resampling import systematic

    y, n = jnp.asarray(y, dtype), num_particles

    def step(carry, row):
        x, total = carry
        key, y_t = row
        key_state, key_resample = jax.random.split(key)
        x = jnp.sin(THETA * x) + jax.random.normal(key_state, (n,), dtype)
        log_weights = log_density(y_t, x)
        highest = jnp.max(log_weights)
        weights = jnp.exp(log_weights - highest)
        sum_ = jnp.sum(weights)
        return (x[systematic(key_resample, weights / sum_, n)], total + highest + jnp.log(sum_ / n)), None

    @jax.jit
    def run(seed):
        key_init, key_steps = jax.random.split(jax.random.key(seed))
        start = (jax.random.normal(key_init, (n,), dtype), jnp.zeros((), dtype))
        return jax.lax.scan(step, start, (jax.random.split(key_steps, len(y)), y))[0][1]

    return run


PEERS = {
    "particles": Peer("particles", with_particles),
    "cuthbert": Peer("cuthbert", with_cuthbert),
    "smcx": Peer("smcx", with_smcx),
    "pypomp": Peer("pypomp", with_pypomp),
    "blackjax resampler": Peer("blackjax", with_blackjax),
}


def available() -> dict[str, str]:
    """Each installed peer's version, by its name in `PEERS`."""
    versions = {}
    for name, peer in PEERS.items():
        try:
            versions[name] = metadata.version(peer.package)
        except metadata.PackageNotFoundError:
            continue
    return versions
