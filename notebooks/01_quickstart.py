# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Quickstart: what is known of theta, and when?
#
# A state-space model has a hidden state and an unknown parameter. As observations come in, how fast does the posterior of
# the parameter narrow, and can a filter that never looks back follow it?

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro.distributions as dist

import epf_jax as epf

QUICK = bool(os.environ.get("EPF_QUICK"))  # set by the tests
num_steps, num_particles = (100, 200) if QUICK else (1000, 1000)

# %% [markdown]
# A model is a prior and three functions of one particle, each returning a distribution.

# %%
model = epf.StateSpaceModel(
    prior={"theta": dist.Normal(0.0, 0.2)},
    initial=lambda theta: dist.Normal(0.0, 1.0),
    transition=lambda theta, x, u: dist.Normal(jnp.sin(theta["theta"] * x), 1.0),
    observation=lambda theta, x, u: dist.Normal(x, 0.1),
)
x, y = epf.simulate(jax.random.key(0), model, {"theta": 0.7}, num_steps)

# %% [markdown]
# The filter chooses a statistic and a proposal that suit the model; printing it shows which.

# %%
filter_ = epf.extended_parameter_filter(model, num_particles)
print(filter_)
results = epf.run(jax.random.key(1), filter_, y)

# %% [markdown]
# For a scalar state the exact posterior can be had by quadrature, at a cost that no one would pay online. It is the judge.

# %%
nodes = epf.exact.nodes_around(y, half_width=0.8, num_nodes=25)
exact = epf.exact.quadrature(model, y, {"theta": jnp.linspace(-1.0, 1.3, 47 if QUICK else 116)}, nodes)
figure = epf.plots.plot_theta(results, exact=exact, truth={"theta": 0.7}, title="p(theta | y_1:t)")
plt.show()

# %%
z = (results.theta.mean["theta"][-1] - exact.mean["theta"][-1]) / exact.sd["theta"][-1]
print(
    f"after {num_steps} observations: filter {results.theta.mean['theta'][-1]:.3f}, exact {exact.mean['theta'][-1]:.3f}"
)
print(f"the filter's mean is {abs(float(z)):.2f} exact standard deviations from the exact mean")
# A fully adapted filter with N particles errs by about sd / sqrt(N) times a small factor for the paths that it lost:
# 0.07 sd at N = 200. Five times that, at every tenth observation, is a wide margin.
z_t = (results.theta.mean["theta"][9::10] - exact.mean["theta"][9::10]) / exact.sd["theta"][9::10]
assert jnp.max(jnp.abs(z_t)) < 0.35

# %% [markdown]
# One observation at a time, the numbers are the same, to rounding.

# %%
key_init, key_steps = jax.random.split(jax.random.key(1))
state = filter_.init(key_init)
for t in range(1, 6):
    state, info = filter_.step(jax.random.fold_in(key_steps, t), state, y[t - 1])
assert jnp.allclose(state.log_evidence, results.log_evidence[4], rtol=1e-4)

# %% [markdown]
# **Answer.** The band narrows like one over the square root of t once the data outweigh a prior that puts the true value
# 3.5 standard deviations out, and the filter stays on the exact posterior all along, at a constant cost per observation.
