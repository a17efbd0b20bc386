"""The folder of a sweep: finished batches, and a check that they belong to the same settings."""

import csv
import hashlib
import io
import json
import os
import pathlib
import re
import time
from typing import Any

from epf_jax.core.checks import brief
from epf_jax.core.files import make_writable, write_atomically

Row = dict[str, Any]
PATIENCE = 120.0  # seconds; network file systems keep what they know of a folder for up to a minute


class Parts:
    """The finished batches of one method on one model: a folder with a file for each.

    Attributes:
        model: the model's name.
        method: the method's name.
    """

    def __init__(self, folder: pathlib.Path, model: str, method: str, settings: Row | None):
        """Open the folder; raises if its results come from other settings. `None` means that they are not known."""
        self.model, self.method, self._settings = model, method, settings
        name = re.sub(r"[^\w.-]+", "_", f"{model}-{method}")[:80]
        digest = hashlib.sha256(json.dumps([model, method]).encode()).hexdigest()[
            :8
        ]  # names may differ in symbols only
        # What cannot be built cannot be compared with what is there: its failures are kept apart.
        self._folder = folder / "parts" / f"{name}-{digest}{'' if settings else '-not-built'}"
        if settings is not None:
            self._check_settings(settings)
        self._rows = self._finished()

    def missing(self, seeds: list[int]) -> list[int]:
        """The seeds that have not been run, or failed."""
        return [s for s in seeds if s not in self._rows or self._rows[s][0]["status"] != "ok"]

    def write(self, seeds: list[int], rows: list[Row]) -> None:
        """Keep the rows of a batch of seeds."""
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = self._folder / "settings.json"
        if self._settings is not None and not settings.exists():
            write_atomically(settings, json.dumps(self._settings, indent=1) + "\n")
        digest = hashlib.sha256(json.dumps(seeds).encode()).hexdigest()[:8]
        path = self._folder / f"seeds-{seeds[0]}-to-{seeds[-1]}-{digest}.json"
        write_atomically(path, json.dumps(rows, indent=1) + "\n")

    def read(self, seeds: list[int]) -> list[Row]:
        """The rows of the seeds in their order; waits until they are there, because network folders may lag."""
        give_up = time.monotonic() + PATIENCE
        self._rows = self._finished()
        while lost := [seed for seed in seeds if seed not in self._rows]:
            if time.monotonic() > give_up:
                raise RuntimeError(
                    f"folder: {self._folder} still lacks the seeds {brief(lost)}, {PATIENCE:.0f} s after they were "
                    "done. Give a folder that is shared by all processes, then make the same call again."
                )
            time.sleep(0.5)
            self._rows = self._finished()
        return [row for seed in seeds for row in self._rows[seed]]

    def _finished(self) -> dict[int, list[Row]]:
        """The rows of every seed on disk: the successful ones, or else the last failure."""
        found: dict[int, list[Row]] = {}
        for path in sorted(self._folder.glob("seeds-*.json"), key=lambda path: path.stat().st_mtime_ns):
            cells: dict[int, list[Row]] = {}
            for row in _read(path):
                cells.setdefault(row["seed"], []).append(row)
            found |= {s: rows for s, rows in cells.items() if s not in found or found[s][0]["status"] != "ok"}
        return found

    def _check_settings(self, settings: Row) -> None:
        path = self._folder / "settings.json"
        if not path.exists():
            return
        there, here = _read(path), json.loads(json.dumps(settings))
        differ = [name for name in here if there.get(name) != here[name]]
        if not differ:
            return
        said = "; ".join(f"{name} was {there.get(name)} and is {here[name]}" for name in differ if name != "program")
        if not said:
            said = "the model's functions or prior, an option of the filter, or the library's code is not what it was"
        raise ValueError(
            f"folder: {self._folder} holds results of {self.method!r} on {self.model!r} under other settings ({said}). "
            "Nothing was computed or changed. Choose another folder, give the model or the method another name, or "
            "remove that folder."
        )


def _read(path: pathlib.Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(
            f"folder: {path} cannot be read as part of a sweep ({error}). It was left as it is; remove it and call "
            "again, everything else is kept."
        ) from error


def check_folder(folder: Any) -> pathlib.Path:
    """The folder, made if it does not exist; raises if it cannot be written."""
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise TypeError(f'folder: expected a path such as "results/sweep", got {brief(folder)}.')
    path = pathlib.Path(folder).expanduser()
    try:
        make_writable(path)
    except OSError as error:
        raise ValueError(
            f"folder: cannot write to {path} ({error.strerror or error}). Nothing was computed; choose another folder."
        ) from error
    return path


def write_table(path: pathlib.Path, table: list[Row]) -> None:
    """Write the table as CSV, with empty cells for None."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_atomically(path, text.getvalue())
