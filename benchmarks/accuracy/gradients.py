"""Gradients of the log-evidence against the Kalman filter's, for every choice of gradient through resampling.

The evidence Z of a particle filter is unbiased, so the test of a gradient is E[grad Z] / E[Z] against the exact
gradient of log Z, in standard errors of that ratio of means over many runs. Beside it stands the plain mean of
grad log Z, which is what an optimizer follows, and the sd of one run's. Hyper-parameters: the noise scales of the
transition (q) and of the observation (r), and the mean and sd of phi's prior; phi itself where it is known.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.report import save, show
from epf_jax import exact

NUM_STEPS, NUM_PARTICLES, NUM_RUNS, NUM_TRANSPORT_RUNS = 20, 100, 4000, 400
KNOWN = {"phi": 0.8, "q": 1.0, "r": 0.7}
UNKNOWN = {"mean": 0.3, "sd": 0.5, "q": 1.0, "r": 0.7}
GRID = jnp.linspace(-4.0, 4.0, 801)
RESAMPLERS = {
    "none (systematic)": epf.systematic,
    "stop-gradient": epf.stop_gradient_resampling(),
    "stop-gradient, multinomial": epf.stop_gradient_resampling(epf.multinomial),
    "stop-gradient, ESS below 0.5": epf.stop_gradient_resampling(epf.when_ess_below(0.5)),
    "stop-gradient, memory 0.95": epf.stop_gradient_resampling(memory=0.95),
    "soft, 0.5": epf.soft_resampling(0.5),
}
TRANSPORT = {"transport": epf.transport_resampling()}  # O(N^2) a step: shown once
IN_ORDER = {"none (in order)": epf.in_order(), "stop-gradient, in order": epf.stop_gradient_resampling(epf.in_order())}


def model_of(hyper):
    """AR(1) in noise; phi is known where hyper has it, and has a Gaussian prior elsewhere."""

    def transition(theta, x, u):
        return dist.Normal((hyper["phi"] if "phi" in hyper else theta["phi"]) * x, hyper["q"])

    prior = {} if "phi" in hyper else {"phi": dist.Normal(hyper["mean"], hyper["sd"])}
    return epf.StateSpaceModel(
        prior, lambda theta: dist.Normal(0.0, 1.0), transition, lambda theta, x, u: dist.Normal(x, hyper["r"])
    )


def exact_log_evidence(hyper, y):
    if "phi" in hyper:
        return exact.kalman_log_evidence(model_of(hyper), {}, y)[-1]
    known = jax.vmap(lambda phi: exact_log_evidence({"phi": phi, "q": hyper["q"], "r": hyper["r"]}, y))(GRID)
    log_prior = dist.Normal(hyper["mean"], hyper["sd"]).log_prob(GRID)
    return jax.nn.logsumexp(known + log_prior) + jnp.log(GRID[1] - GRID[0])


def bootstrap(model, num, resample):
    return epf.bootstrap_filter(model, num, resample=resample)


def adapted(model, num, resample):
    return epf.bootstrap_filter(model, num, proposal=epf.fully_adapted(model), resample=resample)


def by_score(model, num, resample):
    return epf.bootstrap_filter(model, num, proposal=epf.score_gradient(epf.bootstrap()), resample=resample)


def epf_by_mh(model, num, resample):
    statistic = epf.taylor(model, 1)
    return epf.extended_parameter_filter(
        model, num, statistic=statistic, proposal=epf.bootstrap(), sampler=epf.random_walk(), resample=resample
    )


def storvik(model, num, resample):
    return epf.storvik_filter(model, num, proposal=epf.bootstrap(), resample=resample)


FILTERS = {
    "bootstrap, phi known": (KNOWN, bootstrap, RESAMPLERS | TRANSPORT),
    "fully adapted, phi known": (KNOWN, adapted, RESAMPLERS),
    "bootstrap by score, phi known": (KNOWN, by_score, RESAMPLERS),
    "SIR": (UNKNOWN, bootstrap, RESAMPLERS),
    "Storvik, bootstrap": (UNKNOWN, storvik, RESAMPLERS),
    "EPF Taylor 1, bootstrap, 1 MH": (UNKNOWN, epf_by_mh, RESAMPLERS),
    "node filter, 100 at each": (UNKNOWN, lambda m, n, r: epf.node_filter(m, n, resample=r), IN_ORDER),
}


def estimates(build, hyper, resample, y, num_runs=NUM_RUNS, num_particles=NUM_PARTICLES, seed=0):
    """For each hyper-parameter: E[grad Z] / E[Z] and its standard error, the mean of grad log Z, the sd of one."""

    def log_evidence(hyper, key):
        return epf.run(key, build(model_of(hyper), num_particles, resample), y, levels=()).log_evidence[-1]

    def many(keys):
        return jax.lax.map(lambda key: jax.value_and_grad(log_evidence)(hyper, key), keys, batch_size=100)

    values, gradients = jax.jit(many)(jax.random.split(jax.random.key(seed), num_runs))
    ratio = np.exp(np.asarray(values) - np.max(values))
    ratio /= ratio.mean()
    found = {}
    for name, gradient in gradients.items():
        gradient = np.asarray(gradient)
        mean = float(np.mean(ratio * gradient))
        error = float(np.sqrt(np.mean((ratio * (gradient - mean)) ** 2) / num_runs))
        found[name] = mean, error, float(np.mean(gradient)), float(np.std(gradient))
    return found


def main():
    with jax.enable_x64(True):
        _, y = epf.simulate(jax.random.key(0), model_of(KNOWN), {}, NUM_STEPS)
        rows = []
        for label, (hyper, build, resamplers) in FILTERS.items():
            wanted = jax.grad(exact_log_evidence)(hyper, y)
            for name, resample in resamplers.items():
                runs = NUM_TRANSPORT_RUNS if name == "transport" else NUM_RUNS
                for parameter, (mean, error, plain, sd) in estimates(build, hyper, resample, y, runs).items():
                    rows.append({
                        "filter": label, "gradient": name, "of": parameter, "exact": float(wanted[parameter]),
                        "E[grad Z] / E[Z]": mean, "standard error": error,
                        "in errors": (mean - float(wanted[parameter])) / error,
                        "mean of grad log Z": plain, "sd of one": sd,
                    })  # fmt: skip
                show(f"{label}, {name}", rows[-len(wanted) :])
    runs = {"runs": NUM_RUNS, "runs of transport": NUM_TRANSPORT_RUNS}
    settings = {"steps": NUM_STEPS, "particles": NUM_PARTICLES, **runs, "known": KNOWN, "unknown": UNKNOWN}
    print("stored in", save("accuracy_gradients", settings, rows))


if __name__ == "__main__":
    main()
