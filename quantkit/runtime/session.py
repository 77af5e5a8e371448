"""The installed onnxruntime: what it reads, how a model is loaded into it, what it raises.

The one place where sessions are made.

`HalfPorts` feeds and reads sessions with inputs or outputs of 16 bits as float32. Numpy has no bfloat16. Inputs of float16 take float32 too, so that a model and its float16 form run on the same samples.
"""

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from quantkit.errors import ModelError, RuntimeSupportError
from quantkit.files import scratch
from quantkit.model.graph.half import computes_bfloat16, widen
from quantkit.model.graph.load import LoadedModel, load
from quantkit.model.graph.mapping import mapped_model
from quantkit.model.graph.normalize import inline_functions
from quantkit.model.graph.protos import to_ir
from quantkit.model.graph.save import Stage, unchecked
from quantkit.numerics.half import halved

_BFLOAT16 = "tensor(bfloat16)"
_ONNX_TYPE = ir.DataType.BFLOAT16.value
_KINDS = {"tensor(float16)": np.dtype(np.float16), _BFLOAT16: ir.DataType.BFLOAT16.numpy()}
_BITS = 16  # a bfloat16 is the first half of a float32

if os.environ.get("ORT_DISABLE_TELEMETRY") == "1":
    ort.disable_telemetry_events()  # it may have been imported before quantkit


# onnxruntime 1.20, the oldest that quantkit installs with, reads IR version 10.
_IR_READ_BY_ALL = 10

# onnxruntime's exceptions have no common base but Exception itself.
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(v for v in vars(ort_state).values() if isinstance(v, type) and issubclass(v, Exception)),
    RuntimeError,
)

# Where the tensors are that a model given as bytes has outside of it.
_FOLDER = "session.model_external_initializers_file_folder_path"
# Which file, beside an optimized model that is saved, takes its weights.
_OPTIMIZED_WEIGHTS = "session.optimized_model_external_initializers_file_name"


class HalfPorts:
    """A session that takes or gives halves: it may be fed with floats, and what is bfloat16 comes out as float32."""

    def __init__(self, session: Any, value: Any) -> None:
        """Wrap a session of onnxruntime; `value` is its class of values."""
        inputs, outputs = session.get_inputs(), session.get_outputs()
        self._session = session
        self._value = value
        self._halves = {i.name: _KINDS[i.type] for i in inputs if i.type in _KINDS}
        self._plain = all(port.type != _BFLOAT16 for port in (*inputs, *outputs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(
        self, names: Sequence[str] | None, feeds: Mapping[str, NDArray[Any]], options: Any = None
    ) -> list[Any]:
        """Run it as `InferenceSession.run` does."""
        given = {n: _fitted(x, self._halves.get(n)) for n, x in feeds.items()}
        if self._plain:
            found: list[Any] = self._session.run(names, given, options)
            return found
        # Values point into arrays, which must outlive the run.
        bits = {n: x.view(np.uint16) for n, x in given.items() if x.dtype == _KINDS[_BFLOAT16]}
        values = {n: self._value.ortvalue_from_numpy(x) for n, x in given.items() if n not in bits}
        for name, array in bits.items():
            values[name] = self._value.ortvalue_from_numpy_with_onnx_type(array, _ONNX_TYPE)
        return [
            _array(found) for found in self._session.run_with_ort_values(names, values, options)
        ]


def has_half_ports(session: Any) -> bool:
    """Say whether a session takes float16, or takes or gives bfloat16."""
    taken = (port.type in _KINDS for port in session.get_inputs())
    return any(taken) or any(port.type == _BFLOAT16 for port in session.get_outputs())


def widened_feeds(feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return inputs that any form of a model takes: halves as float32, of which sessions of halves make halves again."""
    halves = _KINDS.values()
    return {n: x.astype(np.float32) if x.dtype in halves else x for n, x in feeds.items()}


def _fitted(array: NDArray[Any], kind: np.dtype[Any] | None) -> NDArray[Any]:
    """Return floats in the type that an input has; what is no float is left to onnxruntime to complain of."""
    if kind is None or array.dtype == kind:
        return array
    floats = array.dtype == np.float32 or array.dtype in _KINDS.values()
    return np.ascontiguousarray(halved(array, kind)) if floats else array


def _array(value: Any) -> Any:
    """Return a result of onnxruntime as an array of a type that numpy has."""
    if value.data_type() != _BFLOAT16:
        return value.numpy()
    shape = tuple(value.shape())
    bits = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    wide = np.ctypeslib.as_array(bits).astype(np.uint32) << _BITS
    return wide.view(np.float32).reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLimits:
    """The newest IR version and opset that the installed onnxruntime loads."""

    ir_version: int
    opset: int


def runtime_version() -> str:
    """Return the installed onnxruntime's version."""
    return str(ort.__version__)


def readable_ir_version(wanted: int) -> int:
    """Return `wanted`, or the newest IR version that the installed onnxruntime reads."""
    return wanted if wanted <= _IR_READ_BY_ALL else min(wanted, runtime_limits().ir_version)


@cache
def runtime_limits() -> RuntimeLimits:
    """Find the newest IR version and opset by loading models of one node."""
    newest_ir = next(v for v in range(onnx.IR_VERSION, 2, -1) if _loads(v, 13))
    newest_opset = onnx.defs.onnx_opset_version()
    opset = next(v for v in range(newest_opset, 6, -1) if _loads(newest_ir, v))
    return RuntimeLimits(ir_version=newest_ir, opset=opset)


def _loads(ir_version: int, opset: int) -> bool:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    node = ir.node("Identity", [x])
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": opset}, name="probe")
    node.outputs[0].name = "y"
    node.outputs[0].type = x.type
    model = ir.Model(graph, ir_version=ir_version)
    try:
        make_session(ir.serde.serialize_model(model).SerializeToString())
    except RUNTIME_ERRORS:
        return False
    return True


def make_session(  # noqa: PLR0913 - one parameter per question
    model: str | bytes,
    *,
    folder: Path | None = None,
    level: int = 99,
    prepack: bool = True,
    threads: int = 0,
    arena: bool = True,
    optimized_path: Path | None = None,
    profile_prefix: Path | None = None,
) -> Any:
    """Load a model; one in bfloat16, for which there are no kernels, is computed in float32.

    Args:
        model: A path, or the serialized model.
        folder: Where the external data of a serialized model is.
        level: How far onnxruntime optimizes: 0 not at all, 99 as users run it.
        prepack: Let kernels keep their own copy of weights: faster, more memory.
        threads: For one operator; 0 is onnxruntime's choice.
        arena: Keep the memory of a run for the next one: faster, and more of it than a run needs.
        optimized_path: Where to save the graph that onnxruntime runs; its weights go to a file
            beside it, so that the size has no limit and the graph is read without them.
        profile_prefix: How the file begins that the seconds of each kernel are written to, when profiling is ended.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = ort.GraphOptimizationLevel(level)
    settings.intra_op_num_threads = threads
    settings.enable_cpu_mem_arena = arena
    if folder is not None:
        settings.add_session_config_entry(_FOLDER, str(folder))
    if not prepack:
        settings.add_session_config_entry("session.disable_prepacking", "1")
    # Threads that wait busily take the cores from other sessions, and up to twice the CPU time for the same run.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if optimized_path is not None:
        settings.optimized_model_filepath = str(optimized_path)
        settings.add_session_config_entry(_OPTIMIZED_WEIGHTS, f"{optimized_path.name}.data")
    if profile_prefix is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = str(profile_prefix)
    try:
        session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    except RUNTIME_ERRORS:
        with widened_file(model, folder) as wide:
            if wide is None:
                raise
            settings.add_session_config_entry(_FOLDER, str(wide.parent))
            session = ort.InferenceSession(str(wide), settings, providers=["CPUExecutionProvider"])
    return HalfPorts(session, ort.OrtValue) if has_half_ports(session) else session


@contextmanager
def widened_file(model: str | bytes, folder: Path | None) -> Iterator[Path | None]:
    """Write a model that computes in bfloat16, for which there are no kernels, so that it computes in float32.

    Yields None for any other model.

    Args:
        model: A path, or the serialized model.
        folder: Where the external data of a serialized model is.
    """
    found = _widened(model, folder)
    if found is None:
        yield None
        return
    unchecked(found)  # onnxruntime has the last word
    with scratch() as place:
        stage = Stage(place / "widened.onnx", place)
        stage.write(found)
        yield stage.model_path


def _widened(model: str | bytes, folder: Path | None) -> ir.Model | None:
    try:
        found = load(model).model if isinstance(model, str) else _parsed(model, folder)
        if not computes_bfloat16(found):
            return None
        widen(found)
    except (ModelError, DecodeError, RuntimeError, TypeError, ValueError):
        return None  # whoever asked knows what is wrong with it
    return found


def _parsed(message: bytes, folder: Path | None) -> ir.Model:
    model = to_ir(onnx.ModelProto.FromString(message))
    inline_functions(model)
    if folder is not None:
        ir.external_data.set_base_dir(model.graph, folder)
    return model


def run_options() -> Any:
    """Return onnxruntime's options of one run, by which another thread can stop it."""
    return ort.RunOptions()


def as_value(array: NDArray[Any]) -> Any:
    """Return an array as onnxruntime's own kind of value, which sessions hand on without a copy."""
    return ort.OrtValue.ortvalue_from_numpy(array)


def load_model(source: str | Path | onnx.ModelProto) -> LoadedModel:
    """Open a model as `quantkit.model.graph.load` does; where onnx's checker complains of it, onnxruntime has the last word.

    Raises:
        ModelError: As `load`.
        RuntimeSupportError: Neither onnx's checker nor onnxruntime takes the model.
    """
    loaded = load(source)
    if loaded.complaint:
        try:
            float_session(loaded)
        except RUNTIME_ERRORS as e:
            raise RuntimeSupportError(
                _limit(loaded)
                or f"{loaded.name} is not valid ONNX, and onnxruntime {runtime_version()} does not load it: "
                f"{loaded.complaint}"
            ) from e
        unchecked(loaded.model)
    return loaded


def float_session(source: LoadedModel) -> Any:
    """Load the float model as it is: mapped, not optimized, used once."""
    if source.path is None:
        assert source.proto is not None  # noqa: S101 - one of the two is given
        source.proto.ir_version = readable_ir_version(source.proto.ir_version)
        return make_session(source.proto.SerializeToString(), level=0)
    mapped = mapped_model(source.path, readable_ir_version)
    return make_session(mapped.structure, folder=mapped.folder, prepack=False, level=0)


def first_line(error: Exception) -> str:
    """Return the first line of a message of onnxruntime."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def why_not_loaded(source: LoadedModel, message: str) -> str:
    """Say what keeps onnxruntime from loading a model: IR version, opset, custom domain, or what it said itself."""
    said = next(iter(message.strip().splitlines()), "")
    return _limit(source) or f"onnxruntime {runtime_version()} does not load {source.name}: {said}"


def _limit(source: LoadedModel) -> str:
    """Say which of IR version, opset or custom domain is beyond onnxruntime; "" if none is."""
    limits = runtime_limits()
    model = source.model
    version = f"onnxruntime {runtime_version()}"
    opset = model.opset_imports.get("", 1)
    if opset > limits.opset:
        return (
            f"{source.name} uses opset {opset}; {version} supports up to {limits.opset}: export it "
            "with a lower opset, or install a newer onnxruntime."
        )
    known = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"}
    used = {node.domain for node in model.graph.all_nodes()}
    custom = sorted(used - known)
    if custom:
        return (
            f"{source.name} uses operators of the custom domain '{custom[0]}', which {version} does "
            "not have; run with verification off to quantize it unseen."
        )
    if (model.ir_version or 0) > limits.ir_version:
        return (
            f"{source.name} has IR version {model.ir_version}; {version} reads up to "
            f"{limits.ir_version}: install a newer onnxruntime."
        )
    return ""
