"""Nanoseconds per particle-step on SIN: this library against NumPy by hand and a plain JAX scan.

Interleaved runs, medians, compile time apart. Every contestant estimates the same log-evidence, which is compared, so
that nobody is fast by being wrong.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import epf_jax as epf
from benchmarks.report import save, show

NUM_STEPS, REPEATS, PARTICLES, THETA, NOISE = 200, 7, (1000, 10_000, 100_000), 0.7, 0.1
LOG_NORMALISER = np.log(NOISE * np.sqrt(2 * np.pi))


def numpy_by_hand(y, num_particles):
    y, rng, n = np.asarray(y), np.random.default_rng(0), num_particles

    def run(_):
        x, total = rng.standard_normal(n, dtype=np.float32), 0.0
        for y_t in y:
            x = np.sin(np.float32(THETA) * x) + rng.standard_normal(n, dtype=np.float32)
            log_w = -0.5 * ((y_t - x) / np.float32(NOISE)) ** 2
            highest = log_w.max()
            c = np.cumsum(np.exp(log_w - highest))
            total += highest + np.log(c[-1] / n) - LOG_NORMALISER
            x = x[np.searchsorted(c, (np.arange(n, dtype=np.float32) + np.float32(rng.random())) * (c[-1] / n))]
        return total

    return run


def plain_jax(y, num_particles):
    n = num_particles

    @jax.jit
    def run(key):
        key_init, key_steps = jax.random.split(key)

        def step(carry, row):
            x, total = carry
            key, y_t = row
            key_x, key_u = jax.random.split(key)
            x = jnp.sin(THETA * x) + jax.random.normal(key_x, (n,))
            log_w = -0.5 * ((y_t - x) / NOISE) ** 2
            highest = jnp.max(log_w)
            c = jnp.cumsum(jnp.exp(log_w - highest))
            total += highest + jnp.log(c[-1] / n) - LOG_NORMALISER
            chosen = jnp.searchsorted(c, (jnp.arange(n) + jax.random.uniform(key_u)) * (c[-1] / n))
            return (x[jnp.minimum(chosen, n - 1)], total), None

        start = (jax.random.normal(key_init, (n,)), jnp.zeros(()))
        return jax.lax.scan(step, start, (jax.random.split(key_steps, len(y)), y))[0][1]

    return run


def ours(filter_, y):
    return lambda key: epf.run(key, filter_, y, levels=()).log_evidence[-1]


def measure(y, num_particles):
    model, n = epf.models.sinusoid(), num_particles
    literal = epf.extended_parameter_filter(model, n, statistic=epf.taylor(model, 7), proposal=epf.bootstrap())
    contestants = {
        "NumPy by hand": numpy_by_hand(y, n),
        "plain JAX": plain_jax(y, n),
        "epf_jax bootstrap": ours(epf.bootstrap_filter(model, n, theta={"theta": THETA}), y),
        "epf_jax EPF, Taylor 7": ours(literal, y),
    }
    seconds = {name: [] for name in contestants}
    evidence = {name: [] for name in contestants}
    for repeat in range(REPEATS + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            value = jax.block_until_ready(run(jax.random.key(repeat)))
            if repeat:  # the first compiles
                seconds[name].append(time.perf_counter() - start)
                evidence[name].append(float(value))
    baseline = statistics.median(seconds["NumPy by hand"])
    return [
        {
            "N": n,
            "filter": name,
            "ns a particle-step": statistics.median(taken) / (n * len(y)) * 1e9,
            "times NumPy's": statistics.median(taken) / baseline,
            "log-evidence": statistics.mean(evidence[name]),
            "its sd": statistics.stdev(evidence[name]),
        }
        for name, taken in seconds.items()
    ]


def main():
    _, y = epf.simulate(jax.random.key(0), epf.models.sinusoid(), {"theta": THETA}, NUM_STEPS)
    rows = [row for n in PARTICLES for row in measure(y, n)]
    show("SIN, float32, systematic resampling at every step (theta known, except for the EPF)", rows)
    print("stored in", save("particle_step", {"steps": NUM_STEPS, "repeats": REPEATS, "theta": THETA}, rows))


if __name__ == "__main__":
    main()
