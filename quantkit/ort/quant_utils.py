"""onnxruntime's enumerations: the same members, the same numbers. And the functions that scripts take from there.

Scales, zero points and integers of arrays come from `quantkit.ort.arrays`, questions about models from
`quantkit.ort.onnx_model`.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import onnx
from onnx import TensorProto

from quantkit.errors import UsageError
from quantkit.ort.arrays import (
    FLOAT8_TYPES,
    NAMES,
    ONNX_INT_TYPE_RANGE,
    ONNX_INT_TYPE_REDUCED_RANGE,
    ONNX_INT_TYPE_SYMMETRIC_RANGE,
    ONNX_TYPE_TO_NP_TYPE,
    TENSOR_NAME_QUANT_SUFFIX,
    compute_data_quant_params,
    compute_scale_zp,
    compute_scale_zp_blocked,
    compute_scale_zp_float8,
    get_qmin_qmax_for_qType,
    get_qrange_for_qType,
    normalize_axis,
    pack_bytes_to_4bit,
    quantize_data,
    quantize_nparray,
    quantize_onnx_initializer,
    snap_zero_point_to_uint8,
    tensor_proto_to_array,
)
from quantkit.ort.missing import missing
from quantkit.ort.onnx_model import (
    add_infer_metadata,
    add_pre_process_metadata,
    attribute_to_kwarg,
    find_by_name,
    get_opset_version,
    load_model_with_shape_infer,
    model_has_external_data,
    model_has_infer_metadata,
    model_has_pre_process_metadata,
    raised_opset,
    save_and_reload_model_with_shape_infer,
)

__all__ = [
    "DEQUANT_OP_NAME",
    "DEQUANT_OUTPUT_SUFFIX",
    "FLOAT8_TYPES",
    "MODEL_SIZE_THRESHOLD",
    "ONNX_INT_TYPE_RANGE",
    "ONNX_INT_TYPE_REDUCED_RANGE",
    "ONNX_INT_TYPE_SYMMETRIC_RANGE",
    "ONNX_TYPE_TO_NP_TYPE",
    "QUANT_INPUT_SUFFIX",
    "QUANT_OP_NAME",
    "TENSOR_NAME_QUANT_SUFFIX",
    "CalibrationMethod",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "add_dequant_input_suffix",
    "add_dequant_output_suffix",
    "add_dequant_suffix",
    "add_infer_metadata",
    "add_pre_process_metadata",
    "add_quant_input_suffix",
    "add_quant_output_suffix",
    "add_quant_suffix",
    "attribute_to_kwarg",
    "compute_data_quant_params",
    "compute_scale_zp",
    "compute_scale_zp_blocked",
    "compute_scale_zp_float8",
    "find_by_name",
    "generate_identified_filename",
    "get_elem_index",
    "get_mul_node",
    "get_opset_version",
    "get_qmin_qmax_for_qType",
    "get_qrange_for_qType",
    "load_model_with_shape_infer",
    "model_has_external_data",
    "model_has_infer_metadata",
    "model_has_pre_process_metadata",
    "ms_domain",
    "normalize_axis",
    "onnx_domain",
    "optimize_model",
    "pack_bytes_to_4bit",
    "plain_name",
    "quantize_data",
    "quantize_nparray",
    "quantize_onnx_initializer",
    "save_and_reload_model_with_shape_infer",
    "snap_zero_point_to_uint8",
    "tensor_proto_to_array",
    "type_name",
    "type_to_name",
    "update_opset_version",
    "write_calibration_table",
]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

T = TypeVar("T")

onnx_domain = "ai.onnx"
ms_domain = "com.microsoft"
QUANT_OP_NAME = "QuantizeLinear"
DEQUANT_OP_NAME = "DequantizeLinear"
QUANT_INPUT_SUFFIX = "_QuantizeLinear_Input"
DEQUANT_OUTPUT_SUFFIX = "_DequantizeLinear_Output"
MODEL_SIZE_THRESHOLD = 1 << 31
type_to_name = {number: name for name, number in TensorProto.DataType.items()}


class QuantType(Enum):
    """Integer types, numbered as in onnxruntime."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def from_string(t: str) -> "QuantType":
        """Return the member called `t`; ValueError if there is none."""
        try:
            return QuantType[t]
        except KeyError:
            raise ValueError(f"No quantization type '{t}'.") from None

    @property
    def tensor_type(self) -> int:
        """The number that ONNX has for the type: TensorProto.INT8 for QInt8."""
        return next(number for number, name in NAMES.items() if name == plain_name(self))


def plain_name(quant_type: Any) -> str:
    """Return quantkit's name of a type, whether quantkit has it or not; "" for a number that is none."""
    if isinstance(quant_type, Integral):
        return NAMES.get(int(quant_type), "")
    return str(getattr(quant_type, "name", quant_type)).lower().removeprefix("q")


def type_name(quant_type: Any) -> Any:
    """Return quantkit's name of a type: "uint8" for QUInt8. What weights and activations may be, settings say.

    Args:
        quant_type: A `QuantType`, onnxruntime's own, a number of ONNX's (TensorProto.UINT8), or the name itself.

    Raises:
        UsageError: There is no such type here.
    """
    name = plain_name(quant_type)
    if name not in NAMES.values():
        raise UsageError(f"There is no type {quant_type!r} here: give a QuantType.")
    return name


class QuantFormat(Enum):
    """How static quantization is written."""

    QOperator = 0
    QDQ = 1

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def from_string(format: str) -> "QuantFormat":  # noqa: A002 - onnxruntime's name
        """Return the member called `format`; ValueError if there is none."""
        try:
            return QuantFormat[format]
        except KeyError:
            raise ValueError(f"No quantization format '{format}'.") from None


class QuantizationMode(Enum):
    """Dynamic (IntegerOps) or static (QLinearOps)."""

    IntegerOps = 0
    QLinearOps = 1

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def from_string(mode: str) -> "QuantizationMode":
        """Return the member called `mode`; ValueError if there is none."""
        try:
            return QuantizationMode[mode]
        except KeyError:
            raise ValueError(f"No quantization mode '{mode}'.") from None


class CalibrationMethod(Enum):
    """How activation ranges are learned."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


def write_calibration_table(
    calibration_cache: Any,
    dir: str | Path = ".",  # noqa: A002 - onnxruntime's name
) -> None:
    """Write ranges for TensorRT: ``calibration.flatbuffers``, ``calibration.json`` and ``calibration.cache`` (text).

    The values are the largest magnitudes, which is what TensorRT's provider takes them for.

    Args:
        calibration_cache: What `compute_data` gave, or lower and upper ends by tensor.
        dir: The folder; it is made if it is not there.
    """
    from quantkit.ort.tensors import write_tables  # it needs this module

    write_tables(calibration_cache, Path(dir))


def add_quant_suffix(tensor_name: str) -> str:
    """Return the name of the QuantizeLinear of a tensor."""
    return f"{tensor_name}_QuantizeLinear"


def add_quant_input_suffix(tensor_name: str) -> str:
    """Return the name of what it reads, where that gets one of its own."""
    return f"{tensor_name}{QUANT_INPUT_SUFFIX}"


def add_quant_output_suffix(tensor_name: str) -> str:
    """Return the name of the integers that it makes."""
    return f"{tensor_name}_QuantizeLinear_Output"


def add_dequant_suffix(tensor_name: str) -> str:
    """Return the name of the DequantizeLinear of a tensor."""
    return f"{tensor_name}_DequantizeLinear"


def add_dequant_input_suffix(tensor_name: str) -> str:
    """Return the name of the integers that it reads."""
    return f"{tensor_name}_DequantizeLinear_Input"


def add_dequant_output_suffix(tensor_name: str) -> str:
    """Return the name of the floats that it makes."""
    return f"{tensor_name}{DEQUANT_OUTPUT_SUFFIX}"


def generate_identified_filename(filename: Path, identifier: str) -> Path:
    """Return a path whose file name has something added before its suffix."""
    return filename.with_name(f"{filename.stem}{identifier}{filename.suffix}")


def get_elem_index(elem_name: T, elem_list: Sequence[T]) -> int:
    """Return the last place of an element in a list; -1 if it is not there."""
    return max((place for place, found in enumerate(elem_list) if found == elem_name), default=-1)


def get_mul_node(inputs: Iterable[str], output: str, name: str) -> onnx.NodeProto:
    """Return a Mul."""
    return onnx.NodeProto(op_type="Mul", input=inputs, output=[output], name=name)


def optimize_model(model_path: str | Path, opt_model_path: str | Path) -> None:
    """Simplify a model as `quantkit.optimize` does."""
    from quantkit.workflows.optimize import optimize_model as simplify

    simplify(Path(model_path), Path(opt_model_path))


# The first opset that has a type.
_NEEDS = {"float8e4m3fn": 19, "int16": 21, "uint16": 21, "int4": 21, "uint4": 21}
_LEAST = 11
_BLOCKS = 21


def update_opset_version(
    model: onnx.ModelProto,
    weight_type: Any,
    activation_type: Any = None,
    tensor_quant_overrides: Any = None,
    block_size: int = 0,
) -> onnx.ModelProto:
    """Return the model in the first opset that can say what is asked for; as it is, if its own can.

    Args:
        model: Is not changed.
        weight_type: Of weights.
        activation_type: Of activations, if they are quantized.
        tensor_quant_overrides: Types of single tensors.
        block_size: Values that share a scale; 0 where whole channels do.
    """
    listed = (tensor_quant_overrides or {}).values()
    single = [given for entry in listed for given in entry]
    single += [given["convert"] for given in single if given.get("convert")]
    types = [weight_type, activation_type, *(given.get("quant_type") for given in single)]
    wanted = [_NEEDS.get(plain_name(quant_type), _LEAST) for quant_type in types]
    return raised_opset(model, max([*wanted, _BLOCKS if block_size else _LEAST]))


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
