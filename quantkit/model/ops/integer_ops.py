"""One row per quantized operator: what it stands for, and where its inputs hold integers, scales and zero points.

Facts of the operators, as their schemas state them: which of them a runtime has a kernel for is the business of
`quantkit.targets`, which of them are written that of `quantkit.quantize.emit`. Everything that reads a quantized file asks here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

MICROSOFT = "com.microsoft"


class Role(Enum):
    """What a quantized operator does."""

    CONVERTS = auto()  # floats to integers, or back
    MULTIPLIES = auto()  # by weights
    LOOKS_UP = auto()  # rows of a table of weights
    COMPUTES = auto()  # anything else, on activations


@dataclass(frozen=True, slots=True)
class Operand:
    """A quantized tensor of an operator, by input slots; None: it is no input of the operator.

    Attributes:
        values: The integers.
        scale: Their scale.
        zero_point: Their zero point.
        axis: Of a weight, the axis along which there may be one scale per channel; None: its scales are laid out
            otherwise (in blocks, per direction), or there is one for all.
    """

    values: int
    scale: int | None = None
    zero_point: int | None = None
    axis: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerOp:
    """One quantized operator.

    Attributes:
        op_type: Its name.
        float_op: The float operator that it stands for; "" for conversions.
        role: What it does.
        reads: Activations that it reads as integers. Of two operands of which one may be a weight, that one is in `weights`.
        weights: Operands that are constants as a rule.
        result: Input slots of scale and zero point of what it makes; None: it makes floats or int32.
        bias: Input slot of a bias.
        passed: Inputs that it takes over from the float operator as they are: the condition of a Where.
        repeated: `reads` stands for the first of any number of operands that follow each other.
        dynamic: It quantizes what it reads on its own.
        in_integers: It computes on integers; else it makes floats of the weights first.
        domain: Its domain.
    """

    op_type: str
    float_op: str
    role: Role
    reads: tuple[Operand, ...] = ()
    weights: tuple[Operand, ...] = ()
    result: tuple[int, int] | None = None
    bias: int | None = None
    passed: tuple[int, ...] = ()
    repeated: bool = False
    dynamic: bool = False
    in_integers: bool = True
    domain: str = MICROSOFT

    @property
    def makes_sums(self) -> bool:
        """Whether it hands on the int32 sums, for others to scale."""
        return self.role is Role.MULTIPLIES and all(w.scale is None for w in self.weights)

    def operands(self, count: int) -> tuple[Operand, ...]:
        """Return where the first `count` of its operands stand, activations first."""
        if not self.repeated:
            return (*self.reads, *self.weights)[:count]
        first = self.reads[0]
        slots = [s for s in (first.values, first.scale, first.zero_point) if s is not None]
        shifts = range(0, count * len(slots), len(slots))
        return tuple(Operand(*(slot + shift for slot in slots)) for shift in shifts)


_X = (Operand(0, 1, 2),)  # what most operators read first: values, scale, zero point


def _conversion(op_type: str, **more: Any) -> IntegerOp:
    return IntegerOp(
        op_type=op_type, float_op="", role=Role.CONVERTS, in_integers=False, domain="", **more
    )


def _product(op_type: str, float_op: str, *weights: Operand, **more: Any) -> IntegerOp:
    return IntegerOp(
        op_type=op_type, float_op=float_op, role=Role.MULTIPLIES, weights=weights, **more
    )


def _lookup(op_type: str, float_op: str, *weights: Operand, **more: Any) -> IntegerOp:
    return IntegerOp(
        op_type=op_type, float_op=float_op, role=Role.LOOKS_UP, weights=weights, **more
    )


def _computed(float_op: str, *reads: Operand, result: tuple[int, int], **more: Any) -> IntegerOp:
    return IntegerOp(
        op_type=f"QLinear{float_op}",
        float_op=float_op,
        role=Role.COMPUTES,
        reads=reads,
        result=result,
        **more,
    )


_ALL = (
    _conversion("QuantizeLinear", result=(1, 2)),
    _conversion("DequantizeLinear", reads=_X),
    _conversion("DynamicQuantizeLinear", dynamic=True),
    _product(
        "QLinearConv", "Conv", Operand(3, 4, 5, 0), reads=_X, result=(6, 7), bias=8, domain=""
    ),
    _product("QLinearMatMul", "MatMul", Operand(3, 4, 5, -1), reads=_X, result=(6, 7), domain=""),
    # Without scale and zero point of its result it makes floats.
    _product("QGemm", "Gemm", Operand(3, 4, 5, 1), reads=_X, result=(7, 8), bias=6),
    _product(
        "ConvInteger", "Conv", Operand(1, None, 3, 0), reads=(Operand(0, None, 2),), domain=""
    ),
    _product(
        "MatMulInteger", "MatMul", Operand(1, None, 3, -1), reads=(Operand(0, None, 2),), domain=""
    ),
    _product(
        "MatMulIntegerToFloat", "MatMul", Operand(1, 3, 5, -1), reads=(Operand(0, 2, 4),), bias=6
    ),
    _product("DynamicQuantizeMatMul", "MatMul", Operand(1, 2, 3, -1), bias=4, dynamic=True),
    _product(
        "DynamicQuantizeLSTM", "LSTM", Operand(1, 8, 9), Operand(2, 10, 11), bias=3, dynamic=True
    ),
    _product("QAttention", "Attention", Operand(1, 4, 7, -1), reads=(Operand(0, 3, 6),), bias=2),
    # In integers at one accuracy_level alone, which is for who runs it to know.
    _product("MatMulNBits", "MatMul", Operand(1, 2, 3), bias=5, dynamic=True),
    _product("MatMulBnb4", "MatMul", Operand(1, 2), in_integers=False),
    _lookup("GatherBlockQuantized", "Gather", Operand(0, 2, 3), in_integers=False),
    _lookup(
        "QEmbedLayerNormalization",
        "EmbedLayerNormalization",
        *(Operand(slot, slot + 6, slot + 11) for slot in range(2, 7)),
    ),
    _computed("Add", *_X, Operand(3, 4, 5), result=(6, 7)),
    _computed("AveragePool", *_X, result=(3, 4)),
    _computed("Concat", Operand(2, 3, 4), result=(0, 1), repeated=True),
    _computed("GlobalAveragePool", *_X, result=(3, 4)),
    _computed("LeakyRelu", *_X, result=(3, 4)),
    _computed("Mul", *_X, Operand(3, 4, 5), result=(6, 7)),
    _computed("ReduceMean", *_X, result=(3, 4)),
    _computed("Sigmoid", *_X, result=(3, 4)),
    _computed("Softmax", *_X, result=(3, 4)),
    _computed("Where", Operand(1, 2, 3), Operand(4, 5, 6), result=(7, 8), passed=(0,)),
)

INTEGER_OPS: Mapping[str, IntegerOp] = MappingProxyType({row.op_type: row for row in _ALL})
"""Every row by its operator's name, which is used in one domain alone (or means the same in both)."""

STATIC_OPS: Mapping[str, IntegerOp] = MappingProxyType(
    {row.float_op: row for row in _ALL if row.float_op and row.result is not None}
)
"""The row that reads and makes integers of given scales, by float operator."""

CONVERSIONS = frozenset(row.op_type for row in _ALL if row.role is Role.CONVERTS)
INTEGER_PRODUCTS = frozenset(
    row.op_type for row in _ALL if row.role is Role.MULTIPLIES and row.in_integers
)
"""They multiply by weights in integers."""

QUANTIZED_PRODUCTS = frozenset(
    row.float_op for row in STATIC_OPS.values() if row.role is Role.MULTIPLIES
)
"""Float products that have a row with given scales: what runtimes make of them between DequantizeLinear."""

BLOCKWISE = frozenset({"GatherBlockQuantized", "MatMulNBits"})
"""They read weights in blocks of few bits, which a file may hold packed."""

UNPACKS = frozenset(
    {"Add", "BitShift", "Cast", "Mod", "Mul", "Reshape", "Slice", "Sub", "Transpose"}
)
"""They put packed bits together when a file is loaded (`quantkit.quantize.emit.packed`)."""

_WINDOW = frozenset({"auto_pad", "kernel_shape", "pads", "strides"})
_NONE: frozenset[str] = frozenset()
TAKEN_ATTRIBUTES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "Add": _NONE,
        "AveragePool": _WINDOW | {"ceil_mode", "count_include_pad"},
        "Concat": frozenset({"axis"}),
        "Conv": _WINDOW | {"dilations", "group"},
        "Gemm": frozenset({"transA", "transB"}),
        "GlobalAveragePool": _NONE,
        "HardSigmoid": _NONE,
        "LeakyRelu": frozenset({"alpha"}),
        "MatMul": _NONE,
        "Mul": _NONE,
        "Sigmoid": _NONE,
        "Softmax": frozenset({"axis"}),
        "Where": _NONE,
    }
)
"""Operators that are written as QLinear operators, and the attributes that these take over."""

_PREFIX = "QLinear"  # also of operators that newer runtimes have


def is_quantized(op_type: str) -> bool:
    """Say whether an operator is one that only quantized models have."""
    return op_type in INTEGER_OPS or op_type.startswith(_PREFIX)


def quantized_among(op_types: Iterable[str]) -> list[str]:
    """Return those of some operators that only quantized models have, each once, in order.

    QuantizeLinear alone makes no quantized model: it may stand before an output that is wanted in integers.
    """
    return sorted({op for op in op_types if is_quantized(op) and op != "QuantizeLinear"})


def scale_slots(op_type: str, inputs: int) -> tuple[int, ...]:
    """Return the inputs of a node with so many that are scales or zero points, in order."""
    row = INTEGER_OPS.get(op_type)
    if row is None:
        return ()
    found = [slot for o in row.operands(inputs) for slot in (o.scale, o.zero_point)]
    found += row.result or ()
    return tuple(sorted(slot for slot in found if slot is not None and slot < inputs))


def stands_for(op_type: str) -> str:
    """Return the float operator that an operator stands for, itself if it is none; so float and quantized models compare."""
    row = INTEGER_OPS.get(op_type)
    return (row.float_op if row else op_type.removeprefix(_PREFIX)) or op_type
