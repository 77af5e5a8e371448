"""Compare files by their run time, in turns with the float model."""

from collections.abc import Sequence
from pathlib import Path

from quantkit.evaluate.latency import Lab, measure_latency
from quantkit.files import scratch
from quantkit.model.graph.load import LoadedModel
from quantkit.pipeline.prepared import Feeds
from quantkit.result import Interval
from quantkit.runtime.profile import is_plausible
from quantkit.runtime.timing import CLOCK, Pace

SLOWEST = 1.02  # of float's time: a result may take no more
_SECONDS = 1.0  # for which each of two models is timed
_TRIES = 2  # to measure a ratio that is plausible


def ratio_to_float(source: LoadedModel, candidate: Path, feeds: Feeds) -> float | None:
    """Return what a file takes of float's time, the two taking turns; at most 1 where the interval holds 1.

    A ratio that cannot be, or has an interval as wide as itself, is measured again; None: it is not known even then.

    Args:
        source: The float model.
        candidate: The file.
        feeds: Samples to time.
    """
    with scratch() as folder:
        for _ in range(_TRIES):
            ((ratio, interval),) = time_ratios([file_of(source, folder), candidate], feeds)
            if interval is None:
                return 1.0
            if is_plausible(ratio) and interval.high <= 2 * interval.low:
                return ratio if interval.low > 1 else min(ratio, 1.0)
    return None


def time_ratios(
    models: Sequence[Path], feeds: Feeds, width: float = 0.02
) -> list[tuple[float, Interval | None]]:
    """Return what each file but the first takes of the first one's time, and its interval; None where it does not run.

    Args:
        models: Files, which take turns.
        feeds: Samples to time.
        width: Half the width of an interval, relative to the ratio, at which timing may end early.
    """
    lab = Lab(clock=CLOCK, pace=Pace(seconds=_SECONDS, width=width))
    named = [(str(number), path) for number, path in enumerate(models)]
    latency = measure_latency(named, feeds, threads=(1,), lab=lab).latency
    found = [latency[name][:1] for name, _ in named[1:]]
    return [(own[0].ratio, own[0].ratio_interval) if own else (1.0, None) for own in found]


def file_of(source: LoadedModel, folder: Path) -> Path:
    """Return the file of a model as it was given; one that was given as an object is written into the folder.

    Args:
        source: The model.
        folder: Where it is written, if it must be.
    """
    if source.path is not None:
        return source.path
    path = folder / "given.onnx"
    assert source.proto is not None  # noqa: S101 - one of the two is given
    path.write_bytes(source.proto.SerializeToString())
    return path
