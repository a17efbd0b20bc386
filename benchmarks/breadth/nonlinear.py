"""Models whose states move nonlinearly or jump: populations, an epidemic, the paper's three."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.breadth.entry import NUTS, QUADRATURE, Entry, between, with_first
from epf_jax.exact import nodes_around

LYNX = (
    269, 321, 585, 871, 1475, 2821, 3928, 5943, 4950, 2577, 523, 98, 184, 279, 409, 2285, 2685, 3409, 1824, 409,
    151, 45, 68, 213, 546, 1033, 2129, 2536, 957, 361, 377, 225, 360, 731, 1638, 2725, 2871, 2119, 684, 299,
    236, 245, 552, 1623, 3311, 6721, 4254, 687, 255, 473, 358, 784, 1594, 1676, 2251, 1426, 756, 299, 201, 229,
    469, 736, 2042, 2811, 4431, 2511, 389, 73, 39, 49, 59, 188, 377, 1292, 4031, 3495, 587, 105, 153, 387,
    758, 1307, 3465, 6991, 6313, 3794, 1836, 345, 382, 808, 1388, 2713, 3800, 3091, 2985, 3790, 374, 81, 80, 108,
    229, 399, 1132, 2432, 3574, 2935, 1537, 529, 485, 662, 1000, 1590, 2657, 3396,
)  # fmt: skip  # lynx trapped in the Mackenzie River district, 1821 to 1934


def ricker():
    """Ricker's population, of which Poisson counts are seen; the state is the log of its size."""
    return epf.StateSpaceModel(
        prior={
            "growth": dist.LogNormal(1.0, 0.3), "state_sd": dist.HalfNormal(0.5), "caught": dist.LogNormal(2.0, 0.5),
        },
        initial=lambda theta: dist.Normal(0.5, 1.0),
        transition=lambda theta, x, u: dist.Normal(x + theta["growth"] - jnp.exp(x), theta["state_sd"]),
        observation=lambda theta, x, u: dist.Poisson(theta["caught"] * jnp.exp(x)),
    )  # fmt: skip


def theta_logistic():
    """A population that grows towards a capacity, seen with log-normal errors; the state is the log of its size."""

    def transition(theta, x, u):
        crowding = jnp.exp(theta["shape"] * (x - theta["log_capacity"]))
        return dist.Normal(x + theta["growth"] * (1 - crowding), theta["state_sd"])

    return epf.StateSpaceModel(
        prior={
            "growth": dist.LogNormal(-1.5, 0.7), "log_capacity": dist.Normal(5.0, 1.0),
            "shape": dist.LogNormal(0.0, 0.3), "state_sd": dist.HalfNormal(0.3), "noise_sd": dist.HalfNormal(0.5),
        },
        initial=lambda theta: dist.Normal(3.0, 1.0),
        transition=transition,
        observation=lambda theta, x, u: dist.LogNormal(x, theta["noise_sd"]),
    )  # fmt: skip


def gompertz():
    """Gompertz's population, seen with log-normal errors; the state is the log of its size."""
    return epf.StateSpaceModel(
        prior={
            "pull": dist.Beta(2.0, 2.0), "log_capacity": dist.Normal(4.0, 1.0), "state_sd": dist.HalfNormal(0.5),
            "noise_sd": dist.HalfNormal(0.5),
        },
        initial=lambda theta: dist.Normal(4.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(
            x + theta["pull"] * (theta["log_capacity"] - x), theta["state_sd"]
        ),
        observation=lambda theta, x, u: dist.LogNormal(x, theta["noise_sd"]),
    )  # fmt: skip


def epidemic():
    """Euler's steps of a SIR epidemic among 10000, with noise on the logs; a tenth of the infected is counted."""
    people = 10_000.0

    def transition(theta, x, u):
        susceptible, infected = jnp.exp(x)
        new = susceptible * -jnp.expm1(-theta["contact"] * infected / people)
        mean = jnp.stack([susceptible - new, infected * (1 - theta["recovery"]) + new])
        return dist.Normal(jnp.log(mean), jnp.stack([0.005, theta["state_sd"]])).to_event(1)

    return epf.StateSpaceModel(
        prior={
            "contact": dist.LogNormal(-1.0, 0.5), "recovery": dist.Beta(2.0, 10.0), "state_sd": dist.HalfNormal(0.2),
        },
        initial=lambda theta: dist.Normal(jnp.log(jnp.array([9950.0, 50.0])), jnp.array([0.002, 0.3])).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Poisson(0.1 * jnp.exp(x[1])),
    )  # fmt: skip


def growth():
    """The growth model of Gordon, Salmond and Smith (1993): the sign of the state is not seen."""
    return epf.StateSpaceModel(
        prior={"state_sd": dist.LogNormal(1.0, 0.5), "noise_sd": dist.LogNormal(0.0, 0.5)},
        initial=lambda theta: dist.Normal(0.0, 2.0),
        transition=lambda theta, x, t: dist.Normal(
            x / 2 + 25 * x / (1 + x**2) + 8 * jnp.cos(1.2 * t), theta["state_sd"]
        ),
        observation=lambda theta, x, t: dist.Normal(x**2 / 20, theta["noise_sd"]),
    )


def jumps():
    """An AR(1) with heavy-tailed news, in Gaussian noise."""
    return epf.StateSpaceModel(
        prior={"phi": dist.Uniform(-1.0, 1.0), "state_sd": dist.HalfNormal(1.0), "noise_sd": dist.HalfNormal(1.0)},
        initial=lambda theta: dist.Normal(0.0, 2.0),
        transition=lambda theta, x, u: dist.StudentT(3.0, theta["phi"] * x, theta["state_sd"]),
        observation=lambda theta, x, u: dist.Normal(x, theta["noise_sd"]),
    )


def lynx():
    """Log10 of the lynx by an exponential autoregression of two lags, seen with errors of .1."""

    def transition(theta, x, u):
        fade = jnp.exp(-theta["decay"] * x[0] ** 2)
        first = (theta["a1"] + theta["b1"] * fade) * x[0]
        mean = first + (theta["a2"] + theta["b2"] * fade) * x[1]
        return dist.Normal(jnp.stack([mean, x[0]]), jnp.stack([theta["state_sd"], 0.0])).to_event(1)

    return epf.StateSpaceModel(
        prior={
            "a1": dist.Normal(1.0, 0.5), "b1": dist.Normal(0.0, 0.5), "a2": dist.Normal(-0.5, 0.5),
            "b2": dist.Normal(0.0, 0.5), "decay": dist.LogNormal(1.0, 0.7), "state_sd": dist.HalfNormal(0.5),
        },
        initial=lambda theta: dist.Normal(jnp.array([-0.4, -0.4]), 0.3).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], 0.1),
    )  # fmt: skip


def near_noise(theta, y):
    """What a Gaussian observation says of the state."""
    return dist.Normal(y, theta["noise_sd"])


LYNX_LOG = tuple(np.round(np.log10(LYNX) - 2.9, 6).tolist())
NOISE_OF_JUMPS = {"phi": 0.8, "state_sd": 0.5, "noise_sd": 0.7}
NONLINEAR = {
    "ricker": Entry("tune", ricker, 60, {"growth": 2.6, "state_sd": 0.3, "caught": 8.0}, opinions=QUADRATURE,
        nodes=between(-9.0, 5.0, 400), num_inner=1000),
    "theta_logistic": Entry(
        "report", theta_logistic, 100,
        {"growth": 0.3, "log_capacity": 5.0, "shape": 1.0, "state_sd": 0.12, "noise_sd": 0.15}, opinions=QUADRATURE,
        nodes=lambda y: nodes_around(np.log(y), 1.0, 160, initial=(-2.0, 8.0)), start=lambda y: with_first(np.log(y)),
    ),
    "gompertz": Entry(
        "tune", gompertz, 80, {"pull": 0.3, "log_capacity": 4.0, "state_sd": 0.25, "noise_sd": 0.2},
        opinions=NUTS,
        start=lambda y: with_first(np.log(y)),
    ),
    "epidemic": Entry(
        "report", epidemic, 80, {"contact": 0.35, "recovery": 0.12, "state_sd": 0.08}, opinions=NUTS, centred=False,
    ),
    "growth": Entry(
        "tune", growth, 100, {"state_sd": 3.0, "noise_sd": 1.0}, opinions=QUADRATURE, nodes=between(-45.0, 45.0, 400),
        num_inner=4000,
    ),
    "jumps": Entry(
        "tune", jumps, 200, NOISE_OF_JUMPS, opinions=("quadrature", "joint_nuts"), start=with_first, near=near_noise,
        nodes=lambda y: nodes_around(y, 4.0, 120),
    ),
    "sinusoid": Entry(
        "report", epf.models.sinusoid, 200, {"theta": 0.7}, opinions=QUADRATURE, start=with_first,
        nodes=lambda y: nodes_around(y, 0.8, 250), near=lambda theta, y: dist.Normal(y, 0.1),
    ),
    "star": Entry(
        "tune", epf.models.star, 200, {"gamma": 1.0, "c": 3.0}, opinions=QUADRATURE, start=with_first,
        nodes=lambda y: nodes_around(y, 0.8, 250), near=lambda theta, y: dist.Normal(y, 0.1),
    ),
    "cauchy": Entry(
        "report", epf.models.cauchy_ar1, 200, {"a": 0.7}, opinions=QUADRATURE, start=with_first,
        nodes=lambda y: nodes_around(y, 70.0, 500), near=lambda theta, y: dist.Normal(y, 10.0), num_inner=1000,
    ),
    "lynx": Entry(
        "tune", lynx, 114, data=LYNX_LOG, opinions=NUTS, centred=False,
    ),
}  # fmt: skip
