"""Upper triangular factors of least squares, by rotations of the rows of a regression.

R^T R is the sum of the rows' products. In float32 R holds twice as many digits as that sum, which would be useless for
data far from zero. A factor with few columns is a tuple of rows, which XLA computes for all particles at once; a larger
one is an array, whose rotations are a loop.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epf_jax.core.choice import where
from epf_jax.core.gaussian import diagonal as diagonal_of
from epf_jax.core.gaussian import root, rotation, solve_upper
from epf_jax.core.polynomials import is_zero

_MOST_NUMBERS = 6  # columns of a factor whose numbers stand alone

Factor = Any
"""A tuple of rows of numbers, or an array."""


def empty(num_rows: int, num_columns: int) -> Factor:
    """The factor of no rows."""
    if num_columns > _MOST_NUMBERS:
        return jnp.zeros((num_rows, num_columns))
    return tuple(tuple(jnp.zeros(()) for _ in range(j, num_columns)) for j in range(num_rows))


def add_rows(R: Factor, rows: Sequence[Sequence[Any]]) -> Factor:
    """The factor after more rows, each rotated into it."""
    if isinstance(R, tuple) and len(rows) <= _MOST_NUMBERS:
        for row in rows:
            R = _with_row(R, list(row))
        return R
    dtype = jnp.result_type(*jax.tree.leaves(R))
    together = jnp.stack([_together(row, dtype) for row in rows])
    if isinstance(R, tuple):  # many rows, which XLA would take long to compile one by one
        R = jax.tree.map(lambda number: jnp.asarray(number, dtype), R)
        return jax.lax.scan(lambda R, row: (_with_row(R, list(row)), None), R, together)[0]

    def rotate(j, both):
        R, row = both
        c, s = rotation(R[j, j], row[j])
        return R.at[j].set(c * R[j] + s * row), c * row - s * R[j]

    def add(R, row):
        return jax.lax.fori_loop(0, R.shape[0], rotate, (R, row))[0], None

    return jax.lax.scan(add, R, together)[0]


def scale_of_sum(*scales: Float[Array, "d _"]) -> Float[Array, "d d"]:
    """Lower triangular scale of the sum of independent vectors with these scales, by rotations or reflections.

    In float32 the square of a large scale would leave nothing of a small noise.
    """
    dim = scales[0].shape[0]
    if dim == 1:
        return root(jnp.sum(jnp.concatenate(scales, axis=1) ** 2, axis=1, keepdims=True))
    if dim > _MOST_NUMBERS:
        return _reflected(jnp.concatenate(scales, axis=1).T).T
    return dense(add_rows(empty(dim, dim), [list(column) for scale in scales for column in scale.T])).T


def _reflected(rows: Float[Array, "m d"]) -> Float[Array, "d d"]:
    """The factor of rows that are at least as many as columns, by Householder's reflections: one loop over columns."""
    dim = rows.shape[1]

    def reflect(j, rows):
        column = where(jnp.arange(len(rows)) >= j, rows[:, j], 0.0)
        norm = root(jnp.sum(column**2))
        across = column.at[j].add(where(column[j] < 0, -norm, norm))
        square = jnp.sum(across**2)
        return rows - across[:, None] * (2 / where(square > 0, square, 1.0) * (across @ rows))

    R = jnp.triu(jax.lax.fori_loop(0, dim, reflect, rows)[:dim])
    return where(diagonal_of(R)[:, None] < 0, -R, R)


def _with_row(R: tuple, left: list[Any]) -> tuple:
    rows = []
    for j, first in enumerate(R):
        if is_zero(left[j]):  # whatever the data are
            rows.append(first)
            continue
        c, s = rotation(first[0], left[j])
        pairs = list(zip(first, left[j:], strict=True))
        rows.append(tuple(c * a + s * b for a, b in pairs))
        left[j:] = [c * b - s * a for a, b in pairs]
    return tuple(rows)


def _together(numbers: Sequence[Any], dtype: Any) -> Float[Array, " m"]:
    return jnp.stack([jnp.asarray(number, dtype) for number in numbers])


def times(R: Factor, w: Sequence[Any]) -> list[Float[Array, ""]]:
    """R w, its numbers one by one."""
    if isinstance(R, tuple):
        return [sum(a * b for a, b in zip(row, w[j:], strict=True)) for j, row in enumerate(R)]
    return list(R @ _together(w, R.dtype))


def dense(R: Factor) -> Float[Array, "n m"]:
    """The factor as an array."""
    if not isinstance(R, tuple):
        return R
    return jnp.stack([jnp.stack([jnp.zeros_like(row[0])] * j + list(row)) for j, row in enumerate(R)])


def list_of_rows(R: Factor) -> list[list[Any]]:
    """The factor's rows, as lists of numbers."""
    if not isinstance(R, tuple):
        return list(map(list, R))
    return [[np.zeros(())] * j + list(row) for j, row in enumerate(R)]


def solve(R: Factor, b: Sequence[Any]) -> list[Float[Array, ""]]:
    """The x with R x = b, for the square part of R."""
    if not isinstance(R, tuple):
        return list(solve_upper(R[:, : R.shape[0]].T, _together(b, R.dtype)))
    x: list[Any] = []
    for row, value in zip(reversed(R), reversed(b), strict=True):
        x.insert(0, (value - sum(a * known for a, known in zip(row[1:], x, strict=False))) / row[0])
    return x


def diagonal(R: Factor) -> list[Float[Array, ""]]:
    """The numbers on the diagonal, which are at least zero."""
    return [row[0] for row in R] if isinstance(R, tuple) else list(diagonal_of(R))


def last_column(R: Factor) -> list[Float[Array, ""]]:
    """The numbers of the last column."""
    return [row[-1] for row in R] if isinstance(R, tuple) else list(R[:, -1])
