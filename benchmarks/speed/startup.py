"""The first result of the quickstart: import, trace and compile, and the same with a persistent compilation cache.

Each number from processes of their own, medians; the cache lies in a folder that is thrown away. XLA compiles
on all cores: what more than two of them give is stored by their number. On the lent machine,
`JAX_PLATFORMS=cpu python -m benchmarks.speed.startup`, and without JAX_PLATFORMS for its GPU.
"""

import json
import statistics
import subprocess
import sys
import tempfile

from benchmarks.report import of_this_cpu, save, show
from epf_jax.core.machine import machine

CODE = """
import json, sys, time
start = time.perf_counter()
import jax, jax.numpy as jnp, numpyro.distributions as dist
import epf_jax as epf
imported = time.perf_counter() - start
if len(sys.argv) > 1:
    epf.cache_compiled_programs(sys.argv[1])
y = jnp.sin(jnp.arange(200.0))
jax.block_until_ready(y)
start = time.perf_counter()
model = epf.StateSpaceModel(
    prior={"theta": dist.Normal(0.0, 0.2)},
    initial=lambda theta: dist.Normal(0.0, 1.0),
    transition=lambda theta, x, u: dist.Normal(jnp.sin(theta["theta"] * x), 1.0),
    observation=lambda theta, x, u: dist.Normal(x, 0.1),
)
filter_ = epf.extended_parameter_filter(model, num_particles=1000)
built = time.perf_counter() - start
first = time.perf_counter()
jax.block_until_ready(epf.run(jax.random.key(1), filter_, y))
first = time.perf_counter() - first
again = time.perf_counter()
jax.block_until_ready(epf.run(jax.random.key(2), filter_, y))
again = time.perf_counter() - again
print(json.dumps({"import": imported, "build": built, "trace and compile": first - again, "run": again}))
"""
_CORES = 2  # of the machines that this library is made on
BARS = {"import": 1.5, "build, trace and compile": 3.0, "the same, cached": 0.5}


def once(*args):
    out = subprocess.run([sys.executable, "-c", CODE, *args], check=True, capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def main(repeats: int = 3, *, store: bool = True):
    fresh = [once() for _ in range(repeats)]
    with tempfile.TemporaryDirectory() as folder:
        once(folder)
        cached = [once(folder) for _ in range(repeats)]
    median = lambda runs, *keys: statistics.median(sum(run[key] for key in keys) for run in runs)  # noqa: E731
    seconds = {
        "import": median(fresh + cached, "import"),
        "build, trace and compile": median(fresh, "build", "trace and compile"),
        "the same, cached": median(cached, "build", "trace and compile"),
    }
    rows = [{"what": k, "seconds": s, "bar": BARS[k], "met": s <= BARS[k]} for k, s in seconds.items()]
    show("the first result of the quickstart", rows)
    if store:
        print("stored in", save(_name(), {"repeats": repeats}, rows))
    return rows


def _name():
    here = machine()
    if here["device"] != "cpu":
        return "speed_startup_gpu"
    return of_this_cpu("speed_startup") + (f"_{here['cores']}_cores" if here["cores"] > _CORES else "")


if __name__ == "__main__":
    main()
