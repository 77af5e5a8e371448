"""Constants that a Loop or Scan carries from step to step unchanged, read directly instead.

tf2onnx writes every recurrent layer of Keras as a Loop that is given its weights as state and hands them on with Identity. The body may
read such a constant from outside, and what comes out in the end is what went in, whatever the number of steps.
"""

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from quantkit.model.graph.edit import (
    can_redirect,
    constant,
    is_op,
    nodes_of,
    owner_of,
    subgraphs_of,
    succeed,
)
from quantkit.model.ops.float_ops import LOOPS, REARRANGES

# What moves the contents of a constant; folded later, where the result is no larger.
_MOVES = REARRANGES | {"Cast"}


class _Carry(NamedTuple):
    """A state: its place among the node's inputs and outputs, and among the body's."""

    given: int
    final: int
    read: int
    handed_on: int


def read_carried_constants(model: ir.Model) -> int:
    """Let bodies of Loop and Scan read constants that they only hand on, in place; return how many states that removes."""
    changes = 0
    for node in nodes_of(
        model
    ):  # those around come before those inside, whose states begin as theirs
        carries = [carry for carry in _carries(node) if _is_removable(node, carry)]
        if carries and len(carries) < len(node.outputs):
            _without(node, carries)
            changes += len(carries)
    return changes


def _carries(node: ir.Node) -> Iterator[_Carry]:
    """Yield the states of a Loop or Scan; none of a Scan of opset 8, whose states have a batch axis."""
    body = _body(node)
    if body is None or len(node.inputs) != len(body.inputs):
        return
    if is_op(node, "Loop") and len(node.outputs) == len(body.outputs) - 1:
        # trip count and condition come first; the body makes the condition anew
        for k in range(len(node.inputs) - 2):
            yield _Carry(given=k + 2, final=k, read=k + 2, handed_on=k + 1)
    elif is_op(node, "Scan") and len(node.outputs) == len(body.outputs):
        for k in range(len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)):
            yield _Carry(given=k, final=k, read=k, handed_on=k)


def _body(node: ir.Node) -> ir.Graph | None:
    attribute = node.attributes.get("body") if is_op(node, *LOOPS) else None
    return attribute.as_graph() if attribute is not None else None


def _is_removable(node: ir.Node, carry: _Carry) -> bool:
    given, final = node.inputs[carry.given], node.outputs[carry.final]
    if given is None or not _is_constant(given) or not _is_unchanged(node, carry):
        return False
    return not final.is_graph_output() and can_redirect(final, given)


def _is_constant(value: ir.Value) -> bool:
    """Say whether a value is a constant, or data movement on constants."""
    while constant(value) is None:
        maker = value.producer()
        source = maker.inputs[0] if maker is not None and maker.inputs else None
        if maker is None or source is None or not is_op(maker, *_MOVES):
            return False
        if any(constant(v) is None for v in maker.inputs[1:] if v is not None):
            return False
        value = source
    return True


def _is_unchanged(node: ir.Node, carry: _Carry) -> bool:
    body = _body(node)
    assert body is not None  # noqa: S101 - it has states
    return _origin(body.outputs[carry.handed_on]) is body.inputs[carry.read]


def _origin(value: ir.Value) -> ir.Value:
    """Return the value that another one always equals: through Identity, states that are only handed on, and an If of one mind."""
    while (maker := value.producer()) is not None:
        source = _source(maker, value)
        if source is None:
            break
        value = source
    return value


def _source(maker: ir.Node, value: ir.Value) -> ir.Value | None:
    if is_op(maker, "Identity"):
        return maker.inputs[0]
    place = maker.outputs.index(value)
    if is_op(maker, "If"):
        branches = list(subgraphs_of(maker))
        found = {_origin(out) for branch in branches for out in branch.outputs[place : place + 1]}
        source = found.pop() if len(found) == 1 else None
        return source if source is not None and source.graph not in branches else None
    for carry in _carries(maker):
        if carry.final == place and _is_unchanged(maker, carry):
            return maker.inputs[carry.given]
    return None


def _without(node: ir.Node, carries: list[_Carry]) -> None:
    """Replace a node by one without these states."""
    body = _body(node)
    assert body is not None  # noqa: S101 - it has states
    for carry in reversed(carries):
        given = node.inputs[carry.given]
        assert given is not None  # noqa: S101 - it is a constant
        body.outputs.pop(carry.handed_on)
        body.inputs[carry.read].replace_all_uses_with(given)
        body.inputs.pop(carry.read)
        node.outputs[carry.final].replace_all_uses_with(given)
    gone_in, gone_out = {c.given for c in carries}, {c.final for c in carries}
    new = ir.Node(
        node.domain,
        node.op_type,
        [value for i, value in enumerate(node.inputs) if i not in gone_in],
        list(node.attributes.values()),
        num_outputs=len(node.outputs) - len(carries),
        version=node.version,
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
    )
    owner_of(node).insert_before(node, new)
    left = (value for i, value in enumerate(node.outputs) if i not in gone_out)
    for old, now in zip(left, new.outputs, strict=True):
        succeed(old, now)
    node.attributes.clear()  # the body is the new node's
    owner_of(node).remove(node, safe=True)
