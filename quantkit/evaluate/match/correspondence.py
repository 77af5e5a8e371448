"""Which tensor of a candidate stands for which tensor of the float model.

Quantizers keep the names of tensors. What a name means may still differ:

- a Relu that the quantization of its result does is gone, and its name is on what it read (or its reader's name on
  what it made): told by what makes the tensor;
- in QLinear models the tensor is integers, named ``..._quantized``;
- channels may be divided by factors that the next weights hold: noted in the model (`quantkit.model.graph.channel_factors`).

A `Quantizer` is how an activation is quantized in a graph: scale, zero point and type, and what that does to values.

    q = clip(rint(x / s) + z, qmin, qmax)        x' = (q - z) * s
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.channel_factors import Divisor, read_divisors
from quantkit.model.graph.edit import constant
from quantkit.model.ops.float_ops import CLIPS, ENDS_IN_ACTIVATION
from quantkit.model.ops.integer_ops import INTEGER_OPS, Role
from quantkit.runtime.pieces import Structure

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Quantizer:
    """One scale and zero point for a whole activation; `scale` None: chosen at run time from its values, in uint8."""

    scale: float | None
    zero_point: int = 0
    dtype: str = "uint8"

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the largest integer."""
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)

    @property
    def bits(self) -> int:
        """How many bits its integers have."""
        return 8 * np.dtype(self.dtype).itemsize

    @property
    def clips_below_zero(self) -> bool:
        """Whether no negative value survives."""
        return self.scale is not None and self.zero_point == self.ends[0]

    def integers(self, array: Array) -> Array:
        """Return q, as QuantizeLinear gives it."""
        scale, zero = self._numbers(array)
        q = np.rint(array / np.float32(scale)) + zero
        return np.asarray(np.clip(q, *self.ends).astype(self.dtype))

    def floats(self, integers: Array) -> Array:
        """Return ``(q - z) * s``."""
        assert self.scale is not None  # noqa: S101 - only calibrated integers are kept
        shifted = integers.astype(np.float32) - np.float32(self.zero_point)
        return np.asarray(shifted * np.float32(self.scale))

    def both(self, array: Array) -> Array:
        """Return the values that come back from the integers."""
        scale, zero = self._numbers(array)
        q = np.clip(np.rint(array / np.float32(scale)) + zero, *self.ends)
        return np.asarray(((q - zero) * scale).astype(np.float32))

    def needed(self, low: float, high: float) -> float:
        """Return the least scale at which, with this zero point, nothing in [low, high] is clipped."""
        qmin, qmax = self.ends
        above = high / (qmax - self.zero_point) if qmax > self.zero_point else 0.0
        below = low / (qmin - self.zero_point) if qmin < self.zero_point else 0.0
        return max(above, below, 0.0)

    def _numbers(self, array: Array) -> tuple[float, int]:
        if self.scale is not None:
            return self.scale, self.zero_point
        low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
        scale = (high - low) / 255 or 1.0
        return scale, int(np.clip(np.rint(-low / scale), 0, 255))


_DYNAMIC = Quantizer(None)


def quantizer_of(model: Structure, node: onnx.NodeProto) -> Quantizer | None:
    """Return what a QuantizeLinear, DequantizeLinear or DynamicQuantizeLinear does, if it is one and has one scale."""
    if node.op_type == "DynamicQuantizeLinear":
        return _DYNAMIC
    row = INTEGER_OPS.get(node.op_type)
    if row is None or row.role is not Role.CONVERTS:
        return None
    slots = row.result or (row.reads[0].scale, row.reads[0].zero_point)
    return _quantizer_at(model, node, slots)


def made_by(model: Structure, node: onnx.NodeProto) -> Quantizer | None:
    """Return scale and zero point of the integers that a QLinear operator makes; None for other nodes."""
    row = INTEGER_OPS.get(node.op_type)
    if row is None or row.result is None or row.role is Role.CONVERTS:
        return None
    return _quantizer_at(model, node, row.result)


_Slots = tuple[int | None, int | None]  # of scale and zero point


def _quantizer_at(model: Structure, node: onnx.NodeProto, slots: _Slots) -> Quantizer | None:
    scale, zero = (
        model.constant(node.input[i])
        if i is not None and i < len(node.input) and node.input[i]
        else None
        for i in slots
    )
    return _quantizer(scale, zero)


def quantizer_in(node: ir.Node, slots: _Slots) -> Quantizer | None:
    """Return the constant scale and zero point at two inputs of a node, one for a whole tensor; None for anything else."""
    values = (node.inputs[i] if i is not None and i < len(node.inputs) else None for i in slots)
    scale, zero = (None if t is None else t.numpy() for t in map(constant, values))
    return _quantizer(scale, zero)


def _quantizer(scale: Array | None, zero: Array | None) -> Quantizer | None:
    if scale is None or scale.size != 1:
        return None
    if zero is None:
        return Quantizer(float(scale.reshape(-1)[0]))
    if zero.dtype.kind not in "iu":
        return None
    return Quantizer(float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]), zero.dtype.name)


# Behind them a Relu has been done, whether or not there is one.
_DONE = CLIPS | ENDS_IN_ACTIVATION | {"DequantizeLinear"}
_SUFFIXES = ("_quantized_clipped", "_quantized")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A tensor of the candidate, and the tensor of the float model that it stands for.

    Invariant: without quantization error ``restored(candidate's) = float's``.

    Attributes:
        tensor: Its name in the float model.
        candidate: Its name in the candidate.
        divisor: The candidate's channels are float's, divided by this.
        quantizer: The candidate's are integers of this scale and zero point.
    """

    tensor: str
    candidate: str
    divisor: Divisor | None = None
    quantizer: Quantizer | None = None

    def restored(self, array: Array) -> Array:
        """Turn what the candidate holds into float's units."""
        if self.quantizer is not None:
            array = self.quantizer.floats(array)
        if self.divisor is not None:
            array = array * self.divisor.shaped(array.ndim)
        return array

    def divided(self, array: Array) -> Array:
        """Turn float's values into what the candidate would hold before it quantizes."""
        return array if self.divisor is None else array / self.divisor.shaped(array.ndim)

    def given(self, array: Array) -> Array:
        """Turn float's values into what the candidate would hold."""
        array = self.divided(array)
        return array if self.quantizer is None else self.quantizer.integers(array)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correspondence:
    """Matches by the candidate's name, in its order; and why there are none, if that is so."""

    matches: Mapping[str, Match]
    note: str = ""


def correspondence(reference: Structure, candidate: Structure) -> Correspondence:
    """Match the activations of the main graphs. Linear in the number of nodes.

    A tensor of the same name that is of another type or shape is matched too: whoever runs the models will see.
    """
    divisors = read_divisors(candidate.properties)
    if divisors is None and candidate.properties.get("quantkit", "").endswith(" static"):
        return Correspondence(
            matches={},
            note="The candidate does not say by which factors its channels were equalized; quantize it again.",
        )
    divisors = divisors or {}
    found = {
        name: Match(tensor=name, candidate=name)
        for name in candidate.inputs
        if name in reference.inputs
    }
    for match in _same_named(reference, candidate):
        divisor = divisors.get(match.candidate) or divisors.get(match.tensor)
        found[match.candidate] = replace(match, divisor=divisor)
    return Correspondence(matches=found | _inserted(candidate, found, divisors))


def _same_named(reference: Structure, candidate: Structure) -> Iterator[Match]:
    activations = reference.activations
    for node in candidate.nodes:
        quantizer = made_by(candidate, node)
        for name in node.output:
            if not name or name not in candidate.activations:
                continue
            if name in activations and quantizer is None:
                meant = _before_clips(reference, candidate, name, node.op_type)
                yield Match(tensor=meant, candidate=name)
            elif quantizer is not None:
                stem = _stem(name)
                if stem in activations:
                    meant = _around_clips(reference, stem, quantizer)
                    yield Match(tensor=meant, candidate=name, quantizer=quantizer)


def _stem(name: str) -> str:
    """Return the name of the float tensor that an integer tensor is named after."""
    base, _, number = name.rpartition("_")
    if number.isdigit() and base.endswith(_SUFFIXES):
        name = base
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return ""


def _before_clips(reference: Structure, candidate: Structure, name: str, op_type: str) -> str:
    """Return what a float tensor stands for: what a Relu reads, if the Relu of that name is gone."""
    if op_type in _DONE:
        return name
    maker = reference.maker_of(name)
    while maker is not None and maker.op_type in CLIPS and not maker.domain:
        if maker.input[0] in candidate.maker:
            break  # both are there: neither is gone
        name = maker.input[0]
        maker = reference.maker_of(name)
    return name


def _around_clips(reference: Structure, name: str, quantizer: Quantizer) -> str:
    """Return what integers stand for: of a Relu what it makes if no integer is negative, else what it reads."""
    maker = reference.maker_of(name)
    if maker is not None and maker.op_type in CLIPS:
        return name if quantizer.clips_below_zero else maker.input[0]
    reader = reference.only_reader(name)
    while reader is not None and reader.op_type in CLIPS and quantizer.clips_below_zero:
        name = reader.output[0]
        reader = reference.only_reader(name)
    return name


def _inserted(
    candidate: Structure, found: Mapping[str, Match], divisors: Mapping[str, Divisor]
) -> dict[str, Match]:
    """Match the quotients that smoothing put in front of weights: ``x_smooth = x / s``."""
    extra = {}
    for name, divisor in divisors.items():
        maker = candidate.maker_of(name)
        if name in found or maker is None or maker.op_type != "Mul" or maker.input[0] not in found:
            continue
        source = found[maker.input[0]]
        if source.divisor is None and source.quantizer is None:
            extra[name] = Match(tensor=source.tensor, candidate=name, divisor=divisor)
    return extra
