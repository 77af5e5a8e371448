"""Which tensors of two models stand for the same, and how each becomes comparable floats.

`quantkit.evaluate.correspondence` matches a quantized model with its float model. Here any two may be compared, so the
one that is quantized less is taken for the float one, and what was done to *its* tensors is undone too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from quantkit.diff.names import base_name
from quantkit.evaluate.correspondence import Match, correspondence
from quantkit.evaluate.quantizer import made_by
from quantkit.evaluate.structure import Structure
from quantkit.graph.factors import read_divisors

__all__ = ["Pairs", "TensorPair", "tensor_pairs"]

_QUANTIZED: tuple[str, ...] = ("QLinear", "QGemm", "QuantizeLinear", "DequantizeLinear")
_QUANTIZED += ("DynamicQuantize", "MatMulInteger", "ConvInteger", "MatMulNBits")


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
    if _conversions(a) > _conversions(b):
        found = _pairs(b, a)
        return Pairs(pairs=tuple(TensorPair(a=p.b, b=p.a) for p in found.pairs), note=found.note)
    return _pairs(a, b)


def _conversions(model: Structure) -> int:
    return sum(node.op_type.startswith(_QUANTIZED) for node in model.nodes)


def _pairs(reference: Structure, candidate: Structure) -> Pairs:
    found = correspondence(reference, candidate)
    divisors = read_divisors(reference.properties) or {}
    pairs = [
        TensorPair(
            a=Match(
                tensor=match.tensor, candidate=match.tensor, divisor=divisors.get(match.tensor)
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
