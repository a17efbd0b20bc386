"""A long stream: a million observations through `epf stream`, whose memory and time per observation must not grow.

    python -m benchmarks.soak                          # a million, about an hour; stores benchmarks/results/soak.json
    python -m benchmarks.soak --observations 50000     # a look; stores nothing

The command runs as a user's would, fed through a pipe by a thread that never waits for answers. The stream is cut into
blocks of equal length; for each, the time per observation, by the clock and of the processor, and the resident memory
at its end. Judged are the later half's median processor time against the earlier half's (without the first block, which
compiles), and the memory at the end against that after the first fifth.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import jax
import numpy as np

from benchmarks.report import save, show
from epf_jax import models, simulate

NUM_BLOCKS = 50
PARTICLES = 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--observations", type=int, default=1_000_000)
    parser.add_argument("--checkpoint-every", type=int, default=0, help="keep a checkpoint of every so many (0: none)")
    options = parser.parse_args()
    rows = soak(options.observations, options.checkpoint_every)
    verdict = judge(rows)
    show("blocks", rows[:: max(1, len(rows) // 10)])
    show("flat?", [verdict])
    if options.observations >= 1_000_000:
        save("soak", vars(options) | {"particles": PARTICLES}, [*rows, verdict])


def soak(num: int, checkpoint_every: int) -> list[dict]:
    """Stream `num` observations of an AR(1), and measure each block."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "model.py").write_text("import epf_jax as epf\nmodel = epf.models.ar1()\n")
        command = [
            sys.executable,
            "-c",
            "from epf_jax.apps.cli import main; main()",
            "stream",
            f"{folder}/model.py:model",
        ]
        command += ["--method", "storvik", "--particles", str(PARTICLES)]
        if checkpoint_every:
            command += ["--checkpoint", str(folder / "state.epf"), "--checkpoint-every", str(checkpoint_every)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ}) as process:
            feeder = threading.Thread(target=feed, args=(process, num))
            feeder.start()
            rows = measure(process, num)
            feeder.join()
        if process.returncode:
            raise RuntimeError(f"the stream ended with code {process.returncode}")
        return rows


def feed(process: subprocess.Popen, num: int) -> None:
    """Write the observations of one path, in pieces, so that this process stays small, too."""
    assert process.stdin is not None
    model, piece = models.ar1(), 10_000
    for start in range(0, num, piece):
        y = simulate(jax.random.key(start), model, {"phi": 0.8}, piece)[1]
        process.stdin.write("".join(f"{value}\n" for value in np.asarray(y)[: num - start]).encode())
    process.stdin.close()


def measure(process: subprocess.Popen, num: int) -> list[dict]:
    """Read the answers, and note the time and the memory at the end of every block."""
    assert process.stdout is not None
    size, rows, start, before = max(1, num // NUM_BLOCKS), [], time.perf_counter(), 0.0
    for count, _ in enumerate(process.stdout, 1):
        if count % size == 0:
            now = time.perf_counter()
            used = processor_seconds(process.pid)
            rows.append(
                {
                    "observations": count,
                    "us each": 1e6 * (now - start) / size,
                    "us of processor each": 1e6 * (used - before) / size,
                    "MiB": memory(process.pid),
                }
            )
            start, before = now, used
    return rows


def memory(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not tell the resident memory")


def processor_seconds(pid: int) -> float:
    """Seconds of processor time that a process has used: what others do on the machine counts little in it."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time


def judge(rows: list[dict]) -> dict:
    """Whether time and memory stayed as they were."""
    times = [row["us of processor each"] for row in rows[1:]]
    halves = times[: len(times) // 2], times[len(times) // 2 :]
    early, late = map(statistics.median, halves)
    fastest = min(halves[1]) / min(halves[0])  # what others do on the machine slows some blocks, and speeds up none
    grown = rows[-1]["MiB"] - rows[len(rows) // 5]["MiB"]
    return {
        "us of processor each, earlier half": early,
        "us of processor each, later half": late,
        "ratio": late / early,
        "ratio of the fastest blocks": fastest,
        "MiB grown since the first fifth": grown,
        "flat time": late / early < 1.1,
        "flat memory": grown < 10,
    }


if __name__ == "__main__":
    main()
