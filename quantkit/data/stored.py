"""Arrays in .npy and .npz files: where each one lies, and some of its rows read without the rest.

A header is compared with the bytes that the file holds before anything is read. Rows of .npy files and of
`np.savez` are read at their place. Arrays of `np.savez_compressed` are unpacked whole; one that takes more than
the memory limit is an error that says how to save it instead.
"""

import io
import lzma
import os
import struct
import tokenize
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import IO, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy_format

from quantkit.data.blocks import Header
from quantkit.data.model import Array
from quantkit.errors import DataError
from quantkit.settings import memory_text

_UNPACKING = (zlib.error, lzma.LZMAError)
_LOCAL_HEADER = 30  # bytes before the name in a zip member's own header (PKWARE APPNOTE 4.3.7)
_END_RECORD = 22  # the last record of a zip file, before a comment of at most 64 KB (4.3.16)
_DIRECTORY = 32 << 20  # the list of members is read whole: 300,000 of them
_ENCRYPTED = 0x1
_HEADER = 10_000  # bytes; NumPy reads no longer one either
_VERSIONS = ((1, 0), (2, 0), (3, 0))
_MOST_ARRAYS = 64  # unpacked at a time
_STEP = 1 << 20
_LARGEST = 2**48  # no extent is larger; sums of some stay whole numbers of 64 bits
_BROKEN = (OSError, ValueError, BadZipFile, EOFError, RuntimeError, struct.error, *_UNPACKING)
_BAD_HEADER = (TypeError, KeyError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """Where an array lies.

    Attributes:
        file: The file.
        member: Its name in the archive; "" for a .npy file.
        header: Its type.
        fortran: Its first axis is the fastest.
        start: Where its values begin in the file, or what they are packed into.
        size: The bytes from there on that belong to it.
        skip: Bytes in front of the values once unpacked.
        method: How it is packed, as zip numbers it.
    """

    file: Path
    member: str = ""
    header: Header
    fortran: bool
    start: int
    size: int
    skip: int = 0
    method: int = ZIP_STORED

    @property
    def where(self) -> str:
        """The array's place, for messages."""
        name = self.member.removesuffix(".npy")
        return f"'{name}' of '{self.file}'" if name else f"'{self.file}'"


def npy_array(file: Path) -> StoredArray:
    """Return the array of a .npy file.

    Raises:
        DataError: It is none, or declares more than the file holds.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            header, fortran = read_header(stream)
            start = stream.tell()
    except _BROKEN as e:
        raise _unreadable(file, e) from e
    found = StoredArray(
        file=file, header=header, fortran=fortran, start=start, size=max(size - start, 0)
    )
    # Of a file that was cut off somewhere, the rows that it lacks are errors when they are read, so that they can be
    # skipped. One that holds not even half of what it declares is refused at once: its rows may be a billion.
    return found if header.nbytes <= 2 * found.size else _checked(found, found.size)


def npz_arrays(file: Path) -> dict[str, StoredArray]:
    """Return the arrays of a .npz file by name.

    Raises:
        DataError: The file is broken, encrypted, packed in a way that nobody reads, or declares more
            than it holds.
    """
    found: dict[str, StoredArray] = {}
    try:
        with file.open("rb") as raw:
            check_directory(raw)
            with ZipFile(raw) as archive:
                for info in archive.infolist():
                    array = _checked(_member(archive, info, raw, file), info.file_size)
                    name = info.filename.removesuffix(".npy")
                    if name in found:
                        raise ValueError(f"it holds two arrays named '{name}'")
                    found[name] = array
    except _BROKEN as e:
        raise _unreadable(file, e) from e
    if not found:
        raise DataError(f"'{file}' holds no arrays: save it again or remove it.")
    return found


def _unreadable(file: Path, error: BaseException) -> DataError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = (reason or type(error).__name__).rstrip(".")
    return DataError(f"Cannot read '{file}': {reason}; save it again or remove it.")


def read_header(stream: IO[bytes]) -> tuple[Header, bool]:
    """Read the header of an npy file or archive member; also tell if it is in Fortran order."""
    version = npy_format.read_magic(stream)
    if version not in _VERSIONS:
        raise ValueError(f"its format is {version[0]}.{version[1]}, which NumPy does not know")
    count = 2 if version == (1, 0) else 4
    length = int.from_bytes(stream.read(count), "little")
    if length > _HEADER:
        raise ValueError("its header is too long")
    return _parsed(version, length.to_bytes(count, "little") + stream.read(length))


@lru_cache(maxsize=64)  # 100,000 files of one kind have one header
def _parsed(version: tuple[int, int], content: bytes) -> tuple[Header, bool]:
    read = (
        npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    )
    try:
        shape, fortran, dtype = read(io.BytesIO(content))
    except _BAD_HEADER as e:
        raise ValueError("its header cannot be read") from e
    if dtype.hasobject:
        raise ValueError("it holds Python objects; save plain arrays")
    if dtype.names or dtype.subdtype or not dtype.itemsize:
        raise ValueError(f"it holds values of the type {dtype}, not plain numbers")
    if min(shape, default=0) < 0 or max(shape, default=0) > _LARGEST:
        raise ValueError(f"its header declares the shape {shape}")
    return Header(dtype=dtype, shape=tuple(int(n) for n in shape)), bool(fortran)


def _checked(array: StoredArray, held: int) -> StoredArray:
    """Return the array if its values can be in the `held` bytes behind its header."""
    if array.skip + array.header.nbytes > held:
        raise DataError(
            f"{array.where} declares {memory_text(array.header.nbytes)} and holds "
            f"{memory_text(max(held - array.skip, 0))}: it was cut off; save it again."
        )
    return array


def check_directory(raw: IO[bytes]) -> None:
    """Refuse a list of members so long that reading it would take all memory."""
    length = raw.seek(0, os.SEEK_END)
    raw.seek(max(0, length - _END_RECORD - 0xFFFF))
    end = raw.read()
    place = end.rfind(b"PK\5\6")
    if place >= 0 and len(end) - place >= _END_RECORD:
        (size,) = struct.unpack_from("<I", end, place + 12)
        if size > _DIRECTORY:
            raise ValueError("its list of members is too long")


def _member(archive: ZipFile, info: ZipInfo, raw: IO[bytes], file: Path) -> StoredArray:
    if info.flag_bits & _ENCRYPTED:
        raise ValueError("it is encrypted; unpack it first")
    try:
        with archive.open(info) as stream:
            header, fortran = read_header(stream)
            skip = stream.tell()
    except NotImplementedError as e:
        raise ValueError("it is packed in a way that NumPy does not read") from e
    raw.seek(info.header_offset)
    name, extra = struct.unpack("<26x2H", raw.read(_LOCAL_HEADER))
    start = info.header_offset + _LOCAL_HEADER + name + extra
    stored = info.compress_type == ZIP_STORED
    if start + info.compress_size > raw.seek(0, os.SEEK_END):
        raise ValueError("it was cut off")
    if stored and info.compress_size != info.file_size:
        raise ValueError("its sizes contradict each other")
    return StoredArray(
        file=file,
        member=info.filename,
        header=header,
        fortran=fortran,
        start=start + skip if stored else start,
        size=info.compress_size - skip if stored else info.compress_size,
        skip=skip,
        method=info.compress_type,
    )


class ArrayFiles:
    """Reads rows of stored arrays and caches unpacked ones. Pickles empty; threads may share it."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._lock = Lock()
        self._unpacked: OrderedDict[tuple[Path, str], Array] = OrderedDict()

    def __reduce__(self) -> tuple[type["ArrayFiles"], tuple[int]]:
        return ArrayFiles, (self._memory,)

    def rows(self, array: StoredArray, start: int, stop: int) -> Array:
        """Return a copy of some rows.

        Args:
            array: Where in which file it is.
            start: The first row.
            stop: The row behind the last.

        Raises:
            DataError: They cannot be read, or not within the memory.
        """
        try:
            if array.fortran or not array.header.shape:
                return np.array(self._whole(array)[start:stop])
            return self._contiguous(array, start, stop)
        except _BROKEN as e:
            raise _unreadable(array.file, e) from e

    def whole(self, array: StoredArray) -> Array:
        """Return a copy of all values."""
        self._fits(array, self._memory)
        try:
            if array.header.shape and not array.fortran:
                return self._contiguous(array, 0, array.header.shape[0])
            return np.array(self._whole(array))
        except _BROKEN as e:
            raise _unreadable(array.file, e) from e

    def _contiguous(self, array: StoredArray, start: int, stop: int) -> Array:
        header = array.header
        part = Header(dtype=header.dtype, shape=(stop - start, *header.shape[1:]))
        self._fits(array, self._memory, part)
        out = np.empty(part.shape, part.dtype)
        if not out.size:
            return out
        place = start * (out.nbytes // len(out))
        if array.method == ZIP_STORED:
            _read_at(array, place, out)
            return out
        return np.array(self._whole(array)[start:stop])

    def _fits(self, array: StoredArray, limit: int, part: Header | None = None) -> None:
        taken = (part or array.header).nbytes
        if taken > limit:
            packed = part is None and array.method != ZIP_STORED
            raise DataError(
                f"{array.where} takes {memory_text(taken)}{' for one sample' if part else ''} and "
                f"quantkit may hold {memory_text(self._memory)}: "
                f"{'save it with np.savez, which does not pack it, or ' if packed else ''}"
                "allow more with --memory."
            )

    def _whole(self, array: StoredArray) -> Array:
        """Return all values: mapped if they lie in the file as they are, else unpacked."""
        if not array.header.nbytes:
            return np.zeros(array.header.shape, array.header.dtype)
        if array.method == ZIP_STORED:
            _checked(
                array, array.skip + array.size
            )  # mapping does not look, and reading behind the end is a signal
            mapped: np.memmap[Any, Any] = np.memmap(
                array.file,
                dtype=array.header.dtype,
                mode="r",
                offset=array.start,
                shape=array.header.shape,
                order="F" if array.fortran else "C",
            )
            return mapped
        self._fits(array, self._memory)
        key = (array.file, array.member)
        with self._lock:
            if key not in self._unpacked:
                self._unpacked[key] = _unpack(array)
            self._unpacked.move_to_end(key)
            while len(self._unpacked) > 1 and self._exceeds_share():
                self._unpacked.popitem(last=False)
            return self._unpacked[key]

    def _exceeds_share(self) -> bool:
        taken = sum(values.nbytes for values in self._unpacked.values())
        too_many = len(self._unpacked) > _MOST_ARRAYS
        return too_many or taken > self._memory


def _bytes(array: Array) -> memoryview:
    """Return the array's memory, to be filled."""
    return array.reshape(-1, order="A").view(np.uint8).data


def _read_at(array: StoredArray, place: int, out: Array) -> None:
    """Fill `out` with the values `place` bytes behind the first: a file cut off meanwhile is an error, no signal."""
    with array.file.open("rb", buffering=0) as stream:
        stream.seek(array.start + place)
        view = _bytes(out)
        while view:
            count = stream.readinto(view)
            if not count:
                raise EOFError("it ends before its values do")
            view = view[count:]


def _unpack(array: StoredArray) -> Array:
    values = np.empty(array.header.shape, array.header.dtype, "F" if array.fortran else "C")
    view = _bytes(values)
    with ZipFile(array.file) as archive, archive.open(array.member) as stream:
        stream.read(array.skip)
        while view:
            chunk = stream.read(min(_STEP, len(view)))
            if not chunk:
                raise EOFError("it ends before its values do")
            view[: len(chunk)] = chunk
            view = view[len(chunk) :]
        stream.read(1)  # at the end the check sum is compared
    return values
