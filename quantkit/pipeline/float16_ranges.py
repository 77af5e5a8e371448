"""The smallest and largest value of every float tensor, which decide what fits into float16."""

from pathlib import Path

from quantkit.calibration import Calibration, CalibratorOf, MinMaxOf, Request
from quantkit.calibration.audit import require_values
from quantkit.calibration.collect import CalibrateOptions, collect
from quantkit.calibration.container import is_calibration
from quantkit.calibration.monitor import Monitor
from quantkit.calibration.opened import OpenedData, opened_for
from quantkit.calibration.points import Points
from quantkit.calibration.requests import RunningMinMax
from quantkit.errors import UsageError
from quantkit.model.graph.load import LoadedModel
from quantkit.model.ops.view import HalfView
from quantkit.pipeline.prepared import Job
from quantkit.quantize.plan.half import Ranges
from quantkit.settings import Float16Settings


def open_for_float16(
    loaded: LoadedModel, job: Job[Float16Settings], monitor: Monitor
) -> OpenedData | None:
    """Open the samples, if there are any.

    Raises:
        QuantkitError: They cannot be read, or do not fit the model.
    """
    if job.data is None:
        return None
    path = Path(job.data) if isinstance(job.data, str | Path) else None
    if isinstance(job.data, Calibration) or (path is not None and is_calibration(path)):
        raise UsageError(
            "A calibration holds the ranges of some tensors, and float16 asks for all: give the samples themselves."
        )
    reading = CalibrateOptions(
        skip_bad=job.calibrate.skip_bad, most=None
    )  # any sample may overflow
    data = opened_for(loaded, job.data, job.settings, reading)
    monitor.data_found(data.require().description)
    return data


def observed_ranges(
    loaded: LoadedModel,
    half: HalfView,
    data: OpenedData,
    monitor: Monitor,
    *,
    skip_bad: bool = False,
) -> Calibration:
    """Find the smallest and largest value of every float tensor.

    Raises:
        DataError: The model does not run on the samples, or they hold no finite value.
    """
    monitor.stage("Observing ranges")
    known = {v.name for node in loaded.model.graph for v in node.outputs}
    known |= {v.name for v in loaded.model.graph.inputs}
    asked = tuple(Request(tensor=t, statistic=MinMaxOf()) for t in half.floats if t in known)
    how = CalibrateOptions(
        method=CalibratorOf(name="minmax"), ranges=False, requests=asked, skip_bad=skip_bad
    )
    seen = collect(loaded, data.require(), Points(tensors=()), how, data.settings, monitor)
    # An inner tensor may be infinite everywhere, as a mask is; samples may not.
    fed = {value.name for value in loaded.model.graph.inputs}
    require_values(seen.seen.select(lambda request: request.tensor in fed))
    return seen


def ranges_in(seen: Calibration) -> Ranges:
    """Return what was seen; of infinity, which float16 has too, nothing is said."""
    found = {}
    for tensor, answers in seen.seen.answers.items():
        for answer in answers.values():
            if isinstance(answer, RunningMinMax) and (answer.strange or not answer.empty):
                found[tensor] = (0.0, 0.0) if answer.empty else answer.bounds
    return found
