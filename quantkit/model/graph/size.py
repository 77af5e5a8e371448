"""Bytes of a model by cause. The parts add up to the size of its files.

Tensors count with their contents as written. The rest of the model file is "structure", so the sum is right by
construction.

`causes_of` finds why a tensor is there: which operator computes with it, that it is a scale, or that nothing needs it.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import Message

from quantkit.errors import ModelError
from quantkit.model.graph.edit import optional, producer_of, subgraphs_of
from quantkit.model.graph.load import read_structure
from quantkit.model.graph.mapping import MARK, MappedFile
from quantkit.model.graph.protos import leads_out, root_cause, to_ir
from quantkit.model.ops.float_ops import MOVES
from quantkit.model.ops.integer_ops import scale_slots, stands_for
from quantkit.result import Part

DEAD, SCALES, SHAPES, WEIGHTS = "dead", "scales", "shapes and indices", "weights of "
_CONSTANT_OUTPUTS = "constant outputs"
_INDEX_TYPES = frozenset({ir.DataType.INT64, ir.DataType.BOOL})
_FURTHEST = 16  # moves between a tensor of the file and the Cast that decodes it
_MOVES = MOVES | {"Cast"}  # of constants: integers of the file may be cast on their way
# Attributes that are numbers rather than tensors, with the type that a tensor of them would have.
_NUMBERS = {
    ir.AttributeType.FLOAT: ir.DataType.FLOAT,
    ir.AttributeType.FLOATS: ir.DataType.FLOAT,
    ir.AttributeType.INT: ir.DataType.INT64,
    ir.AttributeType.INTS: ir.DataType.INT64,
    ir.AttributeType.STRING: ir.DataType.STRING,
    ir.AttributeType.STRINGS: ir.DataType.STRING,
}

_HASHED_FROM = 256  # bytes; smaller tensors that are equal are not worth a line
# Tensors in external data start at a multiple of 4 KB, or of 64 KB, to be memory-mapped.
_ALIGNMENT = 64 << 10


@dataclass(frozen=True, eq=False)
class Contents:
    """A tensor in a model file: an initializer, or what an attribute of a node holds.

    Attributes:
        held: The tensor as onnx-ir read it; or the number, text or list of an attribute.
        dtype: Of the contents.
        value: The initializer, or the output of the Constant; None for attributes of other nodes.
        node: Whose attribute it is; None for an initializer.
    """

    held: Any
    dtype: ir.DataType
    value: ir.Value | None
    node: ir.Node | None = None

    @property
    def name(self) -> str:
        """The tensor's; "" where it has none."""
        return getattr(self.held, "name", None) or ""

    @property
    def type_name(self) -> str:
        """As numpy calls it."""
        return "string" if self.dtype is ir.DataType.STRING else str(self.dtype.numpy())

    @property
    def kind(self) -> object:
        """Type, shape and size: equal tensors have the same."""
        return self.dtype, str(getattr(self.held, "shape", "")), self.nbytes

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the contents as written, without tags and lengths."""
        held = self.held
        if isinstance(held, ir.ExternalTensor):
            return held.nbytes if held.length is None else held.length
        if isinstance(held, ir.serde.TensorProtoTensor):
            proto = held.raw
            plain = len(proto.raw_data) + 4 * len(proto.float_data) + 8 * len(proto.double_data)
            return plain + sum(
                map(_varints, (proto.int32_data, proto.int64_data, proto.uint64_data))
            )
        if isinstance(held, ir.StringTensor):
            held = held.string_data()
        values = held if isinstance(held, list | tuple) else [held]
        if self.dtype is ir.DataType.STRING:
            return sum(len(text.encode() if isinstance(text, str) else text) for text in values)
        return 4 * len(values) if self.dtype is ir.DataType.FLOAT else _varints(values)

    def inline(self) -> bytes:
        """Return the contents, which are not in another file."""
        if isinstance(self.held, ir.serde.TensorProtoTensor):
            return self.held.tobytes()
        return repr(getattr(self.held, "raw", self.held)).encode()


def _varints(numbers: Iterable[int]) -> int:
    """Return the bytes of numbers of variable length: one for each seven bits; negative ones have 64."""
    bits = np.array([number % (1 << 64) for number in numbers], np.uint64)
    return bits.size + sum(int(np.count_nonzero(bits >> np.uint64(7 * i))) for i in range(1, 10))


def causes_of(model: ir.Model) -> Iterator[tuple[Contents, str]]:
    """Yield every tensor of a model as it was read from its file, in the order of the file, with its cause."""
    causes = _Causes(model)
    for body in _bodies(model):
        yield from ((tensor, causes.of(tensor)) for tensor in _tensors_of(body))


def _bodies(model: ir.Model) -> list[ir.Graph]:
    return [model.graph, *(function.graph for function in model.functions.values())]


def _tensors_of(graph: ir.Graph) -> Iterator[Contents]:
    for value in graph.initializers.values():
        if value.const_value is not None:
            yield Contents(value.const_value, value.const_value.dtype, value)
    for node in graph:
        output = node.outputs[0] if node.op_type == "Constant" and node.outputs else None
        for attribute in node.attributes.values():
            kind = None if attribute.is_ref() else attribute.type
            if kind is ir.AttributeType.TENSOR:
                yield Contents(attribute.value, attribute.value.dtype, output, node)
            elif kind is ir.AttributeType.TENSORS:
                yield from (Contents(t, t.dtype, output, node) for t in attribute.value)
            # Trees and linear models of ai.onnx.ml keep their weights in lists of numbers.
            elif kind in _NUMBERS and (node.op_type == "Constant" or node.domain == "ai.onnx.ml"):
                yield Contents(attribute.value, _NUMBERS[kind], output, node)
        for inner in subgraphs_of(node):
            yield from _tensors_of(inner)


class _Causes:
    """Why a tensor is there: which operator computes with it, or that it is a scale, or dead.

    A node that reads constants only computes a constant: its consumers are what the constant is for. So the integers
    behind DequantizeLinear, or behind Cast, Sub and Mul, are weights of the operator that multiplies by them. Biases
    are weights of the operator that adds them.
    """

    def __init__(self, model: ir.Model) -> None:
        bodies = _bodies(model)
        self._nodes = [node for body in bodies for node in body.all_nodes()]
        self._owners: dict[ir.Value, ir.Node] = {}  # of values that a subgraph hands out
        self._constants = {v for body in bodies for v in body.initializers.values()}
        self._decoded: set[ir.Value] = set()
        for node in self._nodes:
            for graph in subgraphs_of(node):
                self._owners |= dict.fromkeys(graph.outputs, node)
                self._constants.update(graph.initializers.values())
            if self._is_constant(node):
                self._constants.update(node.outputs)
            if self._decodes(node):
                self._decoded.update(node.outputs)
        self._live = self._live_among(v for body in bodies for v in body.outputs)
        self._scales = self._find_scales()

    def of(self, tensor: Contents) -> str:
        value, node = tensor.value, tensor.node
        if value is None:
            assert node is not None  # noqa: S101 - it is an attribute of one
            return f"{WEIGHTS}{stands_for(node.op_type)}" if node in self._live else DEAD
        if value not in self._live:
            return DEAD
        if value in self._scales:
            return SCALES
        return SHAPES if tensor.dtype in _INDEX_TYPES else self._consumer(value)

    def _consumer(self, value: ir.Value) -> str:
        # The nearest node that computes with it, breadth first: nodes that compute constants only are looked through.
        # A tensor with two uses is counted for the nearer one; sizes must add up, so it cannot count for both. A
        # branch that hands a constant out makes it the If's.
        pending, seen = deque([value]), {value}
        while pending:
            at = pending.popleft()
            for node in at.consumers():
                if node not in self._live:
                    continue
                if not self._is_constant(node):
                    return f"{WEIGHTS}{stands_for(node.op_type)}"
                pending += [out for out in node.outputs if out not in seen]
                seen.update(node.outputs)
            owner = self._owners.get(at)
            if owner is not None and owner in self._live:
                return f"{WEIGHTS}{owner.op_type}"
        return _CONSTANT_OUTPUTS

    def _is_constant(self, node: ir.Node) -> bool:
        """Say whether a node is a Constant, or computes with constants only. One with subgraphs may read anything."""
        if node.op_type == "Constant":
            return bool(node.outputs)
        known = [value for value in node.inputs if value is not None]
        reads_constants = bool(known) and all(value in self._constants for value in known)
        return reads_constants and next(subgraphs_of(node), None) is None

    def _decodes(self, node: ir.Node) -> bool:
        """Say whether a node turns integers of the file into float: Cast(q), or Cast(q) - z."""
        first = optional(node, 0)
        if first is None or node.op_type == "Sub":
            return first in self._decoded
        return node.op_type == "Cast" and _is_stored(_moved_from(first))

    def _live_among(self, outputs: Iterable[ir.Value]) -> set[ir.Value | ir.Node]:
        """Return what an output depends on, and nodes without a result, which are there for something else."""
        live: set[ir.Value | ir.Node] = set()
        pending: list[ir.Value | ir.Node | None] = [*outputs]
        pending += [node for node in self._nodes if not node.outputs]
        while pending:
            one = pending.pop()
            if one is None or one in live:
                continue
            live.add(one)
            if isinstance(one, ir.Node):
                pending += one.inputs
                pending += [v for graph in subgraphs_of(one) for v in graph.outputs]
            else:
                pending.append(one.producer())
        return live

    def _find_scales(self) -> set[ir.Value]:
        """Return scales and zero points, and the constants that they are moved or computed from."""
        found: set[ir.Value] = set()
        pending = [value for node in self._nodes for value in self._scale_inputs(node)]
        while pending:
            value = pending.pop()
            if value is None or value in found:
                continue
            found.add(value)
            maker = value.producer()
            if maker is not None and maker.op_type != "Constant":
                moved = maker.inputs[:1] if maker.op_type in _MOVES else ()
                pending += maker.inputs if self._is_constant(maker) else moved
        return found

    def _scale_inputs(self, node: ir.Node) -> list[ir.Value | None]:
        # Operators with scales in fixed slots are the easy case. The others are weights decoded by hand, (Cast(q) -
        # z) * s, and products of two scales that DynamicQuantizeLinear found at run time times the weight's: there
        # the other operand of a Sub or Mul is the zero point or the scale. A Mul has them in either order, a Sub only
        # as the second.
        inputs = node.inputs
        found = [inputs[slot] for slot in scale_slots(node.op_type, len(inputs))]
        if len(inputs) == 2 and node.op_type == "Sub" and inputs[0] in self._decoded:
            found.append(inputs[1])
        elif len(inputs) == 2 and node.op_type == "Mul":
            sides = ((inputs[0], inputs[1]), (inputs[1], inputs[0]))
            scaled = (b for a, b in sides if a in self._decoded or _is_run_time_scale(a))
            found += [next(scaled, None)]
        return found


def _moved_from(value: ir.Value) -> ir.Value:
    for _ in range(_FURTHEST):
        maker = value.producer()
        first = maker.inputs[0] if maker and maker.op_type in _MOVES and maker.inputs else None
        if first is None:
            break
        value = first
    return value


def _is_stored(value: ir.Value) -> bool:
    """Say whether a value holds weights in the file, as integers of at most 16 bits or floats of at most 8."""
    tensor, maker = value.const_value, value.producer()
    if maker is not None and maker.op_type == "Constant":
        attribute = maker.attributes.get("value")
        tensor = attribute.as_tensor() if attribute is not None else None
    if tensor is None:
        return False
    integer, floating = tensor.dtype.is_integer(), tensor.dtype.is_floating_point()
    return (integer and tensor.dtype.bitwidth <= 16) or (floating and tensor.dtype.bitwidth <= 8)


def _is_run_time_scale(value: ir.Value | None) -> bool:
    maker = producer_of(value)
    if maker is None or maker.op_type != "DynamicQuantizeLinear":
        return False
    return value is not maker.outputs[0]


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
