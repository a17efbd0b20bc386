"""How long a first answer takes: from `python` to the printed result, with nothing compiled before.

    python -m benchmarks.speed.first_answer

Every number is the median over processes of their own, by turns; ratios are of one run. `numpyro's NUTS` samples the
parameters and states of the same local level (2 chains, 500 draws each after 500 to warm up).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

import numpy as np

import epf_jax as epf
from benchmarks.report import RESULTS, of_this_cpu, save, show
from benchmarks.speed.by_hand import numpy_bootstrap
from benchmarks.speed.peers import THETA
from benchmarks.speed.racing import key_of, race

HEAD = """
import json, time
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
"""
SERIES = "y = np.cumsum(np.random.default_rng(0).normal(0, .5, 100)) + np.random.default_rng(1).normal(0, 1.0, 100)\n"
LEVEL = """
import epf_jax as epf
level = epf.StateSpaceModel(
    prior={"q": dist.LogNormal(-1.0, 1.0), "r": dist.LogNormal(0.0, 1.0)},
    initial=lambda theta: dist.Normal(0.0, 5.0),
    transition=lambda theta, x, u: dist.Normal(x, theta["q"]),
    observation=lambda theta, x, u: dist.Normal(x, theta["r"]),
)
"""
QUICKSTART = """
import epf_jax as epf
model = epf.StateSpaceModel(
    prior={"theta": dist.Normal(0.0, 0.2)},
    initial=lambda theta: dist.Normal(0.0, 1.0),
    transition=lambda theta, x, u: dist.Normal(jnp.sin(theta["theta"] * x), 1.0),
    observation=lambda theta, x, u: dist.Normal(x, 0.1),
)
x, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, num_steps=1000)
results = epf.run(jax.random.key(1), epf.extended_parameter_filter(model, num_particles=1000), y)
print(results.theta.mean["theta"][-1], results.theta.sd["theta"][-1])
"""
NUTS = """
numpyro.set_host_device_count(2)
from numpyro.infer import MCMC, NUTS
def level(y):
    q, r = numpyro.sample("q", dist.LogNormal(-1.0, 1.0)), numpyro.sample("r", dist.LogNormal(0.0, 1.0))
    x_0 = numpyro.sample("x_0", dist.Normal(0.0, 5.0))
    steps = numpyro.sample("steps", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Normal(x_0 + q * jnp.cumsum(steps), r), obs=y)
sampler = MCMC(NUTS(level), num_warmup=500, num_samples=500, num_chains=2, progress_bar=False)
sampler.run(jax.random.key(0), y)
print({name: (float(sampler.get_samples()[name].mean()), float(sampler.get_samples()[name].std())) for name in "qr"})
"""
COMPILED = """
import epf_jax as epf
model, T, N = epf.models.sinusoid(), 200, 1000
y = jnp.sin(jnp.arange(float(T)))
filter_ = epf.bootstrap_filter(model, N)
def seconds(run):
    start = time.perf_counter(); jax.block_until_ready(run(1)); first = time.perf_counter() - start
    start = time.perf_counter(); jax.block_until_ready(run(2)); return first - (time.perf_counter() - start)
levels = jnp.array([.05, .25, .5, .75, .95])
def summary(values, w):
    mean = w @ values
    order = jnp.argsort(values)
    at = jnp.searchsorted(jnp.cumsum(w[order]), levels)
    return mean, jnp.sqrt(w @ (values - mean) ** 2), values[order][jnp.minimum(at, N - 1)]
@jax.jit
def plain(seed):
    key, key_x, key_theta = jax.random.split(jax.random.key(seed), 3)
    def step(carry, row):
        x, theta, total = carry
        y_t, key = row
        key_x, key_u = jax.random.split(key)
        x = jnp.sin(theta * x) + jax.random.normal(key_x, (N,))
        log_w = -0.5 * ((y_t - x) / 0.1) ** 2 - jnp.log(0.1) - 0.5 * jnp.log(2 * jnp.pi)
        increment = jax.nn.logsumexp(log_w) - jnp.log(N)
        w = jax.nn.softmax(log_w)
        told = summary(theta, w), summary(x, w), total + increment, 1 / jnp.sum(w**2)
        positions = (jnp.arange(N) + jax.random.uniform(key_u)) / N
        ancestors = jnp.minimum(jnp.searchsorted(jnp.cumsum(w), positions), N - 1)
        return (x[ancestors], theta[ancestors], total + increment), told
    start = jax.random.normal(key_x, (N,)), 0.2 * jax.random.normal(key_theta, (N,)), 0.0
    return jax.lax.scan(step, start, (y, jax.random.split(key, T)))
jax.block_until_ready(jax.random.split(jax.random.key(0)))
ours, by_hand = seconds(lambda seed: epf.run(jax.random.key(seed), filter_, y)), seconds(plain)
def taken(length, seed):
    series = jnp.cos(jnp.arange(float(length)))
    start = time.perf_counter()
    jax.block_until_ready(epf.run(jax.random.key(seed), filter_, series))
    return time.perf_counter() - start
other, warm = taken(170, 3), min(taken(170, seed) for seed in (4, 5, 6))
print(json.dumps({"ours": ours, "plain": by_hand, "other": other, "warm": warm}))
"""
LEARN = LEVEL + "print(epf.learn(jax.random.key(0), level, y))\n"
PROGRAMS = {"quickstart": QUICKSTART, "learn": SERIES + LEARN, "NUTS": SERIES + NUTS}
BARS = {
    "trace and compile of the bootstrap filter over a plain JAX scan's": 1.5,
    "a series of another length over a warm run": 1.2,
    "quickstart, s": 4.0,
    "learn on a local level, s": 8.0,
    "the same with the cache, s": 3.0,
    "learn over numpyro's NUTS": 1.0,
}


def seconds_of(program, folder=None):
    """From `python` to its end, in a process of its own, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(RESULTS.parents[1])}
    environment |= {} if folder is None else {"JAX_COMPILATION_CACHE_DIR": folder}
    environment |= {} if folder is None else {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    code = f"import time; start = time.perf_counter()\n{HEAD}{program}\nprint(time.perf_counter() - start)"
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.splitlines()
    return float(printed[-1]), printed[:-1]


def by_turns(repeats):
    """Seconds of each program by turns, and those of `learn` with its programs in the cache."""
    found = {name: [] for name in (*PROGRAMS, "cached", "compiled")}
    with tempfile.TemporaryDirectory() as folder:
        seconds_of(PROGRAMS["learn"], folder)
        for _ in range(repeats):
            for name, program in PROGRAMS.items():
                found[name].append(seconds_of(program)[0])
            found["cached"].append(seconds_of(PROGRAMS["learn"], folder)[0])
            found["compiled"].append(json.loads(seconds_of(COMPILED)[1][-1]))
    return found


def with_quantiles(repeats):
    """NumPy by hand, which has no quantiles, over ours with the five of x and theta that `run` gives."""
    rows = []
    for n, length in {1_000: 500, 10_000: 100, 100_000: 40}.items():
        _, y = epf.simulate(key_of(0), epf.models.sinusoid(), {"theta": THETA}, length)
        filter_ = epf.bootstrap_filter(epf.models.sinusoid(), n, theta={"theta": THETA})
        runs = {
            "ours": lambda seed, f=filter_, y=y: np.asarray(epf.run(key_of(seed), f, y).log_evidence)[-1],
            "NumPy": numpy_bootstrap(y, n, np.float32),
        }
        taken = {name: found.seconds for name, found in race(runs, repeats).items()}
        ratio = taken["NumPy"] / taken["ours"]
        rows.append({"what": f"NumPy by hand over ours with quantiles, N = {n}", "found": ratio, "bar": 2.0})
    return [{**row, "met": row["found"] >= row["bar"]} for row in rows]


def main(repeats: int = 5, *, store: bool = True):
    found = by_turns(repeats)
    median = {name: statistics.median(values) for name, values in found.items() if name != "compiled"}
    of_compiled = lambda a, b: statistics.median(row[a] / row[b] for row in found["compiled"])  # noqa: E731
    numbers = (of_compiled("ours", "plain"), of_compiled("other", "warm"), median["quickstart"], median["learn"])
    numbers = (*numbers, median["cached"], median["learn"] / median["NUTS"])
    rows = [
        {"what": what, "found": number, "bar": bar, "met": number <= bar}
        for (what, bar), number in zip(BARS.items(), numbers, strict=True)
    ]
    rows += with_quantiles(repeats)
    show("the first answer", rows)
    if store:
        print("stored in", save(of_this_cpu("first_answer"), {"repeats": repeats}, rows))
    return rows


if __name__ == "__main__":
    main()
