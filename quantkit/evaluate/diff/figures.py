"""The figures of one evaluated model, each with its direction and, where there is one, its interval."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Literal

from quantkit.result import Evaluated, Interval

Unit = Literal["metric", "share", "dB", "bytes", "ratio"]
Verdict = Literal["better", "worse", "same", "within noise", "new", "gone"]
# Memory of a process moves by pages and allocator; no interval is measured.
_MEMORY_NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    Attributes:
        name: What it is, unique in a model.
        value: None: perfect, where that has no number (an SQNR without noise); -inf: an output is not finite.
        unit: How to write it.
        higher_is_better: Its direction.
        interval: Where it lies; None: it is exact, or no interval was measured.
    """

    name: str
    value: float | None
    unit: Unit
    higher_is_better: bool = False
    interval: Interval | None = None


def figures_of(model: Evaluated) -> dict[str, Figure]:
    """Return everything that was measured of a model, by name, in the order to show."""
    return {f.name: f for f in (*_accuracy(model), *_cost(model))}


def _accuracy(model: Evaluated) -> Iterator[Figure]:
    for metric in model.metrics:
        unit: Unit = "share" if metric.is_fraction else "metric"
        better = metric.higher_is_better
        yield Figure(metric.name, metric.value, unit, better, metric.interval)
        if metric.drop is not None:
            name = f"drop of {metric.name}"
            yield Figure(name, metric.drop, unit, interval=metric.drop_interval)
    drift = model.drift
    if drift is None:
        return
    if drift.decision is not None:
        found = drift.decision
        yield Figure("flips", found.flip_rate, "share", interval=found.interval)
    for output in drift.outputs:
        db = None if output.db == inf else output.db
        name = f"SQNR of {output.output}"
        yield Figure(name, db, "dB", higher_is_better=True, interval=output.sqnr_interval)


def _cost(model: Evaluated) -> Iterator[Figure]:
    yield Figure("size", model.size.disk, "bytes")
    for latency in model.latency if model.role == "candidate" else ():
        threads = f", {latency.threads} threads" if latency.threads else ""
        name = f"latency ratio, batch {latency.batch}{threads}"
        yield Figure(name, latency.ratio, "ratio", interval=latency.ratio_interval)
    if model.runtime is not None and model.role == "candidate":
        yield Figure("int8 share", model.runtime.share, "share", higher_is_better=True)
    if model.memory is not None:
        for name, value in (("resident", model.memory.resident), ("peak", model.memory.peak)):
            around = Interval(low=value * (1 - _MEMORY_NOISE), high=value * (1 + _MEMORY_NOISE))
            yield Figure(f"{name} memory", value, "bytes", interval=around)


def judge(a: Figure | None, b: Figure | None, *, same_samples: bool = True) -> Verdict:
    """Say what became of a figure.

    A change is within noise if each value lies in the other's interval; where only one has an interval, in that. Of
    other samples it is already if the intervals overlap: both figures are then drawn anew.

    Args:
        a: The earlier figure; None: there is none.
        b: The later figure; None: there is none.
        same_samples: Both are of the same samples, so that they share their luck.
    """
    # A value of None is an SQNR without noise (infinite), so it beats any number. Intervals describe how far a figure
    # moves with other samples. On the same samples both values share that luck, so each must lie in the other's
    # interval: asking for overlap only would hide real changes. On other samples the luck is drawn twice, and overlap
    # is all that can be asked. A figure without any interval (a size) has no noise: then every difference counts.
    if a is None or b is None:
        return "new" if a is None else "gone"
    if a.value == b.value:
        return "same"
    if a.value is None or b.value is None:
        return "better" if b.value is None else "worse"
    if not same_samples and a.interval and b.interval:
        apart = a.interval.high < b.interval.low or b.interval.high < a.interval.low
        if not apart:
            return "within noise"
    inside = [
        interval.low <= value <= interval.high
        for interval, value in ((a.interval, b.value), (b.interval, a.value))
        if interval is not None
    ]
    if inside and all(inside):
        return "within noise"
    return "better" if (b.value > a.value) == b.higher_is_better else "worse"
