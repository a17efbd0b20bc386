r"""Taylor coefficients of a function of several variables, by jets along fixed directions.

Along a direction v, :math:`s \mapsto f(z_0 + s v)` has the Taylor coefficients
:math:`\sum_{|\alpha|=k} c_\alpha v^\alpha`, k = 0..M, which one `jet` gives together. With as many directions as
there are multi-indices of degree M, the :math:`c_\alpha` follow from one fixed linear solve per degree. One parameter
needs one direction and no solve. Where `jet` lacks a rule for a primitive, nested forward mode takes the derivatives
along the same directions, at low orders only: its cost doubles with every order.
"""

from collections.abc import Callable
from functools import cache
from math import comb, factorial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.jet import jet, jet_rules
from jaxtyping import Array, Float

from epf_jax.polynomials import multi_indices

MAX_NESTED_ORDER = 6  # compiles in seconds; at order 8 nested forward mode takes minutes

_JET_FAILURES = (
    KeyError,  # no rule for a primitive
    NotImplementedError,
    jax.errors.UnexpectedTracerError,  # custom derivative rules, as in softplus or relu
    AttributeError,  # the same, in jax 0.11; the function itself has been evaluated before, and has none
    jax.errors.ConcretizationTypeError,  # a loop whose length depends on theta
)

Expansion = Callable[..., Float[Array, "K *d"]]


def taylor_expansion(
    function: Callable[..., Array], centre: Float[Array, " P"], order: int, *example: Any, what: str = "function"
) -> Expansion:
    """A function that gives the Taylor coefficients of `z -> function(z, *args)` at `centre`, to total degree `order`.

    Args:
        function: maps (z, *args) to an array.
        centre: z_0, P numbers.
        order: M >= 1.
        example: arguments of the shapes that will come, to find out now whether `jet` can differentiate the function.
        what: its name in error messages.

    Returns:
        `expand(*args)`, an array of C(M + P, P) coefficients (in the order of `polynomials.multi_indices`) for each
        component of the function's value.
    """
    num_variables = centre.shape[0]
    directions, solves = _directions(num_variables, order)
    along = _choose_jet(function, centre, order, example, what)

    def expand(*args):
        # series[v][k]: coefficient of s^k along direction v
        series = jax.vmap(lambda v: along(v, *args))(jnp.asarray(directions, centre.dtype))
        per_degree = [
            jnp.tensordot(jnp.asarray(solve, centre.dtype), series[:, k], axes=1) for k, solve in enumerate(solves)
        ]
        return jnp.concatenate(per_degree)

    def expand_one(*args):
        return along(jnp.ones_like(centre), *args)

    return expand_one if num_variables == 1 else expand


def unsupported_primitives(function: Callable, *args: Any) -> list[str]:
    """Names of the primitives between `function(*args)` and its first argument that `jet` has no rule for."""
    names: list[str] = []

    def visit(jaxpr, reached):
        for eqn in jaxpr.eqns:
            if not any(not hasattr(v, "val") and v in reached for v in eqn.invars):  # a literal has a value
                continue
            reached.update(eqn.outvars)
            inner = [getattr(p, "jaxpr", p) for p in eqn.params.values() if hasattr(getattr(p, "jaxpr", p), "eqns")]
            for sub in inner:
                visit(sub, set(sub.invars))
            known = eqn.primitive in jet_rules or eqn.primitive.name in ("jit", "pjit")
            if not known and eqn.primitive.name not in names:
                names.append(eqn.primitive.name)

    with jax.disable_jit():
        closed = jax.make_jaxpr(lambda first, rest: function(first, *rest))(args[0], args[1:])
    visit(closed.jaxpr, set(closed.jaxpr.invars[: len(jax.tree.leaves(args[0]))]))
    return names


def _choose_jet(function, centre, order, example, what):
    def by_jet(v, *args):
        series = [v] + [jnp.zeros_like(v)] * (order - 1)
        with (
            jax.disable_jit()
        ):  # inline every inner jit and loop: jet caches the former, and has no rule for the latter
            value, terms = jet(lambda z: function(z, *args), (centre,), (series,))
        # jet's terms are derivatives: divide by k! as a float, since 13! overflows an int32.
        terms = [jnp.broadcast_to(term, value.shape) / float(factorial(k + 1)) for k, term in enumerate(terms)]
        return jnp.stack([value, *terms])

    def by_nesting(v, *args):
        def along(s):
            return function(centre + s * v, *args)

        derivatives, values = along, []
        for k in range(order + 1):
            values.append(derivatives(jnp.zeros(())) / float(factorial(k)))
            derivatives = jax.jacfwd(derivatives)
        return jnp.stack(values)

    try:
        jax.eval_shape(by_jet, centre, *example)
    except _JET_FAILURES as error:
        if order <= MAX_NESTED_ORDER:
            return by_nesting
        names = unsupported_primitives(function, centre, *example) or [str(error)]
        raise ValueError(
            f"order: cannot expand the {what} to order {order}, because jax.experimental.jet has no rule for the "
            f"primitive {', '.join(repr(name) for name in names)}. Use epf.chebyshev(model), which needs no "
            f"derivatives, or order <= {MAX_NESTED_ORDER}, where nested forward mode serves instead."
        ) from error
    return by_jet


@cache
def _directions(num_variables: int, order: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Directions in R^P and, per degree k, the matrix from directional to partial coefficients of that degree."""
    num = comb(order + num_variables - 1, num_variables - 1)
    if num_variables == 2:  # equal angles are the best conditioned
        angles = np.pi * np.arange(num) / num
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    else:
        candidates = np.random.default_rng(0).normal(size=(32, num, num_variables))
        candidates /= np.linalg.norm(candidates, axis=-1, keepdims=True)
        directions = min(candidates, key=lambda v: np.linalg.cond(_powers(v, order)))
    return directions, tuple(np.linalg.pinv(_powers(directions, k)) for k in range(order + 1))


def _powers(directions: np.ndarray, degree: int) -> np.ndarray:
    exponents = [a for a in multi_indices(directions.shape[1], degree) if sum(a) == degree]
    return np.prod(directions[:, None, :] ** np.array(exponents)[None], axis=-1)
