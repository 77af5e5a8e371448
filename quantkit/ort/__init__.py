"""onnxruntime.quantization's public names, for a migration that changes one import line.

    from quantkit.ort import QuantType, quantize_static      # was: from onnxruntime.quantization

Names, parameters and their order are onnxruntime's. An argument that is given is honoured; one that is left out is
quantkit's choice. What quantkit does not do raises an error that names the quantkit way.
"""

from typing import Any, NoReturn

from quantkit.errors import UsageError
from quantkit.ort.calibraters import (
    CalibraterBase,
    DistributionCalibrater,
    EntropyCalibrater,
    MinMaxCalibrater,
    PercentileCalibrater,
    create_calibrator,
)
from quantkit.ort.configs import DynamicQuantConfig, StaticQuantConfig, get_qdq_config, quantize
from quantkit.ort.dynamic import quantize_dynamic
from quantkit.ort.enums import CalibrationMethod, QuantFormat, QuantizationMode, QuantType
from quantkit.ort.preprocess import quant_pre_process
from quantkit.ort.reader import CalibrationDataReader
from quantkit.ort.static import quantize_static
from quantkit.ort.tensors import TensorData, TensorsData, load_tensors_data, save_tensors_data

__all__ = [
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DistributionCalibrater",
    "DynamicQuantConfig",
    "EntropyCalibrater",
    "MinMaxCalibrater",
    "PercentileCalibrater",
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


class QDQQuantizer:
    """Raises: a plan takes its place."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise UsageError(
            "QDQQuantizer has no counterpart: quantkit.plan_static(model, data) gives a plan that can be edited, "
            "and quantkit.quantize_static(model, output, data, plan=plan) does what it says."
        )


def write_calibration_table(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise: tables for TensorRT's own quantization are not written."""
    raise UsageError(
        "write_calibration_table is not available: save_tensors_data writes ranges as JSON, and "
        "quantkit.quantize_static(model, output, data, target='tensorrt') writes them into the model."
    )
