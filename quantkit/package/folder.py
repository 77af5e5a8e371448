"""Check that an output folder is ours, and replace it atomically.

deployment.json names every file of a package with its digest. A folder is written over only if that is all that is in it,
unchanged: whatever a user put or changed there stays.
"""

import gc
import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quantkit.errors import OutputError, UsageError, as_os_error
from quantkit.files import check_folder, make_scratch

__all__ = ["KIND", "RECORD", "SCRIPT", "check_own", "digests", "put_folder", "sha256_of"]

RECORD = "deployment.json"
SCRIPT = "smoke"
KIND = "quantkit package"
_EXECUTABLE, _PLAIN, _FOLDER = 0o755, 0o644, 0o755


def sha256_of(file: Path) -> str:
    """Return a file's digest."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and digest of every file in a folder, but for the record itself."""
    return {
        file.relative_to(folder).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": sha256_of(file),
        }
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / RECORD
    }


def check_own(folder: Path, inputs: Iterable[Path | None]) -> None:
    """Refuse, before anything runs, a folder that cannot be made or holds what is not of a package.

    Args:
        folder: Where a package will be.
        inputs: What it is made of, which must not be in it.

    Raises:
        UsageError: It is a file, or something in it is not of a package, or is read.
        OutputError: It cannot be made.
    """
    if folder.exists() and not folder.is_dir():
        said = f"The output '{folder}' is a file; give a folder."
        raise as_os_error(UsageError(said), NotADirectoryError)
    real = folder.resolve()
    for source in inputs:
        if source is not None and source.resolve().is_relative_to(real):
            raise UsageError(
                f"The output '{folder}' holds '{source}', which is read; choose another folder."
            )
    check_folder(folder, [], [])
    if folder.is_dir() and any(folder.iterdir()):
        foreign = _foreign(folder)
        if foreign:
            raise UsageError(
                f"'{folder}' is not a package as quantkit wrote it ({foreign}): choose another folder, or remove it."
            )


def _foreign(folder: Path) -> str:
    """Say what in a folder is not as a package has it; "" if nothing."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        known = {name: about["sha256"] for name, about in record["files"].items()}
        own = record["kind"] == KIND
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        own = False
    if not own:
        return f"no {RECORD} of one"
    for place in sorted(folder.rglob("*")):
        name = place.relative_to(folder).as_posix()
        if name == RECORD or (place.is_dir() and not place.is_symlink()):
            continue
        if place.is_symlink() or name not in known:
            return f"'{name}' is not part of it"
        if sha256_of(place) != known[name]:
            return f"'{name}' was changed"
    return ""


def put_folder(made: Path, folder: Path) -> None:
    """Rename a finished folder to its place; what was there before goes only when that is done.

    Raises:
        OutputError: It cannot be done; what was there is there again.
    """
    for place in (made, *made.rglob("*")):
        runs = place == made / SCRIPT
        place.chmod(_FOLDER if place.is_dir() else _EXECUTABLE if runs else _PLAIN)
    gc.collect()  # a session that waits to be collected maps the weights, and Windows renames no mapped file
    real = folder.resolve()
    aside = make_scratch(real.parent)
    try:
        before = real.exists()
        if before:
            real.rename(aside / "before")
        try:
            made.rename(real)
        except OSError:
            if before:
                (aside / "before").rename(real)
            raise
    except OSError as e:
        said = f"Cannot write '{folder}': {e.strerror or e}; nothing was changed."
        raise as_os_error(OutputError(said), e) from e
    finally:
        shutil.rmtree(aside, ignore_errors=True)
