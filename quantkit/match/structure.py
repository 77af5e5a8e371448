"""A model file as nodes and names: what makes each tensor, who reads it, which constants are how large.

Weights stay in their file; sessions of parts of the graph (`quantkit.match.parts`) map them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from quantkit.graph.load import load
from quantkit.graph.mapping import mapped_model
from quantkit.graph.messages import to_proto
from quantkit.runtime.session import readable_ir_version

__all__ = ["Structure", "read_structure", "subgraphs"]

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


def read_structure(path: Path) -> Structure:
    """Read a model; functions, whose inner tensors a file does not name, are inlined.

    Raises:
        ModelError: It cannot be read.
    """
    loaded = load(path)
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
