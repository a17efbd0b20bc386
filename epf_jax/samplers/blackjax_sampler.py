r"""MCMC kernels of blackjax as samplers of theta. Needs the extra: `pip install "epf_jax[blackjax]"`.

The kernel works on :math:`w = L^{-1}(z - m)`, where m and :math:`L L^T` are the mean and the covariance of the particle
population. In these coordinates theta has about unit scale at every t, so that one step size serves a posterior that
narrows. For every draw:

    1. scale    w <- L^-1 (z - m)
    2. start    the kernel's state at w: its log-density and, if the kernel needs it, its gradient
    3. step     the kernel, `num_steps` times
    4. return   z <- m + L w; or exactly the old z if w did not move or has density zero

The map is linear, so a kernel that leaves the density invariant does so here. A NaN density counts as zero. blackjax
itself is never imported: its kernels come from the caller.
"""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from epf_jax.core.checks import brief, check_positive, check_whole_number
from epf_jax.samplers.sampler import SampleInfo, Sampler, unit_population

_EXAMPLE = "epf.blackjax_sampler(blackjax.hmc, step_size=0.6, num_integration_steps=3)"
_LEAST_PIVOT = 1e-3  # of a coordinate's standard deviation: no pair is taken for more correlated than .9999995

# Kernels whose draws are not of the density that they are given, by the module of blackjax that they are in.
_ANOTHER_TARGET = {
    "elliptical_slice": "its target is a Gaussian prior times the function that it is given",
    "marginal_latent_gaussian": "its target is a Gaussian prior times the function that it is given",
    "mclmc": "it accepts every move, so that its draws are of another density",
    "periodic_orbital": "its draws are weighted",
    "laplace_hmc": "it wants a joint density of two parameters",
    "laplace_dynamic_hmc": "it wants a joint density of two parameters",
}


def blackjax_sampler(kernel: Callable, *, num_steps: int = 1, **parameters: Any) -> Sampler:
    """A sampler whose steps are those of a kernel of blackjax: HMC, NUTS, MALA, Barker's, slices, random walks.

    Any filter or chain that takes a `sampler` takes this one:

        import blackjax

        sampler = epf.blackjax_sampler(blackjax.hmc, step_size=0.6, num_integration_steps=3)
        epf.extended_parameter_filter(model, 1000, sampler=sampler)

    Lengths are in standard deviations of the particle population, whatever the scale of theta. Start with a `step_size`
    of .5 to 1, and aim at the acceptance that the kernel's authors recommend (`results.acceptance`).

    - If the first observations leave little of a vague prior, gradient steps at the prior's scale are all rejected.
      Filters that resample narrow the population themselves; in a `practical_filter` use a random walk.
    - Kernels with loops of random length (NUTS, slices) take as long for all particles as for the slowest, and have no
      gradient in reverse mode.
    - A particle where the density is zero and its gradient NaN stays there under a kernel that needs the gradient.
    - NaN densities are counted only where a draw begins.

    Args:
        kernel: `blackjax.hmc`, `blackjax.nuts`, `blackjax.mala`, `blackjax.barker`, `blackjax.coordinate_slice`,
            `blackjax.normal_random_walk`, ..., or your own function that makes a `blackjax.SamplingAlgorithm` of a
            log-density. Give the function itself, not what it returns, because each particle has its own density.
        num_steps: steps of the kernel per observation.
        parameters: the kernel's parameters, by name. The default `inverse_mass_matrix` is that of unit scale.
    """
    check_whole_number("num_steps", num_steps)
    name = _check_kernel(kernel)
    parameters = {k: jnp.asarray(v) if isinstance(v, list) else v for k, v in parameters.items() if v is not None}
    _check_parameters(kernel, name, parameters)
    unit_metric = "inverse_mass_matrix" in _required(kernel) and "inverse_mass_matrix" not in parameters

    def step(key, theta, log_density, population=None):
        mean, scale_tril = unit_population(theta) if population is None else population
        scale_tril = _invertible(scale_tril)
        start = solve_triangular(scale_tril, theta - mean, lower=True)

        def place(w):
            return mean + scale_tril @ w

        def log_density_of(w):
            log_p = log_density(place(w))
            return jnp.where(jnp.isnan(log_p), -jnp.inf, log_p)

        def once(state, key):
            after, info = algorithm.step(key, state)
            return after, _acceptance(info, state, after).astype(theta.dtype)

        if name.startswith("adjusted_mclmc") and theta.shape[0] == 1:
            raise ValueError(f"blackjax_sampler: {name} has nowhere to turn with one parameter, and never moves.")
        metric = {"inverse_mass_matrix": jnp.ones_like(theta)} if unit_metric else {}
        key_start, key_steps = jax.random.split(key)
        try:
            algorithm = kernel(log_density_of, **metric, **parameters)
            first, keys = algorithm.init(start, key_start), jax.random.split(key_steps, num_steps)
            state, acceptance = jax.lax.scan(once, first, keys)
        except (AttributeError, TypeError, ValueError) as error:  # found when a filter is built
            given = ", ".join(f"{k}={brief(v)}" for k, v in parameters.items()) or "no parameters"
            raise ValueError(
                f"blackjax_sampler: {name} with {given} fails on theta's {theta.shape[0]} unconstrained coordinates: "
                f"{error}"
            ) from error
        drawn = jnp.where(_moved(state, start, log_density_of), place(state.position), theta)
        return drawn, SampleInfo(jnp.mean(acceptance), jnp.isnan(log_density(place(start))).astype(int))

    return Sampler(step, f"blackjax {name}", uses_gradient=True)


def _invertible(scale_tril: Float[Array, "P P"]) -> Float[Array, "P P"]:
    """The factor with nonzero pivots: rounding leaves zeros if coordinates are perfectly correlated."""
    least = _LEAST_PIVOT * jnp.sqrt(jnp.sum(scale_tril**2, axis=1))
    pivots = jnp.diagonal(scale_tril)
    return scale_tril + jnp.diag(jnp.maximum(pivots, least) - pivots)


def _acceptance(info: Any, before: Any, after: Any) -> Float[Array, ""]:
    """The acceptance that the kernel reports, or else whether it moved; NaN is a rejection."""
    told = [getattr(info, field) for field in ("acceptance_rate", "is_accepted") if hasattr(info, field)]
    rate = jnp.asarray(told[0] if told else jnp.any(after.position != before.position))
    return jnp.where(jnp.isnan(rate), 0.0, rate)


def _moved(state: Any, start: Float[Array, " P"], log_density: Callable) -> Bool[Array, ""]:
    """Whether the kernel moved to a place of positive density; a slice that begins at zero density may end at zero."""
    log_p = state.logdensity if hasattr(state, "logdensity") else log_density(state.position)
    return jnp.any(state.position != start) & (log_p > -jnp.inf)


def _unwrapped(kernel: Any) -> Any:
    """The kernel itself, inside of any `functools.partial`."""
    while isinstance(kernel, partial):
        kernel = kernel.func
    return kernel


def _check_kernel(kernel: Any) -> str:
    """The kernel's name; raises if it is not a kernel, or one with another target."""
    if isinstance(kernel, str):
        raise TypeError(f"kernel: expected a kernel of blackjax, got the text {kernel!r}. Write it as {_EXAMPLE}.")
    if hasattr(kernel, "init") and hasattr(kernel, "step") and not callable(kernel):
        raise TypeError(
            "kernel: expected a kernel of blackjax before it is given a density, got one that has its own. Leave out "
            f"the call, and give its parameters here: {_EXAMPLE}."
        )
    if not callable(kernel):
        raise TypeError(f"kernel: expected a kernel of blackjax, such as blackjax.hmc, got {brief(kernel)}.")
    exported = getattr(sys.modules.get("blackjax"), "__dict__", {}).items()
    name = next((name for name, value in exported if value is _unwrapped(kernel)), "")
    makes = _unwrapped(getattr(_unwrapped(kernel), "differentiable", _unwrapped(kernel)))
    home = getattr(makes, "__module__", "") or ""
    why_not = _ANOTHER_TARGET.get(home.rpartition(".")[2]) if home.startswith("blackjax.mcmc.") else None
    if home.startswith("blackjax.") and not home.startswith("blackjax.mcmc."):
        why_not = "it is no Markov chain that has the density as its target"
    if why_not:
        raise ValueError(f"kernel: blackjax.{name} cannot draw theta from its density: {why_not}.")
    return name or getattr(makes, "__name__", "kernel of your own")


def _takes(kernel: Any) -> list[inspect.Parameter]:
    """The parameters that a kernel takes after its log-density."""
    return list(inspect.signature(getattr(kernel, "differentiable", kernel)).parameters.values())[1:]


def _required(kernel: Any) -> list[str]:
    """Those of its parameters that have no default."""
    return [p.name for p in _takes(kernel) if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


def _check_parameters(kernel: Any, name: str, parameters: dict[str, Any]) -> None:
    """Raise for unknown or missing parameters, and for lengths that are not positive."""
    takes = _takes(kernel)
    any_name = any(p.kind is p.VAR_KEYWORD for p in takes)
    named = [p.name for p in takes if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    unknown = [given for given in parameters if given not in named]
    missing = [needed for needed in _required(kernel) if needed not in {"inverse_mass_matrix", *parameters}]
    if (unknown and not any_name) or missing:
        wrong = f"does not take {', '.join(unknown)}" if unknown else f"needs {', '.join(missing)}"
        raise TypeError(f"blackjax_sampler: {name} {wrong}. Its parameters are {', '.join(named) or 'none'}.")
    if name == "irmh" and "proposal_logdensity_fn" not in parameters:
        raise TypeError(
            "blackjax_sampler: irmh needs proposal_logdensity_fn. Without it, blackjax takes its proposals for "
            "symmetric ones, and draws from another density."
        )
    if not isinstance(parameters.get("num_integration_steps", 1), jax.core.Tracer):
        check_whole_number("num_integration_steps", parameters.get("num_integration_steps", 1))
    for length in ("step_size", "width", "initial_widths", "sigma", "inverse_mass_matrix"):
        if np.ndim(parameters.get(length, 1.0)) < 2:  # a matrix may have negative entries
            expected = "positive numbers, 1 standing for a standard deviation of the population"
            check_positive(length, parameters.get(length, 1.0), expected)
