"""What the quantization of each tensor and each weight alone does to the outputs, measured in one session.

The float model of a plan gets a switch at every place where the plan rounds:

    x' = If(on) then DequantizeLinear(QuantizeLinear(x)) else x         a tensor, for those that read it as integers
    y  = If(on) then node(x, rounded weight) else node(x, weight)       a node with a weight in 8 bits

Scale and zero point of a tensor are inputs with a default, so that other ranges are tried in the same session.

One run with some switches on costs little more than a float run, and tells what these roundings do together at every
output; so a plan's noise is known before anything is emitted, and so is whose it is. Of many switches the noise is found
by halves: neighbours in the graph are switched together, and only groups that matter are split.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import chain
from math import ceil, inf
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

from quantkit.model.graph.protos import to_proto
from quantkit.model.ops.float_ops import BIASED, MOVES
from quantkit.model.ops.view import Node, View
from quantkit.numerics.weights import dequantize_weight, fit, quantize_weight
from quantkit.quantize.plan import Mode, Plan
from quantkit.quantize.plan.measured import Losses
from quantkit.quantize.plan.model import ActivationPlan
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.runtime.check_result import Signal, Tally
from quantkit.runtime.pieces import Segments
from quantkit.runtime.session import readable_ir_version
from quantkit.targets import cores

Feeds = Sequence[Mapping[str, NDArray[Any]]]
Noise = dict[str, float]
Numbers = Mapping[str, tuple[float, int]]
"""Scale and zero point by tensor."""
_AS_PLANNED: Numbers = MappingProxyType({})
_ON, _OFF = np.array(True), np.array(False)
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

_RUNS = 48  # in which the noise of single places is found
_FIRST_GROUPS = 8
_NEGLIGIBLE = 1 / 64  # of the noise that is allowed: a group below it is not split
_SEGMENTS, _PLACES = 8, 16  # in which a model is run at most, and places in each of them at least
_STATES = 256 << 20  # bytes of tensors between segments that are kept
_CHOICE = "quantkit/choice/"
_SAMPLES = 4  # on which single places are measured
_MORE_SAMPLES = 8  # and plans
_STATIC = frozenset({Mode.STATIC, Mode.ABSORBED})
_BIAS = 2
_WEIGHTS = 64 << 20  # values; beyond, weights are not switched: they would be in memory three times


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a plan rounds: a tensor, or the weight of a node that runs in a mode."""

    tensor: str = ""
    node: str = ""
    mode: Mode = Mode.STATIC

    def is_in(self, plan: Plan) -> bool:
        """Say whether a plan rounds here as well."""
        if self.tensor:
            return self.tensor in plan.activation
        decided = plan.node.get(self.node)
        return decided is not None and decided.mode is self.mode


class Meter:
    """Measures the noise at the outputs of a model of which some places are rounded."""

    def __init__(
        self,
        model: ir.Model,
        view: View,
        plan: Plan,
        solved: SolvedIntegers,
        feeds: Feeds,
        most: int = _MORE_SAMPLES,
    ) -> None:
        """Load the float model with a switch at every place where a plan rounds, and run it without rounding.

        Args:
            model: The float model of the plan; it is left as it is.
            view: The same, described.
            plan: What was decided.
            solved: Integers of weights, and biases, where they were solved for.
            feeds: Samples.
            most: How many of them are used.

        Raises:
            An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load or run it.
        """
        writer = _Switches(model, view, plan, solved)
        self.places = writer.places
        self.adjustable = {p.tensor: i for i, p in enumerate(writer.places) if i in writer.inputs}
        self._plan, self._view, self._other = plan, view, _AS_PLANNED
        self._types = {t: p.dtype.name for t, p in plan.activation.items()}
        # Between switches operators are short: two threads took 2.3 times the CPU of one for MobileNetV2 (see `at_once`).
        places = writer.positions()
        count = min(_SEGMENTS, max(1, len(places) // _PLACES))
        self._segments = Segments(writer.proto, sorted(set(places.values())), count)
        self._starts = {place: self._segments.segment_of(at) for place, at in places.items()}
        outputs = self._segments.outputs
        floats = [o.name for o in outputs if o.type.startswith(("tensor(float", "tensor(double"))]
        # Labels tell where there is nothing else: they say nothing until they change.
        self.by_labels = not floats
        self._names = floats or [o.name for o in outputs if o.type.startswith("tensor(")]
        self._all_off = dict.fromkeys(map(_switch, range(len(self.places))), _OFF)
        self._run_float(feeds[:most])

    def _run_float(self, feeds: Feeds) -> None:
        """Run samples without rounding: all noise is measured against that."""
        self._feeds = feeds
        self._states: dict[int, dict[int, Mapping[str, Any]]] = {}  # by sample, of nothing rounded
        self._known: dict[tuple[frozenset[int], int | None, float], Noise] = {}
        self._expected = list(self.at_once(lambda feed: self._run(feed, ()), self._feeds))
        self._signals: list[list[Signal | None]] = []
        for expected in self._expected:
            self._signals.append(self._signals_of(expected))

    def rest(self) -> None:
        """Free what is held of the samples; `again` measures on others."""
        self._run_float(())

    def again(self, plan: Plan, feeds: Feeds) -> "Meter | None":
        """Return a meter of the same model on other samples, in the same sessions.

        Args:
            plan: It rounds activations with other numbers, perhaps; None comes back where it rounds them at other places.
            feeds: The samples; all are used.
        """
        if not self._rounds_like(plan):
            return None
        other = copy(self)
        numbers = {t: plan.activation[t] for t in self.adjustable}
        other._other = {t: (own.scale, own.zero_point) for t, own in numbers.items()}  # noqa: SLF001
        other._run_float(feeds)  # noqa: SLF001
        return other

    def _rounds_like(self, plan: Plan) -> bool:
        """Say whether a plan has switches at the same places, all of which are for activations whose numbers are inputs."""
        if len(self.adjustable) < len(self.places) or plan.nodes != self._plan.nodes:
            return False
        same = {t: p.dtype for t, p in plan.activation.items()}
        if same != {t: p.dtype for t, p in self._plan.activation.items()}:
            return False
        moves = [n for n in self._view.nodes if n.op_type in MOVES]
        ends = [(n.inputs[0], out) for n in moves if n.inputs for out in n.outputs]
        ends = [(a, b) for a, b in ends if {a, b} <= plan.activation.keys()]
        return all(_are_one(self._plan, *both) == _are_one(plan, *both) for both in ends)

    @property
    def samples(self) -> int:
        """On how many samples it measures."""
        return len(self._feeds)

    def at_once(
        self, measure: Callable[[_Item], _Found], items: Sequence[_Item]
    ) -> Iterator[_Found]:
        """Yield what is measured of items, in their order, on as many threads as there are cores: a run takes one core."""
        if len(items) == 1:
            yield measure(items[0])
        elif items:
            with ThreadPoolExecutor(min(cores(), len(items))) as pool:
                yield from pool.map(measure, items)

    def _run(
        self, feed: Mapping[str, Any], on: Collection[int], numbers: Numbers = _AS_PLANNED
    ) -> list[NDArray[Any]]:
        fed = {**feed, **self._all_off, **dict.fromkeys(map(_switch, on), _ON)}
        for tensor, (scale, zero) in {**self._other, **numbers}.items():
            place = self.adjustable[tensor]
            fed[_scale(place)] = np.array(scale, np.float32)
            fed[_zero(place)] = np.array(zero, self._types[tensor])
        start = min((self._starts[place] for place in on), default=0)
        if not start:
            return self._segments.run(self._names, fed)
        if id(feed) not in self._states:
            room = _STATES // len(self._feeds)
            self._states[id(feed)] = self._segments.states({**feed, **self._all_off}, room)
        start, known = next(
            ((at, known) for at, known in self._states[id(feed)].items() if at <= start), (0, {})
        )
        return self._segments.run(self._names, fed, start, known)

    def _tallied(self, on: Collection[int], sample: int, numbers: Numbers) -> dict[str, Tally]:
        tallies = {name: Tally() for name in self._names}
        outputs = self._run(self._feeds[sample], on, numbers)
        arrays = zip(self._expected[sample], outputs, self._signals[sample], strict=True)
        for tally, (was, array, signal) in zip(tallies.values(), arrays, strict=True):
            tally.add(was, array, signal)
        return tallies

    def noise_alone(self, tensor: str, sample: int, scale: float, zero_point: int) -> float:
        """Return noise over signal, summed over outputs, of one sample when only one tensor is rounded.

        Args:
            tensor: One of `adjustable`.
            sample: Which of the samples.
            scale: By which the tensor is rounded.
            zero_point: Likewise.
        """
        numbers = {tensor: (scale, zero_point)}
        tallies = self._tallied({self.adjustable[tensor]}, sample, numbers)
        return sum(tally.lost for tally in tallies.values())

    def tallies_with(self, numbers: Numbers, sample: int) -> dict[str, Tally]:
        """Return signal and noise of each output on one sample, with all switches on and other scales.

        Args:
            numbers: Of tensors that are not rounded as planned.
            sample: Which of the samples.
        """
        return self._tallied(range(len(self.places)), sample, numbers)

    def _signals_of(self, expected: Sequence[NDArray[Any]]) -> list[Signal | None]:
        """Return the sums over each float output of a sample, which all measurements share."""
        first = self._signals[0] if self._signals else [None] * len(expected)
        near = [None if known is None else known.near for known in first]
        return [
            Signal.of(array, about) if array.dtype.kind == "f" else None
            for about, array in zip(near, expected, strict=True)
        ]

    def _noise(self, on: Collection[int], samples: int | None = None, enough: float = inf) -> Noise:
        """Return noise over signal of each float output with these switches on.

        Where the first samples have more than is enough for all of them, it is what these have: others add to it.
        """
        key = (frozenset(on), samples, enough)  # of plans that round at the same places
        if key not in self._known:
            self._known[key] = self._measure(on, samples, enough)
        return self._known[key]

    def _measure(self, on: Collection[int], samples: int | None, enough: float) -> Noise:
        tallies, noise = [Tally() for _ in self._names], [0.0] * len(self._names)
        feeds = self._feeds[:samples] if on else ()  # what rounds nothing has no noise
        alone = int(enough < inf)  # often the first sample is enough

        def run(feed: Mapping[str, Any]) -> list[NDArray[Any]]:
            return self._run(feed, on)

        found = chain(map(run, feeds[:alone]), self.at_once(run, feeds[alone:]))
        for i, outputs in enumerate(found):
            arrays = zip(self._expected[i], outputs, self._signals[i], strict=True)
            for tally, (was, array, signal) in zip(tallies, arrays, strict=True):
                tally.add(was, array, signal)
            rest = self._signals[i + 1 : samples]
            noise = [_at_least(tally, [row[k] for row in rest]) for k, tally in enumerate(tallies)]
            if max(noise, default=0.0) > enough:
                break
        return dict(zip(self._names, noise, strict=True))

    def noise_of(self, plan: Plan, *, static: bool = True, enough: float = inf) -> Noise:
        """Return noise over signal of each float output of a plan, as far as it rounds where the meter's own does.

        Args:
            plan: The meter's plan with less in integers.
            static: With what runs in calibrated integers; without, only other weights are rounded.
            enough: More noise than this need not be measured to the end.
        """
        on = {
            i
            for i, place in enumerate(self.places)
            if place.is_in(plan) and (static or not (place.tensor or place.mode is Mode.STATIC))
        }
        return self._noise(on, enough=enough)

    def losses(self, allowed: float, samples: int = _SAMPLES, most: int = _RUNS) -> Losses:
        """Find what each place alone adds to each output.

        Args:
            allowed: Noise over signal that an output may have: what is far below it is not told apart.
            samples: On how many samples.
            most: How many sets of places are switched on at most: fewer tell fewer places apart.
        """
        single: dict[int, Noise] = {}
        heap: list[tuple[float, int, range]] = []
        found: dict[range, Noise] = {}
        runs = 0

        def measure(group: range) -> None:
            nonlocal runs
            runs += 1
            found[group] = self._noise(group, samples)
            heappush(heap, (-max(found[group].values(), default=0.0), group.start, group))

        for group in _cut(range(len(self.places)), _FIRST_GROUPS):
            measure(group)
        while heap:
            noise, _, group = heappop(heap)
            if len(group) > 1 and -noise > allowed * _NEGLIGIBLE and runs < most:
                for half in _cut(group, 2):
                    measure(half)
                continue
            share = {name: value / len(group) for name, value in found[group].items()}
            single |= dict.fromkeys(group, share)
        outputs = tuple(self._names)
        tensors, nodes = dict[str, tuple[float, ...]](), dict[str, tuple[float, ...]]()
        for i, place in enumerate(self.places):
            figures = tuple(single[i].get(name, 0.0) for name in outputs)
            if place.tensor:
                tensors[place.tensor] = figures
            else:
                nodes[place.node] = figures
        return Losses(outputs=outputs, nodes=nodes, tensors=tensors)


def _are_one(plan: Plan, tensor: str, other: str) -> bool:
    """Say whether two tensors have the same integers."""
    return _numbers(plan.activation[tensor]) == _numbers(plan.activation[other])


def _at_least(tally: Tally, rest: Sequence[Signal | None]) -> float:
    """Return noise over signal of an output if samples of these signals added no noise."""
    whole = replace(tally)
    for signal in rest:
        if signal is None:  # labels: how many of the others differ is not known
            return 0.0
        whole.add_signal(signal)
    return whole.lost


def _cut(group: range, parts: int) -> Iterator[range]:
    """Cut a run of neighbours into so many of about the same length."""
    step = max(1, ceil(len(group) / parts))
    for start in range(group.start, group.stop, step):
        yield range(start, min(start + step, group.stop))


def _switch(number: int) -> str:
    return f"quantkit/switch/{number}"


def _scale(number: int) -> str:
    return f"quantkit/scale/{number}"


def _zero(number: int) -> str:
    return f"quantkit/zero/{number}"


class _Switches:
    """Writes the switches into a message of the model."""

    def __init__(self, model: ir.Model, view: View, plan: Plan, solved: SolvedIntegers) -> None:
        self.plan = plan
        self.solved = solved
        self.places: list[_Place] = []
        self.inputs: set[int] = set()  # places whose scale and zero point are inputs
        self.nodes = {node.name: node for node in view.nodes}
        self.constants = {n: v for g in model.graphs() for n, v in g.initializers.items()}
        self.weighted = sum(weight.size for weight in view.weights.values()) <= _WEIGHTS
        self.rounded: dict[
            str, str
        ] = {}  # what reads integers of a tensor that floats make reads this
        self.proto = to_proto(model)
        self.proto.ir_version = readable_ir_version(self.proto.ir_version)
        # Weights last: their noise is small as a rule, and their groups are then dismissed together.
        self._tensors(self.proto.graph)
        if self.weighted:
            self._weights(self.proto.graph)
        for number in range(len(self.places)):
            value = self.proto.graph.input.add(name=_switch(number))
            value.type.tensor_type.elem_type = onnx.TensorProto.BOOL
            value.type.tensor_type.shape.SetInParent()

    def positions(self) -> dict[int, int]:
        """Return the node of the main graph that each place is at, or in."""
        return {
            int(name.removeprefix(_CHOICE)): at
            for at, node in enumerate(self.proto.graph.node)
            for name in _names_within(node)
            if name.startswith(_CHOICE)
        }

    def _place(self, place: _Place) -> int:
        self.places.append(place)
        return len(self.places) - 1

    def _tensors(self, graph: onnx.GraphProto) -> None:
        """Switch the rounding of what a graph and those inside its nodes are fed, hold and compute."""
        del graph.value_info[:]
        fed = dict.fromkeys(
            v.name for v in (*graph.input, *graph.initializer) if v.name in self.plan.activation
        )
        nodes = [self._for_readers(graph, tensor) for tensor in fed]
        for node in graph.node:
            nodes.append(node)
            decided = self.plan.node.get(node.name)
            static = decided is not None and decided.mode in _STATIC
            if static:
                renamed = [self.rounded.get(name, name) for name in node.input]
                del node.input[:]
                node.input.extend(renamed)
            for inner in _inner(node):
                self._tensors(inner)
            for slot, tensor in enumerate(node.output):
                if tensor not in self.plan.activation or self._is_moved(node.name, tensor):
                    continue
                if static and decided is not None and not decided.float_output:
                    node.output[slot] = f"quantkit/float/{tensor}"
                    nodes.append(self._rounding(graph, tensor, node.output[slot], tensor))
                else:
                    nodes.append(self._for_readers(graph, tensor))
        del graph.node[:]
        graph.node.extend(nodes)

    def _is_moved(self, name: str, tensor: str) -> bool:
        """Say whether a tensor has the integers that were rounded before, elsewhere."""
        node = self.nodes.get(name)
        if node is None or node.op_type not in MOVES or not node.inputs:
            return False
        return node.inputs[0] in self.plan.activation and _are_one(
            self.plan, node.inputs[0], tensor
        )

    def _for_readers(self, graph: onnx.GraphProto, tensor: str) -> onnx.NodeProto:
        """Round a tensor for those alone that read it as integers."""
        self.rounded[tensor] = f"quantkit/rounded/{tensor}"
        return self._rounding(graph, tensor, tensor, self.rounded[tensor])

    def _rounding(
        self, graph: onnx.GraphProto, tensor: str, source: str, result: str
    ) -> onnx.NodeProto:
        number = self._place(_Place(tensor=tensor))
        own = self.plan.activation[tensor]
        scale, zero = _scale(number), _zero(number)
        kind = onnx.TensorProto.DataType.Value(own.dtype.name.upper())
        zero_point = onnx.TensorProto(name=zero, data_type=kind, int32_data=[own.zero_point])
        graph.initializer.append(numpy_helper.from_array(np.array(own.scale, np.float32), scale))
        graph.initializer.append(zero_point)
        if graph is self.proto.graph:  # only the main graph has inputs that can be left out
            self.inputs.add(number)
            for name, elements in ((scale, onnx.TensorProto.FLOAT), (zero, kind)):
                value = graph.input.add(name=name)
                value.type.tensor_type.elem_type = elements
                value.type.tensor_type.shape.SetInParent()
        on, off = "quantkit/on", "quantkit/off"
        integers = _node("QuantizeLinear", [source, scale, zero], ["quantkit/integers"])
        back = _node("DequantizeLinear", ["quantkit/integers", scale, zero], [on])
        same = _node("Identity", [source], [off])
        return _choice(number, [result], ([integers, back], [on], []), ([same], [off], []))

    def _weights(self, graph: onnx.GraphProto) -> None:
        """Switch the rounding of the weights that nodes of a graph and of those inside read."""
        for place, node in enumerate(list(graph.node)):
            for inner in _inner(node):
                self._weights(inner)
            known, decided = self.nodes.get(node.name), self.plan.node.get(node.name)
            if known is None or decided is None or decided.mode is Mode.FLOAT:
                continue
            slots = {s: w for s, w in known.weights.items() if w in self.plan.weight}
            if slots and set(slots.values()) <= self.constants.keys():
                switched = self._with_weights(node, known, slots, decided.mode)
                graph.node[place].CopyFrom(switched)

    def _with_weights(
        self, node: onnx.NodeProto, known: Node, slots: Mapping[int, str], mode: Mode
    ) -> onnx.NodeProto:
        number = self._place(_Place(node=node.name, mode=mode))
        on, off, held = deepcopy(node), deepcopy(node), []
        for slot, weight in slots.items():
            array = self._rounded(weight)
            array = array.T if known.transposes(slot) else array
            on.input[slot] = f"quantkit/weight/{number}/{slot}"
            held.append(numpy_helper.from_array(np.ascontiguousarray(array), on.input[slot]))
        bias = self.solved.biases.get(node.name)
        if bias is not None and node.op_type in BIASED and mode is Mode.STATIC:
            name = f"quantkit/bias/{number}"
            held.append(numpy_helper.from_array(np.asarray(bias, np.float32), name))
            on.input[_BIAS:] = [name]
        for which, branch in (("on", on), ("off", off)):
            branch.output[:] = [
                f"quantkit/{which}/{i}" if o else "" for i, o in enumerate(node.output)
            ]
        used = [o for o in node.output if o]
        return _choice(
            number,
            used,
            ([on], [o for o in on.output if o], held),
            ([off], [o for o in off.output if o], []),
        )

    def _rounded(self, name: str) -> NDArray[np.float32]:
        """Return a weight as it comes back from its integers."""
        if name in self.solved.weights:
            solved = self.solved.weights[name]
            return dequantize_weight(solved.integers, solved.qparams)
        tensor = self.constants[name].const_value
        assert tensor is not None  # noqa: S101 - it was planned as a weight
        array = tensor.numpy()
        fitted = fit(array, self.plan.weight[name].spec)
        return dequantize_weight(quantize_weight(array, fitted), fitted)


_Branch = tuple[list[onnx.NodeProto], list[str], list[onnx.TensorProto]]


def _choice(number: int, results: Sequence[str], on: _Branch, off: _Branch) -> onnx.NodeProto:
    """Return a node that computes one branch or the other."""
    choice = _node("If", [_switch(number)], results)
    choice.name = f"{_CHOICE}{number}"
    for name, (nodes, outputs, held) in (("then_branch", on), ("else_branch", off)):
        branch = choice.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g
        branch.name = name
        branch.node.extend(nodes)
        branch.output.extend(onnx.ValueInfoProto(name=output) for output in outputs)
        branch.initializer.extend(held)
    return choice


def _node(op_type: str, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
    return onnx.NodeProto(op_type=op_type, input=inputs, output=outputs)


def _names_within(node: onnx.NodeProto) -> Iterator[str]:
    yield node.name
    for graph in _inner(node):
        for own in graph.node:
            yield from _names_within(own)


def _inner(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _numbers(plan: ActivationPlan) -> tuple[Any, ...]:
    return plan.dtype, plan.scale, plan.zero_point
