"""Arrays in .npy and .npz files: where each one lies, and some of its rows read without the rest.

Nothing that a file declares is believed before it is compared with the bytes that are there. Rows of
.npy files and of what `np.savez` wrote are read at their place; what `np.savez_compressed` wrote is
unpacked whole where it is small, and else unpacked as far as the row that is wanted, from the nearest
of some points that are kept on the way. Neither takes memory that grows with the file.
"""

import io
import lzma
import os
import struct
import tokenize
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy_format

from quantkit.data.blocks import Header
from quantkit.data.model import Array
from quantkit.errors import DataError
from quantkit.settings import memory_text

__all__ = ["ArrayFiles", "StoredArray", "check_directory", "npy_array", "npz_arrays", "read_header"]

_UNPACKING = (zlib.error, lzma.LZMAError)
_LOCAL_HEADER = 30  # bytes before the name in a zip member's own header (PKWARE APPNOTE 4.3.7)
_END_RECORD = 22  # the last record of a zip file, before a comment of at most 64 KB (4.3.16)
_DIRECTORY = 32 << 20  # the list of members is read whole: 300,000 of them
_ENCRYPTED = 0x1
_HEADER = 10_000  # bytes; NumPy reads no longer one either
_VERSIONS = ((1, 0), (2, 0), (3, 0))
_WHOLE_SHARE = 8  # of the memory: an array that takes less is unpacked whole
_KEPT = 256 << 20
_KEPT_ARRAYS = 64
_RATIO = (
    100  # times its bytes may be unpacked to get at a row, if memory is less: a bomb takes minutes
)
_POINTS = 1024  # at which unpacking can be taken up again; each takes 40 KB
_STEP = 1 << 20
_CHUNK = 1 << 16
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
    """Reads rows of stored arrays; keeps what was unpacked last. Pickles empty; threads may share it."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._lock = Lock()
        self._kept: OrderedDict[tuple[Path, str], Array | _Inflater] = OrderedDict()

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
        if header.nbytes <= self._share():
            return np.array(self._whole(array)[start:stop])
        if array.method != ZIP_DEFLATED:
            self._fits(array, self._share())
        self._fits(array, max(self._memory, array.size * _RATIO))
        stream = self._keep(array, lambda: _Inflater(array))
        assert isinstance(stream, _Inflater)  # noqa: S101 - just made
        stream.read_into(place, out)
        return out

    def _share(self) -> int:
        return self._memory // _WHOLE_SHARE

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
        values = self._keep(array, lambda: _unpacked(array))
        assert isinstance(values, np.ndarray)  # noqa: S101 - just made
        return values

    def _keep(
        self, array: StoredArray, read: Callable[[], "Array | _Inflater"]
    ) -> "Array | _Inflater":
        key = (array.file, array.member)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = read()
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and self._too_much():
                self._kept.popitem(last=False)
            return self._kept[key]

    def _too_much(self) -> bool:
        held = sum(kept.nbytes for kept in self._kept.values())
        return len(self._kept) > _KEPT_ARRAYS or held > min(_KEPT, self._memory // 4)


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


def _unpacked(array: StoredArray) -> Array:
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


@dataclass(slots=True)
class _Point:
    """A state of unpacking: where it is in what comes out, and in the file."""

    out: int
    packed: int
    state: Any


class _Inflater:
    """Random access to what deflate packed, by points on the way at which it can be taken up."""

    def __init__(self, array: StoredArray) -> None:
        self._array = array
        self._step = max(_STEP, array.header.nbytes // _POINTS)
        self._points = [_Point(out=0, packed=0, state=zlib.decompressobj(-zlib.MAX_WBITS))]
        self._now = self._copy(self._points[0])
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """What is held: a window of 32 KB and tables for each point."""
        return len(self._points) * 40_000

    @staticmethod
    def _copy(point: _Point) -> _Point:
        return _Point(out=point.out, packed=point.packed, state=point.state.copy())

    def read_into(self, place: int, out: Array) -> None:
        """Fill `out` with the values `place` bytes behind the first."""
        view = _bytes(out)
        place += self._array.skip
        with self._lock, self._array.file.open("rb") as stream:
            self._go_back(place)
            while view:
                begin = self._now.out
                chunk = self._next(stream, min(_CHUNK, place - begin) or min(_CHUNK, len(view)))
                if begin < place:
                    continue
                view[: len(chunk)] = chunk
                view, place = view[len(chunk) :], place + len(chunk)

    def _go_back(self, place: int) -> None:
        number = bisect_right(self._points, place, key=lambda point: point.out) - 1
        nearest = self._points[number]
        if not nearest.out <= self._now.out <= place:
            self._now = self._copy(nearest)

    def _next(self, stream: IO[bytes], most: int) -> bytes:
        """Return the next bytes, at most so many; keep a point if the last is far behind."""
        now, state = self._now, self._now.state
        chunk = b""
        while not chunk:
            packed = state.unconsumed_tail
            if not packed:
                stream.seek(self._array.start + now.packed)
                packed = stream.read(min(_CHUNK, self._array.size - now.packed))
                now.packed += len(packed)
            chunk = state.decompress(packed, most)
            if not chunk and (state.eof or not packed):
                raise EOFError("it ends before its values do")
        now.out += len(chunk)
        if now.out - self._points[-1].out >= self._step:
            self._points.append(self._copy(now))
        return bytes(chunk)
