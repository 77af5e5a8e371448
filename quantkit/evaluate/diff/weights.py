"""Weights of two models: equal by their bytes, else how far the floats that they stand for are apart.

What a quantizer does to weights on purpose is looked for, and said:

* A BatchNormalization that only one of the models has is taken into the Conv before it, ``w_c g_c / sqrt(v_c + e)`` for
  channel c.
* Where channels were equalized or smoothed, each channel of one axis is multiplied by a factor. Factors that the model
  notes are undone (`quantkit.evaluate.diff.stored`). If the two still look unlike, the best factors
  ``f_c = <p_c, q_c> / <p_c, p_c>`` are fitted, and it is said how alike the two are then. The figures stay those without factors: a wrong scale looks just like it.
"""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.evaluate.diff.stored import Factors, Floats, Stored, array_of, stored_constants
from quantkit.evaluate.match import Nodes, base_name
from quantkit.numerics.affine import sqnr

_GAINS, _VARIANCES = 1, 4  # inputs of BatchNormalization
_UNLIKE_DB = 25.0  # 8 bits per tensor, rounded with care for the output, are above it
_EXPLAINED_DB = 6.0  # by so much must factors help to be the explanation
_STEPS = 4  # Cast, Sub, Mul and the Conv itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """What is between two weights p and q.

    Attributes:
        sqnr_db: ``10 log10(sum p^2 / sum (p - q)^2)``; None: equal, or not comparable.
        largest: ``max |p - q|``; None: not comparable.
        mean: ``mean |p - q|``; None: not comparable.
        note: What was taken into account, or why they are not comparable.
    """

    sqnr_db: float | None = None
    largest: float | None = None
    mean: float | None = None
    note: str = ""


def _same_bytes(x: Stored, y: Stored) -> bool:
    """Say whether two weights are stored alike and mean the same."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.tensor.dtype is ir.DataType.STRING:
        return bool((x.tensor.numpy() == y.tensor.numpy()).all())
    return _same_scaling(x, y) and x.tensor.tobytes() == y.tensor.tobytes()


def _same_scaling(x: Stored, y: Stored) -> bool:
    if x.scaling is None or y.scaling is None:
        return x.scaling is y.scaling
    p, q = x.scaling, y.scaling
    return _alike(p.scale(), q.scale()) and _alike(_zero(p.zero), _zero(q.zero))


def _zero(value: ir.Value | None) -> NDArray[Any]:
    return np.zeros(1, np.float32) if value is None else array_of(value)


def _alike(p: NDArray[Any], q: NDArray[Any]) -> bool:
    """Say whether two parameters are equal; one number stands for as many as the other has."""
    return (
        bool((p.ravel() == q.ravel()).all()) if p.size == q.size or 1 in (p.size, q.size) else False
    )


def distance(
    x: Stored, y: Stored, kept: Collection[ir.Node], factors: tuple[Factors, Factors]
) -> Distance:
    """Compare two weights.

    Args:
        x: The first's.
        y: The second's.
        kept: The nodes that both models have.
        factors: What each model says about its channels.
    """
    # The order is that of what a quantizer did, undone from the outside in: a BatchNormalization is folded before
    # channels are equalized, so factors are taken off what holds it already. Only a BatchNormalization that one model
    # alone has is folded in: of one that both kept the weights are compared as they are. A transposed matrix is tried
    # for matrices only: of a Conv's weight another order of axes is another weight. Without a known scale integers
    # have no distance, and a figure would be made up.
    if not _is_number(x) or not _is_number(y):
        known = x.tensor.dtype.is_integer() and y.tensor.dtype.is_integer()
        return Distance(note="other integers" if known else "integers of unknown scale")
    p, notes_p = _as_before(x, kept, factors[0])
    q, notes_q = _as_before(y, kept, factors[1])
    notes = sorted({*notes_p, *notes_q})
    if p.shape != q.shape and (p.ndim != 2 or p.T.shape != q.shape):
        return Distance(note="of another shape")
    if not (np.isfinite(p).all() and np.isfinite(q).all()):
        return Distance(note="values that are not finite")
    if _is_transposed(p, q):
        p = p.T
        notes.append("transposed")
    db = sqnr(p, q)
    notes += [text] if db < _UNLIKE_DB and (text := _explained(p, q, db)) else []
    error = np.abs(p - q)
    return Distance(
        sqnr_db=db if isfinite(db) else None,
        largest=float(error.max(initial=0)),
        mean=float(error.mean(dtype=np.float64)) if error.size else 0.0,
        note=", ".join(notes),
    )


def _as_before(
    constant: Stored, kept: Collection[ir.Node], factors: Factors
) -> tuple[Floats, list[str]]:
    """Return the floats of a weight with what a quantizer did to it on purpose undone, and what that was."""
    weight, folded = _with_normalization(constant.floats(), constant, kept)
    weight, undone = factors.undone(weight, constant)
    found = {"BN folded in": folded, "equalization undone": undone}
    return weight, [note for note, happened in found.items() if happened]


def _is_transposed(p: Floats, q: Floats) -> bool:
    """Say whether a matrix is the transpose of the other, by its shape, or, if it is square, by its values."""
    if p.ndim != 2 or p.shape != p.T.shape:
        return p.shape != q.shape
    db = sqnr(p, q)
    return db < _UNLIKE_DB and sqnr(p.T, q) > db + _EXPLAINED_DB


def _explained(p: Floats, q: Floats, db: float) -> str:
    """Say how alike the two are once the channels of one axis are rescaled; "" if that does not explain much."""
    found = [(sqnr(_rescaled_channels(p, q, axis), q), axis) for axis in range(min(p.ndim, 2))]
    best, axis = max(found, key=lambda f: f[0], default=(db, 0))
    if best <= db + _EXPLAINED_DB:
        return ""
    return f"{f'{best:.1f} dB' if isfinite(best) else 'equal'} once axis {axis} is rescaled"


def _rescaled_channels(p: Floats, q: Floats, axis: int) -> Floats:
    """Return p with each channel along `axis` multiplied by the factor that brings it closest to q."""
    others = tuple(i for i in range(p.ndim) if i != axis)
    power = (p * p).sum(others, keepdims=True)
    factor = (p * q).sum(others, keepdims=True) / np.where(power > 0, power, 1)
    return np.asarray(p * factor, np.float32)


def _is_number(constant: Stored) -> bool:
    """Say whether a constant is floats, or integers whose scale is known."""
    dtype = constant.tensor.dtype
    return dtype.is_floating_point() or constant.scaling is not None


def _with_normalization(
    weight: Floats, constant: Stored, kept: Collection[ir.Node]
) -> tuple[Floats, bool]:
    """Return a Conv's weight times the BatchNormalization behind it, if the other model has none there."""
    normalization = _normalization_behind(constant.value)
    if normalization is None or normalization in kept:
        return weight, False
    gains, variances = (normalization.inputs[i] for i in (_GAINS, _VARIANCES))
    if gains is None or variances is None or None in (gains.const_value, variances.const_value):
        return weight, False
    epsilon = normalization.attributes.get("epsilon")
    e = np.float32(1e-5 if epsilon is None else epsilon.as_float())
    factor = array_of(gains) / np.sqrt(array_of(variances) + e)
    if factor.shape != weight.shape[:1]:
        return weight, False
    shaped = factor.reshape([-1] + [1] * (weight.ndim - 1))
    return np.asarray(weight * shaped, np.float32), True


def _normalization_behind(value: ir.Value) -> ir.Node | None:
    """Follow a weight to its Conv, through whatever restores it, and on to the only node that reads the Conv."""
    for _ in range(_STEPS):
        readers = [use.node for use in value.uses()]
        if len(readers) != 1 or not readers[0].outputs:
            return None
        value = readers[0].outputs[0]
        if readers[0].op_type == "Conv":
            after = [use.node for use in value.uses()]
            alone = len(after) == 1 and after[0].op_type == "BatchNormalization"
            return after[0] if alone else None
    return None


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
    different = [(x, y) for x, y in matched if not _same_bytes(x, y)]
    factors = Factors(a), Factors(b)
    changes = [
        WeightChange(a=_ref(x), b=_ref(y), **asdict(distance(x, y, kept, factors)))
        for x, y in different
    ]
    known = set(pairs.values())
    return WeightsDiff(
        equal=len(matched) - len(different),
        changed=tuple(sorted(changes, key=_rank)),
        only_a=tuple(_refs(c for n, c in left.items() if n not in pairs)),
        only_b=tuple(_refs(c for n, c in right.items() if n not in known)),
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
        nbytes=constant.nbytes,
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
