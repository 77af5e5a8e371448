"""Digests of data: of parts in order, and of files by their ends."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from quantkit.errors import DataError

_END = 64 * 1024


def digest(parts: Iterable[str | bytes]) -> str:
    """Return a hex digest of the parts in order; ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        # A file's name may be no UTF-8.
        content = part.encode(errors="backslashreplace") if isinstance(part, str) else part
        state.update(len(content).to_bytes(8, "little"))
        state.update(content)
    return state.hexdigest()


def file_fingerprint(files: Sequence[Path], root: Path, settings: object) -> str:
    """Return the digest of files, named relative to `root`, and of settings by their repr.

    The settings must hold no absolute path.

    Args:
        files: Whose contents count, in this order.
        root: What their names are relative to, so that a moved folder has the same digest.
        settings: What else makes the samples what they are.
    """
    parts: list[str | bytes] = [repr(settings)]
    for file in files:
        parts.append(file.relative_to(root).as_posix())
        parts.extend(_ends(file))
    return digest(parts)


def _ends(file: Path) -> Iterable[str | bytes]:
    try:
        with file.open("rb") as stream:
            size = file.stat().st_size
            yield str(size)
            yield stream.read(_END)
            stream.seek(max(_END, size - _END))
            yield stream.read(_END)
    except OSError as e:
        raise DataError(f"Cannot read '{file}': {e.strerror}.") from e
