"""All models of the breadth table by name; `python -m benchmarks.breadth.models` draws the series of new ones."""

import json

import jax
import numpy as np

import epf_jax as epf
from benchmarks.breadth.entry import SERIES, Case, Entry, stored_series
from benchmarks.breadth.linear import LINEAR
from benchmarks.breadth.non_gaussian import NON_GAUSSIAN
from benchmarks.breadth.nonlinear import NONLINEAR

ENTRIES: dict[str, Entry] = {**LINEAR, **NON_GAUSSIAN, **NONLINEAR}
SEED = 41


def cases(names: list[str] | None = None) -> list[Case]:
    """The models with their stored series; all, where no names are given."""
    return [Case(name, ENTRIES[name]) for name in names or ENTRIES]


def draw(name: str) -> dict[str, list]:
    """The series of a model, and its inputs where it reads any, to six digits."""
    entry, number = ENTRIES[name], sum(map(ord, name))
    if entry.data is not None:
        return {"y": list(entry.data)}
    rng = np.random.default_rng([SEED, number])
    inputs = None if entry.inputs is None else np.round(entry.inputs(rng, entry.num_steps), 4)
    _, y = epf.simulate(
        jax.random.fold_in(jax.random.key(SEED), number), entry.build(), entry.truth, entry.num_steps, inputs=inputs
    )
    y = np.asarray(y, float) if entry.spoil is None else entry.spoil(np.asarray(y, float))
    rounded = np.vectorize(lambda value: float(f"{value:.6g}"))(y).tolist()
    return {"y": rounded} | ({} if inputs is None else {"inputs": inputs.tolist()})


def main() -> None:
    series = dict(stored_series())
    for name in ENTRIES:
        if name not in series:
            series[name] = draw(name)
            print(name, flush=True)
    lines = [json.dumps(name) + ": " + json.dumps(series[name]) for name in ENTRIES]
    SERIES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
