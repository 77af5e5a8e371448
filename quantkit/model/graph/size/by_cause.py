"""Where the bytes of a model are. The parts add up to the size of its files exactly.

Every cause takes ranges of bytes of a file that no cause before it has taken, and what is left of
a file is a cause itself. So the sum is right and no part is negative, whatever the file holds.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from pathlib import Path

import onnx
import onnx_ir as ir

from quantkit.errors import ModelError, as_os_error
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.mapping import MappedFile
from quantkit.model.graph.messages import leads_out
from quantkit.model.graph.size.causes import DEAD, causes_of
from quantkit.model.graph.size.file_map import MapTensor, Span, read_map
from quantkit.protobuf import Buffer, WireError
from quantkit.result import Part

__all__ = ["Accounts", "ByteRanges", "TensorBytes", "account", "account_of", "size_by_cause"]


class ByteRanges:
    """The ranges of a file's bytes that are accounted for: disjoint, sorted, and never beyond the file.

    Invariant: what all calls of `take` returned, and `free`, add up to `size`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self._starts: list[int] = []
        self._ends: list[int] = []

    def take(self, start: int, end: int) -> int:
        """Take the bytes from `start` to before `end`; return how many nobody had taken before."""
        start, end = max(start, 0), min(end, self.size)
        if start >= end:
            return 0
        asked = end - start
        # All ranges that this one overlaps or touches become one.
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        had = sum(min(self._ends[i], end) - max(self._starts[i], start) for i in range(first, last))
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
        self.free -= asked - had
        return asked - had

    def gaps(self, shorter_than: int) -> int:
        """Return the bytes of all gaps before a taken range that are shorter than a length."""
        lengths = (s - e for s, e in zip(self._starts, [0, *self._ends], strict=False))
        return sum(length for length in lengths if length < shorter_than)


_HASHED_FROM = 256  # bytes; smaller tensors that are equal are not worth a line
_BLOCK = 16 << 20  # bytes read at a time
# Tensors in external data start at a multiple of 4 KB, or of 64 KB, to be memory-mapped.
_ALIGNMENT = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBytes:
    """One tensor: its type ("float32"), why it is there, and the bytes that it takes alone."""

    name: str
    dtype: str
    cause: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Every byte of a model.

    Invariant: the parts add up to `nbytes`, the size of all files.

    Attributes:
        parts: By cause, the largest first.
        tensors: One by one, in the order of the file.
        files: The model file and its external data, each once; empty for a ModelProto.
        nbytes: All of it.
    """

    parts: tuple[Part, ...]
    tensors: tuple[TensorBytes, ...]
    files: tuple[Path, ...]
    nbytes: int


def size_by_cause(loaded: LoadedModel) -> tuple[Part, ...]:
    """Return the parts of `account_of`."""
    return account_of(loaded).parts


def account_of(loaded: LoadedModel) -> Accounts:
    """Account for every byte of a model as it was given; see `account`."""
    source = loaded.path or loaded.proto
    assert source is not None  # noqa: S101 - it was loaded from one of them
    return account(source)


def account(source: Path | onnx.ModelProto) -> Accounts:
    """Account for every byte.

    Causes: "weights of <operator>" (the float operator that computes with them, biases included), "scales" (and zero
    points), "shapes and indices" (int64 and bool constants), "constant outputs", "duplicates" (equal to a tensor
    counted before), "dead" (no output depends on it), "metadata" (properties and doc strings), "padding" (before an
    external tensor), "unused external data", and "structure" (nodes, names, types: the rest). Bytes of external data
    that several tensors share are counted once, for the first.

    Raises:
        ModelError: It is no ONNX model.
    """
    files = _Files(source)
    try:
        found = read_map(files.model)
    except WireError as e:
        raise ModelError(f"{files.name} is not an ONNX model, or is truncated ({e}).") from e
    placed = [(t, cause, *files.place(t)) for t, cause in causes_of(found.graphs)]
    copies = _copies(placed, files)
    rows: list[TensorBytes] = []
    for i, (tensor, cause, ranges, spans) in enumerate(placed):
        taken = sum(ranges.take(*span) for span in spans)
        why = "duplicates" if i in copies and taken else cause
        rows.append(
            TensorBytes(name=tensor.name, dtype=_type_name(tensor.dtype), cause=why, nbytes=taken)
        )
    rest = files.rest(found.notes)
    return Accounts(
        parts=_parts(rows, rest),
        tensors=tuple(rows),
        files=tuple(files.external) if files.path is None else (files.path, *files.external),
        nbytes=sum(row.nbytes for row in rows) + sum(rest.values()),
    )


def _parts(rows: Iterable[TensorBytes], rest: dict[str, int]) -> tuple[Part, ...]:
    count: Counter[str] = Counter()
    nbytes: Counter[str] = Counter(rest)
    for row in rows:
        count[row.cause] += 1
        nbytes[row.cause] += row.nbytes
    parts = [Part(cause=c, tensors=count[c], nbytes=n) for c, n in nbytes.items() if n]
    return tuple(sorted(parts, key=lambda part: (-part.nbytes, part.cause)))


_Placed = tuple[MapTensor, str, ByteRanges, list[Span]]


class _Files:
    """The files of a model, and which of their bytes are taken."""

    def __init__(self, source: Path | onnx.ModelProto) -> None:
        self.path: Path | None = None
        self.name = "The given ModelProto"
        if isinstance(source, Path):
            self.path, self.name = source, f"'{source}'"
            if not source.is_file() or not source.stat().st_size:
                said = ModelError(f"Model file '{source}' does not exist, or is empty.")
                raise said if source.is_file() else as_os_error(said, FileNotFoundError)
            self.model: Buffer = MappedFile(source).view()
        else:
            self.model = source.SerializeToString()
        self.inside = ByteRanges(len(self.model))
        self.external: dict[Path, ByteRanges] = {}
        self._resolved: dict[str, ByteRanges | None] = {}

    def place(self, tensor: MapTensor) -> tuple[ByteRanges, list[Span]]:
        """Return which bytes hold the tensor; none if its file is not there."""
        if not tensor.external:
            return self.inside, tensor.spans
        ranges = self._open(tensor.external.get("location", ""))
        if ranges is None:
            return self.inside, []
        start = _whole(tensor.external.get("offset")) or 0
        length = _whole(tensor.external.get("length"))
        length = _bytes_of(tensor) if length is None else length
        end = ranges.size if length is None else min(start + length, ranges.size)
        return ranges, [(min(start, end), end)]

    def _open(self, location: str) -> ByteRanges | None:
        if location not in self._resolved:
            self._resolved[location] = self._ranges_of(location)
        return self._resolved[location]

    def _ranges_of(self, location: str) -> ByteRanges | None:
        if self.path is None or not location or leads_out(location):
            return None
        path = self.path.parent / location
        if not path.is_file():
            return None
        if path.samefile(self.path):
            return self.inside
        same = next((p for p in self.external if p.samefile(path)), path)
        return self.external.setdefault(same, ByteRanges(path.stat().st_size))

    def digest(self, ranges: ByteRanges, spans: list[Span]) -> bytes:
        """Return a hash of the bytes; memory does not grow with their number."""
        hashed = blake2b(digest_size=16)
        path = next((p for p, c in self.external.items() if c is ranges), self.path)
        file = MappedFile(path) if path else None
        for start, end in spans:
            for at in range(start, end, _BLOCK):
                stop = min(at + _BLOCK, end)
                hashed.update(file.read(stop - at, at).data if file else self.model[at:stop])
        return hashed.digest()

    def rest(self, notes: Iterable[Span]) -> dict[str, int]:
        """Return what is no tensor. Call it when every tensor has taken its bytes."""
        metadata = sum(self.inside.take(*span) for span in notes)
        padding = sum(ranges.gaps(_ALIGNMENT) for ranges in self.external.values())
        free = sum(ranges.free for ranges in self.external.values())
        found = {"metadata": metadata, "padding": padding, "unused external data": free - padding}
        return found | {"structure": self.inside.free}


def _copies(placed: list[_Placed], files: _Files) -> set[int]:
    """Return the numbers of the live tensors that are equal to one before them."""
    alike: dict[object, list[int]] = {}
    for i, (tensor, cause, _, spans) in enumerate(placed):
        length = sum(end - start for start, end in spans)
        if cause != DEAD and length >= _HASHED_FROM:
            alike.setdefault((tensor.dtype, tensor.dims, length), []).append(i)
    return {i for group in alike.values() if len(group) > 1 for i in _equal(group, placed, files)}


def _equal(group: list[int], placed: list[_Placed], files: _Files) -> Iterator[int]:
    seen: set[bytes] = set()
    for i in group:
        _, _, ranges, spans = placed[i]
        digest = files.digest(ranges, spans)
        if digest in seen:
            yield i
        seen.add(digest)


def _bytes_of(tensor: MapTensor) -> int | None:
    """Return the size that type and shape ask for; None if the type is not known."""
    try:
        bits = ir.DataType(tensor.dtype).bitwidth
    except (TypeError, ValueError):
        return None
    return -(-prod(tensor.dims) * bits // 8)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _type_name(dtype: int) -> str:
    try:
        return str(ir.DataType(dtype).numpy()) if dtype != ir.DataType.STRING else "string"
    except (TypeError, ValueError):
        return f"type {dtype}"
