"""Results on disk: one file for each piece of work, found again by its settings.

A file is written under another name and then renamed, so that an interrupted run leaves whole files or none. The name
holds a fingerprint of the settings and of the library's code, so that other settings make other files.
"""

import hashlib
import io
import json
import pathlib
import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from epf_jax.core import files
from epf_jax.core.machine import machine

Arrays = dict[str, np.ndarray]
_PRESENTATION = (
    "report.py",
    "page.py",
    "plots",
    "cli.py",
    "claims.py",
)  # files and folders: how results look is not what they are


class Unit(NamedTuple):
    """A piece of work whose results are kept.

    Attributes:
        name: its name, such as "sin-sir".
        settings: everything that its results depend on, as JSON.
        compute: `compute()`, a dict of arrays.
    """

    name: str
    settings: dict[str, Any]
    compute: Callable[[], Arrays]


class Stored(NamedTuple):
    """The results of a unit, with settings, machine, versions and seconds."""

    arrays: Arrays
    about: dict[str, Any]


class StoreError(Exception):
    """A folder that cannot be written, or a file with other contents than its name says."""


class Store:
    """A folder of results."""

    def __init__(self, folder: pathlib.Path):
        """Open the folder, making it if need be."""
        self.folder = folder
        try:
            files.make_writable(folder)
        except OSError as error:
            raise StoreError(
                f"--output: cannot write to {folder} ({error.strerror or error}). Nothing was computed; choose another "
                "folder with --output FOLDER."
            ) from error

    def path(self, unit: Unit) -> pathlib.Path:
        """Where the unit's results are, or will be."""
        written = json.dumps([unit.settings, code_fingerprint(), _platform()], sort_keys=True)
        return self.folder / f"{unit.name}-{hashlib.sha256(written.encode()).hexdigest()[:10]}.npz"

    def load(self, unit: Unit) -> Stored | None:
        """The unit's results, or None if it has not been computed."""
        path = self.path(unit)
        if not path.exists():
            return None
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files if name != "about"}
                about = json.loads(str(file["about"]))
                settings = about["settings"]
        except Exception as error:  # whatever a damaged file may raise: zlib, zipfile, json, numpy, the system
            raise StoreError(
                f"{path}: it cannot be read as results of {unit.name} ({error}). It was left as it is; move it away "
                "and run again, everything else is kept."
            ) from error
        if settings != json.loads(json.dumps(unit.settings)):
            raise StoreError(
                f"{path}: it holds results of other settings, {settings}, where {unit.settings} were "
                "expected. It was left as it is; move it away or choose another --output, everything else is kept."
            )
        return Stored(arrays, about)

    def compute(self, unit: Unit) -> Stored:
        """Compute the unit and keep its results."""
        start = time.perf_counter()
        arrays = {name: np.asarray(value) for name, value in unit.compute().items()}
        about = {"settings": unit.settings, "seconds": time.perf_counter() - start, **machine()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **{**arrays, "about": np.array(json.dumps(about))})  # type: ignore[arg-type]
        write_atomically(self.path(unit), buffer.getvalue())
        return Stored(arrays, json.loads(json.dumps(about)))


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Write a file whole or not at all; an error says how to go on."""
    try:
        files.write_atomically(path, content)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written ({error.strerror or error}). Results are kept in data/; the same command goes on "
            "from there."
        ) from error


def _platform() -> list[str]:
    """The platform, on which results and seconds depend, too."""
    here = machine()
    return [here[name] for name in ("device", "jax", "numpyro")]


@cache
def code_fingerprint() -> str:
    """A hash of the library's source, without presentation: other code makes other results."""
    root = pathlib.Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if not {path.name, path.parent.name} & set(_PRESENTATION):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
