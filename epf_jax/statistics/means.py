r"""Two ways in which the means of a Gaussian term are linear, so that a regression's rows hold all that a path says.

Linear in theta: :math:`H(x, u)\, \theta + h(x, u)`, the features the slopes H, theta itself their coefficients. Or
linear in the state and the inputs: :math:`A(\theta)\, (x, u) + b(\theta)`, the features x, u and one, with coefficients
that theta makes in any way (a mean to which an autoregression returns, :math:`\mu + \phi (x - \mu)`, its speed as
:math:`e^{-\kappa}`, the loadings of factors).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from epf_jax.dependence import depends_on, is_affine
from epf_jax.in_a_row import Numbers
from epf_jax.statistics.coefficients import of_coefficients, put
from epf_jax.terms import GaussianTerm


class Means(NamedTuple):
    """How a term's means are linear; t are theta's numbers in a row.

    Attributes:
        in_theta: whether they are linear in theta itself.
        entering: which of the numbers they depend on.
        num_features: columns of a row beside its last, which is the value less what is expected at the prior's centre.
        features: `features(x_prev, x, u)`, of each component, and its mean at the prior's centre.
        times: `times(t)`, for each component the numbers that its row is multiplied by for what t does not explain.
        of_drawn: `of_drawn(t, drawn)(row, i)`, a row of component i with columns for the drawn numbers alone, in which
            the means must be linear given all others; these are taken to the other side at t.
    """

    in_theta: bool
    entering: Int[np.ndarray, " k"]
    num_features: int
    features: Callable[..., tuple[Float[Array, "d m"], Float[Array, " d"]]]
    times: Callable[[Float[Array, " V"]], list[list[Any]]]
    of_drawn: Callable[..., Callable[..., list[Any]]]


def linear_in_theta(gaussian: GaussianTerm, numbers: Numbers, example: tuple) -> Means | None:
    """Means whose slopes with respect to theta are the features; None where they are not linear in theta."""
    x_prev, x, _, u = example
    if not is_affine(lambda v, *given: gaussian.mean(numbers.leaves(v), *given), numbers.c, x_prev, x, u):
        return None
    columns = entering(gaussian.mean, numbers, example)

    def features(x_prev, x, u):
        def mean(v):
            return gaussian.mean(numbers.leaves(put(numbers.c, columns, list(numbers.c[columns] + v))), x_prev, x, u)

        nothing = jnp.zeros(len(columns))
        return jax.jacfwd(mean)(nothing), mean(nothing)

    def times(t):
        return [[*(numbers.c[i] - t[i] for i in columns), jnp.ones(())]] * gaussian.dim

    def of_drawn(t, drawn):
        return lambda row, i: of_coefficients(row, columns, drawn, t - numbers.c)

    return Means(True, columns, len(columns), features, times, of_drawn)


def linear_in_state(gaussian: GaussianTerm, numbers: Numbers, example: tuple) -> Means | None:
    """Means whose features are the state, the inputs and one; None where they are not linear in these.

    Of inputs, real numbers can be features; a mean that depends on others (the time index) is not linear.
    """
    place = {"initial": None, "transition": 0, "observation": 1}[gaussian.term.name]
    x_prev, x, _, u = example
    given = [] if place is None else [example[place], *filter(_is_real, jax.tree.leaves(u))]
    if not all(map(_is_real, given)):
        return None
    dtype = numbers.c.dtype
    ends = np.cumsum([np.size(part) for part in given])

    def row_of(x_prev, x, u):
        parts = [] if place is None else [(x_prev, x)[place], *filter(_is_real, jax.tree.leaves(u))]
        return jnp.concatenate([jnp.zeros(0, dtype), *(jnp.ravel(part).astype(dtype) for part in parts)])

    def mean(w, t, x_prev=x_prev, x=x, u=u):
        """The mean at the row w of state and inputs; of x_prev, x and u what is no feature."""
        if place is None:
            return gaussian.mean(numbers.leaves(t), x_prev, x, u)
        parts = [p.reshape(np.shape(old)) for p, old in zip(jnp.split(w, ends[:-1]), given, strict=True)]
        structure: Any
        states, (leaves, structure) = [x_prev, x], jax.tree.flatten(u)
        states[place], *real = [p.astype(jnp.result_type(old)) for p, old in zip(parts, given, strict=True)]
        u = structure.unflatten([real.pop(0) if _is_real(leaf) else leaf for leaf in leaves])
        return gaussian.mean(numbers.leaves(t), *states, u)

    nowhere = np.zeros(int(ends[-1]) if len(ends) else 0, dtype)
    if not is_affine(mean, nowhere, numbers.c):
        return None
    if depends_on(lambda rest, w, t: mean(w, t, *rest), (x_prev, x, u), nowhere, numbers.c):
        return None  # of the inputs, on one that is no real number

    def coefficients(t):
        """(A, b), a row for each component."""
        A, b = jax.jacfwd(mean)(nowhere, t), mean(nowhere, t)
        return jnp.concatenate([A.reshape(gaussian.dim, -1), b[:, None]], axis=1)

    def features(x_prev, x, u):
        w = row_of(x_prev, x, u)
        return jnp.tile(jnp.append(w, jnp.ones((), dtype)), (gaussian.dim, 1)), mean(w, numbers.c)

    def times(t):
        return [[*row, jnp.ones(())] for row in coefficients(numbers.c) - coefficients(t)]

    def of_drawn(t, drawn):
        def moved(a):
            return coefficients(put(t, drawn, list(numbers.c[drawn] + a)))

        nothing = jnp.zeros(len(drawn), dtype)
        slopes, rest = jax.jacfwd(moved)(nothing), times(put(t, drawn, list(numbers.c[drawn] + nothing)))

        def of_row(row, i):
            by = [*(slopes[i, :, j] for j in range(len(drawn)))]
            return [*(_dot(row[:-1], column) for column in by), _dot(row, rest[i])]

        return of_row

    return Means(False, entering(gaussian.mean, numbers, example), len(nowhere) + 1, features, times, of_drawn)


def entering(function: Callable, numbers: Numbers, example: tuple) -> Int[np.ndarray, " k"]:
    """The numbers of those leaves of theta that a function of the leaves depends on."""
    (x_prev, x, _, u), leaves = example, numbers.leaves(numbers.c)

    def with_leaf(leaf, i):
        return function([*leaves[:i], leaf, *leaves[i + 1 :]], x_prev, x, u)

    found = [i for i, leaf in enumerate(leaves) if depends_on(partial(with_leaf, i=i), leaf)]
    return np.concatenate([np.zeros(0, int), *(numbers.places[i] for i in found)])


def _dot(row: Sequence[Any], by: Any) -> Any:
    return sum((a * b for a, b in zip(row, by, strict=True)), jnp.zeros(()))


def _is_real(part: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(part), jnp.floating)
