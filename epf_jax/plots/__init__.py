"""Pictures of runs, chains, fits, forecasts and smoothed states. Needs matplotlib: `pip install epf_jax[plots]`."""

from epf_jax.plots.figures import draw_fan, draw_posterior, draw_reference, draw_truth, finish
from epf_jax.plots.forecast_fan import plot_forecast
from epf_jax.plots.over_time import plot_diagnostics, plot_smoothed, plot_states, plot_theta
from epf_jax.plots.overview import plot_overview
from epf_jax.plots.pairs import plot_pairs
from epf_jax.plots.predictive_checks import plot_predictive
from epf_jax.plots.traces import plot_chains, plot_fit

__all__ = [
    "draw_fan",
    "draw_posterior",
    "draw_reference",
    "draw_truth",
    "finish",
    "plot_chains",
    "plot_diagnostics",
    "plot_fit",
    "plot_forecast",
    "plot_overview",
    "plot_pairs",
    "plot_predictive",
    "plot_smoothed",
    "plot_states",
    "plot_theta",
]
