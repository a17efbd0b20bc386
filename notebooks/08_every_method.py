# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Every method on one series: who says what, and at what price?
#
# A linear autoregression seen in noise has an exact posterior, by the Kalman filter on a grid. Every method of the library
# gets the same series and the same model. Which of them may be trusted, and what does each cost?

# %%
import os
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import epf_jax as epf

QUICK = bool(os.environ.get("EPF_QUICK"))
num_steps, scale = (100, 1) if QUICK else (400, 4)

# %%
model = epf.models.ar1()
_, y = epf.simulate(jax.random.key(3), model, {"phi": 0.7}, num_steps)
coarse = epf.exact.kalman(model, y, {"phi": jnp.linspace(-1.0, 1.3, 201)})
exact = epf.exact.kalman(model, y, epf.exact.axes_around(coarse))
mean, sd = float(exact.mean["phi"][-1]), float(exact.sd["phi"][-1])
print(f"exactly: phi = {mean:.3f} +- {sd:.3f} after {num_steps} observations")

# %% [markdown]
# Filters give a posterior after every observation; the two last methods want the whole series, and want it again when an
# observation is added.

# %%
n = 250 * scale
filters = {
    "EPF (default: exact statistic)": epf.extended_parameter_filter(model, n),
    "EPF, Chebyshev": epf.extended_parameter_filter(model, n, statistic=epf.chebyshev(model)),
    "EPF, assumed density": epf.extended_parameter_filter(model, n, statistic=epf.assumed_density(model)),
    "Storvik": epf.storvik_filter(model, n),
    "particle learning": epf.particle_learning_filter(model, n),
    "node filter": epf.node_filter(model, 16),
    "resample-move": epf.resample_move_filter(model, n, max_steps=num_steps),
    "practical filter": epf.practical_filter(model, 25 * scale),
    "SMC^2": epf.smc2_filter(model, 50 * scale, max_steps=num_steps),
    "Liu-West": epf.liu_west_filter(model, n),
    "SIR": epf.bootstrap_filter(model, n),
    "online EM": epf.online_em(model, 50),
}
rows, over_time = {}, {}
for name, filter_ in filters.items():
    epf.run(jax.random.key(1), filter_, y)  # compile
    start = time.perf_counter()
    results = jax.block_until_ready(epf.run(jax.random.key(2), filter_, y))
    rows[name] = [results.theta.mean["phi"][-1], results.theta.sd["phi"][-1], time.perf_counter() - start]
    over_time[name] = np.asarray(results.theta.mean["phi"])

# %%
for name, sample in {"PMMH": epf.pmmh, "particle Gibbs": epf.particle_gibbs}.items():
    start = time.perf_counter()
    results = sample(jax.random.key(2), model, y, num_particles=20, num_draws=250 * scale, num_warmup=100 * scale)
    rows[name] = [results.theta.mean["phi"][-1], results.theta.sd["phi"][-1], time.perf_counter() - start]

table = pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "sd", "seconds"]).astype(float)
table["z"] = (table["mean"] - mean) / sd  # how far off the exact mean, in exact standard deviations
table["sd ratio"] = table["sd"] / sd
print(table.round(3))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), width_ratios=[2, 3])
left.axvspan(-1, 1, color="0.9", label="one exact sd")
left.errorbar(table["z"], np.arange(len(table)), xerr=table["sd ratio"], fmt="o", ms=4)
left.set(yticks=np.arange(len(table)), yticklabels=table.index, xlabel="mean +- sd, in exact sds from the exact mean")
left.invert_yaxis()
left.legend(loc="lower left", fontsize=8)
t = np.arange(1, num_steps + 1)
low, high = (np.asarray(exact.mean["phi"]) + k * np.asarray(exact.sd["phi"]) for k in (-1, 1))
right.fill_between(t, low, high, color="0.9", label="exact, +- sd")
for name in ("EPF (default: exact statistic)", "node filter", "SMC^2", "Liu-West", "SIR", "online EM"):
    right.plot(t, over_time[name], lw=1, label=name)
right.set(xlabel="observations", ylabel="mean of phi", ylim=(mean - 6 * sd, mean + 6 * sd))
right.legend(fontsize=8, ncols=2)
figure.tight_layout()
plt.show()

# %% [markdown]
# **Conclusion.** The methods that redraw theta from exact statistics, the node filter, SMC² and both chains are within a
# fraction of a standard deviation of the exact mean, with its spread. SIR has lost the spread: few of its draws of theta are
# left. Online EM gives a number and no spread by design. Among the right ones, what decides is the price, and whether an
# observation may be added: docs/accuracy.md has all of them on six models, over twenty data sets.

# %%
trusted = [
    "EPF (default: exact statistic)",
    "Storvik",
    "particle learning",
    "node filter",
    "SMC^2",
    "PMMH",
    "particle Gibbs",
]
assert (table.loc[trusted, "z"].abs() < 0.6).all(), table
assert table.loc[trusted, "sd ratio"].between(0.7, 1.4).all(), table
assert table.loc["SIR", "sd ratio"] < 0.7, table
assert table.loc["online EM", "sd"] < 0.1 * sd, table
