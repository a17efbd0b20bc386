r"""Taylor coefficients of a function of several variables, by jets along fixed directions.

Along a direction v, :math:`s \mapsto f(z_0 + s v)` has the Taylor coefficients
:math:`\sum_{|\alpha|=k} c_\alpha v^\alpha`, k = 0..M, which one `jet` gives together. With as many directions as
there are multi-indices of degree M, the :math:`c_\alpha` follow from one fixed linear solve per degree. One parameter
needs one direction and no solve. If `jet` has no rule for a primitive, nested forward mode takes the derivatives along
the same directions, at low orders only, because its cost doubles with every order.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from math import comb, factorial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.jet import jet
from jaxtyping import Array, Float

from epf_jax.core.polynomials import is_zero, multi_indices
from epf_jax.core.programs import outputs

MAX_NESTED_ORDER = 6  # compiles in seconds; at order 8 nested forward mode takes minutes

_JET_FAILURES = (
    KeyError,  # no rule for a primitive
    NotImplementedError,
    jax.errors.UnexpectedTracerError,  # custom derivative rules, as in softplus or relu
    AttributeError,  # the same, in jax 0.11; the function itself has been evaluated before, and has none
    TypeError,  # a vector clipped to scalar bounds, as in an LKJ prior's own coordinates; loops as long as theta says
)

Expansion = Callable[..., list[Any]]


def forward_gradient(function: Callable[[Float[Array, " P"]], Float[Array, ""]]) -> Callable:
    """The function, with a reverse-mode gradient that is computed in forward mode.

    Reverse mode does not work for loops without a fixed length. Forward mode does, once for each of the P variables.
    """

    def value_and_slope(z):
        slope, value = jax.jacfwd(lambda z: 2 * (function(z),), has_aux=True)(z)
        return value, slope

    with_gradient = jax.custom_vjp(function)
    with_gradient.defvjp(value_and_slope, lambda slope, by: (by * slope,))
    return with_gradient


def taylor_expansion(
    function: Callable[..., Array], centre: Float[Array, " P"], order: int, *example: Any, what: str = "function"
) -> Expansion:
    """A function that gives the Taylor coefficients of `z -> function(z, *args)` at `centre`, to total degree `order`.

    Args:
        function: maps (z, *args) to an array.
        centre: z_0, P numbers.
        order: M >= 1.
        example: arguments of the same shapes, to check now whether `jet` can differentiate the function.
        what: the function's name in error messages.

    Returns:
        `expand(*args)`, a list of C(M + P, P) coefficients (in the order of `polynomials.multi_indices`), each of the
        shape of the function's value; NumPy zeros if a coefficient vanishes for all arguments.
    """
    num_variables = centre.shape[0]
    directions, solves = _directions(num_variables, order)
    along = _choose_jet(function, centre, order, example, what)

    def expand(*args):
        # series[v][k]: coefficient of s^k along direction v
        series = jax.vmap(lambda v: jnp.stack(along(v, *args)))(jnp.asarray(directions, centre.dtype))
        per_degree = [
            jnp.tensordot(jnp.asarray(solve, centre.dtype), series[:, k], axes=1) for k, solve in enumerate(solves)
        ]
        return list(jnp.concatenate(per_degree))

    def expand_one(*args):
        return along(jnp.ones_like(centre), *args)

    return expand_one if num_variables == 1 else expand


def without_zeros(function: Callable, *args: Any) -> Any:
    """`function(*args)` without the products and sums with zeros that are known without data.

    A jet along a straight line has zeros for all higher terms, and `jet` multiplies them out. This is most of its
    arithmetic, and XLA may not drop it, because 0 times infinity is not 0.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)

    def operation(eqn, inputs):
        kept = _without_zero(eqn, inputs)
        if kept is not None:
            return [kept]
        constant = not any(isinstance(value, jax.core.Tracer) for value in inputs)
        with jax.ensure_compile_time_eval() if constant else nullcontext():
            out = eqn.primitive.bind(*inputs, **eqn.params)
            out = jax.tree.map(np.asarray, out) if constant else out
        return out if eqn.primitive.multiple_results else [out]

    found = outputs(closed.jaxpr, jax.tree.leaves(args), operation, constants=closed.consts)
    return jax.tree.unflatten(jax.tree.structure(shape), found)


_LINEAR = {"neg", "broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "reduce_sum", "convert_element_type"}


def _without_zero(eqn: Any, inputs: list[Any]) -> Any:
    """The result of an equation with zero inputs: zeros, or its other input; None if it must be computed."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    if not jnp.issubdtype(out.dtype, jnp.floating):
        return None
    zero = [is_zero(value) for value in inputs]
    if (name in ("mul", "dot_general") and any(zero)) or (name in ("div", *_LINEAR) and zero[0]):
        return np.zeros(out.shape, out.dtype)
    if name in ("add", "add_any", "sub") and any(zero) and (zero[1] or name != "sub"):
        other = inputs[0] if zero[1] else inputs[1]
        return other if jnp.shape(other) == out.shape else None
    return None


def _scaled(term, shape, divisor):
    return np.broadcast_to(term, shape) if is_zero(term) else jnp.broadcast_to(term, shape) / divisor


def _choose_jet(function, centre, order, example, what):
    def jet_along(v, *args):
        series = [v] + [jnp.zeros_like(v)] * (order - 1)
        return jet(lambda z: function(z, *args), (centre,), (series,))

    def by_jet(v, *args):
        with (
            jax.disable_jit()
        ):  # inline every inner jit and loop: jet caches the former, and has no rule for the latter
            value, terms = without_zeros(jet_along, v, *args)
        # jet's terms are derivatives: divide by k! as a float, since 13! overflows an int32.
        terms = [_scaled(term, value.shape, float(factorial(k + 1))) for k, term in enumerate(terms)]
        return [value, *terms]

    def by_nesting(v, *args):
        def along(s):
            return function(centre + s * v, *args)

        derivatives, values = along, []
        for k in range(order + 1):
            values.append(derivatives(jnp.zeros(())) / float(factorial(k)))
            derivatives = jax.jacfwd(derivatives)
        return values

    try:
        jax.eval_shape(by_jet, centre, *example)
    except _JET_FAILURES as error:
        if order <= MAX_NESTED_ORDER:
            return by_nesting
        raise ValueError(
            f"order: cannot expand the {what} to order {order}, because jax.experimental.jet fails with "
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}. Use epf.chebyshev(model), which needs no "
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
