# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Your own model: from a table to a posterior
#
# A table of yearly counts of an animal, with the winter's temperature and a few missing years. Does a mild winter help
# the population, and how sure are we, year by year? Nothing of this model ships with the library.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import pandas as pd

import epf_jax as epf

QUICK = bool(os.environ.get("EPF_QUICK"))
num_years, num_particles = (60, 2000) if QUICK else (120, 5000)

# %% [markdown]
# Your table would come from `pd.read_csv`; this one is made up, so that the answer is known: an effect of 0.15 per
# standard deviation of temperature.

# %%
rng = np.random.default_rng(1)
temperature = rng.normal(size=num_years)
log_population = [5.0]
for year in range(num_years):
    growth = 1.0 - 0.2 * log_population[-1] + 0.15 * temperature[year]
    log_population.append(log_population[-1] + growth + 0.1 * rng.normal())
counts = np.exp(np.array(log_population[1:]) + 0.15 * rng.normal(size=num_years))
table = pd.DataFrame({"year": 1900 + np.arange(num_years), "count": counts.round(), "temperature": temperature})
table.loc[[10, 11, 37], "count"] = np.nan
print(table.head(13))

# %% [markdown]
# The Gompertz model of population growth on the log scale. `u` is the year's row of `inputs`; a missing count stays NaN.
# Crowding is counted from a usual size, exp(5) animals: counted from one animal, it could hardly be told from growth.

# %%
model = epf.StateSpaceModel(
    prior={
        "growth": dist.Normal(0.0, 0.5),
        "crowding": dist.Normal(-0.2, 0.2),
        "temperature": dist.Normal(0.0, 0.5),
    },
    initial=lambda theta: dist.Normal(5.0, 0.5),
    transition=lambda theta, x, u: dist.Normal(
        x + theta["growth"] + theta["crowding"] * (x - 5.0) + theta["temperature"] * u, 0.1
    ),
    observation=lambda theta, x, u: dist.Normal(x, 0.15),
)
y = jnp.asarray(np.log(table["count"].to_numpy()))
inputs = jnp.asarray(table["temperature"].to_numpy())

filter_ = epf.extended_parameter_filter(model, num_particles)
print(filter_)  # linear in theta with Gaussian noise: the library found the exact statistic by itself
results = epf.run(jax.random.key(0), filter_, y, inputs=inputs)

# %%
figure = epf.plots.plot_theta(
    results, truth={"growth": 0.0, "crowding": -0.2, "temperature": 0.15}, title="what each year taught"
)
plt.show()

# %% [markdown]
# Is it right? Given theta the model is linear and Gaussian, so the Kalman filter gives the exact posterior on a grid.
# And do other random keys agree? Two checks that cost little.

# %%
num = 15 if QUICK else 25
ends = {name: (results.theta.mean[name][-1], results.theta.sd[name][-1]) for name in model.prior}
axes = {name: np.linspace(m - 5 * s, m + 5 * s, num) for name, (m, s) in ends.items()}
exact = epf.exact.kalman(model, y, axes, inputs=inputs)
rows = []
for name in model.prior:
    mean, sd = exact.mean[name][-1], exact.sd[name][-1]
    rows.append(
        {
            "parameter": name,
            "filter": f"{ends[name][0]:.3f} +- {ends[name][1]:.3f}",
            "exact": f"{mean:.3f} +- {sd:.3f}",
            "z": round(float((ends[name][0] - mean) / sd), 2),
        }
    )
print(pd.DataFrame(rows).to_string(index=False))

# %%
several = epf.replicate(jax.random.split(jax.random.key(5), 4), filter_, y, inputs=inputs, levels=())
means = np.asarray(several.theta.mean["temperature"][:, -1])
print("temperature's effect by four keys:", means.round(3), "- posterior sd", float(ends["temperature"][1].round(3)))

# %% [markdown]
# **Answer.** A mild winter helps: the effect's posterior excludes zero, agrees with the exact one, and does not depend on
# the random key by more than a small part of its own width.

# %%
assert abs(rows[2]["z"]) < 0.5
assert float(ends["temperature"][0]) > 2 * float(ends["temperature"][1])
assert means.std() < 0.3 * float(ends["temperature"][1])
