"""When onnxruntime's dynamic int8 kernels can compute a node, and when that is faster than float."""

from collections.abc import Mapping

from quantkit.ops import Kernel
from quantkit.ops.view import Node, View, Weight

__all__ = ["obstacle"]

_MATRIX = 2
# From about here DynamicQuantizeMatMul beats float MatMul on AVX2 (benchmarks/crossover.py). Below, with few
# rows, quantizing the activation costs more than the product saves; with many rows some would still gain.
_MIN_ELEMENTS = 128 * 128
_MIN_EXTENT = 128
# Rows looked up as integers cost three nodes each time and save memory; below 4 MB of float that is not
# worth it.
_MIN_TABLE = 1 << 20

_ATTENTION_WEIGHT_BIAS, _ATTENTION_BIAS = 2, 5  # input slots
_EMBED_CONSTANTS, _EMBED_POSITIONS, _EMBED_OUTPUTS = (2, 3, 4, 5, 6), 8, 2

Weights = Mapping[int, Weight]


def obstacle(node: Node, view: View, *, named: bool) -> str:
    """Return why the kernel of its operator cannot or should not run this node; "" if it should.

    `named`: the user asked for this very node, so its size does not matter.

    Args:
        node: That may run in integers.
        view: The graph.
        named: The user asked for this very node, so its size does not matter.
    """
    weights = view.weights_of(node)
    match node.kernel:
        case Kernel.MATMUL:
            return _matmul(weights) or ("" if named else _too_small(weights))
        case _ if any(map(node.transposes, weights)):
            return "its weight is read through a Transpose"
        case Kernel.LOOKUP:
            return _lookup(node, weights) or ("" if named else _small_table(weights))
        case Kernel.LSTM:
            return _lstm(node, weights)
        case Kernel.ATTENTION:
            return _attention(node)
        case _:
            return _embed(node, view)


def _matmul(weights: Weights) -> str:
    if 1 not in weights or 0 in weights:
        return "the constant is the left operand"
    if len(weights[1].shape) != _MATRIX:
        return f"its weight has {len(weights[1].shape)} axes, not 2"
    return ""


def _too_small(weights: Weights) -> str:
    rows, columns = weights[1].shape
    if rows * columns < _MIN_ELEMENTS or min(rows, columns) < _MIN_EXTENT:
        return f"a {rows}x{columns} layer is faster in float"
    return ""


def _lookup(node: Node, weights: Weights) -> str:
    if node.attributes.get("axis", 0) != 0 or len(weights[0].shape) != _MATRIX:
        return "only rows of a matrix are looked up as integers"
    return ""


def _small_table(weights: Weights) -> str:
    if weights[0].size < _MIN_TABLE:
        return "its table is too small for an integer look-up to gain anything"
    return ""


def _lstm(node: Node, weights: Weights) -> str:
    if set(weights) != {1, 2}:
        return "one of its weights is computed at run time"
    if node.attributes.get("layout"):
        return "DynamicQuantizeLSTM knows no batch-first layout"
    return ""


def _attention(node: Node) -> str:
    missing = [
        name for name in ("do_rotary", "past_present_share_buffer") if node.attributes.get(name)
    ]
    if missing:
        return f"QAttention does not support {missing[0]}"
    sizes = node.attributes.get("qkv_hidden_sizes", ())
    if isinstance(sizes, tuple) and len(set(sizes)) > 1:
        return "QAttention needs query, key and value of one size"
    if any(node.inputs[_ATTENTION_BIAS:]):
        return "QAttention takes no attention bias and no past length"
    if len(node.inputs) <= _ATTENTION_WEIGHT_BIAS or not node.inputs[_ATTENTION_WEIGHT_BIAS]:
        return "QAttention needs a bias"
    return ""


def _embed(node: Node, view: View) -> str:
    used = {node.inputs[slot] for slot in _EMBED_CONSTANTS if slot < len(node.inputs)} - {""}
    if not used <= view.initializers:
        return "one of its tables, or gamma or beta, is computed at run time"
    if any(node.inputs[_EMBED_POSITIONS:]) or view.used_outputs(node) > _EMBED_OUTPUTS:
        return "QEmbedLayerNormalization has neither position ids nor the embedding sum"
    return ""
