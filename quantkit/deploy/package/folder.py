"""Check that an output folder is ours.

deployment.json names every file of a package with its digest. A folder is overwritten only if it holds exactly these files,
unchanged: whatever a user put or changed there stays.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quantkit.errors import UsageError, as_os_error
from quantkit.files import check_folder

RECORD = "deployment.json"
KIND = "quantkit package"


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
    """Refuse, before anything runs, an output folder that cannot be made or holds anything but a package.

    Args:
        folder: The output.
        inputs: Files that are read, which must not be in it.

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
    foreign = _foreign(folder) if folder.is_dir() and any(folder.iterdir()) else ""
    if foreign:
        raise UsageError(
            f"'{folder}' is not a package as quantkit wrote it ({foreign}): choose another folder, or remove it."
        )


def _foreign(folder: Path) -> str:
    """Return what in a folder is not as a package has it; "" if nothing."""
    known = _recorded_digests(folder)
    if known is None:
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


def _recorded_digests(folder: Path) -> Mapping[str, str] | None:
    """Return the digests in a folder's record; None: it has no record of a package."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        known = {name: about["sha256"] for name, about in record["files"].items()}
        return known if record["kind"] == KIND else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
