"""`replicate` with a host device for each core: thirty-two filters of a thousand particles.

Against one core, and against one device that has all cores, over which XLA spreads what it can of one program. Each in
a process of its own, taking turns; the results must be the same to the last bit.
"""

import json
import os
import statistics
import subprocess
import sys

from benchmarks.report import of_this_cpu, save, show
from epf_jax.core.machine import num_cores

CODE = """
import hashlib, json, os, sys, time
if sys.argv[2:]:
    os.sched_setaffinity(0, {int(sys.argv[2])})
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import numpy as np, epf_jax as epf
model = epf.models.sinusoid()
_, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, 200)
filter_ = epf.extended_parameter_filter(model, 1000, statistic=epf.taylor(model, 7), proposal=epf.bootstrap())
keys = jax.random.split(jax.random.key(1), 32)
taken = []
for _ in range(4):
    start = time.perf_counter()
    found = jax.block_until_ready(epf.replicate(keys, filter_, y, levels=()))
    taken.append(time.perf_counter() - start)
digest = hashlib.sha256(np.asarray(found.theta.mean["theta"]).tobytes()).hexdigest()
print(json.dumps({"seconds": taken[1:], "digest": digest}))
"""


def once(num_devices, *core):
    """Seconds and a digest of the results, from a process that may use all cores, or this one."""
    command = [sys.executable, "-c", CODE, *map(str, (num_devices, *core))]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def main(repeats: int = 3, *, store: bool = True):
    if not hasattr(os, "sched_setaffinity"):
        print("a process cannot be held to one core here: nothing measured")
        return []
    cores = num_cores()
    ways = {"one core": (1, min(os.sched_getaffinity(0))), "one device": (1,), f"{cores} devices": (cores,)}
    runs = {way: [] for way in ways}
    for _ in range(repeats):
        for way, how in ways.items():
            runs[way].append(once(*how))
    seconds = {way: statistics.median(s for run in found for s in run["seconds"]) for way, found in runs.items()}
    same = len({run["digest"] for found in runs.values() for run in found}) == 1
    gains = {way: seconds["one core"] / s for way, s in seconds.items()}
    rows = [{"on": way, "seconds": s, "times one core": gains[way]} for way, s in seconds.items()]
    rows[-1] |= {"bar": 1.7, "met": rows[-1]["times one core"] >= 1.7, "same numbers": same}
    show("replicate: 32 filters x 1000 particles, EPF, T = 200", rows)
    if store:
        print("stored in", save(of_this_cpu("speed_cores"), {"repeats": repeats, "cores": cores}, rows))
    return rows


if __name__ == "__main__":
    main()
