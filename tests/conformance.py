"""The conformance lists: every statistic, sampler, resampler and filter joins one, and is then tested like the rest.

An entry is a function that builds the thing, so that each test can build it in its own precision.
"""

import blackjax
import jax.numpy as jnp
import numpyro.distributions as dist
import pytest

import epf_jax as epf


def scalar_theta():
    """theta a scalar."""
    return epf.StateSpaceModel(
        prior=dist.Normal(0.0, 0.5),
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta * x, 1.0),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )


def vector_theta():
    """theta a vector, the state a vector, noise correlated, a partial observation."""
    covariance = jnp.array([[0.5, 0.2], [0.2, 0.4]])
    return epf.StateSpaceModel(
        prior=dist.Normal(jnp.zeros(2), 0.5).to_event(1),
        initial=lambda theta: dist.Normal(jnp.zeros(2), 1.0).to_event(1),
        transition=lambda theta, x, u: dist.MultivariateNormal(
            jnp.stack([theta[0] * x[0] + 0.1 * x[1], theta[1] * x[1]]), covariance, validate_args=False
        ),
        observation=lambda theta, x, u: dist.Normal(x, 0.3).to_event(1),
    )


def dict_theta():
    """theta a dict, one entry in the transition and one in the observation."""
    return epf.StateSpaceModel(
        prior={"phi": dist.Normal(0.0, 0.5), "offset": dist.Normal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, 1.0),
        observation=lambda theta, x, u: dist.Normal(x + theta["offset"], 0.5),
    )


def noise_theta():
    """theta a noise scale."""
    return epf.StateSpaceModel(
        prior={"noise": dist.LogNormal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(0.5 * x, theta["noise"]),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )


ANY = {"scalar": scalar_theta, "vector": vector_theta, "dict": dict_theta}  # for which every part is made
MODELS = ANY | {"noise": noise_theta}
TRUTHS = {"noise": {"noise": 1.5}, "scalar": 0.7, "vector": jnp.array([0.7, 0.4]), "dict": {"phi": 0.7, "offset": 0.5}}


def _separable(model):
    theta = model.prior
    if isinstance(theta, dict):
        return epf.separable(
            model,
            lambda x, u: x[None],
            lambda theta: theta["phi"][None],
            observation_features=lambda x, u: jnp.stack([x, jnp.ones_like(x)]),
            observation_coefficients=lambda theta: jnp.stack([jnp.ones_like(theta["offset"]), theta["offset"]]),
        )
    if theta.event_shape == (2,):
        return epf.separable(
            model,
            lambda x, u: (
                jnp.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]) * jnp.array([x[0], 0.0, x[1]])[:, None]
                + jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]) * 0.1 * x[1]
            ),
            lambda theta: jnp.stack([theta[0], jnp.ones_like(theta[0]), theta[1]]),
        )
    return epf.separable(model, lambda x, u: x[None], lambda theta: theta[None])


RESAMPLERS = {
    "multinomial": epf.multinomial,
    "systematic": epf.systematic,
    "stratified": epf.stratified,
    "residual": epf.residual,
}

COMPILES_LONG = ("conjugate_blocks", "taylor", "assumed_density_mixture")  # on vectors; quick runs take the first model


NOISE_TOO = (  # parts that a noise scale with a log-normal prior is for
    *(
        "linear_means",
        "decomposed",
        "taylor",
        "chebyshev",
        "assumed_density",
        "assumed_density_mixture",
    ),
    *("epf", "epf_chebyshev_adaptive", "liu_west_auxiliary", "resample_move", "smc2_kalman", "nodes", "online_em"),
)


def one_model_each(names, models=tuple(ANY), *, quick_names=None):
    """Every name on every model that it is for; quick runs take each name (of `quick_names`) on one model in turn."""
    listed = []
    for i, name in enumerate(names):
        also = ("noise",) if len(models) > 1 and name in NOISE_TOO else ()
        turn = len(models) if name == "linear_means" else 0 if name in COMPILES_LONG else i % len(models)
        for j, model in enumerate((*models, *also)):
            chosen = quick_names is None or name in quick_names
            listed.append(pytest.param(name, model, marks=[] if chosen and j == turn else [pytest.mark.slow]))
    return listed


STATISTICS = {
    "conjugate": epf.conjugate,
    "conjugate_blocks": epf.conjugate_blocks,
    "separable": _separable,
    "scale_mixture": epf.scale_mixture,
    "taylor": lambda model: epf.taylor(model, order=2),
    "taylor_log_density": lambda model: epf.taylor_log_density(model, order=3),
    "chebyshev": lambda model: epf.chebyshev(model, 8),
    "chebyshev_fixed_box": lambda model: epf.chebyshev(model, 8, shrink=None),
    "linear_means": epf.linear_means,
    "decomposed": epf.decomposed,
    "assumed_density": epf.assumed_density,
    "assumed_density_mixture": lambda model: epf.assumed_density(model, num_components=3),
    "frozen": epf.frozen,
}
EXACT_WHEN_LINEAR = [
    "conjugate",
    "conjugate_blocks",
    "scale_mixture",
    "separable",
    "linear_means",
    "decomposed",
    "taylor",
    "taylor_log_density",
    "chebyshev_fixed_box",
]

SAMPLERS = {
    "random_walk": epf.random_walk,
    "random_walk_fixed_step": lambda: epf.random_walk(0.3),
    "random_walk_four_steps": lambda: epf.random_walk(num_steps=4),
    "slice_sampler": epf.slice_sampler,
    "grid_sampler": epf.grid_sampler,
    "blackjax_random_walk": lambda: epf.blackjax_sampler(blackjax.normal_random_walk, sigma=1.7, num_steps=2),
    "blackjax_mala": lambda: epf.blackjax_sampler(blackjax.mala, step_size=0.7),
    "blackjax_barker": lambda: epf.blackjax_sampler(blackjax.barker, step_size=1.5),
    "blackjax_hmc": lambda: epf.blackjax_sampler(blackjax.hmc, step_size=0.6, num_integration_steps=3),
    "blackjax_nuts": lambda: epf.blackjax_sampler(blackjax.nuts, step_size=0.6),
    "blackjax_coordinate_slice": lambda: epf.blackjax_sampler(blackjax.coordinate_slice, initial_widths=2.0),
}

FILTERS = {
    "epf": lambda model, n: epf.extended_parameter_filter(model, n),
    "epf_taylor_bootstrap": lambda model, n: epf.extended_parameter_filter(
        model, n, statistic=epf.taylor(model, order=2), proposal=epf.bootstrap(), resample=epf.multinomial
    ),
    "epf_chebyshev_adaptive": lambda model, n: epf.extended_parameter_filter(
        model, n, statistic=epf.chebyshev(model, 6), resample=epf.when_ess_below(0.5)
    ),
    "epf_slice": lambda model, n: epf.extended_parameter_filter(
        model, n, statistic=epf.taylor(model, order=1), sampler=epf.slice_sampler()
    ),
    "epf_blackjax": lambda model, n: epf.extended_parameter_filter(
        model, n, statistic=epf.taylor(model, order=1), sampler=epf.blackjax_sampler(blackjax.mala, step_size=0.7)
    ),
    "storvik": epf.storvik_filter,
    "liu_west_auxiliary": lambda model, n: epf.liu_west_filter(model, n, auxiliary=True),
    "liu_west_paper": lambda model, n: epf.liu_west_filter(model, n, kernel=epf.coordinate_kernel),
    "resample_move": lambda model, n: epf.resample_move_filter(model, n, max_steps=8, rate=3.0),
    "smc2": lambda model, n: epf.smc2_filter(model, n, max_steps=8, num_inner=4, max_inner=8, min_acceptance=0.5),
    "smc2_kalman": lambda model, n: epf.smc2_filter(model, n, max_steps=8, inner=epf.kalman(model)),
    "practical": lambda model, n: epf.practical_filter(model, n, lag=3, num_path_particles=3),
    "sir": epf.bootstrap_filter,
    "nodes": lambda model, n: epf.node_filter(model, 8, num_nodes=5, num_points=64),
    "nodes_sigma": lambda model, n: epf.node_filter(model, inner=epf.sigma_points(model), num_nodes=5, num_points=64),
    "particle_learning": epf.particle_learning_filter,
    "online_em": lambda model, n: epf.online_em(model, n, statistic=epf.taylor(model, 2), wait=3),
    "bootstrap_known_theta": lambda model, n: epf.bootstrap_filter(
        model, n, theta=model.parameters.to_theta(model.parameters.centre)
    ),
}
