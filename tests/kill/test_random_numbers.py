"""No random number serves twice, and points that are to fill a cube fill it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from conformance import FILTERS

import epf_jax as epf
from epf_jax.particles.quasi_random import kronecker

# Nodes share their random numbers on purpose, and take an observation twice with the same. Batches of loops over keys,
# in the last two, jax counts as reuse.
NOT_SEEN = ("nodes", "nodes_sigma", "practical", "epf_blackjax")


@pytest.mark.parametrize("name", [name for name in FILTERS if name not in NOT_SEEN])
def test_no_key_is_used_twice_in_a_step(name):
    filter_ = FILTERS[name](tiny.model(), 4)
    state = jax.eval_shape(filter_.init, tiny.KEY)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
    with jax.debug_key_reuse(True):
        jax.make_jaxpr(filter_.step)(tiny.KEY, state, 0.3, 1)


def test_every_coordinate_of_a_lattice_has_a_shift_of_its_own():
    points = np.array([kronecker(jax.random.key(k), 64, 3) for k in range(200)])
    shifts = points[:, 0]
    assert np.max(np.abs(np.corrcoef(shifts.T) - np.eye(3))) < 4.5 / np.sqrt(200)
    assert np.all(np.abs(shifts.mean(axis=0) - 0.5) < 4.5 / np.sqrt(12 * 200))


def test_first_states_of_a_lattice_are_put_in_order():
    # Row i stands at the share i / N of the cloud; the noise of the next step is a lattice once more together with it.
    filter_ = epf.bootstrap_filter(
        tiny.model(), 64, theta={"a": 0.7}, proposal=epf.quasi_random(epf.bootstrap()), resample=epf.in_order()
    )
    state = filter_.init(tiny.KEY)
    assert np.all(np.diff(state.x) > 0)
    state, info = filter_.step(tiny.KEY, state, tiny.Y[0])
    # Selected in the order of the states: so are the ancestors' places.
    assert np.all(np.diff(state.x) >= 0)
    assert np.unique(info.ancestors).size > 10
