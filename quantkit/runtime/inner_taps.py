"""Tensors inside If, Loop and Scan, handed out to the main graph: a run does not show them by itself.

Of a branch of an If a tensor becomes one more result; the other branch gives an empty one in its place, so that what
comes out empty was not computed. A body runs many times, and what it makes may have another shape each time, which
neither Loop nor Scan can collect. So from each turn come `SAMPLED` of the tensor's values, evenly spaced in their order,
the least and the largest among them; NaN in their place says that there was none.
"""

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx

from quantkit.model.graph.protos import proto_graphs
from quantkit.model.ops.float_ops import LOOPS

SAMPLED = 1025  # values of a tensor from one turn of a loop
_FLOAT = onnx.TensorProto.FLOAT
_SORTS = 11  # opset from which TopK tells the order; Scan has no batch of its own from 9 on


def inner_names(proto: onnx.ModelProto) -> list[str]:
    """Return the names of all that subgraphs are given or make, each as often as it occurs."""
    _, *inner = proto_graphs(proto.graph)
    return [name for graph in inner for name in _made(graph)]


def hand_out(proto: onnx.ModelProto, tensors: Collection[str]) -> Mapping[str, tuple[str, bool]]:
    """Let subgraphs hand out tensors as float32, in place.

    Args:
        proto: The model; names in it are unique over all graphs.
        tensors: Names of floats; those that stand in no If, Loop or Scan are passed over.

    Returns:
        The value of the main graph that each tensor is now, and whether it is a sample of its values.
    """
    return _Hands(frozenset(tensors), _opset(proto)).through(proto.graph)


class _Hands:
    """Hands tensors from the innermost graph to the main one, one level after the other."""

    def __init__(self, wanted: frozenset[str], opset: int) -> None:
        self.wanted = wanted
        self.opset = opset

    def through(self, graph: onnx.GraphProto) -> dict[str, tuple[str, bool]]:
        """Let all nodes of a graph hand out what their subgraphs hold; return it by tensor."""
        found: dict[str, tuple[str, bool]] = {}
        for node in graph.node:
            if node.domain not in {"", "ai.onnx"}:
                continue
            if node.op_type == "If":
                found |= self._of_branches(node)
            elif node.op_type in LOOPS and self.opset >= _SORTS:
                found |= self._of_body(node)
        return found

    def _inside(self, graph: onnx.GraphProto) -> dict[str, tuple[str, bool]]:
        """Return all that one graph can hand out, its own tensors as float32."""
        found = self.through(graph)
        for name in [made for made in _made(graph) if made in self.wanted]:
            found[name] = (_node(graph, "Cast", [name], to=_FLOAT), False)
        return found

    def _of_branches(self, node: onnx.NodeProto) -> dict[str, tuple[str, bool]]:
        branches = {a.name: a.g for a in node.attribute if a.HasField("g")}
        found: dict[str, tuple[str, bool]] = {}
        for place, branch in branches.items():
            others = [other for at, other in branches.items() if at != place]
            for tensor, (name, sampled) in self._inside(branch).items():
                _result(branch, name)
                for other in others:
                    empty = np.empty(0, np.float32)
                    _result(other, _constant(other, f"quantkit/nothing/{tensor}", empty))
                node.output.append(f"quantkit/If/{tensor}")
                found[tensor] = (node.output[-1], sampled)
        return found

    def _of_body(self, node: onnx.NodeProto) -> dict[str, tuple[str, bool]]:
        body = next(a.g for a in node.attribute if a.HasField("g"))
        found: dict[str, tuple[str, bool]] = {}
        if len(node.output) != len(body.output) - (node.op_type == "Loop"):
            return found  # results that nobody reads are left out
        unchanged = _unchanged(node.op_type, body)
        for tensor, (name, _) in self._inside(body).items():
            if tensor in unchanged:
                continue
            result = f"quantkit/{node.op_type}/{tensor}"
            _result(body, _sample(body, name))
            node.output.append(result)
            found[tensor] = (result, True)
        for attribute in node.attribute:
            if attribute.name in {"scan_output_axes", "scan_output_directions"}:
                attribute.ints.extend([0] * len(found))
        return found


def _unchanged(op_type: str, body: onnx.GraphProto) -> frozenset[str]:
    """Return what is handed from turn to turn as it is: weights, of which each turn would sort millions of values again."""
    first_input, first_output = (2, 1) if op_type == "Loop" else (0, 0)
    given, made = list(body.input)[first_input:], list(body.output)[first_output:]
    return frozenset(v.name for v, o in zip(given, made, strict=False) if v.name == o.name)


def _sample(graph: onnx.GraphProto, name: str) -> str:
    """Add nodes that take evenly spaced values of a tensor in their order, NaN if it has none; return their result."""
    flat = _constant(graph, f"quantkit/flat/{name}", np.array([-1]))
    nothing = _constant(graph, f"quantkit/none/{name}", np.array([np.nan], np.float32))
    steps = _constant(graph, f"quantkit/steps/{name}", np.arange(SAMPLED))
    last = _constant(graph, f"quantkit/last/{name}", np.array([SAMPLED - 1]))
    one, zero = (_constant(graph, f"quantkit/{n}/{name}", np.array([n])) for n in (1, 0))
    row = _node(graph, "Reshape", [name, flat])
    row = _node(
        graph, "Compress", [row, _node(graph, "Not", [_node(graph, "IsNaN", [row])])], axis=0
    )
    count = _node(graph, "Shape", [row])
    ordered = _node(graph, "TopK", [row, count], results=2)
    values = _node(graph, "Concat", [ordered, nothing], axis=0)
    highest = _node(graph, "Max", [_node(graph, "Sub", [count, one]), zero])
    places = _node(graph, "Div", [_node(graph, "Mul", [steps, highest]), last])
    return _node(graph, "Gather", [values, places], axis=0)


def _made(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (name for node in graph.node for name in node.output if name)


def _opset(proto: onnx.ModelProto) -> int:
    versions = [int(i.version) for i in proto.opset_import if i.domain in {"", "ai.onnx"}]
    return max(versions, default=1)


def _result(graph: onnx.GraphProto, name: str) -> None:
    value = graph.output.add(name=name)
    value.type.tensor_type.elem_type = _FLOAT


def _constant(graph: onnx.GraphProto, name: str, array: np.ndarray) -> str:
    """Add a constant; a graph's result cannot be an initializer everywhere, that of a node can."""
    node = graph.node.add(op_type="Constant", name=name)
    node.output.append(name)
    tensor = onnx.numpy_helper.from_array(array)
    node.attribute.add(name="value", t=tensor, type=onnx.AttributeProto.TENSOR)
    return name


def _node(
    graph: onnx.GraphProto, op_type: str, inputs: list[str], results: int = 1, **attributes: int
) -> str:
    name = f"quantkit/{op_type}/{inputs[0]}"
    node = graph.node.add(op_type=op_type, name=name)
    node.input.extend(inputs)
    node.output.extend([name, *(f"{name}/{n}" for n in range(1, results))])
    for key, value in attributes.items():
        node.attribute.add(name=key, i=value, type=onnx.AttributeProto.INT)
    return name
