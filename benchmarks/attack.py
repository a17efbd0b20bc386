"""An attack on what the library promises: no silent wrong number, no lost state.

    python -m benchmarks.attack                   # every attack, at most ten minutes
    python -m benchmarks.attack --seconds 60      # as much of each as fits a minute
    python -m benchmarks.attack --only streams
    python -m benchmarks.attack --store           # and keep the counts for the docs

Every attack tries something many times and counts what came out wrong without a word, or was lost. It stops when its
share of the time that is left is spent. The exit status is 1 if anything was wrong.
"""

import argparse
import itertools
import json
import pathlib
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from typer.testing import CliRunner

import epf_jax as epf
from benchmarks import report
from epf_jax.apps.commands import app
from epf_jax.data.tables import read_csv
from epf_jax.data.text_lines import LineError, LineReader
from epf_jax.running.streaming import Stream

Outcome = str | None  # what was wrong, or None
KEY = jax.random.key(0)
NUM_DAMAGED, NUM_LINES, NUM_TABLES, NUM_KILLED = 400, 4000, 400, 60


def model_of(mean=lambda a, x, u: a * x, noise=1.0, sensor=1.0, prior=0.5, start=1.0, seen=lambda x: x):
    """A small model; every argument makes another."""
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, prior)},
        initial=lambda theta: dist.Normal(0.0, start),
        transition=lambda theta, x, u: dist.Normal(mean(theta["a"], x, u), noise),
        observation=lambda theta, x, u: dist.Normal(seen(x), sensor),
    )


def _loop(order):
    return lambda a, x, u: jax.lax.fori_loop(0, 3, lambda i, c: order(c[0], c[1]), (a * x, x))[0]


def _until(swapped):
    def mean(a, x, u):
        low, high = (1.0, -1.0) if swapped else (-1.0, 1.0)
        return jax.lax.while_loop(lambda c: (low * a < c) & (c < high * a), lambda c: c + 0.5 * a, a * x)

    return mean


def _host(function):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return lambda a, x, u: jax.pure_callback(function, shape, a * x, vmap_method="expand_dims")


DIFFERENT = [
    model_of(),
    model_of(noise=1.1),
    model_of(sensor=1.1),
    model_of(prior=0.6),
    model_of(start=1.1),
    model_of(seen=lambda x: 1.01 * x),
    model_of(lambda a, x, u: a * x + 1e-2),
    model_of(lambda a, x, u: a * x + jnp.where(x > 50.0, 1.0, 0.0)),
    model_of(_loop(lambda c, d: (c + 0.1 * d, d))),
    model_of(_loop(lambda c, d: (d, c + 0.1 * d))),
    model_of(_until(False)),
    model_of(_until(True)),
    model_of(_host(lambda v: np.float32(np.sin(v)))),
    model_of(_host(lambda v: np.float32(np.cos(v)))),
]


def pairs(folder: pathlib.Path) -> Iterator[Outcome]:
    """Models that differ must not share a checkpoint without a word."""
    filters = [epf.bootstrap_filter(model, 4) for model in DIFFERENT]
    for i, filter_ in enumerate(filters):
        epf.save(folder / f"{i}", filter_.init(KEY), filter_)
        for j in range(i):
            for path, other in ((folder / f"{j}", filter_), (folder / f"{i}", filters[j])):
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        epf.load(path, other)
                    yield f"model {path.name}'s state was taken as the other's of {i} and {j}"
                except (epf.CheckpointError, RuntimeWarning):
                    yield None


def damaged(folder: pathlib.Path) -> Iterator[Outcome]:
    """A damaged file is a CheckpointError, whatever is wrong with it."""
    filter_, chance = epf.bootstrap_filter(DIFFERENT[0], 4), random.Random(0)
    path = folder / "damaged"
    epf.save(path, filter_.init(KEY), filter_)
    whole = path.read_bytes()
    for i in range(NUM_DAMAGED):
        path.write_bytes(_damage(whole, chance, i))
        try:
            epf.load(path, filter_)
            yield None if path.read_bytes() == whole else "a damaged file was read"
        except epf.CheckpointError:
            yield None
        except Exception as error:
            yield f"{type(error).__name__}: {error}"


def _damage(whole: bytes, chance: random.Random, i: int) -> bytes:
    """The file cut short, with bytes changed, or with another header under a right checksum."""
    import hashlib

    if i % 3 == 0:
        return whole[: chance.randrange(len(whole))]
    changed = bytearray(whole)
    if i % 3 == 1:
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    begin = whole.index(b"\n") + 1
    body = whole[begin + 40 :]
    end = 8 + int.from_bytes(body[:8], "little")
    header = bytearray(body[8:end])
    for _ in range(chance.randrange(1, 4)):
        header[chance.randrange(len(header))] = chance.choice(b'0"{}[],:a-')
    arrays = _arrays_of(header)
    if arrays == _arrays_of(body[8:end]):  # a word of the settings that still says the same is no damage
        return whole[:-1]
    body = body[:8] + bytes(header) + body[end:]
    return whole[:begin] + whole[begin : begin + 8] + hashlib.sha256(body).digest() + body


def _arrays_of(header: bytes) -> object:
    try:
        return json.loads(header)["arrays"]
    except Exception:
        return None


def streams(folder: pathlib.Path) -> Iterator[Outcome]:
    """A stream that is killed anywhere and goes on tells what one tells that never stopped."""
    filter_, chance = epf.bootstrap_filter(DIFFERENT[0], 8), random.Random(1)
    lines = [f"{value:.3f}".encode() for value in np.sin(np.arange(24.0))]

    def told(path, values, every, replay):
        stream, reader, answers, kept = Stream(filter_, 0, path), LineReader((), dtype=np.float32), [], []
        for value in values[stream.t if replay else 0 :]:
            answers.append(stream.take(reader.read(value)))
            if len(answers) % every == 0:
                stream.save()
                kept = list(answers)
        return kept, stream

    expected, _ = told(None, lines, 1, False)
    for i in range(NUM_KILLED):
        path, every, replay = folder / f"stream-{i}", chance.choice([1, 3]), i % 2 == 0
        found: list[object] = []
        while len(found) < len(lines):
            alive = chance.randrange(every, 12)  # observations until it is killed, before it could save the last ones
            first = 0 if replay else len(found)
            kept, _ = told(path, lines[first : len(found) + alive], every, replay)
            if not kept:
                break
            found += kept
            if len(lines) - len(found) < every:
                break
        whole = expected[: len(found)]
        yield None if found == whole and len(lines) - len(found) < every else f"stream {i} lost or changed a line"


def lines(folder: pathlib.Path) -> Iterator[Outcome]:
    """A malformed line is refused in words or holds numbers; it is nothing else."""
    chance = random.Random(2)
    seeds = [
        "1.5",
        "1.5,2.5",
        "[1.5, null]",
        '{"y": 1.5}',
        '{"y": 1.5, "dt": 0.1}',
        "y,z",
        "",
        "NaN",
        "1e999",
        '{"e": 3}',
    ]
    for _ in range(NUM_LINES):
        line = bytearray(chance.choice(seeds).encode())
        for _ in range(chance.randrange(4)):
            line.insert(chance.randrange(len(line) + 1), chance.choice(b'0.,"{}[]:-eny\x00\xff \t'))
        try:
            found = LineReader((), dtype=np.float32).read(bytes(line))
            counted = found is not None and line.startswith(b"{") and b'"y"' not in line
            yield f"{bytes(line)!r} was counted" if counted else None
        except LineError:
            yield None
        except Exception as error:
            yield f"{bytes(line)!r}: {type(error).__name__}: {error}"


def tables(folder: pathlib.Path) -> Iterator[Outcome]:
    """A malformed table is refused in words."""
    chance, path = random.Random(3), folder / "table.csv"
    text = "day,y,u\n" + "".join(f"2024-01-{day:02d},{day / 7:.3f},1\n" for day in range(1, 9))
    for _ in range(NUM_TABLES):
        changed = bytearray(text.encode())
        for _ in range(chance.randrange(1, 5)):
            changed[chance.randrange(len(changed))] = chance.choice(b'0a,"\n-\xff;. ')
        path.write_bytes(bytes(changed))
        try:
            table, _ = read_csv(path)
            epf.from_table(table, "y", time="day", unit=chance.choice([None, "days", "months"]), inputs="u")
            yield None
        except (ValueError, TypeError):
            yield None
        except Exception as error:
            yield f"{type(error).__name__}: {error}"


def kinds(folder: pathlib.Path) -> Iterator[Outcome]:
    """Numbers of every kind, at every door, are those of float64."""
    level = _level_from()
    whole = [3_000_000_000, 5_000_000_000, 1_000_000_000, 4_000_000_000]
    given = {
        "int64": np.array(whole),
        "uint64": np.array(whole, np.uint64),
        "list": whole,
        "big-endian": np.array(whole, ">i8"),
        "longdouble": np.array(whole, np.longdouble),
        "Decimal": [Decimal(number) for number in whole],
        "Fraction": [Fraction(number) for number in whole],
    }
    filter_, axes = epf.storvik_filter(level, 64), {"a": np.linspace(-2e10, 2e10, 41)}
    keys = jax.random.split(KEY, 2)
    short = {"num_draws": 4, "num_warmup": 4, "num_particles": 4, "num_chains": 2}
    of_start = {"filter_of": lambda model: epf.storvik_filter(model, 16), "num_steps": 2}
    doors: dict[str, Callable] = {
        "run": lambda y: epf.run(KEY, filter_, y).log_evidence,
        "inputs of run": lambda y: epf.run(KEY, filter_, np.array(whole, float), inputs=y).log_evidence,
        "replicate": lambda y: epf.replicate(keys, filter_, y).log_evidence,
        "step": lambda y: filter_.step(KEY, filter_.init(KEY), y[0])[0].log_evidence,
        "kalman": lambda y: epf.exact.kalman(level, y, axes).log_evidence,
        "learn": lambda y: epf.learn(KEY, level, y).log_evidence,
        "fit": lambda y: epf.fit(_level_from, np.float32(1e9), y, **of_start).log_evidence,
        "pmmh": lambda y: epf.pmmh(KEY, level, y, **short).theta.mean["a"],
        "particle_gibbs": lambda y: epf.particle_gibbs(KEY, level, y, **short).theta.mean["a"],
    }
    for name, door in doors.items():
        expected = np.asarray(door(np.array(whole, float)))
        for kind, y in given.items():
            found = np.asarray(door(y))
            yield None if np.array_equal(found, expected, equal_nan=True) else f"{name} of {kind}: {found}, {expected}"
    yield from _kinds_of_text(folder, whole)


def _level_from(start: Any = 1e9) -> epf.StateSpaceModel:
    """A level in units of 1e9, whose first state has the sd `start`."""
    return epf.StateSpaceModel(
        prior={"a": dist.Normal(0.0, 1e10)},
        initial=lambda theta: dist.Normal(theta["a"], start),
        transition=lambda theta, x, u: dist.Normal(theta["a"] + 0.0 * u, 1e9),
        observation=lambda theta, x, u: dist.Normal(x, 1e9),
    )


def _kinds_of_text(folder: pathlib.Path, whole: list[int]) -> Iterator[Outcome]:
    """The same numbers on the command line, in other digits."""
    model = folder / "level.py"
    model.write_text("from benchmarks.attack import _level_from\n\nmodel = _level_from()\n")

    def told(name: str, digits: Callable) -> str:
        data = folder / f"{name}.csv"
        data.write_text("\n".join(["y", *map(digits, whole)]) + "\n")
        command = ["fit", f"{model}:model", str(data), "--method", "storvik", "--particles", "64", "--no-smooth"]
        done = CliRunner().invoke(app, [*command, "--output", str(folder / name)])
        return (folder / name / "parameters.csv").read_text() if done.exit_code == 0 else done.output

    expected = told("float", lambda number: f"{number:.1f}")
    for name, digits in {"whole": str, "exponent": "{:e}".format}.items():
        found = told(name, digits)
        yield None if found == expected and "a," in found else f"epf fit of {name}: {found}, {expected}"


def evidence(folder: pathlib.Path) -> Iterator[Outcome]:
    """The evidence is unbiased by eight resamplers, five proposals and both precisions: 100 keys against Kalman's."""
    resamplers = {
        "systematic": epf.systematic,
        "multinomial": epf.multinomial,
        "stratified": epf.stratified,
        "residual": epf.residual,
        "when_ess_below": epf.when_ess_below(0.5, epf.systematic),
        "in_order": epf.in_order(epf.systematic),
        "soft": epf.soft_resampling(0.5),
        "stop_gradient": epf.stop_gradient_resampling(),
    }
    model, theta = epf.models.ar1(), {"phi": 0.8}
    proposals = {
        "bootstrap": epf.bootstrap(),
        "adapted": epf.fully_adapted(model),
        "laplace": epf.laplace(model),
        "guided": epf.guided(lambda theta, x_prev, y, u: dist.Normal(0.5 * (theta["phi"] * x_prev + y), 1.0)),
        "quasi-random": epf.quasi_random(epf.bootstrap()),
    }
    for x64 in (False, True):
        with jax.enable_x64(x64):
            y = epf.simulate(KEY, model, theta, 10)[1]
            exact = float(epf.exact.kalman_log_evidence(model, theta, y)[-1])
            for (name, resample), (kind, proposal) in itertools.product(resamplers.items(), proposals.items()):
                if kind == "quasi-random" and name != "in_order":  # which the library refuses
                    continue
                filter_ = epf.bootstrap_filter(model, 50, theta=theta, proposal=proposal, resample=resample)
                found = epf.replicate(jax.random.split(KEY, 100), filter_, y, levels=()).log_evidence[:, -1]
                ratio = np.exp(np.asarray(found, float) - exact)
                off = abs(ratio.mean() - 1.0) / (ratio.std() / 10.0)  # in standard errors; four are one in 16000
                yield None if off < 4.0 else f"{name}, {kind}, x64 {x64}: {off:.1f} standard errors off"


ATTACKS = (pairs, damaged, streams, lines, tables, kinds, evidence)


def attacked(attack: Callable, folder: pathlib.Path, seconds: float) -> dict[str, Any]:
    """How often an attack was tried within its time, and how often it found something, which is printed."""
    end, outcomes, whole = time.monotonic() + seconds, [], True
    for outcome in attack(folder):
        outcomes.append(outcome)
        if time.monotonic() > end:
            whole = False
            break
    found = [outcome for outcome in outcomes if outcome is not None]
    kind, other = ("lost", "wrong") if attack is streams else ("wrong", "lost")
    print(f"{attack.__name__:10} tried {len(outcomes):5}  {kind} {len(found):3}{'' if whole else '  out of time'}")
    for outcome in found[:5]:
        print(f"    {outcome[:200]}", flush=True)
    told = " ".join((attack.__doc__ or "").split())
    return {
        "attack": attack.__name__,
        "promise": told,
        "tried": len(outcomes),
        kind: len(found),
        other: 0,
        "whole": whole,
    }


def main() -> None:
    """Every attack in turn, and what was tried and what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--only", choices=[attack.__name__ for attack in ATTACKS])
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    chosen = [attack for attack in ATTACKS if options.only in (None, attack.__name__)]
    for told in ("The chains disagree", ".*the code of the model, or an option"):
        warnings.filterwarnings("ignore", message=told)
    end, rows = time.monotonic() + options.seconds, []
    with tempfile.TemporaryDirectory() as folder:
        for left, attack in zip(range(len(chosen), 0, -1), chosen, strict=True):
            rows.append(attacked(attack, pathlib.Path(folder), (end - time.monotonic()) / left))
    if options.store:
        report.save("attack", {"seconds": options.seconds}, rows)
    sys.exit(any(row["wrong"] or row["lost"] for row in rows))


if __name__ == "__main__":
    main()
