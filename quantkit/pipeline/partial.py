"""What a long run leaves for the next one to go on with, should it be killed: a folder beside the output."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from quantkit.errors import OutputError, QuantkitError, UsageError, as_os_error
from quantkit.files import replace_text, scratch, sweep

_HEAD = "job.json"
_PATIENCE = 1.0  # seconds in which the workers of a killed run end
_GLANCE = 0.05  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Partial:
    """A folder of one job.

    Attributes:
        folder: Where it is.
        resumed: Whether an earlier run of the same job has left it.
    """

    folder: Path
    resumed: bool


@contextmanager
def partial_folder(output: Path | None, job: Mapping[str, Any]) -> Iterator[Partial]:
    """Make the folder of a job, or take up what an earlier run of the same has left.

    It stays if the process is killed or interrupted. It goes when the block ends, also by an error: then the same run would come to the same end.

    Args:
        output: What the job is to write: the folder is ``<output>.partial``; None: it cannot be taken up, and is anywhere.
        job: All that its results depend on; plain data.

    Raises:
        UsageError: There is something of that name that is not quantkit's, or another run is writing the output.
    """
    if output is None:
        with scratch() as folder:
            yield Partial(folder, False)
        return
    folder = output.with_name(f"{output.name}.partial")
    with only_run(output):
        yield from _kept_folder(
            folder, sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()
        )


def _kept_folder(folder: Path, key: str) -> Iterator[Partial]:
    resumed = _key_of(folder) == key
    if not resumed:
        _make(folder, key)
    try:
        yield Partial(folder, resumed)
    except QuantkitError:
        _remove(folder)
        raise
    except OSError as e:
        _remove(folder)
        raise _unwritable(folder, e) from e
    _remove(folder)


def _make(folder: Path, key: str) -> None:
    """Make a folder in the place of what another job has left; it has its name when it is known as quantkit's."""
    _make_room(folder)
    try:
        with scratch(folder.parent) as place:
            whole = place / "whole"
            whole.mkdir()
            replace_text(whole / _HEAD, json.dumps({"quantkit": "partial", "key": key}))
            whole.rename(folder)
    except OSError as e:
        raise _unwritable(folder, e) from e


def _unwritable(folder: Path, error: OSError) -> QuantkitError:
    said = f"Cannot write into '{folder}': {error.strerror or error}; nothing was written."
    return as_os_error(OutputError(said), error)


def _remove(folder: Path) -> None:
    """Remove a folder under another name: half of it, should the process be killed, would not be known as quantkit's."""
    with suppress(OSError), scratch(folder.parent) as place:
        folder.rename(place / "old")


def _key_of(folder: Path) -> str | None:
    """Return the key of the job that a folder is of; None if it is of none."""
    try:
        found = json.loads((folder / _HEAD).read_text(encoding="utf-8"))
        return str(found["key"]) if found.get("quantkit") == "partial" else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _make_room(folder: Path) -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_dir() and not folder.is_symlink():
        sweep(folder)  # of versions that could be killed before the folder was known as quantkit's
        if _key_of(folder) or not any(folder.iterdir()):
            _remove(folder)
            return
    raise UsageError(
        f"'{folder}' is in the way of what is kept while weights are solved for, and not quantkit's: move it, or choose another output."
    )


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
