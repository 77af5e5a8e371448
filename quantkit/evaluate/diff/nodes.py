"""What became of the nodes: the same, changed (with their attributes compared), gone, new."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from quantkit.evaluate.match import Nodes, base_name
from quantkit.model.ops.integer_ops import CONVERSIONS
from quantkit.result import OperatorChange

_SHOWN = 60  # characters of a value


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that is not the same in both, as people write it; "" where it is absent."""

    what: str
    a: str
    b: str


def _attribute_changes(a: ir.Node, b: ir.Node) -> tuple[Change, ...]:
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


_TRANSPARENT = CONVERSIONS | {"Identity"}
_LONGEST_CHAIN = 8  # of QuantizeLinear, DequantizeLinear and Identity one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRef:
    """A node by its name and operator."""

    name: str
    op_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """A node that is in both models, and what differs.

    Attributes:
        a: In the first model.
        b: In the second.
        attributes: That differ; one that is left out counts as its default.
        reads: Activations that it reads, if they differ, with quantization looked through.
    """

    a: NodeRef
    b: NodeRef
    attributes: tuple[Change, ...] = ()
    reads: Change | None = None

    @property
    def differs(self) -> bool:
        """Whether it computes something else; a name alone does not count."""
        return bool(self.a.op_type != self.b.op_type or self.attributes or self.reads)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesDiff:
    """How the nodes of two models correspond.

    Invariant: ``same + len(changed) + len(only_a)`` is the number of nodes of the first model, and likewise of the second.

    Attributes:
        same: How many have the same operator, attributes and inputs.
        renamed: How many of these have another name.
        changed: The others that correspond.
        only_a: Only in the first model.
        only_b: Only in the second.
        operators: Operators whose number differs.
    """

    same: int
    renamed: int
    changed: tuple[NodeChange, ...]
    only_a: tuple[NodeRef, ...]
    only_b: tuple[NodeRef, ...]
    operators: tuple[OperatorChange, ...]


def nodes_diff(a: ir.Model, b: ir.Model, pairs: Nodes) -> NodesDiff:
    """Say what differs, in the order of the first model.

    Args:
        a: The first model.
        b: The second model.
        pairs: Which node of one is which of the other.
    """
    left, right = list(a.graph.all_nodes()), list(b.graph.all_nodes())
    taken = set(pairs.values())
    sources = _Sources(pairs, _constant_values(left) | _constant_values(right))
    compared = [_change(node, pairs[node], sources) for node in left if node in pairs]
    same = [c for c in compared if not c.differs]
    return NodesDiff(
        same=len(same),
        renamed=sum(c.a.name != c.b.name for c in same),
        changed=tuple(c for c in compared if c.differs),
        only_a=tuple(_ref(n) for n in left if n not in pairs),
        only_b=tuple(_ref(n) for n in right if n not in taken),
        operators=operator_changes(_operators(left), _operators(right)),
    )


def _change(a: ir.Node, b: ir.Node, sources: "_Sources") -> NodeChange:
    alike = a.op_type == b.op_type
    return NodeChange(
        a=_ref(a),
        b=_ref(b),
        attributes=_attribute_changes(a, b) if alike else (),
        reads=sources.change(a, b) if alike else None,
    )


def _ref(node: ir.Node) -> NodeRef:
    return NodeRef(name=node.name or "", op_type=node.op_type)


def _constant_values(nodes: list[ir.Node]) -> set[ir.Value]:
    """Return what nodes make of constants alone: they are in topological order, so one pass does."""
    found: set[ir.Value] = set()
    for node in nodes:
        given = [v for v in node.inputs if v is not None]
        constant = all(v in found or v.is_initializer() for v in given)
        if constant and (given or node.op_type == "Constant"):
            found.update(node.outputs)
    return found


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where activations come from. Constants are compared elsewhere, by their values."""

    pairs: Nodes
    constants: set[ir.Value]

    def change(self, a: ir.Node, b: ir.Node) -> Change | None:
        """Return what both read, if it is not the same."""
        left, right = self._activations(a), self._activations(b)
        if len(left) == len(right) and all(map(self._same, left, right)):
            return None
        names = [", ".join(base_name(v.name or "") for v in found) for found in (left, right)]
        return Change(what="reads", a=names[0], b=names[1])

    def _activations(self, node: ir.Node) -> list[ir.Value]:
        found = (_looked_through(value) for value in node.inputs)
        return [v for v in found if v and not v.is_initializer() and v not in self.constants]

    def _same(self, x: ir.Value, y: ir.Value) -> bool:
        if base_name(x.name or "") == base_name(y.name or ""):
            return True
        made_x, made_y = x.producer(), y.producer()
        return made_x is not None and self.pairs.get(made_x) is made_y and x.index() == y.index()


def _looked_through(value: ir.Value | None) -> ir.Value | None:
    """Follow a value back through quantization and Identity."""
    for _ in range(_LONGEST_CHAIN):
        producer = value.producer() if value is not None else None
        if producer is None or producer.op_type not in _TRANSPARENT:
            return value
        value = producer.inputs[0]
    return value


def _operators(nodes: Iterable[ir.Node]) -> Counter[str]:
    return Counter(node.op_type for node in nodes)


def operator_changes(
    before: Mapping[str, int], after: Mapping[str, int]
) -> tuple[OperatorChange, ...]:
    """Return the operators whose number changed, the largest change first."""
    changes = [
        OperatorChange(op_type=op, before=before.get(op, 0), after=after.get(op, 0))
        for op in {*before, *after}
        if before.get(op, 0) != after.get(op, 0)
    ]
    return tuple(sorted(changes, key=lambda c: (-abs(c.after - c.before), c.op_type)))
