"""Finds out, by tracing a model, which few parameters have to be given for all means to be linear in the others."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from epf_jax.core.dependence import is_affine
from epf_jax.core.naming import named_leaves
from epf_jax.models.flat_theta import Numbers, numbers_in_a_row
from epf_jax.models.parameters import Parameters
from epf_jax.models.path_terms import (
    GaussianTerm,
    gaussian_term,
    noise_is_of_theta_alone,
    path_terms,
)
from epf_jax.models.state_space import StateSpaceModel
from epf_jax.statistics.means import which_enter
from epf_jax.statistics.regressions import NOTHING, Piece, pieces_of
from epf_jax.statistics.statistic import check_model_learns

DEFAULT_NODES = {1: 20, 2: 16}  # along each nodal parameter


class Grid(NamedTuple):
    """The nodal parameters of terms that share some.

    Attributes:
        own: their coordinates in z.
        counts: nodes along each.
        pieces: which terms are kept at its nodes.
    """

    own: Int[np.ndarray, " q"]
    counts: tuple[int, ...]
    pieces: tuple[int, ...]


@lru_cache(maxsize=256)
def why_not_decomposed(model: StateSpaceModel, nodal: tuple[str, ...] | None = None) -> str:
    """A sentence that says why the statistic does not fit a model, or an empty string.

    Args:
        model: the model.
        nodal: the names of the nodal parameters, or None to have them found.
    """
    check_model_learns(model, "decomposed")
    terms, numbers = path_terms(model, natural=True), numbers_in_a_row(model.parameters)
    leaves = numbers.leaves(numbers.c)
    places = nodal_places(model, nodal)
    for term in (*terms.initial, *terms.steps):
        gaussian = gaussian_term(term, leaves, terms.example)
        if gaussian is None:
            return f"theta enters the {term.name}, which is not Gaussian."
        if places is None:
            continue
        if not np.isin(_in_noise_at_once(gaussian, numbers, terms.example), places).all():
            return f"the noise of the {term.name} depends on theta together with the state or the inputs, or is joint."
        if not _is_linear_given(gaussian, numbers, terms.example, places):
            return f"the mean of the {term.name} is not linear in the parameters that are not nodal."
    most = max(DEFAULT_NODES)
    if places is None:
        return f"more than {most} of a term's parameters would be nodal."
    if len(places) == len(numbers.c):
        return "all parameters would be nodal."
    if (model.parameters.own[places] < 0).any():
        return "a nodal parameter has numbers without coordinates of their own, as those of a simplex."
    if any(len(own) > most for own, _ in _groups(sum(pieces_of(model, places), ()))):
        return f"more than {most} parameters would be nodal together."
    return ""


@lru_cache(maxsize=256)
def nodal_places(model: StateSpaceModel, names: tuple[str, ...] | None) -> Int[np.ndarray, " q"] | None:
    """The numbers of theta that have to be given for all means to be linear: as few as possible; None if too many."""
    numbers, terms = numbers_in_a_row(model.parameters), path_terms(model, natural=True)
    leaves, known = numbers.leaves(numbers.c), [name for name, _ in named_leaves(model.shapes.theta, "theta")]
    found: set[int] = set(map(known.index, names)) if names is not None and set(names) <= set(known) else set()
    if names is not None and len(found) != len(names):
        raise ValueError(f"nodal: {names!r} are not parameters of the model. Choose from {known}.")
    for term in (*terms.initial, *terms.steps) if names is None else ():
        gaussian = gaussian_term(term, leaves, terms.example)
        own = () if gaussian is None else _fewest(gaussian, numbers, terms.example)
        if own is None:
            return None
        found.update(own)
    return np.concatenate([NOTHING, *(numbers.places[i] for i in sorted(found))])


def _in_noise_at_once(gaussian: GaussianTerm, numbers: Numbers, example: tuple) -> Int[np.ndarray, " k"]:
    """The numbers in a noise that rows must be divided by at once; nothing if it is one of theta alone for each row."""
    if gaussian.diagonal and noise_is_of_theta_alone(gaussian, numbers.leaves(numbers.c), example):
        return NOTHING
    return which_enter(gaussian.scale_tril, numbers, example)


def _is_linear_given(gaussian: GaussianTerm, numbers: Numbers, example: tuple, nodal: Int[np.ndarray, " q"]) -> bool:
    """Whether a mean is linear in all numbers of theta that are not nodal."""
    (x_prev, x, _, u), leaves = example, numbers.leaves(numbers.c)
    others = [i for i, places in enumerate(numbers.places) if not np.isin(places, nodal).any()]
    if not others:
        return True

    def mean(own, all_leaves, *step):
        given = [own[others.index(i)] if i in others else leaf for i, leaf in enumerate(all_leaves)]
        return gaussian.mean(given, *step)

    return is_affine(mean, [leaves[i] for i in others], leaves, x_prev, x, u)


def _fewest(gaussian: GaussianTerm, numbers: Numbers, example: tuple) -> tuple[int, ...] | None:
    """The leaves of theta that one term has to be given, to be linear in the others."""
    all_places = np.arange(len(numbers.c))
    at_once = _in_noise_at_once(gaussian, numbers, example)
    enter = np.union1d(which_enter(gaussian.mean, numbers, example), at_once)
    entering = [i for i, places in enumerate(numbers.places) if np.isin(places, enter).any()]

    def has_to_be(i):
        places = numbers.places[i]
        alone = np.setdiff1d(all_places, places)
        return np.isin(places, at_once).any() or not _is_linear_given(gaussian, numbers, example, alone)

    def size(chosen):
        return sum(len(numbers.places[i]) for i in chosen)

    must = [i for i in entering if has_to_be(i)]
    room = max(DEFAULT_NODES) - size(must)
    rest = [i for i in entering if i not in must]
    more = [extra for num in range(max(room, -1) + 1) for extra in combinations(rest, num) if size(extra) <= room]
    for extra in sorted(more, key=size):
        places = np.concatenate([NOTHING, *(numbers.places[i] for i in (*must, *extra))])
        if _is_linear_given(gaussian, numbers, example, places):
            return (*must, *extra)
    return None


def _groups(pieces: Sequence[Piece]) -> list[tuple[list[int], list[int]]]:
    """The nodal numbers of each grid, and the terms that share them."""
    groups: list[tuple[list[int], list[int]]] = []
    for k, piece in enumerate(pieces):
        if len(piece.nodal) == 0:
            continue
        own, terms = list(map(int, piece.nodal)), [k]
        for other in [group for group in groups if set(group[0]) & set(own)]:
            groups.remove(other)
            own, terms = sorted({*own, *other[0]}), sorted([*terms, *other[1]])
        groups.append((own, terms))
    return groups


def grids_of(coordinates: Parameters, pieces: Sequence[Piece], num_nodes: int | None) -> tuple[Grid, ...]:
    """A grid for each group of terms that share nodal parameters."""
    grids: list[Grid] = []
    for places, terms in _groups(pieces):
        n = DEFAULT_NODES[len(places)] if num_nodes is None else num_nodes
        grids.append(Grid(coordinates.own[places], (n,) * len(places), tuple(terms)))
    return tuple(grids)
