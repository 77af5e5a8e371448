"""onnxruntime's module of the same name, a table for TensorRT with the right values, and names of integer types."""

import json
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto
from onnxruntime.quantization import calibrate
from onnxruntime.quantization import quant_utils as theirs
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData

from quantkit.errors import UsageError
from quantkit.ort._passthrough import forward

__all__ = ["plain_name", "type_name", "write_calibration_table"]

__getattr__ = forward(__name__)

# Types by the numbers that ONNX has for them (TensorProto.DataType), under quantkit's names.
_NAMES: dict[int, str] = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
    TensorProto.INT4: "int4",
    TensorProto.UINT4: "uint4",
    TensorProto.FLOAT8E4M3FN: "float8e4m3fn",
}


def plain_name(quant_type: Any) -> str:
    """Return quantkit's name of a type, also of one that it does not write; "" for an unknown number."""
    if isinstance(quant_type, Integral):
        return _NAMES.get(int(quant_type), "")
    return str(getattr(quant_type, "name", quant_type)).lower().removeprefix("q")


def type_name(quant_type: Any) -> Any:
    """Return quantkit's name of a type: "uint8" for QUInt8.

    Args:
        quant_type: A `QuantType`, a number of ONNX's (TensorProto.UINT8), or the name itself.

    Raises:
        UsageError: There is no such type here.
    """
    name = plain_name(quant_type)
    if name not in _NAMES.values():
        raise UsageError(f"There is no type {quant_type!r} here: give a QuantType.")
    return name


def write_calibration_table(
    calibration_cache: Mapping[str, Any] | TensorsData,
    dir: str | Path = ".",  # noqa: A002 - onnxruntime's name
) -> None:
    """Write ranges for TensorRT: ``calibration.flatbuffers``, ``calibration.json`` and ``calibration.cache`` (text).

    The values are the largest magnitudes, which is what TensorRT's provider expects. onnxruntime's own function writes
    the upper end, 1 for a range from -5 to 1, so it gets symmetric ranges; the JSON has the ranges themselves.
    """
    if not hasattr(calibration_cache, "keys"):
        raise UsageError("There are no ranges: give what compute_data() of a calibrater returned.")
    Path(dir).mkdir(parents=True, exist_ok=True)
    extents = {}
    for name in calibration_cache.keys():  # noqa: SIM118 - TensorsData is not a mapping
        found = calibration_cache[name]
        ends = getattr(found, "range_value", found)
        extent = max(float(np.abs(end).max(initial=0)) for end in ends)
        low, high = (np.array(end, np.float32) for end in (-extent, extent))
        extents[name] = TensorData(lowest=low, highest=high)
    theirs.write_calibration_table(TensorsData(CalibrationMethod.MinMax, extents), str(dir))
    encoder = getattr(calibrate, "CalibrationCacheEncoder", None)  # older versions have none
    if encoder is not None:
        text = json.dumps(calibration_cache, cls=encoder)
        Path(dir, "calibration.json").write_text(text, encoding="utf-8")
