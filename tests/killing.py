"""A feeder of `epf stream --checkpoint` whose process is killed again and again, and what it was told."""

import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}


def start(*arguments):
    command = [sys.executable, "-c", "from epf_jax.cli import main; main()", "stream", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=ENVIRONMENT, text=True)


def feed(process, values):
    """Write the observations, as fast as they are taken, until the process is gone."""
    with contextlib.suppress(BrokenPipeError, OSError):
        for value in values:
            process.stdin.write(f"{value!r}\n")
            process.stdin.flush()
    with contextlib.suppress(BrokenPipeError, OSError):
        process.stdin.close()


class Told:
    """What the feeder was told: the lines by t, and how often it was told otherwise."""

    def __init__(self):
        self.lines, self.num_kills, self.num_early, self.num_torn, self.num_ahead = {}, 0, 0, 0, 0

    def take(self, line):
        resumed = line.pop("resumed", None)
        t = line["t"]
        assert self.lines.setdefault(t, line) == line, f"t = {t} was told in two ways"
        return resumed


def live_once(told, arguments, values, moment, after):
    """One life of the process: fed from where it says it stands, killed `moment` seconds after it starts or answers."""
    acknowledged = max(told.lines, default=0)
    process = start(*arguments)
    if after == "start":
        kill = threading.Timer(moment, process.kill)
        kill.start()
    first = process.stdout.readline()
    if first.endswith("\n"):
        line = json.loads(first)
        told.take(line)
        assert line["t"] >= acknowledged, "an acknowledged observation was lost"
        told.num_ahead += line["t"] > acknowledged
        feeder = threading.Thread(target=feed, args=(process, values[line["t"] :]))
        feeder.start()
        if after == "answer":
            kill = threading.Timer(moment, process.kill)
            kill.start()
        for text in process.stdout:
            if text.endswith("\n"):
                told.take(json.loads(text))
            else:
                told.num_torn += 1
        feeder.join()
    else:
        told.num_early += 1
    code = process.wait()
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    if after is not None:
        kill.cancel()
        told.num_kills += code == -9
    else:
        assert code == 0
    return told


def hammer(arguments, values, num_kills, seed, spare=20):
    """Kill the process so many times at random moments, a fifth of them while it starts; then let it live and end."""
    chance, told, begin = random.Random(seed), Told(), time.monotonic()
    while told.num_kills < num_kills:
        early = chance.random() < 0.2
        live_once(told, arguments, values, chance.uniform(0, 2.5 if early else 0.3), "start" if early else "answer")
        assert max(told.lines, default=0) < len(values), "the observations ran out; give more of them"
    live_once(told, arguments, values[: max(told.lines) + spare], 0, None)
    told.seconds = time.monotonic() - begin
    return told
