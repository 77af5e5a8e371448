"""`calibrate`: ranges of activations from real data."""

from collections.abc import Sequence
from pathlib import Path

import onnx

from quantkit.api.arguments import checked_kinds, range_method, sample_settings
from quantkit.calibration import Calibration, Request
from quantkit.calibration.collect import CalibrateOptions
from quantkit.errors import UsageError
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.settings import CalibrateSettings, DataSettings

__all__ = ["CalibrateOptions", "calibrate", "calibrate_model"]


@checked_kinds
def calibrate(  # noqa: PLR0913 - one parameter per question
    model: str | Path | onnx.ModelProto,
    data: object,
    output: str | Path | None = None,
    *,
    method: str | None = None,
    percentile: float | None = None,
    settings: DataSettings | None = None,
    limit: int | None = None,
    memory: int | str | None = None,
    batch: int | None = None,
    minmax_only: bool = False,
    every_value: bool = False,
    requests: Sequence[Request] = (),
    skip_bad: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    threads: int = 1,
) -> Calibration:
    """Learn the ranges of a model's activations from real data, in one pass.

    All methods read the same sketches: `Calibration.range(tensor, method)` gives another one's ranges
    without running anything again.

    Args:
        model: A path, or a ModelProto.
        data: A directory or file (docs/calibrate.md lists the formats); an iterable or sequence of dicts of arrays; an
            object with `get_next()`, as onnxruntime's CalibrationDataReader; a `datasets.Dataset`.
        output: Where to write. If the data is a path, an interrupted call then continues when it is made again.
        method: "mse" (the default), "minmax", "percentile", "entropy", "moving_average", or a plug-in's name.
        percentile: Per cent of the values that the method "percentile" keeps.
        settings: How samples are prepared and ordered.
        limit: Use so many samples; overrides the settings. None in both: at most 256 of shuffled data.
        memory: Bytes that may be held at once (or "500MB", "1GB"); overrides the settings.
        batch: Samples in one run; overrides the settings.
        minmax_only: Take only minima and maxima, inside the graph: fastest, no other method afterwards.
        every_value: Count every value of each tensor, not about a million evenly spaced ones.
        requests: What else later stages must see.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        workers: Processes; None is one per core.
        scheduler: Address of a dask scheduler, to run on a cluster.
        threads: Per operator; more than one only for models too large to run twice at a time.

    Returns:
        Sketches and ranges of every tensor that can be quantized, the audit of the data, provenance.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do.
    """
    if minmax_only:
        method = method or ("minmax" if percentile is None else "percentile")
        if method != "minmax":
            raise UsageError(f"minmax_only takes what the method 'minmax' needs, not '{method}'.")
    CalibrateSettings(workers=workers)  # checks it, as quantkit.toml does
    return calibrate_model(
        model,
        data,
        None if output is None else Path(output),
        CalibrateOptions(
            method=range_method(method, percentile),
            minmax_only=minmax_only,
            every_value=every_value,
            requests=tuple(requests),
            skip_bad=skip_bad,
            workers=workers,
            scheduler=scheduler,
            threads=threads,
        ),
        sample_settings(settings, limit=limit, batch=batch, memory=memory),
    )
