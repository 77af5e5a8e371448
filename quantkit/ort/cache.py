"""What `calibration_cache_path` holds: a calibration of quantkit's, or onnxruntime's JSON table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import onnx

from quantkit.calibration import CalibrateOptions, calibrate_model
from quantkit.errors import UsageError
from quantkit.graph.load import load
from quantkit.observe import Calibration, CalibratorAsk, Request
from quantkit.observe.min_max import Span
from quantkit.observe.observations import Observations
from quantkit.observe.requests import SpanAsk
from quantkit.ort.tensors import load_tensors_data
from quantkit.provenance import model_digest
from quantkit.recipe import DataSettings

__all__ = ["cached", "calibration_of"]

_MINMAX = CalibratorAsk(name="minmax")


def cached(
    path: Path, model: str | Path | onnx.ModelProto, data: Any, ask: CalibratorAsk | None
) -> Calibration:
    """Return the calibration in a file; if there is no file, calibrate and write it.

    `ask` chooses among the methods of a calibration; a table of onnxruntime's has ranges only.

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
    return calibration_of(ends, model)


def calibration_of(
    ends: Mapping[str, tuple[Any, Any]], model: str | Path | onnx.ModelProto
) -> Calibration:
    """Return a calibration that knows nothing but lower and upper ends."""
    seen = Observations.empty([Request(tensor=name, what=SpanAsk()) for name in ends], 1)
    for name, (low, high) in ends.items():
        for span in seen.answers[name].values():
            assert isinstance(span, Span)  # noqa: S101 - asked for above
            span.observe(np.array([low, high], np.float32).ravel())
    header = {"model": model_digest(load(model)), "warnings": []}
    return Calibration(seen=seen, method=_MINMAX, header=header)
