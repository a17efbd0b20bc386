"""Files that are written whole or not at all."""

import os
import pathlib
import tempfile


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Write beside the final name and then rename: whoever is interrupted leaves a whole file or none."""
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise
