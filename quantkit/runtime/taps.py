"""Inner tensors of a model, read while it runs: outputs are added for them.

Nothing is copied: the structure of the model's file, with outputs added, points into that file. Only
for a model in memory, or with functions (whose inner tensors the file does not name), the graph is
written anew.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.graph.load import LoadedModel
from quantkit.graph.mapping import mapped_model
from quantkit.graph.messages import to_proto
from quantkit.runtime.session import RUNTIME_ERRORS, make_session, readable_ir_version
from quantkit.runtime.synthetic_inputs import Feeds

__all__ = ["Runner", "Tap", "TappedSession", "read_tensors"]

Arrays = list[NDArray[Any]]

_FLOAT = int(ir.DataType.FLOAT)
_ENDS = ("ReduceMin", "ReduceMax")


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
    # Inputs are in the sample already; what nodes of the main graph make becomes an output. What an If or Loop makes
    # cannot be one, and constants the caller has: both are left out.
    proto, folder = _structure(model)
    inputs, made = _names_in(proto)
    wanted = dict.fromkeys(tensors)
    fed, inner = [n for n in wanted if n in inputs], [n for n in wanted if n in made]
    session = None
    if samples and inner:
        _add_outputs(proto.graph, inner)
        session = make_session(
            proto.SerializeToString(),
            folder=folder,
            level=99 if optimized else 0,
            prepack=optimized,
            spinning=optimized,
        )
    for sample in samples:
        found = {name: sample[name] for name in fed}
        if session is not None:
            found |= zip(inner, session.run(inner, dict(sample)), strict=True)
        yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """Where a tensor comes out: one name per value; two (minimum, maximum) if it stays inside.

    An input of the graph is its own tap: `outputs` is empty.
    """

    tensor: str
    outputs: tuple[str, ...]


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
        tensors = tuple(dict.fromkeys(tensors))
        proto, folder = _structure(source.model if source.path is None else source.path)
        if not set().union(*_names_in(proto)) >= set(tensors):  # the insides of functions
            proto, folder = _structure(source.model)
        inputs, _ = _names_in(proto)
        dtypes = {v.name: v.dtype for node in source.model.graph for v in node.outputs}
        # Four cases per tensor: an input of the graph is in the sample already; one that the model puts out is not
        # listed twice; one that is not float32 is cast, as statistics are of float32; one of which only minimum and
        # maximum are asked is reduced inside the graph, so that two numbers leave it instead of megabytes.
        taps = []
        for tensor in tensors:
            outputs: tuple[str, ...] = () if tensor in inputs else (tensor,)
            if outputs and dtypes.get(tensor) not in {None, ir.DataType.FLOAT}:
                outputs = (_add_node(proto.graph, "Cast", tensor, to=_FLOAT),)
            if outputs and tensor in only_ends:
                outputs = tuple(_add_node(proto.graph, op, outputs[0], keepdims=0) for op in _ENDS)
            taps.append(Tap(tensor=tensor, outputs=outputs))
        self.taps = tuple(taps)
        self._names = [name for tap in taps for name in tap.outputs]
        _add_outputs(proto.graph, self._names)
        source.release()  # what was read of its weights, before the session takes room for its own
        self._session = make_session(
            proto.SerializeToString(), folder=folder, threads=threads, arena=arena
        )
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
            if not tap.outputs:
                yield tap.tensor, feeds[tap.tensor]
            elif len(tap.outputs) == 1:
                yield tap.tensor, next(arrays)
            else:
                yield tap.tensor, np.array([next(arrays), next(arrays)])


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


def _add_outputs(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    listed = {value.name for value in graph.output}
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in listed)


def _add_node(graph: onnx.GraphProto, op_type: str, tensor: str, **attributes: int) -> str:
    name = f"quantkit/{op_type}/{tensor}"
    node = graph.node.add(op_type=op_type, name=name)
    node.input.append(tensor)
    node.output.append(name)
    for key, value in attributes.items():
        node.attribute.add(name=key, i=value, type=onnx.AttributeProto.INT)
    return name


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
        return all(a.dtype == np.float32 and a.size for a in self._arrays)

    def _bind(self) -> Any:
        binding = self._session.io_binding()
        for name, array in zip(self._outputs, self._arrays, strict=True):
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return binding
