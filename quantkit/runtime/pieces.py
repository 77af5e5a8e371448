"""A model file as nodes and names: what makes each tensor, who reads it, which constants are how large.

Weights stay in their file; sessions of parts of the graph map them.

A `Part` of a model runs by itself: tensors inside it become inputs and outputs. A tensor that is *fed* is cut in two:
who reads it reads the input ``fed/name``, and the part may still hand out what the graph computes under that name.
Only nodes that the outputs need are kept; weights stay in their file.

`Segments` of a model run one after the other, so that a run can skip the first ones if their results are known.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

from quantkit.model.graph.edit import own_name
from quantkit.model.graph.load import LoadedModel, load
from quantkit.model.graph.mapping import mapped_model
from quantkit.model.graph.protos import to_proto
from quantkit.runtime.session import (
    RUNTIME_ERRORS,
    HalfPorts,
    as_value,
    make_session,
    readable_ir_version,
)

Array = NDArray[Any]

_UNLISTED_INITIALIZERS = 4  # the IR version from which initializers need not be inputs

Values = Mapping[str, Any]
_NOTHING: Values = MappingProxyType({})
_FLOAT_BYTES = 4


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
    names = {own_name(v): own_name(node) for node in loaded.model.graph for v in node.outputs}
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


class Segments:
    """Sessions of consecutive nodes of a model. Tensors that one computes and another reads are not copied."""

    def __init__(self, proto: onnx.ModelProto, barriers: Sequence[int], count: int) -> None:
        """Cut a model and load its segments, each for one thread.

        Where it cannot be cut there is one segment.

        Args:
            proto: The model; weights are in it.
            barriers: Nodes of the main graph that onnxruntime fuses with no other: it is cut behind some of them.
            count: How many segments there should be.

        Raises:
            An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load it.
        """
        model = Structure(proto=proto, folder=Path(), nbytes=0, names={})
        self.starts = [0, *_chosen(model, barriers, count)]
        ends = [*self.starts, len(model.nodes)]
        self._sessions = _loaded(model, ends) if self.starts[1:] else []
        if not self._sessions:
            self.starts = [0]
            self._sessions = [make_session(proto.SerializeToString(), threads=1)]
        found = {o.name: o for session in self._sessions for o in session.get_outputs()}
        self.outputs = [found[name] for name in model.outputs]
        self._reads = [
            {i.name for i in (*own.get_inputs(), *own.get_overridable_initializers())}
            for own in self._sessions
        ]

    def segment_of(self, node: int) -> int:
        """Return the number of the segment of a node of the main graph."""
        return sum(start <= node for start in self.starts) - 1

    def run(
        self,
        names: Sequence[str],
        feeds: Mapping[str, NDArray[Any]],
        start: int = 0,
        known: Values = _NOTHING,
    ) -> list[NDArray[Any]]:
        """Return outputs.

        Args:
            names: Of the outputs.
            feeds: Inputs of the model.
            start: The first segment that is run.
            known: Tensors of skipped segments that later segments read, as `states` returns them.
        """
        if len(self._sessions) == 1:
            return list(self._sessions[0].run(names, dict(feeds)))
        found: dict[str, Any] = dict(known)
        for _, made in self._computed(feeds, start, known):
            found |= made
        return [found[name].numpy() for name in names]

    def states(self, feeds: Mapping[str, NDArray[Any]], nbytes: int) -> dict[int, Values]:
        """Run all segments; return by segment what it and those behind it read of the others, the last first.

        Args:
            feeds: Inputs of the model.
            nbytes: How many bytes all of them may take: the first segments hand on the largest tensors, and save least.
        """
        values = {n: v for _, made in self._computed(feeds) for n, v in made.items()}
        needed = {output.name for output in self.outputs}
        states, held = dict[int, Values](), set[str]()
        for start in range(len(self._sessions) - 1, 0, -1):
            needed |= self._reads[start]
            made = {o.name for own in self._sessions[:start] for o in own.get_outputs()}
            held |= made & needed
            if sum(_nbytes(values[name]) for name in held) > nbytes:
                break
            states[start] = {name: values[name] for name in made & needed}
        return states

    def _computed(
        self, feeds: Mapping[str, NDArray[Any]], start: int = 0, known: Values = _NOTHING
    ) -> Iterator[tuple[int, Values]]:
        """Yield each segment with the tensors that others read of it, and outputs."""
        values = {name: as_value(np.asarray(array, order="C")) for name, array in feeds.items()}
        values |= known
        for number in range(start, len(self._sessions)):
            session, reads = self._sessions[number], self._reads[number]
            names = [output.name for output in session.get_outputs()]
            fed = {name: value for name, value in values.items() if name in reads}
            made = dict(zip(names, session.run_with_ort_values(names, fed), strict=True))
            values |= made
            yield number, made


def _nbytes(value: Any) -> int:
    size: int = prod(value.shape())
    return size * _FLOAT_BYTES


def _chosen(model: Structure, barriers: Sequence[int], count: int) -> list[int]:
    """Return where segments after the first begin: near equal lengths, and only outputs of barriers are read behind the cut.

    So a cut separates no nodes that onnxruntime would fuse.
    """
    passed = {name for at in barriers for name in model.nodes[at].output}
    last = {name: own[-1] for name, own in model.readers.items()}
    length = len(model.nodes) / count
    chosen: list[int] = []
    for number in range(1, count):
        wanted = number * length
        near = sorted((abs(at + 1 - wanted), at + 1) for at in barriers)
        chosen += next(
            ([at] for far, at in near if far < length / 2 and _crossing(model, last, at) <= passed),
            [],
        )
    return chosen


def _crossing(model: Structure, last: Mapping[str, int], at: int) -> set[str]:
    """Return the tensors that nodes before a place compute and those behind it read; `last` reader by tensor."""
    return {name for name, maker in model.maker.items() if maker < at <= last.get(name, -1)}


def _loaded(model: Structure, ends: Sequence[int]) -> list[Any]:
    """Load each segment, its inputs declared as what those before it compute; return none if that cannot be done."""
    if not {*model.outputs} <= model.maker.keys():  # an input or a constant is an output
        return []
    known = {value.name: value for value in model.proto.graph.input}
    sessions = []
    try:
        for start, end in pairwise(ends):
            sessions.append(make_session(_segment(model, start, end, known), threads=1))
            if not _can_hand_on(sessions[-1]):
                return []
            known |= {value.name: _declared(value) for value in sessions[-1].get_outputs()}
    except RUNTIME_ERRORS:
        return []
    return sessions


def _can_hand_on(session: Any) -> bool:
    """Return whether values of all inputs and outputs can be handed from session to session."""
    return not isinstance(session, HalfPorts) and all(
        value.type in TYPES for value in (*session.get_inputs(), *session.get_outputs())
    )


def _segment(
    model: Structure, start: int, end: int, known: Mapping[str, onnx.ValueInfoProto]
) -> bytes:
    """Return the nodes from one to another as a model."""
    read = dict.fromkeys(name for own in model.reads[start:end] for name in own)
    made = [name for name, maker in model.maker.items() if start <= maker < end]
    later = {name for own in model.reads[end:] for name in own}
    inputs = [known[name] for name in read if name in known and name not in made]
    outputs = [name for name in made if name in later or name in model.outputs]
    return model.cut(model.nodes[start:end], read, inputs, outputs)


def _declared(value: Any) -> onnx.ValueInfoProto:
    """Declare as an input what onnxruntime says of an output."""
    info = onnx.ValueInfoProto(name=value.name)
    info.type.tensor_type.elem_type = int(TYPES[value.type])
    for extent in value.shape:  # none at all: a scalar, or nothing is known
        own = info.type.tensor_type.shape.dim.add()
        if isinstance(extent, int):
            own.dim_value = extent
    return info
