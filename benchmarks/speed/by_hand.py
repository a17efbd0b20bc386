"""What one would write without a library: bootstrap filter and EPF of order 7 on SIN, in NumPy and in plain JAX.

Systematic resampling at every step by a cumulative sum and a search. The EPF's polynomial of degree 14 has sin's own
Taylor coefficients put in by hand, which no general library can know. Each contestant is `name(y, num_particles, dtype)
-> run(seed)`, whose result is the log-evidence.
"""

from math import factorial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.peers import LOG_NORMALISER, NOISE, THETA

ORDER, PRIOR_SD = 7, 0.2
ODD = [(k, (-1) ** (k // 2) / factorial(k)) for k in range(1, ORDER + 1, 2)]


def numpy_bootstrap(y, num_particles, dtype):
    y, n = np.asarray(y, dtype), num_particles

    def run(seed):
        rng = np.random.default_rng(seed)
        x, total = rng.standard_normal(n, dtype=dtype), 0.0
        for y_t in y:
            x = np.sin(dtype(THETA) * x) + rng.standard_normal(n, dtype=dtype)
            chosen, increment = numpy_systematic(-0.5 * ((y_t - x) / dtype(NOISE)) ** 2, rng.random())
            x, total = x[chosen], total + increment
        return total

    return run


def numpy_systematic(log_w, u):
    n, highest = len(log_w), log_w.max()
    c = np.cumsum(np.exp(log_w - highest))
    positions = (np.arange(n, dtype=c.dtype) + c.dtype.type(u)) * (c[-1] / n)
    chosen = np.minimum(np.searchsorted(c, positions), n - 1)  # rounding may pass the end
    return chosen, highest + np.log(c[-1] / n) - LOG_NORMALISER


def numpy_epf(y, num_particles, dtype):
    y, n, degree = np.asarray(y, dtype), num_particles, 2 * ORDER

    def horner(S, theta):
        value = S[degree]
        for k in range(degree - 1, -1, -1):
            value = value * theta + S[k]
        return value - 0.5 * (theta / dtype(PRIOR_SD)) ** 2

    def run(seed):
        rng = np.random.default_rng(seed)
        x, theta = rng.standard_normal(n, dtype=dtype), dtype(PRIOR_SD) * rng.standard_normal(n, dtype=dtype)
        S, total = np.zeros((degree + 1, n), dtype), 0.0
        for y_t in y:
            x_new = np.sin(theta * x) + rng.standard_normal(n, dtype=dtype)
            chosen, increment = numpy_systematic(-0.5 * ((y_t - x_new) / dtype(NOISE)) ** 2, rng.random())
            spread, total = theta.std() + dtype(1e-5), total + increment
            x, x_new, theta, S = x[chosen], x_new[chosen], theta[chosen], S[:, chosen]
            h = [(k, dtype(c) * x**k) for k, c in ODD]
            for i, h_i in h:
                S[i] += x_new * h_i
                for j, h_j in h:
                    S[i + j] -= dtype(0.5) * h_i * h_j
            moved = theta + dtype(2.38) * spread * rng.standard_normal(n, dtype=dtype)
            accept = np.log1p(-rng.random(n, dtype=dtype)) < horner(S, moved) - horner(S, theta)
            x, theta = x_new, np.where(accept, moved, theta)
        return total

    return run


def jax_systematic(key, log_w):
    n, highest = log_w.shape[0], jnp.max(log_w)
    c = jnp.cumsum(jnp.exp(log_w - highest))
    positions = (jnp.arange(n) + jax.random.uniform(key, dtype=log_w.dtype)) * (c[-1] / n)
    chosen = jnp.minimum(jnp.searchsorted(c, positions), n - 1)
    return chosen, highest + jnp.log(c[-1] / n) - LOG_NORMALISER


def jax_bootstrap(y, num_particles, dtype):
    y, n = jnp.asarray(y, dtype), num_particles

    @jax.jit
    def run(seed):
        key_init, key_steps = jax.random.split(jax.random.key(seed))

        def step(carry, row):
            x, total = carry
            key, y_t = row
            key_x, key_u = jax.random.split(key)
            x = jnp.sin(THETA * x) + jax.random.normal(key_x, (n,), dtype)
            chosen, increment = jax_systematic(key_u, -0.5 * ((y_t - x) / NOISE) ** 2)
            return (x[chosen], total + increment), None

        start = (jax.random.normal(key_init, (n,), dtype), jnp.zeros((), dtype))
        return jax.lax.scan(step, start, (jax.random.split(key_steps, len(y)), y))[0][1]

    return run


def jax_epf(y, num_particles, dtype):
    y, n, degree = jnp.asarray(y, dtype), num_particles, 2 * ORDER

    def log_density(S, theta):
        return jnp.polyval(S[::-1], theta) - 0.5 * (theta / PRIOR_SD) ** 2

    def phi(x, x_new):
        h = jnp.zeros(ORDER + 1, dtype)
        for k, c in ODD:
            h = h.at[k].set(c * x**k)
        return (-0.5 * jnp.convolve(h, h)).at[: ORDER + 1].add(x_new * h)

    @jax.jit
    def run(seed):
        key_init, key_theta, key_steps = jax.random.split(jax.random.key(seed), 3)

        def step(carry, row):
            x, theta, S, total = carry
            key, y_t = row
            key_x, key_u, key_move, key_accept = jax.random.split(key, 4)
            x_new = jnp.sin(theta * x) + jax.random.normal(key_x, (n,), dtype)
            chosen, increment = jax_systematic(key_u, -0.5 * ((y_t - x_new) / NOISE) ** 2)
            spread = jnp.std(theta) + 1e-5
            x, x_new, theta, S = x[chosen], x_new[chosen], theta[chosen], S[chosen]
            S = S + jax.vmap(phi)(x, x_new)
            moved = theta + 2.38 * spread * jax.random.normal(key_move, (n,), dtype)
            gain = jax.vmap(log_density)(S, moved) - jax.vmap(log_density)(S, theta)
            theta = jnp.where(jnp.log(jax.random.uniform(key_accept, (n,), dtype)) < gain, moved, theta)
            return (x_new, theta, S, total + increment), None

        start = (
            jax.random.normal(key_init, (n,), dtype),
            PRIOR_SD * jax.random.normal(key_theta, (n,), dtype),
            jnp.zeros((n, degree + 1), dtype),
            jnp.zeros((), dtype),
        )
        return jax.lax.scan(step, start, (jax.random.split(key_steps, len(y)), y))[0][3]

    return run
