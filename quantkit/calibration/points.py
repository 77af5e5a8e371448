"""The tensors to observe: all whose ranges the planner asks for, and what enters and leaves operators like these.

What a plan needs for a target only the planner knows, so it is asked (`quantkit.quantize.plan.ranges_needed`). The rest lets a
plan say why an operator stays float, lets a user force one, and fills the tables of other tools. Three rules keep it
short, and the run fast:

1. What is absorbed is not looked at: of Conv, BatchNormalization, Clip from 0 only the last output.
2. Data movement is looked through: Reshape, Transpose, MaxPool... share the scale of their input.
3. What stands between two float operators is left alone.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from quantkit.model.ops.float_ops import ABSORBED_BY, BY_CONSTANT, COMPUTES, MOVES, PRODUCTS
from quantkit.model.ops.view import Node, View, clip_bounds, fills_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Names of tensors.

    Attributes:
        tensors: To be observed; in graph order, those that only a plan asks for behind the others.
        branched: Whether some stand inside If, Loop or Scan: which of these are computed, a sample decides.
        hidden: How many stand in a subgraph of another operator, where a run does not show them.
    """

    tensors: tuple[str, ...]
    branched: bool = False
    hidden: int = 0


def points_of(view: View, needed: Collection[str] = ()) -> Points:
    """Find the tensors to observe, in time linear in the number of nodes.

    `needed`: those that a plan will ask for; names that the main graph does not have are passed over.
    """
    # Two sources, joined in graph order: what enters and leaves operators that may run in integers, whatever the
    # target, and what the plan for this target asks for. The first alone misses operators in a row that only another
    # target computes; the second alone would leave tables for other tools, and plans that a user forces, without
    # ranges. Tensors in subgraphs of other operators than If, Loop and Scan are counted, since a session cannot put
    # them out, and said.
    found: dict[str, None] = {}
    hidden = 0
    for node in view.nodes:
        if not _computes(node, view):
            continue
        if not node.observable:
            hidden += sum(name not in view.not_float for name in node.outputs)
            continue
        found.update(dict.fromkeys(_around(node, view)))
    more = set(needed) - found.keys()
    found.update({name: None for name in _all_of(view) if name in more})
    tensors = tuple(name for name in found if name and name not in view.not_float)
    inner = {name for node in view.nodes if node.inside for name in (*node.inputs, *node.outputs)}
    return Points(tensors=tensors, branched=not inner.isdisjoint(tensors), hidden=hidden)


def _all_of(view: View) -> Iterator[str]:
    """Yield all that can be observed: inputs, what bodies of loops are given, and what nodes make."""
    yield from view.inputs
    for node in view.nodes:
        if node.observable:
            given = (n for n in node.inputs if n not in view.producer and not _is_constant(n, view))
            yield from given if node.inside else ()
            yield from node.outputs


def _computes(node: Node, view: View) -> bool:
    """Say whether a node may run in integers.

    Scaling or shifting by a constant does only behind a product, whose bias it is: elsewhere (inside a
    LayerNormalization or a Gelu that was taken apart) its neighbours are float, and so is it.
    """
    if node.op_type not in BY_CONSTANT or not any(_is_constant(name, view) for name in node.inputs):
        return node.op_type in COMPUTES
    makers = (view.maker(name) for name in node.inputs)
    return any(maker is not None and maker.op_type in PRODUCTS for maker in makers)


def _around(node: Node, view: View) -> Iterator[str]:
    for name in node.inputs:
        source = moved_from(name, view)
        if not _is_constant(source, view):
            yield source
    for name in node.outputs:
        yield _after_absorption(name, view)


def moved_from(name: str, view: View) -> str:
    """Follow data movement back to where the values were computed; not if other values were added on the way."""
    read = name
    while (maker := view.maker(name)) is not None and maker.op_type in MOVES:
        if maker.op_type == "Pad" and fills_in(maker, view.constants):
            return read
        name = maker.inputs[0] if maker.inputs else ""
    return name


def _after_absorption(name: str, view: View) -> str:
    """Follow a result through what its kernel absorbs."""
    while (maker := view.maker(name)) is not None and (
        reader := view.only_reader(name)
    ) is not None:
        node = view.nodes[reader]
        if node.inputs[0] != name or maker.op_type not in ABSORBED_BY.get(node.op_type, ()):
            break
        if node.op_type == "Clip" and (clip_bounds(node, view.constants) or (None,))[0] != 0:
            break  # the kernel cannot clip there (`quantkit.quantize.plan.islands`), so both outputs are needed
        name = node.outputs[0]
    return name


def _is_constant(name: str, view: View) -> bool:
    """Say whether a value is in the file, also if it is a default that can be fed."""
    return name in view.initializers or name in view.constants
