"""The logarithm and the normal distribution function in plain arithmetic, against Python's own."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from epf_jax.core import elementary

log, log_ndtr, normal_quantile_of_log = map(
    jax.jit, (elementary.log, elementary.log_ndtr, elementary.normal_quantile_of_log)
)

LOG_UNITS = {"float32": 4, "float64": 16}  # 2.2 and 12 were seen: a polynomial of degree 18 made from Chebyshev's

# Of the distribution function's logarithm, which adds numbers as large as itself, and of its inverse, in the same units:
NDTR_UNITS = {"float32": 4, "float64": 64}  # 2.7 and 50 were seen


def slopes(function):
    return jax.jit(jax.vmap(jax.grad(function)))


@pytest.fixture
def dtype(precision):
    return np.dtype(precision)


def test_the_logarithm_is_that_of_numpy(dtype):
    x = np.concatenate([np.linspace(0.5, 3, 1001), np.geomspace(1e-30, 1e30, 1001)]).astype(dtype)
    units = LOG_UNITS[dtype.name] * np.finfo(dtype).eps
    np.testing.assert_allclose(log(jnp.asarray(x)), np.log(x.astype(float)), rtol=units)
    np.testing.assert_array_equal(log(jnp.array([1.0, np.inf, np.nan])), [0.0, np.inf, np.nan])


def test_the_logarithm_has_the_slope_of_one(dtype):
    slope = slopes(log)(jnp.array([1.0, 2.5, 1e8]))
    np.testing.assert_allclose(slope, [1.0, 0.4, 1e-8], rtol=4 * np.finfo(dtype).eps)


def test_the_logarithm_of_the_distribution_function_is_that_of_scipy(dtype):
    x = np.concatenate([np.linspace(-40, 6, 2001), -np.geomspace(1e-3, 1e6, 200)]).astype(dtype)
    exact = special.log_ndtr(x.astype(float))
    units = np.finfo(dtype).eps * NDTR_UNITS[dtype.name]
    np.testing.assert_allclose(log_ndtr(jnp.asarray(x)), exact, rtol=units, atol=units)
    np.testing.assert_array_equal(log_ndtr(jnp.array([-np.inf, np.inf, np.nan])), [-np.inf, 0.0, np.nan])


def test_it_has_the_slope_of_density_over_distribution_function(dtype):
    x = np.array([-30.0, -5.0, -0.1, 0.0, 2.0], dtype)
    exact = np.exp(-0.5 * x.astype(float) ** 2 - special.log_ndtr(x.astype(float))) / math.sqrt(2 * math.pi)
    # an exponential of numbers as large as x^2 / 2 = 450 has that many units
    np.testing.assert_allclose(slopes(log_ndtr)(jnp.asarray(x)), exact, rtol=500 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(jax.grad(log_ndtr)(-jnp.inf), 0.0)


def test_its_inverse_is_the_quantile_in_both_tails(dtype):
    p = np.concatenate([np.linspace(0.01, 0.99, 99), 1 - np.geomspace(1e-6, 1e-2, 30), np.geomspace(1e-30, 1e-2, 30)])
    log_p = np.log(p).astype(dtype)
    # of the p that the rounded logarithm stands for: near one its own rounding is all that is left of 1 - p
    exact = np.where(
        log_p > -0.7, -special.ndtri(-np.expm1(log_p.astype(float))), special.ndtri_exp(log_p.astype(float))
    )
    units = np.finfo(dtype).eps * NDTR_UNITS[dtype.name]
    np.testing.assert_allclose(normal_quantile_of_log(jnp.asarray(log_p)), exact, rtol=2 * units, atol=2 * units)


def test_its_inverse_finds_the_place_again_and_has_the_inverse_slope(dtype):
    log_p = np.concatenate([np.linspace(-3, np.log(0.55), 200), -np.geomspace(3, 1e5, 200)]).astype(dtype)
    x = normal_quantile_of_log(jnp.asarray(log_p))
    units = np.finfo(dtype).eps * NDTR_UNITS[dtype.name]
    np.testing.assert_allclose(special.log_ndtr(np.asarray(x, float)), log_p, rtol=units, atol=units)
    slope = slopes(normal_quantile_of_log)(jnp.asarray(log_p))
    there = slopes(log_ndtr)(x)
    # Both are exponentials of differences between numbers as large as log p, each rounded twice.
    assert np.all(np.abs(slope * there - 1) < 4 * (4 - log_p) * np.finfo(dtype).eps)
