"""Loops of a filter's steps."""

import jax
import jax.numpy as jnp
import numpy as np

from epf_jax.core.loops import scan_first


def test_many_loops_at_once_have_the_gradients_of_each():
    # As many as there are rows: numbers along the wrong axis would have the right shape.
    rows, weights = jnp.arange(4.0), jnp.arange(1.0, 5.0)

    @jax.jit
    def last(a, start):
        def step(x, row):
            x = a * x + row
            return x, x

        return scan_first(jnp.array(3), step, start, rows)[1] @ weights

    def all_at_once(a):
        return jax.vmap(last, (None, 0))(a, starts).sum()

    def one_by_one(a):
        return sum(last(a, start) for start in starts)

    starts = 10 * jnp.arange(4.0)
    for found, expected in zip(*(jax.value_and_grad(f)(0.5) for f in (all_at_once, one_by_one)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
