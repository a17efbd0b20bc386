"""`Factor`, one density of the path, and `View`, with which factors inspect a model."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from epf_jax.core.dependence import depends_on, is_affine
from epf_jax.models.path_terms import Term
from epf_jax.statistics.families import Family, Leaf, NotConjugateError


class Factor(NamedTuple):
    """One density of the path.

    Attributes:
        init: `init() -> s`, the empty sums.
        update: `update(s, theta, x_prev, x, y, u) -> s`; theta has the particle's own leaves, at which the factor is
            compared with the model.
        log_likelihood: `log_likelihood(s, features)`, up to a constant; `features` has the features of every leaf.
        products: pairs of leaves whose product enters, by position: they cannot be drawn together.
    """

    init: Callable[[], Any]
    update: Callable[..., Any]
    log_likelihood: Callable[[Any, list[Any]], Float[Array, ""]]
    products: frozenset[tuple[int, int]] = frozenset()


class View(NamedTuple):
    """What factors know about a model.

    Attributes:
        leaves: the leaves of the prior.
        reference: a central theta: the value of each leaf.
        example: arguments x_prev, x, y, u of the right shapes.
        probe: `probe(function)`, the values of `function(x_prev, x, y, u)` at simulated steps of the model, and at the
            same steps with other inputs and other regimes.
        glance: `glance(function)`, its value at `example` only, for checks without simulation.
    """

    leaves: list[Leaf]
    reference: list[Array]
    example: tuple
    probe: Callable[[Callable], np.ndarray]
    glance: Callable[[Callable], np.ndarray]

    def entering(self, function: Callable) -> list[int]:
        """Positions of the leaves that `function(theta, x_prev, x, u)` depends on."""
        x_prev, x, _, u = self.example

        def depends(i):
            return depends_on(
                lambda v, *given: function(self.replace([i], [v]), *given), self.reference[i], x_prev, x, u
            )

        return [i for i in range(len(self.leaves)) if depends(i)]

    def entering_density(self, term: Term) -> list[int]:
        """Positions of the leaves that a term's density depends on."""

        def log_prob(theta, x_prev, x, u):
            y = jax.tree.map(jnp.zeros_like, self.example[2])  # traced, so that numpyro does not judge its numbers
            return term.log_prob(theta, x_prev, x, y, u)

        return self.entering(log_prob)

    def is_affine(self, function: Callable, i: int) -> bool:
        """Whether `function(theta, x_prev, x, u)` is affine in leaf i for all other arguments."""
        x_prev, x, _, u = self.example
        return is_affine(lambda v, *given: function(self.replace([i], [v]), *given), self.reference[i], x_prev, x, u)

    def multiplies(self, function: Callable, i: int, j: int) -> bool:
        """Whether the slope of `function(theta, x_prev, x, u)` in leaf i may depend on leaf j."""
        x_prev, x, _, u = self.example

        def slope(of_j, of_i, *given):
            return jax.jacfwd(lambda v: function(self.replace([i, j], [v, of_j]), *given))(of_i)

        return depends_on(slope, self.reference[j], self.reference[i], x_prev, x, u)

    def watched(self, fits: Callable) -> Callable:
        """A guard for sums, from `fits(theta, x_prev, x, u)`: whether a step has the form of the inspected steps.

        Parts that depend on theta alone are the same at all steps, and need no guard.
        """
        x_prev, x, _, u = self.example
        if not depends_on(lambda given: fits(self.reference, *given), (x_prev, x, u)):
            return lambda sums, *given: sums  # it is the same at all steps

        def guard(sums, *given):
            so = fits(*given)
            return jax.tree.map(lambda a: jnp.where(so, a, jnp.nan), sums)

        return guard

    def replace(self, positions: list[int], values: list[Array]) -> list[Array]:
        """The reference with other values of some leaves."""
        theta = list(self.reference)
        for i, value in zip(positions, values, strict=True):
            theta[i] = value
        return theta

    def part(self, positions: list[int]) -> tuple[Float[Array, " p"], Callable, np.ndarray]:
        """Some leaves of the reference as one vector, a map from such a vector to theta, and the leaf of each entry."""
        values = [self.reference[i] for i in positions]
        with jax.ensure_compile_time_eval():  # a filter may be built inside somebody's jit
            flat, unravel = ravel_pytree(values)
            flat = flat.astype(float)
        owner = np.repeat(positions, [value.size for value in values]).astype(int)
        return flat, lambda vector: self.replace(positions, unravel(vector)), owner


def whole(shares: Any) -> Any:
    """The nearest whole numbers, as NumPy arrays for NumPy arrays; kernels have no rule for `round`."""
    return (np if isinstance(shares, np.ndarray) else jnp).floor(shares + 0.5)


def require(entering: list[int], families: Sequence[Family], what: str, view: View) -> None:
    """Raise if a leaf that enters a term is of a family that is not allowed there."""
    for leaf in (view.leaves[i] for i in entering):
        if leaf.family not in families:
            raise NotConjugateError(
                f"{what} depends on theta's {leaf.name!r}, whose prior is a {type(leaf.prior).__name__}. What enters "
                f"there must be {' or '.join(family.name for family in families)}."
            )
