"""Where in a model file its tensors and notes are, read from the bytes themselves.

Sizes are counted in the file as it is, not in a parsed message: a parser forgets how numbers were
written (packed or not, in how many bytes), and what it forgets would be missing in the sum.
Everything found here is a range of bytes, and no two ranges share a byte.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from quantkit.protobuf import Buffer, Field, WireError, fields_of, varint

__all__ = ["FileMap", "MapGraph", "MapNode", "MapTensor", "Span", "read_map"]

Span = tuple[int, int]
"""First byte, and the one behind the last."""

_BYTES = 2  # wire type
_DEEPEST = 100  # nested messages that protobuf itself reads
_EXTERNAL = 1  # TensorProto.EXTERNAL
_FLOAT, _INT64, _STRING = 1, 7, 8  # TensorProto.DataType
# Attributes that are numbers rather than tensors, with the type that a tensor of them would have.
_NUMBERS = {2: _FLOAT, 3: _INT64, 4: _STRING, 7: _FLOAT, 8: _INT64, 9: _STRING}


@dataclass(slots=True, eq=False)
class MapTensor:
    """A tensor's contents: `spans` of the model file, or a range of another file.

    Attributes:
        name: "" for the value of a node's attribute.
        dtype: TensorProto.DataType.
        dims: Its shape.
        spans: Contents in the model file, without tags and lengths.
        external: location, offset and length as written; empty if the contents are in the model file.
    """

    name: str = ""
    dtype: int = 0
    dims: tuple[int, ...] = ()
    spans: list[Span] = field(default_factory=list)
    external: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class MapNode:
    """A node with what its attributes hold."""

    op_type: str = ""
    domain: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    tensors: list[MapTensor] = field(default_factory=list)
    graphs: list["MapGraph"] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class MapGraph:
    """A graph, or the body of a function."""

    nodes: list[MapNode] = field(default_factory=list)
    initializers: list[MapTensor] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class FileMap:
    """The main graph, the functions and the training graphs of a file; and its doc strings and properties."""

    graphs: list[MapGraph] = field(default_factory=list)
    notes: list[Span] = field(default_factory=list)


def read_map(buffer: Buffer) -> FileMap:
    """Read a serialized ModelProto.

    Raises:
        WireError: It is none.
    """
    reader = _Reader(buffer)
    for f in reader.fields(0, len(buffer)):
        match f.number, f.wire:
            case ((6 | 14), 2):
                reader.note(f)
            case 7, 2:
                reader.found.graphs.append(reader.graph(f, 0))
            case 20, 2:
                inner = reader.fields(f.value, f.end)
                reader.found.graphs += [reader.graph(g, 0) for g in inner if g.wire == _BYTES]
            case 25, 2:
                reader.found.graphs.append(reader.function(f))
    return reader.found


class _Reader:
    """One method for each message of onnx.proto that tensors or notes are in; numbers are its fields'."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.found = FileMap()

    def fields(self, start: int, end: int) -> Iterator[Field]:
        return fields_of(self.buffer, start, end)

    def note(self, f: Field) -> None:
        if f.end > f.value:
            self.found.notes.append((f.value, f.end))

    def text(self, f: Field) -> str:
        # Names that are not UTF-8 stay different from one another.
        return bytes(self.buffer[f.value : f.end]).decode("utf-8", "surrogateescape")

    def number(self, f: Field) -> int:
        return varint(self.buffer, f.value, f.end)[0]

    def graph(self, message: Field, depth: int) -> MapGraph:
        if depth > _DEEPEST:
            raise WireError(f"nested more than {_DEEPEST} deep at byte {message.start}")
        graph = MapGraph()
        for f in self.fields(message.value, message.end):
            match f.number, f.wire:
                case 1, 2:
                    graph.nodes.append(self.node(f, depth))
                case 5, 2:
                    graph.initializers.append(self.tensor(f))
                case 15, 2:
                    graph.initializers += self.sparse(f)
                case ((10 | 16), 2):
                    self.note(f)
                case 11, 2:
                    graph.inputs.append(self.port(f))
                case 12, 2:
                    graph.outputs.append(self.port(f))
                case 13, 2:
                    self.port(f)
        return graph

    def function(self, message: Field) -> MapGraph:
        body = MapGraph()
        defaults = MapNode()  # tensors that attributes are if a call does not name them
        for f in self.fields(message.value, message.end):
            match f.number, f.wire:
                case 1, 2:
                    defaults.op_type = self.text(f)
                case 4, 2:
                    body.inputs.append(self.text(f))
                case 5, 2:
                    body.outputs.append(self.text(f))
                case 7, 2:
                    body.nodes.append(self.node(f, 0))
                case ((8 | 14), 2):
                    self.note(f)
                case 11, 2:
                    self.attribute(f, defaults, 0)
                case 12, 2:
                    self.port(f)
        if defaults.tensors or defaults.graphs:
            body.nodes.append(defaults)
        return body

    def port(self, message: Field) -> str:
        name = ""
        for f in self.fields(message.value, message.end):
            match f.number, f.wire:
                case 1, 2:
                    name = self.text(f)
                case ((3 | 4), 2):
                    self.note(f)
        return name

    def node(self, message: Field, depth: int) -> MapNode:
        node = MapNode()
        attributes: list[Field] = []
        for f in self.fields(message.value, message.end):
            match f.number, f.wire:
                case 1, 2:
                    node.inputs.append(self.text(f))
                case 2, 2:
                    node.outputs.append(self.text(f))
                case 4, 2:
                    node.op_type = self.text(f)
                case 5, 2:
                    attributes.append(f)
                case ((6 | 9), 2):
                    self.note(f)
                case 7, 2:
                    node.domain = self.text(f)
        for f in attributes:  # last: which of them are weights depends on the operator
            self.attribute(f, node, depth)
        return node

    def attribute(self, message: Field, node: MapNode, depth: int) -> None:
        # Trees and linear models of ai.onnx.ml keep their weights in lists of numbers.
        holds = node.op_type == "Constant" or node.domain == "ai.onnx.ml"
        numbers: dict[int, MapTensor] = {}
        for f in self.fields(message.value, message.end):
            match f.number, f.wire:
                case ((5 | 10), 2):
                    node.tensors.append(self.tensor(f))
                case ((6 | 11), 2):
                    node.graphs.append(self.graph(f, depth + 1))
                case 13, 2:
                    self.note(f)
                case ((22 | 23), 2):
                    node.tensors += self.sparse(f)
                case number, _ if holds and number in _NUMBERS:
                    numbers.setdefault(number, MapTensor(dtype=_NUMBERS[number])).spans.append(
                        (f.value, f.end)
                    )
        node.tensors += numbers.values()

    def sparse(self, message: Field) -> list[MapTensor]:
        """Return values and indices; they go by the name of the values."""
        parts = [
            self.tensor(f)
            for f in self.fields(message.value, message.end)
            if f.number in {1, 2} and f.wire == _BYTES
        ]
        name = next((part.name for part in parts if part.name), "")
        for part in parts:
            part.name = name
        return parts

    def tensor(self, message: Field) -> MapTensor:
        tensor = MapTensor()
        location = 0
        entries: dict[str, str] = {}
        for f in self.fields(message.value, message.end):
            match f.number, f.wire:
                case 1, _:
                    tensor.dims += tuple(self.integers(f))
                case 2, 0:
                    tensor.dtype = self.number(f)
                case ((4 | 5 | 6 | 7 | 9 | 10 | 11), _):
                    tensor.spans.append((f.value, f.end))
                case 8, 2:
                    tensor.name = self.text(f)
                case ((12 | 16), 2):
                    self.note(f)
                case 13, 2:
                    entries.update([self.entry(f)])
                case 14, 0:
                    location = self.number(f)
        if location == _EXTERNAL:
            tensor.external = entries
        return tensor

    def integers(self, f: Field) -> Iterator[int]:
        position = f.value
        while position < f.end:
            value, position = varint(self.buffer, position, f.end)
            yield value

    def entry(self, message: Field) -> tuple[str, str]:
        texts = {f.number: self.text(f) for f in self.fields(message.value, message.end)}
        return texts.get(1, ""), texts.get(2, "")
