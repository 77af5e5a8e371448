"""Which nodes run in integers by what they cost and lose here, instead of by rules about operators.

The rules' plan says what *can* run in integers. What each of its nodes takes in float and in integers, and what it takes
to go from one to the other, was measured (`Costs`); what rounding each of them adds to the outputs may be known too
(`Losses`). `choose` finds the nodes that are better left out, all at once: moving a border of an island moves two
conversions, so that flipping one node after the other would stay in the first valley.

    time(static set) = sum of nodes, each in its mode
                     + QuantizeLinear of every tensor that floats make and integers read, once
                     + DequantizeLinear of every tensor that integers make and floats read, once

Each term is the cost of a pair that ends up on different sides, or of a tensor whose maker and readers do, which an
auxiliary node makes a pair of. So the least is a minimum cut, exact, found by one maximum flow: near linear on graphs of
layers.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from quantkit.model.ops.float_ops import PRODUCTS, activation_slots
from quantkit.model.ops.view import Node, View
from quantkit.numerics.decibels import decibels
from quantkit.quantize.plan.model import Kept, Mode, Plan
from quantkit.reasons import Reason, Why, because
from quantkit.targets import Target, target

_QUANTIZED = frozenset({Mode.STATIC, Mode.ABSORBED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one run, by node and tensor of the graph that is planned; 0 for what is not named.

    Attributes:
        floats: Of each node as a float operator.
        static: Of each node in calibrated integers, without conversions.
        dynamic: Of products whose input is quantized as it comes, with that.
        quantize: To turn a tensor into integers.
        dequantize: To turn it back.
        fused: Nodes that one float kernel computes: they are in integers together or not at all, for alone none of them
            would take what the kernel does.
        total: Of the model as the user gave it, measured; 0 if it was not.
        noise: By how much of itself a figure may be wrong: smaller differences decide nothing.
        source: Where the figures come from: "measured" here, or "table".
        load: How busy the machine was meanwhile; "": not known.
    """

    floats: Mapping[str, float]
    static: Mapping[str, float]
    dynamic: Mapping[str, float] = field(default_factory=dict)
    quantize: Mapping[str, float] = field(default_factory=dict)
    dequantize: Mapping[str, float] = field(default_factory=dict)
    fused: tuple[tuple[str, ...], ...] = ()
    total: float = 0.0
    noise: float = 0.03
    source: str = "measured"
    load: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What each rounding alone adds to each float output: noise power over signal power.

    Powers of independent roundings add up, so that the noise of a plan at an output is about the sum of them.

    Attributes:
        outputs: Names of the float outputs.
        nodes: By node whose weight is rounded, one figure for each output.
        tensors: By tensor that is rounded for whoever makes or reads it in integers, the same.
    """

    outputs: tuple[str, ...]
    nodes: Mapping[str, tuple[float, ...]]
    tensors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def of_weight(self, node: str) -> Reason:
        """Say what rounding the weight of a node alone leaves of the output that loses most."""
        db, output = self._worst(self.nodes[node])
        return because(Why.WEIGHT_NOISE, db=db, output=output)

    def of_tensor(self, tensor: str) -> Reason:
        """Say the same of a tensor."""
        db, output = self._worst(self.tensors[tensor])
        return because(Why.TENSOR_NOISE, tensor=tensor, db=db, output=output)

    def _worst(self, figures: Sequence[float]) -> tuple[float, str]:
        noise, output = max(zip(figures, self.outputs, strict=True))
        return -decibels(max(noise, 1e-30)), output


def choose(
    view: View,
    plan: Plan,
    costs: Costs,
    losses: Losses | None = None,
    weight: float = 0.0,
) -> dict[str, Kept]:
    """Return the nodes of a plan that should rather not run in calibrated integers, how else, and why.

    What it returns goes into `plan_static(..., kept=...)`, which plans the rest by the rules again.

    Args:
        view: The graph.
        plan: What the rules decide, with nothing kept.
        costs: What each node takes.
        losses: What each node loses; None: only time counts.
        weight: Seconds that one unit of noise (noise power over signal power, at the output that has most of it) is worth.
    """
    problem = _Problem(view, plan, costs, _Noise(losses, weight))
    left = problem.solve()
    return {} if not left else dict(problem.kept(left))


def predict(view: View, plan: Plan, costs: Costs) -> float:
    """Return the seconds that one run of a plan takes, by what was measured of its nodes.

    Args:
        view: The graph.
        plan: Any plan of it.
        costs: What each node takes.
    """
    seconds = 0.0
    for node in view.nodes:
        mode = plan.node[node.name].mode if node.name in plan.node else Mode.FLOAT
        seconds += _seconds(node.name, mode, costs)
    wiring = _Wiring(view, plan)
    return seconds + sum(_conversions(t, wiring.members, costs) for t in wiring.tensors)


def _seconds(name: str, mode: Mode, costs: Costs) -> float:
    if mode in _QUANTIZED:
        return costs.static.get(name, 0.0)
    if mode is Mode.INTEGER:
        return costs.dynamic.get(name, costs.floats.get(name, 0.0))
    return costs.floats.get(name, 0.0)


class _Noise:
    """What roundings are worth, in seconds."""

    def __init__(self, losses: Losses | None, weight: float) -> None:
        self.losses = losses
        known = losses is not None and weight > 0
        nodes = losses.nodes if losses is not None and known else {}
        tensors = losses.tensors if losses is not None and known else {}
        self.nodes = {name: weight * max(found, default=0.0) for name, found in nodes.items()}
        self.tensors = {name: weight * max(found, default=0.0) for name, found in tensors.items()}

    def why(self, nodes: Iterable[str], tensors: Iterable[str], seconds: float) -> Reason | None:
        """Say what the worst of these roundings leaves; None if they are worth less than `seconds`."""
        found = [(self.nodes[n], n, True) for n in nodes if n in self.nodes]
        found += [(self.tensors[t], t, False) for t in tensors if t in self.tensors]
        worst = max(found, default=(0.0, "", True))
        if self.losses is None or worst[0] <= seconds:
            return None
        return (self.losses.of_weight if worst[2] else self.losses.of_tensor)(worst[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A quantized tensor, as far as integers make or read it.

    Attributes:
        name: The tensor.
        maker: The group that makes it in integers; None if floats do.
        readers: The groups that read it as integers.
        is_read_as_float: Somebody else reads it, or it is a result of the model.
        free_exit: Its maker may hand on floats instead, at no cost.
        follows: The readers that are in integers only if the maker is.
    """

    name: str
    maker: int | None
    readers: tuple[int, ...]
    is_read_as_float: bool
    free_exit: bool
    follows: tuple[int, ...]


class _Wiring:
    """The nodes in integers, in groups that stay together, and the tensors between them."""

    def __init__(self, view: View, plan: Plan) -> None:
        self.view = view
        self.plan = plan
        self.target: Target = target(plan.target or "cpu")
        self.group: dict[int, int] = {}  # of a node, by index
        self.members: dict[int, list[int]] = defaultdict(list)
        for index, node in enumerate(view.nodes):
            if self._is_static(node):
                own = self._maker_group(node)
                self.group[index] = index if own is None else own
                self.members[self.group[index]].append(index)
        self.tensors = tuple(self._tensors())

    def _is_static(self, node: Node) -> bool:
        decided = self.plan.node.get(node.name)
        return decided is not None and decided.mode in _QUANTIZED

    def _maker_group(self, node: Node) -> int | None:
        """Return the group of who makes its input, where that has no integers of its own: one kernel computes both."""
        tensor = node.input(0)
        if not tensor or tensor in self.plan.activation:
            return None
        return self.group.get(self.view.producer.get(tensor, -1))

    def _tensors(self) -> Iterator[_Tensor]:
        for tensor in self.plan.activation:
            if tensor in self.view.constants:
                continue  # its integers are in the file
            index = self.view.producer.get(tensor, -1)
            maker = self.group.get(index)
            readers, floats = [], tensor in self.view.outputs
            follows = []
            for reader in self.view.readers.get(tensor, ()):
                own = self.group.get(reader)
                if own is None or own == maker or not self._reads(reader, tensor):
                    floats = floats or own is None or own != maker
                    continue
                readers.append(own)
                if maker is not None and not self._is_product(reader):
                    follows.append(own)
            if maker is not None or readers:
                yield _Tensor(
                    name=tensor,
                    maker=maker,
                    readers=tuple(dict.fromkeys(readers)),
                    is_read_as_float=floats,
                    free_exit=maker is not None and not follows and self._has_float_exit(maker),
                    follows=tuple(dict.fromkeys(follows)),
                )

    def _reads(self, reader: int, tensor: str) -> bool:
        node = self.view.nodes[reader]
        slots = activation_slots(node.op_type, len(node.inputs), product=self._is_product(reader))
        return any(node.inputs[slot] == tensor for slot in slots)

    def _is_product(self, index: int) -> bool:
        node = self.view.nodes[index]
        return node.op_type in PRODUCTS and bool(node.weights)

    def _has_float_exit(self, group: int) -> bool:
        return (
            self._is_product(group)
            and self.view.nodes[group].op_type not in self.target.needs_output
        )


class _Problem:
    """Static or not, for every group of nodes; `0` of the flow graph is static, `1` is not."""

    def __init__(self, view: View, plan: Plan, costs: Costs, noise: _Noise) -> None:
        self.view = view
        self.plan = plan
        self.costs = costs
        self.wiring = _Wiring(view, plan)
        self.noise = noise
        self.places = {group: place for place, group in enumerate(self.wiring.members, 2)}
        self.size = 2 + len(self.places)
        self.groups = {view.nodes[i].name: group for i, group in self.wiring.group.items()}
        self.touched: dict[int, list[_Tensor]] = {group: [] for group in self.places}
        for tensor in self.wiring.tensors:
            for group in {tensor.maker, *tensor.readers} - {None}:
                self.touched[group].append(tensor)  # type: ignore[index]  # None is taken out
        self.edges: dict[tuple[int, int], float] = defaultdict(float)
        self.bound: list[tuple[int, int]] = []  # who is static only if the other is

    def solve(self) -> frozenset[int]:
        """Return the groups that are better left out."""
        for group, place in self.places.items():
            static, other = self._alone(group)
            self._edge(place, 1, static)
            # What differs by less than the noise of measuring stays as the rules have it.
            self._edge(0, place, other + self.costs.noise * max(static, other))
        for tensor in self.wiring.tensors:
            self._border(tensor)
        for fused in self.costs.fused:
            self._together(fused)
        chosen = _source_side(self.size, self.edges, self.bound)
        return frozenset(g for g, place in self.places.items() if place not in chosen)

    def _alone(self, group: int) -> tuple[float, float]:
        """Return what a group costs in integers, with its noise, and at best otherwise."""
        names = [self.view.nodes[i].name for i in self.wiring.members[group]]
        static = sum(self.costs.static.get(n, 0.0) + self.noise.nodes.get(n, 0.0) for n in names)
        return static, sum(_seconds(n, self._other(n), self.costs) for n in names)

    def _other(self, name: str) -> Mode:
        """Return how a node runs if not in calibrated integers."""
        dynamic = self.costs.dynamic.get(name)
        slower = self.costs.floats.get(name, 0.0)
        return Mode.INTEGER if dynamic is not None and dynamic < slower else Mode.STORED

    def _border(self, tensor: _Tensor) -> None:
        """Add what a tensor costs where its maker and its readers are on different sides."""
        enter = self.costs.quantize.get(tensor.name, 0.0)
        leave = self.costs.dequantize.get(tensor.name, 0.0)
        maker = 1 if tensor.maker is None else self.places[tensor.maker]
        readers = [self.places[r] for r in tensor.readers]
        self.bound += ((self.places[r], maker) for r in tensor.follows)
        if lost := self.noise.tensors.get(tensor.name, 0.0):
            rounds = readers if tensor.free_exit or tensor.maker is None else [maker, *readers]
            if rounds:
                self._edge(self._any_of(rounds), 1, lost)
        if tensor.free_exit:
            # Floats come out unless everybody is static: then whoever is static quantizes them again.
            everybody = 1 if tensor.is_read_as_float else self._all_of([maker, *readers])
            if readers:
                self._edge(self._any_of(readers), everybody, enter)
            return
        if readers:
            self._edge(self._any_of(readers), maker, enter)
        if tensor.maker is not None:
            floats = 1 if tensor.is_read_as_float or not readers else self._all_of(readers)
            self._edge(maker, floats, leave)

    def _together(self, names: Iterable[str]) -> None:
        """Keep nodes on one side."""
        found = (self.groups[name] for name in names if name in self.groups)
        places = list(dict.fromkeys(self.places[group] for group in found))
        self.bound += (*pairwise(places), *((b, a) for a, b in pairwise(places)))

    def _any_of(self, places: Sequence[int]) -> int:
        """Return a place that is static as soon as one of these is."""
        if len(places) == 1:
            return places[0]
        self.size += 1
        self.bound += ((place, self.size - 1) for place in places)
        return self.size - 1

    def _all_of(self, places: Sequence[int]) -> int:
        """Return a place that is static only if all of these are."""
        if len(places) == 1:
            return places[0]
        self.size += 1
        self.bound += ((self.size - 1, place) for place in places)
        return self.size - 1

    def _edge(self, static: int, other: int, seconds: float) -> None:
        """Say what it costs if the first is static and the second is not."""
        if static not in {other, 1} and other != 0 and seconds > 0:
            self.edges[static, other] += seconds

    def kept(self, left: Iterable[int]) -> Iterator[tuple[str, Kept]]:
        """Yield the nodes of groups that are left out, with their modes and reasons."""
        out = frozenset(left)
        static = frozenset(self.wiring.members) - out
        for island in self._islands(out):
            gain = self._gain(island, static)
            for group in island:
                names = [self.view.nodes[i].name for i in self.wiring.members[group]]
                own, other = self._alone(group)
                around = [t.name for t in self.touched[group]]
                lost = self.noise.why(names, around, max(0.0, own - other))
                why = lost or _why(own - other, gain, len(island))
                yield from ((name, Kept(why, self._other(name))) for name in names)

    def _islands(self, left: frozenset[int]) -> list[list[int]]:
        """Return the groups that are left out, those together that a tensor connects."""
        near: dict[int, set[int]] = {group: set() for group in left}
        for tensor in self.wiring.tensors:
            joined = [g for g in (tensor.maker, *tensor.readers) if g in left and g is not None]
            for group in joined[1:]:
                near[joined[0]].add(group)
                near[group].add(joined[0])
        found, seen = [], set[int]()
        for group in sorted(left):
            if group in seen:
                continue
            seen.add(group)
            island = [group]
            for member in island:  # it grows
                island += (new := near[member] - seen)
                seen |= new
            found.append(island)
        return found

    def _gain(self, island: Sequence[int], static: frozenset[int]) -> float:
        """Return by how many seconds an island would take longer in integers, with what that does to its borders."""
        more = static | {*island}
        touched = {t.name: t for group in island for t in self.touched[group]}.values()
        borders = (
            _conversions(t, more, self.costs) - _conversions(t, static, self.costs) for t in touched
        )
        return sum(static - other for static, other in map(self._alone, island)) + sum(borders)


def _conversions(tensor: _Tensor, static: Container[int], costs: Costs) -> float:
    """Return the seconds that a tensor is converted, where these groups are in integers."""
    enter, leave = (s.get(tensor.name, 0.0) for s in (costs.quantize, costs.dequantize))
    read = any(r in static for r in tensor.readers)
    floats = tensor.is_read_as_float or any(r not in static for r in tensor.readers)
    made = tensor.maker is not None and tensor.maker in static
    if tensor.free_exit:
        return enter if read and (floats or not made) else 0.0
    if not made:
        return enter if read else 0.0
    return leave if floats or not tensor.readers else 0.0


def _why(slower: float, island: float, size: int) -> Reason:
    """Say what integers would cost: the node alone, and with its conversions and neighbours."""
    own = Why.SLOWER_ALONE if slower > 0 else Why.FASTER_ALONE
    around = because(Why.WITH_CONVERSIONS)
    if size > 1:
        around = because(Why.WITH_NEIGHBOURS, count=size - 1)
    alone, time = because(own, time=_text(abs(slower))), _text(max(0.0, island))
    return because(Why.SLOWER, alone=alone, time=time, around=around)


def _text(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds >= _MILLISECONDS else f"{1e6 * seconds:.1f} us"


_MILLISECONDS = 1e-5  # from which seconds are told in them
_SUM = 1 << 28  # of all capacities: whole numbers that fit in 32 bits
_ENDLESS = 1 << 30


def _source_side(
    size: int, edges: Mapping[tuple[int, int], float], bound: Iterable[tuple[int, int]]
) -> frozenset[int]:
    """Return the largest set with 0 and without 1 whose outgoing edges cost least."""
    # Imported here: scipy's graphs are for this alone, and not for every command.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    unit = _SUM / max(sum(edges.values()), 1e-30)
    capacity = {pair: round(seconds * unit) for pair, seconds in edges.items()}
    capacity |= dict.fromkeys(((a, b) for a, b in bound if a != b), _ENDLESS)
    if not capacity:
        return frozenset(range(size)) - {1}
    rows, columns = np.array(list(capacity), dtype=np.int32).T
    values = np.array(list(capacity.values()), dtype=np.int32)
    graph = csr_array((values, (rows, columns)), shape=(size, size))
    residual: Any = graph - maximum_flow(graph, 0, 1).flow
    residual.eliminate_zeros()
    # Who reaches 1 in what is left is on its side; all others may as well be static, as the rules want them.
    reached = breadth_first_order(residual.T.tocsr(), 1, return_predecessors=False)
    return frozenset(range(size)) - set(reached.tolist())
