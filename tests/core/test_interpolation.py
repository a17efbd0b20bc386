"""Interpolation between Chebyshev points against polynomials that it must reproduce, and the logarithm behind it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epf_jax.core.interpolation import between, compress, expand, points


@pytest.mark.parametrize("counts", [(5,), (40,), (4, 6)], ids=str)  # written out, by shares, a grid
def test_a_polynomial_is_read_back_between_its_nodes_and_at_them(counts, x64):
    def polynomial(*s):
        return sum((0.7 - 0.2 * i) * s_i**3 - s_i for i, s_i in enumerate(s)) + np.prod(s, axis=0)

    values = jnp.asarray(polynomial(*np.meshgrid(*map(points, counts), indexing="ij")))
    inside = np.random.default_rng(0).uniform(-1, 1, size=(20, len(counts)))
    nodes = np.stack([points(n)[np.arange(20) % n] for n in counts], axis=1)
    for places in (inside, nodes):
        found = jax.vmap(lambda s: between(values, s))(jnp.asarray(places))
        np.testing.assert_allclose(found, polynomial(*places.T), atol=1e-13)  # 64 times the 2e-16 of numbers near one


def test_values_of_any_size_are_read_back_at_a_node():
    values = jnp.array([0.0, -3e7, -1e30, 2.0])  # log-densities of a fixed box after many impossible steps
    for i, s in enumerate(points(4).astype(np.float32)):
        assert between(values, jnp.array([s])) == values[i]


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(5,), (40,), (4, 6)], ids=str)
def test_derivatives_at_a_node_are_numbers_in_both_modes(counts):
    values = jnp.asarray(np.random.default_rng(1).normal(size=counts), jnp.float32)
    node = jnp.array([points(n)[1] for n in counts], jnp.float32)
    read = partial(between, values)
    for derivative in (jax.jacfwd(read), jax.jacrev(read), jax.hessian(read)):
        assert np.isfinite(derivative(node)).all()


def test_compressed_log_densities_come_back_and_keep_their_slope(precision):
    eps = np.finfo(jnp.zeros(()).dtype).eps
    values = -jnp.asarray(np.concatenate([[0.0], np.geomspace(1e-3, 1e8, 200)]))
    back = expand(compress(values, 0.0), 0.0)
    # exp(log(1 + v / 10)) doubles the rounding of a logarithm of at most 16, times that size; near 0 it is that of 10.
    np.testing.assert_allclose(back, values, rtol=64 * eps, atol=64 * eps * 10)
    slope = jax.vmap(jax.grad(lambda v: compress(v, 0.0)))(values)
    np.testing.assert_allclose(slope, 1 / (1 - np.asarray(values) / 10), rtol=8 * eps)
