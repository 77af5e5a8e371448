"""Constants as a model stores them: their type, and the floats that integers stand for.

An integer constant means nothing by itself. Its scale and zero point are found at who reads it:

    DequantizeLinear(q, s, z)          QLinearConv(..., q, s, z, ...), QLinearMatMul, QGemm
    Mul(Sub(Cast(q), z), s)            MatMulInteger(x, q, zx, z) -> Cast -> Mul(., Mul(sx, s))

all of which stand for ``w = (q - z) s``, also behind a Gather of rows. A bias of QLinearConv or QGemm has the scale
of input times weight.

`Factors` gives weights as they were before channels were equalized or smoothed, by the factors that the model notes.
With x and y what a product reads and makes, and x / d, y / e what the equalized model holds
(`quantkit.model.graph.channel_factors`):

    w'[o, i] = w[o, i] d[i] / e[o]        b'[o] = b[o] / e[o]
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.channel_factors import read_divisors
from quantkit.model.graph.unpack import STORED_BYTES
from quantkit.model.ops.float_ops import KEEPS_FACTORS
from quantkit.model.ops.integer_ops import (
    CONVERSIONS,
    INTEGER_OPS,
    QUANTIZED_PRODUCTS,
    STATIC_OPS,
    Operand,
    scale_slots,
)
from quantkit.numerics.dtypes import int_type
from quantkit.numerics.packing import unpack

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scaling:
    """Where a constant's scale and zero point are.

    Attributes:
        scales: Constants whose product is the scale.
        zero: The zero point; None: 0.
        axis: Along which there is one scale per channel; None: they broadcast as they are.
        block: Values along `axis` that share a scale; 0: one per channel.
    """

    scales: tuple[ir.Value, ...]
    zero: ir.Value | None = None
    axis: int | None = None
    block: int = 0

    def scale(self) -> Floats:
        """Return the scale, as it is stored."""
        found = np.ones((), np.float32)
        for value in self.scales:
            found = np.asarray(found * array_of(value).astype(np.float32))
        return found

    def restored(self, integers: NDArray[Any]) -> Floats:
        """Return ``(q - z) s``."""
        z = np.float32(0) if self.zero is None else array_of(self.zero).astype(np.float32)
        centred = integers.astype(np.float32) - self._fitted(np.asarray(z), integers)
        return np.asarray(centred * self._fitted(self.scale(), integers), np.float32)

    def _fitted(self, array: Floats, integers: NDArray[Any]) -> Floats:
        """Return a parameter so that it broadcasts against the constant."""
        if self.axis is None or array.size == 1:
            return array.reshape(()) if array.size == 1 else array
        axis = self.axis % integers.ndim
        if self.block:
            repeated = np.repeat(array, self.block, axis)
            return repeated[tuple(slice(n) for n in integers.shape)]
        return array.reshape([-1 if i == axis else 1 for i in range(integers.ndim)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """Codes of MatMulNBits or GatherBlockQuantized: (N, bytes), or (N, blocks, bytes).

    Attributes:
        scales: The steps of blocks, (N, blocks).
        zero: Their zeros, packed like codes; None: in the middle.
        bits: Of a code.
        size: Of a block.
        inputs: K of a product, whose weight is (K, N) in float; None: rows are looked up.
    """

    scales: tuple[ir.Value, ...]
    zero: ir.Value | None
    bits: int
    size: int
    inputs: int | None

    def scale(self) -> Floats:
        """Return the steps, as they are stored."""
        return array_of(self.scales[0]).astype(np.float32)

    def restored(self, integers: NDArray[Any]) -> Floats:
        """Return the weight as a float product or look-up has it."""
        rows = integers.shape[0]
        codes = self._codes(integers.reshape(rows, -1))
        steps = self.scale().reshape(rows, -1)
        if self.zero is None:
            zeros = np.full(steps.shape, 1 << (self.bits - 1), np.uint8)
        else:
            zeros = self._codes(array_of(self.zero).reshape(rows, -1))[:, : steps.shape[1]]
        inputs = codes.shape[1] if self.inputs is None else self.inputs
        zero = np.repeat(zeros.astype(np.float32), self.size, axis=1)[:, :inputs]
        step = np.repeat(steps, self.size, axis=1)[:, :inputs]
        rows_first = np.asarray((codes[:, :inputs] - zero) * step, np.float32)
        return rows_first if self.inputs is None else rows_first.T

    def _codes(self, packed: NDArray[Any]) -> NDArray[np.uint8]:
        if self.bits == 8:
            return packed.astype(np.uint8)
        shape = (packed.shape[0], packed.shape[1] * 8 // self.bits)
        flat = packed.astype(np.uint8).reshape(-1)
        return unpack(flat, int_type(f"uint{self.bits}"), shape)


def array_of(value: ir.Value) -> NDArray[Any]:
    """Return the contents of a constant."""
    assert value.const_value is not None  # noqa: S101 - callers looked
    return value.const_value.numpy()


def _scaling_of(value: ir.Value) -> _Scaling | _Blocks | None:
    """Return how the first reader that tells turns a constant into floats; None if none does."""
    found = (_by_reader(use.node, use.idx) for use in value.uses())
    return next((scaling for scaling in found if scaling is not None), None)


def _by_reader(node: ir.Node, slot: int) -> _Scaling | _Blocks | None:
    found: _Scaling | _Blocks | None
    match node.op_type, slot:
        case "MatMulNBits", 1:
            found = _in_blocks(node, 2, _integer(node, "K", 0))
        case "GatherBlockQuantized", 0:
            found = _in_blocks(node, 2, None)
        case "DequantizeLinear", 0:
            axis, block = _integer(node, "axis", 1), _integer(node, "block_size", 0)
            found = _of_slots(node, 1, 2, axis, block)
        case "Cast", _:
            found = _behind_cast(node)
        case "Gather", 0:
            found = _scaling_of(node.outputs[0])
        case _:
            found = _of_operator(node, slot)
    return found


def _of_operator(node: ir.Node, slot: int) -> _Scaling | None:
    """Return what an operator on integers says of its weight, or of a bias in the scale of its sums."""
    # Where the scale of a constant is written depends on what reads it: beside it, for a weight of an operator that
    # takes scales; behind it, for operators that hand on raw sums (MatMulInteger), where Cast and Mul follow;
    # nowhere, for a bias in int32, whose scale is the product of the activation's and the weight's. If one of two is
    # computed at run time, the bias has no scale that could be compared.
    row = INTEGER_OPS.get(node.op_type)
    weight = row.weights[0] if row is not None and row.weights else None
    if row is None or weight is None or weight.axis is None:
        return None
    if slot == weight.values and row.makes_sums:
        return _behind_product(node, weight)
    if slot == weight.values:
        axis = 0 if _integer(node, "transB", 0) else weight.axis
        return _of_slots(node, weight.scale, weight.zero_point, axis)
    return _of_bias(node, row.reads[0], weight) if slot == row.bias and row.reads else None


def _of_bias(node: ir.Node, read: Operand, weight: Operand) -> _Scaling | None:
    scales = [_constant(node, operand.scale) for operand in (read, weight)]
    known = tuple(s for s in scales if s is not None)
    return _Scaling(scales=known) if len(known) == len(scales) else None


def _in_blocks(node: ir.Node, scale: int, inputs: int | None) -> _Blocks | None:
    """Return what a kernel of weights in blocks says of its codes; None where steps are computed, or zeros are floats."""
    steps, zero = _constant(node, scale), _constant(node, scale + 1)
    given = len(node.inputs) > scale + 1 and node.inputs[scale + 1] is not None
    floats = zero is not None and zero.dtype is not ir.DataType.UINT8
    if steps is None or (given and zero is None) or floats:
        return None
    return _Blocks(
        scales=(steps,),
        zero=zero,
        bits=_integer(node, "bits", 4),
        size=_integer(node, "block_size", 128),
        inputs=inputs,
    )


def _integer(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _of_slots(
    node: ir.Node, scale: int | None, zero: int | None, axis: int, block: int = 0
) -> _Scaling | None:
    s, z = _constant(node, scale), _constant(node, zero)
    return None if s is None else _Scaling(scales=(s,), zero=z, axis=axis, block=block)


def _constant(node: ir.Node, slot: int | None) -> ir.Value | None:
    """Return a constant input; where rows of one are looked up, that one."""
    value = node.inputs[slot] if slot is not None and slot < len(node.inputs) else None
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "Gather":
        value = producer.inputs[0]
    return value if value is not None and value.const_value is not None else None


def _only_reader(node: ir.Node, op_type: str) -> ir.Node | None:
    readers = [use.node for use in node.outputs[0].uses() if use.node.op_type == op_type]
    return readers[0] if len(readers) == 1 else None


def _behind_cast(cast: ir.Node) -> _Scaling | None:
    """Read ``Mul(Sub(Cast(q), z), s)``, where Sub may be left out."""
    shifted = _only_reader(cast, "Sub")
    zero = _constant(shifted, 1) if shifted is not None else None
    scaled = _only_reader(shifted or cast, "Mul")
    scale = _constant(scaled, 1) if scaled is not None else None
    return None if scale is None else _Scaling(scales=(scale,), zero=zero)


def _behind_product(product: ir.Node, weight: Operand) -> _Scaling | None:
    """Read ``Mul(Cast(MatMulInteger(x, q, zx, z)), Mul(sx, s))``."""
    cast = _only_reader(product, "Cast")
    scaled = _only_reader(cast, "Mul") if cast is not None else None
    factors = [v.producer() for v in scaled.inputs if v is not None] if scaled is not None else []
    factor = next((p for p in factors if p is not None and p.op_type == "Mul"), None)
    if factor is None:
        return None
    scale = _constant(factor, 1) or _constant(factor, 0)
    zero = _constant(product, weight.zero_point)
    return None if scale is None else _Scaling(scales=(scale,), zero=zero, axis=weight.axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One initializer.

    Attributes:
        value: The initializer.
        tensor: Its contents, unread.
        scaling: How its integers become floats; None: it means itself.
    """

    value: ir.Value
    tensor: ir.TensorProtocol
    scaling: _Scaling | _Blocks | None = None

    @property
    def name(self) -> str:
        """The name of the constant."""
        return self.value.name or ""

    @property
    def dtype(self) -> str:
        """The type in which it is stored: "float32", "int8", "4.2 bits" where the file has it packed."""
        if isinstance(self.scaling, _Blocks) or STORED_BYTES in self.value.meta:
            return f"{8 * self.nbytes / max(1, self._count):.1f} bits"
        return dtype_name(self.tensor.dtype)

    @property
    def nbytes(self) -> int:
        """What it takes in the file; of codes without their steps."""
        return int(self.value.meta.get(STORED_BYTES, self.tensor.nbytes))

    @property
    def _count(self) -> int:
        """How many values it stands for."""
        if not isinstance(self.scaling, _Blocks):
            return self.tensor.size
        rows = self.shape[0]
        return rows * (self.scaling.inputs or self.tensor.size * 8 // self.scaling.bits // rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in which it is stored."""
        return tuple(int(n) for n in self.tensor.shape.numpy())

    def floats(self) -> Floats:
        """Return what it stands for; read anew each time."""
        array = self.tensor.numpy()
        return array.astype(np.float32) if self.scaling is None else self.scaling.restored(array)


def dtype_name(dtype: ir.DataType) -> str:
    """Return "float32" for FLOAT, "int8" for INT8."""
    name = str(dtype.name).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def stored_constants(model: ir.Model) -> dict[str, Stored]:
    """Return all initializers but scales and zero points, by name."""
    found = [_stored(v, v.const_value) for v in _initializers(model) if v.const_value is not None]
    parameters = set(_parameters(model))
    for constant in found:
        if constant.scaling is not None:
            parameters.update(constant.scaling.scales)
            parameters.add(constant.scaling.zero)
    return {c.name: c for c in found if c.value not in parameters}


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()


def _parameters(model: ir.Model) -> Iterator[ir.Value | None]:
    """Yield what operators read as scales and zero points."""
    for node in model.graph.all_nodes():
        for slot in scale_slots(node.op_type, len(node.inputs)):
            yield node.inputs[slot]


def _stored(value: ir.Value, tensor: ir.TensorProtocol) -> Stored:
    scaling = _scaling_of(value) if tensor.dtype.is_integer() and tensor.size > 1 else None
    return Stored(value=value, tensor=tensor, scaling=scaling)


# What changes nothing but type or shape, or lets a factor through; and how stored weights are restored.
_KEEPS = KEEPS_FACTORS - {"Add", "Min"}
_THROUGH = CONVERSIONS | _KEEPS | {STATIC_OPS[op].op_type for op in _KEEPS & STATIC_OPS.keys()}
_THROUGH |= {"Cast", "Flatten", "Identity", "Max", "Mul", "Reshape", "Sub"}
_BIAS = 2  # input slot of float products
_STEPS = 6  # nodes between a weight and its product, or a product and a tensor that is named


class Factors:
    """What one model says about its channels."""

    def __init__(self, model: ir.Model) -> None:
        self._divisors = read_divisors(model.metadata_props) or {}

    def undone(self, weight: Floats, constant: Stored) -> tuple[Floats, bool]:
        """Return a weight or bias as it was before, and whether that is another."""
        product, own = _product(constant.value) if self._divisors else (None, "")
        if product is None:
            return weight, False
        made = self._output_divisors(product.outputs[0])
        if weight.ndim == 1:
            if own != "bias" or made is None or made.size != weight.size:
                return weight, False
            return np.asarray(weight * made, np.float32), True
        read = self._input_divisors(product.inputs[0])
        factor = _factor(weight.shape, product, read, made)
        return (
            (weight, False) if factor is None else (np.asarray(weight * factor, np.float32), True)
        )

    def _output_divisors(self, value: ir.Value) -> Floats | None:
        """Return the divisors of what a product makes, looking on to the tensor that is named."""
        for _ in range(_STEPS):
            if (found := self._of(value)) is not None:
                return found
            readers = {use.node for use in value.uses()}
            follows = next(iter(readers)) if len(readers) == 1 else None
            if follows is None or follows.op_type not in _THROUGH | {"Add"}:
                return None
            value = follows.outputs[0]
        return None

    def _input_divisors(self, value: ir.Value | None) -> Floats | None:
        """Return the divisors of what a product reads, looking back to the tensor that is named."""
        for _ in range(_STEPS):
            if value is None:
                return None
            if (found := self._of(value)) is not None:
                return found
            maker = value.producer()
            if maker is None or maker.op_type not in _THROUGH:
                return None
            value = maker.inputs[0]
        return None

    def _of(self, value: ir.Value) -> Floats | None:
        name = value.name or ""
        found = self._divisors.get(name) or self._divisors.get(name.removesuffix("_quantized"))
        return None if found is None else found.values


def _product(value: ir.Value) -> tuple[ir.Node | None, str]:
    """Return the product that reads a constant, through whatever restores it, and as what."""
    for _ in range(_STEPS):
        uses = list(value.uses())
        if len(uses) != 1:
            return None, ""
        node, slot = uses[0].node, uses[0].idx
        if _is_product(node.op_type):
            row = INTEGER_OPS.get(node.op_type)
            return node, "bias" if slot == (row.bias if row else _BIAS) else "weight"
        if node.op_type not in _THROUGH:
            return None, ""
        value = node.outputs[0]
    return None, ""


def _is_product(op_type: str) -> bool:
    """Say whether an operator multiplies by a weight that is stored as a matrix, or as windows."""
    row = INTEGER_OPS.get(op_type)
    if row is None:
        return op_type in QUANTIZED_PRODUCTS | {"FusedConv"}
    return row.float_op in QUANTIZED_PRODUCTS and row.weights[0].axis is not None


def _factor(
    shape: tuple[int, ...], product: ir.Node, read: Floats | None, made: Floats | None
) -> Floats | None:
    """Return by what to multiply a weight; None if nothing is known that fits it."""
    conv = "Conv" in product.op_type
    transposed = (
        not conv
        and (attribute := product.attributes.get("transB")) is not None
        and attribute.as_int()
    )
    # w = w' e[o] / d[i]: multiplied by what its result was divided by, divided by what its input was. Which axis is
    # which depends on the operator alone: [O, I, ...] for Conv and for Gemm with transB, [..., I, O] for the others.
    # Divisors that do not have as many entries as the axis are of another tensor of the same name and are ignored:
    # undoing the wrong ones would show two equal weights as unlike.
    out, inner = (0, 1) if conv or transposed else (len(shape) - 1, len(shape) - 2)
    factor = np.ones([n if i in {out, inner} else 1 for i, n in enumerate(shape)], np.float32)
    known = False
    if made is not None and made.size == shape[out]:
        factor = factor * made.reshape([-1 if i == out else 1 for i in range(len(shape))])
        known = True
    if (
        read is not None
        and (rows := _rows(read, shape[out], shape[inner], in_groups=conv)) is not None
    ):
        factor = factor / (rows if out < inner else rows.T).reshape(factor.shape)
        known = True
    return factor.astype(np.float32) if known else None


def _rows(read: Floats, out: int, inner: int, *, in_groups: bool) -> Floats | None:
    """Return for each output channel the divisors of the channels that it reads; None if they do not fit.

    Of a Conv in groups each output channel reads those of its group.
    """
    groups = max(1, read.size // inner)
    if read.size != groups * inner or out % groups or (groups > 1 and not in_groups):
        return None
    return np.repeat(read.reshape(groups, inner), out // groups, axis=0)
