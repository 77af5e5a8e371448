"""Facts about files that everything which writes one needs."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from quantkit.errors import OutputError

__all__ = ["human", "replace_text", "replacing", "umask"]


_KILO = 1000


def human(nbytes: float) -> str:
    """Write a number of bytes for people: ``22.9 MB``."""
    for unit in ("bytes", "kB", "MB"):
        if nbytes < _KILO:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= _KILO
    return f"{nbytes:.2f} GB"


def umask() -> int:
    """Return the permissions that new files of this process do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends: whole or not at all.

    Raises:
        OutputError: It cannot be written; what was there before is untouched.
    """
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~umask())
        Path(temporary).replace(path)
    except OSError as e:
        raise OutputError(f"Cannot write '{path}': {e.strerror or e}.") from e
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all.

    Raises:
        OutputError: It cannot be written; what was there before is untouched.
    """
    with replacing(path) as file:
        file.write(text.encode())
