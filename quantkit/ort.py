"""onnxruntime.quantization's public names, for a migration that changes one import line.

    from quantkit.ort import QuantType, quantize_dynamic      # was: from onnxruntime.quantization

Names, parameters and their order are onnxruntime's. What quantkit does not do yet raises an error that
names the quantkit way.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import onnx
from numpy.typing import NDArray

from quantkit import api
from quantkit.errors import UsageError
from quantkit.pipeline import QuantizeResult

__all__ = [
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DynamicQuantConfig",
    "MinMaxCalibrater",
    "QDQQuantizer",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "StaticQuantConfig",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "get_qdq_config",
    "load_tensors_data",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
    "save_tensors_data",
    "write_calibration_table",
]


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


class CalibrationDataReader(ABC):
    """A stream of model inputs: subclass it and return a dict of arrays, or None at the end."""

    @abstractmethod
    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """Return the next inputs by name, or None."""

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return self

    def __next__(self) -> dict[str, NDArray[Any]]:
        found = self.get_next()
        if found is None:
            raise StopIteration
        return found

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} does not say how long it is.")

    def set_range(self, start_index: int, end_index: int) -> None:  # noqa: ARG002
        """Restrict the stream to a range of samples; a reader that can overrides this."""
        raise TypeError(f"{type(self).__name__} cannot be restricted to a range of samples.")


@dataclass
class DynamicQuantConfig:
    """The arguments of `quantize_dynamic`, kept for `quantize`."""

    weight_type: QuantType = QuantType.QInt8
    op_types_to_quantize: Sequence[str] | None = None
    nodes_to_quantize: Sequence[str] | None = None
    nodes_to_exclude: Sequence[str] | None = None
    per_channel: bool | None = None
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: Mapping[str, Any] | None = None


def quantize_dynamic(  # noqa: PLR0913 - onnxruntime's signature
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool | None = None,  # noqa: FBT001 - onnxruntime's signature
    reduce_range: bool = False,  # noqa: FBT001 - onnxruntime's signature
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
    extra_options: Mapping[str, Any] | None = None,
) -> QuantizeResult:
    """Quantize as `quantkit.quantize_dynamic` does, called as onnxruntime's users do.

    `per_channel` left out is quantkit's choice, per channel; False is per tensor, as you ask.
    """
    return api.quantize_dynamic(
        model_input,
        model_output,
        weight_type,  # type: ignore[arg-type]  # told apart by name
        per_channel=True if per_channel is None else per_channel,
        reduce_range=reduce_range,
        op_types_to_quantize=op_types_to_quantize or None,
        nodes_to_quantize=nodes_to_quantize,
        nodes_to_exclude=nodes_to_exclude,
        use_external_data_format=use_external_data_format,
        extra_options=extra_options,
    )


def quantize(
    model_input: str | Path | onnx.ModelProto, model_output: str | Path, quant_config: Any
) -> QuantizeResult:
    """Quantize as a configuration says."""
    if not isinstance(quant_config, DynamicQuantConfig):
        _later("quantize with a static configuration")
    return quantize_dynamic(model_input, model_output, **vars(quant_config))


def _later(what: str) -> NoReturn:
    raise UsageError(
        f"{what} is not in this version of quantkit; what it has is "
        "quantkit.quantize_dynamic(model, output), which needs no calibration data, and "
        "quantkit.calibrate(model, data), which learns activation ranges."
    )


def quantize_static(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise: static quantization is not there yet."""
    _later("quantize_static")


def quant_pre_process(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise: quantkit needs no preparation step."""
    raise UsageError(
        "quant_pre_process is not needed: quantkit.quantize_dynamic prepares the model itself; "
        "remove the call and pass it the original model."
    )


def get_qdq_config(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise: static quantization is not there yet."""
    _later("get_qdq_config")


def create_calibrator(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise: calibration is not there yet."""
    _later("create_calibrator")


def write_calibration_table(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise: calibration is not there yet."""
    _later("write_calibration_table")


def load_tensors_data(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise: calibration is not there yet."""
    _later("load_tensors_data")


def save_tensors_data(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise: calibration is not there yet."""
    _later("save_tensors_data")


class _NotYet:
    """A class of onnxruntime's that quantkit has no counterpart for; making one raises."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        _later(type(self).__name__)


class CalibraterBase(_NotYet):
    """Raises: calibration is not there yet."""


class MinMaxCalibrater(CalibraterBase):
    """Raises: calibration is not there yet."""


class QDQQuantizer(_NotYet):
    """Raises: static quantization is not there yet."""


class StaticQuantConfig(_NotYet):
    """Raises: static quantization is not there yet."""


class TensorData(_NotYet):
    """Raises: calibration is not there yet."""


class TensorsData(_NotYet):
    """Raises: calibration is not there yet."""
