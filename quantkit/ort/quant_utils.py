"""onnxruntime's enumerations: the same members, the same numbers."""

from enum import Enum
from typing import Any, NoReturn

from quantkit.errors import UsageError
from quantkit.ort.missing import missing

__all__ = ["CalibrationMethod", "QuantFormat", "QuantType", "QuantizationMode"]
__all__ += ["write_calibration_table"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing


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


def write_calibration_table(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise: tables for TensorRT's own quantization are not written."""
    raise UsageError(
        "write_calibration_table is not available: save_tensors_data writes ranges as JSON, and "
        "quantkit.quantize_static(model, output, data, target='tensorrt') writes them into the model."
    )


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
