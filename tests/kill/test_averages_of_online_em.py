"""Online EM: its running averages against twenty lines of NumPy, and its backward draws against all pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from scipy.special import softmax
from scipy.stats import norm

import epf_jax as epf

pytestmark = pytest.mark.usefixtures("x64")
N, A = 100, 0.4


def rows(S):
    """The statistics of all particles, the numbers of each in a row."""
    return np.concatenate([np.reshape(leaf, (N, -1)) for leaf in tiny.leaves(S)], axis=1)


def test_averages_are_those_over_all_pairs_and_backward_draws_come_near():
    model = tiny.model()
    statistic = epf.taylor(model, 1)
    options = {"statistic": statistic, "theta": {"a": A}, "wait": 100, "step_size": lambda t: t**-0.7}
    options |= {"proposal": epf.bootstrap(), "resample": epf.when_ess_below(0.9)}
    every, some = (epf.online_em(model, N, num_backward=num, **options) for num in (None, 8))

    @jax.jit
    def shares(x_prev, x, y, t):
        def one(x_prev, x):
            S = statistic.update(tiny.KEY, statistic.init(), {"a": A}, x_prev, x, y, t)
            return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(S)])

        return jax.vmap(jax.vmap(one, (0, None)), (None, 0))(x_prev, x)

    state = every.init(tiny.KEY)
    before = np.zeros_like(rows(state.S))
    for t, y in enumerate(tiny.Y, start=1):
        new, _ = every.step(tiny.KEY, state, y)
        drawn, _ = some.step(tiny.KEY, state, y)
        np.testing.assert_array_equal(new.x, drawn.x)
        x_prev, x, gamma = np.asarray(state.x), np.asarray(new.x), t**-0.7
        to = np.asarray(state.log_weights) + norm(A * x_prev + 0.6 * np.cos(t), tiny.NOISE).logpdf(x[:, None])
        b = softmax(to, axis=1)
        pairs = (1 - gamma) * before + gamma * np.asarray(shares(x_prev, x, y, t))
        before = np.einsum("ij,ijk->ik", b, pairs)
        np.testing.assert_allclose(rows(new.S), before, atol=1e-9)
        # One ancestor alone has the variance of a draw from b; the mean of eight moves' places, far less.
        variance = np.einsum("ij,ijk->k", b, (pairs - before[:, None]) ** 2)
        told = variance > 1e-9
        assert told.any()
        assert np.all(np.sum((rows(drawn.S) - before)[:, told] ** 2, axis=0) < 0.5 * variance[told])
        state = new
