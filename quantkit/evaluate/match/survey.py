"""What the tensors of a model are, found by running it once: types and shapes, no values.

And how much of a tensor is noise, as sums of squares over samples:

    noise = sum |actual - expected|^2 / sum |expected|^2        SQNR = -10 log10 noise
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.evaluate.match.correspondence import Match
from quantkit.evaluate.match.regions import Region, regions_of
from quantkit.numerics.decibels import decibels
from quantkit.runtime.pieces import Kind, Structure, part_of, types_of

__all__ = ["Noise", "Survey", "find_layers", "same_form", "sqnr_of", "survey"]

Array = NDArray[Any]
_SILENT = 1e-30  # signal power below which there is none
_LARGEST = float(np.finfo(np.float32).max)


def sqnr_of(noise: float) -> float | None:
    """Return the SQNR in dB of noise relative to the signal; None if there is no noise."""
    return -decibels(noise) if noise > 0 else None


@dataclass(slots=True)
class Noise:
    """The noise of one tensor, sample by sample.

    What is no number in the expected tensor (masks of -inf) is not looked at; where only the actual one is none,
    that is an error of the largest number. Samples whose shapes differ cannot be compared: then `comparable` is False.
    """

    error: float = 0.0
    signal: float = 0.0
    shared: float = 0.0
    comparable: bool = True

    def add(self, expected: Array, actual: Array) -> None:
        """Count one sample."""
        if expected.shape != actual.shape:
            self.comparable = False
            return
        with np.errstate(all="ignore"):
            signal, difference = expected.reshape(-1), (actual - expected).reshape(-1)
            powers = _powers(signal, difference)
            if not all(isfinite(p) for p in powers):
                powers = _finite_powers(signal, difference)
        self.signal += powers[0]
        self.error += powers[1]
        self.shared += powers[2]

    @property
    def ratio(self) -> float:
        """Noise power over signal power."""
        return self.error / max(self.signal, _SILENT)

    @property
    def gain(self) -> float:
        """By which factor the expected tensor is in the actual one: ``<actual, expected> / <expected, expected>``."""
        return 1 + self.shared / max(self.signal, _SILENT)

    @property
    def db(self) -> float | None:
        """SQNR; None if there is no noise, or nothing to compare."""
        return sqnr_of(self.ratio) if self.comparable else None


def _powers(signal: Array, difference: Array) -> tuple[float, float, float]:
    return float(signal @ signal), float(difference @ difference), float(signal @ difference)


def _finite_powers(signal: Array, difference: Array) -> tuple[float, float, float]:
    """Return the powers without what is no number, in float64, where squares of float32 do not overflow."""
    seen = np.isfinite(signal)
    errors = np.nan_to_num(difference[seen].astype(np.float64), nan=_LARGEST, posinf=_LARGEST)
    return _powers(signal[seen].astype(np.float64), errors)


Feeds = Mapping[str, NDArray[Any]]
_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Types of tensors, and their shapes on one sample. What is no plain tensor is not in it."""

    kinds: Mapping[str, Kind]
    shapes: Mapping[str, tuple[int, ...]]

    def nbytes(self, tensor: str) -> int:
        """Return how much memory a tensor takes."""
        return int(prod(self.shapes[tensor]) * self.kinds[tensor].dtype.itemsize)


def survey(model: Structure, tensors: Iterable[str], feeds: Feeds) -> Survey:
    """Look at tensors that nodes make, and at the inputs.

    Args:
        model: The model, which is run once with optimization off.
        tensors: Those to look at.
        feeds: One sample.
    """
    made = [name for name in dict.fromkeys(tensors) if name in model.maker]
    types = types_of(part_of(model, made, {}))
    shapes = dict(_shapes(model, types, feeds))
    inputs = {name: tuple(array.shape) for name, array in feeds.items() if name in model.inputs}
    kinds = {
        i.name: Kind(ir.DataType(i.type.tensor_type.elem_type), len(inputs[i.name]))
        for i in model.proto.graph.input
        if i.name in inputs
    }
    kinds |= {name: Kind(types[name], len(shape)) for name, shape in shapes.items()}
    return Survey(kinds=kinds, shapes=shapes | inputs)


def _shapes(
    model: Structure, tensors: Iterable[str], feeds: Feeds
) -> Iterator[tuple[str, tuple[int, ...]]]:
    names = {name: f"shape/{name}" for name in tensors}
    proto = onnx.ModelProto(ir_version=model.proto.ir_version)
    proto.opset_import.extend(model.proto.opset_import)
    proto.graph.initializer.extend(model.proto.graph.initializer)
    proto.graph.input.extend(model.proto.graph.input)
    for node in model.nodes:
        proto.graph.node.append(node)
        # Next to what is made, so that its memory is free again at once.
        for name in node.output:
            if name in names:
                proto.graph.node.add(op_type="Shape", input=[name], output=[names[name]])
    found = part_of(replace(model, proto=proto), list(names.values()), {}).run(feeds)
    for name, shape in names.items():
        yield name, tuple(int(extent) for extent in found[shape])


def find_layers(
    reference: Structure, candidate: Structure, matches: Mapping[str, Match], feeds: Feeds
) -> tuple[tuple[Region, ...], Survey, Survey, int]:
    """Find the layers between tensors that have the same shape in both models.

    Return them, what the tensors of both models are, and how many tensors have the same name but another shape.

    Args:
        reference: The float model.
        candidate: The quantized model.
        matches: The candidate's tensors that have one in the float model, by name.
        feeds: One sample.
    """
    left, dropped = dict(matches), 0
    for _ in range(_ROUNDS):
        regions = regions_of(reference, candidate, left)
        used = {name for region in regions for name in _names(region)}
        ours = survey(candidate, used, feeds)
        meant = [read.meant for region in regions for read in region.reads]
        wanted = (*(left[name].tensor for name in used), *meant, *reference.outputs)
        theirs = survey(reference, wanted, feeds)
        wrong = [name for name in used if not same_form(left[name], theirs, ours)]
        if not wrong:
            return regions, theirs, ours, dropped
        dropped += len(wrong)
        left = {name: match for name, match in left.items() if name not in wrong}
    return (), theirs, ours, dropped


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
