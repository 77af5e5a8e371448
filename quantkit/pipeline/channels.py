"""Even out the channels of activations: equalize and smooth, where weights can take that over and it helps."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from hashlib import blake2b
from math import inf
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrators import ChannelExtremes, ChannelMoments, MeanSquaredError, Sketch
from quantkit.calibration.calibration import Calibration
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.monitor import Monitor
from quantkit.calibration.opened import OpenedData
from quantkit.calibration.requests import Request
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.save import copy_of
from quantkit.numerics.decibels import decibels
from quantkit.pipeline.calibrate import collected
from quantkit.pipeline.prepared import Feeds, FloatModel, Job
from quantkit.pipeline.static_model import STEPS, fitting, runnable
from quantkit.quantize.plan import SolvedIntegers, plan_static, ranges_needed
from quantkit.quantize.rewrite.equalize import Group, equalize, extreme_requests, groups_of
from quantkit.quantize.rewrite.smooth import Smoothable, smooth, smoothable, smoothing_requests
from quantkit.quantize.solve.losses import Meter
from quantkit.runtime.session import RUNTIME_ERRORS
from quantkit.runtime.taps import read_tensors
from quantkit.settings import StaticSettings

_SMOOTHED = "Smoothed"  # begins the note of a smoothed model
_LOOKED_AT = 256  # samples that tell a channel's extremes well enough
_JUDGES = 4  # samples, of a quarter at most, that decide whether smoothing helps

_Answer = TypeVar("_Answer")


def with_even_channels(
    ready: FloatModel,
    data: OpenedData,
    job: Job[StaticSettings],
    files: ExitStack,
    monitor: Monitor,
) -> tuple[LoadedModel | None, FloatModel]:
    """Even out the channels of activations, where weights can take that over; see `quantkit.quantize.rewrite`.

    That takes a look at some samples of its own: the extremes of each channel. Data that can be read only once is left
    for the ranges. Return the file that was looked at, if it is still the model, and the model.
    """
    # Two passes over the data, and no way around it: factors need the extremes of channels of the model as it is,
    # ranges must be of the model as it will be, and a histogram of a whole tensor cannot be rescaled by channel. The
    # first pass is short, as extremes need few samples. Data that can be read only once is kept for the ranges: they
    # are needed, factors only help. The digest names the factors: a plan and a calibration of other factors are then
    # refused instead of being silently wrong.
    view, recover = ready.view, job.options.recover
    groups = groups_of(view, ready.products) if recover.equalize is not False else []
    smooths = smoothable(view) if recover.smooth is not False else ()
    if not (groups or smooths) or data.once:
        return None, ready
    monitor.step(2, STEPS, "Observing channel extremes for equalization")
    # The last samples set no factors: they decide whether factors help.
    used = data.used
    judges = min(_JUDGES, used // _JUDGES) if smooths and used >= 2 * _JUDGES else 0
    few = replace(data.settings, limit=min(used - judges, _LOOKED_AT) if used else _LOOKED_AT)
    extremes, moments = extreme_requests(groups), smoothing_requests(smooths)
    asked = CalibrateOptions(
        ranges=False, requests=(*extremes, *moments), skip_bad=job.calibrate.skip_bad
    )
    monitor.stage("Reading the model")
    written = files.enter_context(runnable(ready))
    seen = collected(written, data, fitting(asked, ready), few, monitor)
    largest = {r.tensor: _answer(seen, r, ChannelExtremes).largest for r in extremes}
    channels = {r.tensor: _answer(seen, r, ChannelMoments) for r in moments}
    models = [ready, *_rewritten(ready, (groups, largest), (smooths, channels))]
    if len(models) == 1:
        return written, ready
    if judges and models[-1].notes[-1].startswith(_SMOOTHED):
        monitor.stage("Measuring whether smoothing helps")
        learned = data.at(written, range(min(used - judges, 2 * _JUDGES)))
        judged = data.at(written, range(used - judges, used))
        models = _without_noisier(models[-2:], job, learned, judged)
    if models[-1].model is ready.model:
        return written, models[-1]
    files.close()  # what was written is another model now
    return None, models[-1]


def _rewritten(
    ready: FloatModel,
    even: tuple[Sequence[Group], Mapping[str, NDArray[Any]]],
    smoothing: tuple[Sequence[Smoothable], Mapping[str, ChannelMoments]],
) -> Iterator[FloatModel]:
    """Yield the model with equalized channels, and then with smoothed activations, as far as there are any."""
    digest = blake2b(digest_size=8)
    model = copy_of(ready.model)
    if divided := equalize(model, *even):
        for tensor, array in even[1].items():
            digest.update(tensor.encode() + array.tobytes())
        note = f"Equalized the channels of {len(divided)} groups of tensors."
        again = FloatModel.of(model, notes=(*ready.notes, note), name=ready.name, known=ready.known)
        ready = replace(again, factors_id=digest.hexdigest(), divided=divided)
        yield ready
    model = copy_of(ready.model)
    if done := smooth(model, *smoothing):
        for one in done:
            digest.update(one.tensor.encode() + one.scale.tobytes())
        note = f"{_SMOOTHED} {len(done)} {'activation' if len(done) == 1 else 'activations'}."
        again = FloatModel.of(model, notes=(*ready.notes, note), name=ready.name, known=ready.known)
        divided = (*ready.divided, *(one.divisors for one in done))
        yield replace(again, factors_id=digest.hexdigest(), divided=divided)


def _without_noisier(
    models: Sequence[FloatModel], job: Job[StaticSettings], learned: Feeds, judged: Feeds
) -> list[FloatModel]:
    """Return models up to the one with the least noise on samples that set no factors.

    Args:
        models: A float model, and the same with more and more rewritten.
        job: The settings of the plan.
        learned: Samples that ranges are found with.
        judged: Samples on which noise is measured.
    """
    try:
        noise = [_noise_of(model, job.options, learned, judged) for model in models]
    except RUNTIME_ERRORS:  # a model that does not run with more outputs than its own
        return list(models)
    best = int(np.argmin(noise))
    left = [note for note in models[-1].notes if note not in models[best].notes]
    if not left:
        return list(models)
    why = "Not done, as it makes samples noisier that did not set the factors"
    note = f"{why} ({_gain(noise[-1], noise[best])}): {' '.join(left)}"
    return [*models[:best], replace(models[best], notes=(*models[best].notes, note))]


def _gain(more: float, less: float) -> str:
    return f"{decibels(more / less):.1f} dB" if 0 < less < inf and more < inf else "much"


def _noise_of(ready: FloatModel, options: StaticSettings, learned: Feeds, judged: Feeds) -> float:
    """Return noise over signal of the worst output when a model is quantized with ranges of a few samples."""
    needed = ranges_needed(ready.view, options)
    sketches = {name: Sketch() for name in needed}
    for values in read_tensors(ready.model, needed, learned):
        for name, array in values.items():
            sketches[name].observe(array)
    method = MeanSquaredError()
    found = {name: method(sketch) for name, sketch in sketches.items() if not sketch.empty}
    ranges = {name: (float(one.low[0]), float(one.high[0])) for name, one in found.items()}
    plan = plan_static(ready.view, ranges, options)
    meter = Meter(ready.model, ready.view, plan, SolvedIntegers(), judged)
    return max(meter.noise_of(plan).values(), default=0.0)


def _answer(seen: Calibration, request: Request, kind: type[_Answer]) -> _Answer:
    answer = seen.seen.answers[request.tensor][request.statistic]
    assert isinstance(answer, kind)  # noqa: S101 - it was asked for
    return answer
