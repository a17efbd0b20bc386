"""Models that are linear and Gaussian in the state: their golds are exact but for the draws of theta."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import epf_jax as epf
from benchmarks.breadth.entry import Entry

NILE = (
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960, 1180, 799, 958, 1140,
    1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940, 833, 701, 916, 692, 1020, 1050, 969,
    831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768, 845, 864, 862, 698, 845, 744, 796, 1040, 759,
    781, 865, 845, 944, 984, 897, 822, 1010, 771, 676, 649, 846, 812, 742, 801, 1040, 860, 874, 848, 890,
    744, 749, 838, 1050, 918, 986, 797, 923, 975, 815, 1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
)  # fmt: skip  # the annual flow of the Nile at Aswan, 1871 to 1970, in 1e8 m^3


def level():
    """A random walk in noise."""
    return epf.StateSpaceModel(
        prior={"level_sd": dist.HalfNormal(1.0), "noise_sd": dist.HalfNormal(2.0)},
        initial=lambda theta: dist.Normal(0.0, 5.0),
        transition=lambda theta, x, u: dist.Normal(x, theta["level_sd"]),
        observation=lambda theta, x, u: dist.Normal(x, theta["noise_sd"]),
    )


def nile():
    """The flow of the Nile as a random walk in noise."""
    return epf.StateSpaceModel(
        prior={"level_sd": dist.LogNormal(np.log(40.0), 1.0), "noise_sd": dist.LogNormal(np.log(120.0), 1.0)},
        initial=lambda theta: dist.Normal(1000.0, 300.0),
        transition=lambda theta, x, u: dist.Normal(x, theta["level_sd"]),
        observation=lambda theta, x, u: dist.Normal(x, theta["noise_sd"]),
    )


def known_noise():
    """An AR(1) in noise, both noises known."""
    return epf.models.ar1()


def level_variances():
    """A random walk in noise, with conjugate priors of the variances."""
    return epf.models.local_level_variances()


def trend():
    """A level with a slope, both of which drift."""
    F = jnp.array([[1.0, 1.0], [0.0, 1.0]])
    return epf.StateSpaceModel(
        prior={"level_sd": dist.HalfNormal(1.0), "slope_sd": dist.HalfNormal(0.3), "noise_sd": dist.HalfNormal(2.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), jnp.array([5.0, 1.0])).to_event(1),
        transition=lambda theta, x, u: dist.Normal(F @ x, jnp.stack([theta["level_sd"], theta["slope_sd"]])).to_event(
            1
        ),
        observation=lambda theta, x, u: dist.Normal(x[0], theta["noise_sd"]),
    )


def season():
    """Months: a level and one wave a year, both of which drift."""
    c, s = np.cos(2 * np.pi / 12), np.sin(2 * np.pi / 12)
    F = jnp.array([[1.0, 0.0, 0.0], [0.0, c, s], [0.0, -s, c]])

    def transition(theta, x, u):
        scales = jnp.stack([theta["level_sd"], theta["season_sd"], theta["season_sd"]])
        return dist.Normal(F @ x, scales).to_event(1)

    return epf.StateSpaceModel(
        prior={"level_sd": dist.HalfNormal(1.0), "season_sd": dist.HalfNormal(1.0), "noise_sd": dist.HalfNormal(2.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(3), 5.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0] + x[1], theta["noise_sd"]),
    )


def drifting_regression():
    """A regression on one input, whose intercept and slope are random walks."""
    return epf.StateSpaceModel(
        prior={
            "intercept_sd": dist.HalfNormal(0.5),
            "slope_sd": dist.HalfNormal(0.5),
            "noise_sd": dist.HalfNormal(2.0),
        },
        initial=lambda theta: dist.Normal(jnp.zeros(2), 3.0).to_event(1),
        transition=lambda theta, x, u: dist.Normal(x, jnp.stack([theta["intercept_sd"], theta["slope_sd"]])).to_event(
            1
        ),
        observation=lambda theta, x, u: dist.Normal(x[0] + x[1] * u, theta["noise_sd"]),
    )


def ar1():
    """An AR(1) in noise, everything unknown."""
    return epf.StateSpaceModel(
        prior={"phi": dist.Uniform(-1.0, 1.0), "state_sd": dist.HalfNormal(2.0), "noise_sd": dist.HalfNormal(2.0)},
        initial=lambda theta: dist.Normal(0.0, 2.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, theta["state_sd"]),
        observation=lambda theta, x, u: dist.Normal(x, theta["noise_sd"]),
    )


def ar2():
    """An AR(2) in noise: the state is the last two values."""

    def transition(theta, x, u):
        mean = jnp.stack([theta["phi1"] * x[0] + theta["phi2"] * x[1], x[0]])
        return dist.Normal(mean, jnp.stack([theta["state_sd"], 0.0])).to_event(1)

    return epf.StateSpaceModel(
        prior={
            "phi1": dist.Normal(0.0, 1.0),
            "phi2": dist.Normal(0.0, 0.5),
            "state_sd": dist.HalfNormal(2.0),
            "noise_sd": dist.HalfNormal(1.0),
        },
        initial=lambda theta: dist.Normal(jnp.zeros(2), 2.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], theta["noise_sd"]),
    )


def arma():
    """An ARMA(1, 1) as a state-space model, seen with a little noise."""

    def transition(theta, x, u):
        mean = jnp.stack([theta["ar"] * x[0] + x[1], jnp.zeros_like(x[0])])
        news = theta["sd"] * jnp.stack([1.0, theta["ma"]])  # one noise moves both
        return dist.MultivariateNormal(mean, scale_tril=jnp.stack([news, jnp.zeros(2)], axis=1))

    return epf.StateSpaceModel(
        prior={"ar": dist.Uniform(-1.0, 1.0), "ma": dist.Uniform(-1.0, 1.0), "sd": dist.HalfNormal(2.0)},
        initial=lambda theta: dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], 0.1),
    )


def factor():
    """Three series that share one factor, an AR(1)."""

    def observation(theta, x, u):
        loadings = jnp.stack([1.0, theta["loading2"], theta["loading3"]])
        return dist.Normal(loadings * x, theta["noise_sd"]).to_event(1)

    return epf.StateSpaceModel(
        prior={
            "phi": dist.Uniform(-1.0, 1.0),
            "loading2": dist.Normal(0.0, 1.0),
            "loading3": dist.Normal(0.0, 1.0),
            "state_sd": dist.HalfNormal(1.0),
            "noise_sd": dist.HalfNormal(1.0),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, theta["state_sd"]),
        observation=observation,
    )


def tracking():
    """Position and velocity, of which the position is seen; drag slows what moves."""

    def transition(theta, x, u):
        mean = jnp.stack([x[0] + x[1], (1 - theta["drag"]) * x[1]])
        return dist.Normal(mean, jnp.stack([0.1, theta["push_sd"]])).to_event(1)

    return epf.StateSpaceModel(
        prior={"drag": dist.Beta(2.0, 5.0), "push_sd": dist.LogNormal(-1.0, 1.0), "noise_sd": dist.LogNormal(0.0, 1.0)},
        initial=lambda theta: dist.Normal(jnp.zeros(2), jnp.array([2.0, 1.0])).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], theta["noise_sd"]),
    )


def ornstein_uhlenbeck():
    """A process that returns to its mean, seen at irregular times; the input is the time since the last."""

    def transition(theta, x, dt):
        decay = jnp.exp(-theta["rate"] * dt)
        sd = theta["volatility"] * jnp.sqrt((1 - decay**2) / (2 * theta["rate"]))
        return dist.Normal(theta["mean"] + decay * (x - theta["mean"]), sd)

    return epf.StateSpaceModel(
        prior={
            "rate": dist.LogNormal(-1.0, 1.0),
            "mean": dist.Normal(0.0, 5.0),
            "volatility": dist.HalfNormal(2.0),
            "noise_sd": dist.HalfNormal(1.0),
        },
        initial=lambda theta: dist.Normal(theta["mean"], 2.0),
        transition=transition,
        observation=lambda theta, x, dt: dist.Normal(x, theta["noise_sd"]),
    )


def regression():
    """A regression on two inputs with errors that are an AR(1) in noise: seven parameters."""
    return epf.StateSpaceModel(
        prior={
            "beta": dist.Normal(jnp.zeros(3), 5.0).to_event(1),
            "drift": dist.Normal(0.0, 0.5),
            "phi": dist.Uniform(-1.0, 1.0),
            "state_sd": dist.HalfNormal(1.0),
            "noise_sd": dist.HalfNormal(1.0),
        },
        initial=lambda theta: dist.Normal(0.0, 1.0),
        transition=lambda theta, x, u: dist.Normal(theta["phi"] * x, theta["state_sd"]),
        observation=lambda theta, x, u: dist.Normal(
            theta["beta"] @ jnp.stack([1.0, u[0], u[1]]) + theta["drift"] * u[2] + x, theta["noise_sd"]
        ),
    )


def missing():
    """An AR(1) about an unknown mean, of which a quarter was not seen."""
    return epf.StateSpaceModel(
        prior={"mean": dist.Normal(0.0, 5.0), "phi": dist.Uniform(0.0, 1.0), "state_sd": dist.HalfNormal(1.0)},
        initial=lambda theta: dist.Normal(theta["mean"], 2.0),
        transition=lambda theta, x, u: dist.Normal(
            theta["mean"] + theta["phi"] * (x - theta["mean"]), theta["state_sd"]
        ),
        observation=lambda theta, x, u: dist.Normal(x, 0.5),
    )


def cycle():
    """A wave of unknown period that fades and is renewed, in noise."""

    def transition(theta, x, u):
        c, s = jnp.cos(theta["frequency"]), jnp.sin(theta["frequency"])
        mean = theta["damping"] * jnp.stack([c * x[0] + s * x[1], -s * x[0] + c * x[1]])
        return dist.Normal(mean, theta["cycle_sd"]).to_event(1)

    return epf.StateSpaceModel(
        prior={
            "damping": dist.Beta(9.0, 1.0),
            "frequency": dist.LogNormal(np.log(0.5), 0.3),
            "cycle_sd": dist.HalfNormal(1.0),
            "noise_sd": dist.HalfNormal(1.0),
        },
        initial=lambda theta: dist.Normal(jnp.zeros(2), 2.0).to_event(1),
        transition=transition,
        observation=lambda theta, x, u: dist.Normal(x[0], theta["noise_sd"]),
    )


def one_outlier(y):
    """Fifteen noises off at the 90th observation."""
    return np.where(np.arange(len(y)) == 89, y + 15.0, y)


def a_quarter_missing(y):
    """A gap of thirty, and every tenth."""
    t = np.arange(len(y))
    return np.where((t % 10 == 3) | ((t >= 80) & (t < 110)), np.nan, y)


def gaps(rng, num_steps):
    """Times since the last observation, from next to nothing to several."""
    return rng.gamma(1.0, 1.0, num_steps) + 0.05


def columns(rng, num_steps):
    """Two inputs, one of them a switch, and the time from 0 to 1."""
    return np.stack([rng.normal(size=num_steps), rng.integers(0, 2, num_steps), np.linspace(0, 1, num_steps)], 1)


LEVEL = {"level_sd": 0.4, "noise_sd": 1.0}
LINEAR = {
    "level": Entry("tune", level, 200, LEVEL),
    "nile": Entry("report", nile, 100, data=NILE, start=lambda y: np.concatenate([y[:1], y])),
    "known_noise": Entry("report", known_noise, 100, {"phi": 0.7}),
    "level_variances": Entry("tune", level_variances, 400, {"level_variance": 0.2, "observation_variance": 1.2}),
    "trend": Entry("report", trend, 150, {"level_sd": 0.3, "slope_sd": 0.08, "noise_sd": 1.0}),
    "season": Entry("tune", season, 144, {"level_sd": 0.2, "season_sd": 0.15, "noise_sd": 0.8}),
    "drifting_regression": Entry(
        "report", drifting_regression, 200, {"intercept_sd": 0.15, "slope_sd": 0.1, "noise_sd": 0.7},
        inputs=lambda rng, num_steps: rng.normal(size=num_steps),
    ),
    "ar1": Entry("tune", ar1, 300, {"phi": 0.9, "state_sd": 0.6, "noise_sd": 0.7}, centred=False),
    "ar2": Entry("report", ar2, 250, {"phi1": 1.3, "phi2": -0.5, "state_sd": 0.7, "noise_sd": 0.5}, centred=False),
    "arma": Entry("tune", arma, 250, {"ar": 0.7, "ma": 0.4, "sd": 1.0}, centred=False),
    "factor": Entry(
        "report", factor, 150, {"phi": 0.8, "loading2": 0.7, "loading3": -0.5, "state_sd": 0.5, "noise_sd": 0.6}
    ),
    "tracking": Entry("tune", tracking, 120, {"drag": 0.2, "push_sd": 0.4, "noise_sd": 1.0}, centred=False),
    "ornstein_uhlenbeck": Entry(
        "report", ornstein_uhlenbeck, 150, {"rate": 0.4, "mean": 3.0, "volatility": 1.0, "noise_sd": 0.3}, inputs=gaps,
        start=lambda y: np.concatenate([y[:1], y]),
    ),
    "regression": Entry(
        "tune", regression, 200,
        {"beta": np.array([2.0, 0.8, -1.0]), "drift": 0.4, "phi": 0.8, "state_sd": 0.4, "noise_sd": 0.5},
        inputs=columns,
        centred=False,
    ),
    "missing": Entry("report", missing, 200, {"mean": 2.0, "phi": 0.85, "state_sd": 0.6}, spoil=a_quarter_missing),
    "level_with_outlier": Entry("tune", level, 150, LEVEL, spoil=one_outlier),
    "cycle": Entry(
        "report", cycle, 200, {"damping": 0.95, "frequency": 0.4, "cycle_sd": 0.4, "noise_sd": 0.5}, centred=False
    ),
}  # fmt: skip
