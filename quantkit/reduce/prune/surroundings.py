"""What stands around a linear operator: the bias that is added to its output, and the shortcut."""

from quantkit.model.graph.products import Product
from quantkit.model.ops.view import Node, View


def shortcut_of(view: View, product: Product) -> str:
    """Return the activation that the output of a linear operator is added to, if nobody else consumes that output; "" if there is none."""
    node = next(n for n in view.nodes if n.name == product.node)
    for _ in range(2):  # its bias may be added first
        found = _added(view, node)
        if found is None:
            return ""
        node, other = found
        if other not in view.constants:
            return other
    return ""


def _added(view: View, node: Node) -> tuple[Node, str] | None:
    """Return the Add that alone consumes a node's output, and what else that adds."""
    reader = view.only_reader(node.outputs[0])
    if reader is None or view.nodes[reader].op_type != "Add":
        return None
    others = [name for name in view.nodes[reader].inputs if name != node.outputs[0]]
    return (view.nodes[reader], others[0]) if others else None


def bias_of(view: View, product: Product) -> str:
    """Return the constant that is added to what a linear operator computes, if nobody else reads it; "" if there is none."""
    found = product.bias if product.biased else ""
    if not found and product.window.group == 1:
        node = next(n for n in view.nodes if n.name == product.node)
        added = _added(view, node)
        found = added[1] if added is not None and added[1] in view.constants else ""
    constant = view.constants.get(found)
    channels = product.layout.shape[product.layout.channel]
    alone = len(view.readers.get(found, ())) == 1 and found in view.initializers
    vector = constant is not None and constant.shape[-1:] == (channels,)
    return (
        found
        if alone and vector and constant is not None and max(constant.shape) == channels
        else ""
    )


def is_alone(view: View, product: Product) -> bool:
    """Say whether the weight of a linear operator is its own, and its output a plain sum of products."""
    weight = view.weights[product.weight]
    return len(weight.uses) == 1 and not weight.exposed and product.alpha == product.beta == 1
