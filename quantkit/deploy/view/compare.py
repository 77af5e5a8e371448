"""Two drawings beside each other: which box is which, and what became of it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from quantkit.deploy.view.facts import Box, Operator, Pair
from quantkit.deploy.view.fold import Folded
from quantkit.evaluate.match import Nodes
from quantkit.model.ops.integer_ops import CONVERSIONS, stands_for

_QUIET = CONVERSIONS | {"Constant", "Identity"}


def float_names(pairs: Nodes, folded: Sequence[Folded]) -> dict[str, str]:
    """Return what the float model calls the nodes that boxes of the other are named after.

    Args:
        pairs: The nodes of the float model with those of the other.
        folded: The boxes of the other.
    """
    back = {other.name or "": node.name or "" for node, other in pairs.items()}
    taken = set(back.values())
    found = {}
    for box in folded:
        names = [node.name or "" for node in box.nodes]
        head = None if box.head is None else box.head.name or ""
        if head is None or head in back:
            continue
        # A product of integers stands for the node whose result the last of its parts makes.
        meant = [back[n] for n in names if n in back]
        if len(meant) == 1 and head not in taken:
            found[head] = meant[0]
    return back | found


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Two drawings that are compared.

    Attributes:
        first: The boxes of the first model, with what stands for each node in the second.
        pairs: What became of each box.
        kin: How many layers of the second model are one of the first.
    """

    first: tuple[Box, ...]
    pairs: tuple[Pair, ...]
    kin: int


def side_by_side(
    folded: tuple[Sequence[Folded], Sequence[Folded]],
    boxes: tuple[Sequence[Box], Sequence[Box]],
    nodes: Nodes,
) -> SideBySide:
    """Compare two drawings.

    Args:
        folded: The boxes of both models, as nodes.
        boxes: The same boxes with what is known of them.
        nodes: The nodes of the first model with those of the second.
    """
    fates = {node.name or "": other.op_type for node, other in nodes.items()}
    first = tuple(
        replace(box, operators=tuple(_with_fate(operator, fates) for operator in box.operators))
        for box in boxes[0]
    )
    numbers = _pair_boxes(*folded, nodes)
    return SideBySide(
        first=first,
        pairs=tuple(_described(a, b, first, boxes[1]) for a, b in numbers),
        kin=sum(a is not None and b is not None and first[a].role == "layer" for a, b in numbers),
    )


def _pair_boxes(
    a: Sequence[Folded], b: Sequence[Folded], pairs: Nodes
) -> tuple[tuple[int | None, int | None], ...]:
    """Return which box is which, in order: by what they are named after, else by any of their nodes; then what is left."""
    home = {node: number for number, box in enumerate(b) for node in box.nodes}
    ends = {_end(box): number for number, box in enumerate(b) if box.value is not None}
    found: dict[int, int] = {}
    taken: set[int] = set()
    for of_head in (True, False):
        for number, box in enumerate(a):
            if number in found:
                continue
            for other in _candidates(box, pairs, home, ends, of_head=of_head):
                if other not in taken:
                    found[number] = other
                    taken.add(other)
                    break
    left = [(number, found.get(number)) for number in range(len(a))]
    return (*left, *((None, number) for number in range(len(b)) if number not in taken))


def _end(box: Folded) -> tuple[str, bool]:
    assert box.value is not None  # noqa: S101 - the caller knows
    return box.value.name or "", box.value.is_graph_input()


def _candidates(
    box: Folded,
    pairs: Nodes,
    home: dict[ir.Node, int],
    ends: dict[tuple[str, bool], int],
    *,
    of_head: bool,
) -> Iterator[int]:
    if box.value is not None:
        if of_head and _end(box) in ends:
            yield ends[_end(box)]
        return
    nodes = [box.head] if of_head and box.head is not None else box.nodes
    for node in nodes:
        if of_head or node.op_type not in _QUIET:
            at = home.get(
                pairs.get(node, node)
            )  # a node without a partner is in no box of the other
            if at is not None:
                yield at


def _described(a: int | None, b: int | None, first: Sequence[Box], second: Sequence[Box]) -> Pair:
    """Say what became of a box."""
    if a is None or b is None:
        return Pair(a=a, b=b, status="added" if a is None else "removed")
    changes = tuple(_changes(first[a], second[b]))
    return Pair(a=a, b=b, status="changed" if changes else "same", changes=changes)


def _changes(a: Box, b: Box) -> Iterator[str]:
    yield from _operator_changes(a, b)
    types = [{w.dtype for w in box.weights if len(w.shape) > 1} for box in (a, b)]
    if types[0] != types[1]:
        yield f"weights {_listed(types[0])} -> {_listed(types[1])}"
    if a.nbytes != b.nbytes:
        yield f"{a.nbytes:,} bytes -> {b.nbytes:,} bytes"
    floats = {tensor.name for tensor in a.makes if not tensor.integers}
    quantized = (t.integers for t in b.makes if t.integers and t.name in floats)
    if integers := next(quantized, None):
        yield f"what it makes is quantized to {integers}"
    if a.op_type == b.op_type:
        yield from _setting_changes(dict(a.attributes), dict(b.attributes))


def _operator_changes(a: Box, b: Box) -> Iterator[str]:
    if a.op_type != b.op_type:
        yield f"{a.op_type} is now {b.op_type}"
    before, after = (Counter(o.op_type for o in box.operators) for box in (a, b))
    before[a.op_type] -= 1
    after[b.op_type] -= 1
    for words, counts in (("gone", before - after), ("new", after - before)):
        if counts:
            yield f"{words}: {', '.join(_times(op, n) for op, n in counts.items())}"


def _setting_changes(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        was, now = (each.get(name, "not given") for each in (before, after))
        if was != now:
            yield f"{name}: {was} -> {now}"


def _times(op_type: str, count: int) -> str:
    return op_type if count == 1 else f"{count} {op_type}"


def _listed(types: set[str]) -> str:
    return ", ".join(sorted(types)) or "none"


def _with_fate(operator: Operator, fates: dict[str, str]) -> Operator:
    fate = fates.get(operator.name)
    if fate is not None:
        return replace(operator, fate="" if fate == operator.op_type else fate)
    quiet = operator.op_type in _QUIET or stands_for(operator.op_type) != operator.op_type
    return operator if quiet else replace(operator, fate="gone: fused or folded")
