"""epf_jax: static parameters of state-space models, learned online, in JAX.

    model = epf.StateSpaceModel(prior, initial, transition, observation)
    filter_ = epf.extended_parameter_filter(model, num_particles=1000)
    results = epf.run(jax.random.key(0), filter_, y)

The README shows the rest; every public name is listed in `__all__`.
"""

from epf_jax import exact, models, plots
from epf_jax._version import __version__
from epf_jax.core.compilation_cache import cache_compiled_programs
from epf_jax.data.series import Panel, Series, from_table, panel
from epf_jax.filters import (
    Filter,
    FilterState,
    StepInfo,
    bootstrap_filter,
    coordinate_kernel,
    covariance_kernel,
    extended_parameter_filter,
    kalman,
    liu_west_filter,
    node_filter,
    online_em,
    parameter_filter,
    particle_learning_filter,
    practical_filter,
    resample_move_filter,
    sigma_points,
    smc2_filter,
    storvik_filter,
)
from epf_jax.learning import Forecaster, Learned, learn, load, save
from epf_jax.models.state_space import StateSpaceModel, simulate
from epf_jax.models.switching import switching
from epf_jax.offline.chains import Chains
from epf_jax.offline.fit import Fit, fit
from epf_jax.offline.particle_gibbs import particle_gibbs
from epf_jax.offline.pmmh import pmmh
from epf_jax.offline.smoothing import Smoothed, smooth
from epf_jax.particles.defensive_proposal import defensive
from epf_jax.particles.devices import across_devices, islands
from epf_jax.particles.gradients import score_gradient, soft_resampling, stop_gradient_resampling, transport_resampling
from epf_jax.particles.laplace_proposal import laplace
from epf_jax.particles.proposals import Proposal, bootstrap, fully_adapted, guided
from epf_jax.particles.quasi_random import in_order, quasi_random
from epf_jax.particles.resampling import multinomial, residual, stratified, systematic, when_ess_below
from epf_jax.running.checkpoints import CheckpointError
from epf_jax.running.diagnosis import Diagnosis, Finding
from epf_jax.running.forecast import Forecast, forecast
from epf_jax.running.records import Diagnostics, History, Summary
from epf_jax.running.replicate import replicate
from epf_jax.running.results import Results
from epf_jax.running.run import run
from epf_jax.running.sweep import sweep
from epf_jax.running.sweep_series import SeriesSweep, sweep_series
from epf_jax.samplers import Sampler, blackjax_sampler, grid_sampler, random_walk, slice_sampler
from epf_jax.statistics import (
    Statistic,
    assumed_density,
    chebyshev,
    conjugate,
    conjugate_blocks,
    decomposed,
    frozen,
    linear_means,
    scale_mixture,
    separable,
    taylor,
    taylor_log_density,
)

__all__ = [
    "Chains",
    "CheckpointError",
    "Diagnosis",
    "Diagnostics",
    "Filter",
    "FilterState",
    "Finding",
    "Fit",
    "Forecast",
    "Forecaster",
    "History",
    "Learned",
    "Panel",
    "Proposal",
    "Results",
    "Sampler",
    "Series",
    "SeriesSweep",
    "Smoothed",
    "StateSpaceModel",
    "Statistic",
    "StepInfo",
    "Summary",
    "__version__",
    "across_devices",
    "assumed_density",
    "blackjax_sampler",
    "bootstrap",
    "bootstrap_filter",
    "cache_compiled_programs",
    "chebyshev",
    "conjugate",
    "conjugate_blocks",
    "coordinate_kernel",
    "covariance_kernel",
    "decomposed",
    "defensive",
    "exact",
    "extended_parameter_filter",
    "fit",
    "forecast",
    "from_table",
    "frozen",
    "fully_adapted",
    "grid_sampler",
    "guided",
    "in_order",
    "islands",
    "kalman",
    "laplace",
    "learn",
    "linear_means",
    "liu_west_filter",
    "load",
    "models",
    "multinomial",
    "node_filter",
    "online_em",
    "panel",
    "parameter_filter",
    "particle_gibbs",
    "particle_learning_filter",
    "plots",
    "pmmh",
    "practical_filter",
    "quasi_random",
    "random_walk",
    "replicate",
    "resample_move_filter",
    "residual",
    "run",
    "save",
    "scale_mixture",
    "score_gradient",
    "separable",
    "sigma_points",
    "simulate",
    "slice_sampler",
    "smc2_filter",
    "smooth",
    "soft_resampling",
    "stop_gradient_resampling",
    "storvik_filter",
    "stratified",
    "sweep",
    "sweep_series",
    "switching",
    "systematic",
    "taylor",
    "taylor_log_density",
    "transport_resampling",
    "when_ess_below",
]
