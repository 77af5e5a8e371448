"""A model in which the tensors of some layers can be replaced while it runs.

Each of these tensors goes through a switch:

    y' = If(select_i) then the tensor that is given, else y

so one session serves all layers, and a run with all switches off is the reference of the others: without an error the
difference is exactly zero.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.runtime.pieces import Kind, Structure, declared, part_of, renamed

Array = NDArray[Any]
_BOOL = Kind(ir.DataType.BOOL, 0)


class Switched:
    """The session, optimized as users run it."""

    def __init__(
        self,
        model: Structure,
        layers: Mapping[int, tuple[str, ...]],
        kinds: Mapping[str, Kind],
        outputs: Sequence[str],
        fed: Mapping[str, Kind],
    ) -> None:
        """Load it.

        Args:
            model: The model.
            layers: Tensors by the number of their layer.
            kinds: Type and rank of these.
            outputs: What comes out, by the model's names; a switched tensor as it is behind its switch.
            fed: Tensors that are given, as in `part_of`.
        """
        self.layers = layers
        tensors = {name: i for i, names in layers.items() for name in names}
        self._names = {name: _result(name) if name in tensors else name for name in outputs}
        graph = _switched(model, tensors, kinds)
        self._part = part_of(graph, list(self._names.values()), fed, level=99)
        # onnxruntime wants every input fed: what is not switched gets an array without elements.
        self._empty = {
            _given(name): np.zeros((0,) * kinds[name].rank, kinds[name].dtype.numpy())
            for name in tensors
        }

    def run(
        self,
        feeds: Mapping[str, Array],
        layers: Collection[int] = (),
        values: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Run it.

        Args:
            feeds: What the model reads.
            layers: Whose tensors are replaced.
            values: By what, by the names of tensors.
        """
        switches = {_switch(i): np.asarray(i in layers) for i in self.layers}
        replaced = {_given(n): (values or {})[n] for i in layers for n in self.layers[i]}
        found = self._part.run(feeds, switches, {**self._empty, **replaced})
        return {name: found[result] for name, result in self._names.items()}


def _switched(model: Structure, tensors: Mapping[str, int], kinds: Mapping[str, Kind]) -> Structure:
    names = {name: _result(name) for name in tensors}
    proto = onnx.ModelProto(ir_version=model.proto.ir_version)
    proto.opset_import.extend(model.proto.opset_import)
    proto.graph.initializer.extend(model.proto.graph.initializer)
    proto.graph.input.extend(model.proto.graph.input)
    proto.graph.input.extend(declared(_switch(i), _BOOL) for i in dict.fromkeys(tensors.values()))
    proto.graph.input.extend(declared(_given(name), kinds[name]) for name in tensors)
    for node in model.nodes:
        proto.graph.node.append(renamed(node, names))
        for name in node.output:
            if name in tensors:
                proto.graph.node.append(_choice(name, tensors[name], kinds[name]))
    return replace(model, proto=proto)


def _choice(name: str, layer: int, kind: Kind) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type="If", name=_result(name))
    node.input.append(_switch(layer))
    node.output.append(_result(name))
    for branch, source in (("then_branch", _given(name)), ("else_branch", name)):
        attribute = node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH)
        copied = f"{branch}/{name}"
        attribute.g.name = branch
        attribute.g.node.add(op_type="Identity", input=[source], output=[copied])
        attribute.g.output.append(declared(copied, kind))
    return node


def _switch(layer: int) -> str:
    return f"switch/{layer}"


def _given(tensor: str) -> str:
    return f"given/{tensor}"


def _result(tensor: str) -> str:
    return f"switched/{tensor}"
