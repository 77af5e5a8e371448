"""One file of a JSON header and arrays: a zip of ``header.json`` and ``.npy`` members.

The same contents give the same bytes: no times, fixed order. Written to a temporary name and renamed.
"""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.data.stored import check_directory, read_header
from quantkit.errors import DataError, as_os_error
from quantkit.files import replacing
from quantkit.settings import memory_of, memory_text

_HEADER = "header.json"
# What reading a file that is something else, or cut off, or has a flipped bit may raise.
_DAMAGE = (
    OSError,
    KeyError,
    ValueError,
    EOFError,
    RuntimeError,
    MemoryError,
    TypeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_RATIO = 100  # it may unpack to so many times its bytes, or to what memory there is
_SHOWN = 200  # letters of a reason
_EPOCH = (1980, 1, 1, 0, 0, 0)


def is_calibration(path: Path) -> bool:
    """Say whether a file is one of these, or is named like one."""
    return path.suffix == ".calibration" or is_container(path)


def is_container(path: Path) -> bool:
    """Say whether a file has the contents of one of these; an .npz of samples is a zip as well."""
    try:
        if not path.is_file() or not zipfile.is_zipfile(path):
            return False
        with _opened(path) as archive:
            return _HEADER in archive.namelist()
    except _DAMAGE:
        return False  # whoever reads it as data says what is wrong


def write_container(
    path: Path, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write the file, whole or not at all.

    Args:
        path: Where to.
        header: Plain data, written as JSON.
        arrays: By name; each is a member of a ZIP file, in numpy's format.

    Raises:
        OutputError: It cannot be written; what was there before is untouched.
    """
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:

        def add(name: str, content: str | bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED, 1)

        add(_HEADER, json.dumps(header, indent=1, sort_keys=True))
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.save(buffer, arrays[name], allow_pickle=False)
            add(f"{name}.npy", buffer.getvalue())


def read_container(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read header and arrays.

    Raises:
        DataError: There is no such file, or it is no such container, or it is damaged.
    """
    try:
        with _opened(path) as archive:
            members = _members(archive, path.stat().st_size)
            header = json.loads(archive.read(members.pop(_HEADER)))
            arrays = {
                name.removesuffix(".npy"): _array(archive.read(info))
                for name, info in members.items()
                if name.endswith(".npy")
            }
        if not isinstance(header, dict):
            raise TypeError("its header is no table")
    except FileNotFoundError as e:
        raise as_os_error(DataError(f"There is no file '{path}'."), e) from e
    except _DAMAGE as e:
        reason = str(e).partition("\n")[0][:_SHOWN] or type(e).__name__
        raise DataError(
            f"'{path}' is no calibration file, or it is damaged ({reason}); calibrate again."
        ) from e
    return header, arrays


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    with path.open("rb") as raw:
        check_directory(raw)
        with zipfile.ZipFile(raw) as archive:
            yield archive


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, if together they unpack to what can be held."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in members:
            raise ValueError(f"it holds '{info.filename}' twice")
        members[info.filename] = info
    taken = sum(info.file_size for info in members.values())
    if taken > max(memory_of(None), size * _RATIO):
        raise ValueError(f"it unpacks to {memory_text(taken)}")
    return members


def _array(content: bytes) -> NDArray[Any]:
    stream = io.BytesIO(content)
    header, fortran = read_header(stream)
    if stream.tell() + header.nbytes != len(content):
        raise ValueError("an array is not as long as it says")
    values = np.frombuffer(content, header.dtype, offset=stream.tell())
    return values.reshape(header.shape, order="F" if fortran else "C").copy()
