"""Inner tensors of a model, read while it runs: outputs are added for them.

Nothing is copied: the structure of the model's file, with outputs added, points into that file. Only
for a model in memory, or with functions (whose inner tensors the file does not name), the graph is
written anew.

`hand_out` lets the main graph hand out tensors inside If, Loop and Scan, which a run does not show by itself. Of a branch of an If a tensor becomes one more result; the other branch gives an empty one in its place, so that what
comes out empty was not computed. A body runs many times, and what it makes may have another shape each time, which
neither Loop nor Scan can collect. So from each turn come `SAMPLED` of the tensor's values, evenly spaced in their order,
the least and the largest among them; NaN in their place says that there was none.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import local
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.edit import own_name
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.mapping import mapped_model
from quantkit.model.graph.protos import proto_graphs, to_proto
from quantkit.model.graph.shapes import dtype
from quantkit.model.ops.float_ops import LOOPS
from quantkit.runtime.session import RUNTIME_ERRORS, HalfPorts, make_session, readable_ir_version
from quantkit.runtime.synthetic_inputs import Feeds

Arrays = list[NDArray[Any]]

_FLOAT = onnx.TensorProto.FLOAT
_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
_ENDS = ("ReduceMin", "ReduceMax")

SAMPLED = 1025  # values of a tensor from one turn of a loop
_SORTS = 11  # opset from which TopK tells the order; Scan has no batch of its own from 9 on


def read_tensors(
    model: Path | ir.Model,
    tensors: Iterable[str],
    samples: Sequence[Feeds],
    *,
    optimized: bool = True,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Run a model on each sample; yield the values of its inputs and inner tensors, of whatever type they are.

    Args:
        model: A file, or a model in memory, which is left as it is.
        tensors: Names; those that the main graph does not have are left out.
        samples: What to feed; without any, no session is made.
        optimized: As users run it; False: nothing is fused, so that the values are those that the file describes.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load or run it.
    """
    return TensorReader(model, tensors, optimized=optimized).read(samples)


class TensorReader:
    """Reads tensors of a model on samples, as `read_tensors` does; all calls share one session."""

    def __init__(
        self, model: Path | ir.Model, tensors: Iterable[str], *, optimized: bool = True
    ) -> None:
        # Inputs are in the sample already; what nodes of the main graph compute becomes an output. What an If or Loop
        # computes is left out, and so are constants, which the caller has.
        self._proto, self._folder = _structure(model)
        inputs, made = _names_in(self._proto)
        wanted = dict.fromkeys(tensors)
        self._fed = [n for n in wanted if n in inputs]
        self._inner = [n for n in wanted if n in made]
        self._optimized = optimized

    @cached_property
    def _session(self) -> Any:
        _add_outputs(self._proto.graph, self._inner)
        level, message = 99 if self._optimized else 0, self._proto.SerializeToString()
        return make_session(message, folder=self._folder, level=level, prepack=self._optimized)

    def read(self, samples: Iterable[Feeds]) -> Iterator[dict[str, NDArray[Any]]]:
        """Run the model on each sample; yield the values by tensor."""
        for sample in samples:
            found = {name: sample[name] for name in self._fed}
            if self._inner:
                values = self._session.run(self._inner, dict(sample))
                found |= zip(self._inner, values, strict=True)
            yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """Where a tensor comes out: one name per value; two (minimum, maximum) if it stays inside.

    An input of the graph is its own tap: `outputs` is empty.

    Attributes:
        tensor: Its name.
        outputs: The outputs of the model.
        only_ends: Minimum and maximum are enough.
        handed_out: It stands inside of If, Loop or Scan, and is empty where nothing computed it.
        sampled: Of many turns some values each came out; NaN is none.
    """

    tensor: str
    outputs: tuple[str, ...]
    only_ends: bool = False
    handed_out: bool = False
    sampled: bool = False

    def read(self, arrays: Iterator[NDArray[Any]]) -> NDArray[Any]:
        """Return its values, or their minimum and maximum, from what the outputs gave."""
        if not self.outputs:
            return np.empty(0, np.float32)
        if len(self.outputs) > 1:
            return np.array([next(arrays), next(arrays)])
        array = next(arrays)
        if self.sampled:
            array = array[~np.isnan(array)]
        if self.only_ends and self.handed_out and array.size:
            return np.array([array.min(), array.max()])
        return array


class TappedSession:
    """A session that gives float tensors of a float model, batch by batch; the threads of a process share it."""

    def __init__(
        self,
        source: LoadedModel,
        tensors: Iterable[str],
        *,
        only_ends: Collection[str] = (),
        threads: int = 0,
        arena: bool = True,
    ) -> None:
        """Load the model, with its types inferred.

        Args:
            source: The model.
            tensors: Which tensors to read; other floats become float32.
            only_ends: Those of which minimum and maximum are enough: they are found inside the graph.
            threads: See `quantkit.runtime.session.make_session`.
            arena: The same.
        """
        wanted = tuple(dict.fromkeys(tensors))

        def load(*, inside: bool) -> None:
            tapped = _tapped(source, wanted, only_ends, inside=inside)
            self.taps = tapped.taps
            self._session = make_session(
                tapped.message, folder=tapped.folder, threads=threads, arena=arena
            )

        try:
            load(inside=True)
        except RUNTIME_ERRORS:
            # Subgraphs that hand out more are perhaps not taken; without, what they hold is not seen.
            load(inside=False)
        self._names = [name for tap in self.taps for name in tap.outputs]
        self._local = local()

    def rest(self) -> None:
        """Give the memory of the last run back: what is forked now need not have it."""
        self._local = local()

    def run(self, feeds: Feeds) -> Iterator[tuple[str, NDArray[Any]]]:
        """Run one batch; yield each tensor with its values, or with its minimum and maximum."""
        if not hasattr(self._local, "runner"):
            self._local.runner = Runner(self._session, self._names)
        arrays = iter(self._local.runner.run(feeds))
        for tap in self.taps:
            fed = not tap.outputs and not tap.handed_out
            yield tap.tensor, feeds[tap.tensor] if fed else tap.read(arrays)


class _Tapped(NamedTuple):
    """A model whose inner tensors come out."""

    message: bytes
    folder: Path | None
    taps: tuple[Tap, ...]


def _tapped(
    source: LoadedModel, tensors: Sequence[str], only_ends: Collection[str], *, inside: bool
) -> _Tapped:
    """Add outputs for tensors; see `TappedSession`. `inside`: also for those in subgraphs."""
    proto, folder = _structure(source.model if source.path is None else source.path)
    if not _names_each(proto, tensors):  # the insides of functions, two branches that share names
        proto, folder = _structure(source.model)
    inputs, made = _names_in(proto)
    hidden = {*inner_names(proto)} - inputs - made
    dtypes = _dtypes(source.model)
    floats = [t for t in tensors if t in hidden and dtypes.get(t) in _FLOATS]
    inner = hand_out(proto, floats if inside else ())
    # Five cases per tensor: an input of the graph is in the sample already; one of a subgraph is handed out, or nothing
    # is seen of it; one that the model puts out is not listed twice; one that is not float32 is cast, as statistics are
    # of float32; one of which only minimum and maximum are asked is reduced inside the graph, so that two numbers leave
    # it instead of megabytes.
    taps = []
    for tensor in tensors:
        tap = Tap(tensor=tensor, outputs=(tensor,), only_ends=tensor in only_ends)
        if tensor in inputs:
            tap = replace(tap, outputs=())
        elif tensor in hidden:
            name, sampled = inner.get(tensor, ("", False))
            outputs = (name,) if name else ()
            tap = replace(tap, outputs=outputs, handed_out=True, sampled=sampled)
        else:
            if dtypes.get(tensor) not in {None, ir.DataType.FLOAT}:
                tap = replace(tap, outputs=(_node(proto.graph, "Cast", [tensor], to=_FLOAT),))
            if tap.only_ends:
                read = tap.outputs[0]
                ends = (_node(proto.graph, op, [read], keepdims=0) for op in _ENDS)
                tap = replace(tap, outputs=tuple(ends))
        taps.append(tap)
    _add_outputs(proto.graph, [name for tap in taps for name in tap.outputs])
    return _Tapped(proto.SerializeToString(), folder, tuple(taps))


def _structure(model: Path | ir.Model) -> tuple[onnx.ModelProto, Path | None]:
    """Return a model as a message, and the folder that its weights are in if they are not in it."""
    if isinstance(model, Path):
        mapped = mapped_model(model, readable_ir_version)
        return onnx.ModelProto.FromString(mapped.structure), mapped.folder
    proto = to_proto(model)
    proto.ir_version = readable_ir_version(proto.ir_version)
    return proto, None


def _names_in(proto: onnx.ModelProto) -> tuple[set[str], set[str]]:
    """Return the names of a graph's inputs, and of what its nodes make."""
    inputs = {value.name for value in proto.graph.input}
    return inputs, {name for node in proto.graph.node for name in node.output}


def _names_each(proto: onnx.ModelProto, tensors: Collection[str]) -> bool:
    """Say whether a message names each of these tensors, and by the name of one no other of a subgraph."""
    main = set().union(*_names_in(proto))
    inner = Counter(inner_names(proto))
    return all((name in main) + inner[name] == 1 for name in tensors)


def _dtypes(model: ir.Model) -> dict[str, ir.DataType | None]:
    """Return the types of all that nodes make and subgraphs are given, as far as they were inferred."""
    made = {own_name(v): v.dtype for node in model.graph.all_nodes() for v in node.outputs}
    _, *inner = model.graphs()
    return made | {own_name(v): v.dtype or dtype(v) for graph in inner for v in graph.inputs}


def _add_outputs(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    listed = {value.name for value in graph.output}
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in listed)


class Runner:
    """One thread's way to run a session; several threads share the session.

    The second batch of the same shapes is written into the arrays of the first: an image of MobileNetV2
    has 28 MB of activations, and asking the system for them each time costs as much as reading them.
    An array is valid until the next run.
    """

    def __init__(self, session: Any, outputs: Sequence[str]) -> None:
        self._session = session
        self._outputs = list(outputs)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._arrays: Arrays = []
        self._binding: Any = None

    def run(self, feeds: Feeds) -> Arrays:
        """Return the values of the outputs, in their order."""
        if not self._outputs:
            return []  # onnxruntime would give all there are
        shapes = {name: array.shape for name, array in feeds.items()}
        if shapes != self._shapes or not self._bindable():
            return self._run_anew(feeds, shapes)
        if self._binding is None:
            self._binding = self._bind()
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, np.ascontiguousarray(array))
        try:
            self._session.run_with_iobinding(self._binding)
        except RUNTIME_ERRORS:  # an output's shape depends on values, not on shapes
            return self._run_anew(feeds, shapes)
        return self._arrays

    def _run_anew(self, feeds: Feeds, shapes: dict[str, tuple[int, ...]]) -> Arrays:
        self._binding = None
        self._shapes = shapes
        self._arrays = self._session.run(self._outputs, dict(feeds))
        return self._arrays

    def _bindable(self) -> bool:
        if isinstance(self._session, HalfPorts):
            return False
        return all(a.dtype == np.float32 and a.size for a in self._arrays)

    def _bind(self) -> Any:
        binding = self._session.io_binding()
        for name, array in zip(self._outputs, self._arrays, strict=True):
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return binding


def inner_names(proto: onnx.ModelProto) -> list[str]:
    """Return the names of all that subgraphs are given or make, each as often as it occurs."""
    _, *inner = proto_graphs(proto.graph)
    return [name for graph in inner for name in _made(graph)]


def hand_out(proto: onnx.ModelProto, tensors: Collection[str]) -> Mapping[str, tuple[str, bool]]:
    """Let subgraphs hand out tensors as float32, in place.

    Args:
        proto: The model; names in it are unique over all graphs.
        tensors: Names of floats; those that stand in no If, Loop or Scan are passed over.

    Returns:
        The value of the main graph that each tensor is now, and whether it is a sample of its values.
    """
    return _Hands(frozenset(tensors), _opset(proto)).through(proto.graph)


class _Hands:
    """Hands tensors from the innermost graph to the main one, one level after the other."""

    def __init__(self, wanted: frozenset[str], opset: int) -> None:
        self.wanted = wanted
        self.opset = opset

    def through(self, graph: onnx.GraphProto) -> dict[str, tuple[str, bool]]:
        """Let all nodes of a graph hand out what their subgraphs hold; return it by tensor."""
        found: dict[str, tuple[str, bool]] = {}
        for node in graph.node:
            if node.domain not in {"", "ai.onnx"}:
                continue
            if node.op_type == "If":
                found |= self._of_branches(node)
            elif node.op_type in LOOPS and self.opset >= _SORTS:
                found |= self._of_body(node)
        return found

    def _inside(self, graph: onnx.GraphProto) -> dict[str, tuple[str, bool]]:
        """Return all that one graph can hand out, its own tensors as float32."""
        found = self.through(graph)
        for name in [made for made in _made(graph) if made in self.wanted]:
            found[name] = (_node(graph, "Cast", [name], to=_FLOAT), False)
        return found

    def _of_branches(self, node: onnx.NodeProto) -> dict[str, tuple[str, bool]]:
        branches = {a.name: a.g for a in node.attribute if a.HasField("g")}
        found: dict[str, tuple[str, bool]] = {}
        for place, branch in branches.items():
            others = [other for at, other in branches.items() if at != place]
            for tensor, (name, sampled) in self._inside(branch).items():
                _result(branch, name)
                for other in others:
                    empty = np.empty(0, np.float32)
                    _result(other, _constant(other, f"quantkit/nothing/{tensor}", empty))
                node.output.append(f"quantkit/If/{tensor}")
                found[tensor] = (node.output[-1], sampled)
        return found

    def _of_body(self, node: onnx.NodeProto) -> dict[str, tuple[str, bool]]:
        body = next(a.g for a in node.attribute if a.HasField("g"))
        found: dict[str, tuple[str, bool]] = {}
        if len(node.output) != len(body.output) - (node.op_type == "Loop"):
            return found  # results that nobody reads are left out
        unchanged = _unchanged(node.op_type, body)
        for tensor, (name, _) in self._inside(body).items():
            if tensor in unchanged:
                continue
            result = f"quantkit/{node.op_type}/{tensor}"
            _result(body, _sample(body, name))
            node.output.append(result)
            found[tensor] = (result, True)
        for attribute in node.attribute:
            if attribute.name in {"scan_output_axes", "scan_output_directions"}:
                attribute.ints.extend([0] * len(found))
        return found


def _unchanged(op_type: str, body: onnx.GraphProto) -> frozenset[str]:
    """Return what is handed from turn to turn as it is: weights, of which each turn would sort millions of values again."""
    first_input, first_output = (2, 1) if op_type == "Loop" else (0, 0)
    given, made = list(body.input)[first_input:], list(body.output)[first_output:]
    return frozenset(v.name for v, o in zip(given, made, strict=False) if v.name == o.name)


def _sample(graph: onnx.GraphProto, name: str) -> str:
    """Add nodes that take evenly spaced values of a tensor in their order, NaN if it has none; return their result."""
    flat = _constant(graph, f"quantkit/flat/{name}", np.array([-1]))
    nothing = _constant(graph, f"quantkit/none/{name}", np.array([np.nan], np.float32))
    steps = _constant(graph, f"quantkit/steps/{name}", np.arange(SAMPLED))
    last = _constant(graph, f"quantkit/last/{name}", np.array([SAMPLED - 1]))
    one, zero = (_constant(graph, f"quantkit/{n}/{name}", np.array([n])) for n in (1, 0))
    row = _node(graph, "Reshape", [name, flat])
    row = _node(
        graph, "Compress", [row, _node(graph, "Not", [_node(graph, "IsNaN", [row])])], axis=0
    )
    count = _node(graph, "Shape", [row])
    ordered = _node(graph, "TopK", [row, count], results=2)
    values = _node(graph, "Concat", [ordered, nothing], axis=0)
    highest = _node(graph, "Max", [_node(graph, "Sub", [count, one]), zero])
    places = _node(graph, "Div", [_node(graph, "Mul", [steps, highest]), last])
    return _node(graph, "Gather", [values, places], axis=0)


def _made(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (name for node in graph.node for name in node.output if name)


def _opset(proto: onnx.ModelProto) -> int:
    versions = [int(i.version) for i in proto.opset_import if i.domain in {"", "ai.onnx"}]
    return max(versions, default=1)


def _result(graph: onnx.GraphProto, name: str) -> None:
    value = graph.output.add(name=name)
    value.type.tensor_type.elem_type = _FLOAT


def _constant(graph: onnx.GraphProto, name: str, array: np.ndarray) -> str:
    """Add a constant; a graph's result cannot be an initializer everywhere, that of a node can."""
    node = graph.node.add(op_type="Constant", name=name)
    node.output.append(name)
    tensor = onnx.numpy_helper.from_array(array)
    node.attribute.add(name="value", t=tensor, type=onnx.AttributeProto.TENSOR)
    return name


def _node(
    graph: onnx.GraphProto, op_type: str, inputs: list[str], results: int = 1, **attributes: int
) -> str:
    name = f"quantkit/{op_type}/{inputs[0]}"
    node = graph.node.add(op_type=op_type, name=name)
    node.input.extend(inputs)
    node.output.extend([name, *(f"{name}/{n}" for n in range(1, results))])
    for key, value in attributes.items():
        node.attribute.add(name=key, i=value, type=onnx.AttributeProto.INT)
    return name
