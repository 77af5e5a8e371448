"""The errors of a group of layers, sample by sample.

Four things are run on each sample: the float model, the candidate, the candidate's layers each on float's values, and
the float layers each on float's values as they come back from the candidate's integers. With y float's tensor, y_l the
layer alone and y_x the float layer on quantized inputs:

    local = y_l - y        by what it reads = y_x - y        by its weights = y_l - y_x

Then each y_l takes the place of y in the float model, and what comes out at the end is compared.

What the rest of the float model makes of one tensor that is not what it was is a `Suffix`: the layers, in graph
order, are split into a few runs. For each run there is one session of the float graph behind its first layer, in
which each of its layers' tensors goes through a switch:

    y' = If(select_i) then the tensor that is given, else y

What lies before the run is fed with float's values. So a layer's error costs one run of what is behind it, and the
reference (no switch on) comes from the same session: without an error the difference is exactly zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.evaluate.match.correspondence import Match, Quantizer
from quantkit.evaluate.match.regions import Read, Region
from quantkit.evaluate.match.survey import Noise, Survey
from quantkit.runtime.pieces import (
    Kind,
    Part,
    Parts,
    Structure,
    declared,
    part_of,
    parts_of,
    renamed,
)

__all__ = [
    "Errors",
    "Models",
    "Seen",
    "Suffix",
    "given_as",
    "measure",
    "result_of",
    "switch_of",
    "switched",
]

Array = NDArray[Any]
Arrays = Mapping[str, Array]

_RUNS = 8  # sessions at most
_MEMORY = 512 << 20  # bytes that their weights may take
_BOOL = Kind(ir.DataType.BOOL, 0)


@dataclass(frozen=True, slots=True)
class Suffix:
    """The float model behind a run of layers.

    Attributes:
        layers: Their numbers.
        tensors: The tensors of each.
        part: The session.
        outputs: The outputs of the model that depend on the layers, as the model calls them.
        empty: What is given for tensors that are not switched.
    """

    layers: tuple[int, ...]
    tensors: Mapping[int, tuple[str, ...]]
    part: Part
    outputs: tuple[str, ...]
    empty: Mapping[str, Array]

    def run(
        self, feeds: Mapping[str, Array], layer: int | None, given: Mapping[str, Array]
    ) -> list[Array]:
        """Run with the tensors of one layer replaced by those that are given; with those of none if it is None.

        Args:
            feeds: What the rest of the model reads.
            layer: Whose tensors are replaced; None: nobody's.
            given: The tensors to put there, by name.
        """
        switches = {switch_of(i): np.asarray(i == layer) for i in self.layers}
        chosen = self.tensors[layer] if layer is not None else ()
        replaced = {given_as(name): given[name] for name in chosen}
        return list(self.part.run(feeds, switches, {**self.empty, **replaced}).values())


def _suffixes_of(
    model: Structure,
    layers: Sequence[tuple[str, ...]],
    available: Mapping[str, Kind],
    outputs: Sequence[str],
) -> Iterator[Suffix]:
    """Make the sessions.

    Args:
        model: The float model.
        layers: The tensors of each layer, in graph order.
        available: All tensors whose values in the float model will be given, the layers' own among them.
        outputs: The outputs to look at.
    """
    # Each layer's own suffix (what the model computes behind it) would be the cheapest run and a session per layer;
    # one session for all would run the whole model for each layer. Between the two: as many sessions as fit into
    # memory, each for a run of neighbouring layers, beginning where the first of them ends. What lies before is fed
    # from the float run, which is made anyway. Empty arrays stand for what is not switched: onnxruntime wants every
    # input fed.
    fitting = max(1, min(_RUNS, _MEMORY // max(model.nbytes, 1), len(layers)))
    for numbers in np.array_split(np.arange(len(layers)), fitting):
        tensors = {int(i): layers[i] for i in numbers}
        behind = _behind(model, {name for names in tensors.values() for name in names})
        fed = {name: kind for name, kind in available.items() if name not in behind}
        chosen = switched(model, tensors, available)
        names = {name: result_of(name) for each in tensors.values() for name in each}
        reached = tuple(name for name in outputs if name in behind)
        part = part_of(chosen, [names.get(name, name) for name in reached], fed, level=99)
        empty = {
            given_as(name): np.zeros((0,) * available[name].rank, available[name].dtype.numpy())
            for name in names
        }
        yield Suffix(tuple(tensors), tensors, part, reached, empty)


def _behind(model: Structure, tensors: set[str]) -> set[str]:
    """Return all tensors that depend on given ones, and these."""
    found = set(tensors)
    for node, read in zip(model.nodes, model.reads, strict=True):
        if not found.isdisjoint(read):
            found.update(name for name in node.output if name)
    return found


def switched(
    model: Structure, layers: Mapping[int, tuple[str, ...]], kinds: Mapping[str, Kind]
) -> Structure:
    """Return a model in which each layer's tensors go through a switch, fed as `switch_of` and `given_as` it.

    Args:
        model: The model.
        layers: Tensors by the number of their layer.
        kinds: Type and rank of each tensor.
    """
    owner = {name: i for i, names in layers.items() for name in names}
    names = {name: result_of(name) for name in owner}
    proto = onnx.ModelProto(ir_version=model.proto.ir_version)
    proto.opset_import.extend(model.proto.opset_import)
    proto.graph.initializer.extend(model.proto.graph.initializer)
    proto.graph.input.extend(model.proto.graph.input)
    proto.graph.input.extend(declared(switch_of(i), _BOOL) for i in layers)
    proto.graph.input.extend(declared(given_as(name), kinds[name]) for name in owner)
    for node in model.nodes:
        proto.graph.node.append(renamed(node, names))
        for name in node.output:
            if name in owner:
                proto.graph.node.append(_choice(name, owner[name], kinds[name]))
    return replace(model, proto=proto)


def _choice(name: str, layer: int, kind: Kind) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type="If", name=result_of(name))
    node.input.append(switch_of(layer))
    node.output.append(result_of(name))
    for branch, source in (("then_branch", given_as(name)), ("else_branch", name)):
        attribute = node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH)
        copied = f"{branch}/{name}"
        attribute.g.name = branch
        attribute.g.node.add(op_type="Identity", input=[source], output=[copied])
        attribute.g.output.append(declared(copied, kind))
    return node


def switch_of(layer: int) -> str:
    """Return the name of a layer's switch."""
    return f"switch/{layer}"


def given_as(tensor: str) -> str:
    """Return the name of the input that may stand for a tensor."""
    return f"given/{tensor}"


def result_of(tensor: str) -> str:
    """Return the name of a tensor behind its switch."""
    return f"switched/{tensor}"


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
        suffixes = list(_suffixes_of(models.reference, layers, work.available(), models.outputs))
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
        tensors = [m.tensor for m in (*made, *self.fed.values())]
        self.taps = dict.fromkeys([*tensors, *(read.meant for read in self.back.values())])
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
