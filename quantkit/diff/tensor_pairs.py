"""Which tensors of two models stand for the same, and how each becomes comparable floats.

`quantkit.match.correspondence` matches a quantized model with its float model. Here any two may be compared, so the
one that is quantized less is taken for the float one, and what was done to *its* tensors is undone too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from quantkit.graph.channel_factors import read_divisors
from quantkit.match.correspondence import Match, correspondence
from quantkit.match.names import base_name
from quantkit.match.quantizer import made_by
from quantkit.match.structure import Structure
from quantkit.ops.integer_ops import INTEGER_OPS, is_quantized

__all__ = ["Pairs", "TensorPair", "tensor_pairs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPair:
    """A tensor of each model; `Match.restored` of each gives floats that compare."""

    a: Match
    b: Match

    def floats(self, a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return what both stand for."""
        return self.a.restored(a), self.b.restored(b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """All pairs in the order of the model that is quantized more; or why there are none."""

    pairs: tuple[TensorPair, ...]
    note: str = ""


def tensor_pairs(a: Structure, b: Structure) -> Pairs:
    """Match the tensors of two models."""
    if _quantized(a) > _quantized(b):
        found = _pairs(b, a)
        return Pairs(pairs=tuple(TensorPair(a=p.b, b=p.a) for p in found.pairs), note=found.note)
    return _pairs(a, b)


def _quantized(model: Structure) -> tuple[int, int]:
    """Return how far a model is from float: operators on integers first, then anything that quantizes."""
    found = [node.op_type for node in model.nodes if is_quantized(node.op_type)]
    rows = [INTEGER_OPS.get(op_type) for op_type in found]
    integers = sum(row is None or (row.in_integers and not row.dynamic) for row in rows)
    return integers, len(rows) - integers


def _pairs(reference: Structure, candidate: Structure) -> Pairs:
    found = correspondence(reference, candidate)
    divisors = read_divisors(reference.properties) or {}
    pairs = [
        TensorPair(
            a=Match(
                tensor=match.tensor,
                candidate=_as_quantized(reference, match),
                divisor=divisors.get(match.tensor),
            ),
            b=match,
        )
        for match in found.matches.values()
    ]
    pairs += _integers(reference, candidate)
    named = {pair.b.candidate for pair in pairs}
    # What comes back from integers is the tensor that went in, seen twice.
    once = (
        p for p in pairs if (base := base_name(p.b.candidate)) == p.b.candidate or base not in named
    )
    return Pairs(pairs=tuple(once), note=found.note)


def _as_quantized(reference: Structure, match: Match) -> str:
    """Return the tensor that stands beside the candidate's.

    Integers of the candidate are clipped and rounded. Where the reference quantizes that tensor too, what comes back
    from its integers is alike, and the tensor before is not: it may lack a Relu that the quantization does.
    """
    name = match.tensor
    if match.quantizer is None:
        return name
    for op_type in ("QuantizeLinear", "DequantizeLinear"):
        readers = [reference.nodes[i] for i in reference.readers.get(name, [])]
        made = [node.output[0] for node in readers if node.op_type == op_type]
        if not made:
            return match.tensor
        name = made[0]
    return name


def _integers(a: Structure, b: Structure) -> Iterator[TensorPair]:
    """Pair the integers of the same name that operators of both models make."""
    scales = {n: q for node in a.nodes if (q := made_by(a, node)) for n in node.output}
    left, right = (read_divisors(m.properties) or {} for m in (a, b))
    for node in b.nodes:
        quantizer = made_by(b, node)
        for name in node.output:
            if quantizer is not None and name in scales:
                yield TensorPair(
                    a=Match(
                        tensor=name,
                        candidate=name,
                        divisor=left.get(name),
                        quantizer=scales[name],
                    ),
                    b=Match(
                        tensor=name, candidate=name, divisor=right.get(name), quantizer=quantizer
                    ),
                )
