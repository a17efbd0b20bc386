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
    command = [sys.executable, "-c", "from epf_jax.apps.cli import main; main()", "stream", *map(str, arguments)]
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
        self.lines, self.num_kills, self.num_before, self.num_torn, self.num_ahead = {}, 0, 0, 0, 0

    def take(self, line):
        resumed = line.pop("resumed", None)
        t = line["t"]
        assert self.lines.setdefault(t, line) == line, f"t = {t} was told in two ways"
        return resumed


def live_once(told, arguments, values, kill):
    """One life of the process: fed from where it says it stands, and killed as `kill` says.

    Args:
        told: what it has told so far.
        arguments: of the command.
        values: all observations.
        kill: (number of lines to wait for, seconds to wait after that), or None to let it live.
    """
    acknowledged, num_lines, feeder = max(told.lines, default=0), 0, None
    process = start(*arguments)

    def kill_if_due():
        if kill is not None and num_lines == kill[0]:
            threading.Timer(kill[1], process.kill).start()

    kill_if_due()
    for text in process.stdout:
        if not text.endswith("\n"):
            told.num_torn += 1  # the line was being written
            continue
        line = json.loads(text)
        told.take(line)
        if feeder is None:
            assert line["t"] >= acknowledged, "an acknowledged observation was lost"
            told.num_ahead += line["t"] > acknowledged
            feeder = threading.Thread(target=feed, args=(process, values[line["t"] :]))
            feeder.start()
        num_lines += 1
        kill_if_due()
    code = process.wait()
    assert code == (0 if kill is None else -9)
    told.num_kills += code == -9
    told.num_before += code == -9 and num_lines < 2
    if feeder is not None:
        feeder.join()
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def hammer(arguments, values, num_kills, seed, spare=20):
    """Kill the process so many times at random moments; then let it live, and end its input.

    One in five dies while it starts or compiles, before it has counted anything; the others after some answers, at a
    random moment of the few milliseconds that it takes to count, keep and answer one more.
    """
    chance, told, begin = random.Random(seed), Told(), time.monotonic()
    for _ in range(num_kills):
        early = chance.random() < 0.2
        kill = (
            (chance.randint(0, 1), chance.uniform(0, 2.5))
            if early
            else (chance.randint(2, 30), chance.uniform(0, 0.05))
        )
        live_once(told, arguments, values, kill)
        assert max(told.lines, default=0) < len(values) - spare, "the observations ran out; give more of them"
    live_once(told, arguments, values[: max(told.lines) + spare], None)
    told.seconds = time.monotonic() - begin
    return told
