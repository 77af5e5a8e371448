"""Parts of a model that run by themselves: tensors inside it become inputs and outputs.

A tensor that is *fed* is cut in two: who reads it reads the input ``fed/name``, and the part may still hand out what the
graph computes under that name. Only nodes that the outputs need are kept; weights stay in their file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.match.structure import Structure, subgraphs
from quantkit.runtime.session import make_session

__all__ = [
    "Kind",
    "Part",
    "Parts",
    "declared",
    "needed",
    "part_of",
    "parts_of",
    "renamed",
    "types_of",
]

Array = NDArray[Any]
_TOGETHER = 64
# As onnxruntime calls them.
_TYPES = {
    "tensor(bool)": ir.DataType.BOOL,
    "tensor(double)": ir.DataType.DOUBLE,
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(float16)": ir.DataType.FLOAT16,
    "tensor(int16)": ir.DataType.INT16,
    "tensor(int32)": ir.DataType.INT32,
    "tensor(int64)": ir.DataType.INT64,
    "tensor(int8)": ir.DataType.INT8,
    "tensor(uint16)": ir.DataType.UINT16,
    "tensor(uint8)": ir.DataType.UINT8,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """Element type and number of axes of a tensor."""

    dtype: ir.DataType
    rank: int

    @property
    def is_float(self) -> bool:
        """Whether it holds floats, of any size."""
        return self.dtype.is_floating_point()


@dataclass(frozen=True, slots=True)
class Part:
    """A session (None without outputs), the tensor behind each of its inputs, and the names of its outputs."""

    session: Any
    entries: Mapping[str, str]
    outputs: tuple[str, ...]

    def run(self, *feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run it on what it reads of some mappings of tensors; of two with the same tensor the last counts."""
        if not self.outputs:
            return {}
        given = {i: each[t] for each in feeds for i, t in self.entries.items() if t in each}
        return dict(zip(self.outputs, self.session.run(list(self.outputs), given), strict=True))


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts that are run one after the other."""

    parts: tuple[Part, ...]

    def run(self, *feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return what all of them make."""
        return {name: array for part in self.parts for name, array in part.run(*feeds).items()}


def part_of(
    model: Structure, outputs: Sequence[str], fed: Mapping[str, Kind], *, level: int = 0
) -> Part:
    """Cut a part out of a model and load it.

    Args:
        model: The model.
        outputs: What comes out, as the graph computes it.
        fed: Tensors that are given to those who read them; inputs of the model are always fed under their own name.
        level: How far onnxruntime optimizes: with 0 the file's own meaning is run.
    """
    if not outputs:
        return Part(None, {}, ())
    # A tensor that is fed gets another name on the side of those who read it. Its maker may still be needed, for
    # another output of the part or because it is an output itself, and a name cannot be both an input and a node's
    # result. Inputs of the model are never cut: they are fed anyway. What nobody in the part reads is not declared:
    # onnxruntime refuses a missing feed, and callers give one mapping to many parts.
    cut = {name: kind for name, kind in fed.items() if name not in model.inputs}
    kept, read = needed(model, outputs, cut.keys())
    graph = onnx.GraphProto(name="part")
    names = {name: _fed(name) for name in cut}
    graph.node.extend(renamed(model.nodes[i], names) for i in kept)
    graph.initializer.extend(t for name, t in model.initializers.items() if name in read)
    inputs = [i for i in model.proto.graph.input if i.name in read and i.name in model.inputs]
    graph.input.extend(inputs)
    used = [name for name in cut if name in read]
    for name in used:
        graph.input.append(declared(_fed(name), cut[name]))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, graph=graph)
    proto.opset_import.extend(model.proto.opset_import)
    # Parts take turns in one process.
    session = make_session(
        proto.SerializeToString(), folder=model.folder, level=level, spinning=False
    )
    entries = {i.name: i.name for i in inputs} | {_fed(name): name for name in used}
    return Part(session, entries, tuple(outputs))


def parts_of(model: Structure, outputs: Sequence[str], fed: Mapping[str, Kind]) -> Parts:
    """Cut many small parts out of a model, some to a session.

    onnxruntime takes 30 s to load one of a thousand inputs, and two seconds for 16 of 64 each.

    Args:
        model: The model.
        outputs: What comes out, some of them per session.
        fed: Tensors that are given to those who read them.
    """
    chunks = [outputs[i : i + _TOGETHER] for i in range(0, len(outputs), _TOGETHER)]
    return Parts(tuple(part_of(model, chunk, fed) for chunk in chunks))


def declared(name: str, kind: Kind) -> onnx.ValueInfoProto:
    """Declare a tensor, all its extents free."""
    info = onnx.ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = int(kind.dtype)
    info.type.tensor_type.shape.SetInParent()
    for _ in range(kind.rank):
        info.type.tensor_type.shape.dim.add()
    return info


def types_of(part: Part) -> dict[str, ir.DataType]:
    """Return the types of the outputs, as far as they are plain tensors."""
    made = part.session.get_outputs() if part.outputs else ()
    return {value.name: _TYPES[value.type] for value in made if value.type in _TYPES}


def renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Return a node that reads other tensors, also in its subgraphs; itself if nothing changes."""
    if not any(name in names for name in node.input) and not any(subgraphs(node)):
        return node
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    _rename(copied, names)
    return copied


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    # Names are unique along nested graphs: what a subgraph calls by the name of an outer tensor is that tensor.
    for slot, name in enumerate(node.input):
        node.input[slot] = names.get(name, name)
    for graph in subgraphs(node):
        for inner in graph.node:
            _rename(inner, names)
        for output in graph.output:
            output.name = names.get(output.name, output.name)


def needed(
    model: Structure, outputs: Iterable[str], fed: Iterable[str]
) -> tuple[list[int], set[str]]:
    """Return the nodes that outputs need, in order, and all that these read.

    Args:
        model: The model.
        outputs: The tensors that are wanted.
        fed: Tensors whose makers are not needed, as they are given.
    """
    stops = set(fed)
    read: set[str] = set()
    kept: set[int] = set()
    queue = [model.maker[name] for name in outputs if name in model.maker]
    while queue:
        index = queue.pop()
        if index in kept:
            continue
        kept.add(index)
        for name in model.reads[index]:
            read.add(name)
            if name not in stops and name in model.maker:
                queue.append(model.maker[name])
    return sorted(kept), read


def _fed(tensor: str) -> str:
    return f"fed/{tensor}"
