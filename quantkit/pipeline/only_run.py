"""A lock that keeps two runs from writing one output."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from quantkit.errors import OutputError, UsageError, as_os_error

_PATIENCE = 1.0  # seconds in which the workers of a killed run end
_GLANCE = 0.05  # seconds between two looks


@contextmanager
def only_run(output: Path) -> Iterator[None]:
    """Keep other runs from writing the same output until the block ends.

    The lock is a file next to the output. The system releases it when the process ends, however it ends; where the system has no
    locks, none is held.

    Raises:
        UsageError: Another run is writing it.
        OutputError: No file can be made there.
    """
    real = Path(os.path.realpath(output))
    path = real.with_name(f".{real.name}.lock")
    try:
        file = _hold(path)
    except OSError as e:
        said = f"Cannot write '{path}': {e.strerror or e}; nothing was run."
        raise as_os_error(OutputError(said), e) from e
    if file is None:
        raise UsageError(
            f"Another run is writing '{output}': wait until it has ended, or choose another output."
        )
    try:
        yield
    finally:
        if os.name == "nt":  # where an open file cannot be removed
            file.close()
        with suppress(OSError):
            path.unlink()
        file.close()


def _hold(path: Path) -> BinaryIO | None:
    """Return a file that this process has locked; None if another one keeps it."""
    until = time.monotonic() + _PATIENCE
    while True:
        # Not through a link, which may have come with a cloned repository.
        number = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        file = os.fdopen(number, "rb+")
        if _lock(file):
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(number), path.stat()):
                    return file
            file.close()  # it is no longer there: the run that made it has just ended
            continue
        file.close()
        if time.monotonic() > until:
            return None
        time.sleep(_GLANCE)


def _lock(file: BinaryIO) -> bool:
    """Lock a file until it is closed; return whether that was possible."""
    try:
        import fcntl
    except ImportError:  # Windows
        return _lock_bytes(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _lock_bytes(file: BinaryIO) -> bool:
    try:
        import msvcrt
    except ImportError:
        return True
    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return False
    return True
