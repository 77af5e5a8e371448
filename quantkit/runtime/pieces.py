"""A model file as nodes and names: what makes each tensor, who reads it, which constants are how large.

Weights stay in their file; sessions of parts of the graph map them.

A `Part` of a model runs by itself: tensors inside it become inputs and outputs. A tensor that is *fed* is cut in two:
who reads it reads the input ``fed/name``, and the part may still hand out what the graph computes under that name.
Only nodes that the outputs need are kept; weights stay in their file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

from quantkit.model.graph.load import LoadedModel, load
from quantkit.model.graph.mapping import mapped_model
from quantkit.model.graph.protos import to_proto
from quantkit.runtime.session import make_session, readable_ir_version

Array = NDArray[Any]

_UNLISTED_INITIALIZERS = 4  # the IR version from which initializers need not be inputs


@dataclass(frozen=True)
class Structure:
    """The main graph of a model, in topological order as ONNX demands.

    Attributes:
        proto: The model, its large tensors left in files of `folder`.
        folder: Where they are.
        nbytes: Size of all its files.
        names: What the node that makes a tensor is called everywhere in quantkit: some have no name in the file.
    """

    proto: onnx.ModelProto
    folder: Path
    nbytes: int
    names: Mapping[str, str]

    @cached_property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes of the main graph."""
        return list(self.proto.graph.node)

    @cached_property
    def reads(self) -> list[tuple[str, ...]]:
        """What each node reads, what its subgraphs capture included."""
        return [tuple(dict.fromkeys(_names_read(node))) for node in self.nodes]

    @cached_property
    def maker(self) -> dict[str, int]:
        """The node that makes each tensor."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.output if name}

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """The nodes that read each tensor."""
        found: dict[str, list[int]] = {}
        for i, names in enumerate(self.reads):
            for name in names:
                found.setdefault(name, []).append(i)
        return found

    @cached_property
    def initializers(self) -> dict[str, onnx.TensorProto]:
        """The constants of the main graph."""
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The inputs that a caller feeds."""
        return tuple(i.name for i in self.proto.graph.input if i.name not in self.initializers)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the model."""
        return tuple(o.name for o in self.proto.graph.output)

    @cached_property
    def activations(self) -> frozenset[str]:
        """All tensors that depend on an input."""
        found = set(self.inputs)
        for node, read in zip(self.nodes, self.reads, strict=True):
            if not found.isdisjoint(read):
                found.update(name for name in node.output if name)
        return frozenset(found)

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The model's metadata."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    def cut(
        self,
        nodes: Iterable[onnx.NodeProto],
        constants: Iterable[str],
        inputs: Iterable[onnx.ValueInfoProto],
        outputs: Iterable[str],
    ) -> bytes:
        """Return some nodes as a model of its own, whose large tensors stay in `folder`.

        Args:
            nodes: In order.
            constants: What the nodes read; initializers among it go along.
            inputs: What a caller feeds.
            outputs: What comes out.
        """
        graph = onnx.GraphProto(name="part")
        graph.node.extend(nodes)
        wanted = set(constants)
        graph.initializer.extend(t for name, t in self.initializers.items() if name in wanted)
        graph.input.extend(inputs)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        proto = onnx.ModelProto(ir_version=self.proto.ir_version, graph=graph)
        proto.opset_import.extend(self.proto.opset_import)
        proto.functions.extend(self.proto.functions)
        message: bytes = proto.SerializeToString()
        return message

    def maker_of(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor; None for inputs and constants."""
        index = self.maker.get(tensor)
        return None if index is None else self.nodes[index]

    def only_reader(self, tensor: str) -> onnx.NodeProto | None:
        """Return the one node that reads a tensor that is no output."""
        found = self.readers.get(tensor, [])
        return self.nodes[found[0]] if len(found) == 1 and tensor not in self.outputs else None

    def constant(self, name: str) -> NDArray[Any] | None:
        """Return the contents of a constant; None if it is computed, or of a type that numpy lacks."""
        tensor = self.initializers.get(name)
        maker = self.maker_of(name)
        if tensor is None and maker is not None and maker.op_type == "Constant":
            tensor = next((a.t for a in maker.attribute if a.name == "value"), None)
        if tensor is None:
            return None
        return np.asarray(numpy_helper.to_array(tensor, str(self.folder)))


def read_structure(path: Path, loaded: LoadedModel | None = None) -> Structure:
    """Read a model; functions, whose inner tensors a file does not name, are inlined.

    Args:
        path: The file.
        loaded: What was loaded from it; None: it is loaded here.

    Raises:
        ModelError: It cannot be read.
    """
    loaded = loaded or load(path)
    mapped = mapped_model(path, readable_ir_version)
    proto, folder = onnx.ModelProto.FromString(mapped.structure), mapped.folder
    if proto.functions:
        proto = to_proto(loaded.model)
        proto.ir_version = readable_ir_version(proto.ir_version)
    proto.ir_version = max(proto.ir_version, _UNLISTED_INITIALIZERS)
    names = {v.name or "": node.name or "" for node in loaded.model.graph for v in node.outputs}
    return Structure(proto=proto, folder=folder, nbytes=loaded.nbytes, names=names)


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    yield from (name for name in node.input if name)
    for graph in subgraphs(node):
        yield from _captured(graph)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _captured(graph: onnx.GraphProto) -> Iterable[str]:
    """Return what a graph reads from the graphs around it."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    read = [name for node in graph.node for name in _names_read(node)]
    read += [output.name for output in graph.output]
    return [name for name in read if name not in own]


_TOGETHER = 64
# As onnxruntime calls them.
TYPES = {
    "tensor(bfloat16)": ir.DataType.BFLOAT16,
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
        fed: Tensors, constants too, that are given to those who read them; inputs of the model are always fed under their own name.
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
    names = {name: _fed(name) for name in cut}
    inputs = [i for i in model.proto.graph.input if i.name in read and i.name in model.inputs]
    used = [name for name in cut if name in read]
    message = model.cut(
        [renamed(model.nodes[i], names) for i in kept],
        read - cut.keys(),
        [*inputs, *(declared(_fed(name), cut[name]) for name in used)],
        outputs,
    )
    # Parts take turns in one process.
    session = make_session(message, folder=model.folder, level=level)
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
    return {value.name: TYPES[value.type] for value in made if value.type in TYPES}


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
