"""How much a candidate loses against float: of the metric, else of float's decisions, else of the outputs' power."""

from dataclasses import dataclass, replace
from math import inf

from quantkit.errors import UsageError
from quantkit.evaluate.accuracy import MeasuredOutputs
from quantkit.result import Interval
from quantkit.settings import Percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """How much a candidate loses against float, by what there is to tell.

    Attributes:
        drop: How much.
        interval: Of it; None: not known.
        limit: How much may be, in the same units; None: there is no limit.
    """

    drop: float
    interval: Interval | None
    limit: float | None


def lost(answered: MeasuredOutputs, name: str, limit: float | None) -> Lost:
    """Return what a candidate loses: of the metric, else of float's decisions, else of the outputs' power.

    Args:
        answered: What float and the candidate answered.
        name: The candidate.
        limit: What may be lost, as the user gave it.
    """
    metric = next((m for m in answered.metrics.get(name, ()) if m.main), None)
    plain = None if limit is None else float(limit)
    if metric is not None and metric.drop is not None:
        if metric.is_fraction and limit is not None and limit >= 1:
            raise UsageError(
                f"max_drop = {limit:g} allows everything: a drop of {metric.name} cannot be larger than 1. 0.01 is one point."
            )
        scale = 1.0
        if isinstance(limit, Percent) and not metric.is_fraction:
            scale = abs(next(m for m in answered.metrics["float"] if m.main).value)
            if not scale:
                raise UsageError(
                    f"float's {metric.name} is 0, and nothing is a percentage of it: give max_drop in units of {metric.name}."
                )
        bounds = metric.drop_interval
        if bounds is not None:
            bounds = replace(bounds, low=bounds.low / scale, high=bounds.high / scale)
        return Lost(drop=metric.drop / scale, interval=bounds, limit=plain)
    drift = answered.drift[name]
    if drift.decision is not None:
        return Lost(drop=drift.decision.flip_rate, interval=drift.decision.interval, limit=plain)
    worst = min(drift.outputs, key=lambda output: output.db, default=None)
    noise = (
        0.0 if worst is None or worst.db == inf else inf if worst.db == -inf else _power(worst.db)
    )
    bounds = None if worst is None else worst.sqnr_interval
    interval = None
    if bounds is not None:
        interval = Interval(
            low=_power(bounds.high), high=_power(bounds.low), confidence=bounds.confidence
        )
    return Lost(drop=noise, interval=interval, limit=plain)


def _power(db: float) -> float:
    return float(10 ** (-db / 10))
