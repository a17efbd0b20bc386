# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # The Nile: how much does the river's level wander, and how much is noise?
#
# The flow of the Nile at Aswan, 1871 to 1970: a level that wanders, seen in noise. Both scales are unknown. statsmodels
# gives their maximum likelihood after a hundred years; a filter gives their posterior after every year. Do they agree?

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import statsmodels.api as sm

import epf_jax as epf

QUICK = bool(os.environ.get("EPF_QUICK"))
num_particles = 1000 if QUICK else 10_000

# %%
nile = sm.datasets.nile.load_pandas().data  # in the public domain (Cobb 1978)
years, y = nile["year"].to_numpy(int), jnp.asarray(nile["volume"].to_numpy())
print(nile.describe().loc[["count", "mean", "std", "min", "max"]])

# %% [markdown]
# x_t = x_{t-1} + N(0, level²), y_t = x_t + N(0, noise²), in units of 10⁸ m³ a year. The priors say no more than the order of
# magnitude: a factor of e to either side of 50 and of 100.

# %%
model = epf.StateSpaceModel(
    prior={"level": dist.LogNormal(jnp.log(50.0), 1.0), "noise": dist.LogNormal(jnp.log(100.0), 1.0)},
    initial=lambda theta: dist.Normal(1000.0, 500.0),
    transition=lambda theta, x, u: dist.Normal(x, theta["level"]),
    observation=lambda theta, x, u: dist.Normal(x, theta["noise"]),
)
filter_ = epf.extended_parameter_filter(model, num_particles)
print(filter_)
results = epf.run(jax.random.key(0), filter_, y, diagnostics=True)
print(results.diagnose())

# %%
figure = results.plot(y, title="the Nile, 1871 to 1970")
plt.show()

# %% [markdown]
# Three answers: the filter's posterior, the exact one (the Kalman filter on a grid of both scales), and statsmodels' maximum
# likelihood with its own standard errors, made those of standard deviations.

# %%
grid = 31 if QUICK else 81
axes = {"level": np.geomspace(3.0, 160.0, grid), "noise": np.geomspace(70.0, 190.0, grid)}
exact = epf.exact.kalman(model, y, axes)
fitted = sm.tsa.UnobservedComponents(np.asarray(y, float), "local level").fit(disp=False)
variances = dict(zip(fitted.param_names, zip(fitted.params, fitted.bse, strict=True), strict=True))
rows = []
for name, variance in (("level", "sigma2.level"), ("noise", "sigma2.irregular")):
    value, error = variances[variance]
    low, median, high = (float(q) for q in results.theta.quantiles[name][-1][jnp.array([0, 2, 4])])
    rows.append(
        {
            "scale": name,
            "maximum likelihood": float(np.sqrt(value)),
            "its standard error": float(error / (2 * np.sqrt(value))),
            "filter's mean": float(results.theta.mean[name][-1]),
            "exact mean": float(exact.mean[name][-1]),
            "exact sd": float(exact.sd[name][-1]),
            "filter's 5%": low,
            "median": median,
            "95%": high,
        }
    )
table = pd.DataFrame(rows).set_index("scale")
print(table.T.round(1).to_string())

# %% [markdown]
# The Aswan dam was begun in 1898, and the flow fell. Which years surprised the filter most, one step ahead?

# %%
u = np.asarray(results.diagnostics.pit)
surprise = pd.Series(2 * np.minimum(u, 1 - u), index=years).nsmallest(4)
print("the chance of a year as far out:", surprise.round(3).to_dict())
figure = epf.plots.plot_predictive(results, y, title="one year ahead")
plt.show()

# %%
ahead = epf.forecast(jax.random.key(1), filter_, results.final, 10)
figure = ahead.plot(y, title="ten years ahead")
plt.show()

# %% [markdown]
# **Answer.** The filter agrees with the exact posterior to a fraction of its width, after one pass over the data; and maximum
# likelihood lies within its 90% bands. Where they differ: the likelihood of the level's scale is skewed, so that the
# posterior's mean lies above its maximum, by a third of a standard error or so, and statsmodels' symmetric interval ends short
# of the posterior's on the right. The predictive check finds nothing wrong with 1899 as such: to a wandering level, a dam is
# a bad year or two, and it follows.

# %%
z = (table["filter's mean"] - table["exact mean"]) / table["exact sd"]
print("filter's mean against the exact one, in exact sds:", z.round(2).to_dict())
assert z.abs().max() < (0.5 if QUICK else 0.25)
assert (table["maximum likelihood"] > table["filter's 5%"]).all()
assert (table["maximum likelihood"] < table["95%"]).all()
level = table.loc["level"]
assert level["filter's mean"] > level["maximum likelihood"]
assert level["maximum likelihood"] + 1.645 * level["its standard error"] < level["95%"]
assert not any(finding.kind == "prediction" for finding in results.diagnose())
