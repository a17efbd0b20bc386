"""What is affine is read off the traced program: never True of a step, and True of what models are written with."""

import jax
import jax.numpy as jnp
import pytest

from epf_jax.core.dependence import depends_on, is_affine

Z, X = jnp.array([0.3, 0.5]), jnp.array([1.0, 2.0])
A = jnp.array([[2.0, 0.1], [0.3, 1.0]])


def euler(z, x):
    return jax.lax.fori_loop(0, 3, lambda i, c: c + 0.1 * (z[0] * x + z[1] * i), x)


def while_counting(z, x):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + z * x), (0, x))[1]


AFFINE = {
    "a polynomial's coefficients": lambda z, x: jnp.polyval(z, jnp.tanh(x)),
    "a branch by x": lambda z, x: jax.lax.cond(x[0] > 0, lambda: z[0] * x, lambda: z[1] * x),
    "one of three by x": lambda z, x: jax.lax.switch(x[0].astype(int), [lambda: z, lambda: 2 * z, lambda: x]),
    "a choice by x": lambda z, x: jnp.where(x > 0, z * x, 2 * z),
    "an entry by x": lambda z, x: z[x.astype(int)],
    "the right-hand side of a system": lambda z, x: jnp.linalg.solve(A, x + 0.1 * z),
    "an inverse of what is known": lambda z, x: jnp.linalg.inv(A) @ z,
    "Euler's steps": euler,
    "a loop that counts": while_counting,
    "a scan": lambda z, x: jax.lax.scan(lambda c, r: (c + z[0] * r, c), jnp.zeros(()), x)[1],
    "running sums": lambda z, x: jnp.cumsum(z),
    "interpolation of values": lambda z, x: jnp.interp(x, jnp.arange(2.0), z),
    "a step that is not used": lambda z, x: jax.jit(lambda a, b: (a * b, jnp.sign(a)))(z, x)[0],
    "checkpointed": lambda z, x: jax.checkpoint(lambda a: a * x)(z),
    "added at a place": lambda z, x: x.at[0].add(z[1] * x[1]),
    "sums of groups": lambda z, x: jax.ops.segment_sum(z, jnp.array([0, 0]), 2),
    "a Fourier transform": lambda z, x: jnp.real(jnp.fft.fft(z)),
}
OTHERS = {
    "a product": lambda z, x: z[0] * z[1] * x,
    "powers in a loop": lambda z, x: jax.lax.fori_loop(0, 3, lambda i, c: c * z[0], x),
    "the matrix of a system": lambda z, x: jnp.linalg.solve(A * z[0], x),
    "a branch by z": lambda z, x: jax.lax.cond(z[0] > 0, lambda: x, lambda: 2 * x),
    "a choice by z": lambda z, x: jnp.where(z > 0, x, 2 * x),
    "an entry by z": lambda z, x: x[z.astype(int)],
    "a loop until z": lambda z, x: jax.lax.while_loop(lambda c: c < z[0], lambda c: c + 1.0, jnp.zeros(())),
    "a sign in a scan": lambda z, x: jax.lax.scan(lambda c, r: (c + jnp.sign(z[0]) * r, c), jnp.zeros(()), x)[1],
    "an order": lambda z, x: jnp.argsort(z).astype(float),
    "what is first": lambda z, x: jax.lax.top_k(z, 1)[1].astype(float),
    "sorted": lambda z, x: jnp.sort(z),
    "sorted by z": lambda z, x: jax.lax.sort_key_val(z, x)[1],
    "rounded": lambda z, x: jnp.round(z),
    "fewer digits": lambda z, x: jax.lax.reduce_precision(z, 5, 10),
    "a bound": lambda z, x: jnp.maximum(z, 0.0),
    "a derivative of its own": lambda z, x: jax.nn.relu(z),
    "no derivative": lambda z, x: jax.lax.stop_gradient(z),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_functions_are_told(name):
    assert is_affine(AFFINE[name], Z, X)


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_are_never_taken_for_affine(name):
    assert not is_affine(OTHERS[name], Z, X)


def test_what_a_loop_carries_is_followed_turn_by_turn():
    """The argument reaches the last of three carried numbers in the third turn, and the fourth never."""

    def shifted(z, x):
        return jax.lax.fori_loop(0, 5, lambda i, c: (z[0], c[0], c[1], c[3]), (x[0], x[0], x[0], x[1]))

    assert depends_on(lambda z, x: shifted(z, x)[2], Z, X)
    assert not depends_on(lambda z, x: shifted(z, x)[3], Z, X)


def test_a_loop_without_a_turn_returns_what_it_was_given():
    def unturned(z, x):
        return jax.lax.while_loop(lambda c: x[0] > 9.0, lambda c: jnp.ones(2), z)

    assert depends_on(unturned, Z, X)
