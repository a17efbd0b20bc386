r"""Two ways in which the means of a Gaussian term can be linear, so that its path is a regression.

Linear in theta: :math:`H(x, u)\, \theta + h(x, u)`. The features are the slopes H, and theta is their coefficient. Or
linear in the state and the inputs: :math:`A(\theta)\, (x, u) + b(\theta)`. The features are x, u and one, with
coefficients that depend on theta in any way (the mean of an autoregression, :math:`\mu + \phi (x - \mu)`, its speed as
:math:`e^{-\kappa}`, the loadings of factors).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.core.dependence import depends_on, is_affine
from epf_jax.models.flat_theta import Numbers
from epf_jax.models.path_terms import GaussianTerm
from epf_jax.statistics.coefficients import put


class Means(NamedTuple):
    """How a term's means are linear; t is theta's flat vector.

    Attributes:
        in_theta: whether they are linear in theta itself.
        entering: which of the numbers they depend on.
        num_features: the number of columns of a row before the last one, the value less its mean at the prior's centre.
        features: `features(x_prev, x, u)` of each component, and its mean at the prior's centre.
        residual: `residual(t)`, for each component the vector whose product with a row is the residual at t.
        of_drawn: `of_drawn(t, drawn)(row, i)`, a row of component i with columns for the drawn numbers only, in which
            the means must be linear given all others; the others are moved to the other side at t.
    """

    in_theta: bool
    entering: Int[np.ndarray, " k"]
    num_features: int
    features: Callable[..., tuple[Float[Array, "d m"], Float[Array, " d"]]]
    residual: Callable[[Float[Array, " V"]], list[list[Any]]]
    of_drawn: Callable[..., Callable[..., list[Any]]]


def linear_in_theta(gaussian: GaussianTerm, numbers: Numbers, example: tuple) -> Means | None:
    """Means whose slopes with respect to theta are the features; None if they are not linear in theta."""
    x_prev, x, _, u = example
    if not is_affine(lambda v, *given: gaussian.mean(numbers.leaves(v), *given), numbers.c, x_prev, x, u):
        return None
    columns = which_enter(gaussian.mean, numbers, example)

    def features(x_prev, x, u):
        def mean(v):
            return gaussian.mean(numbers.leaves(put(numbers.c, columns, list(numbers.c[columns] + v))), x_prev, x, u)

        nothing = jnp.zeros(len(columns))
        return jax.jacfwd(mean)(nothing), mean(nothing)

    def residual(t):
        return [[*(numbers.c[i] - t[i] for i in columns), jnp.ones(())]] * gaussian.dim

    def of_drawn(t, drawn):
        return lambda row, i: _of_columns(row, columns, drawn, t - numbers.c)

    return Means(True, columns, len(columns), features, residual, of_drawn)


def linear_in_state(gaussian: GaussianTerm, numbers: Numbers, example: tuple) -> Means | None:
    """Means whose features are one, the state and the inputs; None if they are not linear in these.

    Inputs can be features if they were real numbers when the model was inspected; a mean that depends on other inputs
    (the time index) is not linear. The feature one comes first, so that rows of a state far from zero lose no digits.
    """
    read, mean = _of_state(gaussian, numbers, example)
    (x_prev, x, _, u), dtype = example, numbers.c.dtype
    nowhere = np.zeros(jax.eval_shape(read, x_prev, x, u).shape, dtype)
    if not is_affine(mean, nowhere, numbers.c):
        return None
    if depends_on(lambda rest, w, t: mean(w, t, *rest), (x_prev, x, u), nowhere, numbers.c):
        return None  # of the inputs, on one that is no real number

    def coefficients(t):
        """(b, A), a row for each component."""
        A, b = jax.jacfwd(mean)(nowhere, t), mean(nowhere, t)
        return jnp.concatenate([b[:, None], A.reshape(gaussian.dim, -1)], axis=1)

    def features(x_prev, x, u):
        w = read(x_prev, x, u)
        return jnp.tile(jnp.concatenate([jnp.ones(1, dtype), w]), (gaussian.dim, 1)), mean(w, numbers.c)

    def residual(t):
        return [[*row, jnp.ones(())] for row in coefficients(numbers.c) - coefficients(t)]

    def of_drawn(t, drawn):
        def moved(a):
            return coefficients(put(t, drawn, list(numbers.c[drawn] + a)))

        slopes, rest = jax.jacfwd(moved)(jnp.zeros(len(drawn), dtype)), residual(put(t, drawn, list(numbers.c[drawn])))
        return lambda row, i: [*(_dot(row[:-1], slopes[i, :, j]) for j in range(len(drawn))), _dot(row, rest[i])]

    return Means(False, which_enter(gaussian.mean, numbers, example), len(nowhere) + 1, features, residual, of_drawn)


def _of_state(gaussian: GaussianTerm, numbers: Numbers, example: tuple) -> tuple[Callable, Callable]:
    """Functions that put the state and the inputs of a mean into a row, and compute the mean from the row.

    They are `read(x_prev, x, u)` and `mean(w, t, x_prev, x, u)`; the last three arguments serve for the rest.
    """
    place = {"initial": None, "transition": 0, "observation": 1}[gaussian.term.name]
    x_prev, x, _, u = example
    structure: Any
    leaves, structure = jax.tree.flatten((x_prev, x, u))

    def at(leaf, t, i):
        return gaussian.mean(numbers.leaves(t), *structure.unflatten([*leaves[:i], leaf, *leaves[i + 1 :]]))

    entering = [
        i
        for i, leaf in enumerate(leaves)
        if place is not None
        and (i >= 2 or i == place)
        and _is_real(leaf)
        and depends_on(partial(at, i=i), leaf, numbers.c)
    ]
    ends = np.cumsum([np.size(leaves[i]) for i in entering])[:-1]

    def read(x_prev, x, u):
        now = jax.tree.leaves((x_prev, x, u))
        row = [jnp.ravel(now[i]).astype(numbers.c.dtype) for i in entering]
        return jnp.concatenate([jnp.zeros(0, numbers.c.dtype), *row])

    def mean(w, t, x_prev=x_prev, x=x, u=u):
        now = jax.tree.leaves((x_prev, x, u))
        for i, part in zip(entering, jnp.split(w, ends), strict=False):  # of nothing, one empty part
            now[i] = part.reshape(np.shape(leaves[i])).astype(jnp.result_type(leaves[i]))
        return gaussian.mean(numbers.leaves(t), *structure.unflatten(now))

    return read, mean


def which_enter(function: Callable, numbers: Numbers, example: tuple) -> Int[np.ndarray, " k"]:
    """The numbers of those leaves of theta that a function of the leaves depends on."""
    (x_prev, x, _, u), leaves = example, numbers.leaves(numbers.c)

    def with_leaf(leaf, i):
        return function([*leaves[:i], leaf, *leaves[i + 1 :]], x_prev, x, u)

    found = [i for i, leaf in enumerate(leaves) if depends_on(partial(with_leaf, i=i), leaf)]
    return np.concatenate([np.zeros(0, int), *(numbers.places[i] for i in found)])


def _of_columns(
    row: Sequence[Any], columns: Int[np.ndarray, " k"], drawn: Int[np.ndarray, " A"], v: Float[Array, " V"]
) -> list[Any]:
    """A row with columns for the drawn numbers only; all others are moved to the other side at v."""
    *slopes, last = row
    wide: list[Any] = [np.zeros(())] * len(drawn)
    for i, slope in zip(columns, slopes, strict=True):
        if i in drawn:
            wide[np.searchsorted(drawn, i)] = slope
        else:
            last = last - slope * v[i]
    return [*wide, last]


def _dot(row: Sequence[Any], by: Any) -> Any:
    return sum((a * b for a, b in zip(row, by, strict=True)), jnp.zeros(()))


def _is_real(part: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(part), jnp.floating)
