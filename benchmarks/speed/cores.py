"""`replicate` on one host device against one for each core: thirty-two filters of a thousand particles.

Both in processes of their own, which differ in one line, taking turns; the results must be the same to the last bit.
"""

import json
import statistics
import subprocess
import sys

from benchmarks.report import of_this_cpu, save, show
from epf_jax.machine import num_cores

CODE = """
import hashlib, json, sys, time
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


def once(num_devices):
    # One device gets one core's worth of threads: XLA spreads a single program over all cores where it can.
    out = subprocess.run([sys.executable, "-c", CODE, str(num_devices)], check=True, capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def main(repeats: int = 3, *, store: bool = True):
    cores = num_cores()
    runs = {1: [], cores: []}
    for _ in range(repeats):
        for num in runs:
            runs[num].append(once(num))
    seconds = {num: statistics.median(s for run in found for s in run["seconds"]) for num, found in runs.items()}
    same = len({run["digest"] for found in runs.values() for run in found}) == 1
    gain = seconds[1] / seconds[cores]
    rows = [{"devices": num, "seconds": s, "speed-up": seconds[1] / s} for num, s in seconds.items()]
    rows[-1] |= {"bar": 1.7, "met": gain >= 1.7, "same numbers": same}
    show("replicate: 32 filters x 1000 particles, EPF, T = 200", rows)
    if store:
        print("stored in", save(of_this_cpu("speed_cores"), {"repeats": repeats, "cores": cores}, rows))
    return rows


if __name__ == "__main__":
    main()
