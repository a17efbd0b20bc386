"""What this library's own random numbers (`epf_jax.random`) give end to end over jax's threefry, in the same filters.

Interleaved runs, medians, compile time apart. Only the key that a filter draws with differs.
"""

from unittest import mock

import jax

import epf_jax as epf
from benchmarks.report import save, show
from benchmarks.speed.particle_step import NUM_STEPS, PARTICLES, agreement, ours_bootstrap, ours_epf, race
from benchmarks.speed.peers import THETA
from epf_jax.filters import base

FILTERS = {"bootstrap": ours_bootstrap, "EPF, Taylor 7": ours_epf}
BAR = 1.3


def by_threefry(build, *args):
    """The same run, traced and compiled while filters take the user's key as it is."""
    with mock.patch.object(base, "stream", lambda key: key):
        run = build(*args)
        jax.block_until_ready(run(0))
    return run


def main(repeats: int = 5, *, store: bool = True):
    _, y = epf.simulate(jax.random.key(0), epf.models.sinusoid(), {"theta": THETA}, NUM_STEPS)
    rows = []
    for name, build in FILTERS.items():
        for n, more in PARTICLES.items():
            runs = {"own": build(y, n, None), "threefry": by_threefry(build, y, n, None)}
            seconds, values = race(runs, repeats * more)
            gain = seconds["threefry"] / seconds["own"]
            rows.append(
                {
                    "filter": name,
                    "N": n,
                    **{f"{key}, ns a particle-step": s / (n * NUM_STEPS) * 1e9 for key, s in seconds.items()},
                    "gain": gain,
                    "bar": BAR,
                    "met": gain >= BAR,
                    "z of the log-evidences": agreement(values["own"], values["threefry"]),
                }
            )
    show(f"random numbers: own against threefry on {jax.default_backend()}, SIN, T = {NUM_STEPS}, float32", rows)
    if store:
        print("stored in", save("speed_generator", {"steps": NUM_STEPS, "repeats": repeats, "theta": THETA}, rows))
    return rows


if __name__ == "__main__":
    main()
