"""One file of a JSON header and arrays: a zip of ``header.json`` and ``.npy`` members.

The same contents give the same bytes: no times, fixed order. Written to a temporary name and renamed.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import DataError
from quantkit.files import replacing

__all__ = ["is_calibration", "read_container", "write_container"]

_HEADER = "header.json"
# What reading a file that is something else, or cut off, or has a flipped bit may raise.
_DAMAGE = (
    OSError,
    KeyError,
    ValueError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)
_EPOCH = (1980, 1, 1, 0, 0, 0)


def is_calibration(path: Path) -> bool:
    """Say whether a file is one of these, or is named like one; an .npz of samples is a zip as well."""
    if path.suffix == ".calibration":
        return True
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return _HEADER in archive.namelist()


def write_container(
    path: Path, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write the file, whole or not at all.

    Raises:
        OutputError: It cannot be written; what was there before is untouched.
    """
    with replacing(path) as file:
        _write(file, header, arrays)


def _write(file: Any, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        text = json.dumps(header, indent=1, sort_keys=True)
        archive.writestr(_member(_HEADER), text, zipfile.ZIP_DEFLATED, 1)
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.save(buffer, arrays[name], allow_pickle=False)
            archive.writestr(_member(f"{name}.npy"), buffer.getvalue(), zipfile.ZIP_DEFLATED, 1)


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, _EPOCH)


def read_container(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read header and arrays.

    Raises:
        DataError: There is no such file, or it is no such container, or it is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(_HEADER))
            arrays = {
                name.removesuffix(".npy"): np.load(
                    io.BytesIO(archive.read(name)), allow_pickle=False
                )
                for name in archive.namelist()
                if name.endswith(".npy")
            }
    except FileNotFoundError as e:
        raise DataError(f"There is no file '{path}'.") from e
    except _DAMAGE as e:
        raise DataError(
            f"'{path}' is no calibration file, or it is damaged ({e}); calibrate again."
        ) from e
    return header, arrays
