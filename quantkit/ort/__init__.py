"""onnxruntime.quantization's public names, for a migration that changes one import line.

    from quantkit.ort import QuantType, quantize_static      # was: from onnxruntime.quantization

Calls that quantize are quantkit's, with onnxruntime's parameters in their order: `quantize_static`, `quantize_dynamic`,
`quantize`, `QDQQuantizer`, `matmul_nbits_quantizer` and the command `static_quantize_runner`. An argument that is passed
is honoured; quantkit chooses where one is left out. All other names and modules are onnxruntime's own.
"""

from onnxruntime.quantization import calibrate
from onnxruntime.quantization.calibrate import (
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
)
from onnxruntime.quantization.quant_utils import QuantFormat, QuantizationMode, QuantType
from onnxruntime.quantization.shape_inference import quant_pre_process

from quantkit.ort._passthrough import forward
from quantkit.ort.qdq_quantizer import QDQQuantizer
from quantkit.ort.quant_utils import write_calibration_table
from quantkit.ort.quantize import (
    DynamicQuantConfig,
    StaticQuantConfig,
    get_qdq_config,
    quantize,
    quantize_dynamic,
    quantize_static,
)

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
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
    "write_calibration_table",
]

__getattr__ = forward(__name__)

# Older versions of onnxruntime do not have these two.
__all__ += [n for n in ("load_tensors_data", "save_tensors_data") if hasattr(calibrate, n)]
