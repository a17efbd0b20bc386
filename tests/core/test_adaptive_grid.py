"""The adaptive grid: what coarse nodes show of a density much narrower than their distance."""

import jax.numpy as jnp
import numpy as np
import pytest

from epf_jax.core.adaptive_grid import possible, product, seen

AT = product(np.linspace(-1.0, 1.0, 15), np.linspace(-1.0, 1.0, 15)).reshape(-1, 2)
CELL = np.full(2, 2 / 14)


@pytest.mark.parametrize("sd", [0.2, 0.02, 0.002])
def test_a_gaussian_narrower_than_a_cell_is_seen_where_it_is(sd):
    middle = np.array([0.13, -0.21])
    found = seen(jnp.asarray(-0.5 * np.sum(((AT - middle) / sd) ** 2, axis=1)), AT, CELL, 0.0)
    wide = sd * np.sqrt(float(found.flattening))  # a power 1/f of a Gaussian is sqrt(f) times as wide
    # Sums over nodes .6 sd and less apart are integrals: what they leave is exp(-2 pi^2 .6^2) of it, below a hundredth.
    np.testing.assert_allclose(found.mean, middle, atol=0.02 * wide)
    np.testing.assert_allclose(found.scale_tril, wide * np.eye(2), atol=0.03 * wide)
    assert (float(found.flattening) == 1.0) == (sd == 0.2)
    assert 0.55 * CELL[0] < wide < 1.3 * CELL[0] or sd == 0.2


def test_impossible_nodes_are_finite_and_lower_than_all_others():
    found = np.asarray(possible(jnp.array([2.0, -jnp.inf, -3e4, jnp.nan])))
    np.testing.assert_array_equal(found[[0, 2]], [2.0, -3e4])
    assert np.isfinite(found).all()
    assert found[[1, 3]].max() < -3e4
