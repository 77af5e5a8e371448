"""One model, loaded to answer requests: its session, its inputs and outputs, and whether requests may share a run.

A run keeps no memory for the next one: onnxruntime's arena keeps what the largest request took for ever, and is no faster
here. Threads do not spin while they wait.
"""

import hashlib
import mmap
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from quantkit.errors import ModelError, UsageError, as_os_error
from quantkit.files import model_in
from quantkit.runtime.synthetic_inputs import Feeds, made_up_feeds
from quantkit.serve.protocol import Array, Port
from quantkit.settings import closest

__all__ = ["RUN_ERRORS", "Engine", "load_engine"]

# onnxruntime's exceptions have no common base but Exception itself.
RUN_ERRORS: tuple[type[Exception], ...] = (
    *(v for v in vars(ort_state).values() if isinstance(v, type) and issubclass(v, Exception)),
    RuntimeError,
    ValueError,  # an input that its Python side refuses
)

_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
# Operators that give all rows of a run one range.
_SHARING = (
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
    "QAttention",
)
_OP_TYPE = 0x22  # the tag of a node's operator in a file of ONNX: field 4, a text
_WARM_UPS = 3
_ROUNDING = 0.02  # of the largest value: what a run of two rows may differ from two runs of one
_STEPS = (-1.0, 4.0, 0.25)  # what a neighbour is multiplied with
_CPU = "CPUExecutionProvider"
_SUFFIX = "ExecutionProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A model that is ready to answer.

    Attributes:
        session: onnxruntime's.
        path: Its file.
        digest: The file's sha256.
        inputs: What it takes.
        outputs: What it gives.
        metadata: What the model says of itself.
        provider: Who computes.
        seconds: Of one run with one row, when it was warmed up; 0: it could not be.
        unbatched: Why requests must not share a run; "" if they may.
        notes: What a user should know.
        names: Of the outputs.
    """

    session: Any
    path: Path
    digest: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    metadata: Mapping[str, str]
    provider: str
    seconds: float = 0.0
    unbatched: str = ""
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def run(self, feeds: Mapping[str, Array], options: Any = None) -> dict[str, Array]:
        """Run it once; raises one of `RUN_ERRORS`."""
        return dict(zip(self.names, self.session.run(self.names, feeds, options), strict=True))

    def fits(self, other: "Engine") -> bool:
        """Say whether callers of the other model can be answered by this one: it takes the same, and gives the same."""
        return (
            self.inputs == other.inputs
            and self.names == other.names
            and all(_alike(*pair) for pair in zip(self.outputs, other.outputs, strict=True))
        )


def _alike(one: Port, other: Port) -> bool:
    """Say whether two outputs can have the same values: where both fix an extent it is the same."""
    open_shape = not one.shape or not other.shape  # which may be a single number, or unsaid
    return one.datatype == other.datatype and (
        open_shape
        or (
            len(one.shape) == len(other.shape)
            and all(
                None in pair or pair[0] == pair[1]
                for pair in zip(one.shape, other.shape, strict=True)
            )
        )
    )


def load_engine(path: Path, *, provider: str = "cpu", threads: int = 1) -> Engine:
    """Load a model, run it a few times, and find out whether requests may share a run.

    Args:
        path: The model.
        provider: Who computes, by a name such as cpu or cuda.
        threads: For one run.

    Raises:
        ModelError: It cannot be read, or takes or gives what cannot be sent.
        UsageError: There is no such provider.
    """
    provider, said = _provider(provider)
    session = _session(path, provider, threads)
    actual = session.get_providers()[0]
    if actual != provider:
        said = (*said, f"onnxruntime computes with {_short(actual)} instead of {_short(provider)}.")
    outputs = _ports(session.get_outputs(), path)
    engine = Engine(
        session=session,
        path=path,
        digest=_digest(path),
        inputs=_ports(session.get_inputs(), path),
        outputs=outputs,
        metadata=dict(session.get_modelmeta().custom_metadata_map),
        provider=actual,
        names=tuple(port.name for port in outputs),
    )
    return _warmed_up(engine, said)


def _provider(name: str) -> tuple[str, tuple[str, ...]]:
    """Return onnxruntime's name of a provider, or the CPU's and why."""
    available = ort.get_available_providers()
    short = {_short(one): one for one in available}
    wanted = name.lower().removesuffix(_SUFFIX.lower())
    if wanted in short:
        return short[wanted], ()
    known = [_short(one) for one in ort.get_all_providers()]
    if wanted not in known:
        raise UsageError(
            f"provider '{name}' is unknown{closest(wanted, known)}: use one of {', '.join(known)}."
        )
    return _CPU, (
        f"The provider '{name}' is not in this onnxruntime, which has {', '.join(short)}: the CPU computes instead.",
    )


def _short(provider: str) -> str:
    return provider.removesuffix(_SUFFIX).lower()


def _session(path: Path, provider: str, threads: int) -> Any:
    if os.environ.get("ORT_DISABLE_TELEMETRY") == "1":
        ort.disable_telemetry_events()  # it may have been imported before quantkit
    if not path.is_file():
        where = model_in(path) if path.is_dir() else "give the path of an ONNX file."
        said = f"There is no model '{path}': {where}"
        raise as_os_error(ModelError(said), FileNotFoundError)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    wanted = [provider] if provider == _CPU else [provider, _CPU]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it says of providers is compared and told
            return ort.InferenceSession(str(path), options, providers=wanted)
    except RUN_ERRORS as e:
        raise ModelError(f"onnxruntime {ort.__version__} does not load '{path}': {_said(e)}") from e


def _said(error: Exception) -> str:
    """Return the first line of a message, cut where nobody would read on."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line if len(line) <= 300 else f"{line[:300]}..."  # noqa: PLR2004 - characters


def _ports(signature: Sequence[Any], path: Path) -> tuple[Port, ...]:
    found = []
    for one in signature:
        datatype = _DATATYPES.get(one.type)
        if datatype is None:
            raise ModelError(
                f"'{one.name}' of '{path.name}' is a {one.type}, which the protocol cannot send: "
                "export the model with tensors (skl2onnx: zipmap=False; bfloat16: float32)."
            )
        shape = tuple(n if isinstance(n, int) and n >= 0 else None for n in one.shape)
        found.append(Port(name=one.name, datatype=datatype, shape=shape))
    return tuple(found)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _warmed_up(engine: Engine, said: tuple[str, ...]) -> Engine:
    """Run the model on made-up inputs; look for what keeps requests from sharing a run."""
    feeds, reason = _runnable(engine)
    if feeds is None:
        why = f"its batching could not be tried ({reason})"
        said = (*said, f"The model was not warmed up: {reason}.")
        return replace(engine, notes=said, unbatched=why)
    times = []
    for _ in range(_WARM_UPS):
        start = perf_counter()
        engine.run(feeds)
        times.append(perf_counter() - start)
    return replace(
        engine,
        notes=said,
        seconds=min(times),
        unbatched=_shared(engine.path) or _tried(engine, feeds),
    )


def _runnable(engine: Engine) -> tuple[Feeds | None, str]:
    """Return made-up inputs that the model runs on; None and the reason if none does."""
    reason = "no value can be made up for one of its inputs"
    for feeds in made_up_feeds(engine.session.get_inputs()):
        try:
            engine.run(feeds)
        except RUN_ERRORS as e:
            reason = f"made-up inputs do not run: {_said(e).rstrip('.')}"
        else:
            return feeds, ""
    return None, reason


def _shared(path: Path) -> str:
    """Say which operator of a file gives all rows of a run one range; "" if there is none."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for op in _SHARING:
            if content.find(bytes([_OP_TYPE, len(op)]) + op.encode()) >= 0:
                return f"{op} gives all rows of a run one range, so that an answer would depend on who else is asking"
    return ""


def _tried(engine: Engine, feeds: Feeds) -> str:
    """Say why requests must not share a run, by running two rows together; "" if nothing speaks against it.

    A row beside itself and beside others: runs of the same size, in which its answer must not differ by a bit.
    """
    if not all(port.shape and port.shape[0] is None for port in engine.inputs):
        fixed = next(
            str(port) for port in engine.inputs if not port.shape or port.shape[0] is not None
        )
        return f"the first axis of the input '{fixed}' is fixed"
    alone = engine.run(feeds)
    row = {name: array[:1] for name, array in feeds.items()}
    try:
        expected = engine.run(_beside(row, row))
        others = [engine.run(_beside(row, _other(row, step))) for step in _STEPS]
    except RUN_ERRORS as e:
        return f"two rows do not run together: {_said(e).rstrip('.')}"
    for name, array in expected.items():
        if array.shape[:1] != (2,) or array.shape[1:] != alone[name].shape[1:]:
            return f"the output '{name}' has no row for each row of the input"
        if not all(_same(array[0], other[name][0]) for other in others):
            return f"a row's output '{name}' depends on the rows beside it"
        if not _close(array[0], alone[name][0]):
            return f"a row's output '{name}' depends on how many rows there are"
    return ""


def _beside(row: Feeds, other: Feeds) -> dict[str, Array]:
    return {name: np.concatenate([array, other[name]]) for name, array in row.items()}


def _other(row: Feeds, step: float) -> dict[str, Array]:
    """Return another row of the same shape: floats in another range, integers in another order, masks as they are."""
    return {
        name: array * array.dtype.type(step) if array.dtype.kind == "f" else np.flip(array)
        for name, array in row.items()
    }


def _same(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def _close(one: Array, other: Array) -> bool:
    if one.dtype.kind != "f":
        return one.shape == other.shape
    scale = float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other)))
    return bool(np.allclose(one, other, rtol=0, atol=_ROUNDING * max(scale, 1e-6), equal_nan=True))
