"""Types of single tensors, spread to their neighbours: a node of a QNN graph reads and makes one type.

Where a tensor is overridden, the node that makes it and all that read it take the same type for all their tensors; where
that meets what others want, the tensor is converted for some of its readers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from quantkit.errors import UsageError
from quantkit.ort.missing import missing
from quantkit.ort.tensor_quant_overrides import QuantTypeInfo, TensorQuantOverridesHelper

__all__ = ["MixedPrecisionTensorQuantOverridesFixer"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


@dataclass
class _Wanted:
    """In which type a tensor is to be made, and in which some nodes read it; None: nobody said."""

    made: QuantTypeInfo | None = None
    read: QuantTypeInfo | None = None
    readers: set[str] = field(default_factory=set)


class MixedPrecisionTensorQuantOverridesFixer:
    """Adds what overrides of single tensors imply for others, in place."""

    def __init__(
        self,
        overrides: TensorQuantOverridesHelper,
        producers: Mapping[str, onnx.NodeProto],
        consumers: Mapping[str, list[onnx.NodeProto]],
        value_infos: Mapping[str, onnx.ValueInfoProto],
        initializers: Mapping[str, onnx.TensorProto],
    ) -> None:
        self.overrides = overrides
        self.producers = producers
        self.consumers = consumers
        self.value_infos = value_infos
        self.initializers = initializers

    @staticmethod
    def create_from_model(
        overrides: TensorQuantOverridesHelper,
        model: onnx.ModelProto,
        default_activation_qtype: Any,
    ) -> "MixedPrecisionTensorQuantOverridesFixer":
        """Look at a model.

        Args:
            overrides: What was given; it is changed by `apply`.
            model: The float model.
            default_activation_qtype: The type of activations that name none.

        Raises:
            UsageError: The overrides make no sense.
        """
        graph = onnx.shape_inference.infer_shapes(model).graph
        values = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}
        producers = {name: node for node in graph.node for name in node.output}
        consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in filter(None, node.input):
                consumers.setdefault(name, []).append(node)
        initializers = {tensor.name: tensor for tensor in graph.initializer}
        fixer = MixedPrecisionTensorQuantOverridesFixer(
            overrides, producers, consumers, values, initializers
        )
        fixer._check(default_activation_qtype)
        return fixer

    def apply(
        self,
        default_activation_qtype: Any,
        default_activation_symmetric: bool,  # noqa: FBT001 - onnxruntime's signature
    ) -> None:
        """Spread the types.

        Args:
            default_activation_qtype: The type of activations that name none.
            default_activation_symmetric: Whether these have their zero points in the middle.

        Raises:
            UsageError: Two overrides want different types of one node.
        """
        default = QuantTypeInfo(default_activation_qtype)
        whole = QuantTypeInfo(default_activation_qtype, default_activation_symmetric)
        for tensor, wanted in self._wanted(whole).items():
            made = wanted.made or self.overrides.get_node_output_qtype_info(
                tensor, default_activation_qtype
            )
            others = {node.name for node in self.consumers.get(tensor, ())} - wanted.readers
            if wanted.read is None:
                self._convert(tensor, made, default, others)
            elif made != wanted.read:
                self._convert(tensor, made, wanted.read, wanted.readers)
            elif wanted.made is not None and others:
                self._convert(tensor, made, default, others)
            else:
                self._keep(tensor, made, wanted)
        self._check(default_activation_qtype)

    def _check(self, default: Any) -> None:
        valid, why = self.overrides.is_valid(self.initializers, set(self.value_infos), default)
        if not valid:
            raise UsageError(str(why))

    def _wanted(self, default: QuantTypeInfo) -> dict[str, _Wanted]:
        """Return what nodes beside an overridden tensor want of their other tensors."""
        found: dict[str, _Wanted] = {}
        for tensor, listed in self.overrides.items():
            if len(listed) != 1 or tensor in self.initializers or not self._is_float(tensor):
                continue
            info = QuantTypeInfo.load_from_dict(listed[0], default.quant_type)
            if info == default or "convert" in listed[0]:
                continue
            producer = self.producers.get(tensor)
            beside = [] if producer is None else [producer]
            for node in (*beside, *self.consumers.get(tensor, ())):
                self._ask(found, info, node)
        return found

    def _ask(self, found: dict[str, _Wanted], info: QuantTypeInfo, node: onnx.NodeProto) -> None:
        if not node.name:
            raise UsageError(
                f"A {node.op_type} that makes '{node.output[0]}' has no name: give it one."
            )
        for tensor in filter(self._is_float, node.output):
            wanted = found.setdefault(tensor, _Wanted())
            if wanted.made is not None and wanted.made != info:
                raise UsageError(f"Tensor '{tensor}' would have several types.")
            wanted.made = info
        for tensor in filter(self._is_float, node.input):
            if tensor in self.initializers:
                continue
            wanted = found.setdefault(tensor, _Wanted())
            if wanted.read is not None and wanted.read != info:
                raise UsageError(f"Nodes that read tensor '{tensor}' want different types.")
            wanted.read = info
            wanted.readers.add(node.name)

    def _convert(
        self, tensor: str, made: QuantTypeInfo, read: QuantTypeInfo, readers: set[str]
    ) -> None:
        said = self._said(tensor, made)
        if made != QuantTypeInfo.load_from_dict(said):
            raise UsageError(f"Tensor '{tensor}' is overridden, and would need another type.")
        if not readers:
            return
        if "convert" not in said:
            said["convert"] = {}
            read.save_to_dict(said["convert"])
        if read != QuantTypeInfo.load_from_dict(said["convert"]):
            raise UsageError(f"Tensor '{tensor}' is converted, and would need another type.")
        said["convert"].setdefault("recv_nodes", set()).update(readers)

    def _keep(self, tensor: str, made: QuantTypeInfo, wanted: _Wanted) -> None:
        """All of these readers want the type in which the tensor is made."""
        said = (self.overrides.get(tensor) or [{}])[0]
        convert = said.get("convert")
        if convert is not None and wanted.readers & convert.get("recv_nodes", wanted.readers):
            raise UsageError(
                f"Tensor '{tensor}' is converted for nodes that need it as it is made."
            )
        if wanted.made is not None:
            self._said(tensor, made)

    def _said(self, tensor: str, made: QuantTypeInfo) -> dict[str, Any]:
        """Return the overrides of a tensor, begun with its type where there are none."""
        if not self.overrides.get(tensor):
            self.overrides[tensor] = [{}]
            made.save_to_dict(self.overrides[tensor][0])
        return self.overrides[tensor][0]

    def _is_float(self, tensor: str) -> bool:
        if tensor in self.initializers:
            return self.initializers[tensor].data_type in _FLOATS
        value = self.value_infos.get(tensor)
        return value is not None and value.type.tensor_type.elem_type in _FLOATS


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
