"""Polynomials in several variables, by total degree: multi-indices, products, evaluation.

A polynomial of P variables and degree D is a sequence of K = C(D + P, P) coefficients, ordered by total degree and,
within a degree, lexicographically. Index 0 is the constant. The sequence may be one array, or a tuple of arrays, which
is
faster: for N particles, each of K arrays of N is computed in one pass, without copies. Coefficients known to be zero
without data (NumPy zeros) cost nothing.
"""

from collections.abc import Sequence
from functools import cache
from itertools import combinations_with_replacement
from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MultiIndex = tuple[int, ...]
Coefficients = Sequence[Any] | Array


def num_coefficients(num_variables: int, degree: int) -> int:
    """K = C(degree + num_variables, num_variables)."""
    return comb(degree + num_variables, num_variables)


@cache
def multi_indices(num_variables: int, degree: int) -> tuple[MultiIndex, ...]:
    """All exponents of total degree <= `degree`, by total degree, then lexicographically from the first variable."""
    found = []
    for total in range(degree + 1):
        for variables in combinations_with_replacement(range(num_variables), total):
            found.append(tuple(variables.count(i) for i in range(num_variables)))
    return tuple(found)


@cache
def _position(num_variables: int, degree: int) -> dict[MultiIndex, int]:
    return {a: i for i, a in enumerate(multi_indices(num_variables, degree))}


def monomials(z: Float[Array, " P"], degree: int) -> Float[Array, " K"]:
    """z^alpha for every multi-index, each the product of an earlier one and one variable."""
    num_variables = z.shape[0]
    position = _position(num_variables, degree)
    values = [jnp.ones_like(z[0])]
    for a in multi_indices(num_variables, degree)[1:]:
        i = next(i for i, power in enumerate(a) if power > 0)
        parent = tuple(power - (j == i) for j, power in enumerate(a))
        values.append(values[position[parent]] * z[i])
    return jnp.stack(values)


def evaluate(coefficients: Coefficients, z: Float[Array, " P"], degree: int) -> Float[Array, "*d"]:
    """The polynomial at z; Horner's rule in one variable, running products in several."""
    if z.shape[0] > 1:
        return jnp.tensordot(monomials(z, degree), jnp.asarray(coefficients), axes=1)
    value = coefficients[degree]
    for k in range(degree - 1, -1, -1):
        value = value if is_zero(value) else value * z[0]
        value = value if is_zero(coefficients[k]) else value + coefficients[k]
    return value


def multiply(a: Coefficients, b: Coefficients, num_variables: int, degree: int) -> list[Any]:
    """The product of two polynomials of degree `degree`, of degree 2 `degree`; components multiply elementwise.

    Written out term by term: a scatter over index tables is ten times slower under `vmap` on a CPU.
    """
    indices = multi_indices(num_variables, degree)
    position = _position(num_variables, 2 * degree)
    products: list[Any] = [np.zeros(jnp.shape(a[0]), jnp.result_type(a[0]))] * len(position)
    square = a is b
    for i, alpha in enumerate(indices):
        for j, beta in enumerate(indices):
            if (square and j < i) or is_zero(a[i]) or is_zero(b[j]):
                continue
            k = position[tuple(p + q for p, q in zip(alpha, beta, strict=True))]
            term = (2.0 if square and j > i else 1.0) * a[i] * b[j]
            products[k] = term if is_zero(products[k]) else products[k] + term
    return products


def is_zero(value: Any) -> bool:
    """Whether a value is known to be zero before any data is seen."""
    return not isinstance(value, jax.Array) and not np.any(value)
