"""onnxruntime.quantization's public names, for a migration that changes one import line.

    from quantkit.ort import QuantType, quantize_static      # was: from onnxruntime.quantization

Names, parameters and their order are onnxruntime's. An argument that is given is honoured; one that is left out is
quantkit's choice. What quantkit does not do raises an error that names the quantkit way. The modules in which scripts
find these names there are here as well: `calibrate`, `onnx_model`, `preprocess`, `qdq_loss_debug`, `quant_utils`,
`quantize`, `registry`, `shape_inference`, `tensor_quant_overrides`, `execution_providers.qnn`, and the command
`static_quantize_runner`; `matmul_nbits_quantizer` is both.
"""

from typing import Any

from quantkit.ort.calibrate import (
    CalibraterBase,
    CalibrationDataReader,
    CalibrationMethod,
    DistributionCalibrater,
    EntropyCalibrater,
    MinMaxCalibrater,
    PercentileCalibrater,
    TensorData,
    TensorsData,
    create_calibrator,
    load_tensors_data,
    save_tensors_data,
)
from quantkit.ort.missing import missing
from quantkit.ort.qdq_quantizer import QDQQuantizer
from quantkit.ort.quant_utils import QuantFormat, QuantType, write_calibration_table
from quantkit.ort.quantize import (
    DynamicQuantConfig,
    QuantizationMode,
    StaticQuantConfig,
    get_qdq_config,
    quantize,
    quantize_dynamic,
    quantize_static,
)
from quantkit.ort.shape_inference import quant_pre_process

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


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
