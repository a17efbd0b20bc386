"""The parameter filter's step against its box: identities that hold for every draw, in double precision."""

import numpy as np
import numpyro.distributions as dist
import pytest
import tiny
from scipy.stats import kstest, norm

import epf_jax as epf

pytestmark = pytest.mark.usefixtures("x64")
Y = [*tiny.Y, 0.3, -1.1]


def pulled(theta, x_prev, y, u):
    return dist.Normal(0.5 * (theta["a"] * x_prev + tiny.push(u)) + 0.4 * y, 0.9)


PROPOSALS = {"bootstrap": epf.bootstrap, "guided": lambda: epf.guided(pulled), "adapted": lambda: None}


@pytest.mark.parametrize("name", PROPOSALS)
def test_a_step_does_what_its_box_says_to_every_particle(name):
    # b becomes the density's difference between two places, a stays: both tell whose path and theta were taken.
    model, at, start = tiny.model("offset"), (0.4, -0.7), (0.0, 0.0)
    statistic = epf.taylor(model, 1, sampler=tiny.reader(at))
    parts = {"proposal": PROPOSALS[name](), "resample": epf.when_ess_below(0.6)}
    states, infos = tiny.steps(epf.extended_parameter_filter(model, 7, statistic=statistic, **parts), Y)
    assert 0 < sum(bool(info.resampled) for info in infos) < len(Y)
    paths = tiny.lineages(states, infos)
    for t, (before, state, info, y) in enumerate(zip(states, states[1:], infos, Y, strict=False), start=1):
        a, b, x_prev, x = (np.asarray(part) for part in (*before.theta.values(), before.x, state.x))
        np.testing.assert_array_equal(state.theta["a"], a[info.ancestors])
        told = tiny.log_path(at, paths[t], Y) - tiny.log_path(start, paths[t], Y)
        np.testing.assert_allclose(state.theta["b"], told / 50, atol=1e-9)
        mean = a * x_prev + 0.6 * np.cos(t)
        if name == "adapted":
            w = norm(mean + b + 0.2 * t, np.hypot(tiny.NOISE, tiny.SENSOR)).logpdf(y)
        elif info.resampled:
            continue  # the states that were weighed are gone
        else:
            w = norm(x + b + 0.2 * t, tiny.SENSOR).logpdf(y)
        if name == "guided":
            w += norm(mean, tiny.NOISE).logpdf(x) - norm(0.5 * mean + 0.4 * y, 0.9).logpdf(x)
        log_weights, increment = tiny.normalised(np.asarray(before.log_weights) + w)
        left = np.full(7, -np.log(7)) if info.resampled else log_weights
        np.testing.assert_allclose(state.log_weights, left, atol=1e-9)
        np.testing.assert_allclose(state.log_evidence - before.log_evidence, increment, atol=1e-9)
        np.testing.assert_allclose(info.log_increment, increment, atol=1e-9)
        np.testing.assert_allclose(info.ess, 1 / np.sum(np.exp(2 * log_weights)), rtol=1e-9)


def test_states_and_thetas_are_drawn_from_their_laws_independently():
    # Noise of x_t and of theta, each standardised by what it was drawn from; 20000 of each. Kolmogorov's distance has
    # a chance of 1e-4 to pass 2.23 / sqrt(N); a correlation has a standard error of 1 / sqrt(N): 4.5 are allowed.
    n, y, push = 20_000, 1.3, 0.6 * np.cos(1.0)
    filter_ = epf.storvik_filter(tiny.model(), n, resample=epf.multinomial)
    (before, state), (info,) = tiny.steps(filter_, [y])
    a, x_prev = (np.asarray(part)[info.ancestors] for part in (before.theta["a"], before.x))
    x, gain = np.asarray(state.x), tiny.NOISE**2 / (tiny.NOISE**2 + tiny.SENSOR**2)
    mean = a * x_prev + push
    of_x = (x - mean - gain * (y - 0.2 - mean)) / (tiny.NOISE * np.sqrt(1 - gain))
    precision = tiny.PRIOR[1] ** -2 + (x_prev / tiny.NOISE) ** 2
    centre = (tiny.PRIOR[0] / tiny.PRIOR[1] ** 2 + x_prev * (x - push) / tiny.NOISE**2) / precision
    of_theta = (np.asarray(state.theta["a"]) - centre) * np.sqrt(precision)
    for noise in (of_x, of_theta):
        assert kstest(noise, "norm").statistic < 2.23 / np.sqrt(n)
    assert np.max(np.abs(np.corrcoef(of_theta, [of_x, a])[0, 1:])) < 4.5 / np.sqrt(n)


def test_a_box_of_nodes_holds_the_density_of_each_particles_path():
    # While paths are remembered (six steps), the nodes of a box that was cut are evaluated along them.
    statistic = epf.chebyshev(tiny.model(), 14, sampler=tiny.reader((0.5,)))
    filter_ = epf.extended_parameter_filter(tiny.model(), 6, statistic=statistic, resample=epf.when_ess_below(0.5))
    state, widths = filter_.init(tiny.KEY), set()
    path = np.asarray(state.x)[:, None]
    for t, y in enumerate(Y, start=1):
        # Theta is put back to where it is likely: the reader has left the density there.
        state = state._replace(theta={"a": 0.1 * np.arange(6.0)})
        state, info = filter_.step(tiny.KEY, state, y)
        path = np.concatenate([path[info.ancestors], np.asarray(state.x)[:, None]], axis=1)
        (low,), (high,) = np.asarray(state.S.low)[0], np.asarray(state.S.high)[0]
        widths.add(round(high - low, 6))
        nodes = 0.5 * (low + high) - 0.5 * (high - low) * np.cos(np.pi * np.arange(14) / 13)
        log_p = np.array([tiny.log_path((a,), path, Y) - norm(*tiny.PRIOR).logpdf(a) for a in nodes]).T
        expected = log_p - log_p.max(axis=1, keepdims=True)
        values = np.asarray(state.S.values) - np.max(state.S.values, axis=1, keepdims=True)
        in_order = np.abs(values - expected).sum() < np.abs(values - expected[:, ::-1]).sum()
        np.testing.assert_allclose(values, expected if in_order else expected[:, ::-1], atol=1e-8, err_msg=f"t = {t}")
    assert len(widths) > 2  # it was cut
