"""Integers that nobody reads are taken back.

Whether a node between products joins them is decided from front to back, when it is not yet known whether those behind
it will: of a matrix product of two activations one may come from a Softmax, which is float. This pass goes from back to
front and leaves no node in integers that only floats read.
"""

from collections.abc import Collection

from quantkit.ops.float_ops import activation_slots
from quantkit.ops.view import View
from quantkit.plan.islands import Islands

__all__ = ["retract"]


def retract(
    found: Islands,
    view: View,
    products: Collection[int],
    *,
    forced: Collection[int],
    needs_output: Collection[str],
) -> None:
    """Change `found` in place. `forced` nodes stay, and products whose kernel needs a quantized output.

    Args:
        found: What runs in integers; it is changed.
        view: The graph.
        products: Places of the products.
        forced: Places of the nodes that stay.
        needs_output: Operators whose kernels have no float result.
    """
    # Two kinds of nodes. Between products: without an integer reader it goes back to float, and since readers come
    # later in the order, those were decided before. A product stays, as its own inputs are worth it, but hands on
    # floats if some reader is float and no integer reader stands between products: quantizing for products alone is
    # then done by each of them, and the float reader gets exact values. Kernels that need a quantized output
    # (`needs_output`) have no such form.
    for index in sorted(found.static, reverse=True):
        results = found.results[index]
        readers = [r for value in results for r in view.readers.get(value, ())]
        integer = [r for r in readers if r in found.static]
        if index not in products:
            if not integer and index not in forced:
                del found.static[index]
                found.floats[index] = "nothing that reads it runs in integers"
                found.made.difference_update(results)
        elif results[0] in found.made and view.nodes[index].op_type not in needs_output:
            between = any(r not in products for r in integer)
            if len(integer) < len(readers) and not between:
                found.static[index] = "int8 in, float out"
                found.made.difference_update(results)
    _count_again(found, view, products)


def _count_again(found: Islands, view: View, products: Collection[int]) -> None:
    """Find the values that need a scale now."""
    found.quantized.clear()
    for index in sorted(found.static):
        node = view.nodes[index]
        slots = activation_slots(node.op_type, len(node.inputs), product=index in products)
        values = [node.inputs[slot] for slot in slots]
        values += [value for value in found.results[index] if value in found.made]
        found.quantized.update(dict.fromkeys(values))
    for value in [v for v in found.moved if v not in found.made]:
        del found.moved[value]
