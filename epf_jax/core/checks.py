"""Checks of arguments, before anything is traced. Errors name the argument."""

import inspect
import numbers
import os
import pathlib
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

_WORDS = {2: "threefry2x32", 4: "rbg"}  # of an old-style key, which tells its generator by its length


def brief(value: Any) -> str:
    """The value's repr, shortened to one line."""
    written = repr(value)
    return written if len(written) <= 120 else f"{written[:117]}..."


def check_whole_number(name: str, value: Any, least: int = 1, hint: str = "") -> None:
    """Raise unless it is a whole number of at least `least`; True and False do not count as numbers."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        expected = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
        raise ValueError(f"{name}: expected {expected}, got {value!r}." + (f" {hint}" if hint else ""))


def check_flag(name: str, value: Any) -> None:
    """Raise unless it is True or False: a text such as "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {brief(value)}.")


def check_positive(name: str, value: Any, what: str) -> None:
    """Raise unless it is a positive number, or an array of positive numbers."""
    if isinstance(value, jax.core.Tracer):
        return
    try:
        positive = not isinstance(value, str) and bool(np.all(np.asarray(value, float) > 0))
    except (TypeError, ValueError):
        positive = False
    if not positive:
        raise ValueError(f"{name}: expected {what}, got {value!r}.")


def check_signature(name: str, function: Any, arguments: tuple[str, ...], returns: str = "a distribution") -> None:
    """Raise if it cannot be called with `arguments`; warn if its arguments have each other's names."""
    call = f"{name}({', '.join(arguments)})"
    is_distribution = hasattr(function, "log_prob") and not isinstance(function, type)
    if not callable(function) or is_distribution:  # numpyro's distributions are callable, too
        raise TypeError(
            f"{name}: expected a function {call} that returns {returns}, got {brief(function)}. "
            f"Write it as lambda {', '.join(arguments)}: ..."
        )
    try:
        taken = list(inspect.signature(function).bind(*arguments).arguments)
    except TypeError as error:
        raise TypeError(
            f"{name}: it will be called as {call}, but does not take those arguments ({error}). "
            f"Write it with {len(arguments)} positional argument{'s' if len(arguments) > 1 else ''}, used or not."
        ) from error
    except ValueError:  # a builtin without a signature: the abstract evaluation will tell
        return
    # `x` where x_prev is expected is the same thing's name, and `u` there is another's.
    given, expected = ([argument.split("_")[0] for argument in names] for names in (taken, arguments))
    if any(stem != meant and stem in expected for stem, meant in zip(given, expected, strict=False)):
        warnings.warn(
            f"{name}: its arguments are called {', '.join(taken)}, and it will be called as {call}. Check their order.",
            UserWarning,
            stacklevel=frames_to_user(),
        )


def frames_to_user() -> int:
    """The `stacklevel` with which the caller's warning points at the user's line."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("epf_jax", "jax"):
        frame, level = frame.f_back, level + 1
    return level


def is_key(array: Any) -> bool:
    """Whether an array, or its shape and dtype, is of typed random keys."""
    # By the type itself: this is asked at every run, and `issubdtype` looks at more.
    return getattr(array.dtype, "type", None) is jax.dtypes.prng_key


_first: list[int] = []  # the process that computed first


def check_not_forked() -> None:
    """Refuse to compute in a child process that was forked after its parent had computed: it would hang."""
    if not _first:
        _first.append(os.getpid())
    if _first[0] != os.getpid():
        raise RuntimeError(
            "This process was forked from one that had run JAX, and would wait for ever. Start it anew: "
            "multiprocessing.get_context('spawn'); or fork before anything is computed."
        )


def check_key(key: Any, ndim: int = 0) -> PRNGKeyArray:
    """The random key, or array of keys, as a typed key."""
    check_not_forked()  # here, where nearly all that computes begins
    if isinstance(key, jax.Array) and is_key(key) and key.ndim == ndim:
        return key
    raw = isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.ndim == ndim + 1
    if raw and key.shape[-1] in _WORDS:  # an old-style key, as jax.random.PRNGKey makes it
        return jax.random.wrap_key_data(key, impl=_WORDS[key.shape[-1]])
    wanted = "a key, jax.random.key(0)" if ndim == 0 else "B keys, jax.random.split(jax.random.key(0), B)"
    got = f"an array of shape {key.shape} and dtype {key.dtype}" if isinstance(key, jax.Array) else brief(key)
    raise TypeError(f"{'keys' if ndim else 'key'}: expected {wanted}, got {got}.")


def shape_of_call(name: str, function: Callable, *arguments: Any) -> tuple[int, ...]:
    """Shape of the array that a user's function returns, by abstract evaluation."""
    try:
        return jax.eval_shape(lambda *a: jnp.asarray(function(*a)), *arguments).shape
    except Exception as error:
        given = ", ".join(str(jax.tree.map(jnp.shape, argument)) for argument in arguments)
        raise ValueError(
            f"{name}: calling it with arguments of shapes {given} failed with {type(error).__name__}: {error}"
        ) from error


def notes_of(error: BaseException) -> list[str]:
    """The notes on an error, but for jax's on the frames that it hides."""
    return [note for note in getattr(error, "__notes__", ()) if not note.startswith("---")]


def in_full(error: BaseException) -> str:
    """An error's kind, message and notes, in one text."""
    return "\n".join([f"{type(error).__name__}: {error}", *notes_of(error)])


def pip_install(extra: str) -> str:
    """The command that installs an extra: from the library's source folder if there is one, else by name."""
    folder = pathlib.Path(__file__).parents[2]
    where = f"-e '{folder}[{extra}]'" if (folder / "pyproject.toml").exists() else f"'epf_jax[{extra}]'"
    return f"pip install {where}"


def kinds(tree: Any) -> str:
    """The kind of each part of a tree: {'dt': 'float32', 'at': 'float32[2]'}."""

    def kind(leaf):
        shape = ", ".join(map(str, jnp.shape(leaf)))
        return f"{jnp.result_type(leaf)}[{shape}]" if shape else f"{jnp.result_type(leaf)}"

    return str(jax.tree.map(kind, tree))


def is_like(example: Any, value: Any) -> bool:
    """Whether a value can replace the example: same structure and shapes, and dtypes that fit."""
    structures: list[Any] = [jax.tree.structure(tree) for tree in (example, value)]
    return structures[0] == structures[1] and all(
        old.shape == jnp.shape(new) and jnp.promote_types(old.dtype, jnp.result_type(new)) == old.dtype
        for old, new in zip(jax.tree.leaves(example), jax.tree.leaves(value), strict=True)
    )


def returned(name: str, check: Callable, value: Any) -> Any:
    """The result of the user's function; an error names the function."""
    try:
        check(value)
    except TypeError as error:
        raise TypeError(f"{name}: it returned the wrong thing. {error}") from error
    return value
