"""The files of `calibration_cache_path`: onnxruntime's JSON table of ranges, or a calibration of quantkit's."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import onnx
import onnx_ir as ir

from quantkit.calibration import Calibration, CalibratorOf, Request
from quantkit.calibration.calibration import table_of
from quantkit.calibration.collect import CalibrateOptions, collect
from quantkit.calibration.model_inputs import with_model_folder
from quantkit.calibration.monitor import Silent
from quantkit.calibration.opened import open_samples
from quantkit.calibration.points import Points
from quantkit.calibration.requests import MinMaxOf, Observations, RunningMinMax
from quantkit.errors import UsageError, as_os_error
from quantkit.files import check_folder, replace_text
from quantkit.model.graph.edit import own_name
from quantkit.model.graph.load import load
from quantkit.model.graph.shapes import infer_types
from quantkit.model.provenance import model_digest
from quantkit.ort.extra_options import METHODS
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.runtime.session import load_model
from quantkit.settings import DataSettings

__all__ = ["cached", "calibration_of"]

_LOG = logging.getLogger(__name__)
_FILE_OF_OURS = ".calibration"


def _read_table(path: Path) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the ranges of onnxruntime's JSON table, and everything in the file."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return {name: _ends(known) for name, known in table["data"].items()}, table
    except OSError as e:
        raise as_os_error(UsageError(f"Cannot read '{path}': {e.strerror or e}."), e) from e
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as e:
        reason = "it is no text" if isinstance(e, UnicodeDecodeError) else f"{e!r:.100}"
        raise UsageError(f"'{path}' is no table of ranges: {reason}.") from e


def _ends(known: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return the ends of a range in a table, which are arrays or numbers; None if there are none."""
    if not {"lowest", "highest"} <= known.keys():
        return None
    low, high = (known[key] for key in ("lowest", "highest"))
    return tuple(np.float32(v["data"] if isinstance(v, Mapping) else v) for v in (low, high))  # type: ignore[return-value]


def _write_table(
    path: Path, method: str, ranges: Mapping[str, tuple[float, float]], more: Mapping[str, Any]
) -> None:
    """Write ranges in the format of onnxruntime's `save_tensors_data`."""
    known = f"CalibrationMethod.{method}" if method in METHODS else method
    check_folder(path.parent, [path.name], ())
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(table_of(ranges, known, **more)))


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
    name = _method_in(path, said)
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


def _method_in(path: Path, table: Mapping[str, Any]) -> str:
    """Return the name of the method in a table: onnxruntime writes the text of its enumeration."""
    method = table.get("calibration_method")
    name = method.get("value") if isinstance(method, Mapping) else method
    if not isinstance(name, str):
        raise UsageError(f"'{path}' is no table of ranges: it names no calibration_method.")
    return name.rpartition(".")[2]


def _method(ask: CalibratorOf) -> str:
    """Return onnxruntime's name of a method, as tables say it; quantkit's own if it has none."""
    if ask.name == "moving_average":
        return "MinMax"
    return next((theirs for theirs, ours in METHODS.items() if ours == ask.name), ask.name)


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
    names = [own_name(v) for v in values if v.dtype in {ir.DataType.FLOAT, ir.DataType.FLOAT16}]
    settings = with_model_folder(DataSettings(), loaded)
    samples = open_samples(loaded, data, settings, options)
    points = Points(tensors=tuple(names))
    asked = replace(options, compare=False)  # nobody reads an audit here
    found = collect(loaded, samples, points, asked, settings, Silent())
    method = _method(options.method)
    digest = model_digest(loaded)
    more = {"smooth_quant": False, "settings": dict(options.method.settings), "model": digest}
    _write_table(path, method, found.ranges(), more)
    return calibration_of(found.ranges(), model, digest)


def _range(name: str, found: Any) -> tuple[float, float]:
    """Return the ends of a tensor's range; of ranges by channel the outermost.

    Raises:
        UsageError: It has none.
    """
    try:
        pair = getattr(found, "range_value", found)
        low, high = (np.asarray(end, np.float64) for end in pair)
        ends = float(low.min()), float(high.max())
    except (AttributeError, TypeError, ValueError) as e:
        raise UsageError(f"The table has no range of tensor '{name}'.") from e
    if not np.isfinite(ends).all() or ends[0] > ends[1]:
        raise UsageError(
            f"The table's range of tensor '{name}' is none: {ends[0]:g} to {ends[1]:g}."
        )
    return ends


def calibration_of(
    tensors: Any,
    model: str | Path | onnx.ModelProto,
    made_of: Mapping[str, Any] | None = None,
) -> Calibration:
    """Return a calibration that knows nothing but lower and upper ends.

    Args:
        tensors: By name a `TensorData`, or a lower and an upper end; a mapping or a `TensorsData`.
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
