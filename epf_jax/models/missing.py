"""One observation for `step`: converted to the model's shape and precision, checked, and handled where missing."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from epf_jax.core.choice import where
from epf_jax.core.densities import components_of, is_discrete, support_of_each
from epf_jax.core.number_arrays import given_numbers, holds_jax, in_precision, numeric_array
from epf_jax.models.state_space import StateSpaceModel, row_of

_ONE = "Give one observation as numbers, NaN where a value is missing."


def observed_number(y: Any, model: StateSpaceModel) -> Any:
    """`of_one_kind`, whole numbers made real where the model observes real ones."""
    y, expected = of_one_kind("y", y, _ONE), model.shapes.y
    whole = isinstance(y, np.ndarray) and y.dtype.kind in "biu"
    return y.astype(jnp.result_type(float)) if whole and expected.dtype.kind == "f" else y


def check_observation(y: Any, model: StateSpaceModel) -> None:
    """Raise for an infinite observation, which no density allows; NaN is a missing observation."""
    if not _can_be_read(y):
        return
    if jnp.issubdtype(y.dtype, jnp.floating) and np.isinf(y).any():
        raise ValueError(f"y: expected finite numbers, got {np.asarray(y).tolist()}; write NaN for a missing value.")
    expected = model.shapes.y
    if y.shape == expected.shape and y.dtype.kind in "iuf":
        check_support(np.asarray(y), np.isnan(y), model)


def check_input(u: Any) -> None:
    """Raise for an input that is not finite: the states would never recover from it."""
    for leaf in jax.tree.leaves(u):
        if _can_be_read(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(leaf).all():
            came = jax.tree.map(lambda leaf: np.asarray(leaf).tolist() if _can_be_read(leaf) else leaf, u)
            raise ValueError(
                f"u: expected finite numbers, got {came}. The model needs every input: fill it in, or leave out this "
                "step and its observation."
            )


def check_support(y: np.ndarray, missing: np.ndarray, model: StateSpaceModel) -> None:
    """Raise for fractions of counts and for values outside of the support: these are mistakes in the data."""
    of_counts, support, kind = _what_is_observed(model)
    if of_counts:  # a density of counts would cut fractions off without a word
        _check_each(
            y,
            ~missing & (y != np.floor(y)),
            "the model observes whole numbers, and {} is none ({} such). Round them, or take a continuous "
            "distribution.",
        )
    if support is not None:
        _check_each(
            y,
            ~missing & ~np.asarray(support(y)),
            f"{{}} lies outside of the support of the model's observations, {support} of {kind} ({{}} such). Is it a "
            "code for a missing value (write NaN), the wrong column, or the wrong distribution?",
        )


def _check_each(y: np.ndarray, is_wrong: np.ndarray, what: str) -> None:
    """Raise if any values are wrong; `what` is the message, with places for the first value and their number."""
    wrong = np.argwhere(is_wrong)
    if len(wrong):
        first = tuple(map(int, wrong[0]))
        place = f" at index {first}" if first else ""
        raise ValueError(f"y: {what.format(f'{float(y[first]):g}{place}', len(wrong))}")


def of_observation(model: StateSpaceModel, look: Callable[[Any], Any]) -> Any:
    """`look(d)` at the distribution of an observation by abstract evaluation, which compiles nothing."""
    found = []

    def observe(z, x, u):
        found.append(look(model.observation(model.parameters.to_theta(z), x, u)))

    jax.eval_shape(observe, model.parameters.centre, model.shapes.x, row_of(model))
    return found[0]


@lru_cache(maxsize=256)
def _what_is_observed(model: StateSpaceModel) -> tuple[bool, Any, str]:
    """Whether observations are whole numbers, their support, and the distribution's name."""
    return of_observation(model, lambda d: (is_discrete(d), support_of_each(d), type(components_of(d)).__name__))


def _can_be_read(array: Any) -> bool:
    """Whether the numbers can be read without a transfer from an accelerator, which would wait for its queue."""
    if isinstance(array, np.ndarray):
        return True
    concrete = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer) and array.is_fully_addressable
    return concrete and all(device.platform == "cpu" for device in array.devices())


def of_one_kind(name: str, number: Any, hint: str = "") -> Any:
    """A number as an array of the precision in use: 20.0 and np.float64(20) would each compile a step of their own."""
    return number if holds_jax(number) else in_precision(given_numbers(name, number, hint))


def as_observation(y: Any, expected: Any) -> Array:
    """One observation as an array of the model's shape, or an error that says what came."""
    y = numeric_array("y", y, _ONE)
    if y.shape != expected.shape:
        raise ValueError(
            f"y: expected one observation of shape {expected.shape}, as the model's observation draws, got shape "
            f"{y.shape}. For a whole series use epf.run(key, filter, y)."
        )
    return y


def missing_where(condition: Any, y: Array) -> Array:
    """y, with NaN (missing) where the condition holds; integers have no NaN and stay."""
    return where(condition, jnp.nan, y) if jnp.issubdtype(y.dtype, jnp.floating) else y
