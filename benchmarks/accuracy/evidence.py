"""Log-evidence against Kalman, for every resampler at ESS thresholds 0, .1, .5 and 1.

A particle filter's evidence estimate is unbiased, resampling or not: the mean of exp(estimate - exact) over many runs
is 1. A row's error is that mean less 1 in its own standard errors. A wrong evidence where a step does not resample is
the classic bug of this field.
"""

import jax
import jax.numpy as jnp
import numpy as np

import epf_jax as epf
from benchmarks.report import save, show
from epf_jax import exact

NUM_STEPS, NUM_PARTICLES, NUM_RUNS = 12, 256, 400
RESAMPLERS = {
    "multinomial": epf.multinomial,
    "systematic": epf.systematic,
    "stratified": epf.stratified,
    "residual": epf.residual,
}
FILTERS = {
    "bootstrap, theta known": lambda m, r: epf.bootstrap_filter(m, NUM_PARTICLES, theta={"phi": 0.8}, resample=r),
    "SIR": lambda m, r: epf.bootstrap_filter(m, NUM_PARTICLES, resample=r),
    "Storvik, bootstrap": lambda m, r: epf.storvik_filter(m, NUM_PARTICLES, proposal=epf.bootstrap(), resample=r),
    # its weights are nearly equal: below threshold 1 it never resamples, as its column shows
    "Storvik, fully adapted": lambda m, r: epf.storvik_filter(m, NUM_PARTICLES, resample=r),
}
THRESHOLDS = (0.0, 0.1, 0.5, 1.0)


def error(filter_, y, log_evidence, seed=0, num_runs=NUM_RUNS):
    """Mean of exp(estimate - exact) less one, its standard error, and the share of steps that resampled."""
    keys = jax.random.split(jax.random.key(seed), num_runs)
    results = epf.replicate(keys, filter_, y, levels=())
    ratio = np.exp(np.asarray(results.log_evidence[:, -1], float) - log_evidence)
    return float(ratio.mean() - 1.0), float(ratio.std(ddof=1) / np.sqrt(num_runs)), float(results.resampled.mean())


def main():
    with jax.enable_x64(True):
        model = epf.models.ar1(observation_noise=1.0)
        _, y = epf.simulate(jax.random.key(4), model, {"phi": 0.8}, NUM_STEPS)
        known = float(exact.kalman_log_evidence(model, {"phi": 0.8}, y)[-1])
        unknown = float(exact.kalman(model, y, {"phi": jnp.linspace(-3.0, 3.0, 401)}).log_evidence[-1])
        rows = []
        for label, build in FILTERS.items():
            for name, scheme in RESAMPLERS.items():
                for threshold in THRESHOLDS:
                    filter_ = build(model, epf.when_ess_below(threshold, scheme))
                    bias, se, share = error(filter_, y, known if "known" in label else unknown)
                    rows.append({
                        "filter": label, "resampler": name, "threshold": threshold,
                        "share resampled": share, "mean ratio - 1": bias, "standard error": se, "in errors": bias / se,
                        "met": abs(bias) <= 4 * se,
                    })  # fmt: skip
            show(label, rows[-16:])
    settings = {"steps": NUM_STEPS, "particles": NUM_PARTICLES, "runs": NUM_RUNS, "bar": "within 4 standard errors"}
    print("stored in", save("accuracy_evidence", settings, rows))


if __name__ == "__main__":
    main()
