"""One sweep on several processes, or several machines that share a folder.

Every process runs this same script; each takes its share of the batches, and process 0 writes the table. On one
machine, in two shells (or with `&` after the first):

    python examples/sweep_on_many_machines.py --coordinator localhost:9911 --num-processes 2 --process-id 0
    python examples/sweep_on_many_machines.py --coordinator localhost:9911 --num-processes 2 --process-id 1

On two machines, with `/shared` mounted on both and the first reachable as `node0` on a free port:

    node0$ python examples/sweep_on_many_machines.py --coordinator node0:9911 --num-processes 2 --process-id 0 \
               --folder /shared/sweep
    node1$ python examples/sweep_on_many_machines.py --coordinator node0:9911 --num-processes 2 --process-id 1 \
               --folder /shared/sweep

Without options it is an ordinary sweep in one process, and gives the same table. If a machine is lost, the others stop
within two minutes; the same commands, on as many machines as are left, go on from the batches that were finished.
"""

import argparse

import jax

import epf_jax as epf

METHODS = {"epf": epf.extended_parameter_filter, "sir": epf.bootstrap_filter}


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--coordinator", help="HOST:PORT of process 0, reachable from all")
    parser.add_argument("--num-processes", type=int, default=1)
    parser.add_argument("--process-id", type=int, default=0, help="0, 1, ...: another for each process")
    parser.add_argument("--folder", default="results/sweep", help="where results are kept; shared by all processes")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--particles", type=int, default=500)
    parser.add_argument("--batch", type=int, default=5, help="seeds that run at once; let there be batches for all")
    given = parser.parse_args()
    if given.num_processes > 1 and given.coordinator is None:
        parser.error("--num-processes above 1 needs --coordinator HOST:PORT, the address of process 0")
    return given


def main() -> None:
    """Join the other processes, sweep, and let process 0 say what came out."""
    given = arguments()
    if given.num_processes > 1:  # before anything else touches a device
        jax.distributed.initialize(given.coordinator, given.num_processes, given.process_id)
    table = epf.sweep(
        models={"sin": (epf.models.sinusoid(), {"theta": 0.7})},
        methods={name: lambda model, name=name: METHODS[name](model, given.particles) for name in given.methods},
        seeds=range(given.seeds),
        num_steps=given.steps,
        folder=given.folder,
        batch=given.batch,
        progress=given.process_id == 0,
    )
    if given.process_id == 0:
        for method in given.methods:
            found = [row for row in table if row["method"] == method and row["status"] == "ok"]
            error = sum(abs(row["mean"] - row["truth"]) for row in found) / max(len(found), 1)
            print(f"{method}: theta is off by {error:.3f} on average over {len(found)} seeds")
        print(f"{len(table)} rows in {given.folder}/table.csv")


if __name__ == "__main__":
    main()
