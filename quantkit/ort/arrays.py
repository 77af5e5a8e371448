"""onnxruntime's functions for arrays: scale and zero point of a range, integers of values. Arithmetic is `quantkit.numerics`.

Types are ONNX's numbers (TensorProto.UINT8), as there.
"""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from quantkit.errors import UsageError
from quantkit.numerics.affine import Affine, affine_from_range, blocks, quantize, unblocks
from quantkit.numerics.dtypes import UINT4, IntType, int_type
from quantkit.numerics.packing import pack

__all__ = [
    "FLOAT8_TYPES",
    "NAMES",
    "ONNX_INT_TYPE_RANGE",
    "ONNX_INT_TYPE_REDUCED_RANGE",
    "ONNX_INT_TYPE_SYMMETRIC_RANGE",
    "ONNX_TYPE_TO_NP_TYPE",
    "TENSOR_NAME_QUANT_SUFFIX",
    "compute_data_quant_params",
    "compute_scale_zp",
    "compute_scale_zp_blocked",
    "compute_scale_zp_float8",
    "get_qmin_qmax_for_qType",
    "get_qrange_for_qType",
    "normalize_axis",
    "pack_bytes_to_4bit",
    "quantize_data",
    "quantize_nparray",
    "quantize_onnx_initializer",
    "snap_zero_point_to_uint8",
    "tensor_proto_to_array",
]

Array = NDArray[Any]
TENSOR_NAME_QUANT_SUFFIX = "_quantized"

# Types by the numbers that ONNX has for them (TensorProto.DataType), under quantkit's names.
NAMES: dict[int, str] = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
    TensorProto.INT4: "int4",
    TensorProto.UINT4: "uint4",
    TensorProto.FLOAT8E4M3FN: "float8e4m3fn",
}
FLOAT8_TYPES = (
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
)
_FLOAT8 = ir.DataType.FLOAT8E4M3FN.numpy()
_LARGEST = 448.0  # of the finite ones
_INTEGERS = {number: int_type(name) for number, name in NAMES.items() if name != "float8e4m3fn"}
_MATRIX = 2

ONNX_TYPE_TO_NP_TYPE: dict[int, np.dtype[Any]] = {n: ir.DataType(n).numpy() for n in NAMES}


def _ends(number: int, low: int, high: int) -> tuple[Array, Array]:
    dtype = ONNX_TYPE_TO_NP_TYPE[number]
    return np.array(low, dtype), np.array(high, dtype)


ONNX_INT_TYPE_RANGE = {n: _ends(n, t.qmin, t.qmax) for n, t in _INTEGERS.items()}
# Signed types of 8 bits and more leave out their least value, so that +x and -x have opposite integers.
ONNX_INT_TYPE_SYMMETRIC_RANGE = {
    n: _ends(n, -t.qmax, t.qmax) for n, t in _INTEGERS.items() if t.signed and t.bits > UINT4.bits
}
# One bit less; onnxruntime's have as many values on both sides of 0 where the type has 8 bits and more.
ONNX_INT_TYPE_REDUCED_RANGE = {
    n: _ends(n, t.qmin // 2, -(t.qmin // 2) if n in ONNX_INT_TYPE_SYMMETRIC_RANGE else t.qmax // 2)
    for n, t in _INTEGERS.items()
}


def _integer(number: int) -> IntType:
    if number not in _INTEGERS:
        known = ", ".join(t.name for t in _INTEGERS.values())
        raise UsageError(f"Type {number} of ONNX is no integer that is quantized to: use {known}.")
    return _INTEGERS[number]


def get_qmin_qmax_for_qType(  # noqa: N802 - onnxruntime's name
    qType: int,  # noqa: N803
    reduce_range: bool = False,  # noqa: FBT001 - onnxruntime's signature
    symmetric: bool = False,  # noqa: FBT001
) -> tuple[Array, Array]:
    """Return the least and the greatest integer that is used, as arrays of the type.

    Args:
        qType: ONNX's number of the type.
        reduce_range: One bit less than the type has.
        symmetric: As many on both sides of 0.

    Raises:
        UsageError: It is no integer type.
    """
    _integer(qType)
    if reduce_range:
        return ONNX_INT_TYPE_REDUCED_RANGE[qType]
    if symmetric and qType in ONNX_INT_TYPE_SYMMETRIC_RANGE:
        return ONNX_INT_TYPE_SYMMETRIC_RANGE[qType]
    return ONNX_INT_TYPE_RANGE[qType]


def get_qrange_for_qType(  # noqa: N802 - onnxruntime's name
    qType: int,  # noqa: N803
    reduce_range: bool = False,  # noqa: FBT001 - onnxruntime's signature
    symmetric: bool = False,  # noqa: FBT001
) -> int:
    """Return the greatest integer that is used minus the least."""
    qmin, qmax = get_qmin_qmax_for_qType(qType, reduce_range, symmetric)
    return int(qmax) - int(qmin)


def normalize_axis(axis: int, rank: int) -> tuple[bool, int]:
    """Say whether there is such an axis, and count a negative one from the front."""
    return -rank <= axis < rank, axis + rank if axis < 0 else axis


def pack_bytes_to_4bit(src_8bit: bytes) -> bytearray:
    """Return values of 4 bits that have a byte each, two to a byte, the first in the low bits."""
    return bytearray(pack(np.frombuffer(src_8bit, np.uint8), UINT4).tobytes())


def tensor_proto_to_array(initializer: onnx.TensorProto) -> Array:
    """Return the values of a float tensor.

    Raises:
        UsageError: It is of another type.
    """
    if initializer.data_type not in {TensorProto.FLOAT, TensorProto.FLOAT16}:
        held = TensorProto.DataType.Name(initializer.data_type)
        raise UsageError(f"Only floats are quantized, and '{initializer.name}' is {held}.")
    return numpy_helper.to_array(initializer)


def compute_scale_zp(
    rmin: Array,
    rmax: Array,
    qmin: Array,
    qmax: Array,
    symmetric: bool = False,  # noqa: FBT001
    min_real_range: float | None = None,
) -> list[Array]:
    """Return zero point and scale that map a range, widened to hold 0, onto integers.

    Args:
        rmin: Lower end.
        rmax: Upper end; its type is that of the scale.
        qmin: The least integer; its type is that of the zero point.
        qmax: The greatest integer.
        symmetric: Widen the range until it is symmetric about 0; the zero point is in the middle.
        min_real_range: The least that the range is wide.

    Raises:
        UsageError: The integers do not hold 0.
    """
    least, greatest = int(qmin), int(qmax)
    if least > 0 or greatest < 0:
        raise UsageError(f"Integers from {least} to {greatest} do not hold 0.")
    low, high = min(float(rmin), 0.0), max(float(rmax), 0.0)
    if min_real_range is not None:
        high = max(high, low + float(min_real_range))
    if symmetric:
        low, high = -max(-low, high), max(-low, high)
    found = affine_from_range(np.array(low), np.array(high), qmin=least, qmax=greatest)
    dtype = np.asarray(rmax).dtype
    zero = np.rint((least + greatest) / 2) if symmetric else found.zero_point
    scale = found.scale.astype(dtype)
    if (high - low) / (greatest - least) < np.finfo(dtype).tiny:
        zero, scale = np.zeros(()), np.ones((), dtype)  # all values are 0
    return [np.asarray(zero).astype(np.asarray(qmin).dtype), np.asarray(scale)]


def snap_zero_point_to_uint8(
    rmin: Any, rmax: Any, qmin: int = 0, qmax: int = 255, min_real_range: float | None = None
) -> tuple[Array, Array]:
    """Return a zero point at the least integer or in the middle, and the scale with which nothing is cut off.

    Args:
        rmin: Lower end of a range; if it is not below 0, the zero point is the least integer.
        rmax: Upper end.
        qmin: The least integer.
        qmax: The greatest integer.
        min_real_range: The least that the range is wide.
    """
    low, high = min(float(np.squeeze(rmin)), 0.0), max(float(np.squeeze(rmax)), 0.0)
    least, greatest = int(qmin), int(qmax)
    narrowest = float(min_real_range or 0.0)
    high = max(high, low + narrowest)
    zero = least if low >= 0 else (least + greatest + 1) // 2
    scale = max(-low / max(zero - least, 1), high / max(greatest - zero, 1))
    scale = max(scale, narrowest / (greatest - least))
    if scale < np.finfo(np.float32).tiny:  # all values are 0
        scale = 1 / (greatest - least)
    return np.array(zero, np.uint8), np.array(scale, np.float32)


def compute_scale_zp_float8(element_type: int, std: Any) -> list[Array]:
    """Return zero point and scale with which values spread as the numbers of an 8-bit float do.

    Args:
        element_type: TensorProto.FLOAT8E4M3FN.
        std: Standard deviation of the values; its type is that of the scale.

    Raises:
        UsageError: It is another type.
    """
    if element_type != TensorProto.FLOAT8E4M3FN:
        raise UsageError(f"Type {element_type} of ONNX is not quantized to: use FLOAT8E4M3FN.")
    numbers = np.arange(256, dtype=np.uint8).view(_FLOAT8).astype(np.float64)
    spread = np.std(numbers[np.isfinite(numbers)])
    given = np.asarray(std)
    return [np.zeros((), _FLOAT8), np.asarray(given / spread).astype(given.dtype)]


def compute_scale_zp_blocked(
    weight: Array,
    quant_type: int,
    axis: int,
    block_size: int,
    symmetric: bool,  # noqa: FBT001 - onnxruntime's signature
) -> tuple[Array, Array]:
    """Return zero points and scales, one for so many neighbours along an axis.

    Args:
        weight: A matrix.
        quant_type: ONNX's number of the integer type.
        axis: Along which values are neighbours.
        block_size: How many share a scale; the last may be fewer.
        symmetric: Zero points are in the middle.

    Raises:
        NotImplementedError: It is no matrix.
    """
    if weight.ndim != _MATRIX:
        raise NotImplementedError(
            f"Blocks are for matrices, and this has the shape {weight.shape}: reshape it, or use a scale per channel."
        )
    qmin, qmax = get_qmin_qmax_for_qType(quant_type, symmetric=symmetric)
    cut = blocks(weight, axis, block_size)
    place = axis % weight.ndim + 1
    low, high = np.minimum(cut.min(place), 0), np.maximum(cut.max(place), 0)
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    found = affine_from_range(low, high, qmin=int(qmin), qmax=int(qmax))
    zero = (
        np.full_like(low, np.rint((int(qmin) + int(qmax)) / 2)) if symmetric else found.zero_point
    )
    empty = (high - low) / (int(qmax) - int(qmin)) < np.finfo(weight.dtype).tiny
    scale = np.where(empty, 1, found.scale).astype(weight.dtype)
    return np.where(empty, 0, zero).astype(qmin.dtype), scale


def compute_data_quant_params(  # noqa: PLR0913 - onnxruntime's signature
    data: Array,
    quant_type: int,
    symmetric: bool,  # noqa: FBT001
    reduce_range: bool = False,  # noqa: FBT001
    min_real_range: float | None = None,
    rmin_override: float | None = None,
    rmax_override: float | None = None,
) -> tuple[Array, Array]:
    """Return zero point and scale for the values of an array.

    Args:
        data: The values.
        quant_type: ONNX's number of the type.
        symmetric: The zero point is in the middle.
        reduce_range: One bit less than the type has.
        min_real_range: The least that the range is wide.
        rmin_override: Lower end, instead of the least value.
        rmax_override: Upper end, instead of the greatest value.
    """
    if not isinstance(data, np.ndarray):
        raise TypeError(f"The values of a weight are an array, not {type(data).__name__}.")
    if quant_type == TensorProto.FLOAT8E4M3FN:
        if reduce_range:
            raise UsageError("An 8-bit float has no reduced range: leave out reduce_range.")
        zero, scale = compute_scale_zp_float8(quant_type, np.std(data))
        return zero, scale
    qmin, qmax = get_qmin_qmax_for_qType(quant_type, reduce_range, symmetric)
    low = data.min(initial=np.inf) if rmin_override is None else rmin_override
    high = data.max(initial=-np.inf) if rmax_override is None else rmax_override
    ends = (
        np.array(low if data.size else 0, data.dtype),
        np.array(high if data.size else 0, data.dtype),
    )
    zero, scale = compute_scale_zp(*ends, qmin, qmax, symmetric, min_real_range)
    return zero, scale


def quantize_data(  # noqa: PLR0913 - onnxruntime's signature
    data: Array,
    qType: int,  # noqa: N803
    symmetric: bool,  # noqa: FBT001
    reduce_range: bool = False,  # noqa: FBT001
    min_real_range: float | None = None,
    rmin_override: float | None = None,
    rmax_override: float | None = None,
) -> tuple[Array, Array, Array]:
    """Return zero point, scale and the quantized values of an array; see `compute_data_quant_params`."""
    zero, scale = compute_data_quant_params(
        data, qType, symmetric, reduce_range, min_real_range, rmin_override, rmax_override
    )
    return zero, scale, quantize_nparray(qType, data, scale, zero)


def quantize_nparray(
    qType: int,  # noqa: N803
    arr: Array,
    scale: Any,
    zero_point: Any,
    low: float | None = None,
    high: float | None = None,
) -> Array:
    """Return the quantized values of an array, as an array of the type.

    Args:
        qType: ONNX's number of the type.
        arr: The values.
        scale: One, or an array that broadcasts against the values.
        zero_point: Alike.
        low: The least integer, if not the type's own.
        high: The greatest integer, if not the type's own.

    Raises:
        UsageError: There is no such type, or an 8-bit float with a zero point.
    """
    array = np.asarray(arr, np.float32)
    if qType == TensorProto.FLOAT8E4M3FN:
        if np.any(np.asarray(zero_point, np.float32) != 0):
            raise UsageError("An 8-bit float has the zero point 0.")
        inside = np.clip(array / np.asarray(scale, np.float32), -_LARGEST, _LARGEST)
        return inside.astype(_FLOAT8)
    dtype = _integer(qType)
    ends = (
        dtype.qmin if low is None else max(dtype.qmin, low),
        dtype.qmax if high is None else min(dtype.qmax, high),
    )
    affine = Affine(scale=_ranked(scale, array.ndim), zero_point=_ranked(zero_point, array.ndim))
    found = quantize(array, affine, dtype, qmin=int(ends[0]), qmax=int(ends[1]))
    return found.astype(ONNX_TYPE_TO_NP_TYPE[qType])


def _ranked(parameter: Any, rank: int) -> NDArray[np.float32]:
    """Return a scale or zero point with as many axes as what it is for, or none."""
    array = np.asarray(parameter).astype(np.float32)
    return array.reshape((1,) * (rank - array.ndim) + array.shape) if array.ndim else array


def quantize_onnx_initializer(  # noqa: PLR0913 - onnxruntime's signature
    weight: onnx.TensorProto,
    quant_type: int,
    zero_point: Array,
    scale: Array,
    axis: int | None = None,
    quant_weight_name: str | None = None,
    block_size: int = 0,
) -> onnx.TensorProto:
    """Return the quantized version of a float tensor.

    Args:
        weight: The float tensor.
        quant_type: ONNX's number of the type.
        zero_point: One; one per channel; or one per block, with the weight's rank.
        scale: Alike.
        axis: Of channels, or along which blocks are cut.
        quant_weight_name: Of the result.
        block_size: How many values share a scale; 0: whole channels.
    """
    array = tensor_proto_to_array(weight)
    name = quant_weight_name or f"{weight.name}{TENSOR_NAME_QUANT_SUFFIX}"
    if axis is None:
        found = quantize_nparray(quant_type, array, np.squeeze(scale), np.squeeze(zero_point))
    elif block_size:
        place = axis % array.ndim + 1
        cut = quantize_nparray(
            quant_type,
            blocks(array, axis, block_size),
            np.expand_dims(scale, place),
            np.expand_dims(zero_point, place),
        )
        found = unblocks(cut, axis, array.shape[axis])
    else:
        shape = [1] * array.ndim
        shape[axis] = -1
        found = quantize_nparray(
            quant_type, array, np.reshape(scale, shape), np.reshape(zero_point, shape)
        )
    tensor = ir.tensor(found, dtype=ir.DataType(quant_type), name=name)
    return ir.to_proto(tensor)
