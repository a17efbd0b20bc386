"""Writes files whole or not at all, by one process at a time."""

import contextlib
import errno
import os
import pathlib
import stat
import tempfile
import uuid
from collections.abc import Iterator


def write_atomically(path: pathlib.Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write under another name and then rename, so that an interruption leaves a whole file or none.

    A link is followed, and what it leads to is replaced. A file that exists keeps its mode; a new one gets that of any
    other new file. With `durable` the file has reached the disk when the call returns, and outlives a loss of power.
    """
    data = content.encode() if isinstance(content, str) else content
    path = path.resolve()
    mode = _mode_of(path)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")

    def create(name, flags):
        return os.open(name, flags, 0o666 if mode is None else mode)

    try:
        with open(temporary, "xb", opener=create) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
        if durable:
            _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _mode_of(path: pathlib.Path) -> int | None:
    """The mode of the file, or None where there is none yet; an `OSError` where it is no regular file."""
    try:
        found = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found):
        raise OSError(errno.EINVAL, "it is no regular file, but a folder, a device or a pipe", str(path))
    return stat.S_IMODE(found)


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

    path = path.resolve()  # where `write_atomically` leaves its parts
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError(f"{path} is in use by another process. Two would count observations twice.") from error
        for leftover in path.parent.glob(f"{path.name}.*.part"):
            leftover.unlink(missing_ok=True)
        yield
