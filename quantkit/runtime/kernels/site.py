"""What surrounds a product in the file, as far as onnxruntime's patterns look."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from quantkit.model.ops.float_ops import CLIPS
from quantkit.targets.patterns import MOVED_THROUGH, RESTORES

_PASSED = CLIPS | {"BatchNormalization"}
_DEEP = 6  # nodes looked through
HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass(frozen=True)
class Operand:
    """What a product reads in one slot."""

    value: ir.Value

    @cached_property
    def dequantizer(self) -> ir.Node | None:
        """The DequantizeLinear that it comes from, looking through data movement."""
        node = self.value.producer()
        for _ in range(_DEEP):
            if node is None or node.op_type not in MOVED_THROUGH or node.inputs[0] is None:
                break
            node = node.inputs[0].producer()
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    @property
    def integers(self) -> ir.Value | None:
        """The integers that are dequantized to it."""
        return None if self.dequantizer is None else self.dequantizer.inputs[0]

    @property
    def dtype(self) -> ir.DataType | None:
        """The type of those integers; None: it is float."""
        return None if self.dequantizer is None else type_of(self.dequantizer)

    @cached_property
    def is_constant(self) -> bool:
        """Whether it is known when the model is loaded."""
        return _is_constant(self.value, _DEEP)

    @property
    def stored(self) -> ir.DataType | None:
        """The type of a constant that is restored to float at load; None: it is stored as float, or no constant."""
        return _stored_type(self.value) if self.is_constant else None

    def parameter(self, slot: int) -> ir.TensorProtocol | None:
        """Return scale (1) or zero point (2) of its DequantizeLinear, if it is there and constant."""
        if self.dequantizer is None or len(self.dequantizer.inputs) <= slot:
            return None
        value = self.dequantizer.inputs[slot]
        return None if value is None else ir.convenience.get_const_tensor(value)


@dataclass(frozen=True, slots=True)
class Exit:
    """The way from a product to the QuantizeLinear behind it.

    Attributes:
        between: Relu, Clip and BatchNormalization on the way.
        quantizer: The QuantizeLinear; None if there is none.
        readers: What reads the last tensor of the way instead, in float.
        is_result: The way ends at an output of the model.
    """

    between: tuple[ir.Node, ...]
    quantizer: ir.Node | None
    readers: tuple[ir.Node, ...] = ()
    is_result: bool = False


class Readers:
    """Who reads quantized values. Each value is looked at once, however many products read it."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, dict[ir.Node, int]] = {}

    def of(self, integers: ir.Value) -> Mapping[ir.Node, int]:
        """Return the nodes that read quantized values, and how often: of each DequantizeLinear, those behind it."""
        if integers not in self._known:
            self._known[integers] = Counter(_behind(integers))
        return self._known[integers]


@dataclass(frozen=True)
class Site:
    """A product of the file with what it reads and where its result goes; `readers` is shared by all sites."""

    node: ir.Node
    readers: Readers

    @cached_property
    def operands(self) -> tuple[Operand | None, ...]:
        """What it reads, None where an input is left out."""
        return tuple(None if v is None else Operand(v) for v in self.node.inputs)

    def operand(self, slot: int) -> Operand | None:
        """Return what it reads in a slot."""
        return self.operands[slot] if slot < len(self.operands) else None

    @cached_property
    def exit(self) -> Exit:
        """Where the product's result goes."""
        value = self.node.outputs[0]
        between: list[ir.Node] = []
        for _ in range(_DEEP):
            readers = _readers(value)
            if value.is_graph_output() or len(readers) != 1:
                break
            if readers[0].op_type == "QuantizeLinear":
                return Exit(tuple(between), readers[0])
            if readers[0].op_type not in _PASSED:
                break
            between.append(readers[0])
            value = readers[0].outputs[0]
        return Exit(tuple(between), None, _readers(value), value.is_graph_output())


def type_of(conversion: ir.Node) -> ir.DataType | None:
    """Return the integer type of a QuantizeLinear or DequantizeLinear; None if the file does not say."""
    slots = (2, 0) if conversion.op_type == "DequantizeLinear" else (2,)
    for slot in slots:
        value = conversion.inputs[slot] if slot < len(conversion.inputs) else None
        if value is None:
            continue
        tensor = ir.convenience.get_const_tensor(value)
        found = value.dtype if tensor is None else tensor.dtype
        if found is not None:
            return found
    if conversion.op_type == "QuantizeLinear":
        named = int_attribute(conversion, "output_dtype", 0)
        return ir.DataType(named) if named else ir.DataType.UINT8
    source = None if conversion.inputs[0] is None else conversion.inputs[0].producer()
    return type_of(source) if source is not None and source.op_type == "QuantizeLinear" else None


def _behind(integers: ir.Value) -> Iterator[ir.Node]:
    for node in _readers(integers):
        out = node.outputs[0]
        behind = _readers(out) if node.op_type == "DequantizeLinear" else ()
        yield from behind
        if not behind or out.is_graph_output():
            yield node


def _readers(value: ir.Value) -> tuple[ir.Node, ...]:
    """Return who reads a value, once for each time."""
    return tuple(use.node for use in value.uses())


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """Return an attribute that is a whole number.

    Args:
        node: Whose attribute.
        name: The attribute.
        default: Where it is left out.
    """
    return int(node.attributes.get_int(name, default))


def _is_constant(value: ir.Value, deep: int) -> bool:
    if ir.convenience.get_const_tensor(value) is not None:
        return True
    node = value.producer()
    if node is None:
        return value.is_initializer()
    if not deep or node.op_type not in RESTORES:
        return False
    return all(v is None or _is_constant(v, deep - 1) for v in node.inputs)


def _stored_type(value: ir.Value) -> ir.DataType | None:
    """Return the type of the constant that a value is restored from; None if that is the float type that it is read in."""
    for deep in range(_DEEP):
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is not None:
            kind = tensor.dtype
            return kind if kind.is_integer() or (deep and kind in HALVES) else None
        node = value.producer()
        if node is None or not node.inputs or node.inputs[0] is None:
            return None
        value = node.inputs[0]
    return None
