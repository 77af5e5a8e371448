"""Bytes of a model by cause. The parts add up to the size of its files.

Tensors count with their contents as written. The rest of the model file is "structure", so the sum is right by
construction.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import Message

from quantkit.errors import ModelError
from quantkit.model.graph._wire import MARK
from quantkit.model.graph.load import read_structure
from quantkit.model.graph.mapping import MappedFile
from quantkit.model.graph.protos import leads_out, root_cause, to_ir
from quantkit.model.graph.tensor_causes import DEAD, Contents, causes_of
from quantkit.result import Part

_HASHED_FROM = 256  # bytes; smaller tensors that are equal are not worth a line
# Tensors in external data start at a multiple of 4 KB, or of 64 KB, to be memory-mapped.
_ALIGNMENT = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBytes:
    """One tensor: its type ("float32"), why it is there, and the bytes that no tensor before it takes."""

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


def account(source: Path | onnx.ModelProto) -> Accounts:
    """Account for every byte of a model that `quantkit.model.graph.load` accepts.

    Causes: "weights of <operator>" (the float operator that computes with them, biases included), "scales" (and zero
    points), "shapes and indices" (int64 and bool constants), "constant outputs", "duplicates" (equal to a tensor
    counted before), "dead" (no output depends on it), "metadata" (properties and doc strings), "padding" (before an
    external tensor), "unused external data", and "structure" (nodes, names, types: the rest). Bytes of external data
    that several tensors share are counted once, for the first.

    Raises:
        ModelError: It is not an ONNX model.
    """
    path = source if isinstance(source, Path) else None
    proto = read_structure(source) if isinstance(source, Path) else source
    size = proto.ByteSize() if path is None else path.stat().st_size
    try:
        model = to_ir(proto)
    except (RuntimeError, ValueError, TypeError) as e:
        name = f"'{path}'" if path else "The given ModelProto"
        raise ModelError(f"{name} holds what quantkit does not support: {root_cause(e)}") from e
    files = _Files(path, size)
    rows = tuple(_rows(list(causes_of(model)), files))
    return Accounts(
        parts=_parts(rows, files.rest(_metadata(proto))),
        tensors=rows,
        files=(*([path] if path else ()), *files.external),
        nbytes=size + sum(ranges.size for ranges in files.external.values()),
    )


def _rows(tensors: Sequence[tuple[Contents, str]], files: "_Files") -> Iterator[TensorBytes]:
    """Yield every tensor with the bytes that it takes. Contents are read only where type, shape and size agree."""
    alike = Counter(tensor.kind for tensor, _ in tensors)
    seen: set[bytes] = set()
    for tensor, cause in tensors:
        nbytes, why = files.take(tensor), cause
        if cause != DEAD and nbytes >= _HASHED_FROM and alike[tensor.kind] > 1:
            digest = files.digest(tensor)
            why = "duplicates" if digest in seen else cause
            seen.add(digest)
        yield TensorBytes(name=tensor.name, dtype=tensor.type_name, cause=why, nbytes=nbytes)


def _parts(rows: Iterable[TensorBytes], rest: dict[str, int]) -> tuple[Part, ...]:
    count = Counter(row.cause for row in rows)
    nbytes: Counter[str] = Counter(rest)
    for row in rows:
        nbytes[row.cause] += row.nbytes
    parts = [Part(cause=c, tensors=count[c], nbytes=n) for c, n in nbytes.items() if n]
    return tuple(sorted(parts, key=lambda part: (-part.nbytes, part.cause)))


def _metadata(message: Message) -> int:
    """Return the bytes of all properties and doc strings in a message."""
    total = 0
    for field, held in message.ListFields():
        if field.name == "doc_string":
            total += len(held.encode() if isinstance(held, str) else held)
        elif field.name == "metadata_props":
            total += sum(entry.ByteSize() for entry in held)
        elif field.message_type is not None:
            total += sum(map(_metadata, (held,) if isinstance(held, Message) else held))
    return total


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
        """Take the bytes from `start` to before `end`; return how many were free."""
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


class _Files:
    """The files of a model, and which of their bytes tensors take."""

    def __init__(self, model: Path | None, size: int) -> None:
        self._model = model
        self._structure = size
        self.external: dict[Path, ByteRanges] = {}

    def take(self, tensor: Contents) -> int:
        """Return how many bytes of its contents no tensor before it has; none if its file is missing."""
        held = tensor.held
        if not isinstance(held, ir.ExternalTensor) or held.location == MARK:
            self._structure -= tensor.nbytes
            return tensor.nbytes
        path = self._find(str(held.location))
        if path is None:
            return 0
        ranges = self.external.setdefault(path, ByteRanges(path.stat().st_size))
        start = held.offset or 0
        return ranges.take(start, start + tensor.nbytes)

    def _find(self, location: str) -> Path | None:
        """Return the file of a location; None if it is missing, outside the folder, or the model itself."""
        if self._model is None or leads_out(location):
            return None
        path = self._model.parent / location
        if not path.is_file() or path.samefile(self._model):
            return None
        return next((p for p in self.external if p == path or p.samefile(path)), path)

    def digest(self, tensor: Contents) -> bytes:
        """Return a hash of type, shape and contents; memory does not grow with the contents."""
        digest, held = blake2b(repr(tensor.kind).encode(), digest_size=16), tensor.held
        if not isinstance(held, ir.ExternalTensor):
            digest.update(tensor.inline())
            return digest.digest()
        path = self._model if held.location == MARK else self._find(str(held.location))
        assert path is not None  # noqa: S101 - it has bytes
        file, start = MappedFile(path), held.offset or 0
        end = min(start + tensor.nbytes, len(file))
        for block in file.blocks(start, end):
            digest.update(block)
        return digest.digest()

    def rest(self, metadata: int) -> dict[str, int]:
        """Return the bytes that no tensor took, by cause. Call it when every tensor has taken its own."""
        padding = sum(ranges.gaps(_ALIGNMENT) for ranges in self.external.values())
        free = sum(ranges.free for ranges in self.external.values())
        return {
            "metadata": metadata,
            "padding": padding,
            "structure": self._structure - metadata,
            "unused external data": free - padding,
        }
