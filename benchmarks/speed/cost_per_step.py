"""Cost per observation as the series grows: it must not.

T = 500 ten times in a row against T = 5000 once, in turns: both take equally long, so that a machine whose clock
wanders slows both alike. Medians over the turns, of the ratios within each turn, too; compile time apart.
"""

import statistics
import time

import jax

import epf_jax as epf
from benchmarks.report import of_this_cpu, save, show

SHORT, LONG, REPEATS, NUM_PARTICLES = 500, 5000, 25, 1000


def seconds_per_step(filter_, y, num_runs: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(num_runs):
        jax.block_until_ready(epf.run(jax.random.key(1), filter_, y))
    return (time.perf_counter() - start) / (num_runs * len(y))


def measure(label, filter_, y):
    for series in (y[:SHORT], y):
        seconds_per_step(filter_, series)  # compile
    turns = [
        (seconds_per_step(filter_, y[:SHORT], LONG // SHORT), seconds_per_step(filter_, y)) for _ in range(REPEATS)
    ]
    short, long = (statistics.median(times) for times in zip(*turns, strict=True))
    ratio = statistics.median(long / short for short, long in turns)
    return {
        "filter": label,
        f"us a step, T = {SHORT}": short * 1e6,
        f"us a step, T = {LONG}": long * 1e6,
        "ratio": ratio,
        "bar": "0.9 to 1.1",
        "met": 0.9 <= ratio <= 1.1,
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
    print("stored in", save(of_this_cpu("cost_per_step"), settings, rows))


if __name__ == "__main__":
    main()
