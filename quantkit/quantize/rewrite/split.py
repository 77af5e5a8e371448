"""What onnxruntime fused when it saved an optimized model is standard operators again.

Products with an activation inside (FusedConv, FusedGemm) are no operators of ONNX: shapes are not inferred beyond them, and nothing is known
of their integers. onnxruntime fuses the parts again when it loads the result, so that nothing is lost.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from quantkit.model.graph.edit import (
    Names,
    add_initializer,
    nodes_of,
    owner_of,
    succeed,
    value_names,
)
from quantkit.model.graph.opset import opset_of
from quantkit.model.ops.float_ops import FUSED_ACTIVATIONS, FUSED_PRODUCTS

_MICROSOFT = "com.microsoft"
_SUM = 3  # the slot of what FusedConv adds before its activation
_BOUNDS_ARE_INPUTS = 11  # the opset from which they are, of Clip


def split_fused(model: ir.Model) -> int:
    """Split every FusedConv and FusedGemm into a product, a sum and an activation; return how many there were."""
    names, opset, count = value_names(model), opset_of(model), 0
    for node in nodes_of(model):
        if node.domain == _MICROSOFT and node.op_type in FUSED_PRODUCTS:
            count += _split(node, names, opset)
    return count


def _split(node: ir.Node, names: Names, opset: int) -> bool:
    activation = node.attributes.get_string("activation", "") or ""
    if activation and activation not in FUSED_ACTIVATIONS:
        return False
    graph, out = owner_of(node), node.outputs[0]
    kept = [a for a in node.attributes.values() if not a.name.startswith("activation")]
    inputs, given = list(node.inputs), _parameters(node)
    made = [ir.Node("", FUSED_PRODUCTS[node.op_type], inputs[:_SUM], kept, name=node.name)]
    if len(inputs) > _SUM and inputs[_SUM] is not None:
        made.append(ir.Node("", "Add", [made[-1].outputs[0], inputs[_SUM]]))
    if activation:
        values = dict(zip(FUSED_ACTIVATIONS[activation], given, strict=False))
        values = {**FUSED_ACTIVATIONS[activation], **values}
        more: list[ir.Value] = []
        if activation == "Clip" and opset >= _BOUNDS_ARE_INPUTS:
            more = [
                add_initializer(graph, names.fresh(f"{out.name}.{k}"), ir.tensor(np.float32(v)))
                for k, v in values.items()
            ]
            values = {}
        attributes = [ir.AttrFloat32(k, float(v)) for k, v in values.items()]
        made.append(ir.Node("", activation, [made[-1].outputs[0], *more], attributes))
    for i, part in enumerate(made):
        part.outputs[0].name = names.fresh(f"{out.name}.{part.op_type}")
        part.name = part.name if not i else names.fresh(f"{node.name or out.name}.{part.op_type}")
        graph.insert_before(node, part)
    succeed(out, made[-1].outputs[0])
    graph.remove(node, safe=True)
    return True


def _parameters(node: ir.Node) -> Sequence[float]:
    """Return the activation's numbers: one list in FusedConv, an attribute each in FusedGemm."""
    found = node.attributes.get_floats("activation_params", ()) or ()
    singly = [
        node.attributes.get_float(f"activation_{name}") for name in ("alpha", "beta", "gamma")
    ]
    return tuple(found) or tuple(value for value in singly if value is not None)
