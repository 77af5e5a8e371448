"""Which widths reach a target: files of candidates are written, run next to float, and timed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quantkit.calibration.monitor import Monitor
from quantkit.errors import UnreachableError
from quantkit.evaluate.accuracy import AccuracyOptions, NamedModel, measure_outputs
from quantkit.evaluate.drop import lost
from quantkit.pipeline.measure import time_ratios
from quantkit.pipeline.prune_model import PreparedPrune
from quantkit.pipeline.prune_refit import fit
from quantkit.pipeline.prune_result import HeldOut, PrunedFile
from quantkit.reduce.prune.allocate import Step, first_below

Array = NDArray[Any]

FRONTIER = (0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)  # of float's time
_TRIES = 3  # to reach a time, each nearer to it by what the last one took
_CLOSE = 0.01  # of float's time: as exact as times can be measured
_MOST = 100  # choosing samples on which the frontier is run
_REFITS = 5  # of a search for the largest drop that is allowed


def measure_drops(
    prepared: PreparedPrune, files: Mapping[str, Path], places: Sequence[int], monitor: Monitor
) -> dict[str, HeldOut]:
    """Return how much files lose against float, on some samples."""
    models = [NamedModel(name="float", path=prepared.file)]
    models += [NamedModel(name=name, path=path) for name, path in files.items()]
    job = prepared.job
    options = AccuracyOptions(
        metric=job.options.metric, skip_bad=job.calibrate.skip_bad, only=tuple(places)
    )
    settings = replace(job.settings, limit=None)
    found = measure_outputs(models, job.data, settings, options, monitor)
    judged = {}
    for name in files:
        drop = lost(found, name, job.options.drop)
        judged[name] = HeldOut(
            drop=drop.drop,
            interval=drop.interval,
            samples=found.data.samples,
            sentence=found.drift[name].sentence,
        )
    return judged


def measured(prepared: PreparedPrune, step: Step, name: str) -> PrunedFile:
    """Write a candidate whose weights make up for what is removed, each for itself, and time it next to float."""
    model = prepared.graph.pruned(step.widths, prepared.graph.filled(step.widths))
    path = prepared.written(model, name)
    ((ratio, interval),) = time_ratios([prepared.file, path], [prepared.timed])
    return PrunedFile(
        widths=step.widths,
        speed=ratio,
        speed_interval=interval,
        size=path.stat().st_size / prepared.source.nbytes,
        noise=step.noise,
        path=path,
    )


def frontier(
    prepared: PreparedPrune, path: Sequence[Step], monitor: Monitor
) -> tuple[PrunedFile, ...]:
    """Return candidates from slow to fast, each run and timed as a file; before weights are fitted in order, so that drops are upper estimates."""
    assert prepared.split is not None  # noqa: S101 - nothing is decided yet
    steps: list[Step] = []
    for share in FRONTIER:
        step = first_below(path, seconds=share * path[0].seconds)
        if step is not None and step not in steps:
            steps.append(step)
    monitor.stage("Timing the frontier")
    found = [measured(prepared, step, f"frontier{number}") for number, step in enumerate(steps)]
    places = prepared.split.choosing[:_MOST]
    named = {str(number): one.path for number, one in enumerate(found)}
    drops = measure_drops(prepared, named, places, monitor) if found else {}
    return tuple(replace(one, judged=drops[str(number)]) for number, one in enumerate(found))


def at_speed(
    prepared: PreparedPrune, path: Sequence[Step], speed: float, monitor: Monitor
) -> PrunedFile:
    """Return the candidate that takes at most a share of float's time, as measured.

    Raises:
        UnreachableError: None does.
    """
    monitor.stage("Timing candidates")
    wanted, best = speed, None
    for number in range(_TRIES):
        step = first_below(path, seconds=wanted * path[0].seconds) or path[-1]
        one = measured(prepared, step, f"speed{number}")
        if one.speed <= speed + _CLOSE and (best is None or one.noise < best.noise):
            best = one
        if abs(one.speed - speed) <= _CLOSE or (step is path[-1] and one.speed > speed):
            break
        wanted *= speed / one.speed
    if best is None:
        raise UnreachableError(
            f"{prepared.source.name} does not reach {speed:.2f} of its latency: with all that can be removed it still takes "
            f"{one.speed:.2f}; the rest is in layers whose channels must stay."
        )
    return best


def at_size(prepared: PreparedPrune, path: Sequence[Step], size: float) -> PrunedFile:
    """Return the candidate that has at most a size: a share of float's, or bytes.

    Raises:
        UnreachableError: None does.
    """
    nbytes = size * prepared.source.nbytes if size <= 1 else size
    around = prepared.source.nbytes - path[0].nbytes  # the graph itself, which stays
    wanted = nbytes - max(0.0, around)
    step = first_below(path, nbytes=wanted)
    if step is None:
        least = (path[-1].nbytes + max(0.0, around)) / prepared.source.nbytes
        raise UnreachableError(
            f"{prepared.source.name} does not reach {nbytes / prepared.source.nbytes:.0%} of its size: with all that can be removed it "
            f"still has {least:.0%}; quantize it, or use a model that is smaller by design."
        )
    return measured(prepared, step, "size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A candidate with fitted weights, and what it loses on the choosing samples."""

    candidate: PrunedFile
    tensors: Mapping[str, Array]
    judged: HeldOut


def at_drop(
    prepared: PreparedPrune,
    path: Sequence[Step],
    points: Sequence[PrunedFile],
    limit: float,
    monitor: Monitor,
) -> Fitted:
    """Return the fastest fitted candidate whose drop on the choosing samples is allowed, by halving the way along the path.

    Raises:
        UnreachableError: None is; says what the best loses.
    """
    assert prepared.split is not None  # noqa: S101 - nothing is decided yet
    places = prepared.split.choosing
    states = [step.widths for step in path]
    # Up to where weights that are not fitted in order keep to it already, a fitted one most likely does too.
    known = [one for one in points if one.judged is not None and one.judged.drop <= limit]
    low, high = (states.index(known[-1].widths) if known else 0), len(path) - 1
    best: Fitted | None = None
    least: Fitted | None = None
    at = low or max(1, (low + high) // 4)
    for number in range(_REFITS):
        step = path[at]
        widths, tensors = fit(prepared, step.widths, monitor)
        file = prepared.written(prepared.graph.pruned(widths, tensors), f"fitted{number}")
        judged = measure_drops(prepared, {"pruned": file}, places, monitor)["pruned"]
        candidate = replace(measured(prepared, step, "timed"), widths=widths, judged=judged)
        found = Fitted(candidate=candidate, tensors=tensors, judged=judged)
        least = min((one for one in (least, found) if one), key=lambda one: one.judged.drop)
        if judged.drop <= limit:
            low, best = at, found
        else:
            high = at
        after = (low + high) // 2
        if (
            after in (at, low)
            or abs(path[low].seconds - path[high].seconds) < _CLOSE * path[0].seconds
        ):
            break
        at = after
    if best is not None:
        return best
    assert least is not None  # noqa: S101 - one was tried
    raise UnreachableError(
        f"No pruned file of {prepared.source.name} keeps a drop of {limit:.2%}: the mildest one tried loses {least.judged.text()} at "
        f"{least.candidate.speed:.2f} of float's latency; allow more, give more samples, or distill the pruned file."
    )
