"""Attributes of two nodes of the same operator, compared."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

__all__ = ["Change", "attribute_changes"]

_SHOWN = 60  # characters of a value


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that is not the same in both, as people write it; "" where it is absent."""

    what: str
    a: str
    b: str


def attribute_changes(a: ir.Node, b: ir.Node) -> tuple[Change, ...]:
    """Return the attributes that differ. Subgraphs are left out: their nodes are compared themselves."""
    defaults = _defaults(a.domain, a.op_type)
    names = sorted({*a.attributes, *b.attributes})
    changes = []
    for name in names:
        left = _setting(a, name, defaults.get(name))
        right = _setting(b, name, defaults.get(name))
        if not _equal(left, right):
            changes.append(Change(what=name, a=_text(left), b=_text(right)))
    return tuple(changes)


def _setting(node: ir.Node, name: str, default: Any) -> Any:
    """Return an attribute; where newer opsets made an input of it (the axes of Unsqueeze), that input's constant."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return _plain(attribute)
    slot = _input_slots(node.domain, node.op_type).get(name)
    value = node.inputs[slot] if slot is not None and slot < len(node.inputs) else None
    tensor = value.const_value if value is not None else None
    return default if tensor is None or tensor.size > _SHOWN else tensor.numpy().tolist()


def _plain(attribute: ir.Attr) -> Any:
    if attribute.is_ref():
        return f"attribute {attribute.ref_attr_name}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return None
    if attribute.type is ir.AttributeType.TENSOR:
        return attribute.as_tensor().numpy()
    value = attribute.value
    return list(value) if isinstance(value, list | tuple) else value


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        same_form = type(left) is type(right) and left.dtype == right.dtype
        return same_form and left.shape == right.shape and left.tobytes() == right.tobytes()
    return bool(left == right)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, np.ndarray):
        value = value.item() if value.ndim == 0 else value.ravel()[:_SHOWN].tolist()
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


@cache
def _input_slots(domain: str, op_type: str) -> dict[str, int]:
    """Return the inputs of an operator by name, from its newest definition."""
    if not onnx.defs.has(op_type, domain):
        return {}
    schema = onnx.defs.get_schema(op_type, domain)
    return {entry.name: slot for slot, entry in enumerate(schema.inputs)}


@cache
def _defaults(domain: str, op_type: str) -> dict[str, Any]:
    """Return the defaults of an operator's attributes, from its newest definition."""
    if not onnx.defs.has(op_type, domain):
        return {}
    schema = onnx.defs.get_schema(op_type, domain)
    return {
        name: _proto_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }


def _proto_value(proto: onnx.AttributeProto) -> Any:
    value = ir.serde.deserialize_attribute(proto).value
    return list(value) if isinstance(value, list | tuple) else value
