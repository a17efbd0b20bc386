"""Draws that have no gradient refuse to be differentiated, rather than leave their share out without a word."""

from functools import partial
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero


def guarded(d: Any) -> Any:
    """The distribution, refusing gradients where its draws have none."""
    return d if getattr(d, "has_rsample", True) else _refuse_gradients(type(d).__name__, d)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _refuse_gradients(name: str, d: Any) -> Any:
    return d


def _refuse(name, primals, tangents):
    if any(not isinstance(leaf, SymbolicZero) for leaf in jax.tree.leaves(tangents)):
        raise TypeError(
            f"A gradient was asked for through draws from a {name}, which have none: jax.grad would leave their share "
            f"out without a word. Differentiate with respect to numbers that do not reach the {name} (theta and its "
            "sampler's tuning do, in a filter that learns theta), or replace it by a distribution whose draws can be "
            "reparameterised, such as a Normal; one of your own says so by `reparametrized_params`."
        )
    return primals[0], tangents[0]


_refuse_gradients.defjvp(_refuse, symbolic_zeros=True)
