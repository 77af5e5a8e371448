"""Which node of one model is which of the other. Every step is one pass over both models.

Nodes are matched, in this order, if they

1. have the same operator and make the same tensor,
2. have the same operator and name,
3. are products that alone read the same weight (Conv and QLinearConv),
4. make the same tensor, the parts behind an integer product taken for the product (Gemm and MatMulInteger),
5. have the same name.

Tensors are compared by `base_name`. QuantizeLinear and its like only match their like: by 3 to 5 they would stand
for the operators that they were put around.

`base_name` is what a tensor was called before somebody quantized it. Tools that quantize name what they add after the
tensor it stands for: ``w`` becomes ``w_quantized`` and ``w_DequantizeLinear_Output``. Names are a hint for matching,
never the proof that two tensors are equal.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import cache

import onnx_ir as ir

from quantkit.model.ops.float_ops import FLOAT_PRODUCTS
from quantkit.model.ops.integer_ops import CONVERSIONS, INTEGER_OPS, INTEGER_PRODUCTS

# Of quantkit, onnxruntime.quantization and exporters that quantize themselves.
_SUFFIXES = (
    "_QuantizeLinear_Output",
    "_QuantizeLinear_Input",
    "_DequantizeLinear_Output",
    "_dequantized",
    "_quantized",
    "_widened",
)


@cache
def base_name(tensor: str) -> str:
    """Return the name without the endings of quantization, however many there are."""
    for suffix in _SUFFIXES:
        if tensor.endswith(suffix) and len(tensor) > len(suffix):
            return base_name(tensor.removesuffix(suffix))
    return tensor


_FURTHEST = 4  # nodes between a product and its weight: Cast, Sub, Mul, Transpose

Key = Callable[[ir.Node], Hashable | None]
Nodes = dict[ir.Node, ir.Node]


def pair_nodes(a: ir.Model, b: ir.Model) -> Nodes:
    """Return the node of `b` for each node of `a` that has one."""
    left, right = list(a.graph.all_nodes()), list(b.graph.all_nodes())
    made_a, made_b = _made_names(left), _made_names(right)
    pairs: Nodes = {}
    taken: set[ir.Node] = set()
    steps: tuple[tuple[Key, Key], ...] = (
        (_operator_and_tensor, _operator_and_tensor),
        (_operator_and_name, _operator_and_name),
        (_weight_read, _weight_read),
        (_stands_for(left, made_b).get, _stands_for(right, made_a).get),
        (_name, _name),
    )
    for key_a, key_b in steps:
        known = _by_key((n for n in right if n not in taken), key_b)
        for key, node in _by_key((n for n in left if n not in pairs), key_a).items():
            other = known.get(key)
            if other is not None:
                pairs[node] = other
                taken.add(other)
    return pairs


def _by_key(nodes: Iterable[ir.Node], key: Key) -> dict[Hashable, ir.Node]:
    """Return the nodes whose key no other has: of several equal ones nobody knows which is meant."""
    found: dict[Hashable, ir.Node] = {}
    several: set[Hashable] = set()
    for node in nodes:
        k = key(node)
        if k is None:
            continue
        if k in found:
            several.add(k)
        found[k] = node
    return {k: node for k, node in found.items() if k not in several}


def _made_tensor(node: ir.Node) -> str | None:
    """Return the base name of the first tensor that a node makes."""
    name = next((out.name for out in node.outputs if out.name), None)
    return base_name(name) if name else None


def _operator_and_tensor(node: ir.Node) -> Hashable | None:
    made = _made_tensor(node)
    return (node.op_type, made) if made else None


def _operator_and_name(node: ir.Node) -> Hashable:
    return node.op_type, node.name


def _name(node: ir.Node) -> Hashable | None:
    return None if node.op_type in CONVERSIONS else node.name


def _weight_read(node: ir.Node) -> Hashable | None:
    """Return the base name of the largest constant that a product reads, itself or through one or more nodes."""
    if node.op_type not in FLOAT_PRODUCTS | INTEGER_PRODUCTS:
        return None
    sources = [v for v in (_constant_behind(value) for value in node.inputs) if v is not None]
    if not sources:
        return None
    return base_name(max(sources, key=_size).name or "")


def _size(value: ir.Value) -> int:
    return value.const_value.size if value.const_value is not None else 0


def _constant_behind(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer from which a value is restored or moved; None if there is none."""
    for _ in range(_FURTHEST):
        if value is None or value.is_initializer():
            return value
        producer = value.producer()
        if producer is None or not producer.inputs:
            return None
        value = producer.inputs[0]
    return None


def _made_names(nodes: Iterable[ir.Node]) -> set[str]:
    return {made for node in nodes if (made := _made_tensor(node)) is not None}


def _stands_for(nodes: Iterable[ir.Node], elsewhere: set[str]) -> dict[ir.Node, Hashable]:
    """Return, for every node but conversions, the base name of a tensor that the other model has too.

    An integer product stands for the first such tensor that its scaling and its bias make.
    """
    keys: dict[ir.Node, Hashable] = {}
    for node in nodes:
        made = _made_tensor(node)
        if made not in elsewhere or node.op_type in CONVERSIONS:
            continue
        keys.setdefault(_integer_product_behind(node) or node, made)
    return keys


def _integer_product_behind(node: ir.Node) -> ir.Node | None:
    """Return the product p of ``[Add(] Mul(Cast(p), scale) [, bias)]`` whose last part `node` is; None if it is none."""
    current = node
    if current.op_type == "Add" and len(current.inputs) == 2:
        constant = [v is not None and v.is_initializer() for v in current.inputs]
        current = _maker(current, slot=1 if constant[0] else 0) if any(constant) else current
    for op_type in ("Mul", "Cast"):
        if current.op_type != op_type:
            return None
        current = _maker(current, slot=0)
    row = INTEGER_OPS.get(current.op_type)
    return current if row is not None and row.makes_sums else None


def _maker(node: ir.Node, *, slot: int) -> ir.Node:
    """Return the node that makes an input; `node` itself where there is none."""
    value = node.inputs[slot]
    return (value.producer() if value is not None else None) or node
