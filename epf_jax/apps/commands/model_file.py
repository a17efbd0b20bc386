"""Loads the model or the filter that `path/to/model.py:name` names. The file is run as Python code.

The name may be left out if the file defines only one.
"""

import contextlib
import importlib.util
import pathlib
import sys
import traceback
from types import ModuleType
from typing import Any

from epf_jax.apps.commands.data_file import reader_of
from epf_jax.apps.commands.method_names import FOR_STREAMS, filter_of
from epf_jax.core.checks import brief
from epf_jax.filters import Filter
from epf_jax.models.state_space import StateSpaceModel


def target_of(text: str) -> StateSpaceModel | Filter:
    """The model or filter that the text names. Raises if the file, the name or its kind is wrong."""
    file, _, name = (text, "", "") if text.endswith(".py") else text.rpartition(":")
    if not file or not (name.isidentifier() or text == file):
        raise ValueError(f"MODEL: expected path/to/model.py:name, got {text!r}.")
    path = pathlib.Path(file).expanduser()
    if not path.is_file():
        raise ValueError(f"MODEL: there is no file {path}.")
    module = _run(path)
    there = {key: value for key, value in vars(module).items() if isinstance(value, StateSpaceModel | Filter)}
    listed = (
        f"its models and filters are {', '.join(there)}."
        if there
        else "it has no model: write model = epf.StateSpaceModel(...)."
    )
    if not name:
        if len(there) != 1:
            raise ValueError(f"MODEL: say which, {path}:name; {listed}")
        return next(iter(there.values()))
    if name not in vars(module):
        raise ValueError(f"MODEL: {path} has no {name!r}; {listed}")
    found = getattr(module, name)
    if not isinstance(found, StateSpaceModel | Filter):
        hint = f" Call it in the file: model = {name}()." if callable(found) else ""
        raise ValueError(
            f"MODEL: {name} in {path} is {_kind(found)}, and not an epf.StateSpaceModel or a filter.{hint} "
            f"Of {path.name}: {listed}"
        )
    return found


def filter_for(
    found: StateSpaceModel | Filter, method: str | None, num_particles: int | None, inputs: Any, room: int | None = None
) -> Filter:
    """The filter itself, or the method's for the model.

    Args:
        found: what MODEL names.
        method: the method; what `epf.learn` takes for a stream, by default.
        num_particles: their number, or the method's own.
        inputs: those of the series, or one row.
        room: how many observations a method that remembers them has room for.
    """
    if isinstance(found, Filter):
        if method is not None or num_particles is not None:
            raise ValueError(
                f"MODEL: it is a filter already, {found!r}, with its own method and number of particles. Leave "
                "--method and --particles out."
            )
        return reader_of(found, inputs)
    return filter_of(FOR_STREAMS if method is None else method, reader_of(found, inputs), num_particles, room)


def _run(path: pathlib.Path) -> ModuleType:
    """The file, run as a module; like a script, it can import from its own folder."""
    name = f"epf_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"MODEL: {path} is not a Python file (.py).")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a file prints is no result of the command
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file may raise
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if _same_file(frame.filename, path)
        ]
        where = f", line {lines[-1]}" if lines else ""
        told = f"{type(error).__name__}: {error}"
        if isinstance(error, SystemExit):
            told = "it calls sys.exit. Put that under `if __name__ == '__main__':`, or take it out."
        raise ValueError(f"MODEL: running {path} failed{where}: {told}") from error
    return module


def _same_file(name: str, path: pathlib.Path) -> bool:
    return pathlib.Path(name).resolve() == path.resolve()


def _kind(value: Any) -> str:
    return f"{type(value).__name__}: {brief(value)}"
