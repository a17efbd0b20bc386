"""Draws without a gradient raise an error when they are differentiated, instead of giving a wrong gradient."""

from functools import partial
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero


def guarded(d: Any) -> Any:
    """The distribution; raises if a gradient is taken through draws that have none."""
    name = type(d).__name__
    message = (
        f"A gradient was asked for through draws from a {name}, which have none: jax.grad would leave their share "
        f"out without a word. Differentiate with respect to numbers that do not reach the {name} (theta and its "
        "sampler's tuning do, in a filter that learns theta), or replace it by a distribution whose draws can be "
        "reparameterised, such as a Normal; one of your own says so by `reparametrized_params`."
    )
    return d if getattr(d, "has_rsample", True) else refuse_gradients(message, d)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def refuse_gradients(message: str, tree: Any) -> Any:
    """The tree, unchanged; raises with the message if a derivative of it is taken."""
    return tree


def _refuse(message, primals, tangents):
    if any(not isinstance(leaf, SymbolicZero) for leaf in jax.tree.leaves(tangents)):
        raise TypeError(message)
    return primals[0], tangents[0]


refuse_gradients.defjvp(_refuse, symbolic_zeros=True)
