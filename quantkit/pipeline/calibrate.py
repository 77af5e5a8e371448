"""Calibration, in order: load, find the points, open the data, observe, audit, write."""

from pathlib import Path

import onnx
import onnx_ir as ir

from quantkit.calibration.calibration import Calibration
from quantkit.calibration.collect import CalibrateOptions, collect
from quantkit.calibration.container import is_container
from quantkit.calibration.model_inputs import with_model_folder
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.calibration.opened import OpenedData, open_samples, with_limit
from quantkit.calibration.points import Points, points_of
from quantkit.errors import ModelError, NothingToQuantizeError, UsageError
from quantkit.files import check_outputs
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.shapes import infer_types
from quantkit.model.graph.view import view_of
from quantkit.model.ops.view import View
from quantkit.pipeline.prepared import float_copy, with_opset
from quantkit.quantize.plan import ranges_needed
from quantkit.quantize.rewrite.simplify import simplify
from quantkit.quantize.rewrite.split import split_fused
from quantkit.runtime.session import load_model
from quantkit.settings import DataSettings, StaticSettings
from quantkit.targets import DEFAULT, registered


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
    with loaded.watched():  # how arrays are cut into samples may be found by running it
        samples = open_samples(loaded, data, with_model_folder(settings, loaded), options)
    settings = with_limit(settings, samples, options)
    monitor.chosen(settings.limit, samples.description.samples)
    # Data in memory has no name that tells a changed sample; only files are taken up again.
    partial_file = _partial(output) if output and isinstance(data, str | Path) else None
    found = collect(loaded, samples, points, options, settings, monitor, partial_file=partial_file)
    if output is not None:
        monitor.stage("Writing")
        loaded.require_unchanged()
        found.save(output)
        _partial(output).unlink(missing_ok=True)
    return found


def _check_output(output: Path | None, loaded: LoadedModel, data: object) -> None:
    if output is not None:
        read = [Path(data)] if isinstance(data, str | Path) else []
        check_outputs([output, _partial(output)], [*loaded.files, *read])
        partial = _partial(output)
        if partial.is_symlink() or (partial.exists() and not is_container(partial)):
            raise UsageError(
                f"'{partial}' is in the way of what is kept while calibrating, and not quantkit's: move it, or "
                "choose another output."
            )


def find_points(loaded: LoadedModel, needed: tuple[str, ...] = ()) -> Points:
    """Return the tensors of a model to observe; `needed`: those that a plan will ask for.

    Raises:
        NothingToQuantizeError: There are none.
    """
    points = points_in(loaded, needed)
    if points.tensors:
        return points
    where = f": all {points.hidden} stand in subgraphs of other operators" if points.hidden else ""
    raise NothingToQuantizeError(
        f"No activation of {loaded.name} could be quantized{where}; there is nothing to calibrate",
        outcome="",
    )


def points_in(loaded: LoadedModel, needed: tuple[str, ...] = ()) -> Points:
    """Return the tensors of a model to observe, perhaps none; see `find_points`."""
    infer_types(loaded.model)
    return points_of(view_of(loaded.model, read_weights=False), needed)


def needed_by_any(model: ir.Model) -> tuple[str, ...]:
    """Return the tensors of a float model whose ranges a plan needs, for whichever target it will be made."""
    view, renamed = view_for_static(model)
    if view is None:  # then no plan can be made either
        return ()
    asked = (ranges_needed(view, StaticSettings(target=t.name)) for t in registered())
    return tuple(dict.fromkeys(renamed.get(name, name) for names in asked for name in names))


def view_for_static(model: ir.Model) -> tuple[View | None, dict[str, str]]:
    """Return a view of a model as `quantkit.pipeline.prepare` plans it, and the names of tensors that it widened.

    Weights are neither copied nor read. The view is None where the opset cannot be raised.
    """
    copy, _, renamed = float_copy(model, keep_inputs=False)
    try:
        copy, _ = with_opset(copy, DEFAULT.min_opset)
    except ModelError:
        return None, renamed
    split_fused(copy)
    simplify(copy)
    return view_of(copy, read_weights=False), renamed


def _partial(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")


def collected(
    written: LoadedModel,
    data: OpenedData,
    options: CalibrateOptions,
    settings: DataSettings,
    monitor: Monitor,
    needed: tuple[str, ...] = (),
) -> Calibration:
    """Run a written float model on the data.

    Args:
        written: The model.
        data: What it is run on.
        options: What is asked.
        settings: Which samples, in which order.
        monitor: Told what is done.
        needed: Tensors whose ranges the plan will ask for, which may be none at all.
    """
    points = points_in(written, needed)
    monitor.stage("Looking at the data")
    return collect(written, data.require(), points, options, settings, monitor)
