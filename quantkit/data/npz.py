"""`.npz` files: each holds rows, or one sample, under the names of the model's inputs.

Headers are read when the data is opened, values when a row is asked for. What `np.savez` wrote is
memory-mapped inside the archive (it is stored, not compressed), so that a row of a file of any size
costs a row; what `np.savez_compressed` wrote is unpacked whole and kept while it is used.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy_format

from quantkit.data.arrays import ArraySamples, FileCache
from quantkit.data.check import LABEL_NAMES
from quantkit.data.detect import Found
from quantkit.data.fingerprint import file_fingerprint
from quantkit.data.model import Array, Description, InputSpec, Label
from quantkit.data.rows import Block, Header, block_of, labels_line, labels_of, mislabelled
from quantkit.errors import DataError

__all__ = ["open_npz", "read_header"]

_LOCAL_HEADER = 30  # bytes before the name in a zip member's own header (PKWARE APPNOTE 4.3.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NpzSource:
    files: tuple[Path, ...]
    root: Path
    label: str | None
    cache: FileCache = field(default_factory=FileCache)

    def arrays(self, block: int) -> Mapping[str, Array]:
        return self.cache.get(block, lambda: _read(self.files[block]))

    def fingerprint(self) -> str:
        return file_fingerprint(self.files, self.root, ("npz", self.label))


def open_npz(found: Found, inputs: Sequence[InputSpec], label: str | None) -> ArraySamples:
    """Open the npz files of a directory, or one.

    Args:
        found: The files.
        inputs: What the model wants.
        label: The key of the labels; None: one of the usual names.
    """
    source = _NpzSource(files=found.files, root=found.root, label=label)
    blocks: list[Block] = []
    labels: list[Label] = []
    notes: dict[str, None] = {}
    label_key, wrong = None, ""
    for file in found.files:
        headers = _headers(file)
        label_key = _label_key(headers, inputs, label, file)
        keys = _keys({k for k in headers if k != label_key}, inputs, file.name, notes)
        block = block_of(file.name, headers, keys, inputs)
        blocks.append(block)
        array = _read(file, label_key)[label_key] if label_key else np.zeros((0, 0))
        own = labels_of(array)
        if label_key and len(own) != block.samples:
            where = f"'{label_key}' of {file.name}"
            wrong = wrong or mislabelled(array, block.samples, where)
            notes[f"{where} is not one label a sample: not used."] = None
            own = []
        labels += own or [None] * block.samples
    description = Description(
        kind=found.kind,
        location=found.location,
        samples=None,
        labels=labels_line(labels, f"'{label_key}'"),
        mislabelled=wrong,
        warnings=tuple(notes),
    )
    return ArraySamples(
        source, blocks=blocks, labels=labels, inputs=inputs, description=description
    )


def _label_key(
    headers: Mapping[str, Header], inputs: Sequence[InputSpec], label: str | None, file: Path
) -> str | None:
    if label is not None:
        if label not in headers:
            raise DataError(
                f"'{file}' has no labels '{label}': it has {', '.join(sorted(headers))}."
            )
        return label
    taken = {spec.name for spec in inputs}
    return next((n for n in LABEL_NAMES if n in headers and n not in taken), None)


def _keys(
    names: set[str], inputs: Sequence[InputSpec], file: str, notes: dict[str, None]
) -> dict[str, str]:
    """Return input -> key, and note what had to be guessed or is left out."""
    keys = {spec.name: spec.name for spec in inputs if spec.name in names}
    unknown = sorted(names - set(keys))
    if len(inputs) == 1 and not keys and len(unknown) == 1:
        name = inputs[0].name
        notes[f"'{unknown[0]}' is taken for the model's only input '{name}'."] = None
        return {name: unknown[0]}
    if len(keys) == len(inputs):
        for name in unknown:
            notes[f"'{name}' of {file} is no input of the model: not used."] = None
        return keys
    return keys | {name: name for name in unknown}


def read_header(stream: IO[bytes]) -> tuple[Header, bool]:
    """Read the header of an npy file or archive member; also tell if it is in Fortran order."""
    version = npy_format.read_magic(stream)
    read = (
        npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    )
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects; save plain arrays")
    return Header(dtype=dtype, shape=shape), fortran


def _headers(file: Path) -> dict[str, Header]:
    headers = {}
    try:
        with ZipFile(file) as archive:
            for info in archive.infolist():
                with archive.open(info) as stream:
                    headers[info.filename.removesuffix(".npy")] = read_header(stream)[0]
    except (OSError, ValueError, BadZipFile, EOFError, zlib.error) as e:
        raise DataError(f"Cannot read '{file}': {e}.") from e
    if not headers:
        raise DataError(f"'{file}' holds no arrays: save it again or remove it.")
    return headers


def _read(file: Path, only: str | None = None) -> dict[str, Array]:
    """Return the arrays, or only one: labels must not unpack the images beside them."""
    try:
        with ZipFile(file) as archive, file.open("rb") as raw:
            return {
                info.filename.removesuffix(".npy"): _member(archive, info, raw)
                for info in archive.infolist()
                if only is None or info.filename.removesuffix(".npy") == only
            }
    except (OSError, ValueError, BadZipFile, EOFError, zlib.error) as e:
        raise DataError(f"Cannot read '{file}': {e}.") from e


def _member(archive: ZipFile, info: ZipInfo, raw: IO[bytes]) -> Array:
    if info.compress_type != ZIP_STORED:
        with archive.open(info) as stream:
            array: Array = npy_format.read_array(stream, allow_pickle=False)
            return array
    raw.seek(info.header_offset)
    name, extra = struct.unpack("<26x2H", raw.read(_LOCAL_HEADER))
    raw.seek(info.header_offset + _LOCAL_HEADER + name + extra)
    header, fortran = read_header(raw)
    if not all(header.shape):
        return np.zeros(header.shape, header.dtype)
    mapped: np.memmap[Any, Any] = np.memmap(
        raw,
        dtype=header.dtype,
        mode="r",
        offset=raw.tell(),
        shape=header.shape,
        order="F" if fortran else "C",
    )
    return mapped
