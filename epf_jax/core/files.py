"""Writes files whole or not at all, by one process at a time."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator


def write_atomically(path: pathlib.Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write under another name and then rename, so that an interruption leaves a whole file or none.

    With `durable` the file is on the disk when the call returns, and survives a loss of power.
    """
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        if durable:
            _sync_folder(path.parent)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


def make_writable(folder: pathlib.Path) -> None:
    """Make the folder if it does not exist; raises `OSError` if it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder):
        pass


def _sync_folder(folder: pathlib.Path) -> None:
    """Write the folder's entries, including the new name, to the disk."""
    if os.name != "posix":  # elsewhere a folder cannot be opened, and the system orders its own entries
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class BusyError(Exception):
    """Another process uses the file."""


@contextlib.contextmanager
def held(path: pathlib.Path) -> Iterator[None]:
    """Hold `path` for this process alone, by a lock on `path`.lock that the system drops when the process dies.

    Removes partial files of killed processes.
    """
    import fcntl  # not on Windows, where everything else of the library works

    with path.with_name(f"{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError(f"{path} is in use by another process. Two would count observations twice.") from error
        for leftover in path.parent.glob(f"{path.name}.*.part"):
            leftover.unlink(missing_ok=True)
        yield
