"""What a gradient of the log-evidence costs: seconds and memory, with and without rematerialisation.

SIN, EPF of order 7, N = 1000, T = 10000, float32, stop-gradient resampling. Memory is what XLA sets aside for
temporaries of the compiled program; seconds are medians of interleaved runs, compile time apart.
"""

import jax

import epf_jax as epf
from benchmarks.report import save, show
from benchmarks.speed.racing import race

NUM_PARTICLES, NUM_STEPS, REPEATS = 1000, 10_000, 3
SEGMENTS = (None, 30, 100, 300)


def evidence(noise, key, y, remat_every):
    model = epf.models.sinusoid(noise=noise)
    resample = epf.stop_gradient_resampling()
    filter_ = epf.extended_parameter_filter(
        model, NUM_PARTICLES, statistic=epf.taylor(model, 7), proposal=epf.bootstrap(), resample=resample
    )
    return epf.run(key, filter_, y, levels=(), remat_every=remat_every).log_evidence[-1]


def main():
    _, y = epf.simulate(jax.random.key(0), epf.models.sinusoid(), {"theta": 0.7}, NUM_STEPS)
    key = jax.random.key(1)
    functions = {("evidence", None): jax.jit(lambda noise, key: evidence(noise, key, y, None))}
    for every in SEGMENTS:
        one = jax.value_and_grad(lambda noise, key, every=every: evidence(noise, key, y, every))
        functions["gradient", every] = jax.jit(one)
    programs = {name: function.lower(1.0, key).compile() for name, function in functions.items()}
    first = lambda program: lambda seed: jax.tree.leaves(program(1.0, jax.random.key(seed)))[0]  # noqa: E731
    taken = race({name: first(program) for name, program in programs.items()}, REPEATS)
    forward = taken["evidence", None].seconds
    rows = []
    for (what, every), program in programs.items():
        seconds = taken[what, every].seconds
        mebibytes = program.memory_analysis().temp_size_in_bytes / 2**20
        row = {"what": what, "remat_every": every or "-", "seconds": seconds, "over the evidence": seconds / forward}
        rows.append(row | {"temporary MiB": mebibytes, "under 2 GiB": mebibytes < 2048})
    show(f"gradient through T = {NUM_STEPS}, N = {NUM_PARTICLES}", rows)
    name = "gradient_gpu" if jax.default_backend() == "gpu" else "gradient"
    settings = {"particles": NUM_PARTICLES, "steps": NUM_STEPS, "repeats": REPEATS}
    print("stored in", save(f"speed_{name}", settings, rows))


if __name__ == "__main__":
    main()
