"""What is built of a model that reads inputs, before it has seen any: it waits for the first row of them.

A builder that looks at the model is decorated by `waits_for_inputs`. Of a model whose inputs are not known yet it gives
a `Waiting`, and so does a builder that is given a `Waiting`. `built_for(part, rows)` is the part for such inputs.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from epf_jax.core.checks import brief
from epf_jax.models.state_space import StateSpaceModel, seen

P = ParamSpec("P")
T = TypeVar("T")


class Waiting:
    """A part that is built when its model has seen a row of inputs.

    Attributes:
        model: the model, which has seen none.
        arguments: those of the builder, by their names.
    """

    def __init__(self, build: Callable, model: StateSpaceModel, given: inspect.BoundArguments):
        self.model, self.arguments = model, given.arguments
        self._build, self._given, self._made = build, given, dict[StateSpaceModel, Any]()

    def built(self, rows: Any, num_axes: int = 1) -> Any:
        """The part for such inputs, which have many rows along the first axes; one object for inputs of one kind."""
        model = seen(self.model, rows, num_axes)
        if model not in self._made:
            args, kwargs = built_for((self._given.args, self._given.kwargs), rows, num_axes)
            self._made[model] = self._build(*args, **kwargs)
        return self._made[model]

    def __repr__(self) -> str:
        told = [f"{name}={brief(it)}" for name, it in self.arguments.items() if it is not self.model]
        return f"<{self._build.__name__}({', '.join(['model', *told])}), which waits for the first row of inputs>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self!r} has no {name!r} yet: its model reads inputs, and has seen none. Build it from "
            "model.for_inputs(inputs[0])."
        )


def waits_for_inputs(build: Callable[P, T]) -> Callable[P, T]:
    """The builder, which gives a `Waiting` where the model's inputs are not known yet."""
    signature = inspect.signature(build)

    @wraps(build)
    def built(*args: P.args, **kwargs: P.kwargs) -> T:
        models = [waits for it in (*args, *kwargs.values()) if (waits := _waited_for(it)) is not None]
        if not models:
            return build(*args, **kwargs)
        return cast(T, Waiting(build, models[0], signature.bind(*args, **kwargs)))

    return built


def built_for(part: Any, rows: Any, num_axes: int = 1) -> Any:
    """The part, or the parts of a tuple or dict, for inputs with many rows along the first axes.

    What does not wait is given back as it is.
    """
    if isinstance(part, dict):
        return {name: built_for(it, rows, num_axes) for name, it in part.items()}
    if type(part) is tuple:
        return tuple(built_for(it, rows, num_axes) for it in part)
    if isinstance(part, StateSpaceModel):
        return seen(part, rows, num_axes) if part.wants_inputs else part
    waiting = _waiting(part)
    return part if waiting is None else waiting.built(rows, num_axes)


def _waiting(part: Any) -> Waiting | None:
    """What waits: a part by itself, or a filter by its `waiting`."""
    found = part if isinstance(part, Waiting) else getattr(part, "waiting", None)
    return found if isinstance(found, Waiting) else None


def _waited_for(part: Any) -> StateSpaceModel | None:
    """The model whose inputs a part waits for."""
    if isinstance(part, StateSpaceModel):
        return part if part.wants_inputs else None
    waiting = _waiting(part)
    return None if waiting is None else waiting.model
