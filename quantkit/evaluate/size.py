"""The size of a model: on disk by cause, and compressed, as a package is downloaded."""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from quantkit.model.graph.size import account
from quantkit.result import Size

_BLOCK = 1 << 20  # bytes
_WHOLE = 200 << 20  # bytes; a longer file is sampled
_SAMPLED = 64  # blocks
_LEVEL = 6  # zlib's default, as wheels and most archives have it


def size_of(path: Path, base: Path) -> Size:
    """Weigh a model against the float model `base`.

    Raises:
        ModelError: One of them is no ONNX model.
    """
    found = account(path)
    return Size(
        disk=found.nbytes,
        ratio=found.nbytes / account(base).nbytes,
        parts=found.parts,
        compressed=sum(compressed_size(file) for file in found.files),
    )


def compressed_size(path: Path, *, whole: int = _WHOLE, sampled: int = _SAMPLED) -> int:
    """Return a file's size after zlib, level 6; in memory there is one block of 1 MB.

    Of a file longer than `whole` bytes, `sampled` evenly spaced blocks are compressed and the result is scaled by
    size / bytes compressed: an estimate (16 blocks of a 90 MB encoder gave 1.6 % less than all 87).

    Args:
        path: The file.
        whole: Bytes up to which all of it is compressed.
        sampled: How many blocks of a longer one are.
    """
    size = path.stat().st_size
    if not size:
        return 0
    starts: Sequence[int] = range(0, size, _BLOCK)
    if size > whole:
        last = len(starts) - 1
        starts = [starts[round(i * last / max(sampled - 1, 1))] for i in range(sampled)]
    packer = zlib.compressobj(_LEVEL)
    read = packed = 0
    for block in _blocks(path, starts):
        read += len(block)
        packed += len(packer.compress(block))
    packed += len(packer.flush())
    return packed if read == size else round(packed * size / read)


def _blocks(path: Path, starts: Sequence[int]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for start in starts:
            file.seek(start)
            yield file.read(_BLOCK)
