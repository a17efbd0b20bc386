"""Cost per observation as the series grows: it must not.

Interleaved runs of T = 500 and T = 5000, medians, compile time apart.
"""

import statistics
import time

import jax

import epf_jax as epf
from benchmarks.report import save, show

SHORT, LONG, REPEATS, NUM_PARTICLES = 500, 5000, 9, 1000


def seconds_per_step(filter_, y) -> float:
    start = time.perf_counter()
    jax.block_until_ready(epf.run(jax.random.key(1), filter_, y))
    return (time.perf_counter() - start) / len(y)


def measure(label, filter_, y):
    for series in (y[:SHORT], y):
        seconds_per_step(filter_, series)  # compile
    pairs = [(seconds_per_step(filter_, y[:SHORT]), seconds_per_step(filter_, y)) for _ in range(REPEATS)]
    short, long = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "filter": label,
        f"us a step, T = {SHORT}": short * 1e6,
        f"us a step, T = {LONG}": long * 1e6,
        "ratio": long / short,
        "bar": "0.9 to 1.1",
        "met": 0.9 <= long / short <= 1.1,
    }


def main():
    model = epf.models.sinusoid()
    _, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, LONG)
    rows = [
        measure("EPF default", epf.extended_parameter_filter(model, NUM_PARTICLES), y),
        measure(
            "EPF literal (Taylor 7)",
            epf.extended_parameter_filter(
                model, NUM_PARTICLES, statistic=epf.taylor(model, 7), proposal=epf.bootstrap(), resample=epf.multinomial
            ),
            y,
        ),
        measure("Liu-West", epf.liu_west_filter(model, NUM_PARTICLES), y),
        measure("bootstrap, theta known", epf.bootstrap_filter(model, NUM_PARTICLES, theta={"theta": 0.7}), y),
    ]
    show("cost per observation, SIN, N = 1000, float32", rows)
    settings = {"short": SHORT, "long": LONG, "repeats": REPEATS, "particles": NUM_PARTICLES}
    print("stored in", save("cost_per_step", settings, rows))


if __name__ == "__main__":
    main()
