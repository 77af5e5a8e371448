"""Layers of a candidate: what lies between one tensor that stands for a float tensor and those before it.

The region of a tensor y goes back from y to the nearest matched tensors (`quantkit.evaluate.match.correspondence`). Fed with
float's values there, it is the layer alone: its weights, and the quantization of what it reads. Regions without
any quantization are no layers. A tensor that is only moved since it was quantized (Reshape, MaxPool, ...) ends no region.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from quantkit.evaluate.match import ModelPair, Survey
from quantkit.evaluate.match.correspondence import Match, Quantizer, quantizer_of
from quantkit.model.ops import fact_of
from quantkit.model.ops.float_ops import CLIPS, SEEN_THROUGH
from quantkit.model.ops.integer_ops import CONVERSIONS, is_quantized
from quantkit.runtime.pieces import Structure

_NARROW = frozenset(
    {
        TensorProto.INT4,
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.UINT4,
        TensorProto.UINT8,
        TensorProto.UINT16,
    }
)
_SEARCHED = 64  # float nodes that one region of the candidate can replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A tensor that a layer reads as integers.

    Attributes:
        tensor: Its name in the candidate.
        meant: The float tensor whose values the integers hold: behind a Relu, where the quantization does that.
        quantizer: How it is quantized.
    """

    tensor: str
    meant: str
    quantizer: Quantizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A layer.

    Attributes:
        makes: What comes out of it; several for an LSTM.
        boundary: What is fed, by the candidate's names.
        reads: What of it is quantized, as far as that is written in the graph.
        rounds: How its first result is quantized, if that is part of it.
        node: The float node, by its index: the product if there is one, else what makes the first tensor.
    """

    makes: tuple[Match, ...]
    boundary: tuple[str, ...]
    reads: tuple[Read, ...]
    rounds: Quantizer | None
    node: int


@dataclass(frozen=True, slots=True)
class _Since:
    """What happened to a tensor since the nearest matched ones."""

    boundary: frozenset[str] = frozenset()
    reads: frozenset[Read] = frozenset()
    quantized: bool = False
    computed: bool = False

    def __or__(self, other: "_Since") -> "_Since":
        if other in (_NOTHING, self):
            return self
        return _Since(
            self.boundary | other.boundary,
            self.reads | other.reads,
            self.quantized or other.quantized,
            self.computed or other.computed,
        )


_NOTHING = _Since()


def _regions_of(
    reference: Structure, candidate: Structure, matches: Mapping[str, Match]
) -> tuple[Region, ...]:
    """Return the quantized layers in the candidate's order. Linear in the number of nodes.

    Args:
        reference: The float model.
        candidate: The quantized model.
        matches: The candidate's tensors that have one in the float model.
    """
    walk = _Walk(reference, candidate, matches)
    found = []
    for names in walk.ends():
        makes = tuple(matches[name] for name in names)
        since = walk.since[names[0]]
        fed = {matches[b].tensor for b in since.boundary}
        if fed.isdisjoint(m.tensor for m in makes) and makes[0].tensor in reference.maker:
            found.append(
                Region(
                    makes=makes,
                    boundary=tuple(sorted(since.boundary)),
                    reads=tuple(sorted(since.reads, key=lambda r: r.tensor)),
                    rounds=makes[0].quantizer or _rounds(candidate, names[0]),
                    node=_node(reference, makes[0].tensor, fed),
                )
            )
    return tuple(found)


class _Walk:
    """One pass over the candidate's nodes."""

    def __init__(
        self, reference: Structure, candidate: Structure, matches: Mapping[str, Match]
    ) -> None:
        self.reference = reference
        self.candidate = candidate
        self.matches = dict(matches)
        self.since: dict[str, _Since] = {}
        self._standing = {match.tensor for match in matches.values()}

    def ends(self) -> Iterator[list[str]]:
        """Yield for each node that ends a layer the matched tensors that it makes."""
        for index, node in enumerate(self.candidate.nodes):
            since = self._of(index, node)
            ended = []
            for name in node.output:
                self.since[name] = since
                if name not in self.matches or not since.quantized:
                    continue
                if since.computed or name in self.candidate.outputs:
                    ended.append(name)
                else:
                    del self.matches[name]
            if ended:
                yield ended

    def _of(self, index: int, node: onnx.NodeProto) -> _Since:
        since = _NOTHING
        active = False
        for name in self.candidate.reads[index]:
            active = active or name in self.candidate.activations
            since |= self._read(name)
        quantizer = quantizer_of(self.candidate, node)
        if quantizer is not None and node.op_type != "DequantizeLinear" and active:
            source = self._source(node.input[0])
            if source:
                since |= _Since(reads=frozenset({self._as_integers(source, quantizer)}))
        quantized = is_quantized(node.op_type)
        computed = active and not (node.op_type in CONVERSIONS | {"Cast"} or self._moves(node))
        return since | _Since(quantized=quantized, computed=computed)

    def _read(self, name: str) -> _Since:
        match = self.matches.get(name)
        if match is not None:
            reads = frozenset[Read]()
            if match.quantizer is not None:
                reads = frozenset({self._as_integers(name, match.quantizer)})
            return _Since(boundary=frozenset({name}), reads=reads)
        tensor = self.candidate.initializers.get(name)
        if tensor is not None:
            return _Since(quantized=tensor.data_type in _NARROW and not self._is_old(tensor))
        return self.since.get(name, _NOTHING)

    def _as_integers(self, name: str, quantizer: Quantizer) -> Read:
        meant = self.matches[name].tensor
        reader = self.reference.only_reader(meant)
        while reader is not None and reader.op_type in CLIPS:
            if reader.output[0] in self._standing:
                break  # it is still there
            meant = reader.output[0]
            reader = self.reference.only_reader(meant)
        return Read(tensor=name, meant=meant, quantizer=quantizer)

    def _is_old(self, tensor: TensorProto) -> bool:
        before = self.reference.initializers.get(tensor.name)
        return before is not None and before.data_type == tensor.data_type

    def _moves(self, node: onnx.NodeProto) -> bool:
        """Say whether a node only moves what it reads; a Gather from a table looks up weights.

        A Max of one input is a copy that keeps nodes apart.
        """
        return node.op_type in SEEN_THROUGH and node.input[0] in self.candidate.activations

    def _source(self, name: str) -> str:
        """Return the matched tensor whose values these are, looking through nodes that only move them; "" if none."""
        while name not in self.matches:
            node = self.candidate.maker_of(name)
            if node is None or not self._moves(node):
                return ""
            name = node.input[0]
        return name


def _rounds(candidate: Structure, name: str) -> Quantizer | None:
    """Return how a float tensor was quantized that comes straight out of integers."""
    node = candidate.maker_of(name)
    restored = node is not None and node.op_type == "DequantizeLinear"
    return quantizer_of(candidate, node) if restored and node is not None else None


def _node(reference: Structure, tensor: str, fed: set[str]) -> int:
    """Return the product nearest before a tensor, not before what is fed; without one, what makes the tensor."""
    first = reference.maker[tensor]
    queue, seen = [first], {first}
    for index in queue:
        node = reference.nodes[index]
        if _is_product(reference, node):
            return index
        if len(seen) > _SEARCHED:
            break
        for name in node.input:
            before = reference.maker.get(name)
            if name not in fed and before is not None and before not in seen:
                seen.add(before)
                queue.append(before)
    return first


def _is_product(reference: Structure, node: onnx.NodeProto) -> bool:
    table = node.op_type != "Gather" or node.input[0] not in reference.activations
    return table and fact_of(node.domain, node.op_type) is not None


_ROUNDS = 4  # of leaving out tensors whose shapes differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The layers of a candidate.

    Attributes:
        regions: In the candidate's order.
        theirs: What the float model's tensors are.
        ours: What the candidate's are.
        dropped: How many tensors have the name of a float tensor but another shape or type.
    """

    regions: tuple[Region, ...]
    theirs: Survey
    ours: Survey
    dropped: int


def find_layers(pair: ModelPair, feeds: Mapping[str, NDArray[Any]]) -> Found:
    """Find the layers between tensors that have the same shape in both models.

    Args:
        pair: The float model and the candidate.
        feeds: One sample.
    """
    reference = pair.a.structure
    left, dropped = dict(pair.tensors.matches), 0
    for _ in range(_ROUNDS):
        regions = _regions_of(reference, pair.b.structure, left)
        used = {name for region in regions for name in _names(region)}
        ours = pair.b.survey(used, feeds)
        meant = [read.meant for region in regions for read in region.reads]
        wanted = (*(left[name].tensor for name in used), *meant, *reference.outputs)
        theirs = pair.a.survey(wanted, feeds)
        wrong = [name for name in used if not same_form(left[name], theirs, ours)]
        if not wrong:
            return Found(regions=regions, theirs=theirs, ours=ours, dropped=dropped)
        dropped += len(wrong)
        left = {name: match for name, match in left.items() if name not in wrong}
    return Found(regions=(), theirs=theirs, ours=ours, dropped=dropped)


def _names(region: Region) -> Iterable[str]:
    return (*region.boundary, *(match.candidate for match in region.makes))


def same_form(match: Match, theirs: Survey, ours: Survey) -> bool:
    """Say whether the two tensors of a match have one shape, and types that can be compared.

    Args:
        match: A tensor of the candidate and its float one.
        theirs: What the float model's tensors are.
        ours: What the candidate's are.
    """
    shape = theirs.shapes.get(match.tensor)
    if shape is None or shape != ours.shapes.get(match.candidate):
        return False
    if match.tensor not in theirs.kinds or match.candidate not in ours.kinds:
        return False
    if match.quantizer is not None or theirs.kinds[match.tensor].is_float:
        floats = ours.kinds[match.candidate].is_float
        return theirs.kinds[match.tensor].is_float and floats == (match.quantizer is None)
    return theirs.kinds[match.tensor].dtype == ours.kinds[match.candidate].dtype
