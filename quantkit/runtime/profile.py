"""What each node of a model takes, measured: onnxruntime's profile of sessions as users make them, traced to the graph that is planned.

Models take turns, so that a busy moment falls on all of them. A profile is of kernels, and kernels are not nodes: Conv
and Relu are one, layouts are changed in between, Q/DQ pairs and the operator between them are one. Each kernel is given
to a node by its name, else by the tensors that it makes, else to its neighbour, and what the profile leaves unsaid (its
own cost, the calls) is shared over all kernels: the nodes of a model sum up to what a run takes without a profile.

`timed_rounds` is the timer: clocks change and other programs come and go; work measured one after the other would be measured under different
conditions. So in every round each piece runs once, in an order drawn anew, and rounds go on until the ratios to the first
piece are known well enough.
"""

import gc
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, prod
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from quantkit.model.graph.protos import proto_graphs
from quantkit.model.ops.float_ops import PRODUCTS
from quantkit.model.ops.integer_ops import CONVERSIONS
from quantkit.model.ops.view import View
from quantkit.numerics.statistics import median_interval
from quantkit.runtime.kernels.truth import bare_names, file_nodes
from quantkit.runtime.session import make_session

Turn = Callable[[], object]
Clock = Callable[[], float]

# Seconds of a run with one thread, which is the caller's own: what the CPU spends on it. On a busy machine other programs
# stretch the time on the wall many times, and differently for each model. Windows counts these seconds in 16 ms.
CLOCK: Clock = (
    time.thread_time if time.get_clock_info("thread_time").resolution < 1e-6 else time.perf_counter
)

_SHORT = 0.2e-3  # seconds; shorter work is repeated until it takes this long
_PRIMED = 20e-3  # seconds; before shorter work, one run that is not timed
_MOST_REPEATS = 1000
_CHECKED_EVERY = 10  # rounds

Feeds = Sequence[Mapping[str, NDArray[Any]]]
_Round = TypeVar("_Round")

_LEAST, _MOST = 6, 200  # rounds
_EVENTS = 30_000  # of a profile, to read it in a moment
_RUN_EVENT, _NODE_EVENT, _SUFFIX = "model_run", "Node", "_kernel_time"
_MICRO = 1e-6
_CALL = 2e-6  # seconds between two kernels, at most
_IMPLAUSIBLE = 100.0  # times as long as another model's run
_STEADY = (
    1.3  # times as long may the first half of the runs take as the second, or the other way round
)
_HALVES = 8  # runs from which halves can be compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long to measure.

    Attributes:
        seconds: For each piece of work.
        least: Rounds at least, unless they take ten times as long as that; then `fewest`.
        most: Rounds at most.
        fewest: Rounds that an interval of 95 % needs.
        warm_up: Rounds that are not timed.
        width: Half the width of a ratio's interval, relative to the ratio, that is enough.
    """

    seconds: float
    least: int = 20
    most: int = 500
    fewest: int = 6
    warm_up: int = 3
    width: float = 0.02


def timed_rounds(turns: Sequence[Turn], pace: Pace, clock: Clock) -> list[list[float]]:
    """Return the seconds of one run, by round and piece of work.

    In each round the order is drawn anew, by a seed, so that nobody always follows the same neighbour. Work that is
    over within milliseconds runs once untimed before: what it finds in the caches is its own, as it is when it runs
    alone, not its neighbour's.

    Args:
        turns: The pieces of work, each of which runs once per round.
        pace: How many rounds, and how long at most.
        clock: Seconds; another one in tests.
    """
    repeats, primed = _warm_up(turns, pace, clock)
    order = list(range(len(turns)))
    draw = random.Random(0)  # noqa: S311 - an order, not a secret
    rows: list[list[float]] = []
    start = clock()
    while not _is_enough(rows, clock() - start, pace):
        draw.shuffle(order)
        row = [0.0] * len(turns)
        for i in order:
            if primed[i]:
                turns[i]()
            row[i] = _seconds_per_run(turns[i], repeats[i], clock)
        rows.append(row)
    return rows


def _warm_up(turns: Sequence[Turn], pace: Pace, clock: Clock) -> tuple[list[int], list[bool]]:
    """Run everything a few times; return how often each is repeated, and which are primed."""
    fastest = [float("inf")] * len(turns)
    for _ in range(pace.warm_up):
        for i, turn in enumerate(turns):
            fastest[i] = min(fastest[i], _seconds_per_run(turn, 1, clock))
    repeats = [min(max(1, ceil(_SHORT / max(t, 1e-9))), _MOST_REPEATS) for t in fastest]
    return repeats, [t < _PRIMED for t in fastest]


def _seconds_per_run(turn: Turn, repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        turn()
    return (clock() - start) / repeats


def _is_enough(rows: Sequence[Sequence[float]], elapsed: float, pace: Pace) -> bool:
    if len(rows) >= pace.most:
        return True
    budget = pace.seconds * len(rows[0]) if rows else pace.seconds
    if len(rows) < pace.least:
        return len(rows) >= pace.fewest and elapsed > 10 * budget
    return elapsed > budget or (len(rows) % _CHECKED_EVERY == 0 and _is_tight(rows, pace.width))


def _is_tight(rows: Sequence[Sequence[float]], width: float) -> bool:
    """Say whether every ratio to the first is known to within `width` of itself."""
    for i in range(1, len(rows[0])):
        bounds = median_interval([row[i] / row[0] for row in rows])
        if bounds is None or bounds[1] - bounds[0] > 2 * width * bounds[0]:
            return False
    # One piece of work alone has no ratio: it is measured until its time is over.
    return len(rows[0]) > 1


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector out of what is timed."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def time_models(
    models: Sequence[Path], feeds: Sequence[Mapping[str, NDArray[Any]]], *, seconds: float = 0.5
) -> list[float]:
    """Run models in turn, with one thread; return the seconds of a run of each.

    Args:
        models: Files.
        feeds: Samples that each of them is run on.
        seconds: To spend on each model, about.
    """
    sessions = [make_session(str(path), threads=1) for path in models]
    turns = [_all_feeds(session, feeds) for session in sessions]
    pace = Pace(seconds=seconds, least=6, most=200, fewest=2, warm_up=1, width=0.0)
    with no_garbage_collection():
        rounds = timed_rounds(turns, pace, CLOCK)
    return [fastest_quarter([row[n] for row in rounds]) / len(feeds) for n in range(len(models))]


def _all_feeds(session: Any, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> Turn:
    return lambda: [session.run(None, dict(feed)) for feed in feeds]


def fastest_quarter(values: Sequence[float]) -> float:
    """Return the mean of the lowest quarter: in the rest others had the machine, or the caches."""
    found = np.sort(values)
    return float(found[: (len(found) + 3) // 4].mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A node of an optimized graph, and what it took.

    Attributes:
        node: The node.
        seconds: Of one run, without what runs inside of it.
        elements: Of its first output.
    """

    node: onnx.NodeProto
    seconds: float
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A model that was run.

    Attributes:
        given: The nodes of the file.
        kernels: What runs instead, in order.
        total: Seconds of one run, without profiling; the kernels sum up to it.
        steady: Whether the first runs took about as long as the last.
    """

    given: tuple[onnx.NodeProto, ...]
    kernels: tuple[Kernel, ...]
    total: float
    steady: bool = True


def is_plausible(ratio: float) -> bool:
    """Return whether a model can take this share of another one's time; else something else took it."""
    return 1 / _IMPLAUSIBLE < ratio < _IMPLAUSIBLE


def load_text() -> str:
    """Return "load average 3.2 on 2 CPUs", or "load unknown": how busy the machine is that times are measured on."""
    if not hasattr(os, "getloadavg"):  # Windows has none
        return "load unknown"
    cpus = os.cpu_count() or 1
    return f"load average {os.getloadavg()[0]:.1f} on {cpus} {'CPU' if cpus == 1 else 'CPUs'}"


def run_seconds(model: str | bytes, feeds: Feeds, runs: int = 5) -> float:
    """Return what a run takes, about: to know whether it is worth measuring.

    Args:
        model: A path, or the serialized model.
        feeds: Samples.
        runs: How often each is run; the fastest count.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load or run it.
    """
    session = make_session(model, threads=1)
    found = [min(_timed(session, feed) for _ in range(runs)) for feed in feeds]
    return sum(found) / len(found)


def profile_models(
    models: Sequence[Path], feeds: Feeds, folder: Path, *, seconds: float = 1.0
) -> list[Profile]:
    """Run models in turn, with and without a profile.

    Args:
        models: Files.
        feeds: Samples that each of them is run on.
        folder: For what onnxruntime writes.
        seconds: To spend on each model, about.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load or run one.
    """
    given = [file_nodes(path) for path in models]
    sessions = [
        make_session(
            str(path),
            threads=1,
            optimized_path=folder / f"{number}.optimized.onnx",
            profile_prefix=folder / f"{number}.profile",
        )
        for number, path in enumerate(models)
    ]
    with no_garbage_collection():
        budget = seconds * len(models) / 2
        nodes = sum(len(nodes) for nodes in given) * len(feeds)
        _rounds(lambda: _timed_round(sessions, feeds), budget, min(_MOST, 2 + _EVENTS // nodes))
        profiles = [Path(session.end_profiling()) for session in sessions]
        timed = _rounds(lambda: _timed_round(sessions, feeds), budget)
    return [
        _profile(
            given[n],
            folder / f"{n}.optimized.onnx",
            _events(profiles[n]),
            [row[n] for row in timed],
        )
        for n in range(len(models))
    ]


def _timed_round(sessions: Sequence[Any], feeds: Feeds) -> list[list[float]]:
    """Run everything once; return the seconds by model and sample."""
    return [[_timed(session, feed) for feed in feeds] for session in sessions]


def _one_run(timed: Sequence[Sequence[float]]) -> float:
    """Return the seconds of a run from those of many rounds, by sample."""
    return float(np.mean([fastest_quarter(of_sample) for of_sample in zip(*timed, strict=True)]))


def _rounds(run: Callable[[], _Round], seconds: float, most: int = _MOST) -> list[_Round]:
    """Repeat something until the time is over; at least twice, and a few times if that takes three times as long."""
    start, found = time.perf_counter(), list[_Round]()
    while len(found) < most:
        elapsed = time.perf_counter() - start
        if len(found) > 1 and elapsed > (seconds if len(found) >= _LEAST else 3 * seconds):
            break
        found.append(run())
    return found


def _timed(session: Any, feed: Mapping[str, Any]) -> float:
    start = CLOCK()
    session.run(None, dict(feed))
    return CLOCK() - start


def _profile(
    given: tuple[onnx.NodeProto, ...],
    optimized: Path,
    runs: Sequence[Mapping[str, tuple[float, int]]],
    timed: Sequence[Sequence[float]],
) -> Profile:
    total, samples = _one_run(timed), len(timed[0])
    warm = runs[samples:] or runs
    names = {name for run in warm for name in run}
    seconds = {
        name: float(
            np.mean(
                [
                    fastest_quarter([r.get(name, (0.0, 0))[0] for r in warm[n::samples]])
                    for n in range(samples)
                ]
            )
        )
        for name in names
    }
    elements = {name: size for run in warm for name, (_, size) in run.items()}
    graphs = proto_graphs(onnx.load(optimized, load_external_data=False).graph)
    nodes = {node.name: node for graph in graphs for node in graph.node}
    known = [name for name in nodes if name in seconds]
    # What is left is the calls, a little for each kernel, and what others did to runs as a whole: a busy machine
    # interrupts most runs, and few kernels.
    inside = sum(seconds[name] for name in known)
    each = min(_CALL, max(0.0, total - inside) / max(1, len(known)))
    factor = (total - each * len(known)) / inside if inside > 0 else 1.0
    return Profile(
        given=given,
        kernels=tuple(
            Kernel(node=nodes[n], seconds=seconds[n] * factor + each, elements=elements[n])
            for n in known
        ),
        total=total,
        steady=_is_steady(timed),
    )


def _is_steady(timed: Sequence[Sequence[float]]) -> bool:
    """Return whether both halves of some rounds, by sample, took about as long."""
    if len(timed) < _HALVES:
        return True
    half = len(timed) // 2
    first, last = _one_run(timed[:half]), _one_run(timed[half:])
    return max(first, last) <= _STEADY * min(first, last)


class _Made(msgspec.Struct):
    output_type_shape: list[dict[str, list[int]]] = []

    @property
    def elements(self) -> int:
        """Of the first output."""
        return next(
            (prod(shape) for one in self.output_type_shape[:1] for shape in one.values()), 0
        )


class _Event(msgspec.Struct):
    cat: str
    name: str
    ts: int = 0
    dur: int = 0
    args: _Made = msgspec.field(default_factory=_Made)


def _events(profile: Path) -> list[dict[str, tuple[float, int]]]:
    """Return the seconds and output elements of each kernel by its name, run after run.

    What runs inside If, Loop or Scan is counted there, and not once more in the node that holds it.
    """
    events = msgspec.json.decode(profile.read_bytes(), type=list[_Event])
    profile.unlink()
    runs = sorted((e.ts, e.ts + e.dur) for e in events if e.name == _RUN_EVENT)
    kernels = [e for e in events if e.cat == _NODE_EVENT and e.name.endswith(_SUFFIX)]
    kernels.sort(key=lambda e: (e.ts, -e.dur))
    found: list[dict[str, tuple[float, int]]] = [{} for _ in runs]
    number = 0
    open_: list[tuple[str, int]] = []  # kernels that others run inside of, with their ends
    for event in kernels:
        while number < len(runs) - 1 and event.ts > runs[number][1]:
            number, open_ = number + 1, []
        while open_ and event.ts >= open_[-1][1]:
            open_.pop()
        run, name, own = found[number], event.name.removesuffix(_SUFFIX), event.dur * _MICRO
        before, size = run.get(name, (0.0, 0))
        run[name] = before + own, max(size, event.args.elements)
        if open_:
            outer = open_[-1][0]
            run[outer] = max(0.0, run[outer][0] - own), run[outer][1]
        open_.append((name, event.ts + event.dur))
    return found


_LAYOUT = frozenset({"ReorderInput", "ReorderOutput", "Transpose"})


class _Trace:
    """Finds which node of the graph that is planned, or which conversion of its tensors, a kernel is of."""

    def __init__(self, view: View, profile: Profile) -> None:
        self.view = view
        self.names = {node.name: index for index, node in enumerate(view.nodes)}
        self.given = {node.name: node for node in profile.given if node.name}
        self.made = {name: node for node in profile.given for name in node.output if name}
        run = [kernel.node for kernel in profile.kernels]
        self.maker = {name: node for node in run for name in node.output if name}
        self.readers = defaultdict[str, list[onnx.NodeProto]](list)
        for node in run:
            for name in node.input:
                self.readers[name].append(node)

    def tensor(self, name: str) -> str:
        """Return which tensor of the planned graph a tensor of the file is, in whatever form; "" if it is none."""
        for _ in range(len(self.made) + 1):
            node = self.made.get(name)
            if node is None:
                return name if name in self.view.readers or name in self.view.outputs else ""
            if node.name in self.names:
                outputs = self.view.nodes[self.names[node.name]].outputs
                slot = list(node.output).index(name)
                return outputs[slot] if slot < len(outputs) else ""
            if node.op_type not in CONVERSIONS | {"Max", "Identity", "Cast"} or not node.input:
                return name if name in self.view.producer else ""
            name = node.input[0]
        return ""

    def file_node(self, kernel: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return the node of the file that a kernel is named after, or makes the result of."""
        for bare in bare_names(kernel.name):
            found = self.given.get(bare) or self.made.get(bare)
            if found is not None:
                return found
        return next((self.made[n] for n in kernel.output if n in self.made), None)

    def owner(self, kernel: onnx.NodeProto) -> int | None:
        """Return the planned node that a kernel computes; None if it only converts, or nobody knows."""
        node = (
            None if kernel.op_type in _LAYOUT and self._is_added(kernel) else self.file_node(kernel)
        )
        if node is None:
            return None
        if node.name in self.names:
            return self.names[node.name]
        found = (self.view.producer.get(name) for name in (*node.output, *kernel.output))
        return next((index for index in found if index is not None), None)

    def _is_added(self, kernel: onnx.NodeProto) -> bool:
        return all(name not in self.given for name in islice(bare_names(kernel.name), 2))

    def near(self, kernel: onnx.NodeProto) -> list[int]:
        """Return the planned nodes that a kernel of no node stands beside: who reads it, else who makes what it reads."""
        ahead = [r for name in kernel.output for r in self.readers.get(name, ())]
        behind = [self.maker[name] for name in kernel.input if name in self.maker]
        # A change of layout is for the sake of the product on one of its sides.
        ahead.sort(key=lambda n: not any(op in n.op_type for op in PRODUCTS))
        for nodes in (behind, ahead) if kernel.op_type == "ReorderOutput" else (ahead, behind):
            owners = {self.owner(node) for node in nodes} - {None}
            if owners:
                return [index for index in owners if index is not None]
        return []

    def owners(self, kernel: onnx.NodeProto) -> list[int]:
        """Return the planned nodes that a kernel's seconds are shared over."""
        index = self.owner(kernel)
        return self.near(kernel) if index is None else [index]


def fused_nodes(view: View, profile: Profile) -> tuple[tuple[str, ...], ...]:
    """Return the nodes that one kernel computes, where there are several."""
    trace = _Trace(view, profile)
    ends: dict[
        int, list[int]
    ] = {}  # of the kernel that a node goes by: the nodes that it may end with
    for kernel in profile.kernels:
        owner = trace.owner(kernel.node)
        if owner is not None:
            made = (view.producer.get(trace.tensor(name)) for name in kernel.node.output)
            ends.setdefault(owner, [owner]).extend(m for m in made if m is not None)
    claimed = {*ends, *(end for several in ends.values() for end in several)}
    found = []
    for several in ends.values():
        region = list(dict.fromkeys(several))
        for index in region:  # it grows: what nobody else computes is computed here
            makers = {view.producer.get(name) for name in view.nodes[index].inputs} - {None}
            new = [m for m in makers if m is not None and m not in claimed]
            claimed.update(new)
            region += new
        if len(region) > 1:
            found.append(tuple(view.nodes[i].name for i in sorted(region)))
    return tuple(found)


@dataclass(slots=True)
class KernelSums:
    """Seconds by node and tensor, of one profile."""

    nodes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    quantize: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    dequantize: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    elements: dict[str, int] = field(default_factory=dict)
    unknown: float = 0.0

    def by_node(self) -> dict[str, float]:
        """Return the seconds of nodes, with what belongs to none shared over all of them by their size."""
        known = sum(self.nodes.values())
        factor = 1 + self.unknown / known if known > 0 else 1.0
        return {name: factor * seconds for name, seconds in self.nodes.items()}


def kernel_sums(view: View, profile: Profile) -> KernelSums:
    """Add up the seconds of a profile by planned node and tensor."""
    trace, found = _Trace(view, profile), KernelSums()
    for kernel in profile.kernels:
        node, seconds = kernel.node, kernel.seconds
        if node.op_type in CONVERSIONS and (tensor := _converted(trace, node)):
            sums = found.quantize if node.op_type == "QuantizeLinear" else found.dequantize
            sums[tensor] += seconds
            found.elements[tensor] = kernel.elements
            continue
        index = trace.owner(node)
        owners = trace.near(node) if index is None else [index]
        for owner in owners:
            found.nodes[view.nodes[owner].name] += seconds / len(owners)
        if index is not None and view.nodes[index].outputs:
            found.elements.setdefault(view.nodes[index].outputs[0], kernel.elements)
        if not owners:
            found.unknown += seconds
    return found


def node_seconds(view: View, profile: Profile) -> dict[str, float]:
    """Return what each node of a file takes, conversions included, by name; kernels of several count for the one they are named after.

    Args:
        view: The graph of the file.
        profile: Of the same file.
    """
    trace = _Trace(view, profile)
    found: dict[str, float] = defaultdict(float)
    for kernel in profile.kernels:
        owners = trace.owners(kernel.node)
        for owner in owners:
            found[view.nodes[owner].name] += kernel.seconds / len(owners)
    return dict(found)


def _converted(trace: _Trace, kernel: onnx.NodeProto) -> str:
    """Return the planned tensor that a conversion is of; "" if it is of a weight."""
    node = trace.file_node(kernel)
    if node is None or node.op_type not in CONVERSIONS or not node.input:
        return ""
    return trace.tensor(node.input[0])
