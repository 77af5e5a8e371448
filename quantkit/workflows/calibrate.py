"""Calibration, in order: load, find the points, open the data, observe, audit, write."""

from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from quantkit.data import InputSpec, Samples, Stream, open_data
from quantkit.errors import ModelError, NothingToQuantizeError, UsageError
from quantkit.files import check_outputs
from quantkit.graph.half import half_type, widen
from quantkit.graph.load import LoadedModel
from quantkit.graph.normalize import fix_defaults
from quantkit.graph.opset import raise_opset
from quantkit.graph.save import copy_of
from quantkit.graph.shapes import infer_types
from quantkit.graph.view import view_of
from quantkit.observe.calibration import Calibration
from quantkit.observe.collect import CalibrateOptions, collect
from quantkit.observe.container import is_calibration
from quantkit.observe.monitor import Monitor, Silent
from quantkit.observe.points import Points, points_of
from quantkit.observe.prepare import inputs_of, with_model_folder
from quantkit.plan import ranges_needed
from quantkit.rewrite.simplify import simplify
from quantkit.runtime.session import load_model
from quantkit.settings import DataSettings, StaticSettings
from quantkit.targets import DEFAULT, registered

__all__ = [
    "CalibrateOptions",
    "calibrate_model",
    "find_points",
    "needed_by_any",
    "open_samples",
]


def calibrate_model(
    source: str | Path | onnx.ModelProto,
    data: object,
    output: Path | None,
    options: CalibrateOptions,
    settings: DataSettings,
    monitor: Monitor | None = None,
) -> Calibration:
    """Learn the ranges of a model's activations from data, and write them; see `quantkit.calibrate`.

    Args:
        source: The float model.
        data: What it is run on.
        output: Where the calibration is written; None: nowhere.
        options: What is asked for, and who works.
        settings: How samples are prepared and ordered.
        monitor: Told what is done.
    """
    monitor = monitor or Silent()
    monitor.stage("Reading the model")
    loaded = load_model(source)
    _check_output(output, loaded, data)
    loaded.require_weights()
    # A file of ranges serves whatever target is chosen later.
    points = find_points(loaded, needed_by_any(loaded.model) if options.ranges else ())
    monitor.stage("Looking at the data")
    samples = open_samples(data, inputs_of(loaded), with_model_folder(settings, loaded), options)
    # Data in memory has no name that tells a changed sample; only files are taken up again.
    partial_file = _partial(output) if output and isinstance(data, str | Path) else None
    found = collect(loaded, samples, points, options, settings, monitor, partial_file=partial_file)
    if output is not None:
        monitor.stage("Writing")
        loaded.require_unchanged()
        found.save(output)
        _partial(output).unlink(missing_ok=True)
    return found


def needed_by_any(model: ir.Model) -> tuple[str, ...]:
    """Return the tensors of a float model whose ranges a plan needs, for whichever target it will be made.

    Plans are made of the prepared model, so a copy is prepared here as `quantkit.workflows.prepare` does it; weights
    are neither copied nor read.
    """
    copy = copy_of(model)
    fix_defaults(copy)
    renamed = widen(copy) if half_type(copy) else {}
    try:
        copy = raise_opset(copy, DEFAULT.min_opset)
    except ModelError:  # then no plan can be made either
        return ()
    simplify(copy)
    view = view_of(copy, read_weights=False)
    asked = (ranges_needed(view, StaticSettings(target=t.name)) for t in registered())
    return tuple(dict.fromkeys(renamed.get(name, name) for names in asked for name in names))


def open_samples(
    data: object,
    inputs: tuple[InputSpec, ...],
    settings: DataSettings,
    options: CalibrateOptions,
) -> Samples | Stream:
    """Open data that workers may have to open again, under the name that the user gave it.

    Args:
        data: A path or a Python object.
        inputs: The inputs of the model that it is for.
        settings: How samples are prepared.
        options: Who works: workers of a cluster may have another working directory.
    """
    if not isinstance(data, str | Path):
        return open_data(data, inputs, settings)
    elsewhere = options.scheduler is not None
    samples = open_data(Path(data).absolute() if elsewhere else data, inputs, settings)
    samples.description = replace(samples.description, location=str(data))
    return samples


def _check_output(output: Path | None, loaded: LoadedModel, data: object) -> None:
    if output is not None:
        read = [Path(data)] if isinstance(data, str | Path) else []
        check_outputs([output, _partial(output)], [*loaded.files, *read])
        if _partial(output).exists() and not is_calibration(_partial(output)):
            raise UsageError(
                f"'{_partial(output)}' is in the way of what is kept while calibrating, and not quantkit's: move it, or "
                "choose another output."
            )


def find_points(loaded: LoadedModel, needed: tuple[str, ...] = ()) -> Points:
    """Return the tensors of a model to observe; `needed`: those that a plan will ask for.

    Raises:
        NothingToQuantizeError: There are none.
    """
    infer_types(loaded.model)
    points = points_of(view_of(loaded.model, read_weights=False), needed)
    if points.tensors:
        return points
    where = (
        f": all {points.in_subgraph} stand inside If, Loop or Scan" if points.in_subgraph else ""
    )
    raise NothingToQuantizeError(
        f"No activation of {loaded.name} could be quantized{where}; there is nothing to calibrate."
    )


def _partial(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")
