"""Weights of two models: equal by their bytes, else how far the floats that they stand for are apart."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import onnx_ir as ir

from quantkit.diff.distance import Distance, distance, same_bytes
from quantkit.diff.equalized import Factors
from quantkit.diff.stored import Stored, stored_constants
from quantkit.match.names import base_name
from quantkit.match.nodes import Nodes

__all__ = ["WeightChange", "WeightRef", "WeightsDiff", "weights_diff"]

_FROM = 64  # values; smaller constants are settings of nodes rather than weights


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRef:
    """A weight as a model stores it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChange:
    """A weight that is in both models and not stored alike.

    Attributes:
        a: In the first model.
        b: In the second.
        sqnr_db: The first's floats against the difference; None: the floats are equal, or cannot be compared.
        largest: The largest absolute difference; None: cannot be compared.
        mean: The mean absolute difference.
        note: What was taken into account, or why they cannot be compared.
    """

    a: WeightRef
    b: WeightRef
    sqnr_db: float | None = None
    largest: float | None = None
    mean: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsDiff:
    """What became of the weights; scales and zero points are not among them.

    Attributes:
        equal: How many have the same bytes.
        changed: In both, with other bytes; the furthest apart first.
        only_a: Only in the first model.
        only_b: Only in the second.
    """

    equal: int
    changed: tuple[WeightChange, ...]
    only_a: tuple[WeightRef, ...]
    only_b: tuple[WeightRef, ...]


def weights_diff(a: ir.Model, b: ir.Model, nodes: Nodes) -> WeightsDiff:
    """Compare all weights, one pair in memory at a time.

    Args:
        a: The first model.
        b: The second model.
        nodes: Which node of one is which of the other: weights correspond as their readers do.
    """
    left, right = stored_constants(a), stored_constants(b)
    pairs = _pairs(left, right, nodes)
    kept = frozenset(nodes) | frozenset(nodes.values())
    matched = [(left[name], right[other]) for name, other in pairs.items()]
    different = [(x, y) for x, y in matched if not same_bytes(x, y)]
    factors = Factors(a), Factors(b)
    changes = [_change(x, y, distance(x, y, kept, factors)) for x, y in different]
    known = set(pairs.values())
    return WeightsDiff(
        equal=len(matched) - len(different),
        changed=tuple(sorted(changes, key=_rank)),
        only_a=tuple(_refs(c for n, c in left.items() if n not in pairs)),
        only_b=tuple(_refs(c for n, c in right.items() if n not in known)),
    )


def _change(x: Stored, y: Stored, apart: Distance) -> WeightChange:
    return WeightChange(
        a=_ref(x),
        b=_ref(y),
        sqnr_db=apart.sqnr_db,
        largest=apart.largest,
        mean=apart.mean,
        note=apart.note,
    )


def _rank(change: WeightChange) -> tuple[bool, float, int]:
    """Sort by SQNR, what cannot be compared before what is equal."""
    if change.largest is None:
        return False, -inf, -change.a.nbytes
    db = inf if change.sqnr_db is None else change.sqnr_db
    return True, db, -change.a.nbytes


def _refs(constants: Iterator[Stored]) -> list[WeightRef]:
    found = [_ref(c) for c in constants if c.tensor.size >= _FROM]
    return sorted(found, key=lambda ref: -ref.nbytes)


def _ref(constant: Stored) -> WeightRef:
    return WeightRef(
        name=constant.name,
        dtype=constant.dtype,
        shape=constant.shape,
        nbytes=constant.tensor.nbytes,
    )


def _pairs(left: dict[str, Stored], right: dict[str, Stored], nodes: Nodes) -> dict[str, str]:
    """Match by name, then by `base_name`, then by the largest constant that matched nodes read."""
    # Quantizers rename weights (w_quantized), and exporters number them anew, so three ways, the surest first; a
    # weight that is taken is not given twice. By their readers comes last: two nodes that correspond may read weights
    # in another order, and the largest is then the best guess. What finds no partner is listed as only in one model,
    # which a wrong pair would hide.
    pairs = {name: name for name in left if name in right}
    bases = {base_name(n): n for n in right if n not in pairs}
    for name in left:
        other = bases.get(base_name(name))
        if name not in pairs and other is not None:
            pairs[name] = bases.pop(base_name(name))
    taken = set(pairs.values())
    for a, b in nodes.items():
        x, y = _weight_of(a, left), _weight_of(b, right)
        if x is not None and y is not None and x not in pairs and y not in taken:
            pairs[x] = y
            taken.add(y)
    return pairs


def _weight_of(node: ir.Node, constants: dict[str, Stored]) -> str | None:
    """Return the largest constant that a node reads directly or through one other node."""
    values = [v for v in node.inputs if v is not None]
    behind = [v.producer() for v in values]
    values += [w for p in behind if p is not None for w in p.inputs if w is not None]
    found = [c for v in values if (c := constants.get(v.name or "")) and c.tensor.size >= _FROM]
    return max(found, key=lambda c: c.tensor.size).name if found else None
