"""One filter whose particles are spread over all devices of several processes, or machines.

Every process runs this same script, holds its share of the particles, and ends with the same results. On one machine,
in two shells (or with `&` after the first):

    python examples/filter_on_many_machines.py --coordinator localhost:9912 --num-processes 2 --process-id 0
    python examples/filter_on_many_machines.py --coordinator localhost:9912 --num-processes 2 --process-id 1

On two machines the coordinator is the first one's name and a free port, node0:9912. Without options it is one process
with as many devices as jax finds. To run many small filters instead, see sweep_on_many_machines.py.
"""

import argparse

import jax
import numpy as np

import epf_jax as epf


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--coordinator", help="HOST:PORT of process 0, reachable from all")
    parser.add_argument("--num-processes", type=int, default=1)
    parser.add_argument("--process-id", type=int, default=0, help="0, 1, ...: another for each process")
    parser.add_argument("--particles", type=int, default=100_000, help="of all devices together")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--islands", action="store_true", help="resample on each device alone, mixing when need be")
    return parser.parse_args()


def main() -> None:
    """Join the other processes, filter, and let process 0 say what came out."""
    given = arguments()
    if given.num_processes > 1:  # before anything else touches a device
        jax.distributed.initialize(given.coordinator, given.num_processes, given.process_id)
    mesh = jax.make_mesh((jax.device_count(),), ("particles",))
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, given.steps)
    resample = epf.islands(mesh) if given.islands else epf.across_devices(mesh)
    filter_ = epf.extended_parameter_filter(model, given.particles, statistic=epf.taylor(model, 7), resample=resample)
    results = epf.run(jax.random.key(1), filter_, np.asarray(y), levels=())  # as NumPy's, y is every process's own
    if given.process_id == 0:
        mean, sd = results.theta.mean["theta"][-1], results.theta.sd["theta"][-1]
        evidence = results.log_evidence[-1]
        print(f"theta = {mean:.4f} +- {sd:.4f}, log-evidence {evidence:.2f}, on {jax.device_count()} devices")


if __name__ == "__main__":
    main()
