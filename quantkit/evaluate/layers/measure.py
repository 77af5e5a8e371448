"""The errors of a group of layers, sample by sample.

Four things are run on each sample: the float model, the candidate, the candidate's layers each on float's values, and
the float layers each on float's values as they come back from the candidate's integers. With y float's tensor, y_l the
layer alone and y_x the float layer on quantized inputs:

    local = y_l - y        by what it reads = y_x - y        by its weights = y_l - y_x

Then each y_l takes the place of y in the float model, and what comes out at the end is compared.

The layers, in graph order, are split into a few runs. For each run there is one session of the float graph behind its
first layer, in which the tensors of each layer can be replaced (`Switched`). What lies before
the run is fed with float's values. So a layer's error costs one run of what is behind it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.evaluate.match import ModelPair, Survey
from quantkit.evaluate.match.correspondence import Match, Quantizer
from quantkit.evaluate.match.noise import Noise
from quantkit.evaluate.match.regions import Read, Region
from quantkit.runtime.pieces import Kind, Parts, Structure, declared, part_of, parts_of, renamed

Array = NDArray[Any]
_BOOL = Kind(ir.DataType.BOOL, 0)


class Switched:
    """A model, optimized as users run it, in which the tensors of some layers can be replaced while it runs.

    Each of these tensors goes through a switch, ``y' = If(select_i) then the given tensor, else y``. So one session serves all
    layers, and a run with all switches off is the reference of the others: without an error the difference is exactly zero.
    """

    def __init__(
        self,
        model: Structure,
        layers: Mapping[int, tuple[str, ...]],
        kinds: Mapping[str, Kind],
        outputs: Sequence[str],
        fed: Mapping[str, Kind],
    ) -> None:
        """Load it.

        Args:
            model: The model.
            layers: Tensors by the number of their layer.
            kinds: Type and rank of these.
            outputs: What comes out, by the model's names; a switched tensor as it is behind its switch.
            fed: Tensors that are given, as in `part_of`.
        """
        self.layers = layers
        tensors = {name: i for i, names in layers.items() for name in names}
        self._names = {name: _result(name) if name in tensors else name for name in outputs}
        graph = _switched(model, tensors, kinds)
        self._part = part_of(graph, list(self._names.values()), fed, level=99)
        # onnxruntime wants every input fed: what is not switched gets an array without elements.
        self._empty = {
            _given(name): np.zeros((0,) * kinds[name].rank, kinds[name].dtype.numpy())
            for name in tensors
        }

    def run(
        self,
        feeds: Mapping[str, Array],
        layers: Collection[int] = (),
        values: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Run it.

        Args:
            feeds: What the model reads.
            layers: Whose tensors are replaced.
            values: By what, by the names of tensors.
        """
        switches = {_switch(i): np.asarray(i in layers) for i in self.layers}
        replaced = {_given(n): (values or {})[n] for i in layers for n in self.layers[i]}
        found = self._part.run(feeds, switches, {**self._empty, **replaced})
        return {name: found[result] for name, result in self._names.items()}


def _switched(model: Structure, tensors: Mapping[str, int], kinds: Mapping[str, Kind]) -> Structure:
    names = {name: _result(name) for name in tensors}
    proto = onnx.ModelProto(ir_version=model.proto.ir_version)
    proto.opset_import.extend(model.proto.opset_import)
    proto.graph.initializer.extend(model.proto.graph.initializer)
    proto.graph.input.extend(model.proto.graph.input)
    proto.graph.input.extend(declared(_switch(i), _BOOL) for i in dict.fromkeys(tensors.values()))
    proto.graph.input.extend(declared(_given(name), kinds[name]) for name in tensors)
    for node in model.nodes:
        proto.graph.node.append(renamed(node, names))
        for name in node.output:
            if name in tensors:
                proto.graph.node.append(_choice(name, tensors[name], kinds[name]))
    return replace(model, proto=proto)


def _choice(name: str, layer: int, kind: Kind) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type="If", name=_result(name))
    node.input.append(_switch(layer))
    node.output.append(_result(name))
    for branch, source in (("then_branch", _given(name)), ("else_branch", name)):
        attribute = node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH)
        copied = f"{branch}/{name}"
        attribute.g.name = branch
        attribute.g.node.add(op_type="Identity", input=[source], output=[copied])
        attribute.g.output.append(declared(copied, kind))
    return node


def _switch(layer: int) -> str:
    return f"switch/{layer}"


def _given(tensor: str) -> str:
    return f"given/{tensor}"


def _result(tensor: str) -> str:
    return f"switched/{tensor}"


Arrays = Mapping[str, Array]

_RUNS = 8  # sessions at most
_SHARING = 8  # layers of a session at least
_MEMORY = 512 << 20  # bytes that their weights may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The two models, what stands for what, and what their tensors are."""

    pair: ModelPair
    theirs: Survey  # of the float model
    ours: Survey  # of the candidate

    @property
    def reference(self) -> Structure:
        """The float model."""
        return self.pair.a.structure

    @property
    def candidate(self) -> Structure:
        """The quantized model."""
        return self.pair.b.structure

    @property
    def matches(self) -> Mapping[str, Match]:
        """The candidate's tensors that stand for one of the float model."""
        return self.pair.tensors.matches

    @property
    def outputs(self) -> tuple[str, ...]:
        """The float model's outputs that hold floats."""
        kinds = self.theirs.kinds
        return tuple(o for o in self.reference.outputs if o in kinds and kinds[o].is_float)


def _suffixes_of(
    model: Structure,
    layers: Sequence[tuple[str, ...]],
    available: Mapping[str, Kind],
    outputs: Sequence[str],
) -> Iterator[Switched]:
    """Yield what the float model computes behind each run of layers.

    Args:
        model: The float model.
        layers: The tensors of each layer, in graph order.
        available: All tensors whose values in the float model will be given, the layers' own among them.
        outputs: The outputs to look at.
    """
    # Each layer's own suffix would be the cheapest run and a session per layer; one session for all would run the whole
    # model for each layer. Between the two: a session for each run of neighbouring layers, beginning where the first of
    # them ends, as many as fit into memory, if a few layers share the cost of loading it. What lies before is fed from
    # the float run, which is made anyway.
    fitting = min(_RUNS, _MEMORY // max(model.nbytes, 1), len(layers) // _SHARING)
    for numbers in np.array_split(np.arange(len(layers)), max(1, fitting)):
        tensors = {int(i): layers[i] for i in numbers}
        behind = _behind(model, {name for names in tensors.values() for name in names})
        fed = {name: kind for name, kind in available.items() if name not in behind}
        reached = tuple(name for name in outputs if name in behind)
        yield Switched(model, tensors, available, reached, fed)


def _behind(model: Structure, tensors: set[str]) -> set[str]:
    """Return all tensors that depend on given ones, and these."""
    found = set(tensors)
    for node, read in zip(model.nodes, model.reads, strict=True):
        if not found.isdisjoint(read):
            found.update(name for name in node.output if name)
    return found


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
    suffixes: list[Switched] = []
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
        self.floats = models.pair.a.inner(self.taps)
        names = [m.candidate for m in made]
        self.whole = models.pair.b.inner(names)
        kinds = models.ours.kinds
        self.layers = parts_of(models.candidate, names, {b: kinds[b] for b in self.fed})
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

    def replace(self, suffix: Switched, values: Arrays, made: Arrays) -> None:
        """Put the results of each layer of a run in their place, one layer after the other, and compare the outputs."""
        expected = suffix.run(values)
        for layer in suffix.layers:
            alone = self.errors[layer].alone
            for name, other in suffix.run(values, [layer], made).items():
                alone.setdefault(name, Noise()).add(expected[name], other)
