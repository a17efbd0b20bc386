"""Polynomials in several variables against NumPy's, and Taylor coefficients against analytic ones."""

from math import comb, factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln
from numpy.polynomial import polynomial as numpy_polynomial
from scipy.special import polygamma

from epf_jax.core import derivatives
from epf_jax.core.derivatives import forward_gradient, taylor_expansion
from epf_jax.core.polynomials import evaluate, is_zero, monomials, multi_indices, multiply, num_coefficients

VALUE = {1: numpy_polynomial.polyval, 2: numpy_polynomial.polyval2d, 3: numpy_polynomial.polyval3d}


def as_table(coefficients, num_variables, degree):
    """The coefficients as NumPy's table, one axis per variable, for polyval, polyval2d, polyval3d."""
    table = np.zeros((degree + 1,) * num_variables)
    for alpha, c in zip(multi_indices(num_variables, degree), coefficients, strict=True):
        table[alpha] = c
    return table


@pytest.mark.parametrize(("num_variables", "degree"), [(1, 7), (2, 5), (3, 4), (5, 2)])
def test_multi_indices_are_all_of_a_degree_the_constant_first(num_variables, degree):
    found = multi_indices(num_variables, degree)
    assert (
        len(found)
        == len(set(found))
        == num_coefficients(num_variables, degree)
        == comb(degree + num_variables, num_variables)
    )
    totals = [sum(alpha) for alpha in found]
    assert totals == sorted(totals)
    assert totals[0] == 0
    assert max(totals) == degree
    assert found[1] == (1,) + (0,) * (num_variables - 1)  # the first variable leads within a degree
    # An expansion of lower degree is a prefix of one of higher degree.
    assert multi_indices(num_variables, degree + 1)[: len(found)] == found


@pytest.mark.slow
@pytest.mark.parametrize(("num_variables", "degree"), [(1, 7), (2, 4), (3, 2)])
def test_polynomials_evaluate_and_multiply_as_numpys(num_variables, degree, x64):
    rng = np.random.default_rng(num_variables)
    a, b = rng.normal(size=(2, num_coefficients(num_variables, degree)))
    z = rng.normal(size=(4, num_variables))
    of = VALUE[num_variables]
    expected = of(*z.T, as_table(a, num_variables, degree))
    found = jax.jit(jax.vmap(lambda v: evaluate(jnp.asarray(a), v, degree)))(z)
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    np.testing.assert_allclose(
        jax.vmap(lambda v: monomials(v, degree) @ jnp.asarray(a))(jnp.asarray(z)), expected, rtol=1e-11
    )

    @jax.jit
    def products(a, b):
        return multiply(a, b, num_variables, degree), multiply(a, a, num_variables, degree)

    product, square = products(jnp.asarray(a), jnp.asarray(b))
    assert len(product) == num_coefficients(num_variables, 2 * degree)
    other = of(*z.T, as_table(b, num_variables, degree))
    np.testing.assert_allclose(of(*z.T, as_table(product, num_variables, 2 * degree)), expected * other, rtol=1e-9)
    np.testing.assert_allclose(of(*z.T, as_table(square, num_variables, 2 * degree)), expected**2, rtol=1e-9)


def test_components_multiply_and_evaluate_elementwise(x64):
    a, b = np.random.default_rng(5).normal(size=(2, 6, 3))  # degree 2 in two variables, three components
    product = jnp.stack(multiply(jnp.asarray(a), jnp.asarray(b), 2, 2))
    z = jnp.array([0.3, -0.8])
    for i in range(3):
        np.testing.assert_allclose(
            product[:, i], multiply(jnp.asarray(a[:, i]), jnp.asarray(b[:, i]), 2, 2), rtol=1e-12
        )
    np.testing.assert_allclose(
        evaluate(product, z, 4), evaluate(jnp.asarray(a), z, 2) * evaluate(jnp.asarray(b), z, 2), rtol=1e-12
    )


# ----------------------------------------------------------------------------------------------------------- derivatives


def test_the_expansion_of_a_sine_is_right_where_factorials_overflow():
    # 13! = 6.2e9 does not fit an int32. Coefficients of sin(theta x) at 0: x^k / k!, with signs 0, 1, 0, -1, ...
    expand = taylor_expansion(lambda z, x: jnp.sin(z[0] * x), jnp.zeros(1), 13, jnp.asarray(1.0))
    x = 1.7
    found = jax.jit(expand)(jnp.asarray(x))
    expected = [(0.0, 1.0, 0.0, -1.0)[k % 4] * x**k / factorial(k) for k in range(14)]
    assert all(coefficient.dtype == jnp.float32 for coefficient in found)
    # Products of up to 13 rounded factors: 13 * 6e-8 relative, and a few times that from jet's own recursions.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-12)


def test_coefficients_that_always_vanish_are_not_multiplied():
    expand = taylor_expansion(lambda z, x: jnp.sin(z[0] * x), jnp.zeros(1), 7, jnp.asarray(1.0))
    jaxpr = jax.make_jaxpr(lambda x: multiply(expand(x), expand(x), 1, 7))(1.0)
    assert [is_zero(h) for h in expand(jnp.asarray(1.7))] == [True, False] * 4
    names = [eqn.primitive.name for eqn in jaxpr.eqns]
    assert "sin" not in names  # of 0 times x, which is 0
    elsewhere = taylor_expansion(lambda z, x: jnp.sin(z[0] * x), jnp.ones(1), 7, jnp.asarray(1.0))
    assert not any(is_zero(h) for h in elsewhere(jnp.asarray(1.7)))


@pytest.mark.parametrize(("num_variables", "order"), [(1, 9), (2, 6), (3, 4), (4, 3)])
def test_the_expansion_of_an_exponential_has_its_analytic_coefficients(num_variables, order, x64):
    # exp(x (b . z)) at c: exp(x b . c) x^|alpha| b^alpha / alpha!
    b, c = np.array([1.0, 2.0, -0.5, 0.7])[:num_variables], np.array([0.1, -0.2, 0.3, 0.0])[:num_variables]
    expand = taylor_expansion(lambda z, x: jnp.exp(x * (b @ z)), jnp.asarray(c), order, jnp.asarray(1.0))
    found = jax.jit(expand)(jnp.asarray(0.8))
    expected = [
        np.exp(0.8 * b @ c) * 0.8 ** sum(alpha) * np.prod(b ** np.array(alpha)) / np.prod([factorial(i) for i in alpha])
        for alpha in multi_indices(num_variables, order)
    ]
    # The solve per degree loses its condition number, below 1e3 at these sizes, of 1e-16.
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_vector_functions_expand_component_by_component(x64):
    def function(z, x):
        return jnp.stack([z[0] * x, jnp.sin(z[1]) * z[0], x**2])

    found = taylor_expansion(function, jnp.zeros(2), 3, jnp.asarray(1.0))(jnp.asarray(2.0))
    expected = np.zeros((10, 3))
    place = {alpha: i for i, alpha in enumerate(multi_indices(2, 3))}
    expected[place[1, 0], 0] = 2.0
    expected[place[1, 1], 1] = 1.0  # z_0 sin z_1 = z_0 z_1 - z_0 z_1^3 / 6, the latter of degree 4
    expected[place[0, 0], 2] = 4.0
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("num_variables", [1, 2])
def test_nested_forward_mode_gives_the_coefficients_that_jet_gives(num_variables, x64, monkeypatch):
    def function(z, x):
        return jnp.stack([jnp.sin(x * z[0]) * jnp.exp(z[-1]), jnp.tanh(z[0])])

    args = function, jnp.full(num_variables, 0.3), 3, jnp.asarray(1.0)
    by_jet = jax.jit(taylor_expansion(*args))(jnp.asarray(0.6))

    def refuse(*_, **__):
        raise NotImplementedError("no rule")

    monkeypatch.setattr(derivatives, "jet", refuse)
    by_nesting = jax.jit(taylor_expansion(*args))(jnp.asarray(0.6))
    np.testing.assert_allclose(by_nesting, by_jet, rtol=1e-10, atol=1e-12)


def test_a_function_that_jet_cannot_expand_falls_back_at_low_orders(x64):
    expand = taylor_expansion(lambda z, x: x * gammaln(z[0]), jnp.array([2.5]), 4, jnp.asarray(1.0))
    found = jax.jit(expand)(jnp.asarray(3.0))
    expected = [3.0 * gammaln(2.5)] + [3.0 * polygamma(k - 1, 2.5) / factorial(k) for k in range(1, 5)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    with pytest.raises(ValueError, match=r"^order: cannot expand the height to order 7.*lgamma\. Use epf\.chebyshev"):
        taylor_expansion(lambda z: gammaln(z[0]), jnp.array([2.5]), 7, what="height")


def test_a_vector_clipped_to_scalars_which_jet_cannot_expand_falls_back(x64):
    expand = taylor_expansion(lambda z: jnp.clip(z, -0.9, 0.9) ** 2, jnp.array([0.5, 2.0]), 2)
    expected = {(0, 0): [0.25, 0.81], (1, 0): [1.0, 0.0], (0, 1): [0.0, 0.0], (2, 0): [1.0, 0.0]}
    for index, coefficient in zip(multi_indices(2, 2), expand(), strict=True):
        wanted = np.array(expected.get(tuple(index), [0.0, 0.0]))
        np.testing.assert_allclose(np.broadcast_to(coefficient, 2), wanted, atol=1e-12)


def test_a_loop_of_no_fixed_length_has_a_gradient_in_reverse_mode(x64):
    def powers(n, z):  # sum over k < n of (z_0 z_1)^k
        return jax.lax.fori_loop(0, n, lambda k, total: total + (z[0] * z[1]) ** k, 0.0)

    def slope(wrap):
        return jax.jit(jax.vmap(lambda n, z: jax.grad(wrap(lambda z: powers(n, z)))(z), (None, 0)))

    z = jnp.array([[0.5, 0.3], [-0.2, 0.7]])
    p = np.prod(z, axis=1)
    by_product = 1 + 2 * p + 3 * p**2  # d/dp of 1 + p + p^2 + p^3
    np.testing.assert_allclose(slope(forward_gradient)(4, z), by_product[:, None] * z[:, ::-1], rtol=1e-12)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        slope(lambda f: f)(4, z)
