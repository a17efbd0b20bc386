"""Claims about `switching`, the distribution of a state with a regime."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import epf_jax as epf

PROBABILITIES = jnp.array([0.2, 0.5, 0.3])


def test_the_density_is_the_regimes_probability_times_the_rests_density():
    scalar = epf.switching(PROBABILITIES, lambda r: dist.Normal(jnp.array([0.0, 5.0, 9.0])[r], 2.0))
    expected = jnp.log(0.5) + dist.Normal(5.0, 2.0).log_prob(4.0)
    np.testing.assert_allclose(scalar.log_prob(jnp.array([1.0, 4.0])), expected, rtol=1e-6)
    vector = epf.switching(PROBABILITIES, lambda r: dist.Normal(jnp.array([0.0, 1.0]) * r, 2.0).to_event(1))
    expected = jnp.log(0.3) + jnp.sum(dist.Normal(jnp.array([0.0, 2.0]), 2.0).log_prob(jnp.array([1.0, 4.0])))
    np.testing.assert_allclose(vector.log_prob(jnp.array([2.0, 1.0, 4.0])), expected, rtol=1e-6)


def test_draws_have_the_regime_first_and_the_rest_given_it():
    # 4000 draws: standard error of a share p is sqrt(p (1 - p) / 4000) < 0.008; of a regime's mean, of 800 or more
    # draws with sd 1, 0.035. Four of each are allowed.
    d = epf.switching(PROBABILITIES, lambda r: dist.Normal(10.0 * r, 1.0))
    x = np.asarray(jax.vmap(d.sample)(jax.random.split(jax.random.key(0), 4000)))
    for r in range(3):
        rest = x[x[:, 0] == r, 1]
        assert abs(len(rest) / 4000 - float(PROBABILITIES[r])) < 4 * 0.008
        assert abs(rest.mean() - 10.0 * r) < 4 * 0.035


@pytest.mark.parametrize(
    ("error", "message", "build"),
    [
        (ValueError, r"^probabilities: .*vector.*shape \(2, 2\)", lambda: epf.switching(jnp.eye(2), lambda r: None)),
        (TypeError, r"^given: it will be called as given\(regime\)", lambda: epf.switching(PROBABILITIES, lambda: 1)),
        (TypeError, r"^given: .*returned float", lambda: epf.switching(PROBABILITIES, lambda r: 1.0)),
    ],
)
def test_wrong_arguments_are_refused_by_name(error, message, build):
    with pytest.raises(error, match=message):
        build()
