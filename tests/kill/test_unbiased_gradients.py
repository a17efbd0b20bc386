"""Gradients of the evidence: unbiased with a score for every choice of ancestors, by differences of Kalman's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import epf_jax as epf

A = 0.7


@pytest.mark.parametrize("proposal", [epf.bootstrap(), epf.score_gradient(epf.bootstrap())], ids=["path", "score"])
def test_the_evidence_has_an_unbiased_gradient_with_four_particles(proposal):
    resample = epf.stop_gradient_resampling(epf.multinomial)

    def evidence(a, key):
        filter_ = epf.bootstrap_filter(tiny.model(), 4, theta={"a": a}, proposal=proposal, resample=resample)
        return jnp.exp(epf.run(key, filter_, jnp.asarray(tiny.Y, float), levels=()).log_evidence[-1])

    keys = jax.random.split(tiny.KEY, 20_000)
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(evidence), in_axes=(None, 0)))(A, keys)
    around = np.exp(tiny.kalman(np.array([A - 1e-4, A, A + 1e-4]), tiny.NOISE)[0][-1])
    tiny.assert_unbiased(values, around[1])
    tiny.assert_unbiased(slopes, (around[2] - around[0]) / 2e-4)
