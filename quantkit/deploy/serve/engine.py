"""One model, loaded to answer requests: its session, its inputs and outputs, and whether requests may share a run.

A run keeps no memory for the next one: onnxruntime's arena keeps what the largest request took for ever, and is no faster
here. Threads do not spin while they wait. Whether requests may share a run is tried with made-up rows, and read from the
operators of the file (without the onnx package): that also holds for rows that nobody made up.
"""

import hashlib
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from quantkit.deploy.serve.protocol import DTYPES, Array, Port
from quantkit.errors import ModelError, UsageError, as_os_error
from quantkit.files import model_in
from quantkit.protobuf import Buffer, WireError, fields_of, varint
from quantkit.runtime.synthetic_inputs import Feeds, made_up_feeds
from quantkit.settings import closest

_ONE_RANGE = (
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
    "QAttention",
)
_RECURRENT = ("RNN", "GRU", "LSTM")
# Numbers of fields in ModelProto, GraphProto, NodeProto and AttributeProto.
_GRAPH, _NODE = 7, 1
_INPUT, _OUTPUT, _OP_TYPE, _ATTRIBUTE = 1, 2, 4, 5
_NAME, _INT, _INTS = 1, 3, 8
_LENGTH_DELIMITED = 2


def mixing_operator(content: bytes, inputs: Collection[str]) -> str:
    """Return why an operator makes a row depend on the rows next to it; "" if none is found.

    Args:
        content: The model file.
        inputs: Names of the model's inputs.
    """
    for op in _ONE_RANGE:
        if _names(content, op):
            return f"{op} gives all rows of a run one range, so that an answer would depend on who else is asking"
    if not any(_names(content, op) for op in _RECURRENT):
        return ""
    try:
        return _sequence(content, inputs)
    except (WireError, UnicodeDecodeError):  # onnxruntime's own format: only the trial can tell
        return ""


def _names(content: bytes, op: str) -> bool:
    tag = _OP_TYPE << 3 | _LENGTH_DELIMITED
    return content.find(bytes([tag, len(op)]) + op.encode()) >= 0


def _sequence(content: bytes, inputs: Collection[str]) -> str:
    """Return which recurrent operator reads the first axis of an input as its sequence; "" if none does.

    Recurrent operators read [sequence, batch, features]; exporters put a Transpose before them where the batch comes first.
    """
    leading = set(inputs)  # tensors whose first axis is that of an input
    for node in _nodes(content):
        if (
            node.op in _RECURRENT
            and node.inputs[0] in leading
            and not any(node.numbers.get("layout", ()))
        ):
            return f"the first axis is the sequence of a {node.op}, which carries a state from row to row"
        moved = node.op == "Transpose" and node.numbers.get("perm", (1,))[0] != 0
        if not moved and node.op not in {"Shape", "Size"} and not leading.isdisjoint(node.inputs):
            leading.update(node.outputs)
    return ""


@dataclass(slots=True)
class _Node:
    op: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)


def _nodes(content: Buffer) -> Iterator[_Node]:
    """Yield the nodes of the main graph in their order."""
    for graph in fields_of(content, 0, len(content)):
        if graph.number != _GRAPH:
            continue
        for one in fields_of(content, graph.value, graph.end):
            if one.number == _NODE:
                yield _node(content, one.value, one.end)


def _node(content: Buffer, start: int, end: int) -> _Node:
    found = _Node()
    for one in fields_of(content, start, end):
        if one.number == _ATTRIBUTE:
            found.numbers |= _numbers(content, one.value, one.end)
        elif one.number in {_INPUT, _OUTPUT, _OP_TYPE}:
            text = bytes(content[one.value : one.end]).decode()
            if one.number == _OP_TYPE:
                found.op = text
            else:
                (found.inputs if one.number == _INPUT else found.outputs).append(text)
    return found


def _numbers(content: Buffer, start: int, end: int) -> Mapping[str, tuple[int, ...]]:
    """Return the whole numbers of an attribute by its name; nothing if it has none."""
    name, values = "", []
    for one in fields_of(content, start, end):
        if one.number == _NAME:
            name = bytes(content[one.value : one.end]).decode()
        elif one.number in {_INT, _INTS}:  # a list may be packed into one field
            place = one.value
            while place < one.end:
                value, place = varint(content, place, one.end)
                values.append(value)
    return {name: tuple(values)} if values else {}


# onnxruntime's exceptions have no common base but Exception itself.
RUN_ERRORS: tuple[type[Exception], ...] = (
    *(v for v in vars(ort_state).values() if isinstance(v, type) and issubclass(v, Exception)),
    RuntimeError,
    ValueError,  # an input that its Python side refuses
)

# The protocol's names of onnxruntime's types: tensor(uint8) is UINT8.
_DATATYPES = {f"tensor({name.lower()})": name for name in DTYPES if name[:2] != "FP"}
_DATATYPES |= {"tensor(float16)": "FP16", "tensor(float)": "FP32", "tensor(double)": "FP64"}
_DATATYPES["tensor(string)"] = _DATATYPES.pop("tensor(bytes)")
_WARM_UPS = 3
_ROUNDING = 0.02  # of the largest value: what a run of several rows may differ from runs of one
# Factors of the rows of a trial. Their number is a prime: a model that groups its rows does not run on them.
_STEPS = (1.0, -1.0, 4.0, 0.25, -2.0)
_HALVED = (1, 2)  # those of them whose whole numbers are smaller
_TURNS = (1, 2)  # how far neighbours are moved on
_SEQUENCES = ("seq", "time", "frame", "step", "token", "length")  # in the name of an axis
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
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


def load_engine(
    path: Path, *, provider: str = "cpu", threads: int = 1, batch: bool = True
) -> Engine:
    """Load a model, run it a few times, and find out whether requests may share a run.

    Args:
        path: The model.
        provider: Who computes, by a name such as cpu or cuda.
        threads: For one run.
        batch: Find out whether requests may share a run; else `unbatched` says that they do not.

    Raises:
        ModelError: It cannot be read, or takes or gives what cannot be sent.
        UsageError: There is no such provider.
    """
    provider, said = _provider(provider)
    content = _content(path)
    session = _session(path, content, provider, threads)
    actual = session.get_providers()[0]
    if actual != provider:
        said = (*said, f"onnxruntime computes with {_short(actual)} instead of {_short(provider)}.")
    outputs = _ports(session.get_outputs(), path)
    engine = Engine(
        session=session,
        path=path,
        digest=hashlib.sha256(content).hexdigest(),
        inputs=_ports(session.get_inputs(), path),
        outputs=outputs,
        metadata=dict(session.get_modelmeta().custom_metadata_map),
        provider=actual,
        names=tuple(port.name for port in outputs),
    )
    feeds, reason = _runnable(engine)
    if feeds is None:
        why = f"its batching could not be tried ({reason})"
        said = (*said, f"The model was not warmed up: {reason}.")
        return replace(engine, notes=said, unbatched=why)
    alone = _unshared(engine, feeds, content) if batch else "batching is off"
    return replace(engine, notes=said, seconds=_seconds(engine, feeds), unbatched=alone)


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


def _content(path: Path) -> bytes:
    """Return the model file, read once: it may be replaced at any time, and digest and session must agree."""
    if not path.is_file():
        where = model_in(path) if path.is_dir() else "give the path of an ONNX file."
        said = f"There is no model '{path}': {where}"
        raise as_os_error(ModelError(said), FileNotFoundError)
    try:
        return path.read_bytes()
    except OSError as e:
        raise as_os_error(ModelError(f"Cannot read '{path}': {e.strerror or e}."), e) from e


def _session(path: Path, content: bytes, provider: str, threads: int) -> Any:
    if os.environ.get("ORT_DISABLE_TELEMETRY") == "1":
        ort.disable_telemetry_events()  # it may have been imported before quantkit
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Weights in files of their own are looked for next to the model.
    options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.absolute().parent))
    wanted = [provider] if provider == _CPU else [provider, _CPU]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it says of providers is compared and told
            return ort.InferenceSession(content, options, providers=wanted)
    except RUN_ERRORS as e:
        raise ModelError(f"onnxruntime {ort.__version__} does not load '{path}': {_said(e)}") from e


def _said(error: Exception) -> str:
    """Return the first line of a message, cut where nobody would read on."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line if len(line) <= 300 else f"{line[:300]}..."


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


def _seconds(engine: Engine, feeds: Feeds) -> float:
    """Return the seconds of the fastest of a few runs."""
    times = []
    for _ in range(_WARM_UPS):
        start = perf_counter()
        engine.run(feeds)
        times.append(perf_counter() - start)
    return min(times)


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


def _unshared(engine: Engine, feeds: Feeds, content: bytes) -> str:
    """Return why requests must not share a run; "" if neither the file nor a trial speaks against it."""
    for signature, port in zip(engine.session.get_inputs(), engine.inputs, strict=True):
        if not port.shape or port.shape[0] is not None:
            return f"the first axis of the input '{port}' is fixed"
        axis = str(signature.shape[0] or "")
        if any(word in axis.lower() for word in _SEQUENCES) and "batch" not in axis.lower():
            return f"the first axis of the input '{port.name}' is called '{axis}'"
    return mixing_operator(content, {port.name for port in engine.inputs}) or _tried(engine, feeds)


def _tried(engine: Engine, feeds: Feeds) -> str:
    """Return why requests must not share a run, by running rows together; "" if nothing speaks against it.

    The first, the middle and the last row each keep their place while all others change: runs of the same size, in which
    an answer must not differ by a bit. A model may be causal along its first axis: then its first row alone shows nothing.
    """
    rows = [_variant(feeds, k) for k in range(len(_STEPS))]
    places = (0, len(rows) // 2, len(rows) - 1)
    try:
        expected = engine.run(_together(rows))
        alone = {place: engine.run(rows[place]) for place in places}
        for place, single in alone.items():
            for turn in _TURNS:
                others = [*rows[turn:], *rows[:turn]]
                others[place] = rows[place]
                if why := _difference(expected, engine.run(_together(others)), single, place):
                    return why
    except RUN_ERRORS as e:
        return f"{len(rows)} rows do not run together: {_said(e).rstrip('.')}"
    for place, single in alone.items():
        others = [_not_numbers(row) for row in rows]
        others[place] = rows[place]
        with suppress(*RUN_ERRORS):  # a model may refuse them
            if why := _difference(expected, engine.run(_together(others)), single, place):
                return why
    return ""


def _difference(
    expected: Mapping[str, Array],
    found: Mapping[str, Array],
    alone: Mapping[str, Array],
    place: int,
) -> str:
    """Return how the answer to a row differs when its neighbours change, or are absent; "" if it does not."""
    for name, array in expected.items():
        other, single = found[name], alone[name]
        if array.shape != (len(_STEPS), *single.shape[1:]) or array.shape != other.shape:
            return f"the output '{name}' has no row for each row of the input"
        if not _same(array[place], other[place]):
            return f"a row's output '{name}' depends on the rows beside it"
        if not _close(array[place], single[0]):
            return f"a row's output '{name}' depends on how many rows there are, or on its place"
    return ""


def _together(rows: Sequence[Feeds]) -> dict[str, Array]:
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _variant(feeds: Feeds, k: int) -> dict[str, Array]:
    """Return another row of the same shape: floats in another range, whole numbers and masks partly smaller."""
    found = {}
    for name, array in feeds.items():
        row = np.roll(array[:1], k, axis=-1) if array.ndim > 1 else array[:1].copy()
        if row.dtype.kind == "f":
            row = row * row.dtype.type(_STEPS[k])
        elif k in _HALVED:
            # Smaller numbers are valid wherever larger ones are: as an index, a length or a mask.
            half = row.shape[-1] // 2
            row[..., half:] = row[..., half:] // 2 if row.dtype.kind in "iu" else False
        found[name] = row
    return found


def _not_numbers(row: Feeds) -> dict[str, Array]:
    """Return a row of NaN, which shows in every value that is computed with it, however small its part is."""
    return {
        name: np.full_like(array, np.nan) if array.dtype.kind == "f" else array
        for name, array in row.items()
    }


def _same(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def _close(one: Array, other: Array) -> bool:
    if one.dtype.kind != "f":
        return one.shape == other.shape
    scale = float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other)))
    return bool(np.allclose(one, other, rtol=0, atol=_ROUNDING * max(scale, 1e-6), equal_nan=True))
