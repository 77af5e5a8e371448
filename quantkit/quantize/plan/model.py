"""What a plan is: frozen data addressed by node and tensor name, that round-trips through JSON.

`SolvedIntegers` are numbers that were found for a plan: integers of weights, and biases. What is missing is computed as
the plan says.

`to_plain` and `from_plain` are one codec, by the declared fields of the dataclasses that a plan consists of. A field with `quantkit.spec.LEFT_OUT` in its metadata is newer than the first files, or says nothing as a rule: it is not
written where it has its default. A `Reason` is written as sentence, code and facts, an integer type by its name, and what
shares a scale with a tag (``{"per": "axis", "axis": 1}``).

`write_plan` and `read_plan` handle the JSON file, which people read and edit; `diff_plans` compares two plans.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from functools import cache, cached_property
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from quantkit.errors import UsageError, as_os_error
from quantkit.files import replace_text
from quantkit.model.ops.view import Node
from quantkit.numerics.blocks import BlockGrid
from quantkit.numerics.dtypes import IntType
from quantkit.reasons import Reason
from quantkit.settings import Coverage, QdqSettings
from quantkit.spec import LEFT_OUT, Granularity, QuantSpec, named_int_type

_KERNEL_BITS = (2, 4, 8)
HalfType = Literal["float16", "bfloat16"]

_FIRST = ("target", "output_format", "block_format", "min_opset")  # in files
_LARGEST = 3.4028234e38  # of float32
_Scale = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
_Small = Annotated[int, Meta(ge=-(2**31), lt=2**31)]

_T = TypeVar("_T")
_SHARES = get_args(Granularity)
_REASON: list[Any] = [("why", str), ("code", str, "other"), ("facts", dict[str, Any], {})]

# What a plan lists, and what an entry is known by.
_LISTED = {"nodes": "node", "activations": "tensor", "weights": "tensor", "halves": "tensor"}

FORMAT = "quantkit.plan.1"


def kernel_bits(bits: int) -> int:
    """Return in how many bits kernels of weights in blocks read a weight that has so many in the file."""
    return bits if bits in _KERNEL_BITS else _KERNEL_BITS[-1]


class Format(StrEnum):
    """How integer arithmetic is written down."""

    # Float operators between DequantizeLinear and QuantizeLinear; the runtime fuses them.
    QDQ = "qdq"
    # QLinear operators; what runs is what is written.
    QOPERATOR = "qoperator"


class BlockFormat(StrEnum):
    """How weights in blocks are written down."""

    # onnxruntime's own operators: MatMulNBits, GatherBlockQuantized.
    CONTRIB = "contrib"
    # DequantizeLinear of blocks in front of the float operator.
    ONNX = "onnx"


class Mode(StrEnum):
    """How a node runs in the quantized model."""

    STATIC = "static"  # integer arithmetic between tensors whose ranges were calibrated
    ABSORBED = "absorbed"  # gone: the quantization of its output clips as it did
    INTEGER = "integer"  # integer weights, inputs quantized as they come (or integer look-up)
    BLOCKS = (
        "blocks"  # integer weights in blocks, which the kernel itself multiplies float inputs by
    )
    STORED = "stored"  # weights of fewer bits in the file, turned back to float once, at load
    HALF = "half"  # computed in float16
    FLOAT = "float"  # unchanged

    @property
    def words(self) -> str:
        """What people call it; `value` is what files say."""
        return _WORDS[self]


_WORDS = {
    Mode.STATIC: "static int8",
    Mode.ABSORBED: "fused into the layer before",
    Mode.INTEGER: "dynamic int8",
    Mode.BLOCKS: "weights in blocks",
    Mode.HALF: "float16",
    Mode.STORED: "weights only",
    Mode.FLOAT: "float",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What happens to one node, and why.

    Attributes:
        node: Its name.
        op_type: Its operator.
        mode: How it runs.
        reason: Why.
        float_output: It reads calibrated integers, but hands on floats.
        accuracy_level: Of MatMulNBits: 4 rounds activations to 8 bits, a block at a time; else they stay float.
    """

    node: str
    op_type: str
    mode: Mode
    reason: Reason
    float_output: bool = False
    accuracy_level: Annotated[int, Meta(ge=0, le=4)] = field(default=0, metadata=LEFT_OUT)

    @classmethod
    def of(
        cls, node: Node, mode: Mode, reason: Reason, *, float_output: bool = False
    ) -> "NodePlan":
        """Return the plan of a node of the view."""
        return cls(
            node=node.name,
            op_type=node.op_type,
            mode=mode,
            reason=reason,
            float_output=float_output,
        )

    @property
    def why(self) -> str:
        """The reason in a sentence."""
        return str(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """How one weight is quantized.

    Attributes:
        tensor: Its name.
        spec: The integers that kernels read, or that become float at load.
        transposed: It is written with its two axes swapped, because every node that reads it wants it so.
        blocks: It has fewer than 8 bits in the file, or a step for each block; None: one integer of `spec` per value. Rows run along the axis
            of `spec`. What is read in integers is made of the codes when the file is loaded.
    """

    tensor: str
    spec: QuantSpec
    transposed: bool = False
    blocks: BlockGrid | None = field(default=None, metadata=LEFT_OUT)

    @property
    def bits(self) -> int:
        """Of a value in the file."""
        return self.spec.dtype.bits if self.blocks is None else self.blocks.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfPlan:
    """A float tensor that the file holds in 16 bits.

    Attributes:
        tensor: An initializer, or an input or output of the model.
        dtype: "float16" or "bfloat16".
        reason: Why.
    """

    tensor: str
    dtype: HalfType
    reason: Reason

    @property
    def why(self) -> str:
        """The reason in a sentence."""
        return str(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPlan:
    """How one tensor that is computed at run time is quantized.

    Invariants: scale > 0 and a float32; the zero point is a value of `dtype`. `shares`: the tensor whose numbers these are,
    where the file is to have them once; "" for its own.
    """

    tensor: str
    dtype: IntType
    scale: _Scale
    zero_point: _Small
    reason: Reason
    shares: str = field(default="", metadata=LEFT_OUT)
    converted: "Conversion | None" = field(default=None, metadata=LEFT_OUT)

    @property
    def why(self) -> str:
        """The reason in a sentence."""
        return str(self.reason)

    @property
    def low(self) -> float:
        """The smallest value that it can hold."""
        return (self.dtype.qmin - self.zero_point) * self.scale

    @property
    def high(self) -> float:
        """The largest value that it can hold."""
        return (self.dtype.qmax - self.zero_point) * self.scale

    def read_by(self, node: str) -> "ActivationPlan":
        """Return the numbers in which a node reads it."""
        converted = self.converted
        if converted is None or (converted.readers and node not in converted.readers):
            return self
        return replace(
            self, dtype=converted.dtype, scale=converted.scale, zero_point=converted.zero_point
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The other numbers in which some nodes read a quantized tensor; no `readers`: all of them do."""

    dtype: IntType
    scale: _Scale
    zero_point: _Small
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that does not run in calibrated integers, because that was measured to be slower, or to lose too much.

    `reason`: None only while it is tried what else it could be. `mode`: how it runs instead: INTEGER, quantized as it comes; STORED, in float with its weight in 8 bits; or FLOAT. None is
    as dynamic quantization decides. Where INTEGER or STORED cannot be had, the next one is.
    """

    reason: Reason | None
    mode: Mode | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All decisions about a model. Nothing after it decides anything.

    Attributes:
        nodes: Every node that was thought about, in graph order.
        weights: Every weight that is quantized.
        min_opset: The lowest opset that the emitted operators need.
        activations: Every tensor that is computed at run time and quantized with fixed numbers.
        integer_bias: The bias of a calibrated product is int32, in the scale of its sums; else float.
        factors_id: Names the factors by which channels were equalized before ranges were taken; "" if they were not.
            Scales hold only for a model with the same factors; files call them `evened`.
        target: What it was made for, a name that `quantkit.targets.target` knows; None of dynamic plans, and of files
            older than this field.
        output_format: How it is to be written down, if nobody says otherwise; None likewise.
        block_format: How weights in blocks are; None where there are none.
        coverage: Which nodes were to be quantized: what gains by it, or all. Of the latter nothing is added that is not
            a quantization: what it looks like is asked for.
        qdq: How pairs are written.
        halves: Every float tensor that the file holds in 16 bits.
    """

    nodes: tuple[NodePlan, ...]
    weights: tuple[WeightPlan, ...]
    min_opset: Annotated[int, Meta(ge=1, le=1000)]
    activations: tuple[ActivationPlan, ...] = ()
    integer_bias: bool = True
    factors_id: str = field(default="", metadata={"name": "evened"})
    target: str | None = field(default=None, metadata=LEFT_OUT)
    output_format: Format | None = field(default=None, metadata=LEFT_OUT)
    block_format: BlockFormat | None = field(default=None, metadata=LEFT_OUT)
    coverage: Coverage = field(default="gain", metadata=LEFT_OUT)
    qdq: QdqSettings = field(default_factory=QdqSettings, metadata=LEFT_OUT)
    halves: tuple[HalfPlan, ...] = field(default=(), metadata=LEFT_OUT)

    def __str__(self) -> str:
        """Count the decisions."""
        modes = Counter(node.mode for node in self.nodes)
        counted = ", ".join(f"{modes[mode]} {mode.words}" for mode in Mode if modes[mode])
        text = f"{len(self.nodes)} nodes" + (f" ({counted})" if counted else "")
        text += (
            f", {len(self.weights)} quantized weights" if self.weights or not self.halves else ""
        )
        text += f", {len(self.halves)} tensors in 16 bits" if self.halves else ""
        ranges = len(self.activations)
        return f"{text}, {ranges} activations with calibrated ranges" if ranges else text

    def __repr__(self) -> str:
        return f"<Plan: {self}>"

    @property
    def changes(self) -> bool:
        """Whether anything is quantized."""
        computed = {Mode.STATIC, Mode.INTEGER, Mode.BLOCKS, Mode.HALF}
        return bool(self.weights or self.halves) or any(n.mode in computed for n in self.nodes)

    @cached_property
    def activation(self) -> dict[str, ActivationPlan]:
        """Activation plans by tensor name."""
        return {a.tensor: a for a in self.activations}

    @cached_property
    def weight(self) -> dict[str, WeightPlan]:
        """Weight plans by tensor name."""
        return {w.tensor: w for w in self.weights}

    @cached_property
    def half(self) -> dict[str, HalfPlan]:
        """Plans of 16 bits by tensor name."""
        return {h.tensor: h for h in self.halves}

    @cached_property
    def node(self) -> dict[str, NodePlan]:
        """Node plans by node name."""
        return {n.node: n for n in self.nodes}

    def counts(self) -> dict[str, Counter[Mode]]:
        """Return how many nodes of each operator run in each mode."""
        table: dict[str, Counter[Mode]] = {}
        for node in self.nodes:
            table.setdefault(node.op_type, Counter())[node.mode] += 1
        return table

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `from_json` is its inverse. What is not known about target and format is left out."""
        plain = to_plain(self)
        return {key: plain[key] for key in (*_FIRST, *plain) if key in plain}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Plan":
        """Read what `to_json` wrote.

        Raises:
            UsageError: An edit made it wrong; says where.
        """
        return from_plain(cls, plain)


def to_plain(value: Any) -> Any:
    """Return what JSON can hold of a part of a plan; `from_plain` is its inverse."""
    match value:
        case IntType():
            return value.name
        case Enum():
            return value.value
        case tuple():
            return [to_plain(one) for one in value]
        case _ if is_dataclass(value):
            return _written(value)
    return value


def _written(record: Any) -> dict[str, Any]:
    plain = {"per": _tag(type(record))} if isinstance(record, _SHARES) else {}
    for one in fields(record):
        value = getattr(record, one.name)
        if isinstance(value, Reason):
            plain |= value.to_json()
        elif not one.metadata.get("left_out") or value != _default(one):
            plain[_name(one)] = to_plain(value)
    return plain


def from_plain(kind: type[_T], plain: Any) -> _T:
    """Read what `to_plain` wrote.

    Raises:
        UsageError: It is none of this kind; says where.
    """
    try:
        shape: Any = kind
        found: _T = _built(kind, msgspec.convert(plain, _schema(shape)))
    except msgspec.ValidationError as e:
        raise UsageError(f"{e}.") from e
    return found


def _built(kind: Any, read: msgspec.Struct) -> Any:
    """Return a record of what the file says, whose shape is right."""
    given: dict[str, Any] = {}
    hints = _hints(kind)
    for one in fields(kind):
        if hints[one.name] is Reason:
            given[one.name] = Reason.from_json(**{n: getattr(read, n) for n, *_ in _REASON})
        else:
            given[one.name] = _value(hints[one.name], getattr(read, _name(one)))
    return kind(**given)


def _value(hint: Any, value: Any) -> Any:
    if hint is IntType:
        return named_int_type(value)
    if hint is QdqSettings:
        return _qdq_settings(value)
    if isinstance(value, msgspec.Struct):
        kinds: list[Any] = [k for k in (hint, *get_args(hint)) if is_dataclass(k)]
        return _built(next(kind for kind in kinds if type(value) is _schema(kind)), value)
    if isinstance(value, tuple):
        return tuple(_value(get_args(hint)[0], part) for part in value)
    return value


def _qdq_settings(plain: dict[str, Any]) -> QdqSettings:
    """Read settings, which check their values themselves; JSON made lists of tuples."""
    known = {one.name for one in fields(QdqSettings)}
    if strange := sorted(plain.keys() - known):
        raise UsageError(f"qdq has no '{strange[0]}': known are {', '.join(sorted(known))}.")
    axes = tuple((str(op_type), axis) for op_type, axis in plain.get("channel_axes", ()))
    outputs = tuple(plain.get("float_outputs", ()))
    return QdqSettings(**{**plain, "channel_axes": axes, "float_outputs": outputs})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields; evaluating them takes longer than reading a record."""
    return get_type_hints(kind)


@cache
def _schema(kind: Any) -> type[msgspec.Struct]:
    """Return what the file must hold of a dataclass."""
    members: list[Any] = []
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        hint, default = hints[one.name], _default(one)
        if hint is Reason:
            members += _REASON
            continue
        given = () if default is MISSING else ({} if hint is QdqSettings else default,)
        members.append((_name(one), _file_type(hint), *given))
    tag = _tag(kind) if kind in _SHARES else None
    return msgspec.defstruct(
        kind.__name__,
        members,
        kw_only=True,
        forbid_unknown_fields=True,
        tag=tag,
        tag_field=tag and "per",
    )


def _file_type(hint: Any) -> Any:
    """Return the type of a field as the file has it."""
    if hint is IntType:
        return str
    if hint is QdqSettings:
        return dict[str, Any]
    if is_dataclass(hint):
        return _schema(hint)  # type: ignore[arg-type]  # it is a type
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        return tuple[tuple(_file_type(one) if one is not ... else ... for one in inner)]  # type: ignore[misc]
    if origin in {Union, UnionType}:
        return Union[tuple(_file_type(one) for one in inner)]  # noqa: UP007 - made of a list
    return hint


def _default(field: Field[Any]) -> Any:
    """Return the default of a field; MISSING if it must be given."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _name(field: Field[Any]) -> str:
    """Return what files call a field."""
    name: str = field.metadata.get("name", field.name)
    return name


def _tag(kind: type) -> str:
    return kind.__name__.removeprefix("Per").lower()


def diff_plans(before: Plan, after: Plan) -> list[str]:
    """Return one line for each decision that differs, in the order of the plans."""
    old, new = before.to_json(), after.to_json()
    lines = [
        f"{key}: {old.get(key, 'not known')} -> {new.get(key, 'not known')}"
        for key in (
            "target",
            "output_format",
            "block_format",
            "min_opset",
            "integer_bias",
            "evened",
        )
        if old.get(key) != new.get(key)
    ]
    lines += [
        f"{key}: {getattr(before, key)} -> {getattr(after, key)}"
        for key in ("coverage", "qdq")
        if getattr(before, key) != getattr(after, key)
    ]
    for key, name in _LISTED.items():
        was = {entry[name]: entry for entry in old.get(key, ())}
        now = {entry[name]: entry for entry in new.get(key, ())}
        for item in {**was, **now}:
            lines += _changes(f"{name} '{item}'", was.get(item), now.get(item))
    return lines


def _changes(what: str, was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    if was is None or now is None:
        return [f"{what}: {'added' if was is None else 'removed'}"]
    return [
        f"{what}: {key} {was.get(key)} -> {now.get(key)}"
        for key in {**was, **now}
        if key not in {"why", "code", "facts"} and was.get(key) != now.get(key)
    ]


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan.

    Raises:
        OutputError: It cannot be written.
    """
    text = json.dumps({"format": FORMAT, **plan.to_json()}, indent=1)
    replace_text(Path(path), f"{text}\n")


def read_plan(path: str | Path) -> Plan:
    """Read a plan.

    Raises:
        UsageError: There is no such file, it is not a plan, or an edit made it wrong; says where.
    """
    try:
        plain = json.loads(
            Path(path).read_text(encoding="utf-8-sig"),  # some editors mark UTF-8
            object_pairs_hook=_unrepeated,
            parse_constant=_no_number,
        )
    except OSError as e:
        raise as_os_error(UsageError(f"Cannot read plan '{path}': {e.strerror or e}."), e) from e
    except UnicodeDecodeError as e:
        raise UsageError(f"'{path}' is no UTF-8 text: save the file as UTF-8.") from e
    except ValueError as e:
        raise UsageError(f"'{path}' is not JSON: {e}.") from e
    except RecursionError as e:
        raise UsageError(f"'{path}' is no plan: it is nested too deeply.") from e
    if not isinstance(plain, dict) or plain.pop("format", None) != FORMAT:
        raise UsageError(f"'{path}' is not a plan that this quantkit reads ('{FORMAT}').")
    try:
        return Plan.from_json(plain)
    except UsageError as e:
        raise UsageError(f"Plan '{path}' is wrong: {str(e).rstrip('.')}.") from e


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice: which of the two is meant cannot be told."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the key '{twice}' stands twice in one place")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
