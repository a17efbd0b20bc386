"""Names for the leaves of a pytree, for each number in them, and for quantiles."""

from typing import Any

import jax
import numpy as np

LEVELS = {"q05": 0.05, "q50": 0.5, "q95": 0.95}  # the quantiles in a table or a line, by their names


def named_leaves(tree: Any, otherwise: str) -> list[tuple[str, Any]]:
    """The leaves of a pytree with their names, `otherwise` for a tree that is one leaf."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator=".") or otherwise, leaf) for path, leaf in paths]


def component_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """A name for each number of a leaf: its own for a scalar, name[0], name[1], ... or name[0,1] otherwise."""
    if shape == ():
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]


def scalars(tree: Any, num_axes: int = 0, root: str = "theta") -> dict[str, np.ndarray]:
    """Every scalar component of a pytree by its name, such as "noise" or "loadings[0,1]", after leading axes.

    Args:
        tree: a theta, a state, or a summary of one.
        num_axes: how many axes come before those of a component: 1 for time.
        root: the name of a tree that is not a dict.
    """
    found = {}
    for name, leaf in named_leaves(tree, root):
        shape = np.shape(leaf)[num_axes:]
        for component, index in zip(component_names(name, shape), np.ndindex(shape), strict=True):
            found[component] = np.asarray(leaf)[(..., *index)]
    return found


def estimates(mean: Any, sd: Any) -> list[str]:
    """A line for each number of theta: its mean and its standard deviation."""
    sds = scalars(sd)
    return [f"  {name} = {float(value):.4g} +- {float(sds[name]):.2g}" for name, value in scalars(mean).items()]
