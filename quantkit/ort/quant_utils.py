"""onnxruntime's enumerations: the same members, the same numbers."""

from enum import Enum
from numbers import Integral
from pathlib import Path
from typing import Any

from onnx import TensorProto

from quantkit.errors import UsageError
from quantkit.ort.missing import missing

__all__ = ["CalibrationMethod", "QuantFormat", "QuantType", "QuantizationMode", "type_name"]
__all__ += ["write_calibration_table"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

# Types by the numbers that ONNX has for them (TensorProto.DataType), under quantkit's names.
_OF_ONNX: dict[int, str] = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
    TensorProto.INT4: "int4",
    TensorProto.UINT4: "uint4",
    TensorProto.FLOAT8E4M3FN: "float8e4m3fn",
}
_TYPES = ("int8", "uint8", "int16", "uint16")


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
        return next(number for number, name in _OF_ONNX.items() if name == _plain_name(self))


def _plain_name(quant_type: Any) -> str:
    if isinstance(quant_type, Integral):
        return _OF_ONNX.get(int(quant_type), "")
    return str(getattr(quant_type, "name", quant_type)).lower().removeprefix("q")


def type_name(quant_type: Any) -> Any:
    """Return quantkit's name of a type: "uint8" for QUInt8.

    Args:
        quant_type: A `QuantType`, onnxruntime's own, a number of ONNX's (TensorProto.UINT8), or the name itself.

    Raises:
        UsageError: There is no such type here.
    """
    name = _plain_name(quant_type)
    if name not in _TYPES:
        raise UsageError(f"Type {quant_type} is not available: use {', '.join(_TYPES)}.")
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


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
