r"""Any of blackjax's MCMC kernels as a sampler of theta. Needs the extra: `pip install "epf_jax[blackjax]"`.

The kernel sees :math:`w = L^{-1}(z - m)`, where m and :math:`L L^T` are the mean and the covariance of the particle
population: coordinates in which theta has about unit scale at every t, so that one step size serves a posterior that
narrows as data come. For every draw:

    1. scale    w <- L^-1 (z - m)
    2. start    the kernel's state at w: its log-density and, where the kernel wants it, its gradient
    3. step     the kernel, `num_steps` times
    4. return   z <- m + L w, or the old z, to the bit, where w did not move

The density is the same function of theta in other coordinates, a linear map away, so that a kernel which leaves it
invariant does so here. blackjax itself is never imported: its kernels come from the caller.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from epf_jax.checks import brief, check_whole_number
from epf_jax.samplers.base import SampleInfo, Sampler, unit_population

_EXAMPLE = "epf.blackjax_sampler(blackjax.hmc, step_size=0.6, num_integration_steps=3)"

# Kernels whose draws are not of the density that they are given, by the module of blackjax that they are in.
_ANOTHER_TARGET = {
    "elliptical_slice": "its target is a Gaussian prior times the function that it is given",
    "marginal_latent_gaussian": "its target is a Gaussian prior times the function that it is given",
    "mclmc": "it accepts every move, so that its draws are of another density; blackjax.adjusted_mclmc is exact",
    "periodic_orbital": "its draws are weighted",
    "laplace_hmc": "it wants a joint density of two parameters",
    "laplace_dynamic_hmc": "it wants a joint density of two parameters",
}


def blackjax_sampler(kernel: Callable, *, num_steps: int = 1, **parameters: Any) -> Sampler:
    """A sampler that takes its steps by a kernel of blackjax: HMC, NUTS, MALA, Barker's, slices, random walks.

    Any filter or chain that takes a `sampler` takes this one:

        import blackjax

        sampler = epf.blackjax_sampler(blackjax.hmc, step_size=0.6, num_integration_steps=3)
        epf.extended_parameter_filter(model, 1000, sampler=sampler)

    Lengths are in standard deviations of the particle population, whatever the scale of theta: start with a
    `step_size` of .5 to 1, and aim at the acceptance that the kernel's authors recommend, `results.acceptance`. Kernels
    that loop until they are content (NUTS, slices) take as long for all particles as for the slowest, and have no
    gradient in reverse mode.

    Args:
        kernel: `blackjax.hmc`, `blackjax.nuts`, `blackjax.mala`, `blackjax.barker`, `blackjax.coordinate_slice`,
            `blackjax.additive_step_random_walk.normal_random_walk`, ..., or a function of your own that makes a
            `blackjax.SamplingAlgorithm` of a log-density. Not what they return: each particle has its own density.
        num_steps: steps of the kernel per observation.
        parameters: the kernel's own, by name. An `inverse_mass_matrix` that is not given is that of unit scale.
    """
    check_whole_number("num_steps", num_steps)
    name = _check_kernel(kernel)
    unit_metric = _check_parameters(kernel, name, parameters)

    def step(key, theta, log_density, population=None):
        mean, scale_tril = unit_population(theta) if population is None else population
        start = solve_triangular(scale_tril, theta - mean, lower=True)

        def place(w):
            return mean + scale_tril @ w

        def log_density_of(w):
            log_p = log_density(place(w))
            return jnp.where(jnp.isnan(log_p), -jnp.inf, log_p)

        def once(state, key):
            after, info = algorithm.step(key, state)
            return after, _acceptance(info, state, after).astype(theta.dtype)

        metric = {"inverse_mass_matrix": jnp.ones_like(theta)} if unit_metric else {}
        algorithm = kernel(log_density_of, **metric, **parameters)
        key_start, key_steps = jax.random.split(key)
        state, acceptance = jax.lax.scan(once, algorithm.init(start, key_start), jax.random.split(key_steps, num_steps))
        drawn = jnp.where(jnp.any(state.position != start), place(state.position), theta)
        # Within a step the kernel alone knows where it looks: what is counted is where it began.
        return drawn, SampleInfo(jnp.mean(acceptance), jnp.isnan(log_density(place(start))).astype(int))

    return Sampler(step, f"blackjax {name}")


def _acceptance(info: Any, before: Any, after: Any) -> jax.Array:
    """What the kernel says of its acceptance, or whether it moved where it says nothing; NaN is a refusal."""
    told = [getattr(info, field) for field in ("acceptance_rate", "is_accepted") if hasattr(info, field)]
    rate = jnp.asarray(told[0] if told else jnp.any(after.position != before.position))
    return jnp.where(jnp.isnan(rate), 0.0, rate)


def _check_kernel(kernel: Any) -> str:
    """Refuse what is no kernel, or one of another target; its name."""
    if isinstance(kernel, str):
        raise TypeError(f"kernel: expected a kernel of blackjax, got the text {kernel!r}. Write it as {_EXAMPLE}.")
    if hasattr(kernel, "init") and hasattr(kernel, "step") and not callable(kernel):
        raise TypeError(
            "kernel: expected a kernel of blackjax before it is given a density, got one that has its own. Leave out "
            f"the call, and give its parameters here: {_EXAMPLE}."
        )
    if not callable(kernel):
        raise TypeError(f"kernel: expected a kernel of blackjax, such as blackjax.hmc, got {brief(kernel)}.")
    function = getattr(kernel, "differentiable", kernel)  # where a kernel keeps the function that it calls
    function = getattr(function, "func", function)
    package, _, module = getattr(function, "__module__", "").rpartition(".")
    called = getattr(function, "__name__", "of your own")
    name = module if called == "as_top_level_api" else called.removesuffix("_as_top_level_api")
    if package.startswith("blackjax") and name in _ANOTHER_TARGET:
        raise ValueError(f"kernel: blackjax's {name} cannot draw theta from its density: {_ANOTHER_TARGET[name]}.")
    return name


def _check_parameters(kernel: Any, name: str, parameters: dict[str, Any]) -> bool:
    """Refuse parameters that the kernel does not take, or lacks; whether it is to be given a unit metric."""
    known = inspect.signature(getattr(kernel, "differentiable", kernel)).parameters
    takes = list(known.values())[1:]  # the first is the log-density
    any_name = any(p.kind is p.VAR_KEYWORD for p in takes)
    named = [p.name for p in takes if p.kind is not p.VAR_KEYWORD]
    unknown = [given for given in parameters if given not in named]
    required = [p.name for p in takes if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    unit_metric = "inverse_mass_matrix" in required and "inverse_mass_matrix" not in parameters
    missing = [needed for needed in required if needed not in parameters and needed != "inverse_mass_matrix"]
    if (unknown and not any_name) or missing:
        wrong = f"does not take {', '.join(unknown)}" if unknown else f"needs {', '.join(missing)}"
        raise TypeError(f"blackjax_sampler: {name} {wrong}. Its parameters are {', '.join(named) or 'none'}.")
    return unit_metric
