"""The errors of a group of layers, sample by sample.

Four things are run on each sample: the float model, the candidate, the candidate's layers each on float's values, and
the float layers each on float's values as they come back from the candidate's integers. With y float's tensor, y_l the
layer alone and y_x the float layer on quantized inputs:

    local = y_l - y        by what it reads = y_x - y        by its weights = y_l - y_x

Then each y_l takes the place of y in the float model, and what comes out at the end is compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.evaluate.layers.suffixes import Suffix, suffixes_of
from quantkit.match.correspondence import Match
from quantkit.match.noise import Noise
from quantkit.match.parts import Part, Parts, part_of, parts_of
from quantkit.match.quantizer import Quantizer
from quantkit.match.regions import Read, Region
from quantkit.match.structure import Structure
from quantkit.match.survey import Survey

__all__ = ["Errors", "Models", "Seen", "measure"]

Array = NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The two models, what stands for what, and what their tensors are."""

    reference: Structure
    candidate: Structure
    matches: Mapping[str, Match]
    theirs: Survey  # of the float model
    ours: Survey  # of the candidate

    @property
    def outputs(self) -> tuple[str, ...]:
        """The float model's outputs that hold floats."""
        kinds = self.theirs.kinds
        return tuple(o for o in self.reference.outputs if o in kinds and kinds[o].is_float)


@dataclass(slots=True)
class Seen:
    """The values that are turned into integers: their ends, and how many lie outside the integers' range."""

    low: float = inf
    high: float = -inf
    count: int = 0
    outside: int = 0

    def add(self, array: Array, quantizer: Quantizer) -> None:
        """Count one sample."""
        if not array.size:
            return
        low, high = float(array.min()), float(array.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += array.size
        if quantizer.scale is None:
            return
        ends = [(end - quantizer.zero_point) * quantizer.scale for end in quantizer.ends]
        first, last = ends[0] - quantizer.scale / 2, ends[1] + quantizer.scale / 2
        if low < first or high > last:
            self.outside += int(np.count_nonzero((array < first) | (array > last)))

    @property
    def clipped(self) -> float:
        """The share of values outside of the quantizer's range."""
        return self.outside / self.count if self.count else 0.0


@dataclass(slots=True)
class Errors:
    """What was measured of one layer; `read` and `weights` are None where the two cannot be told apart."""

    region: Region
    local: Noise = field(default_factory=Noise)
    accumulated: Noise = field(default_factory=Noise)
    read: Noise | None = None
    weights: Noise = field(default_factory=Noise)
    seen: dict[Read, Seen] = field(default_factory=dict)
    made: Seen = field(default_factory=Seen)
    alone: dict[str, Noise] = field(default_factory=dict)

    def noise(self, outputs: Sequence[str]) -> float:
        """Return the noise power that the layer alone brings, the mean over the outputs that can be compared."""
        found = [self.alone.get(name, Noise()) for name in outputs]
        ratios = [noise.ratio for noise in found if noise.comparable]
        return sum(ratios) / len(ratios) if ratios else 0.0


def measure(
    models: Models, regions: Sequence[Region], samples: Sequence[Arrays], *, alone: bool = True
) -> list[Errors]:
    """Measure layers that are in graph order; without `alone` nothing is said about the outputs.

    Args:
        models: The two, and which tensors correspond.
        regions: The layers.
        samples: What to run.
        alone: Also find what each layer, alone in integers, does to the outputs: one run of the rest of the model
            per layer.
    """
    work = _Work(models, [Errors(region) for region in regions])
    suffixes: list[Suffix] = []
    if alone:
        layers = [tuple(m.tensor for m in region.makes) for region in regions]
        suffixes = list(suffixes_of(models.reference, layers, work.available(), models.outputs))
    for feeds in samples:
        values = {**feeds, **work.floats.run(feeds)}
        made = work.compare(feeds, values)
        for suffix in suffixes:
            work.replace(suffix, values, made)
    return work.errors


class _Work:
    """The sessions of one group of layers, and what they showed so far."""

    def __init__(self, models: Models, errors: list[Errors]) -> None:
        self.models = models
        self.errors = errors
        regions = [e.region for e in errors]
        made = [m for region in regions for m in region.makes]
        self.fed = {b: models.matches[b] for region in regions for b in region.boundary}
        self.back = self._backs(regions)
        self.taps = dict.fromkeys(
            name
            for name in (
                *(m.tensor for m in made),
                *(m.tensor for m in self.fed.values()),
                *(read.meant for read in self.back.values()),
            )
        )
        reference, candidate = models.reference, models.candidate
        inside = [name for name in self.taps if name in reference.maker]
        self.floats: Part = part_of(reference, inside, {})
        names = [m.candidate for m in made]
        self.whole = part_of(candidate, names, {})
        kinds = models.ours.kinds
        self.layers = parts_of(candidate, names, {b: kinds[b] for b in self.fed})
        self.inputs = self._inputs()

    def available(self) -> dict[str, Any]:
        return {name: self.models.theirs.kinds[name] for name in self.taps}

    def _backs(self, regions: Sequence[Region]) -> dict[str, Read]:
        """Return how each float tensor is quantized, by the first layer that reads it."""
        found: dict[str, Read] = {}
        for region in regions:
            for read in region.reads:
                found.setdefault(read.meant, read)
        return found

    def _inputs(self) -> Parts:
        """Return the float layers that are fed with what comes back from integers.

        A layer that reads one tensor in floats which another reads in integers, or in other integers, is left out.
        """
        matches, outputs = self.models.matches, []
        for error in self.errors:
            region = error.region
            quantized = {read.tensor for read in region.reads}
            alike = all(self._same(self.back[read.meant], read) for read in region.reads)
            rest = {matches[b].tensor for b in region.boundary if b not in quantized}
            if region.reads and alike and rest.isdisjoint(self.back):
                error.read = Noise()
                outputs += [m.tensor for m in region.makes]
        kinds = self.models.theirs.kinds
        raw = {m.tensor for m in self.fed.values()}
        fed = {name: kinds[name] for name in (*raw, *self.back)}
        # A float tensor before a Relu is not read where the integers hold what is behind it.
        return parts_of(self.models.reference, outputs, fed)

    def _same(self, one: Read, other: Read) -> bool:
        divisors = [self.models.matches[r.tensor].divisor for r in (one, other)]
        return one.quantizer == other.quantizer and divisors[0] is divisors[1]

    def compare(self, feeds: Arrays, values: Arrays) -> dict[str, Array]:
        """Count what one sample shows of every layer; return what each makes alone, by float's names."""
        given = {b: self._given(match, values[match.tensor]) for b, match in self.fed.items()}
        local, whole = self.layers.run(feeds, given), self.whole.run(feeds)
        back = {name: self._back(read, values[name]) for name, read in self.back.items()}
        inputs = self.inputs.run(values, back)
        made = {}
        for error in self.errors:
            for match in error.region.makes:
                expected, name = values[match.tensor], match.tensor
                made[name] = match.restored(local[match.candidate]).astype(
                    expected.dtype, copy=False
                )
                error.local.add(expected, made[name])
                error.accumulated.add(expected, match.restored(whole[match.candidate]))
                if error.read is not None:
                    error.read.add(expected, inputs[name])
                    error.weights.add(inputs[name], made[name])
            if error.region.rounds is not None:
                first = error.region.makes[0]
                error.made.add(first.divided(values[first.tensor]), error.region.rounds)
            for read in error.region.reads:
                value = self.models.matches[read.tensor].divided(values[read.meant])
                error.seen.setdefault(read, Seen()).add(value, read.quantizer)
        return made

    def _given(self, match: Match, array: Array) -> Array:
        kind = self.models.ours.kinds[match.candidate]
        return match.given(array).astype(kind.dtype.numpy(), copy=False)

    def _back(self, read: Read, array: Array) -> Array:
        match = self.models.matches[read.tensor]
        back = read.quantizer.both(match.divided(array))
        divisor = match.divisor
        return back if divisor is None else back * divisor.shaped(back.ndim)

    def replace(self, suffix: Suffix, values: Arrays, made: Arrays) -> None:
        """Put what each layer of a run makes in its place, one after the other, and compare the outputs."""
        outputs = suffix.outputs
        expected = suffix.run(values, None, made)
        for layer in suffix.layers:
            alone = self.errors[layer].alone
            for name, one, other in zip(
                outputs, expected, suffix.run(values, layer, made), strict=True
            ):
                alone.setdefault(name, Noise()).add(one, other)
