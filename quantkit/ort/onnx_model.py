"""onnxruntime's `ONNXModel`, a model with questions to ask and small changes to make; and such functions of its `quant_utils`."""

import logging
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from quantkit.errors import ModelError, UsageError
from quantkit.graph.messages import (
    location_of,
    proto_graphs,
    root_cause,
    tensors_of,
    to_ir,
    to_proto,
)
from quantkit.graph.opset import raise_opset
from quantkit.graph.save import staged
from quantkit.ort.missing import missing

__all__ = [
    "ONNXModel",
    "add_infer_metadata",
    "add_pre_process_metadata",
    "attribute_to_kwarg",
    "find_by_name",
    "get_opset_version",
    "load_model_with_shape_infer",
    "model_has_external_data",
    "model_has_infer_metadata",
    "model_has_pre_process_metadata",
    "raised_opset",
    "save_and_reload_model_with_shape_infer",
]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

T = TypeVar("T", NodeProto, TensorProto, ValueInfoProto)

_LOG = logging.getLogger(__name__)
_ONNX = frozenset({"", "ai.onnx"})
_BY = "onnxruntime.quant"
_INFERRED, _PREPARED = "onnx.infer", "onnx.quant.pre_process"
_LARGEST = 1 << 31  # bytes of one message


def find_by_name(item_name: str, item_list: Iterable[T]) -> T | None:
    """Return the first of that name, or None."""
    return next((item for item in item_list if item.name == item_name), None)


def attribute_to_kwarg(attribute: AttributeProto) -> dict[str, Any]:
    """Return name and value of an attribute, as a dictionary.

    Raises:
        UsageError: It has no type.
    """
    fields = {
        AttributeProto.FLOAT: "f",
        AttributeProto.INT: "i",
        AttributeProto.STRING: "s",
        AttributeProto.TENSOR: "t",
        AttributeProto.GRAPH: "g",
        AttributeProto.FLOATS: "floats",
        AttributeProto.INTS: "ints",
        AttributeProto.STRINGS: "strings",
        AttributeProto.TENSORS: "tensors",
        AttributeProto.GRAPHS: "graphs",
    }
    if attribute.type not in fields:
        raise UsageError(
            f"Attribute '{attribute.name}' has a type that is not known: {attribute.type}."
        )
    return {attribute.name: getattr(attribute, fields[attribute.type])}


def get_opset_version(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators.

    Raises:
        UsageError: The model names none, or several.
    """
    found = [entry.version for entry in model.opset_import if entry.domain in _ONNX]
    if len(found) != 1:
        raise UsageError(f"The model imports {len(found)} opsets of ONNX's own domain, not one.")
    return int(found[0])


def raised_opset(model: onnx.ModelProto, minimum: int) -> onnx.ModelProto:
    """Return the model in an opset, or as it is if it is there already.

    Raises:
        ModelError: The converter does not know how to convert one of the operators.
    """
    version = get_opset_version(model)
    if version >= minimum:
        return model
    _LOG.warning("The model is raised from opset %d to %d, which its types need.", version, minimum)
    return to_proto(raise_opset(to_ir(model), minimum))


def model_has_external_data(model_path: str | Path | onnx.ModelProto) -> bool:
    """Say whether tensors of a model are in other files."""
    model = model_path
    if not isinstance(model, onnx.ModelProto):
        model = onnx.load_model(model, load_external_data=False)
    return any(location_of(tensor) for tensor in tensors_of(model))


def _note(model: onnx.ModelProto, key: str) -> None:
    kept = [entry for entry in model.metadata_props if entry.key != key]
    del model.metadata_props[:]
    model.metadata_props.extend([*kept, onnx.StringStringEntryProto(key=key, value=_BY)])


def _noted(model: onnx.ModelProto, key: str) -> bool:
    return any(entry.key == key and entry.value == _BY for entry in model.metadata_props)


def add_pre_process_metadata(model: onnx.ModelProto) -> None:
    """Note in a model that it was simplified for quantization."""
    _note(model, _PREPARED)


def model_has_pre_process_metadata(model: onnx.ModelProto) -> bool:
    """Say whether that is noted."""
    return _noted(model, _PREPARED)


def add_infer_metadata(model: onnx.ModelProto) -> None:
    """Note in a model that its shapes were inferred."""
    _note(model, _INFERRED)


def model_has_infer_metadata(model: onnx.ModelProto) -> bool:
    """Say whether that is noted."""
    return _noted(model, _INFERRED)


def load_model_with_shape_infer(model_path: str | Path) -> onnx.ModelProto:
    """Return a model with its weights, and with what shape inference finds; nothing is written."""
    return save_and_reload_model_with_shape_infer(onnx.load_model(model_path))


def save_and_reload_model_with_shape_infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with what shape inference finds; one that is too large for it has no more than before."""
    if model.ByteSize() < _LARGEST:
        found = onnx.shape_inference.infer_shapes(model)
    else:
        found = onnx.ModelProto()
        found.CopyFrom(model)
    add_infer_metadata(found)
    return found


class ONNXModel:
    """A model, its nodes and tensors by name, and changes that are easily got wrong.

    Args:
        model: Is changed in place.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model

    def graph(self) -> onnx.GraphProto:
        """Return the graph."""
        return self.model.graph

    def nodes(self) -> Any:
        """Return the nodes, a list that can be changed."""
        return self.model.graph.node

    def initializer(self) -> Any:
        """Return the constants, a list that can be changed."""
        return self.model.graph.initializer

    def ir_version(self) -> int:
        """Return the version of the format."""
        return self.model.ir_version

    def opset_import(self) -> Any:
        """Return which operators are used, by domain; a list that can be changed."""
        return self.model.opset_import

    def set_opset_import(self, domain: str, version: int) -> None:
        """Name the version of a domain, of which there is one entry."""
        found = next((entry for entry in self.opset_import() if entry.domain == domain), None)
        if found is None:
            found = self.opset_import().add(domain=domain)
        found.version = version

    def add_node(self, node: NodeProto) -> None:
        """Append a node."""
        self.nodes().append(node)

    def add_nodes(self, nodes_to_add: Iterable[NodeProto]) -> None:
        """Append nodes."""
        self.nodes().extend(nodes_to_add)

    def remove_node(self, node: NodeProto) -> None:
        """Take a node out; one that is not there is passed over."""
        if node in self.nodes():
            self.nodes().remove(node)

    def remove_nodes(self, nodes_to_remove: Iterable[NodeProto]) -> None:
        """Take nodes out."""
        for node in list(nodes_to_remove):
            self.remove_node(node)

    def add_initializer(self, tensor: TensorProto) -> None:
        """Append a constant; one whose name there is already is passed over."""
        if self.get_initializer(tensor.name) is None:
            self.initializer().append(tensor)

    def initializer_extend(self, inits: Sequence[TensorProto]) -> None:
        """Append constants.

        Raises:
            UsageError: There are none.
        """
        if not inits:
            raise UsageError("There is no constant to add.")
        self.initializer().extend(inits)

    def get_initializer(self, name: str) -> TensorProto | None:
        """Return a constant by its name, or None."""
        return find_by_name(name, self.initializer())

    def get_initializer_name_set(self) -> set[str]:
        """Return the names of all constants."""
        return {tensor.name for tensor in self.initializer()}

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Take a constant out, and the input that it is the default of."""
        if tensor in self.initializer():
            self.initializer().remove(tensor)
            listed = self.find_graph_input(tensor.name)
            if listed is not None:
                self.graph().input.remove(listed)

    def remove_initializers(self, init_to_remove: Iterable[TensorProto]) -> None:
        """Take constants out."""
        for tensor in list(init_to_remove):
            self.remove_initializer(tensor)

    def get_non_initializer_inputs(self) -> set[str]:
        """Return the names of inputs that have no default."""
        return {value.name for value in self.graph().input} - self.get_initializer_name_set()

    def find_graph_input(self, input_name: str) -> ValueInfoProto | None:
        """Return an input by its name, or None."""
        return find_by_name(input_name, self.graph().input)

    def find_graph_output(self, output_name: str) -> ValueInfoProto | None:
        """Return an output by its name, or None."""
        return find_by_name(output_name, self.graph().output)

    def is_graph_input(self, tensor_name: str) -> bool:
        """Say whether an input has this name."""
        return self.find_graph_input(tensor_name) is not None

    def is_graph_output(self, output_name: str) -> bool:
        """Say whether an output has this name."""
        return self.find_graph_output(output_name) is not None

    def get_tensor_type(self, tensor_name: str) -> onnx.TypeProto.Tensor | None:
        """Return what is declared about a tensor, or None."""
        graph = self.graph()
        declared = (*graph.value_info, *graph.input, *graph.output)
        found = find_by_name(tensor_name, declared)
        return None if found is None else found.type.tensor_type

    def get_constant_value(self, output_name: str) -> NDArray[Any] | None:
        """Return the values of a Constant or an initializer by its name, or None."""
        for node in self.nodes():
            if node.op_type == "Constant" and node.output[0] == output_name:
                value = find_by_name("value", node.attribute)
                if value is not None:
                    return np.asarray(numpy_helper.to_array(value.t))
        found = self.get_initializer(output_name)
        return None if found is None else np.asarray(numpy_helper.to_array(found))

    def input_name_to_nodes(self) -> dict[str, list[NodeProto]]:
        """Return by tensor the nodes that read it, once for each time that they do."""
        readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes():
            for name in filter(None, node.input):
                readers.setdefault(name, []).append(node)
        return readers

    def output_name_to_node(self) -> dict[str, NodeProto]:
        """Return by tensor the node that makes it."""
        return {name: node for node in self.nodes() for name in node.output if name}

    def get_children(
        self, node: NodeProto, input_name_to_nodes: dict[str, list[NodeProto]] | None = None
    ) -> list[NodeProto]:
        """Return the nodes that read what a node makes."""
        readers = input_name_to_nodes or self.input_name_to_nodes()
        return [reader for name in node.output for reader in readers.get(name, [])]

    def get_parents(
        self, node: NodeProto, output_name_to_node: dict[str, NodeProto] | None = None
    ) -> list[NodeProto]:
        """Return the nodes that make what a node reads."""
        makers = output_name_to_node or self.output_name_to_node()
        return [makers[name] for name in node.input if name in makers]

    def get_parent(
        self, node: NodeProto, idx: int, output_name_to_node: dict[str, NodeProto] | None = None
    ) -> NodeProto | None:
        """Return the node that makes one of the inputs of a node, or None."""
        makers = output_name_to_node or self.output_name_to_node()
        return makers.get(node.input[idx]) if idx < len(node.input) else None

    def find_node_by_name(
        self, node_name: str, new_nodes_list: Iterable[NodeProto], graph: onnx.GraphProto
    ) -> NodeProto | None:
        """Return a node of a graph, or of a list of others, by its name."""
        return find_by_name(node_name, [*graph.node, *new_nodes_list])

    def find_nodes_by_initializer(
        self, graph: onnx.GraphProto, initializer: TensorProto
    ) -> list[NodeProto]:
        """Return the nodes of a graph that read a constant."""
        return [node for node in graph.node for name in node.input if name == initializer.name]

    def get_largest_node_name_suffix(self, node_name_prefix: str) -> int:
        """Return the greatest number behind a prefix among the names of nodes; -1 if there is none."""
        return _largest(node_name_prefix, (node.name for node in self.nodes()))

    def get_largest_initializer_name_suffix(self, initializer_name_prefix: str) -> int:
        """Return the greatest number behind a prefix among the names of constants; -1 if there is none."""
        return _largest(initializer_name_prefix, self.get_initializer_name_set())

    @staticmethod
    def replace_node_input(node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        """Let a node read another tensor."""
        _rename(node.input, old_input_name, new_input_name)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        """Let all nodes that read a tensor read another one."""
        for node in self.nodes():
            self.replace_node_input(node, old_input_name, new_input_name)

    def replace_input_of_nodes(
        self, old_input_name: str, new_input_name: str, node_names_set: Collection[str]
    ) -> None:
        """Let some nodes read another tensor."""
        for node in self.nodes():
            if node.name in node_names_set:
                self.replace_node_input(node, old_input_name, new_input_name)

    @staticmethod
    def replace_node_output(node: NodeProto, old_output_name: str, new_output_name: str) -> None:
        """Give what a node makes another name."""
        _rename(node.output, old_output_name, new_output_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        """Give a tensor another name where it is made."""
        for node in self.nodes():
            self.replace_node_output(node, old_output_name, new_output_name)

    def replace_output_of_nodes(
        self, old_output_name: str, new_output_name: str, node_names_set: Collection[str]
    ) -> None:
        """Give a tensor another name where some nodes make it."""
        for node in self.nodes():
            if node.name in node_names_set:
                self.replace_node_output(node, old_output_name, new_output_name)

    def remove_unused_constant(self) -> None:
        """Take out what nobody reads, not in a subgraph either: nodes Constant, and constants with their inputs."""
        read = _read_in(self.graph())
        unused = [n for n in self.nodes() if n.op_type == "Constant" and n.output[0] not in read]
        self.remove_nodes(unused)
        self.remove_initializers([t for t in self.initializer() if t.name not in read])

    def clean_initializers(self) -> tuple[onnx.GraphProto, set[str]]:
        """Take out constants that nobody reads, in subgraphs too; return the graph, and what is read and not there."""
        for graph in proto_graphs(self.graph()):
            read = _read_in(graph)
            unused = [tensor for tensor in graph.initializer if tensor.name not in read]
            for tensor in unused:
                graph.initializer.remove(tensor)
                listed = find_by_name(tensor.name, graph.input)
                if listed is not None:
                    graph.input.remove(listed)
        held = {value.name for value in (*self.graph().input, *self.initializer())}
        return self.graph(), _read_in(self.graph()) - held - self._made()

    def _made(self) -> set[str]:
        graphs = list(proto_graphs(self.graph()))
        inner = {v.name for g in graphs[1:] for v in (*g.input, *g.initializer)}
        return inner | {name for g in graphs for node in g.node for name in node.output}

    def topological_sort(self) -> None:
        """Put nodes into an order in which each stands behind what it reads: first all that read nothing but inputs.

        What a node's subgraphs read from outside counts. Nodes of one rank keep the order in which what they wait for
        becomes known.

        Raises:
            ModelError: There is none, since nodes wait for each other.
        """
        nodes = list(self.nodes())
        made = {name for node in nodes for name in node.output if name}
        waits = [{name for name in _reads(node) if name in made} for node in nodes]
        readers: dict[str, list[int]] = {}
        for index, names in enumerate(waits):
            for name in names:
                readers.setdefault(name, []).append(index)
        order = [index for index, names in enumerate(waits) if not names]
        for index in order:  # grows
            for name in nodes[index].output:
                for reader in readers.get(name, []):
                    waits[reader].discard(name)
                    if not waits[reader]:
                        order.append(reader)
        if len(order) != len(nodes):
            raise ModelError("Nodes of the model wait for each other: its graph has a circle.")
        ordered = [nodes[index] for index in order]
        del self.nodes()[:]
        self.nodes().extend(ordered)

    def save_model_to_file(
        self,
        output_path: str | Path,
        use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
    ) -> None:
        """Sort the nodes and write the model, whole or not at all.

        Args:
            output_path: Where to.
            use_external_data_format: Write a ``.data`` file also below 2 GB.

        Raises:
            ModelError: It is not valid; nothing is written then.
        """
        self.topological_sort()
        with staged(Path(output_path)) as stage:
            try:
                stage.write(to_ir(self.model), external=use_external_data_format)
            except onnx.checker.ValidationError as e:
                raise ModelError(f"The model is not valid ONNX: {root_cause(e)}") from e
            stage.commit()


def _rename(names: Any, old: str, new: str) -> None:
    for place, name in enumerate(names):
        if name == old:
            names[place] = new


def _largest(prefix: str, names: Iterable[str]) -> int:
    ends = (name.removeprefix(prefix) for name in names if name.startswith(prefix))
    return max((int(end) for end in ends if end.isdecimal()), default=-1)


def _inner(node: NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs that a node holds."""
    return [graph for a in node.attribute for graph in (a.g, *a.graphs) if graph.node]


def _reads(node: NodeProto) -> set[str]:
    """Return what a node reads, its subgraphs included."""
    return {*filter(None, node.input)}.union(*(_read_in(graph) for graph in _inner(node)))


def _read_in(graph: onnx.GraphProto) -> set[str]:
    """Return what a graph's nodes, their subgraphs and its outputs read."""
    outputs = {value.name for value in graph.output}
    return outputs.union(*(_reads(node) for node in graph.node))


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
