"""onnxruntime's `TensorData` and `TensorsData`: ranges by tensor, and their JSON file.

What `calibration_cache_path` holds: onnxruntime's JSON table, or a calibration of quantkit's. And onnxruntime's
calibration methods by quantkit's names.
"""

import json
import logging
import struct
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import onnx
import onnx_ir as ir

from quantkit.errors import UsageError, as_os_error
from quantkit.files import check_folder, replace_text, replacing
from quantkit.graph.load import load
from quantkit.graph.shapes import infer_types
from quantkit.observe import Calibration, CalibratorOf, Request
from quantkit.observe.collect import collect
from quantkit.observe.monitor import Silent
from quantkit.observe.observations import Observations
from quantkit.observe.points import Points
from quantkit.observe.prepare import with_model_folder
from quantkit.observe.requests import MinMaxOf, RunningMinMax
from quantkit.ort.quant_utils import CalibrationMethod
from quantkit.provenance import model_digest
from quantkit.runtime.session import load_model
from quantkit.settings import DataSettings
from quantkit.workflows.calibrate import CalibrateOptions, calibrate_model, open_samples

__all__ = [
    "TensorData",
    "TensorsData",
    "cached",
    "calibration_of",
    "load_tensors_data",
    "method_of",
    "plain",
    "save_tensors_data",
    "write_tables",
]

_LOG = logging.getLogger(__name__)
_PERCENTILE = 99.999  # onnxruntime's default
# For integers a distribution is its whole range.
_NAMES = {
    "MinMax": "minmax",
    "Entropy": "entropy",
    "Percentile": "percentile",
    "Distribution": "minmax",
}
_FILE_OF_OURS = ".calibration"


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
_FLOATS = frozenset({"avg", "std", "lowest", "highest", "hist_edges"})
_ENDS, _WITH_HISTOGRAM = 2, 4


class TensorData:
    """What is known about one tensor: keywords become attributes, numbers arrays of float32 (or float16, if they are)."""

    lowest: Any
    highest: Any
    avg: Any
    std: Any
    hist: Any
    hist_edges: Any
    bins: Any

    def __init__(self, **known: Any) -> None:
        strange = next((name for name in known if name not in _FIELDS), None)
        if strange is not None:
            raise ValueError(f"A tensor has no '{strange}': known are {', '.join(_FIELDS)}.")
        for name, value in known.items():
            setattr(self, name, _floats(name, value) if name in _FLOATS else value)

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

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"TensorData({known})"

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> "TensorData":
        """Read what `save_tensors_data` wrote."""
        return cls(**{key: _array(value) for key, value in d.items() if key != "CLS"})


def _floats(name: str, value: Any) -> Any:
    """Return numbers as the files of onnxruntime hold them."""
    try:
        found = np.asarray(value)
        return found if found.dtype == np.float16 else found.astype(np.float32)
    except (TypeError, ValueError) as e:
        raise ValueError(f"'{name}' is a number or an array, not {value!r}.") from e


class TensorsData:
    """What is known about all tensors, by name."""

    def __init__(self, calibration_method: Any, data: Mapping[str, Any]) -> None:
        self.calibration_method = calibration_method
        self.data: dict[str, TensorData] = {}
        for name, found in data.items():
            if not isinstance(name, str):
                raise TypeError(f"Tensors go by their names, not by {name!r}.")
            self.data[name] = _tensor(name, found)

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


def _tensor(name: str, found: Any) -> TensorData:
    """Return what is known about a tensor: as it is, or from its ends, which a histogram and its edges may follow."""
    if isinstance(found, TensorData):
        return found
    if type(found).__name__ == "TensorData":  # onnxruntime's own
        return TensorData(**{key: getattr(found, key) for key in _FIELDS if hasattr(found, key)})
    if isinstance(found, tuple | list) and len(found) == _ENDS:
        return TensorData(lowest=found[0], highest=found[1])
    if isinstance(found, tuple) and len(found) == _WITH_HISTOGRAM:
        return TensorData(lowest=found[0], highest=found[1], hist=found[2], bins=found[3])
    raise TypeError(f"'{name}' is neither TensorData nor a lower and an upper end.")


def save_tensors_data(
    tensors_data: TensorsData, path: str | Path, *, smooth_quant: bool = False
) -> None:
    """Write ranges as JSON that onnxruntime reads too; a folder that is not there is made.

    Args:
        tensors_data: The ranges.
        path: Where to.
        smooth_quant: Whether they are of a model whose outliers were moved into the weights (SmoothQuant).
    """
    if not hasattr(tensors_data, "to_dict"):
        raise UsageError(f"tensors_data is a TensorsData, not {type(tensors_data).__name__}.")
    _write_table(tensors_data, Path(path), {"smooth_quant": smooth_quant})


def _write_table(tensors: TensorsData, path: Path, more: Mapping[str, Any]) -> None:
    check_folder(path.parent, [path.name], ())
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps({**tensors.to_dict(), **more}, default=plain))


def load_tensors_data(path: str | Path) -> TensorsData:
    """Read ranges that onnxruntime, `save_tensors_data` or ``quantkit calibrate --export`` wrote.

    Raises:
        UsageError: There is no such file (then it is a FileNotFoundError too), or it is no table.
    """
    return _read_table(Path(path))[0]


def _read_table(path: Path) -> tuple[TensorsData, Mapping[str, Any]]:
    """Return a table of ranges, and all that its file says."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return TensorsData.from_dict(said), said
    except FileNotFoundError as e:
        raise as_os_error(UsageError(f"There is no table of ranges '{path}'."), e) from e
    except OSError as e:
        raise as_os_error(UsageError(f"Cannot read '{path}': {e.strerror or e}."), e) from e
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        reason = "it is no text" if isinstance(e, UnicodeDecodeError) else f"{e!r:.100}"
        raise UsageError(f"'{path}' is no table of ranges: {reason}.") from e


def _array(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("CLS") == "numpy.array":
        return np.array(value["data"], dtype=np.dtype(value["dtype"]))
    return np.array(value, np.float32) if isinstance(value, float | int) else value


def plain(value: Any) -> Any:
    """Return what JSON has no form for as onnxruntime writes it."""
    if type(value).__name__ in {"TensorData", "TensorsData"}:  # onnxruntime's own too
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return {"data": value.tolist(), "dtype": str(value.dtype), "CLS": "numpy.array"}
    if isinstance(value, np.generic):
        return value.item()
    if type(value).__name__ == "CalibrationMethod":
        return {"CLS": "CalibrationMethod", "value": str(value)}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")


def write_tables(tensors: Mapping[str, Any] | TensorsData, folder: Path) -> None:
    """Write ranges as JSON, as text and as the flatbuffer that onnxruntime's TensorRT provider reads.

    Args:
        tensors: By name.
        folder: Where to; it is made if it is not there.
    """
    if not hasattr(tensors, "keys"):
        raise UsageError("There are no ranges: give what compute_data() of a calibrater returned.")
    extents = {}
    for name in sorted(tensors.keys()):
        ends = _tensor(name, tensors[name]).range_value
        extents[name] = str(max(float(np.abs(end).max(initial=0)) for end in ends))
    names = ("calibration.json", "calibration.flatbuffers", "calibration.cache")
    check_folder(folder, names, ())
    folder.mkdir(parents=True, exist_ok=True)
    said = tensors if hasattr(tensors, "calibration_method") else dict(tensors.items())
    replace_text(folder / names[0], json.dumps(said, default=plain))
    with replacing(folder / names[1]) as file:
        file.write(_flatbuffer(extents))
    replace_text(folder / names[2], "".join(f"{name} {t}\n" for name, t in extents.items()))


def _flatbuffer(entries: Mapping[str, str]) -> bytes:
    """Return a flatbuffer of the schema ``table TrtTable { dict: [KeyValue]; } table KeyValue { key, value: string; }``.

    A table begins with the distance back to its vtable, which has sizes and the places of fields. References are
    distances forward, so everything stands before what it refers to.
    """
    root = struct.pack("<I6HiII", 16, 6, 8, 4, 0, 0, 0, 12, 4, len(entries))
    inner = struct.pack("<4H", 8, 12, 4, 8)
    first = len(root) + 4 * len(entries)  # where the vtable of all entries is
    tables = first + len(inner)
    texts, places = bytearray(), []
    for text in (text for entry in entries.items() for text in entry):
        places.append(tables + 12 * len(entries) + len(texts))
        raw = text.encode()
        texts += struct.pack("<I", len(raw)) + raw + b"\0" * (4 - len(raw) % 4)
    vector, rows = bytearray(), bytearray()
    for i in range(len(entries)):
        place = tables + 12 * i
        vector += struct.pack("<I", place - (len(root) + 4 * i))
        rows += struct.pack("<i", place - first)
        rows += struct.pack("<II", places[2 * i] - (place + 4), places[2 * i + 1] - (place + 8))
    return bytes(root + vector + inner + rows + texts)


_MINMAX = CalibratorOf(name="minmax")


def cached(
    path: Path,
    model: str | Path | onnx.ModelProto,
    data: Any,
    ask: CalibratorOf | None,
    *,
    output: Path,
    smooth: bool = False,
) -> Any:
    """Return the ranges in a file; if there is no file, learn them and write it. Or the data, if ranges will not do.

    The file is onnxruntime's JSON table, of every float tensor; one whose name ends in ``.calibration`` is a
    calibration of quantkit's, which has distributions and so answers every method. What is written is used the first
    time as well: both runs give the same model.

    Args:
        path: The file.
        model: What is calibrated if there is no file.
        data: What it is calibrated with; None: there must be a file.
        ask: The method; None: that of the file, or the default.
        output: What else is written.
        smooth: Whether outliers are to be moved into weights, for which ranges of tensors are not enough.

    Raises:
        UsageError: There is neither a file nor data, or the file's ranges are by another method.
    """
    if path.is_dir():
        said = f"calibration_cache_path '{path}' is a directory; give a file name."
        raise as_os_error(UsageError(said), IsADirectoryError)
    if path.resolve() == output.resolve():
        raise UsageError(
            f"calibration_cache_path and model_output are one file, '{path}'; give two names."
        )
    if smooth:
        if data is None:
            raise UsageError(
                "SmoothQuant looks at channels, of which a table of ranges says nothing: give calibration_data_reader."
            )
        _LOG.warning("'%s' is not used: SmoothQuant (smooth_quant) needs the data itself.", path)
        return data
    if path.exists():
        found = _found(path, model, ask)
        if found is not None:
            return found
        _LOG.warning(
            "'%s' has ranges of a smoothed model (smooth_quant=True), and this run has none: ranges are computed "
            "anew, and the file is written again.",
            path,
        )
    if data is None:
        said = f"There is no calibration '{path}' for this model yet, and no calibration_data_reader to make one."
        raise as_os_error(UsageError(said), FileNotFoundError)
    options = CalibrateOptions(most=None)  # a reader is read to its end
    options = options if ask is None else replace(options, method=ask)
    check_folder(path.parent, [path.name], ())
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == _FILE_OF_OURS:
        return calibrate_model(model, data, path, options, DataSettings())
    return _learned(path, model, data, options)


def _found(
    path: Path, model: str | Path | onnx.ModelProto, ask: CalibratorOf | None
) -> Calibration | None:
    """Return the ranges in a file; None if they are of a model that was smoothed.

    Raises:
        UsageError: They are by another method than is asked for.
    """
    if is_zipfile(path):
        found = Calibration.load(path)
        return found if ask is None else found.by(ask)
    tensors, said = _read_table(path)
    if said.get("smooth_quant"):
        return None
    made = tensors.calibration_method
    name = str(getattr(made, "name", made))
    settings = said.get("settings")
    settings = settings if isinstance(settings, Mapping) else {}
    wanted = None if ask is None else _method(ask)
    asked = {} if ask is None else dict(ask.settings)
    if wanted is not None and (wanted != name or (settings and settings != asked)):
        raise UsageError(
            f"The ranges in '{path}' are by {_told(name, settings)}, and {_told(wanted, asked)} is asked for: delete the "
            "file, name another, or leave out calibrate_method."
        )
    return calibration_of(tensors, model, said.get("model"))


def _method(ask: CalibratorOf) -> str:
    """Return onnxruntime's name of a method, as tables say it; quantkit's own if it has none."""
    if ask.name == "moving_average":
        return "MinMax"
    return next((theirs for theirs, ours in _NAMES.items() if ours == ask.name), ask.name)


def _told(name: str, settings: Mapping[str, Any]) -> str:
    said = ", ".join(f"{key} {value}" for key, value in settings.items())
    return f"{name} ({said})" if said else name


def _learned(
    path: Path, model: str | Path | onnx.ModelProto, data: Any, options: CalibrateOptions
) -> Calibration:
    """Learn the range of every float tensor, and write them as onnxruntime does."""
    loaded = load_model(model)
    loaded.require_weights()
    check_folder(path.parent, [path.name], loaded.files)
    infer_types(loaded.model)
    graph = loaded.model.graph
    made = (value for node in graph for value in node.outputs)
    values = (*(v for v in graph.inputs if not v.is_initializer()), *made)
    names = [v.name or "" for v in values if v.dtype in {ir.DataType.FLOAT, ir.DataType.FLOAT16}]
    settings = with_model_folder(DataSettings(), loaded)
    samples = open_samples(loaded, data, settings, options)
    points = Points(tensors=tuple(names))
    asked = replace(options, compare=False)  # nobody reads an audit here
    found = collect(loaded, samples, points, asked, settings, Silent())
    method = _method(options.method)
    label = CalibrationMethod[method] if method in _NAMES else method
    table = TensorsData(label, found.ranges())
    digest = model_digest(loaded)
    more = {"smooth_quant": False, "settings": dict(options.method.settings), "model": digest}
    _write_table(table, path, more)
    return calibration_of(table, model, digest)


def _range(name: str, found: Any) -> tuple[float, float]:
    """Return the ends of a tensor's range; of ranges by channel the outermost.

    Raises:
        UsageError: It has none.
    """
    try:
        low, high = (np.asarray(end, np.float64) for end in found.range_value)
        ends = float(low.min()), float(high.max())
    except (AttributeError, ValueError) as e:
        raise UsageError(f"The table has no range of tensor '{name}'.") from e
    if not np.isfinite(ends).all() or ends[0] > ends[1]:
        raise UsageError(
            f"The table's range of tensor '{name}' is none: {ends[0]:g} to {ends[1]:g}."
        )
    return ends


def calibration_of(
    tensors: Mapping[str, Any] | TensorsData,
    model: str | Path | onnx.ModelProto,
    made_of: Mapping[str, Any] | None = None,
) -> Calibration:
    """Return a calibration that knows nothing but lower and upper ends.

    Args:
        tensors: By name.
        model: What they are used for.
        made_of: Digest of the model that they were learned of, as far as it is known.
    """
    ends = {name: _range(name, found) for name, found in tensors.items()}
    seen = Observations.empty([Request(tensor=name, statistic=MinMaxOf()) for name in ends], 1)
    for name, (low, high) in ends.items():
        for span in seen.answers[name].values():
            assert isinstance(span, RunningMinMax)  # noqa: S101 - asked for above
            span.observe(np.array([low, high], np.float32))
    known = made_of if isinstance(made_of, Mapping) else model_digest(load(model))
    header = {"model": dict(known), "warnings": []}
    return Calibration(seen=seen, method=_MINMAX, header=header)
