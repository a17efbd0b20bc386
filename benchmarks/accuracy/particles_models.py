# ruff: noqa: D101, D102, N802  the names and the methods are those that particles asks for
"""The league's six models written out for particles, in NumPy; importing this needs particles.

Where the model allows it they have the optimal proposal, as this library's methods have by default. particles observes
x_0 too, which here tells nothing: its observation is 0 whatever it is.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from particles import distributions as d
from particles import state_space_models as ssm

import epf_jax as epf


class Written(NamedTuple):
    """A model's class for particles, its prior, and the kind of filter."""

    kind: Any
    prior: dict[str, Any]
    filter_kind: Any


class LogNormal(d.TransformedDist):
    """Of exp(X); particles has none."""

    def f(self, x):
        return np.exp(x)

    def logpdf(self, x):
        z = np.log(np.maximum(x, 1e-300))
        return np.where(np.asarray(x) > 0.0, self.base_dist.logpdf(z) - z, -np.inf)


class AfterTheFirst(ssm.StateSpaceModel):
    """x_0 ~ N(0, 1), whose observation is 0 whatever it is."""

    def PX0(self):
        return d.Normal()

    def PY(self, t, xp, x):
        return d.Normal(loc=np.zeros(len(x))) if t == 0 else self.observed(x)


class Adapted(AfterTheFirst):
    """x_t = f(x_{t-1}) + N(0, 1), y_t = x_t + N(0, sensor^2), with the optimal proposal."""

    def PX(self, t, xp):
        return d.Normal(loc=self.f(xp))

    def observed(self, x):
        return d.Normal(loc=x, scale=self.sensor)

    def proposal0(self, data):
        return self.PX0()

    def proposal(self, t, xp, data):
        gain = 1.0 / (1.0 + self.sensor**2)
        return d.Normal(loc=self.f(xp) + gain * (data[t] - self.f(xp)), scale=np.sqrt(1.0 - gain))


class Sinusoid(Adapted):
    sensor = 0.1

    def f(self, x):
        return np.sin(self.theta * x)


class Star(Adapted):
    sensor = 0.1

    def f(self, x):
        share = 1.0 / (1.0 + np.exp(-self.gamma * (x - self.c)))
        return (0.9 * (1.0 - share) + 0.1 * share) * x


class Autoregression(Adapted):
    sensor = 0.5

    def f(self, x):
        return self.phi * x


class Cauchy(AfterTheFirst):
    def PX(self, t, xp):
        return d.Student(df=1.0, loc=self.a * xp)

    def observed(self, x):
        return d.Normal(loc=x, scale=10.0)


class Volatility(AfterTheFirst):
    def PX(self, t, xp):
        return d.Normal(loc=self.level + self.persistence * (xp - self.level), scale=np.sqrt(self.variance))

    def observed(self, x):
        return d.Normal(loc=0.0, scale=np.exp(x / 2.0))


class Cycle(AfterTheFirst):
    """A turning state of two dimensions with noise of 0.5, its first component seen in noise of 0.5."""

    def PX0(self):
        return d.IndepProd(d.Normal(), d.Normal())

    def turned(self, x):
        c, s = self.damping * np.cos(self.frequency), self.damping * np.sin(self.frequency)
        return c * x[:, 0] - s * x[:, 1], s * x[:, 0] + c * x[:, 1]

    def PX(self, t, xp):
        return d.IndepProd(*(d.Normal(loc=loc, scale=0.5) for loc in self.turned(xp)))

    def observed(self, x):
        return d.Normal(loc=x[:, 0], scale=0.5)

    def proposal0(self, data):
        return self.PX0()

    def proposal(self, t, xp, data):
        seen, unseen = self.turned(xp)
        return d.IndepProd(d.Normal(loc=0.5 * (seen + data[t]), scale=np.sqrt(0.125)), d.Normal(loc=unseen, scale=0.5))


WRITTEN = [
    Written(Sinusoid, {"theta": d.Normal(scale=0.2)}, ssm.GuidedPF),
    Written(Cauchy, {"a": d.Normal(scale=0.2)}, ssm.Bootstrap),
    Written(Star, {"gamma": d.Normal(loc=0.5, scale=0.5), "c": d.Normal(loc=2.0)}, ssm.GuidedPF),
    Written(Autoregression, {"phi": d.Normal(scale=0.5)}, ssm.GuidedPF),
    Written(
        Volatility,
        {
            "level": d.Normal(),
            "persistence": d.TruncNormal(mu=0.9, sigma=0.1, a=-1.0, b=1.0),
            "variance": d.InvGamma(a=2.5, b=0.075),
        },
        ssm.Bootstrap,
    ),
    Written(Cycle, {"damping": d.Beta(8.0, 2.0), "frequency": LogNormal(d.Normal(loc=-0.7, scale=0.4))}, ssm.GuidedPF),
]


@cache
def written_for(model: epf.StateSpaceModel) -> Written:
    """The one with the model's parameters; a ValueError where its densities are others, at a few points."""
    found = next((each for each in WRITTEN if set(each.prior) == set(model.prior)), None)
    if found is None or not _agrees(found, model):
        raise ValueError(f"no model with the parameters {sorted(model.prior)} and its densities is written out.")
    return found


def _agrees(written: Written, model: epf.StateSpaceModel) -> bool:
    theta = model.parameters.to_theta(model.parameters.centre)
    theirs = written.kind(**{name: float(value) for name, value in theta.items()})
    draws = np.random.default_rng(0)
    pairs = [(written.prior[k].logpdf(float(theta[k])), model.prior[k].log_prob(theta[k])) for k in theta]
    for _ in range(3):
        x_prev, x = 1.5 * draws.standard_normal((2, *model.shapes.x.shape))
        y = draws.standard_normal()
        pairs += [
            (theirs.PX0().logpdf(x[None]), model.initial(theta).log_prob(x)),
            (theirs.PX(1, x_prev[None]).logpdf(x[None]), model.transition(theta, x_prev, None).log_prob(x)),
            (theirs.PY(1, None, x[None]).logpdf(y), model.observation(theta, x, None).log_prob(y)),
        ]
    return all(np.allclose(a, b, atol=1e-4) for a, b in pairs)
