"""onnxruntime's `TensorData` and `TensorsData`: ranges by tensor, and their JSON file.

What `calibration_cache_path` holds: a calibration of quantkit's, or onnxruntime's JSON table. And onnxruntime's
calibration methods by quantkit's names.
"""

import json
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import onnx

from quantkit.errors import UsageError
from quantkit.files import replace_text
from quantkit.graph.load import load
from quantkit.observe import Calibration, CalibratorOf, Request
from quantkit.observe.observations import Observations
from quantkit.observe.requests import MinMaxOf, RunningMinMax
from quantkit.ort.quant_utils import CalibrationMethod
from quantkit.provenance import model_digest
from quantkit.settings import DataSettings
from quantkit.workflows.calibrate import CalibrateOptions, calibrate_model

__all__ = [
    "TensorData",
    "TensorsData",
    "cached",
    "load_tensors_data",
    "method_of",
    "save_tensors_data",
]

_PERCENTILE = 99.999  # onnxruntime's default
_NAMES = {"MinMax": "minmax", "Entropy": "entropy", "Percentile": "percentile"}


def method_of(
    method: Any, momentum: float | None = None, percentile: float | None = None
) -> CalibratorOf | None:
    """Return the calibrator that is asked for; None if nothing is.

    Args:
        method: A `CalibrationMethod`, quantkit's or onnxruntime's own, or None.
        momentum: Of a moving average of minima and maxima.
        percentile: Per cent of the values kept.

    Raises:
        UsageError: There is no such method, or settings that do not belong to it.
    """
    name = None if method is None else str(getattr(method, "name", method))
    if name == "Distribution":
        raise UsageError(
            "CalibrationMethod.Distribution is for 8-bit floats, which quantkit does not write: use MinMax, "
            "Entropy or Percentile."
        )
    if name is not None and name not in _NAMES:
        raise UsageError(f"Unknown calibration method {method!r}: use one of {', '.join(_NAMES)}.")
    if momentum is not None and name in {None, "MinMax"}:
        return _asked("moving_average", momentum=momentum)
    if name == "Percentile" or (name is None and percentile is not None):
        return _asked("percentile", keep=_PERCENTILE if percentile is None else float(percentile))
    return None if name is None else _asked(_NAMES[name])


def _asked(name: str, **settings: float) -> CalibratorOf:
    ask = CalibratorOf(name=name, settings=tuple(settings.items()))
    try:
        ask.create(1)
    except ValueError as e:
        raise UsageError(str(e)) from e
    return ask


_FIELDS = ("avg", "std", "lowest", "highest", "hist", "hist_edges", "bins")
_ENDS = 2


class TensorData:
    """What is known about one tensor: keywords become attributes."""

    lowest: Any
    highest: Any
    avg: Any
    std: Any

    def __init__(self, **known: Any) -> None:
        strange = next((name for name in known if name not in _FIELDS), None)
        if strange is not None:
            raise ValueError(f"A tensor has no '{strange}': known are {', '.join(_FIELDS)}.")
        vars(self).update(known)

    @property
    def range_value(self) -> tuple[Any, Any]:
        """Lower and upper end."""
        return self.lowest, self.highest

    @property
    def avg_std(self) -> tuple[Any, Any]:
        """Mean and standard deviation."""
        return self.avg, self.std

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes, and the class's name."""
        return {**vars(self), "CLS": "TensorData"}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> "TensorData":
        """Read what `save_tensors_data` wrote."""
        return cls(**{key: _array(value) for key, value in d.items() if key != "CLS"})


class TensorsData:
    """What is known about all tensors, by name."""

    def __init__(self, calibration_method: Any, data: Mapping[str, Any]) -> None:
        self.calibration_method = calibration_method
        self.data: dict[str, TensorData] = {}
        for name, found in data.items():
            if isinstance(found, tuple) and len(found) == _ENDS:
                self.data[name] = TensorData(lowest=found[0], highest=found[1])
            elif isinstance(found, TensorData):
                self.data[name] = found
            else:
                raise TypeError(f"'{name}' is neither TensorData nor a lower and an upper end.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __contains__(self, key: object) -> bool:
        return key in self.data

    def __getitem__(self, key: str) -> TensorData:
        return self.data[key]

    def __setitem__(self, key: str, value: TensorData) -> None:
        if key not in self.data:
            raise RuntimeError(f"Only a tensor that is there can be changed, and '{key}' is not.")
        self.data[key] = value

    def keys(self) -> KeysView[str]:
        """Return the tensors' names."""
        return self.data.keys()

    def values(self) -> ValuesView[TensorData]:
        """Return what is known about each."""
        return self.data.values()

    def items(self) -> ItemsView[str, TensorData]:
        """Return both."""
        return self.data.items()

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes, and the class's name."""
        return {
            "CLS": "TensorsData",
            "data": self.data,
            "calibration_method": self.calibration_method,
        }

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> "TensorsData":
        """Read what `save_tensors_data` wrote."""
        method = d["calibration_method"]
        if isinstance(method, Mapping):
            method = CalibrationMethod[str(method["value"]).rpartition(".")[2]]
        return cls(method, {name: TensorData.from_dict(found) for name, found in d["data"].items()})


def save_tensors_data(
    tensors_data: TensorsData, path: str | Path, *, smooth_quant: bool = False
) -> None:
    """Write ranges as JSON that onnxruntime reads too.

    Args:
        tensors_data: The ranges.
        path: Where to.
        smooth_quant: Written as it is: onnxruntime's reader wants it.
    """
    plain = {**tensors_data.to_dict(), "smooth_quant": smooth_quant}
    replace_text(Path(path), json.dumps(plain, default=_plain))


def load_tensors_data(path: str | Path) -> TensorsData:
    """Read ranges that onnxruntime, `save_tensors_data` or ``quantkit calibrate --export`` wrote."""
    try:
        return TensorsData.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as e:
        raise UsageError(f"Cannot read '{path}': {e.strerror or e}.") from e
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise UsageError(f"'{path}' is no table of ranges: {e!r}.") from e


def _array(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("CLS") == "numpy.array":
        return np.array(value["data"], dtype=np.dtype(value["dtype"]))
    return np.array(value, np.float32) if isinstance(value, float | int) else value


def _plain(value: Any) -> Any:
    """Return what JSON has no form for as onnxruntime writes it."""
    if isinstance(value, TensorData):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return {"data": value.tolist(), "dtype": str(value.dtype), "CLS": "numpy.array"}
    if isinstance(value, np.generic):
        return value.item()
    if type(value).__name__ == "CalibrationMethod":
        return {"CLS": "CalibrationMethod", "value": str(value)}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")


_MINMAX = CalibratorOf(name="minmax")


def cached(
    path: Path, model: str | Path | onnx.ModelProto, data: Any, ask: CalibratorOf | None
) -> Calibration:
    """Return the calibration in a file; if there is no file, calibrate and write it.

    `ask` chooses among the methods of a calibration; a table of onnxruntime's has ranges only.

    Args:
        path: The file.
        model: What is calibrated if there is no file.
        data: What it is calibrated with; None: there must be a file.
        ask: The method; None: that of the file, or the default.

    Raises:
        UsageError: There is neither a file nor data.
    """
    if path.is_dir():
        raise UsageError(f"calibration_cache_path '{path}' is a directory; give a file name.")
    if not path.exists():
        if data is None:
            raise UsageError(
                f"There is no calibration '{path}' yet, and no calibration_data_reader to make one."
            )
        options = CalibrateOptions() if ask is None else CalibrateOptions(method=ask)
        return calibrate_model(model, data, path, options, DataSettings())
    if is_zipfile(path):
        found = Calibration.load(path)
        return found if ask is None else found.by(ask)
    ends = {name: t.range_value for name, t in load_tensors_data(path).items()}
    return _calibration_of(ends, model)


def _calibration_of(
    ends: Mapping[str, tuple[Any, Any]], model: str | Path | onnx.ModelProto
) -> Calibration:
    """Return a calibration that knows nothing but lower and upper ends."""
    seen = Observations.empty([Request(tensor=name, statistic=MinMaxOf()) for name in ends], 1)
    for name, (low, high) in ends.items():
        for span in seen.answers[name].values():
            assert isinstance(span, RunningMinMax)  # noqa: S101 - asked for above
            span.observe(np.array([low, high], np.float32).ravel())
    header = {"model": model_digest(load(model)), "warnings": []}
    return Calibration(seen=seen, method=_MINMAX, header=header)
