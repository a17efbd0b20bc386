"""What a checkpoint is of: what its user declared, and how the model's functions and the program may have changed.

Refused is what differs in what was declared: the filter and its options in words, names, shapes and kinds of numbers,
and the densities of the model (its prior and its three functions) at a few fixed points, within rounding. That holds
across releases of jax and of this library. The traced program is compared, too, where all releases are the same, and
a change that no density shows is told of: it may be another option, or the same model written in another way.
"""

import pathlib
import sys
import warnings
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from epf_jax._version import __version__
from epf_jax.core.checks import frames_to_user, kinds
from epf_jax.core.densities import log_prob, observed_log_prob
from epf_jax.filters import Filter, FilterState
from epf_jax.models.state_space import StateSpaceModel, row_of
from epf_jax.running.fingerprints import fingerprint

_DECLARED = ("filter", "parameters", "precision", "shapes")
_POINTS = 3
_ROUNDING = 1e-3  # of a log-density, between releases and devices


def state_like(filter_: Filter) -> FilterState:
    """Shapes and dtypes of the filter's state."""
    return jax.eval_shape(filter_.init, jax.random.key(0))


def settings_of(filter_: Filter) -> dict[str, Any]:
    """What a state depends on: the model, the filter and their options, by words, numbers and a hash of the program."""
    return _settings(filter_, jnp.result_type(float).name)


@lru_cache(maxsize=64)
def _settings(filter_: Filter, precision: str) -> dict[str, Any]:
    model = filter_.model
    y = jax.ShapeDtypeStruct(model.shapes.y.shape, model.shapes.y.dtype)

    def program(key, state, y, u):
        return filter_.init(key), filter_.step(key, state, y, u)

    return {
        "filter": repr(filter_),
        "parameters": list(model.parameters.names),
        "precision": precision,
        "shapes": kinds({"x": model.shapes.x, "y": y, "u": row_of(model)}),
        "densities": _densities(model),
        "program": fingerprint(program, jax.random.key(0), state_like(filter_), y, row_of(model)),
        "epf_jax": __version__,
        "jax": jax.__version__,
        "releases": [numpyro.__version__, np.__version__, sys.version.split()[0], jax.default_backend()],
    }


def _densities(model: StateSpaceModel) -> dict[str, list[float | None]]:
    """Log-densities of the model's parts at fixed points; None where there is no finite one."""

    def at(k):
        def values(like, phase):
            place = jnp.sin(1.3 * jnp.arange(1, like.size + 1) * (k + 1.0) + phase).reshape(like.shape)
            whole = jnp.issubdtype(like.dtype, jnp.integer)
            return (place > 0).astype(like.dtype) if whole else (0.5 + 0.4 * place).astype(like.dtype)

        z = jnp.sin(1.3 * jnp.arange(1, model.parameters.dim + 1) * (k + 1.0))
        theta, x = model.parameters.to_theta(z), model.shapes.x
        u = jax.tree.map(lambda leaf: values(jnp.asarray(leaf), 3.0), row_of(model))
        before, after, y = values(x, 0.0), values(x, 1.0), values(model.shapes.y, 2.0)
        return {
            "prior": model.parameters.log_prior(z),
            "initial": log_prob(model.initial(theta), before),
            "transition": log_prob(model.transition(theta, before, u), after),
            "observation": observed_log_prob(model.observation(theta, after, u), y),
        }

    found = jax.device_get(jax.jit(jax.vmap(at))(jnp.arange(_POINTS)))
    return {name: [float(v) if np.isfinite(v) else None for v in values] for name, values in found.items()}


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What was declared otherwise, in words. What an older release did not write down cannot differ."""
    said = [
        f"{name} was {there[name]} and is {here[name]}"
        for name in _DECLARED
        if name in there and there[name] != here[name]
    ]
    for part, now in here["densities"].items():
        before = there.get("densities", {}).get(part, now)
        if not _close(before, now):
            said.append(f"the model's {part} is not what it was")
    return said


def _close(before: Any, now: list[float | None]) -> bool:
    if not isinstance(before, list) or len(before) != len(now):
        return False
    if not all(value is None or isinstance(value, float) for value in before):
        return False
    return all(
        a is b if a is None or b is None else abs(a - b) <= _ROUNDING * (1.0 + abs(b))
        for a, b in zip(before, now, strict=True)
    )


def warn_of_another_program(path: pathlib.Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Tell of a program that has changed, where no release did that it is written by."""
    releases = ("epf_jax", "jax", "releases")
    if any(there.get(name) != here[name] for name in releases) or there.get("program") == here["program"]:
        return
    warnings.warn(
        f"{path}: the code of the model, or an option of the filter, is not what it was when this state was written. "
        "Nothing that was declared differs, so it goes on; start anew if the change matters.",
        RuntimeWarning,
        stacklevel=frames_to_user(),
    )
